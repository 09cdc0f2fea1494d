/* Finds the CUDA driver, fills the table of its functions, lists the devices, and turns its errors into ours. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

#include "base/context.h"
#include "driver/driver.h"

/* ---- the table ---- */

static const struct symbol {
  const char *name;
  int version;
  size_t offset;
} symbols[] = {
#define PURR_DRIVER_SYMBOL(name, version, params) {#name, version, offsetof(purr__cuda_t, name)},
#include "driver/driver_symbols.def"
#undef PURR_DRIVER_SYMBOL
};
enum { NUM_SYMBOLS = sizeof symbols / sizeof symbols[0] };

static int oldest_usable_version(void) {
  int version = 0;
  for (int i = 0; i < NUM_SYMBOLS; i++)
    if (symbols[i].version > version) version = symbols[i].version;
  return version;
}

/* dlsym hands out a void pointer; ISO C has no conversion from it to a function's. */
static void store_function(void *to, void *address) { memcpy(to, &address, sizeof address); }

static purr_status_t fail_too_old(purr_error_t *err, const char *library, int found, const char *symbol, int needed) {
  int oldest = oldest_usable_version();
  return purr__fail(err, PURR_STATUS_NO_DEVICE,
                    "driver too old: %s is of CUDA %d.%d and has no %s, which CUDA %d.%d brought; install a driver for "
                    "CUDA %d.%d or newer",
                    library, found / 1000, found % 1000 / 10, symbol, needed / 1000, needed % 1000 / 10, oldest / 1000,
                    oldest % 1000 / 10);
}

static purr_status_t load_symbols(purr__driver_t *driver, const char *library, purr_error_t *err) {
  purr__driver_get_version_fn get_version;
  purr__get_proc_address_fn get_proc_address;
  store_function(&get_version, dlsym(driver->library, "cuDriverGetVersion"));
  store_function(&get_proc_address, dlsym(driver->library, "cuGetProcAddress_v2"));
  if (get_version == NULL || get_version(&driver->version) != CUDA_SUCCESS)
    return purr__fail(err, PURR_STATUS_NO_DEVICE, "%s is not a CUDA driver: it cannot tell its version", library);
  if (get_proc_address == NULL) return fail_too_old(err, library, driver->version, "cuGetProcAddress_v2", 12000);
  for (int i = 0; i < NUM_SYMBOLS; i++) {
    void *address = NULL;
    int found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult result =
        get_proc_address(symbols[i].name, &address, symbols[i].version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
    /* A driver may answer with success and no address: then it has no such function. */
    if (result != CUDA_SUCCESS || address == NULL)
      return fail_too_old(err, library, driver->version, symbols[i].name, symbols[i].version);
    store_function((char *)&driver->cuda + symbols[i].offset, address);
  }
  return PURR_STATUS_OK;
}

/* ---- errors ---- */

static const char *result_name(const purr__cuda_t *cuda, CUresult result) {
  const char *name = NULL;
  return cuda->cuGetErrorName(result, &name) == CUDA_SUCCESS && name != NULL ? name : "unknown CUresult";
}

static const char *result_text(const purr__cuda_t *cuda, CUresult result) {
  const char *text = NULL;
  return cuda->cuGetErrorString(result, &text) == CUDA_SUCCESS && text != NULL ? text : "no description";
}

/* Faults after which the driver answers every call on the device with the same error until the process ends. */
static bool is_sticky(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
      return true;
    default:
      return false;
  }
}

static purr_status_t status_of(CUresult result) {
  if (is_sticky(result)) return PURR_STATUS_DEVICE_LOST;
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return PURR_STATUS_OUT_OF_DEVICE_MEMORY;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return PURR_STATUS_NO_DEVICE;
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return PURR_STATUS_INCOMPATIBLE_BINARY;
    default:
      return PURR_STATUS_CUDA;
  }
}

purr_status_t purr__device_check(purr__device_t *device, CUresult result, const char *call, purr_error_t *err,
                                 const char *what, ...) {
  if (result == CUDA_SUCCESS) return PURR_STATUS_OK;
  purr__driver_t *driver = device->driver;
  if (is_sticky(result)) {
    int none = 0;
    if (atomic_compare_exchange_strong(&driver->lost_result, &none, result))
      atomic_store(&driver->lost_ordinal, device->ordinal);
  }
  char doing[256];
  va_list args;
  va_start(args, what);
  vsnprintf(doing, sizeof doing, what, args);
  va_end(args);
  return purr__fail_errno(err, status_of(result), result, "%s on device %d (%s): %s: %s (%s, %d)", doing,
                          device->ordinal, device->name, call, result_text(&driver->cuda, result),
                          result_name(&driver->cuda, result), result);
}

/* ---- devices ---- */

static purr_status_t describe_device(purr__device_t *device, purr_error_t *err) {
  const purr__cuda_t *cuda = &device->driver->cuda;
  snprintf(device->name, sizeof device->name, "not yet known");
  purr_status_t status = PURR__CUDA(device, err, cuDeviceGet, (&device->handle, device->ordinal), "finding the device");
  if (status != PURR_STATUS_OK) return status;
  int cooperative = 0, clusters = 0, virtual_memory = 0;
  const struct {
    int attribute, *value;
  } wanted[] = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &device->cc_major},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &device->cc_minor},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &device->num_sms},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &device->max_threads_per_block},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &device->max_shared_bytes},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &device->l2_bytes},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, &device->compute_mode},
      {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, &cooperative},
      {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, &clusters},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &virtual_memory},
  };
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    status = PURR__CUDA(device, err, cuDeviceGetAttribute, (wanted[i].value, wanted[i].attribute, device->handle),
                        "reading device attribute %d", wanted[i].attribute);
    if (status != PURR_STATUS_OK) return status;
  }
  device->can_launch_cooperative = cooperative != 0;
  device->can_launch_clusters = clusters != 0;
  device->has_virtual_memory = virtual_memory != 0;
  size_t total_bytes;
  status = PURR__CUDA(device, err, cuDeviceTotalMem, (&total_bytes, device->handle), "reading the memory size");
  if (status != PURR_STATUS_OK) return status;
  device->total_bytes = total_bytes;
  /* Names alone: a device without them still works. */
  if (cuda->cuDeviceGetName(device->name, (int)sizeof device->name, device->handle) != CUDA_SUCCESS)
    snprintf(device->name, sizeof device->name, "unnamed");
  if (cuda->cuDeviceGetPCIBusId(device->pci_bus_id, (int)sizeof device->pci_bus_id, device->handle) != CUDA_SUCCESS)
    device->pci_bus_id[0] = '\0';
  if (cuda->cuDeviceGetUuid(&device->uuid, device->handle) != CUDA_SUCCESS)
    memset(&device->uuid, 0, sizeof device->uuid);
  return PURR_STATUS_OK;
}

static purr_status_t list_devices(purr__driver_t *driver, purr_error_t *err) {
  int count = 0;
  CUresult result = driver->cuda.cuDeviceGetCount(&count);
  if (result != CUDA_SUCCESS || count < 1)
    return purr__fail_errno(err, PURR_STATUS_NO_DEVICE, result,
                            "the CUDA driver (CUDA %d.%d) works but lists no GPU; check CUDA_VISIBLE_DEVICES and what "
                            "the container was given",
                            driver->version / 1000, driver->version % 1000 / 10);
  uint64_t bytes = (uint64_t)count * sizeof(purr__device_t);
  driver->devices = purr__allocate_zeroed(driver->context, bytes);
  if (driver->devices == NULL) return purr__fail_memory(err, "the list of devices", bytes);
  for (int i = 0; i < count; i++) {
    purr__device_t *device = &driver->devices[i];
    device->driver = driver;
    device->ordinal = i;
    pthread_mutex_init(&device->mutex, NULL);
    pthread_mutex_init(&device->freeing, NULL);
    driver->num_devices = i + 1;
    purr_status_t status = describe_device(device, err);
    if (status != PURR_STATUS_OK) return status;
  }
  return PURR_STATUS_OK;
}

/* ---- life ---- */

static void driver_free(void *part) {
  purr__driver_t *driver = part;
  for (int i = 0; i < driver->num_devices; i++) {
    purr__device_t *device = &driver->devices[i];
    /* At the end of a process the driver may be gone already; its answer is of no use then. */
    if (device->primary != NULL) (void)driver->cuda.cuDevicePrimaryCtxRelease(device->handle);
    pthread_mutex_destroy(&device->mutex);
    pthread_mutex_destroy(&device->freeing);
  }
  purr__release(driver->context, driver->devices);
  if (driver->library != NULL) dlclose(driver->library);
  purr__release(driver->context, driver);
}

static purr_status_t initialize(purr__driver_t *driver, const char *library, purr_error_t *err) {
  CUresult result = driver->cuda.cuInit(0);
  if (result == CUDA_SUCCESS) return PURR_STATUS_OK;
  if (result == CUDA_ERROR_NOT_INITIALIZED)
    return purr__fail_errno(err, PURR_STATUS_FORKED, result,
                            "the CUDA driver was in use before this process was forked and cannot be used here; fork "
                            "before the first GPU call, or start the process anew (spawn)");
  const char *advice = "";
  if (result == CUDA_ERROR_STUB_LIBRARY)
    advice = "; this is the CUDA toolkit's stub for linking: put the driver's own library in front of it";
  if (result == CUDA_ERROR_NO_DEVICE) advice = "; check CUDA_VISIBLE_DEVICES and whether the container was given a GPU";
  if (result == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
    advice = "; the driver's kernel module and library differ: reload the module or restart the machine";
  if (result == CUDA_ERROR_SYSTEM_NOT_READY) advice = "; start the machine's fabric manager";
  return purr__fail_errno(err, PURR_STATUS_NO_DEVICE, result,
                          "the CUDA driver (%s, CUDA %d.%d) does not start: cuInit: %s (%s, %d)%s", library,
                          driver->version / 1000, driver->version % 1000 / 10, result_text(&driver->cuda, result),
                          result_name(&driver->cuda, result), result, advice);
}

static purr_status_t driver_create(purr_context_t *context, void **out_part, purr_error_t *err) {
  *out_part = NULL;
  const char *library = context->driver_library;
  purr__driver_t *driver = purr__allocate_zeroed(context, sizeof *driver);
  if (driver == NULL) return purr__fail_memory(err, "the driver's table", sizeof *driver);
  driver->context = context;
  purr_status_t status = PURR_STATUS_OK;
  /* Never unloaded: the driver has threads of its own. */
  driver->library = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (driver->library == NULL)
    status = purr__fail_errno(
        err, PURR_STATUS_NO_DEVICE, ENOENT,
        "there is no CUDA driver (%s); install NVIDIA's driver, or give the container access to the GPU", dlerror());
  if (status == PURR_STATUS_OK) status = load_symbols(driver, library, err);
  if (status == PURR_STATUS_OK) status = initialize(driver, library, err);
  if (status == PURR_STATUS_OK) status = list_devices(driver, err);
  if (status != PURR_STATUS_OK) {
    driver_free(driver);
    return status;
  }
  *out_part = driver;
  return PURR_STATUS_OK;
}

purr_status_t purr__driver_get(purr_context_t *context, purr__driver_t **out_driver, purr_error_t *err) {
  void *part;
  purr_status_t status = purr__context_part(context, PURR__PART_DRIVER, driver_create, driver_free, &part, err);
  *out_driver = part;
  return status;
}

purr_status_t purr__device_get(purr_context_t *context, int ordinal, purr__device_t **out_device, purr_error_t *err) {
  *out_device = NULL;
  purr__driver_t *driver;
  purr_status_t status = purr__driver_get(context, &driver, err);
  if (status != PURR_STATUS_OK) return status;
  if (ordinal == -1) {
    CUcontext callers = NULL;
    CUdevice current;
    ordinal = 0;
    /* Without a context cuCtxGetDevice fails, which tools that watch the driver report. */
    if (driver->cuda.cuCtxGetCurrent(&callers) == CUDA_SUCCESS && callers != NULL &&
        driver->cuda.cuCtxGetDevice(&current) == CUDA_SUCCESS)
      for (int i = 0; i < driver->num_devices; i++)
        if (driver->devices[i].handle == current) ordinal = i;
  }
  if (ordinal < 0 || ordinal >= driver->num_devices)
    return purr__fail(err, PURR_STATUS_NO_DEVICE, "device %d is not there; the driver lists %d, numbered from 0",
                      ordinal, driver->num_devices);
  *out_device = &driver->devices[ordinal];
  return PURR_STATUS_OK;
}

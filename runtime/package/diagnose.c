/* What works on this machine, what does not, and what to do about it. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/context.h"
#include "package/describe.h"

typedef struct diagnosis {
  purr_context_t *context;
  bool is_json;
  purr__text_t text, problems;
  int num_problems;
  purr__driver_t *driver;               /* NULL without one */
  const purr__package_list_t *packages; /* NULL where they could not be opened */
} diagnosis_t;

static void add_problem(diagnosis_t *d, const char *sentence) {
  if (d->is_json) {
    purr__text_add(&d->problems, d->num_problems > 0 ? ", " : "");
    purr__text_add_json_string(&d->problems, sentence);
  } else {
    purr__text_add(&d->problems, "  %d. %s\n", d->num_problems + 1, sentence);
  }
  d->num_problems++;
}

static void add_string(diagnosis_t *d, const char *key, const char *value) {
  purr__text_add(&d->text, "\"%s\": ", key);
  if (value != NULL)
    purr__text_add_json_string(&d->text, value);
  else
    purr__text_add(&d->text, "null");
}

/* ---- library and driver ---- */

static void add_library(diagnosis_t *d) {
  Dl_info info = {0};
  bool is_known = dladdr((const void *)(uintptr_t)purr_version_string, &info) != 0 && info.dli_fname != NULL;
  int num_threads = purr__num_threads(d->context);
  if (d->is_json) {
    purr__text_add(&d->text, "{\"library\": {");
    add_string(d, "version", purr_version_string());
    purr__text_add(&d->text, ", ");
    add_string(d, "path", is_known ? info.dli_fname : NULL);
    purr__text_add(&d->text, "},\n \"host\": {\"works\": true, \"num_threads\": %d},\n ", num_threads);
    return;
  }
  purr__text_add(&d->text, "library   purr %s, %s\n", purr_version_string(),
                 is_known ? info.dli_fname : "path unknown");
  purr__text_add(&d->text, "host      works, %d thread%s\n", num_threads, num_threads == 1 ? "" : "s");
}

static bool is_there(const char *path) {
  struct stat info;
  return stat(path, &info) == 0;
}

static void add_driver(diagnosis_t *d) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_status_t status = purr__driver_get(d->context, &d->driver, &err);
  if (status != PURR_STATUS_OK) {
    /* A machine without a GPU is as it should be; one with the GPU's files but without its library is not. */
    bool is_absent = status == PURR_STATUS_NO_DEVICE && (err.native_code == CUDA_ERROR_NO_DEVICE ||
                                                         (err.native_code == ENOENT && !is_there("/dev/nvidiactl")));
    if (!is_absent) add_problem(d, err.message);
    if (!is_absent && err.native_code == ENOENT && status == PURR_STATUS_NO_DEVICE)
      add_problem(d,
                  "/dev/nvidiactl is there, so the machine has a GPU, but its driver's library is not found: give a "
                  "container NVIDIA_DRIVER_CAPABILITIES=compute,utility, or put the library's folder into "
                  "LD_LIBRARY_PATH");
  }
  if (d->is_json) {
    purr__text_add(&d->text, "\"driver\": {\"works\": %s, ", status == PURR_STATUS_OK ? "true" : "false");
    if (status == PURR_STATUS_OK)
      purr__text_add(&d->text, "\"cuda\": \"%d.%d\"},\n ", d->driver->version / 1000, d->driver->version % 1000 / 10);
    else
      add_string(d, "reason", err.message);
    if (status != PURR_STATUS_OK) purr__text_add(&d->text, "},\n ");
  } else if (status == PURR_STATUS_OK) {
    purr__text_add(&d->text, "driver    works, CUDA %d.%d\n", d->driver->version / 1000,
                   d->driver->version % 1000 / 10);
  } else if (d->num_problems > 0) {
    purr__text_add(&d->text, "driver    cannot be used, see below\n");
  } else {
    purr__text_add(&d->text, "driver    none: %s\n", err.message);
  }
}

/* ---- packages ---- */

static void add_archs(const purr__manifest_t *manifest, const char *quote, purr__text_t *text) {
  for (int i = 0, num_added = 0; i < manifest->num_images; i++) {
    purr__arch_t arch = manifest->images[i].arch;
    bool is_new = true;
    for (int j = 0; j < i; j++)
      if (manifest->images[j].arch.number == arch.number && manifest->images[j].arch.suffix == arch.suffix)
        is_new = false;
    if (is_new) purr__text_add(text, "%s%s%s%s", num_added++ > 0 ? ", " : "", quote, PURR__ARCH_TEXT(arch), quote);
  }
}

static void add_packages(diagnosis_t *d) {
  purr_error_t err = PURR_ERROR_INIT;
  char installed[PATH_MAX];
  bool has_folder = purr__packages_installed_folder(installed, sizeof installed);
  purr_status_t status = purr__packages_get(d->context, &d->packages, &err);
  if (status != PURR_STATUS_OK) add_problem(d, err.message);
  int count = d->packages != NULL ? d->packages->count : 0;
  if (d->is_json) {
    add_string(d, "package_path", d->context->package_path);
    purr__text_add(&d->text, ",\n ");
    add_string(d, "installed_packages", has_folder ? installed : NULL);
    purr__text_add(&d->text, ",\n \"packages\": [");
  } else if (status != PURR_STATUS_OK) {
    purr__text_add(&d->text, "packages  cannot be used, see below\n");
  } else {
    purr__text_add(&d->text, count > 0 ? "packages\n" : "packages  none\n");
  }
  for (int i = 0; i < count; i++) {
    const purr__package_t *package = d->packages->packages[i];
    if (d->is_json) {
      purr__text_add(&d->text, "%s\n  {", i > 0 ? "," : "");
      add_string(d, "name", package->manifest.name);
      purr__text_add(&d->text, ", ");
      add_string(d, "producer", package->manifest.producer);
      purr__text_add(&d->text, ", ");
      add_string(d, "path", package->source.name);
      purr__text_add(&d->text, ", \"num_kernels\": %d, \"archs\": [", package->manifest.num_kernels);
      add_archs(&package->manifest, "\"", &d->text);
      purr__text_add(&d->text, "]}");
    } else {
      purr__text_add(&d->text, "  %s (%s): %d kernels for ", package->manifest.name, package->manifest.producer,
                     package->manifest.num_kernels);
      add_archs(&package->manifest, "", &d->text);
      purr__text_add(&d->text, "\n    in %s\n", package->source.name);
    }
  }
  const int num_passed_over = d->packages != NULL ? d->packages->num_passed_over : 0;
  if (d->is_json) purr__text_add(&d->text, "],\n \"passed_over\": [");
  for (int i = 0; i < num_passed_over; i++) {
    if (d->is_json) {
      purr__text_add(&d->text, i > 0 ? ", " : "");
      purr__text_add_json_string(&d->text, d->packages->passed_over[i]);
    } else {
      purr__text_add(&d->text, "  passed over, without a manifest.json: %s\n", d->packages->passed_over[i]);
    }
  }
  if (d->is_json)
    purr__text_add(&d->text, "],\n ");
  else
    purr__text_add(&d->text, "  looked in PURR_PACKAGE_PATH (%s) and in %s%s\n",
                   d->context->package_path != NULL ? d->context->package_path : "not set",
                   has_folder ? installed : "no folder of the library's own: its path is not known",
                   has_folder && !is_there(installed) ? " (not there)" : "");
}

/* ---- devices ---- */

/* "1, 2": the devices whose memory this one reaches. */
static void add_peers(const purr__device_t *device, purr__text_t *text) {
  const purr__driver_t *driver = device->driver;
  int num_added = 0;
  for (int i = 0; i < driver->num_devices; i++) {
    int can = 0;
    if (i == device->ordinal ||
        driver->cuda.cuDeviceCanAccessPeer(&can, device->handle, driver->devices[i].handle) != 0)
      continue;
    if (can) purr__text_add(text, "%s%d", num_added++ > 0 ? ", " : "", i);
  }
}

static void add_kernels_json(const purr__kernels_t *kernels, purr__text_t *text) {
  for (int i = 0; kernels != NULL && i < kernels->num_kernels; i++) {
    const purr__kernel_t *kernel = &kernels->kernels[i];
    purr__text_add(text,
                   "%s\n    {\"entry\": \"%s\", \"role\": \"%s\", \"arch\": \"%s\", \"problem\": ", i > 0 ? "," : "",
                   kernel->entry->entry, kernel->entry->role, PURR__ARCH_TEXT(kernel->arch));
    if (kernel->function != NULL)
      purr__text_add(text, "null");
    else
      purr__text_add_json_string(text, kernel->unusable);
    purr__text_add(text, "}");
  }
}

static void add_kernels_text(const purr__kernels_t *kernels, purr__text_t *text) {
  int num_usable = 0;
  for (int i = 0; i < kernels->num_kernels; i++) num_usable += kernels->kernels[i].function != NULL;
  purr__text_add(text, "    kernels   %d loaded", num_usable);
  for (int i = 0, num_added = 0; i < kernels->num_kernels; i++) {
    const purr__kernel_t *kernel = &kernels->kernels[i];
    if (kernel->function != NULL)
      purr__text_add(text, "%s%s (%s)", num_added++ > 0 ? ", " : ": ", kernel->entry->role,
                     PURR__ARCH_TEXT(kernel->arch));
  }
  purr__text_add(text, "\n");
  for (int i = 0; i < kernels->num_kernels; i++)
    if (kernels->kernels[i].function == NULL)
      purr__text_add(text, "    left out  %s (%s): %s\n", kernels->kernels[i].entry->entry,
                     PURR__ARCH_TEXT(kernels->kernels[i].arch), kernels->kernels[i].unusable);
}

static void add_device_json(diagnosis_t *d, const purr__device_t *device, const purr__kernels_t *kernels) {
  purr__text_add(&d->text, "%s\n  {\"ordinal\": %d, ", device->ordinal > 0 ? "," : "", device->ordinal);
  add_string(d, "name", device->name);
  purr__text_add(&d->text,
                 ", \"cc\": \"%d.%d\", \"num_sms\": %d, \"total_bytes\": %llu, \"l2_bytes\": %d, \"max_shared_bytes\": "
                 "%d, \"pci_bus_id\": \"%s\", \"uuid\": \"",
                 device->cc_major, device->cc_minor, device->num_sms, (unsigned long long)device->total_bytes,
                 device->l2_bytes, device->max_shared_bytes, device->pci_bus_id);
  for (size_t i = 0; i < sizeof device->uuid.bytes; i++) purr__text_add(&d->text, "%02x", device->uuid.bytes[i]);
  purr__text_add(&d->text, "\", \"peers\": [");
  add_peers(device, &d->text);
  purr__text_add(&d->text, "], \"kernels\": [");
  add_kernels_json(kernels, &d->text);
  purr__text_add(&d->text, "]}");
}

static void add_device_text(diagnosis_t *d, const purr__device_t *device, const purr__kernels_t *kernels) {
  purr__text_add(&d->text, "  device %d  %s, compute capability %d.%d, %d SMs, ", device->ordinal, device->name,
                 device->cc_major, device->cc_minor, device->num_sms);
  purr__text_add_bytes(&d->text, device->total_bytes);
  purr__text_add(&d->text, ", at %s\n    limits    %d threads and %d bytes of shared memory a block, ",
                 device->pci_bus_id, device->max_threads_per_block, device->max_shared_bytes);
  purr__text_add_bytes(&d->text, (uint64_t)device->l2_bytes);
  purr__text_add(&d->text, " L2%s%s\n", device->can_launch_clusters ? ", clusters" : "",
                 device->can_launch_cooperative ? ", cooperative launch" : "");
  if (device->driver->num_devices > 1) {
    purr__text_add(&d->text, "    reaches   ");
    uint64_t before = d->text.length;
    add_peers(device, &d->text);
    purr__text_add(&d->text, d->text.length == before ? "no other device\n" : "\n");
  }
  if (kernels != NULL)
    add_kernels_text(kernels, &d->text);
  else
    purr__text_add(&d->text, "    kernels   none, see below\n");
}

static void add_devices(diagnosis_t *d) {
  int count = d->driver != NULL ? d->driver->num_devices : 0;
  purr__text_add(&d->text, d->is_json ? "\"devices\": [" : count > 0 ? "devices\n" : "devices   none\n");
  for (int i = 0; i < count; i++) {
    purr__device_t *device = &d->driver->devices[i];
    const purr__kernels_t *kernels = NULL;
    purr_error_t err = PURR_ERROR_INIT;
    char sentence[300];
    if (d->packages != NULL && purr__kernels_get(device, &kernels, &err) != PURR_STATUS_OK)
      add_problem(d, err.message);
    else if (kernels != NULL && kernels->num_kernels == 0) {
      snprintf(sentence, sizeof sentence,
               "no package has kernels for device %d (%.96s, sm_%d%d), so only the host backend runs: install a "
               "package for it, or name one in PURR_PACKAGE_PATH",
               i, device->name, device->cc_major, device->cc_minor);
      add_problem(d, sentence);
    }
    if (d->is_json)
      add_device_json(d, device, kernels);
    else
      add_device_text(d, device, kernels);
  }
  if (d->is_json) purr__text_add(&d->text, "],\n ");
}

/* ---- the whole ---- */

purr_status_t purr_context_diagnose(purr_context_t *context, int32_t format, char *buffer, uint64_t capacity,
                                    uint64_t *out_length, int32_t *out_num_problems, purr_error_t *err) {
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status == PURR_STATUS_OK) status = purr__check_format(format, err);
  if (status != PURR_STATUS_OK) return status;
  diagnosis_t d = {.context = context,
                   .is_json = format == PURR_FORMAT_JSON,
                   .text = {.context = context},
                   .problems = {.context = context}};
  add_library(&d);
  add_driver(&d);
  add_packages(&d);
  add_devices(&d);
  const char *problems = d.problems.length > 0 ? d.problems.data : "";
  if (d.is_json)
    purr__text_add(&d.text, "\"problems\": [%s]}\n", problems);
  else
    purr__text_add(&d.text, "problems%s%s", d.num_problems > 0 ? "\n" : "  none\n", problems);
  d.text.failed = d.text.failed || d.problems.failed;
  purr__text_free(&d.problems);
  if (out_num_problems != NULL) *out_num_problems = d.num_problems;
  return purr__text_deliver(&d.text, buffer, capacity, out_length, err);
}

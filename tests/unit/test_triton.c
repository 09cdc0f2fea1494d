/* Kernels that Triton compiled, on a fake driver: what is read from its files, what becomes of arguments, and how
 * kernels are launched. The artefacts of several versions are in tests/data/triton. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fake_cuda.h"
#include "support/folder.h"
#include "support/main.h"
#include "support/package.h"
#include "triton/kernel.h"

#define DATA PURR_TEST_DATA "/triton/"
#define PACKAGE DATA "3.6.0/package"
#define ADD_SIGNATURE "x=*fp32:16, y=*fp32:16, out=*fp32:16, scale=fp32, n=i32:16, BLOCK=1024"

static purr_error_t err;
static fake_cuda_t *fake;
static purr_context_t *context;

static void begin(void) {
  fake = fake_cuda_open();
  fake->reaches_host_memory = 1; /* as far as the driver can tell, no address here is memory of its own */
  context = fake_cuda_context();
  CU_ASSERT_PTR_NOT_NULL_FATAL(context);
}

static void end(void) {
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(fake->num_libraries, 0);
  CU_ASSERT_EQUAL(fake->num_contexts, 0);
  CU_ASSERT_EQUAL(fake->num_unsafe_calls, 0);
}

static purr_status_t open_kernel(const char *path, const char *name, const char *signature, purr_kernel_t **kernel) {
  purr_kernel_desc_t desc = PURR_KERNEL_DESC_INIT;
  desc.path = path;
  desc.name = name;
  desc.signature = signature;
  err = (purr_error_t)PURR_ERROR_INIT;
  return purr_kernel_open(context, &desc, kernel, &err);
}

/* Opens and binds; fatal when it fails. The kernel lives as long as the launcher. */
static purr_launcher_t *make_launcher(const char *path, const char *name, const char *signature) {
  purr_kernel_t *kernel = NULL;
  purr_launcher_t *launcher = NULL;
  purr_status_t status = open_kernel(path, name, signature, &kernel);
  if (status == PURR_STATUS_OK) status = purr_launcher_create(kernel, -1, &launcher, &err);
  if (status != PURR_STATUS_OK) fprintf(stderr, "%s: %s\n", path, err.message);
  CU_ASSERT_PTR_NOT_NULL_FATAL(launcher);
  purr_kernel_destroy(kernel);
  return launcher;
}

static bool says(const char *text) {
  const bool is_said = strstr(err.message, text) != NULL;
  if (!is_said) fprintf(stderr, "expected \"%s\" in: %s\n", text, err.message);
  return is_said;
}

/* The call is refused, and its sentence holds the text. */
#define ASSERT_SAYS(expected, text, call) \
  do {                                    \
    ASSERT_STATUS(expected, call);        \
    CU_ASSERT(says(text));                \
  } while (0)

static void *const ADDRESS = (void *)(uintptr_t)0x7f0000001000;

static void set_add_arguments(purr_launcher_t *launcher) {
  for (int i = 0; i < 3; i++) ASSERT_OK(purr_launcher_set_pointer(launcher, i, (char *)ADDRESS + 4096 * i, &err));
  ASSERT_OK(purr_launcher_set_real(launcher, 3, 0.1, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 4, 4096, &err));
}

/* ---- every version ---- */

static void each_version_hides_other_parameters(void) {
  static const struct {
    const char *folder;
    int version, num_hidden, threads, cluster;
  } cases[] = {{"3.2.0/add", 302, 0, 128, 1},
               {"3.2.0/add_cluster", 302, 0, 128, 2},
               {"3.4.0/add", 304, 1, 128, 1},
               {"3.4.0/add_overlap", 304, 1, 256, 1},
               {"3.6.0/add", 306, 2, 128, 1},
               {"3.6.0/add_cluster", 306, 2, 128, 2},
               {"3.6.0/add_cooperative", 306, 2, 128, 1},
               {"3.9.0/add", 309, 2, 128, 1},
               {"3.9.0/add_cluster", 309, 2, 128, 2}};
  begin();
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char path[256];
    snprintf(path, sizeof path, DATA "%s", cases[i].folder);
    for (int with_signature = 0; with_signature < 2; with_signature++) {
      purr_kernel_t *kernel = NULL;
      REQUIRE_OK(open_kernel(path, NULL, with_signature ? ADD_SIGNATURE : NULL, &kernel));
      const purr__triton_variant_t *variant = &kernel->variants[0];
      CU_ASSERT_EQUAL(variant->spec->version, cases[i].version);
      CU_ASSERT_EQUAL(variant->num_hidden, cases[i].num_hidden);
      CU_ASSERT_EQUAL(variant->num_params, 5 + cases[i].num_hidden);
      CU_ASSERT_EQUAL(variant->entry.threads, cases[i].threads);
      CU_ASSERT_EQUAL(variant->entry.cluster[0], cases[i].cluster);
      CU_ASSERT_EQUAL(variant->arch.number, 90);
      CU_ASSERT_EQUAL(variant->arch.suffix, 'a');
      CU_ASSERT_EQUAL(purr_kernel_num_arguments(kernel), with_signature ? 6 : 5);
      purr_kernel_destroy(kernel);
    }
  }
  end();
}

/* A launch of the vector add: what the driver was given. */
static void launch_is_what_triton_does(void) {
  static const struct {
    const char *folder;
    int num_hidden;
    unsigned threads, cluster;
    int cooperative, overlap;
  } cases[] = {{"3.2.0/add", 0, 128, 1, 0, 0},         {"3.2.0/add_cluster", 0, 128, 2, 0, 0},
               {"3.4.0/add_overlap", 1, 256, 1, 0, 1}, {"3.6.0/add", 2, 128, 1, 0, 0},
               {"3.6.0/add_cluster", 2, 128, 2, 0, 0}, {"3.6.0/add_cooperative", 2, 128, 1, 1, 0},
               {"3.9.0/add_cluster", 2, 128, 2, 0, 0}};
  begin();
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char path[256];
    snprintf(path, sizeof path, DATA "%s", cases[i].folder);
    purr_launcher_t *launcher = make_launcher(path, "add_kernel", ADD_SIGNATURE);
    set_add_arguments(launcher);
    ASSERT_SAYS(PURR_STATUS_INVALID_STATE, "no rule for its grid", purr_launcher_launch(launcher, NULL, &err));
    ASSERT_OK(purr_launcher_set_grid(launcher, 4, 1, 1, &err));
    const int bytes[] = {8, 8, 8, 4, 4, cases[i].num_hidden > 0 ? 8 : 0, cases[i].num_hidden > 1 ? 8 : 0, 0};
    memcpy(fake->param_bytes, bytes, sizeof bytes);
    memset(fake->params, 0xEE, sizeof fake->params);
    const int before = fake->num_launches;
    ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
    CU_ASSERT_EQUAL_FATAL(fake->num_launches, before + 1);
    const fake_launch_t *launch = &fake->launches[before];
    CU_ASSERT_STRING_EQUAL(launch->kernel, "add_kernel");
    CU_ASSERT_EQUAL(launch->grid[0], 4 * cases[i].cluster);
    CU_ASSERT_EQUAL(launch->grid[1], 1);
    CU_ASSERT_EQUAL(launch->block[0], cases[i].threads);
    CU_ASSERT_EQUAL(launch->cluster[0], cases[i].cluster > 1 ? cases[i].cluster : 0);
    CU_ASSERT_EQUAL(launch->spreads_clusters, cases[i].cluster > 1);
    CU_ASSERT_EQUAL(launch->is_cooperative, cases[i].cooperative);
    CU_ASSERT_EQUAL(launch->may_overlap, cases[i].overlap);
    uint64_t address;
    memcpy(&address, fake->params[2], sizeof address);
    CU_ASSERT_EQUAL(address, (uintptr_t)ADDRESS + 8192);
    const float scale = 0.1f; /* four bytes of fp32, not a double */
    CU_ASSERT_EQUAL(memcmp(fake->params[3], &scale, sizeof scale), 0);
    const int32_t n = 4096;
    CU_ASSERT_EQUAL(memcmp(fake->params[4], &n, sizeof n), 0);
    for (int h = 0; h < cases[i].num_hidden; h++) {
      memcpy(&address, fake->params[5 + h], sizeof address);
      CU_ASSERT_EQUAL(address, 0);
    }
    memset(fake->param_bytes, 0, sizeof fake->param_bytes);
    purr_launcher_destroy(launcher);
  }
  end();
}

/* ---- arguments ---- */

static void arguments_are_known_by_name(void) {
  begin();
  purr_kernel_t *kernel = NULL;
  REQUIRE_OK(open_kernel(PACKAGE, "add_kernel", NULL, &kernel));
  CU_ASSERT_EQUAL(purr_kernel_num_arguments(kernel), 6);
  int32_t index = -7;
  ASSERT_OK(purr_kernel_find_argument(kernel, "scale", &index, &err));
  CU_ASSERT_EQUAL(index, 3);
  purr_kernel_argument_t argument = {.struct_size = sizeof argument};
  ASSERT_OK(purr_kernel_get_argument(kernel, 3, &argument, &err));
  CU_ASSERT_STRING_EQUAL(argument.name, "scale");
  CU_ASSERT_STRING_EQUAL(argument.type, "fp32");
  CU_ASSERT_EQUAL(argument.kind, PURR_ARGUMENT_REAL);
  CU_ASSERT_EQUAL(argument.dtype, PURR_DTYPE_FP32);
  CU_ASSERT_EQUAL(argument.num_bytes, 4);
  CU_ASSERT_EQUAL(argument.varies, 0);
  ASSERT_OK(purr_kernel_get_argument(kernel, 0, &argument, &err));
  CU_ASSERT_EQUAL(argument.kind, PURR_ARGUMENT_POINTER);
  CU_ASSERT_EQUAL(argument.divisible_by, 1); /* one variant promises nothing */
  CU_ASSERT_EQUAL(argument.varies, 0);
  ASSERT_OK(purr_kernel_get_argument(kernel, 4, &argument, &err)); /* of one variant the constant 1 */
  CU_ASSERT_EQUAL(argument.kind, PURR_ARGUMENT_INTEGER);
  CU_ASSERT_EQUAL(argument.varies, 1);
  ASSERT_OK(purr_kernel_get_argument(kernel, 5, &argument, &err));
  CU_ASSERT_EQUAL(argument.kind, PURR_ARGUMENT_CONSTANT);
  CU_ASSERT_STRING_EQUAL(argument.constant, "1024");
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "did you mean 'scale'",
              purr_kernel_find_argument(kernel, "scales", &index, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "has no argument 6", purr_kernel_get_argument(kernel, 6, &argument, &err));
  purr_kernel_destroy(kernel);
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "several kernels", open_kernel(PACKAGE, NULL, NULL, &kernel));
  ASSERT_SAYS(PURR_STATUS_MISSING_KERNEL, "has no kernel 'sub_kernel'",
              open_kernel(PACKAGE, "sub_kernel", NULL, &kernel));
  end();
}

static void wrong_arguments_are_refused(void) {
  begin();
  purr_launcher_t *launcher = make_launcher(DATA "3.6.0/add", NULL, ADD_SIGNATURE);
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT,
              "argument 0 ('x') of kernel add_kernel is at 0x7f0000001008, but the kernel "
              "was promised addresses at multiples of 16 bytes",
              purr_launcher_set_pointer(launcher, 0, (char *)ADDRESS + 8, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "is a NULL pointer", purr_launcher_set_pointer(launcher, 0, NULL, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "is of type *fp32, which does not take an integer",
              purr_launcher_set_integer(launcher, 0, 16, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "is of type fp32, which does not take a pointer",
              purr_launcher_set_pointer(launcher, 3, ADDRESS, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "is of type fp32, which does not take an integer",
              purr_launcher_set_integer(launcher, 3, 1, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "is 1e+300, which fp32 cannot hold",
              purr_launcher_set_real(launcher, 3, 1e300, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "is 17, but the kernel was promised multiples of 16",
              purr_launcher_set_integer(launcher, 4, 17, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "allowed are -2147483648 to 2147483647",
              purr_launcher_set_integer(launcher, 4, (int64_t)1 << 31, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "was compiled in as 1024, but is 512",
              purr_launcher_set_integer(launcher, 5, 512, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 5, 1024, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "has no argument 6; it has 6",
              purr_launcher_set_integer(launcher, 6, 0, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "has 4 bytes, but 8 were given",
              purr_launcher_set_bytes(launcher, 3, "12345678", 8, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "bytes is NULL", purr_launcher_set_bytes(launcher, 3, NULL, 4, &err));
  purr_tensor_t tensor = {sizeof tensor, PURR_DTYPE_BF16, 1, 0, ADDRESS, NULL, {16}, {0}, NULL};
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "is of type *fp32, but the tensor's elements are bf16",
              purr_launcher_set_tensor(launcher, 0, &tensor, 0, &err));
  tensor.dtype = PURR_DTYPE_FP32;
  ASSERT_OK(purr_launcher_set_tensor(launcher, 0, &tensor, 0, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "flags is 0x8", purr_launcher_set_tensor(launcher, 0, &tensor, 8, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "takes no flags: they are for descriptors",
              purr_launcher_set_tensor(launcher, 0, &tensor, PURR_DESCRIPTOR_NAN, &err));
  set_add_arguments(launcher);
  ASSERT_OK(purr_launcher_set_grid(launcher, 1, 1, 1, &err));
  ASSERT_OK(purr_launcher_unset(launcher, 3, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_STATE, "argument 3 ('scale') (fp32) is not set",
              purr_launcher_launch(launcher, NULL, &err));
  ASSERT_OK(purr_launcher_set_real(launcher, 3, 1.0, &err));
  ASSERT_OK(purr_launcher_set_grid(launcher, 1, 70000, 1, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "side y of the grid of kernel add_kernel is 70000; allowed are 0 to 65535",
              purr_launcher_launch(launcher, NULL, &err));
  CU_ASSERT_EQUAL(fake->num_launches, 0);
  ASSERT_OK(purr_launcher_set_grid(launcher, 0, 5, 1, &err));
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err)); /* an empty grid */
  CU_ASSERT_EQUAL(fake->num_launches, 0);
  purr_launcher_destroy(launcher);
  end();
}

/* Without a manifest and a signature the image tells how many bytes there are, and the setter what they are. */
static void untyped_arguments_follow_the_setter(void) {
  begin();
  purr_launcher_t *launcher = make_launcher(DATA "3.6.0/add", NULL, NULL);
  ASSERT_OK(purr_launcher_set_real(launcher, 3, 0.1, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 4, -1, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 4, 0xFFFFFFFFll, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_launcher_set_integer(launcher, 4, 0x100000000ll, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_launcher_set_pointer(launcher, 4, ADDRESS, &err));
  ASSERT_OK(purr_launcher_set_pointer(launcher, 0, ADDRESS, &err));
  purr_launcher_destroy(launcher);
  end();
}

static void scalars_of_every_width(void) {
  begin();
  purr_launcher_t *launcher = make_launcher(PACKAGE, "scalars_kernel", NULL);
  const int bytes[] = {8, 1, 1, 2, 8, 2, 2, 8, 0};
  memcpy(fake->param_bytes, bytes, sizeof bytes);
  ASSERT_OK(purr_launcher_set_pointer(launcher, 0, ADDRESS, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 1, 1, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_launcher_set_integer(launcher, 1, 2, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 2, -128, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_launcher_set_integer(launcher, 2, 128, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 3, 65535, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_launcher_set_integer(launcher, 3, -1, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 4, INT64_MIN, &err));
  ASSERT_OK(purr_launcher_set_real(launcher, 7, 0.1, &err));
  static const struct {
    double value;
    uint16_t fp16, bf16;
  } halves[] = {{1.0, 0x3C00, 0x3F80},      {-2.5, 0xC100, 0xC020},   {65504.0, 0x7BFF, 0x477F},
                {0.1, 0x2E66, 0x3DCC},      {6e-8, 0x0001, 0x3380},   {1e-9, 0x0000, 0x3089},
                {2049.0, 0x6800, 0x4500},   {2051.0, 0x6802, 0x4500}, {6.1035e-5, 0x0400, 0x387F},
                {INFINITY, 0x7C00, 0x7F80}, {-0.0, 0x8000, 0x8000},   {1.9999, 0x4000, 0x3FFF}};
  for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++) {
    ASSERT_OK(purr_launcher_set_real(launcher, 5, halves[i].value, &err));
    ASSERT_OK(purr_launcher_set_real(launcher, 6, halves[i].value, &err));
    ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
    uint16_t fp16, bf16;
    memcpy(&fp16, fake->params[5], 2);
    memcpy(&bf16, fake->params[6], 2);
    if (fp16 != halves[i].fp16 || bf16 != halves[i].bf16)
      fprintf(stderr, "%g became fp16 %04x, bf16 %04x\n", halves[i].value, fp16, bf16);
    CU_ASSERT_EQUAL(fp16, halves[i].fp16);
    CU_ASSERT_EQUAL(bf16, halves[i].bf16);
  }
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_launcher_set_real(launcher, 5, 65520.0, &err));
  int64_t integer;
  memcpy(&integer, fake->params[4], sizeof integer);
  CU_ASSERT_EQUAL(integer, INT64_MIN);
  CU_ASSERT_EQUAL(fake->params[2][0], 0x80);
  const double real = 0.1;
  CU_ASSERT_EQUAL(memcmp(fake->params[7], &real, sizeof real), 0);
  memset(fake->param_bytes, 0, sizeof fake->param_bytes);
  purr_launcher_destroy(launcher);
  end();
}

/* ---- variants ---- */

static void the_most_special_variant_is_taken(void) {
  begin();
  purr_launcher_t *launcher = make_launcher(PACKAGE, "add_kernel", NULL);
  purr_launcher_info_t info = {.struct_size = sizeof info};
  const struct {
    int64_t n;
    int shift, num_promises;
    unsigned grid;
  } cases[] = {{4096, 0, 6, 4}, {4097, 0, 2, 5}, {4096, 4, 2, 4}, {1, 0, 7, 1}, {1, 4, 2, 1}, {16, 0, 6, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    set_add_arguments(launcher);
    ASSERT_OK(purr_launcher_set_pointer(launcher, 0, (char *)ADDRESS + cases[i].shift, &err));
    ASSERT_OK(purr_launcher_set_integer(launcher, 4, cases[i].n, &err));
    ASSERT_OK(purr_launcher_query(launcher, &info, &err));
    purr_kernel_t *kernel = NULL;
    REQUIRE_OK(open_kernel(PACKAGE, "add_kernel", NULL, &kernel));
    CU_ASSERT_EQUAL(kernel->variants[info.variant].num_promises, cases[i].num_promises);
    CU_ASSERT_EQUAL(kernel->variants[info.variant].arch.number, 90);
    CU_ASSERT_EQUAL(info.grid[0], cases[i].grid);
    purr_kernel_destroy(kernel);
  }
  purr_launcher_destroy(launcher);
  end();
  /* On another device of the same package. */
  begin();
  for (int i = 0; i < FAKE_CUDA_MAX_DEVICES; i++) fake->cc[i] = 86;
  launcher = make_launcher(PACKAGE, "add_kernel", NULL);
  set_add_arguments(launcher);
  ASSERT_OK(purr_launcher_query(launcher, &info, &err));
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
  purr_kernel_t *kernel = NULL;
  ASSERT_OK(open_kernel(PACKAGE, "copy_kernel", NULL, &kernel));
  purr_launcher_t *none;
  ASSERT_SAYS(PURR_STATUS_INCOMPATIBLE_BINARY, "has no variant for device 0 (Fake GPU A, compute capability 8.6)",
              purr_launcher_create(kernel, 0, &none, &err));
  CU_ASSERT_PTR_NULL(none);
  purr_kernel_destroy(kernel);
  purr_launcher_destroy(launcher);
  end();
}

/* A variant's constant is no value for an argument that others take or have another constant for. */
static void what_is_not_set_is_a_constant_of_all(void) {
  begin();
  purr_launcher_t *launcher = make_launcher(PACKAGE, "add_kernel", NULL);
  purr_launcher_info_t info = {.struct_size = sizeof info};
  set_add_arguments(launcher);
  ASSERT_OK(purr_launcher_unset(launcher, 4, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_STATE,
              "argument 4 ('n') is not set; variant 1 was compiled for 1, variant 3 takes any i32",
              purr_launcher_query(launcher, &info, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_STATE, "argument 4 ('n') is not set", purr_launcher_launch(launcher, NULL, &err));
  ASSERT_OK(purr_launcher_set_pointer(launcher, 0, (char *)ADDRESS + 4, &err)); /* one variant is left */
  ASSERT_SAYS(PURR_STATUS_INVALID_STATE, "argument 4 ('n') (i32) is not set",
              purr_launcher_query(launcher, &info, &err));
  CU_ASSERT_EQUAL(fake->num_launches, 0);
  ASSERT_OK(purr_launcher_set_integer(launcher, 4, 1, &err));
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err)); /* BLOCK is 1024 in all */
  purr_launcher_destroy(launcher);
  /* Variant 0 is of another architecture, 1 takes n = 1 alone. */
  for (int variant = 0; variant < 4; variant++) {
    const test_folder_t folder = test_package_copy(PACKAGE, "\"constant\": 1024", "\"constant\": 2048", variant);
    launcher = make_launcher(folder.path, "add_kernel", NULL);
    set_add_arguments(launcher);
    if (variant < 2) {
      ASSERT_OK(purr_launcher_query(launcher, &info, &err));
    } else {
      ASSERT_SAYS(PURR_STATUS_INVALID_STATE,
                  variant == 2 ? "argument 5 ('BLOCK') is not set; variant 3 was compiled for 1024, variant 2 for 2048"
                               : "argument 5 ('BLOCK') is not set; variant 3 was compiled for 2048, variant 2 for 1024",
                  purr_launcher_query(launcher, &info, &err));
      ASSERT_OK(purr_launcher_set_integer(launcher, 5, 2048, &err));
      ASSERT_OK(purr_launcher_query(launcher, &info, &err));
      CU_ASSERT_EQUAL(info.variant, variant);
    }
    purr_launcher_destroy(launcher);
    test_folder_remove(&folder);
  }
  end();
}

static void a_device_that_lacks_something_is_refused(void) {
  begin();
  fake->max_shared_bytes = 32768;
  purr_kernel_t *kernel = NULL;
  REQUIRE_OK(open_kernel(PACKAGE, "matmul_kernel", NULL, &kernel));
  purr_launcher_t *launcher;
  ASSERT_SAYS(PURR_STATUS_UNSUPPORTED, "needs 49176 bytes of shared memory",
              purr_launcher_create(kernel, 0, &launcher, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "device", purr_launcher_create(kernel, -2, &launcher, &err));
  ASSERT_STATUS(PURR_STATUS_NO_DEVICE, purr_launcher_create(kernel, 3, &launcher, &err));
  purr_kernel_destroy(kernel);
  end();
}

/* ---- descriptors ---- */

static purr_tensor_t matrix(void *data, int64_t rows, int64_t columns, int64_t row_stride) {
  return (purr_tensor_t){sizeof(purr_tensor_t), PURR_DTYPE_FP16, 2,   0, data, NULL,
                         {rows, columns},       {row_stride, 1}, NULL};
}

static void set_product(purr_launcher_t *launcher) {
  const purr_tensor_t a = matrix(ADDRESS, 100, 200, 208), b = matrix((char *)ADDRESS + (1 << 20), 300, 200, 200);
  const purr_tensor_t c = matrix((char *)ADDRESS + 4096, 100, 300, 304);
  ASSERT_OK(purr_launcher_set_tensor(launcher, 0, &a, 0, &err));
  ASSERT_OK(purr_launcher_set_tensor(launcher, 1, &b, PURR_DESCRIPTOR_NAN, &err));
  ASSERT_OK(purr_launcher_set_tensor(launcher, 2, &c, 0, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 3, 100, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 4, 300, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 5, 200, &err));
}

static void descriptors_are_encoded_and_kept(void) {
  begin();
  purr_launcher_t *launcher = make_launcher(PACKAGE, "matmul_kernel", NULL);
  const int bytes[] = {128, 4, 4, 8, 8, 128, 4, 4, 8, 8, 128, 4, 4, 8, 8, 4, 4, 4, 8, 8, 0};
  memcpy(fake->param_bytes, bytes, sizeof bytes);
  set_product(launcher);
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
  CU_ASSERT_EQUAL(fake->num_encodings, 3);
  const fake_encoding_t *e = &fake->encoding;
  CU_ASSERT_EQUAL(e->rank, 2);
  CU_ASSERT_EQUAL(e->data_type, 6); /* fp16 */
  CU_ASSERT_EQUAL(e->swizzle, 3);
  CU_ASSERT_EQUAL(e->l2_promotion, 2);
  CU_ASSERT_EQUAL(e->fill, 0);
  CU_ASSERT_EQUAL(e->dims[0], 300);
  CU_ASSERT_EQUAL(e->dims[1], 100);
  CU_ASSERT_EQUAL(e->strides[0], 608);
  CU_ASSERT_EQUAL(e->box[0], 64);
  CU_ASSERT_EQUAL(e->box[1], 64);
  const fake_launch_t *launch = &fake->launches[fake->num_launches - 1];
  CU_ASSERT_EQUAL(launch->grid[0], 2);
  CU_ASSERT_EQUAL(launch->grid[1], 5);
  CU_ASSERT_EQUAL(launch->shared_bytes, 49176);
  uint64_t words[2];
  memcpy(words, fake->params[5], sizeof words);
  CU_ASSERT_EQUAL(words[0], (uintptr_t)ADDRESS + (1 << 20));
  CU_ASSERT_EQUAL(words[1], ~(1ull << 21)); /* small, and the driver is 13.0 */
  int32_t extent;
  int64_t stride;
  memcpy(&extent, fake->params[1], sizeof extent);
  CU_ASSERT_EQUAL(extent, 100);
  memcpy(&stride, fake->params[3], sizeof stride);
  CU_ASSERT_EQUAL(stride, 208);
  memcpy(&stride, fake->params[4], sizeof stride);
  CU_ASSERT_EQUAL(stride, 1);
  /* The same again is not encoded again; another one is, and the first is still there. */
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
  set_product(launcher);
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
  CU_ASSERT_EQUAL(fake->num_encodings, 3);
  purr_tensor_t other = matrix(ADDRESS, 99, 200, 208);
  ASSERT_OK(purr_launcher_set_tensor(launcher, 0, &other, 0, &err));
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
  CU_ASSERT_EQUAL(fake->num_encodings, 4);
  set_product(launcher);
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
  CU_ASSERT_EQUAL(fake->num_encodings, 4);
  memset(fake->param_bytes, 0, sizeof fake->param_bytes);
  /* What the copy engine does not take. */
  const struct {
    purr_tensor_t tensor;
    const char *text;
  } bad[] = {{matrix((char *)ADDRESS + 8, 8, 8, 8), "takes addresses at multiples of 16 bytes"},
             {matrix(ADDRESS, 8, 8, 9), "takes multiples of 16 bytes below 2^40"},
             {matrix(NULL, 8, 8, 8), "is a tensor without data"},
             {matrix(ADDRESS, 0, 8, 8), "extent of 0"},
             {{sizeof(purr_tensor_t), PURR_DTYPE_FP16, 2, 0, ADDRESS, NULL, {8, 8}, {16, 2}, NULL}, "takes 1"},
             {{sizeof(purr_tensor_t), PURR_DTYPE_BF16, 2, 0, ADDRESS, NULL, {8, 8}, {0}, NULL}, "elements are bf16"},
             {{sizeof(purr_tensor_t), PURR_DTYPE_FP16, 1, 0, ADDRESS, NULL, {8}, {0}, NULL}, "describes 2 dimensions"},
             {{sizeof(purr_tensor_t), PURR_DTYPE_FP16, 5, 0, ADDRESS, NULL, {8}, {0}, NULL}, "5 dimensions"},
             {{sizeof(purr_tensor_t), 77, 2, 0, ADDRESS, NULL, {8, 8}, {0}, NULL}, "dtype 77"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, bad[i].text,
                purr_launcher_set_tensor(launcher, 0, &bad[i].tensor, 0, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "does not take a pointer",
              purr_launcher_set_pointer(launcher, 0, ADDRESS, &err));
  purr_tensor_t half = matrix(ADDRESS, 8, 8, 8);
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "TF32",
              purr_launcher_set_tensor(launcher, 0, &half, PURR_DESCRIPTOR_TF32, &err));
  purr_launcher_destroy(launcher);
  end();
}

/* Before sm_90 a descriptor is many parameters, and each version has others. */
static void descriptors_that_kernels_take_apart(void) {
  static const struct {
    const char *folder;
    int num_flags, num_hidden;
  } cases[] = {{"3.4.0/matmul_sm_80", 0, 1}, {"3.6.0/matmul_sm_80", 1, 2}, {"3.9.0/matmul_sm_80", 2, 2}};
  begin();
  for (int i = 0; i < FAKE_CUDA_MAX_DEVICES; i++) fake->cc[i] = 80;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char path[256];
    snprintf(path, sizeof path, DATA "%s", cases[i].folder);
    purr_launcher_t *launcher = make_launcher(
        path, NULL, "tensordesc<fp16[64, 64]>, tensordesc<fp16[64, 64]>, tensordesc<fp16[64, 64]>, i32, i32, i32");
    int bytes[FAKE_CUDA_MAX_PARAMS] = {0}, count = 0;
    for (int d = 0; d < 3; d++) {
      for (int k = 0; k < 5; k++) bytes[count++] = 8;
      for (int k = 0; k < cases[i].num_flags; k++) bytes[count++] = 1;
      bytes[count++] = 4, bytes[count++] = 4, bytes[count++] = 8, bytes[count++] = 8;
    }
    for (int k = 0; k < 3; k++) bytes[count++] = 4;
    for (int k = 0; k < cases[i].num_hidden; k++) bytes[count++] = 8;
    memcpy(fake->param_bytes, bytes, sizeof bytes);
    set_product(launcher);
    ASSERT_OK(purr_launcher_set_grid(launcher, 2, 5, 1, &err));
    ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
    CU_ASSERT_EQUAL(fake->num_encodings, 0);
    const int second = 9 + cases[i].num_flags;
    int64_t words[5];
    for (int k = 0; k < 5; k++) memcpy(&words[k], fake->params[second + k], 8);
    CU_ASSERT_EQUAL(words[0], (int64_t)((uintptr_t)ADDRESS + (1 << 20)));
    CU_ASSERT(words[1] == 300 && words[2] == 200 && words[3] == 200 && words[4] == 1);
    if (cases[i].num_flags > 0) CU_ASSERT_EQUAL(fake->params[second + 5][0], 1);
    if (cases[i].num_flags > 1) CU_ASSERT_EQUAL(fake->params[second + 6][0], 0);
    int32_t extent;
    memcpy(&extent, fake->params[second + 5 + cases[i].num_flags], 4);
    CU_ASSERT_EQUAL(extent, 300);
    memset(fake->param_bytes, 0, sizeof fake->param_bytes);
    purr_launcher_destroy(launcher);
  }
  end();
}

/* ---- scratch, warps ---- */

static void scratch_comes_from_the_caller(void) {
  begin();
  purr_launcher_t *launcher = make_launcher(PACKAGE, "copy_kernel", NULL);
  ASSERT_OK(purr_launcher_set_pointer(launcher, 0, ADDRESS, &err));
  ASSERT_OK(purr_launcher_set_pointer(launcher, 1, (char *)ADDRESS + 4096, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 2, 40, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 3, 64, &err));
  purr_launcher_info_t info = {.struct_size = sizeof info};
  ASSERT_OK(purr_launcher_query(launcher, &info, &err));
  CU_ASSERT_EQUAL(info.grid[0], 3);
  CU_ASSERT_EQUAL(info.grid[1], 2);
  CU_ASSERT_EQUAL(info.scratch_bytes, 3 * 2 * 256);
  CU_ASSERT_EQUAL(info.scratch_align, 128);
  ASSERT_SAYS(PURR_STATUS_BUFFER_TOO_SMALL, "needs 1536 bytes of scratch memory at a multiple of 128, it has 0",
              purr_launcher_launch(launcher, NULL, &err));
  ASSERT_OK(purr_launcher_set_scratch(launcher, (char *)ADDRESS + 64, 4096, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "must be at a multiple of 128", purr_launcher_launch(launcher, NULL, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "give both or none", purr_launcher_set_scratch(launcher, NULL, 4096, &err));
  ASSERT_OK(purr_launcher_set_scratch(launcher, (char *)ADDRESS + 8192, 1536, &err));
  const int bytes[] = {8, 8, 4, 4, 8, 8, 0};
  memcpy(fake->param_bytes, bytes, sizeof bytes);
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
  uint64_t address;
  memcpy(&address, fake->params[4], sizeof address);
  CU_ASSERT_EQUAL(address, (uintptr_t)ADDRESS + 8192);
  memcpy(&address, fake->params[5], sizeof address);
  CU_ASSERT_EQUAL(address, 0);
  memset(fake->param_bytes, 0, sizeof fake->param_bytes);
  purr_launcher_destroy(launcher);
  end();
}

static void specialized_warps_are_counted(void) {
  begin();
  purr_launcher_t *launcher = make_launcher(PACKAGE, "specialized_kernel", NULL);
  set_product(launcher);
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
  CU_ASSERT_EQUAL(fake->launches[0].block[0], 384); /* four warps were asked for */
  purr_launcher_destroy(launcher);
  for (int i = 0; i < FAKE_CUDA_MAX_DEVICES; i++) fake->cc[i] = 100;
  end();
  begin();
  for (int i = 0; i < FAKE_CUDA_MAX_DEVICES; i++) fake->cc[i] = 100;
  launcher = make_launcher(PACKAGE, "specialized_kernel", NULL);
  set_product(launcher);
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
  CU_ASSERT_EQUAL(fake->launches[0].block[0], 256);
  purr_launcher_destroy(launcher);
  end();
}

/* ---- loading ---- */

enum { NUM_THREADS = 8 };

static void host_pointers_are_refused(void) {
  begin();
  fake->reaches_host_memory = 0;
  static float host[64];
  void *memory = NULL, *pinned = NULL;
  purr_launcher_t *launcher = make_launcher(DATA "3.6.0/add", NULL, NULL);
  purr__device_t *device;
  REQUIRE_OK(purr__device_get(context, 0, &device, &err));
  REQUIRE_OK(purr__device_allocate(device, 64, "a test", &memory, &err));
  REQUIRE_OK(purr__device_allocate_pinned(device, 64, &pinned, &err));
  ASSERT_OK(purr_launcher_set_pointer(launcher, 0, memory, &err));
  ASSERT_OK(purr_launcher_set_pointer(launcher, 0, pinned, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "argument 0 ('0') of kernel add_kernel is at 0x",
              purr_launcher_set_pointer(launcher, 0, host, &err));
  CU_ASSERT(says("which is host memory that device 0 (Fake GPU A) cannot reach"));
  purr_tensor_t tensor = {sizeof tensor, PURR_DTYPE_FP32, 1, 0, host, NULL, {64}, {0}, NULL};
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_launcher_set_tensor(launcher, 1, &tensor, 0, &err));
  ASSERT_OK(purr_launcher_set_scratch(launcher, memory, 64, &err));
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "the scratch memory of kernel add_kernel is at 0x",
              purr_launcher_set_scratch(launcher, host, 64, &err));
  fake->reaches_host_memory = 1; /* Grace, or a kernel that moves pages */
  ASSERT_OK(purr_launcher_set_pointer(launcher, 0, host, &err));
  purr__device_release(device, memory, 64);
  purr__device_release_pinned(device, pinned);
  purr_launcher_destroy(launcher);
  end();
}

static void *launch_from_a_thread(void *kernel) {
  purr_error_t own = PURR_ERROR_INIT;
  purr_launcher_t *launcher = NULL;
  purr_status_t status = purr_launcher_create(kernel, 0, &launcher, &own);
  for (int i = 0; i < 3 && status == PURR_STATUS_OK; i++)
    status = purr_launcher_set_pointer(launcher, i, ADDRESS, &own);
  if (status == PURR_STATUS_OK) status = purr_launcher_set_real(launcher, 3, 2.0, &own);
  if (status == PURR_STATUS_OK) status = purr_launcher_set_integer(launcher, 4, 100, &own);
  for (int i = 0; i < 8 && status == PURR_STATUS_OK; i++) status = purr_launcher_launch(launcher, NULL, &own);
  purr_launcher_destroy(launcher);
  return status == PURR_STATUS_OK ? NULL : kernel;
}

static void threads_load_a_kernel_once(void) {
  begin();
  fake->num_devices = 2;
  purr_kernel_t *kernel = NULL;
  REQUIRE_OK(open_kernel(PACKAGE, "add_kernel", NULL, &kernel));
  pthread_t threads[NUM_THREADS];
  for (int i = 0; i < NUM_THREADS; i++) pthread_create(&threads[i], NULL, launch_from_a_thread, kernel);
  for (int i = 0; i < NUM_THREADS; i++) {
    void *failed;
    pthread_join(threads[i], &failed);
    CU_ASSERT_PTR_NULL(failed);
  }
  CU_ASSERT_EQUAL(fake->num_launches, 8 * NUM_THREADS);
  CU_ASSERT_EQUAL(fake->num_loads, 3); /* sm_80's does not run on 9.0 */
  purr_launcher_t *other = NULL;
  ASSERT_OK(purr_launcher_create(kernel, 1, &other, &err)); /* the libraries are there; the functions are new */
  CU_ASSERT_EQUAL(fake->num_loads, 3);
  CU_ASSERT_EQUAL(fake->num_func_loads, 6);
  purr_kernel_destroy(kernel);
  purr_launcher_destroy(other);
  end();
}

static void failing_loads_leave_nothing(void) {
  static const char *const calls[] = {"cuLibraryLoadData",    "cuLibraryGetKernel",  "cuKernelGetAttribute",
                                      "cuKernelSetAttribute", "cuKernelGetFunction", "cuFuncLoad",
                                      "cuCtxPushCurrent"};
  for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++)
    for (int after = 0; after < 3; after++) {
      begin();
      purr_kernel_t *kernel = NULL;
      purr_launcher_t *launcher = NULL;
      REQUIRE_OK(open_kernel(PACKAGE, "add_kernel", NULL, &kernel));
      fake->failing_call = calls[c];
      fake->failing_result = 999;
      fake->failing_after = after;
      purr_status_t status = purr_launcher_create(kernel, 0, &launcher, &err);
      CU_ASSERT(status == PURR_STATUS_CUDA || (status == PURR_STATUS_OK && after > 0));
      if (status != PURR_STATUS_OK) CU_ASSERT_PTR_NULL(launcher);
      CU_ASSERT_EQUAL(fake->num_pushed, 0);
      fake->failing_call = NULL;
      purr_launcher_destroy(launcher);
      ASSERT_OK(purr_launcher_create(kernel, 0, &launcher, &err));
      purr_launcher_destroy(launcher);
      purr_kernel_destroy(kernel);
      end();
    }
}

static void kernels_come_from_memory_and_packages(void) {
  begin();
  uint64_t json_bytes, cubin_bytes;
  unsigned char *json = test_read_file(DATA "3.9.0/add/add_kernel.json", &json_bytes);
  unsigned char *cubin = test_read_file(DATA "3.9.0/add/add_kernel.cubin", &cubin_bytes);
  purr_kernel_desc_t desc = PURR_KERNEL_DESC_INIT;
  desc.metadata = json;
  desc.metadata_bytes = json_bytes;
  purr_kernel_t *kernel = NULL;
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "both are needed", purr_kernel_open(context, &desc, &kernel, &err));
  desc.cubin = cubin;
  desc.cubin_bytes = cubin_bytes;
  desc.signature = ADD_SIGNATURE;
  desc.grid[0] = "cdiv(n, BLOCK)";
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "1 sides of a grid", purr_kernel_open(context, &desc, &kernel, &err));
  desc.grid[1] = desc.grid[2] = "1";
  REQUIRE_OK(purr_kernel_open(context, &desc, &kernel, &err));
  free(json);
  free(cubin);
  purr_launcher_t *launcher = NULL;
  ASSERT_OK(purr_launcher_create(kernel, 0, &launcher, &err));
  set_add_arguments(launcher);
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
  CU_ASSERT_EQUAL(fake->launches[0].grid[0], 4);
  purr_launcher_destroy(launcher);
  purr_kernel_destroy(kernel);

  purr_package_t *package = NULL;
  ASSERT_OK(purr_package_open(context, PACKAGE, &package, &err));
  ASSERT_OK(purr_package_verify(package, &err));
  desc = (purr_kernel_desc_t)PURR_KERNEL_DESC_INIT;
  desc.package = package;
  desc.name = "copy_kernel";
  ASSERT_OK(purr_kernel_open(context, &desc, &kernel, &err));
  purr_package_destroy(package);
  ASSERT_OK(purr_launcher_create(kernel, 0, &launcher, &err));
  purr_launcher_destroy(launcher);
  purr_kernel_destroy(kernel);
  desc.path = PACKAGE;
  ASSERT_SAYS(PURR_STATUS_INVALID_ARGUMENT, "exactly one", purr_kernel_open(context, &desc, &kernel, &err));
  end();
}

/* A context that uses a package of Triton's kernels for layers does not trip over them. */
static void layers_pass_over_triton_kernels(void) {
  begin();
  purr_package_t *package = NULL;
  ASSERT_OK(purr_package_open(context, PACKAGE, &package, &err));
  ASSERT_OK(purr_context_add_package(context, package, &err));
  purr_package_destroy(package);
  purr__device_t *device;
  const purr__kernels_t *kernels;
  ASSERT_OK(purr__device_get(context, 0, &device, &err));
  ASSERT_OK(purr__kernels_get(device, &kernels, &err));
  for (int i = 0; i < kernels->num_kernels; i++) CU_ASSERT_PTR_NULL(kernels->kernels[i].entry->triton);
  end();
}

int main(void) {
  return purr_test_main(
      "triton", (purr_test_t[]){{"each version hides other parameters", each_version_hides_other_parameters},
                                {"a launch is what Triton does", launch_is_what_triton_does},
                                {"arguments are known by name", arguments_are_known_by_name},
                                {"wrong arguments are refused", wrong_arguments_are_refused},
                                {"host pointers are refused", host_pointers_are_refused},
                                {"untyped arguments follow the setter", untyped_arguments_follow_the_setter},
                                {"scalars of every width", scalars_of_every_width},
                                {"the most special variant is taken", the_most_special_variant_is_taken},
                                {"what is not set is a constant of all", what_is_not_set_is_a_constant_of_all},
                                {"a device that lacks something is refused", a_device_that_lacks_something_is_refused},
                                {"descriptors are encoded and kept", descriptors_are_encoded_and_kept},
                                {"descriptors that kernels take apart", descriptors_that_kernels_take_apart},
                                {"scratch comes from the caller", scratch_comes_from_the_caller},
                                {"specialized warps are counted", specialized_warps_are_counted},
                                {"threads load a kernel once", threads_load_a_kernel_once},
                                {"failing loads leave nothing", failing_loads_leave_nothing},
                                {"kernels come from memory and packages", kernels_come_from_memory_and_packages},
                                {"layers pass over Triton's kernels", layers_pass_over_triton_kernels},
                                {0}});
}

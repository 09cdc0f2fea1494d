/* Files of Triton's, and manifests about them, that are damaged, do not belong together or mean harm: each is refused
 * with a sentence, and none does more than that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "package/sha256.h"
#include "support/folder.h"
#include "support/main.h"
#include "triton/kernel.h"

#define DATA PURR_TEST_DATA "/triton/"

static purr_error_t err;
static purr_context_t *context;

typedef struct file {
  unsigned char *data;
  uint64_t bytes;
} file_t;

static file_t read_file(const char *path) {
  file_t file;
  file.data = test_read_file(path, &file.bytes);
  CU_ASSERT_PTR_NOT_NULL_FATAL(file.data);
  return file;
}

/* The text with one piece replaced; the caller frees it. */
static char *edited(const file_t *file, const char *old, const char *new) {
  char *text = calloc(1, file->bytes + strlen(new) + 1);
  const char *at = memmem(file->data, file->bytes, old, strlen(old));
  if (at == NULL) fprintf(stderr, "the file has no %s\n", old);
  CU_ASSERT_PTR_NOT_NULL_FATAL(at);
  const size_t before = (size_t)(at - (const char *)file->data);
  memcpy(text, file->data, before);
  memcpy(text + before, new, strlen(new));
  memcpy(text + before + strlen(new), at + strlen(old), file->bytes - before - strlen(old));
  return text;
}

static purr_status_t open_pair(const void *metadata, uint64_t metadata_bytes, const file_t *cubin,
                               const char *signature) {
  const purr_kernel_desc_t desc = {.struct_size = sizeof desc,
                                   .metadata = metadata,
                                   .metadata_bytes = metadata_bytes,
                                   .cubin = cubin->data,
                                   .cubin_bytes = cubin->bytes,
                                   .signature = signature};
  purr_kernel_t *kernel = NULL;
  err = (purr_error_t)PURR_ERROR_INIT;
  const purr_status_t status = purr_kernel_open(context, &desc, &kernel, &err);
  CU_ASSERT_EQUAL(kernel != NULL, status == PURR_STATUS_OK);
  CU_ASSERT(status == PURR_STATUS_OK || err.message[0] != '\0');
  purr_kernel_destroy(kernel);
  return status;
}

static void check(const char *what, purr_status_t got, purr_status_t wanted, const char *text) {
  const bool is_right = got == wanted && strstr(err.message, text) != NULL;
  if (!is_right)
    fprintf(stderr, "%s: %s '%s', expected %s '%s'\n", what, purr_status_name(got), err.message,
            purr_status_name(wanted), text);
  CU_ASSERT(is_right);
}

/* ---- Triton's own metadata ---- */

static void refused_metadata(void) {
  static const struct {
    const char *old, *new;
    purr_status_t status;
    const char *text;
  } cases[] = {
      {"\"name\": ", "\"nome\": ", PURR_STATUS_PACKAGE,
       "is not what Triton writes beside a cubin: the key \"name\" is "},
      {"\"num_warps\": 4, \"", "\"", PURR_STATUS_PACKAGE, "the key \"num_warps\" is missing"},
      {"\"shared\": 0", "\"s\": 0", PURR_STATUS_PACKAGE, "the key \"shared\" is missing"},
      {"\"shared\": 0", "\"shared\": -1", PURR_STATUS_PACKAGE, "shared is -1; allowed are whole numbers from 0"},
      {"\"shared\": 0", "\"shared\": 232449", PURR_STATUS_PACKAGE,
       "wants 232449 bytes of dynamic shared memory; a block has at most 232448 on devices that run sm_90a images"},
      {"\"shared\": 0", "\"shared\": 1e3", PURR_STATUS_PACKAGE, "shared is 1e3"},
      {"\"shared\": 0", "\"shared\": \"0\"", PURR_STATUS_PACKAGE, "shared is a string"},
      {"\"shared\": 0", "\"shared\": 0, \"shared\": 0", PURR_STATUS_PACKAGE, "the key \"shared\" is repeated"},
      {"\"num_warps\": 4", "\"num_warps\": 8", PURR_STATUS_PACKAGE,
       "is compiled for blocks of 128 x 1 x 1 threads, but num_warps is 8 (256 threads)"},
      {"\"num_warps\": 4", "\"num_warps\": 33", PURR_STATUS_PACKAGE, "num_warps is 33"},
      {"\"num_ctas\": 1", "\"num_ctas\": 2", PURR_STATUS_PACKAGE,
       "is to run in clusters of 2 x 1 x 1 blocks, but is not compiled for clusters, as Triton 3.6.0 would have done"},
      {"\"warp_size\": 32", "\"warp_size\": 64", PURR_STATUS_PACKAGE, "warp_size is 64"},
      {"\"arch\": 90, \"warp_size\": 32", "\"arch\": 90, \"warp_size\": 64", PURR_STATUS_PACKAGE,
       "target.warp_size is 64"},
      {"\"global_scratch_align\": 1", "\"global_scratch_align\": 0", PURR_STATUS_PACKAGE, "global_scratch_align is 0"},
      {"\"global_scratch_align\": 1", "\"global_scratch_align\": null", PURR_STATUS_OK, ""},
      {"\"num_ctas\": 1", "\"num_ctas\": 17", PURR_STATUS_PACKAGE, "num_ctas is 17"},
      {"\"backend\": \"cuda\"", "\"backend\": \"hip\"", PURR_STATUS_PACKAGE, "target.backend is \"hip\"; allowed is"},
      {"\"arch\": 90", "\"arch\": 80", PURR_STATUS_INCOMPATIBLE_BINARY,
       "is compiled for sm_90a, but Triton's metadata says 80"},
      {"\"arch\": 90", "\"arch\": \"gfx942\"", PURR_STATUS_PACKAGE, "target.arch is a string"},
      {"\"name\": \"add_kernel\"", "\"name\": \"sub_kernel\"", PURR_STATUS_MISSING_KERNEL,
       "has no kernel named sub_kernel"},
      {"\"name\": \"add_kernel\"", "\"name\": \"../../etc\"", PURR_STATUS_PACKAGE, "name is \"../../etc\""},
      {"\"name\": \"add_kernel\"", "\"name\": \"\"", PURR_STATUS_PACKAGE, "name is \"\""},
      {"\"triton_version\": \"3.6.0\"", "\"triton_version\": \"new\"", PURR_STATUS_PACKAGE,
       "triton_version is \"new\""},
      {"\"triton_version\": \"3.6.0\"", "\"triton_version\": \"2.1.0\"", PURR_STATUS_PACKAGE,
       "triton_version is \"2.1.0\"; allowed is for example \"3.6.0\", from 3.2 on"},
      {"\"triton_version\": \"3.6.0\"", "\"triton_version\": \"3.1.9\"", PURR_STATUS_PACKAGE, "from 3.2 on"},
      {"\"triton_version\": \"3.6.0\"", "\"triton_version\": \"3.2.0\"", PURR_STATUS_OK, ""},
      {"\"triton_version\": \"3.6.0\"", "\"triton_version\": \"4.0.0\"", PURR_STATUS_OK, ""},
      {"\"tmem_size\": 0", "\"tmem_size\": 9999", PURR_STATUS_PACKAGE,
       "tmem_size is 9999; allowed are whole numbers from 0 to 512"},
      {"\"tmem_size\": 0", "\"tmem_size\": -1", PURR_STATUS_PACKAGE, "tmem_size is -1"},
      {"\"tmem_size\": 0", "\"tmem_size\": null", PURR_STATUS_OK, ""},
      {"\"tmem_size\": 0", "\"tmem_size\": 64", PURR_STATUS_PACKAGE,
       "tmem_size is 64, but target.arch is 90, which has no tensor memory; allowed is 0"},
      {"\"launch_pdl\": false", "\"launch_pdl\": 0", PURR_STATUS_PACKAGE, "launch_pdl is a number; allowed are true"},
      {"\"global_scratch_size\": 0", "\"global_scratch_size\": null", PURR_STATUS_OK, ""},
      {"\"global_scratch_align\": 1", "\"global_scratch_align\": 3", PURR_STATUS_PACKAGE, "allowed are powers of two"},
      {"\"profile_scratch_size\": 0", "\"profile_scratch_size\": 64", PURR_STATUS_UNSUPPORTED,
       "was compiled for a profiler"},
      {"\"instrumentation_mode\": \"\"", "\"instrumentation_mode\": \"gsan\"", PURR_STATUS_UNSUPPORTED,
       "instrumentation_mode \"gsan\""},
      {"\"tensordesc_meta\": []", "\"tensordesc_meta\": null", PURR_STATUS_OK, ""},
      {"\"tensordesc_meta\": []", "\"tensordesc_meta\": {}", PURR_STATUS_PACKAGE, "tensordesc_meta is an object"},
      {"\"tensordesc_meta\": []", "\"tensordesc_meta\": [1]", PURR_STATUS_PACKAGE, "a descriptor is a number"},
      {"\"tensordesc_meta\": []", "\"tensordesc_meta\": [{\"swizzle\": 3}]", PURR_STATUS_PACKAGE,
       "lacks \"elem_size\""},
      {"\"tensordesc_meta\": []", "\"tensordesc_meta\": [{\"elem_size\": 2, \"block_size\": [1,2,3,4,5,6]}]",
       PURR_STATUS_PACKAGE, "more than 5 dimensions"},
      {"\"tensordesc_meta\": []", "\"tensordesc_meta\": [{\"is_im2col\": true}]", PURR_STATUS_UNSUPPORTED, "im2col"},
      {"\"debug\": false", "\"debug\": {\"a\": [1, {\"b\": null}]}, \"a key of 4.0\": [[]]", PURR_STATUS_OK, ""},
      {"\"debug\": false", "\"debug\": fals", PURR_STATUS_PACKAGE, ":1:"},
      {"\"debug\": false", "\"cluster_dims\": [2, 2, 1]", PURR_STATUS_OK, ""}, /* one block: it says nothing */
  };
  const file_t json = read_file(DATA "3.6.0/add/add_kernel.json"), cubin = read_file(DATA "3.6.0/add/add_kernel.cubin");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char *text = edited(&json, cases[i].old, cases[i].new);
    check(cases[i].new, open_pair(text, strlen(text), &cubin, NULL), cases[i].status, cases[i].text);
    free(text);
  }
  const char *no_json[] = {"", "{", "[]", "null", "{}", "\xff\xfe", "{\"name\": 1}"};
  for (size_t i = 0; i < sizeof no_json / sizeof no_json[0]; i++)
    CU_ASSERT_EQUAL(open_pair(no_json[i], strlen(no_json[i]), &cubin, NULL), PURR_STATUS_PACKAGE);
  /* 3.2's clusters: the compiler wrote them down. */
  const file_t old = read_file(DATA "3.2.0/add_cluster/add_kernel.json");
  const file_t old_cubin = read_file(DATA "3.2.0/add_cluster/add_kernel.cubin");
  char *text = edited(&old, "\"cluster_dims\": [2, 1, 1]", "\"cluster_dims\": [1, 2, 1]");
  check("another cluster", open_pair(text, strlen(text), &old_cubin, NULL), PURR_STATUS_OK, "");
  free(text);
  text = edited(&old, "\"cluster_dims\": [2, 1, 1]", "\"cluster_dims\": [2, 2, 1]");
  check("a cluster of four", open_pair(text, strlen(text), &old_cubin, NULL), PURR_STATUS_PACKAGE,
        "cluster_dims is 2 x 2 x 1, but num_ctas is 2");
  free(text);
  static const char *const lengths[][2] = {{"[]", "cluster_dims has 0 entries; it needs 3"},
                                           {"[2]", "cluster_dims has 1 entries; it needs 3"},
                                           {"[2, 1, 1, 1]", "cluster_dims has more than 3 entries"},
                                           {"[2, [], 1]", "cluster_dims is an array; allowed are whole numbers"}};
  for (int i = 0; i < 4; i++) {
    char dims[64];
    snprintf(dims, sizeof dims, "\"cluster_dims\": %s", lengths[i][0]);
    text = edited(&old, "\"cluster_dims\": [2, 1, 1]", dims);
    check(dims, open_pair(text, strlen(text), &old_cubin, NULL), PURR_STATUS_PACKAGE, lengths[i][1]);
    free(text);
  }
  free(json.data), free(cubin.data), free(old.data), free(old_cubin.data);
}

/* ---- descriptors ---- */

#define DESCRIPTOR "\"swizzle\": 3, \"elem_size\": 2, \"elem_type\": 6, \"block_size\": [64, 64], \"fp4_padded\": false"
#define FP16_BLOCKS "tensordesc<fp16[64, 64]>, tensordesc<fp16[64, 64]>, tensordesc<fp16[64, 64]>"

/* The first descriptor of the matrix product in other words, without and with a signature. */
static void refused_descriptors(void) {
  static const struct {
    const char *folder, *swizzle, *bytes, *type, *block, *padded;
    purr_status_t alone, with_signature;
    const char *text;
  } cases[] = {
#define OK PURR_STATUS_OK
#define BAD PURR_STATUS_PACKAGE
#define BAD_SIGNATURE PURR_STATUS_INVALID_ARGUMENT
      {"3.4.0", "3", "2", "6", "[64, 64]", "false", OK, OK, ""},
      {"3.6.0", "3", "2", "6", "[64, 64]", "false", OK, OK, ""},
      {"3.9.0", "3", "2", "6", "[64, 64]", "false", OK, OK, ""},
      {"3.6.0", "3", "2", "1", "[64, 64]", "false", OK, OK, ""},
      {"3.6.0", "0", "2", "6", "[64, 64]", "false", OK, OK, ""},
      {"3.6.0", "1", "2", "6", "[64, 16]", "false", OK, OK, ""},
      {"3.6.0", "0", "2", "6", "[1, 8]", "false", OK, OK, ""},
      {"3.4.0", "3", "2", "0", "[64, 64]", "false", BAD, BAD,
       "descriptor 0 of tensordesc_meta: elem_type is 0 (u8), but elem_size is 2; allowed with it is 1"},
      {"3.6.0", "3", "2", "0", "[64, 64]", "false", BAD, BAD, "elem_type is 0 (u8), but elem_size is 2"},
      {"3.6.0", "3", "3", "6", "[64, 64]", "false", BAD, BAD, "elem_type is 6 (fp16), but elem_size is 3"},
      {"3.6.0", "3", "2", "7", "[64, 64]", "false", BAD, BAD, "elem_type is 7 (fp32), but elem_size is 2"},
      {"3.6.0", "3", "1", "13", "[64, 64]", "false", BAD, BAD, "elem_type is 13; allowed are 0 to 12 and 14"},
      {"3.6.0", "3", "1", "15", "[64, 64]", "false", BAD, BAD, "elem_type is 15; allowed are 0 to 12 and 14"},
      {"3.6.0", "3", "1", "16", "[64, 64]", "false", BAD, BAD, "elem_type is 16"},
      {"3.6.0", "3", "2", "6", "[64, 512]", "false", BAD, BAD,
       "block_size has 512 elements in dimension 1; the copy engine takes 1 to 256"},
      {"3.9.0", "3", "2", "6", "[257, 64]", "false", BAD, BAD, "block_size has 257 elements in dimension 0"},
      {"3.6.0", "3", "2", "6", "[64, 128]", "false", BAD, BAD,
       "block_size has 256 bytes in its last dimension (128 elements of 2), but swizzle is 3; allowed with it are 128"},
      {"3.6.0", "1", "2", "6", "[64, 64]", "false", BAD, BAD, "but swizzle is 1; allowed with it are 32"},
      {"3.6.0", "3", "2", "6", "[64, 4]", "false", BAD, BAD,
       "block_size has 8 bytes in its last dimension (4 elements of 2); the copy engine takes multiples of 16"},
      {"3.6.0", "3", "2", "6", "[64, 64]", "true", BAD, BAD, "elem_type is 6 (fp16), but fp4_padded is true"},
      {"3.6.0", "3", "1", "14", "[64, 128]", "false", BAD, BAD, "elem_type is 14 (fp4), but fp4_padded is false"},
      {"3.6.0", "2", "1", "14", "[64, 64]", "true", BAD, BAD, "swizzle is 2, but fp4_padded is true"},
      {"3.6.0", "3", "1", "14", "[64, 128]", "true", OK, BAD_SIGNATURE, "elements of type 14 (fp4)"},
      {"3.6.0", "3", "2", "10", "[64, 64]", "false", OK, BAD_SIGNATURE,
       "argument 0 of the signature is \"tensordesc<fp16[64, 64]>\", but descriptor 0 of tensordesc_meta has elements "
       "of type 10 (bf16)"},
      {"3.6.0", "3", "1", "0", "[64, 64]", "false", OK, BAD_SIGNATURE, "has elements of type 0 (u8)"},
      {"3.6.0", "3", "2", "6", "[128, 64]", "false", OK, BAD_SIGNATURE, "has 128 elements at a time in dimension 0"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char path[256], descriptor[200];
    snprintf(path, sizeof path, DATA "%s/matmul/matmul_kernel.json", cases[i].folder);
    const file_t json = read_file(path);
    snprintf(path, sizeof path, DATA "%s/matmul/matmul_kernel.cubin", cases[i].folder);
    const file_t cubin = read_file(path);
    snprintf(descriptor, sizeof descriptor,
             "\"swizzle\": %s, \"elem_size\": %s, \"elem_type\": %s, \"block_size\": %s, \"fp4_padded\": %s",
             cases[i].swizzle, cases[i].bytes, cases[i].type, cases[i].block, cases[i].padded);
    char *text = edited(&json, DESCRIPTOR, descriptor);
    check(descriptor, open_pair(text, strlen(text), &cubin, NULL), cases[i].alone,
          cases[i].alone == OK ? "" : cases[i].text);
    check(descriptor, open_pair(text, strlen(text), &cubin, FP16_BLOCKS ", i32, i32, i32"), cases[i].with_signature,
          cases[i].text);
    free(text), free(json.data), free(cubin.data);
  }
#undef OK
#undef BAD
#undef BAD_SIGNATURE
  const file_t json = read_file(DATA "3.6.0/matmul/matmul_kernel.json");
  const file_t cubin = read_file(DATA "3.6.0/matmul/matmul_kernel.cubin");
  static const char *const lacking[][2] = {{"\"elem_type\": 6, ", "lacks \"elem_type\""},
                                           {"\"swizzle\": 3, ", "lacks \"swizzle\""},
                                           {"\"block_size\": [64, 64], ", "lacks \"block_size\""}};
  for (int i = 0; i < 3; i++) {
    char *text = edited(&json, lacking[i][0], "");
    check(lacking[i][0], open_pair(text, strlen(text), &cubin, NULL), PURR_STATUS_PACKAGE, lacking[i][1]);
    free(text);
  }
  free(json.data), free(cubin.data);
}

/* ---- signatures against images ---- */

static void refused_signatures(void) {
  static const struct {
    const char *signature;
    purr_status_t status;
    const char *text;
  } cases[] = {
      {"*fp32, *fp32, *fp32, fp32, i32", PURR_STATUS_OK, ""},
      {" a = *fp32:16 , *bf16:16,c=*i8, fp32 , u32:16, None, 1.5, True, n=-3", PURR_STATUS_OK, ""},
      {"*fp32, *fp32, *fp32, fp64, i32", PURR_STATUS_PACKAGE,
       "parameter 3 of kernel add_kernel has 4 bytes, but argument 3 ('3', fp64) needs 8 there"},
      {"*fp32, *fp32, *fp32, fp32", PURR_STATUS_PACKAGE, "has 3 parameters behind its 4 arguments; known are up to 2"},
      {"*fp32, *fp32, *fp32, fp32, i32, i64, i64, i64", PURR_STATUS_PACKAGE,
       "has 7 parameters, but argument 7 ('7', i64) would be another one"},
      {"*fp32, *fp32, *fp32, fp32, i32, i64, i64", PURR_STATUS_OK, ""}, /* nobody can tell from a pointer */
      {"*fp32, *fp32, *fp32, fp32, i32, tensordesc<fp16[8, 8]>", PURR_STATUS_PACKAGE, "would be another one"},
      {"", PURR_STATUS_PACKAGE, "has 7 parameters behind its 0 arguments"},
      {"*fp32, , *fp32", PURR_STATUS_INVALID_ARGUMENT, "argument 1 of the signature is \" \""},
      {"*fp32, string", PURR_STATUS_INVALID_ARGUMENT, "argument 1 of the signature is \" string\""},
      {"*fp32:x", PURR_STATUS_INVALID_ARGUMENT, "argument 0 of the signature is \"*fp32:x\""},
      {"*fp32:0", PURR_STATUS_INVALID_ARGUMENT, "argument 0"},
      {"=*fp32", PURR_STATUS_INVALID_ARGUMENT, "argument 0"},
      {"a=", PURR_STATUS_INVALID_ARGUMENT, "argument 0"},
      {"a=*fp32, a=*fp32", PURR_STATUS_INVALID_ARGUMENT, "two arguments of the signature are called 'a'"},
      {"tensordesc<fp16[0]>", PURR_STATUS_INVALID_ARGUMENT, "argument 0"},
      {"tensordesc<fp16[1,2,3,4,5,6]>", PURR_STATUS_INVALID_ARGUMENT, "argument 0"},
      {"tensordesc<fp16[64", PURR_STATUS_INVALID_ARGUMENT, "argument 0"},
      {"tensordesc<fp17[64]>", PURR_STATUS_INVALID_ARGUMENT, "argument 0"},
      {"constexpr", PURR_STATUS_INVALID_ARGUMENT, "argument 0"},
  };
  const file_t json = read_file(DATA "3.6.0/add/add_kernel.json"), cubin = read_file(DATA "3.6.0/add/add_kernel.cubin");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    check(cases[i].signature, open_pair(json.data, json.bytes, &cubin, cases[i].signature), cases[i].status,
          cases[i].text);
  char long_signature[2048] = "i32";
  for (int i = 0; i < 300; i++) strcat(long_signature, ", i32");
  check("300 arguments", open_pair(json.data, json.bytes, &cubin, long_signature), PURR_STATUS_INVALID_ARGUMENT,
        "allowed are 256");
  const file_t product = read_file(DATA "3.6.0/matmul/matmul_kernel.json");
  const file_t image = read_file(DATA "3.6.0/matmul/matmul_kernel.cubin");
  const char *two = "tensordesc<fp16[64, 64]>, tensordesc<fp16[64, 64]>, i32";
  check("two descriptors", open_pair(product.data, product.bytes, &image, two), PURR_STATUS_INVALID_ARGUMENT,
        "the signature has 2 tensor descriptors, but the kernel was compiled with 3");
  const char *flat = "tensordesc<fp16[64]>, tensordesc<fp16[64]>, tensordesc<fp16[64]>, i32, i32, i32";
  check("flat descriptors", open_pair(product.data, product.bytes, &image, flat), PURR_STATUS_INVALID_ARGUMENT,
        "the kernel's descriptor has 2 dimensions");
  /* Files of two kernels. */
  check("another's image", open_pair(json.data, json.bytes, &image, NULL), PURR_STATUS_MISSING_KERNEL,
        "has no kernel named add_kernel");
  const file_t scratch = read_file(DATA "3.6.0/copy/copy_kernel.json");
  char *text = edited(&scratch, "\"name\": \"copy_kernel\"", "\"name\": \"add_kernel\"");
  const file_t old = read_file(DATA "3.2.0/add/add_kernel.cubin");
  check("scratch for a kernel that takes none", open_pair(text, strlen(text), &old, "*fp32, *fp32, *fp32, fp32, i32"),
        PURR_STATUS_PACKAGE, "wants 256 bytes of scratch memory a block, but has no parameter for it");
  free(text);
  free(json.data), free(cubin.data), free(product.data), free(image.data), free(scratch.data), free(old.data);
}

/* ---- damage ---- */

static void damaged_files(void) {
  const file_t json = read_file(DATA "3.6.0/matmul/matmul_kernel.json");
  const file_t cubin = read_file(DATA "3.6.0/matmul/matmul_kernel.cubin");
  for (uint64_t length = 0; length < json.bytes - 2; length++)
    CU_ASSERT_NOT_EQUAL(open_pair(json.data, length, &cubin, NULL), PURR_STATUS_OK);
  for (uint64_t length = 0; length < cubin.bytes; length += 61) {
    file_t cut = {malloc(length + 1), length}; /* so that the sanitizer sees what is read behind it */
    memcpy(cut.data, cubin.data, length);
    CU_ASSERT_NOT_EQUAL(open_pair(json.data, json.bytes, &cut, NULL), PURR_STATUS_OK);
    free(cut.data);
  }
  uint32_t random = 1;
  for (int i = 0; i < 4000; i++) {
    file_t bad = {malloc(cubin.bytes), cubin.bytes};
    memcpy(bad.data, cubin.data, cubin.bytes);
    for (int k = 0; k < 3; k++) {
      random = random * 1664525 + 1013904223;
      bad.data[(random >> 8) % bad.bytes] = (unsigned char)(random >> 3);
    }
    (void)open_pair(json.data, json.bytes, &bad, NULL);
    free(bad.data);
  }
  free(json.data), free(cubin.data);
}

/* ---- manifests ---- */

static purr_status_t open_package_kernel(const char *path, const char *name) {
  const purr_kernel_desc_t desc = {.struct_size = sizeof desc, .path = path, .name = name};
  purr_kernel_t *kernel = NULL;
  err = (purr_error_t)PURR_ERROR_INIT;
  const purr_status_t status = purr_kernel_open(context, &desc, &kernel, &err);
  purr_kernel_destroy(kernel);
  return status;
}

static void refused_manifests(void) {
  static const struct {
    const char *old, *new;
    purr_status_t status;
    const char *text;
  } cases[] = {
      {"\"format\": 2", "\"format\": 1", PURR_STATUS_PACKAGE, "the key \"triton\" needs format 2"},
      {"\"name\": \"scale\"", "\"name\": \"x_ptr\"", PURR_STATUS_PACKAGE, "two arguments have the one name x_ptr"},
      {"\"name\": \"scale\"", "\"name\": \"sc\\u0000\"", PURR_STATUS_PACKAGE, "the name of an argument is"},
      {"\"type\": \"fp32\"", "\"type\": \"fp33\"", PURR_STATUS_PACKAGE, "type is \"fp33\"; allowed are Triton's words"},
      {"\"type\": \"fp32\"", "\"type\": \"fp64\"", PURR_STATUS_PACKAGE,
       "has 4 bytes, but argument 3 ('scale', fp64) needs"},
      {"\"type\": \"fp32\"", "\"type\": \"constexpr\"", PURR_STATUS_PACKAGE, "scale is a constexpr without a constant"},
      {"\"type\": \"fp32\"", "\"type\": \"fp32\", \"constant\": []", PURR_STATUS_PACKAGE, "constant is an array"},
      {"\"type\": \"fp32\"", "\"type\": \"fp32\", \"descriptor\": {}", PURR_STATUS_PACKAGE, "\"swizzle\" is missing"},
      {"\"divisible_by\": 16", "\"divisible_by\": 0", PURR_STATUS_PACKAGE, "divisible_by is 0"},
      {"\"divisible_by\": 16", "\"divisible\": 16", PURR_STATUS_PACKAGE, "the key \"divisible\" is unknown"},
      {"\"version\": \"3.6.0\"", "\"version\": \"3.1.0\"", PURR_STATUS_PACKAGE,
       "version is \"3.1.0\"; allowed is for example \"3.6.0\", from 3.2 on"},
      {"\"element_type\": 6", "\"element_type\": 0", PURR_STATUS_PACKAGE,
       "the descriptor of argument a_desc: element_type is 0 (u8), but element_bytes is 2; allowed with it is 1"},
      {"\"element_type\": 6", "\"element_type\": 10", PURR_STATUS_PACKAGE,
       "argument a_desc is \"tensordesc<fp16[64, 64]>\", but its descriptor has elements of type 10 (bf16)"},
      {"\"swizzle\": 3", "\"swizzle\": 2", PURR_STATUS_PACKAGE,
       "block has 128 bytes in its last dimension (64 elements of 2), but swizzle is 2; allowed with it are 64"},
      {"\"fp4_padded\": false", "\"fp4_padded\": true", PURR_STATUS_PACKAGE, "but fp4_padded is true"},
      {"\"version\": \"3.6.0\"", "\"version\": \"three\"", PURR_STATUS_PACKAGE, "version is \"three\""},
      {"\"cooperative\": false,", "", PURR_STATUS_PACKAGE, "the key \"cooperative\" is missing"},
      {"\"scratch_align\": 1", "\"scratch_align\": 24", PURR_STATUS_PACKAGE, "allowed are powers of two"},
      {"\"scratch_bytes\": 0", "\"scratch_bytes\": -1", PURR_STATUS_PACKAGE, "scratch_bytes is -1"},
      {"cdiv(n, BLOCK)", "cdiv(m, BLOCK)", PURR_STATUS_PACKAGE, "'m' is no integer argument"},
      {"cdiv(n, BLOCK)", "system(n, 1)", PURR_STATUS_PACKAGE, "'system' is no function"},
      {"cdiv(n, BLOCK)", "cdiv(x_ptr, BLOCK)", PURR_STATUS_PACKAGE, "'x_ptr' is no integer argument"},
      {"cdiv(n, BLOCK)", "cdiv(n, scale)", PURR_STATUS_PACKAGE, "'scale' is no integer argument"},
      {"cdiv(n, BLOCK)", "n / 0", PURR_STATUS_PACKAGE, "it divides by 0"},
      {"cdiv(n, BLOCK)", "cdiv(n, BLOCK - 1024)", PURR_STATUS_PACKAGE, "it divides by 0"},
      {"cdiv(n, BLOCK)", "n % (n - n)", PURR_STATUS_PACKAGE, "it divides by 0"},
      {"cdiv(n, BLOCK)", "n / (n - 5)", PURR_STATUS_OK, ""}, /* for some n it does */
      {"\"cdiv(n, BLOCK)\",", "", PURR_STATUS_PACKAGE, "grid has 2 entries; it needs 3"},
      {"\"cdiv(n, BLOCK)\",", "\"cdiv(n, BLOCK)\", \"1\",", PURR_STATUS_PACKAGE, "grid has more than 3 entries"},
      {"\"cdiv(n, BLOCK)\",", "1,", PURR_STATUS_PACKAGE, "a side of the grid is a number"},
      {"\"role\": \"triton\"", "\"role\": \"gate_up\"", PURR_STATUS_PACKAGE,
       "has the key \"triton\" and role \"gate_up\"; kernels of Triton's have role \"triton\""},
      {"\"role\": \"triton\"", "\"role\": \"something\"", PURR_STATUS_PACKAGE, "and role \"something\""},
      {"\"cluster\": [\n      1,", "\"cluster\": [\n      2,", PURR_STATUS_PACKAGE,
       "is to run in clusters of 2 x 1 x 1 blocks, but is not compiled for clusters"},
      {"\"threads\": 128", "\"threads\": 64", PURR_STATUS_PACKAGE, "but the manifest says 64"},
      {"\"params_bytes\": 48", "\"params_bytes\": 40", PURR_STATUS_PACKAGE,
       "bytes of parameters, but the manifest says"},
      {"\"arch\": \"sm_80\"", "\"arch\": \"sm_90a\"", PURR_STATUS_INCOMPATIBLE_BINARY, "but the manifest says sm_90a"},
      {"\"entry\": \"add_kernel\"", "\"entry\": \"other\"", PURR_STATUS_MISSING_KERNEL, "has no kernel named other"},
      {"\"file\": \"add", "\"file\": \"../add", PURR_STATUS_PACKAGE, "a name within the package, without folders"},
      {"\"name\": \"y_ptr\"", "\"name\": \"z_ptr\"", PURR_STATUS_PACKAGE,
       "argument 1 of kernel add_kernel is called 'z_ptr' in "},
  };
  test_folder_t folder = test_folder_make();
  char command[1024];
  snprintf(command, sizeof command, "cp '%s3.6.0/package/'* '%s'", DATA, folder.path);
  CU_ASSERT_EQUAL_FATAL(system(command), 0);
  const file_t manifest = read_file(DATA "3.6.0/package/manifest.json");
  check("as it is", open_package_kernel(folder.path, "add_kernel"), PURR_STATUS_OK, "");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char *text = edited(&manifest, cases[i].old, cases[i].new);
    test_folder_write_text(&folder, "manifest.json", text);
    check(cases[i].new, open_package_kernel(folder.path, "add_kernel"), cases[i].status, cases[i].text);
    free(text);
  }
  /* Any piece of it, and nothing is kept open or lost: the sanitizers look. */
  for (uint64_t length = 0; length < manifest.bytes - 2; length += 37) {
    test_folder_write(&folder, "manifest.json", manifest.data, length);
    CU_ASSERT_NOT_EQUAL(open_package_kernel(folder.path, "add_kernel"), PURR_STATUS_OK);
  }
  free(manifest.data);
  test_folder_remove(&folder);
}

/* ---- folders ---- */

static void folders_and_links(void) {
  test_folder_t folder = test_folder_make();
  const file_t json = read_file(DATA "3.6.0/add/add_kernel.json"), cubin = read_file(DATA "3.6.0/add/add_kernel.cubin");
  check("an empty folder", open_package_kernel(folder.path, NULL), PURR_STATUS_PACKAGE, "is neither a package");
  test_folder_write(&folder, "add_kernel.json", json.data, json.bytes);
  check("no image", open_package_kernel(test_folder_path(&folder, "add_kernel.json"), NULL), PURR_STATUS_PACKAGE,
        "could not be opened");
  test_folder_write_text(&folder, "__grp__a.json", "{\"child_paths\": {}}");
  check("no image in the folder", open_package_kernel(folder.path, NULL), PURR_STATUS_PACKAGE,
        "has add_kernel.json, but no add_kernel.cubin beside it");
  check("no image of that name", open_package_kernel(folder.path, "add_kernel"), PURR_STATUS_PACKAGE,
        "has add_kernel.json, but no add_kernel.cubin beside it");
  check("no such name", open_package_kernel(folder.path, "sub"), PURR_STATUS_PACKAGE,
        "it has no sub.json with sub.cubin beside it");
  test_folder_write(&folder, "add_kernel.cubin", cubin.data, cubin.bytes);
  test_folder_write_text(&folder, "__grp__add_kernel.json", "{\"child_paths\": {}}");
  check("the folder", open_package_kernel(folder.path, NULL), PURR_STATUS_OK, "");
  check("the name", open_package_kernel(folder.path, "add_kernel"), PURR_STATUS_OK, "");
  check("the file", open_package_kernel(test_folder_path(&folder, "add_kernel.json"), NULL), PURR_STATUS_OK, "");
  check("another name", open_package_kernel(test_folder_path(&folder, "add_kernel.json"), "sub"),
        PURR_STATUS_MISSING_KERNEL, "is of kernel 'add_kernel', not of 'sub'");
  test_folder_write(&folder, "two.json", json.data, json.bytes);
  test_folder_write(&folder, "two.cubin", cubin.data, cubin.bytes);
  check("two kernels", open_package_kernel(folder.path, NULL), PURR_STATUS_INVALID_ARGUMENT, "has 2 kernels");
  check("one of them", open_package_kernel(folder.path, "two"), PURR_STATUS_OK, "");
  char link_path[512];
  snprintf(link_path, sizeof link_path, "%s", test_folder_path(&folder, "three.cubin"));
  CU_ASSERT_EQUAL(symlink("two.cubin", link_path), 0);
  test_folder_write(&folder, "three.json", json.data, json.bytes);
  check("a link", open_package_kernel(folder.path, "three"), PURR_STATUS_PACKAGE, "is a link");
  check("nothing", open_package_kernel("/nowhere/at/all", NULL), PURR_STATUS_IO, "is not there");
  check("a device", open_package_kernel("/dev/null", NULL), PURR_STATUS_PACKAGE, "");
  free(json.data), free(cubin.data);
  test_folder_remove(&folder);
}

int main(void) {
  if (purr_context_create(NULL, &context, NULL) != PURR_STATUS_OK) return 1;
  const int code = purr_test_main("Triton's files", (purr_test_t[]){{"refused metadata", refused_metadata},
                                                                    {"refused descriptors", refused_descriptors},
                                                                    {"refused signatures", refused_signatures},
                                                                    {"damaged files", damaged_files},
                                                                    {"refused manifests", refused_manifests},
                                                                    {"folders and links", folders_and_links},
                                                                    {0}});
  purr_context_destroy(context);
  return code;
}

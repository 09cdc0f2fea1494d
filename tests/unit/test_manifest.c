/* The manifest reader: what it takes, and one sentence for everything it refuses. */
#include "package/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/main.h"

static purr_context_t *context;

#define DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define KERNEL                                                                                               \
  "{\"entry\": \"purr_gate_up\", \"role\": \"gate_up\", \"threads\": 256, \"shared_bytes\": 196608, "        \
  "\"cluster\": [2, 1, 1], \"tile\": [128, 256], \"params_version\": 3, \"params_bytes\": 560, \"shapes\": " \
  "[\"hidden_size % 8\", \"num_experts <= 512\"]}"
#define IMAGE "{\"file\": \"a.cubin\", \"arch\": \"sm_90a\", \"sha256\": \"" DIGEST "\", \"kernels\": [" KERNEL "]}"
#define MANIFEST(images) "{\"format\": 1, \"name\": \"test\", \"producer\": \"purr 0.1.0\", \"images\": [" images "]}"

static void good_manifest(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr__manifest_t m;
  const char *text = MANIFEST(IMAGE);
  REQUIRE_OK(purr__manifest_parse(context, text, strlen(text), "m", &m, &err));
  CU_ASSERT_STRING_EQUAL(m.name, "test");
  CU_ASSERT_STRING_EQUAL(m.producer, "purr 0.1.0");
  CU_ASSERT_EQUAL(m.num_images, 1);
  CU_ASSERT_EQUAL(m.num_kernels, 1);
  CU_ASSERT_STRING_EQUAL(m.images[0].file, "a.cubin");
  CU_ASSERT_STRING_EQUAL(PURR__ARCH_TEXT(m.images[0].arch), "sm_90a");
  CU_ASSERT_EQUAL(m.images[0].sha256[0], 0x01);
  CU_ASSERT_EQUAL(m.images[0].sha256[31], 0xef);
  const purr__manifest_kernel_t *kernel = &m.kernels[0];
  CU_ASSERT_STRING_EQUAL(kernel->entry, "purr_gate_up");
  CU_ASSERT_STRING_EQUAL(kernel->role, "gate_up");
  CU_ASSERT(kernel->image_idx == 0 && kernel->threads == 256 && kernel->shared_bytes == 196608);
  CU_ASSERT(kernel->cluster[0] == 2 && kernel->cluster[2] == 1 && kernel->tile[1] == 256);
  CU_ASSERT(kernel->params_version == 3 && kernel->params_bytes == 560 && kernel->num_rules == 2);
  unsigned char digest[PURR__SHA256_BYTES];
  purr__sha256(text, strlen(text), digest);
  CU_ASSERT_EQUAL(memcmp(digest, m.sha256, sizeof digest), 0);

  purr__shape_t shape = {{0}};
  shape.dims[PURR__DIM_HIDDEN_SIZE] = 4096;
  shape.dims[PURR__DIM_NUM_EXPERTS] = 512;
  CU_ASSERT_PTR_NULL(purr__shape_broken_rule(kernel, &shape));
  shape.dims[PURR__DIM_NUM_EXPERTS] = 513;
  CU_ASSERT_PTR_EQUAL(purr__shape_broken_rule(kernel, &shape), &kernel->rules[1]);
  shape.dims[PURR__DIM_HIDDEN_SIZE] = 4100;
  CU_ASSERT_PTR_EQUAL(purr__shape_broken_rule(kernel, &shape), &kernel->rules[0]);
  purr__manifest_free(context, &m);
  const char *empty = MANIFEST("");
  ASSERT_OK(purr__manifest_parse(context, empty, strlen(empty), "m", &m, &err));
  purr__manifest_free(context, &m);
}

static void rules(void) {
  static const char *const good[] = {"hidden_size % 8", "max_tokens <= 4096", "top_k >= 1", "num_ranks <= 1"};
  static const char *const bad[] = {"hidden_size",
                                    "hidden_size % 0",
                                    "hidden_size %8",
                                    "hidden % 8",
                                    "top_k == 1",
                                    "top_k <= -1",
                                    "top_k <= 1.5",
                                    "top_k <= 9223372036854775808",
                                    "",
                                    " % 8"};
  purr__shape_rule_t rule;
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) CU_ASSERT(purr__shape_rule_parse(good[i], &rule));
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) CU_ASSERT_FALSE(purr__shape_rule_parse(bad[i], &rule));
}

typedef struct refused {
  purr_status_t status;
  const char *from, *to; /* replaced once in the good manifest; from NULL = the whole text */
  const char *says;
} refused_t;

static void refused_manifests(void) {
  static const refused_t cases[] = {
      {PURR_STATUS_PACKAGE, NULL, "", "the text ends where a value must come"},
      {PURR_STATUS_PACKAGE, NULL, "[]", "the manifest is an array; allowed is an object"},
      {PURR_STATUS_PACKAGE, NULL, "{}", "the first key of a manifest must be \"format\""},
      {PURR_STATUS_PACKAGE, NULL, "{\"name\": \"x\"}", "the first key of a manifest must be \"format\""},
      {PURR_STATUS_INCOMPATIBLE_BINARY, "\"format\": 1", "\"format\": 3, \"news\": {}", "m has format 3, but libpurr "},
      {PURR_STATUS_PACKAGE, "\"format\": 1", "\"format\": 0", "format is 0; allowed are whole numbers from 1"},
      {PURR_STATUS_PACKAGE, "\"name\": \"test\", ", "", "the key \"name\" is missing"},
      {PURR_STATUS_PACKAGE, "\"name\": \"test\"", "\"name\": \"test\", \"name\": \"test\"", "\"name\" is repeated"},
      {PURR_STATUS_PACKAGE, "\"name\": \"test\"", "\"name\": \"test\", \"n\\u0061me\": \"test\"",
       "\"name\" is repeated"},
      {PURR_STATUS_PACKAGE, "\"name\"", "\"nome\"", "m:1:15: the key \"nome\" is unknown"},
      {PURR_STATUS_PACKAGE, "0.1.0", "0.1.0-12-gabc-dirty", "unrecorded sources"},
      {PURR_STATUS_PACKAGE, "a.cubin", "../a.cubin",
       "file (a name within the package, without folders) is \"../a.cubin\""},
      {PURR_STATUS_PACKAGE, "a.cubin", "/etc/passwd", "without folders"},
      {PURR_STATUS_PACKAGE, "a.cubin", "..", "without folders"},
      {PURR_STATUS_PACKAGE, "a.cubin", "", "without folders"},
      {PURR_STATUS_PACKAGE, "a.cubin", "a\\u0000b", "without folders"},
      {PURR_STATUS_PACKAGE, "sm_90a", "compute_90", "arch is \"compute_90\"; allowed is for example \"sm_90a\""},
      {PURR_STATUS_PACKAGE, "0123456789abcdef", "0123456789ABCDEF", "64 lower-case hexadecimal digits"},
      {PURR_STATUS_PACKAGE, "0123456789abcdef", "0123", "64 lower-case hexadecimal digits"},
      {PURR_STATUS_PACKAGE, "\"threads\": 256", "\"threads\": 2048",
       "threads is 2048; allowed are whole numbers from 1 to 1024"},
      {PURR_STATUS_PACKAGE, "\"threads\": 256", "\"threads\": 256.0", "threads is 256.0"},
      {PURR_STATUS_PACKAGE, "\"threads\": 256", "\"threads\": \"256\"", "threads is a string"},
      {PURR_STATUS_PACKAGE, "\"threads\": 256, ", "", "the key \"threads\" is missing"},
      {PURR_STATUS_PACKAGE, "196608", "4294967296", "shared_bytes is 4294967296"},
      {PURR_STATUS_PACKAGE, "196608", "232449",
       "m: purr_gate_up wants 232449 bytes of dynamic shared memory; a block has at most 232448 on devices that run "
       "sm_90a "
       "images"},
      {PURR_STATUS_PACKAGE, "sm_90a", "sm_80", "a block has at most 166912 on devices that run sm_80 images"},
      {PURR_STATUS_PACKAGE, "sm_90a", "sm_120f", "a block has at most 101376 on devices that run sm_120f images"},
      {PURR_STATUS_PACKAGE, "\"threads\": 256", "\"threads\": 0", "threads is 0; allowed are whole numbers from 1"},
      {PURR_STATUS_PACKAGE, "[2, 1, 1]", "[2, 1]", "cluster has 2 entries; it needs 3"},
      {PURR_STATUS_PACKAGE, "[2, 1, 1]", "[8, 4, 1]", "the cluster of purr_gate_up has 32 blocks; allowed are 16"},
      {PURR_STATUS_PACKAGE, "\"purr_gate_up\"", "\"\"", "entry is \"\""},
      {PURR_STATUS_PACKAGE, "\"purr_gate_up\"", "\"a b\"", "entry is \"a b\""},
      {PURR_STATUS_PACKAGE, "hidden_size % 8", "hidden_size is 8", "is no rule about a shape"},
      {PURR_STATUS_PACKAGE, KERNEL, KERNEL ", " KERNEL, "m: two kernels for sm_90a have the one name purr_gate_up"},
      {PURR_STATUS_PACKAGE, IMAGE, IMAGE ", " IMAGE, "m: the file a.cubin stands in two images"},
      {PURR_STATUS_PACKAGE, KERNEL, "1", "a kernel is a number; allowed is an object"},
      {PURR_STATUS_PACKAGE, IMAGE, "null", "an image is null; allowed is an object"},
      {PURR_STATUS_PACKAGE, "]}]}]}", "]}]}]} {}", "the end of the text"},
      {PURR_STATUS_PACKAGE, "]}]}]}", "]}]}]", "the text ends where"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[4096];
    const char *good = MANIFEST(IMAGE);
    if (cases[i].from == NULL) {
      snprintf(text, sizeof text, "%s", cases[i].to);
    } else {
      const char *at = strstr(good, cases[i].from);
      CU_ASSERT_PTR_NOT_NULL_FATAL(at);
      snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, cases[i].to, at + strlen(cases[i].from));
    }
    purr_error_t err = PURR_ERROR_INIT;
    purr__manifest_t m;
    purr_status_t status = purr__manifest_parse(context, text, strlen(text), "m", &m, &err);
    bool is_right = status == cases[i].status && strstr(err.message, cases[i].says) != NULL;
    if (!is_right)
      fprintf(stderr, "case %zu: %s '%s' does not say '%s'\n", i, purr_status_name(status), err.message, cases[i].says);
    CU_ASSERT(is_right);
    CU_ASSERT(m.kernels == NULL && m.images == NULL);
  }
}

static void too_much(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr__manifest_t m;
  uint64_t bytes = PURR__MANIFEST_MAX_BYTES + 1;
  char *text = malloc(bytes);
  memset(text, ' ', bytes);
  ASSERT_STATUS(PURR_STATUS_PACKAGE, purr__manifest_parse(context, text, bytes, "m", &m, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "m has 4194305 bytes; allowed are 4194304"));
  int length = sprintf(text, "{\"format\": 1, \"images\": [");
  for (int i = 0; i <= PURR__MANIFEST_MAX_IMAGES; i++)
    length += sprintf(text + length,
                      "%s{\"file\": \"f%d\", \"arch\": \"sm_80\", \"kernels\": [], \"sha256\": \"" DIGEST "\"}",
                      i > 0 ? "," : "", i);
  ASSERT_STATUS(PURR_STATUS_PACKAGE, purr__manifest_parse(context, text, (uint64_t)length, "m", &m, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "more than 1024 images"));
  free(text);
}

/* Every prefix and every changed byte: an answer, and nothing kept on failure. */
static void damaged_manifests(void) {
  const char *good = MANIFEST(IMAGE);
  uint64_t length = strlen(good);
  purr_counters_t before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
  purr_context_query_counters(context, &before, NULL);
  for (uint64_t i = 0; i < 9 * length; i++) {
    char *text = malloc(length);
    purr__manifest_t m;
    memcpy(text, good, length);
    static const char values[] = "\0\"\\{}[],";
    uint64_t bytes = i < length ? i : length;
    if (i >= length) text[i % length] = values[i / length - 1];
    if (purr__manifest_parse(context, text, bytes, "m", &m, NULL) == PURR_STATUS_OK) purr__manifest_free(context, &m);
    free(text);
  }
  purr_context_query_counters(context, &after, NULL);
  CU_ASSERT_EQUAL(before.host_bytes, after.host_bytes);
}

int main(void) {
  if (purr_context_create(NULL, &context, NULL) != PURR_STATUS_OK) return 1;
  int failures = purr_test_main("manifest", (purr_test_t[]){{"a good manifest", good_manifest},
                                                            {"rules about shapes", rules},
                                                            {"S11, S15: refused manifests", refused_manifests},
                                                            {"too much", too_much},
                                                            {"damaged manifests", damaged_manifests},
                                                            {0}});
  purr_context_destroy(context);
  return failures;
}

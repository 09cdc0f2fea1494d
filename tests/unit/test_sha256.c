/* SHA-256 against the vectors of FIPS 180-4 and every length around a block. */
#include "package/sha256.h"

#include <stdlib.h>
#include <string.h>

#include "support/main.h"

static void assert_digest(const void *data, uint64_t bytes, const char *expected) {
  unsigned char digest[PURR__SHA256_BYTES];
  char text[PURR__SHA256_TEXT_BYTES];
  purr__sha256(data, bytes, digest);
  purr__sha256_print(digest, text);
  CU_ASSERT_STRING_EQUAL(text, expected);
}

static void known_vectors(void) {
  assert_digest("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  assert_digest("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  assert_digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  char *million = malloc(1000000);
  memset(million, 'a', 1000000);
  assert_digest(million, 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  free(million);
}

/* The digest of the digests of all lengths from 0 to 200, as another implementation gives it. */
static void every_length_around_a_block(void) {
  unsigned char text[200], digests[201 * PURR__SHA256_BYTES];
  for (int i = 0; i < 200; i++) text[i] = (unsigned char)i;
  for (uint64_t i = 0; i <= 200; i++) purr__sha256(text, i, digests + i * PURR__SHA256_BYTES);
  assert_digest(digests, sizeof digests, "64ef7c229fce2408b5336b6a542fea0e078c3a87d2da85cb3fc52e2008b65021");
}

int main(void) {
  return purr_test_main("sha256", (purr_test_t[]){{"known vectors", known_vectors},
                                                  {"every length around a block", every_length_around_a_block},
                                                  {0}});
}

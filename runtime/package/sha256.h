/* SHA-256 (FIPS 180-4), for telling whether a file is the one that a manifest names. */
#ifndef PURR_SHA256_H
#define PURR_SHA256_H

#include <stdint.h>

#define PURR__SHA256_BYTES 32
#define PURR__SHA256_TEXT_BYTES 65 /* hexadecimal, with the final NUL */

void purr__sha256(const void *data, uint64_t bytes, unsigned char digest[PURR__SHA256_BYTES]);
/* Lower case. */
void purr__sha256_print(const unsigned char digest[PURR__SHA256_BYTES], char text[PURR__SHA256_TEXT_BYTES]);

#endif

/* The safetensors header: eight bytes of length, little endian, then JSON that names each tensor's type, shape and
 * place in the data behind it. Nothing in it is believed: what parse accepts can be read without another look. */
#ifndef PURR_SAFETENSORS_H
#define PURR_SAFETENSORS_H

#include "checkpoint/directory.h"

/* The format allows 100 MB; the largest headers of real shards have 2 MB, and those of all shards of Kimi-K2 20 MB.
 * With these limits no checkpoint, however hostile, makes the reader use more than 100 MB. */
#define PURR__MAX_HEADER_BYTES (16u << 20)  /* of one file */
#define PURR__MAX_HEADERS_BYTES (32u << 20) /* of all shards together */

/* Reads a header and adds its tensors to `table`, unsorted; their begin and num_bytes then lie inside the file. Touches
 * nothing but `data`.
 * @param data, num_bytes  the beginning of the file, at least the whole header if the file has it.
 * @param file_bytes       size of the file.
 * @param file             its name, for messages; `file_idx` goes into the entries.
 * @param headers_bytes    header bytes read so far, added to.
 * Refused: a header that is too long, not JSON or of another form; repeated or missing fields; unknown types; sizes
 * that overflow or do not agree; data outside the file, overlapping, or belonging to no tensor; bytes behind the data.
 */
purr_status_t purr__safetensors_parse(purr__directory_t *table, const char *data, uint64_t num_bytes,
                                      uint64_t file_bytes, const char *file, int32_t file_idx, uint64_t *headers_bytes,
                                      purr_error_t *err);

/* How the format spells a type ("BF16", "F8_E4M3"), "unknown" for others. */
const char *purr__safetensors_dtype_name(int32_t dtype);

#endif

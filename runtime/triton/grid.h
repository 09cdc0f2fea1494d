/* The grid rule of a manifest: whole numbers from a small language.
 *
 *   sum     = product {("+" | "-") product}         "a + b", "a - b"
 *   product = unary {("*" | "/" | "%") unary}       "/" rounds down
 *   unary   = ["-"] value
 *   value   = number | name | "(" sum ")" | ("cdiv" | "min" | "max") "(" sum "," sum ")"
 *
 * Names are those of integer arguments and constants. cdiv rounds up. */
#ifndef PURR_TRITON_GRID_H
#define PURR_TRITON_GRID_H

#include "base/base.h"

/* The value of a name; false where it has none. */
typedef bool (*purr__grid_lookup_fn)(const void *user, const char *name, uint64_t length, int64_t *out_value);

/* Evaluates a rule. Without `lookup` names count as 1 and only the form is checked.
 * @param why  [capacity] gets half a sentence about what is wrong.
 * Returns whether the value is there. */
bool purr__grid_evaluate(const char *rule, purr__grid_lookup_fn lookup, const void *user, int64_t *out_value, char *why,
                         uint64_t capacity);

#endif

#!/bin/sh
# Prints the layout of every public struct and the value of every public constant, as layout.def holds them:
#   write_layout.sh CC PURR_H
# The names are read out of the preprocessed header; the numbers are the compiler's.
set -eu
cc=$1
header=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

{
  echo '#include "purr.h"'
  echo '#include <stdio.h>'
  echo 'int main(void) {'
  # One declaration a line, then: struct fields are "type name;", "type name[n];" or "type (*name)(...);".
  "$cc" -E -P "$header" | tr '\n' ' ' | sed 's/\([;{]\)/\1\n/g; s/}/\n}/g' | awk '
    /typedef struct purr_[a-z0-9_]+ *\{$/ { inside = "struct"; num = 0; next }
    /enum *\{$/ { inside = "enum"; next }
    inside == "struct" && /^}/ {
      name = $0; sub(/^} */, "", name); sub(/ *;.*/, "", name)
      printf "printf(\"PURR_STRUCT(%s, %%zu)\\n\", sizeof(%s));\n", name, name
      for (i = 0; i < num; i++)
        printf "printf(\"PURR_FIELD(%s, %s, %%zu, %%zu)\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n", name, field[i], name, field[i], name, field[i]
      inside = ""
      next
    }
    inside == "struct" && /;/ {
      text = $0
      if (match(text, /\(\*[a-z0-9_]+\)/)) text = substr(text, RSTART + 2, RLENGTH - 3)
      else { sub(/ *;.*/, "", text); sub(/\[.*/, "", text); sub(/.*[ *]/, "", text) }
      field[num++] = text
      next
    }
    inside == "enum" && /^}/ { inside = ""; next }
    inside == "enum" {
      n = split($0, item, ",")
      for (i = 1; i <= n; i++)
        if (match(item[i], /PURR_[A-Z0-9_]+/)) {
          name = substr(item[i], RSTART, RLENGTH)
          printf "printf(\"PURR_CONSTANT(%s, %%d)\\n\", (int)%s);\n", name, name
        }
    }'
  echo 'return 0; }'
} >"$work/print.c"

"$cc" -std=c17 -I"$(dirname "$header")" "$work/print.c" -o "$work/print"
cat <<'HEAD'
/* The layout of every public struct and the value of every public constant, on 64-bit Linux: the frozen part of the ABI.
 * Written by `cmake --build build/release --target renew_abi`. Numbers that were part of a release never change; a struct
 * may grow at its end. */
HEAD
"$work/print"

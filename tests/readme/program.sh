#!/bin/sh
# The C program in the README compiles against the installed tree without a warning and prints the ```text block that
# follows it:  program.sh CC PREFIX README WORK
set -eu
cc=$1 prefix=$2 readme=$3 work=$4
rm -rf "$work"
mkdir -p "$work"
awk -v work="$work" '
  /^```/ && file { close(file); file = ""; next }
  /^```c$/ { file = work "/program.c"; found = 1; next }
  /^```text$/ && found == 1 { file = work "/expected"; found = 2; next }
  file { print >file }' "$readme"
library=$(dirname "$(find "$prefix" -name libpurr.so)")
"$cc" -std=c17 -Wall -Wextra -Werror -I"$prefix/include" "$work/program.c" -L"$library" -lpurr -Wl,-rpath,"$library" \
  -o "$work/program"
cd "$(dirname "$readme")"
"$work/program" >"$work/printed"
diff -u "$work/expected" "$work/printed"

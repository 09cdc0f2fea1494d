#!/bin/sh
# The installed header is good C99 and C++17, alone in a file, with every warning on:  header.sh CC CXX PREFIX WORK
set -eu
cc=$1 cxx=$2 prefix=$3 work=$4
here=$(dirname "$0")
rm -rf "$work"
mkdir -p "$work"
echo '#include <purr.h>' >"$work/alone.c"
warnings="-Wall -Wextra -pedantic-errors -Werror"
for standard in c99 c11 c17; do
  "$cc" -std=$standard $warnings -Wstrict-prototypes -fsyntax-only -I"$prefix/include" "$work/alone.c"
done
[ -n "$cxx" ] || { echo "skipped: there is no C++ compiler"; exit 77; }
cp "$here/consumer.c" "$work/consumer.cpp"
for standard in c++11 c++17; do
  "$cxx" -std=$standard $warnings -fsyntax-only -I"$prefix/include" "$work/consumer.cpp"
done
library=$(dirname "$(find "$prefix" -name libpurr.so)")
"$cxx" -std=c++17 $warnings -I"$prefix/include" "$work/consumer.cpp" -L"$library" -lpurr -Wl,-rpath,"$library" -o "$work/consumer"
"$work/consumer"

#!/bin/sh
# The same sources give the same bytes, in whatever folder they lie and are built:
#   reproducible.sh CMAKE CC BUILD_TYPE SOURCE LIBPURR_SO PURR WORK
set -eu
cmake=$1 cc=$2 build_type=$3 source=$4 library=$5 program=$6 work=$7
rm -rf "$work"
mkdir -p "$work/a copy of the sources"
cd "$source"
cp -R CMakeLists.txt LICENSE runtime kernels configs "$work/a copy of the sources"
"$cmake" -S "$work/a copy of the sources" -B "$work/another build" -DCMAKE_C_COMPILER="$cc" \
  -DCMAKE_BUILD_TYPE="$build_type" -DPURR_BUILD_TESTS=OFF -DPURR_BUILD_KERNELS=OFF >/dev/null
"$cmake" --build "$work/another build" -j 2 >/dev/null
cmp "$library" "$work/another build/runtime/$(basename "$library")"
cmp "$program" "$work/another build/purr"
rm -rf "$work"

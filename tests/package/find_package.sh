#!/bin/sh
# A CMake project finds the installed tree, and is told when it wants another version:
#   find_package.sh CMAKE CC PREFIX WORK VERSION
set -eu
cmake=$1 cc=$2 prefix=$3 work=$4 version=$5
project=$(dirname "$0")/find_package
rm -rf "$work"
configure() { "$cmake" -S "$project" -B "$work/$1" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix" -DWANTED_VERSION="$2"; }
configure good "$version"
"$cmake" --build "$work/good"
"$work/good/consumer" | grep -x "libpurr $version, 128 experts"
major=${version%%.*}
if configure newer "$((major + 1)).0" >/dev/null 2>&1; then
  echo "find_package(purr $((major + 1)).0) took version $version" >&2
  exit 1
fi

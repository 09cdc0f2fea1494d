#!/bin/sh
# layout.def names every struct, field and constant of the header, and nothing else:  check_layout.sh CC PURR_H
set -eu
here=$(dirname "$0")
now=$(mktemp)
trap 'rm -f "$now"' EXIT
"$here/write_layout.sh" "$1" "$2" >"$now"
if ! diff -u "$here/layout.def" "$now"; then
  echo "purr.h and tests/abi/layout.def differ (above: - frozen, + now). If the change is meant and compatible:" >&2
  echo "  cmake --build build/release --target renew_abi" >&2
  exit 1
fi

#!/bin/sh
# The library against the ABI that was last committed:  check_baseline.sh LIBPURR_SO PURR_H
set -eu
command -v abidiff >/dev/null || { echo "skipped: abigail-tools is not installed"; exit 77; }
here=$(dirname "$0")
now=$(mktemp)
trap 'rm -f "$now"' EXIT
"$here/write_baseline.sh" "$1" "$2" "$now"
result=0
abidiff "$here/libpurr.abi" "$now" || result=$?
[ $result = 0 ] && exit 0
if [ $((result & 8)) != 0 ]; then
  echo "The ABI changed incompatibly: programs built against the last one would break." >&2
else
  echo "The ABI changed (abidiff: $result)." >&2
fi
echo "If the change is meant and compatible: cmake --build build/release --target renew_abi" >&2
exit 1

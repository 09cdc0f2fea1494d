#!/bin/sh
# Describes the ABI of the library for abidiff:  write_baseline.sh LIBPURR_SO PURR_H OUT.abi
set -eu
abidw --exported-interfaces-only --header-file "$2" --drop-private-types --type-id-style hash \
  --no-corpus-path --no-comp-dir-path --no-show-locs --out-file "$3" "$1"

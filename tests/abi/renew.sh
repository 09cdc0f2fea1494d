#!/bin/sh
# Writes layout.def and libpurr.abi anew, after an intended change of the interface:  renew.sh CC LIBPURR_SO PURR_H
set -eu
here=$(dirname "$0")
"$here/write_layout.sh" "$1" "$3" >"$here/layout.def.new"
mv "$here/layout.def.new" "$here/layout.def"
"$here/write_baseline.sh" "$2" "$3" "$here/libpurr.abi"

#!/bin/sh
# The library needs libc alone, has its major version as SONAME, and exports what purr.h declares and libpurr.map lists:
#   check_symbols.sh CC LIBPURR_SO PURR_H LIBPURR_MAP MAJOR
set -eu
cc=$1 library=$2 header=$3 map=$4 major=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
  echo "$*" >&2
  failed=1
}

needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for name in $needed; do
  case $name in
    libc.so.6 | libm.so.6 | libpthread.so.0 | ld-linux*.so.*) ;;
    *) fail "libpurr.so needs $name; allowed are libc, libm, libpthread and the loader" ;;
  esac
done
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[ "$soname" = "libpurr.so.$major" ] || fail "the SONAME is '$soname', expected libpurr.so.$major"
if readelf -d "$library" | grep -E 'R(UN)?PATH|TEXTREL'; then fail "the library has a run path or text relocations"; fi
if readelf -lW "$library" | grep -E 'GNU_STACK.*RWE'; then fail "the library asks for an executable stack"; fi

nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$work/exported"
sed -n 's/^ *\(purr_[a-z0-9_]*\);.*/\1/p' "$map" | sort >"$work/listed"
"$cc" -E -P -DPURR_API=@ "$header" | tr '\n' ' ' | grep -o '@[^(;]*(' | sed 's/ *($//; s/.*[ *]//' | sort >"$work/declared"
[ -s "$work/declared" ] || fail "no function was found in $header"
for list in listed declared; do
  if ! diff "$work/exported" "$work/$list" >"$work/difference"; then
    fail "exported (<) and $list (>) symbols differ:"
    cat "$work/difference" >&2
  fi
done
[ $failed = 0 ] && echo "$(wc -l <"$work/exported") exported symbols; needs" $needed
exit $failed

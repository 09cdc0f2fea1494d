#!/bin/sh
# The archives that CPack makes: the .tar.gz runs where it is unpacked, the .deb depends on libc6 alone:
#   archives.sh CPACK BUILD WORK
set -eu
cpack=$1 build=$2 work=$3
rm -rf "$work"
mkdir -p "$work/tar" "$work/deb"
generators="TGZ;DEB"
for tool in dpkg-shlibdeps dpkg-deb file; do # what CPack makes a .deb with
  command -v $tool >/dev/null || { generators=TGZ; missing=$tool; }
done
(cd "$build" && "$cpack" -G "$generators" -B "$work/packages" >/dev/null)
tar -xzf "$work"/packages/purr-*.tar.gz -C "$work/tar" --strip-components=1
"$work/tar/bin/purr" --help >/dev/null
[ "$generators" = "TGZ;DEB" ] || { echo "skipped: there is no $missing, the .deb was not made"; exit 77; }

deb=$(echo "$work"/packages/*.deb)
depends=$(dpkg-deb -f "$deb" Depends)
echo "$deb: depends on $depends"
echo "$depends" | grep -qxE 'libc6 \(>= [0-9.]+\)' || { echo "expected libc6 alone" >&2; exit 1; }
dpkg-deb -x "$deb" "$work/deb"
"$work/deb/usr/bin/purr" --help >/dev/null
[ -s "$work/deb/usr/include/purr.h" ]

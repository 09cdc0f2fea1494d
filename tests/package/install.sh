#!/bin/sh
# Installs what was built, afresh, and looks for every file that belongs there:  install.sh CMAKE BUILD PREFIX
set -eu
cmake=$1 build=$2 prefix=$3
rm -rf "$prefix"
"$cmake" --install "$build" --prefix "$prefix" >/dev/null
cd "$prefix"
library=$(dirname "$(find . -name 'libpurr.so')")
failed=0
for file in bin/purr include/purr.h include/purr_status.def "$library/libpurr.so" "$library/pkgconfig/purr.pc" \
  "$library/cmake/purr/purrConfig.cmake" "$library/cmake/purr/purrConfigVersion.cmake" \
  share/purr/configs/schema.yaml share/purr/configs/qwen3_30b.yaml share/doc/purr/LICENSE \
  share/doc/purr/LICENSE.libyaml; do
  [ -s "$file" ] || { echo "$file is missing or empty" >&2; failed=1; }
done
# Nothing else by accident: no tests, no internal headers, no archive, no bad configs.
stray=$(find . -type f -o -type l | sort | grep -vxE \
  -e '\./bin/purr|\./include/purr(\.h|_status\.def)|\./share/doc/purr/LICENSE(\.libyaml)?' \
  -e '\./lib.*/(libpurr\.so[.0-9]*|pkgconfig/purr\.pc|cmake/purr/[A-Za-z-]+\.cmake)' \
  -e '\./lib.*/purr/packages/purr/(manifest\.json|[a-z0-9_]+\.sm_[0-9a-z]+\.cubin)' \
  -e '\./share/purr/configs/(bench/)?[a-z0-9_]+\.yaml' || true)
[ -z "$stray" ] || { echo "these files do not belong into an installed tree:" $stray >&2; failed=1; }
if grep -rl -e "$build" -e "$prefix" .; then
  echo "these files name the folder they were built or installed in" >&2
  failed=1
fi
exit $failed

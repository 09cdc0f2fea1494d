#!/bin/sh
# The sessions in the README (```console, commands behind "$ ") still look as shown. Times, sizes and bars differ from
# machine to machine: numbers with their units, bars and the width of columns are left out of the comparison.
#   sessions.sh PURR README WORK
set -eu
purr=$1 readme=$2 work=$3
rm -rf "$work"
mkdir -p "$work/bin"
ln -s "$purr" "$work/bin/purr"
PATH=$work/bin:$PATH
export PATH LC_ALL=C.UTF-8
awk -v work="$work" '
  /^```console$/ { inside = 1; next }
  /^```/ { inside = 0; next }
  !inside { next }
  /^\$ / { number++; print substr($0, 3) >(work "/" number ".command"); file = work "/" number ".shown"; printf "" >file; next }
  number { print >file }' "$readme"

simplify() {
  perl -CSD -Mutf8 -pe 's/[█▉▊▋▌▍▎▏#]+/ /g;
    s/(?<![\w.])-?\d+(\.\d+)?(e[-+]?\d+)?( ?(ns|us|µs|ms|s|B|KiB|MiB|GiB))?(?!\w)/N/g;
    s/[-─]{3,}/---/g; s/\s+/ /g; s/ $/\n/; s/\n*$/\n/' "$1"
}

cd "$(dirname "$readme")"
failed=0
for command in "$work"/*.command; do
  [ -e "$command" ] || { echo "the README shows no session" >&2; exit 1; }
  base=${command%.command}
  sh "$command" >"$base.printed" 2>&1 || echo "(exit code $?)"
  simplify "$base.shown" >"$base.expected"
  simplify "$base.printed" >"$base.got"
  if ! diff -u "$base.expected" "$base.got"; then
    echo "README: this command prints something else than is shown there: $(cat "$command")" >&2
    failed=1
  fi
done
exit $failed

#!/bin/sh
# The table of cases in tests/README.md has each case once, and each test that it names is there and carries the number:
#   cases.sh TESTS
set -eu
cd "$1"
failed=0
fail() { echo "$*" >&2; failed=1; }

cases=""
for number in 01 03 05 07 09 11 13 15 17 19 21 23 25 27 29 31 33 35 37 39 41 43 45 47 49 51 53 55 57 59 61 63; do
  cases="$cases B$number"
done
for number in 01 03 05 07 09 11 13 15 17 19; do cases="$cases S$number"; done

for case in $cases; do
  [ "$(grep -c "^| $case |" README.md)" = 1 ] || fail "README.md has $(grep -c "^| $case |" README.md) rows for $case, expected 1"
  row=$(grep "^| $case |" README.md || true)
  tests=$(printf '%s\n' "$row" | grep -oE '`[a-z_]+/[a-z0-9_]+\.c`' | tr -d '`' || true)
  case $row in *later:*) ;; *) [ -n "$tests" ] || fail "README.md names neither a test nor a later part for $case" ;; esac
  for test in $tests; do
    if [ ! -f "$test" ]; then
      fail "README.md names $test for $case, which is not there"
    elif ! grep -qE "\b$case\b|\b$(echo "$case" | tr BS bs)_" "$test"; then
      fail "README.md names $test for $case, which does not mention it"
    fi
  done
done
for listed in $(sed -n 's/^| \([BS][0-9][0-9]\) |.*/\1/p' README.md); do
  case " $cases " in *" $listed "*) ;; *) fail "README.md lists $listed, which is no case" ;; esac
done
exit $failed

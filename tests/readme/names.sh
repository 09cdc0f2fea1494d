#!/bin/sh
# Links, file names, config keys, presets and environment variables of the README exist, and none is left out:
#   names.sh SOURCE
set -eu
cd "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() { echo "$*" >&2; failed=1; }

# Markdown links to files, and whatever in back quotes begins like a path of this repository.
for name in $(grep -oE '\]\([^)#]+' README.md | sed 's/^](//' | grep -v '^https\?:') \
  $(grep -oE '`(runtime|kernels|ptx|configs|bindings|tests|\.ci)/[^` ]*`' README.md | tr -d '`'); do
  [ -e "$name" ] || fail "README.md names $name, which is not there"
done
for heading in $(grep -oE '\]\(#[^)]+' README.md | sed 's/^](#//'); do
  sed -n 's/^#\+ //p' README.md | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9\n-' | grep -qx -e "$heading" ||
    fail "README.md links to #$heading, which is no heading"
done

# The map of folders leaves out no part of the library.
for folder in runtime/*/ runtime/backends/*/ tests/*/; do
  [ "$folder" = runtime/backends/ ] || grep -q "\`$folder\`" README.md || fail "README.md does not say what $folder is for"
done

# The table of config keys and the commented schema.
sed -n '/^## The layer config/,/^## /s/^| `\([a-z0-9_.]*\)`.*/\1/p' README.md | sort >"$work/readme"
awk -F: '/^[a-z0-9_]+:/ { block = $1; if ($2 != "") print $1 } /^  [a-z0-9_]+:/ { sub(/^ +/, "", $1); print block "." $1 }' \
  configs/schema.yaml | sort >"$work/schema"
diff "$work/readme" "$work/schema" || fail "config keys in README.md (<) and configs/schema.yaml (>) differ"

# Environment variables that the code reads.
for name in $(grep -rhoE '"(PURR_[A-Z_]+|NO_COLOR)"' runtime --include='*.c' | tr -d '"' | sort -u); do
  grep -q "^| \`$name\`" README.md || fail "README.md does not list the environment variable $name"
done
for name in $(sed -n 's/^| `\([A-Z_]*\)`.*/\1/p' README.md); do
  grep -rqE "\"$name\"" runtime --include='*.c' || fail "README.md lists the environment variable $name, which nothing reads"
done

for preset in $(grep -oE -e '--preset [a-z0-9]+' README.md | sed 's/--preset //' | sort -u); do
  grep -q "\"name\": \"$preset\"" CMakePresets.json || fail "README.md names the preset $preset, which is not there"
done
exit $failed

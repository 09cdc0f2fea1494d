#!/bin/sh
# The installed tree works from another folder: the program finds its library and reads the configs beside it:
#   moved.sh PREFIX WORK
set -eu
prefix=$1 work=$2
rm -rf "$work"
mkdir -p "$work"
cp -a "$prefix" "$work/elsewhere"
cd "$work/elsewhere"
ldd bin/purr | grep -q "$work/elsewhere/.*libpurr.so" || { echo "the program takes another libpurr.so:" >&2; ldd bin/purr >&2; exit 1; }
bin/purr --help >/dev/null
for config in share/purr/configs/*.yaml; do
  case $config in */schema.yaml) continue ;; esac
  bin/purr plan "$config" >/dev/null || { echo "purr plan $config failed" >&2; exit 1; }
done

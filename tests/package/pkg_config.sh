#!/bin/sh
# A plain compiler call with what pkg-config says:  pkg_config.sh CC PREFIX WORK VERSION
set -eu
cc=$1 prefix=$2 work=$3 version=$4
command -v pkg-config >/dev/null || { echo "skipped: pkg-config is not installed"; exit 77; }
here=$(dirname "$0")
rm -rf "$work"
mkdir -p "$work"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name purr.pc)")
export PKG_CONFIG_PATH
[ "$(pkg-config --modversion purr)" = "$version" ]
"$cc" -Wall -Wextra -Werror "$here/consumer.c" $(pkg-config --cflags --libs purr) -o "$work/consumer"
LD_LIBRARY_PATH=$(pkg-config --variable=libdir purr) "$work/consumer" | grep -x "libpurr $version, 128 experts"

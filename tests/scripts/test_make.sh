#!/usr/bin/env bash
# The Makefile in a made-up tree: an object is built again when what it embeds, the flags or the
# version are others, and only then. And which packages install-deps.sh takes for missing.
set -u
cd "$(dirname "$0")/../.." || exit 1
checkout=$PWD folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset MAKEFLAGS MAKELEVEL CFLAGS CONFIG VERSION
mkdir -p "$folder/base" "$folder/gpu_worker" "$folder/tests/model" "$folder/proto" "$folder/build/release/proto"
cp Makefile "$folder"
cd "$folder" || exit 1
for source in base/log gpu_worker/probe_heads tests/model/test_blocks; do echo "extern int a;" >$source.c; done
echo '#include "base/fault.h"' >base/file.c
touch base/fault.h gpu_worker/probe_text.txt tests/model/quant_blocks.bin proto/hill.proto
touch -d '1 minute ago' ./*/*.* tests/model/*
touch build/release/proto/hill.pb-c.{c,h} # newer than hill.proto: nothing to translate
failed=0
# --- what install-deps.sh takes for missing, of a dpkg whose records are made up
mkdir dpkg dpkg/updates dpkg/info
record() { # PACKAGE STATUS ARCHITECTURE
    printf 'Package: %s\nStatus: %s\nMaintainer: x\nArchitecture: %s\nMulti-Arch: same\nVersion: 1\nDescription: x\n\n' "$@" >>dpkg/status
}
record gcc "install ok half-installed" amd64
record make "hold ok installed" amd64
record git "install ok installed" amd64
record jq "deinstall ok config-files" amd64
record jq "install ok installed" i386
record curl "install reinstreq installed" amd64
record procps "install ok unpacked" amd64
missing=$(DPKG_ADMINDIR=$PWD/dpkg "$checkout/scripts/install-deps.sh" --check)
for package in gcc curl procps pkg-config; do
    [[ " $missing " = *" $package "* ]] || { echo "FAILED: $package is not missing: $missing" && failed=1; }
done
for package in make git jq; do
    [[ " $missing " != *" $package "* ]] || { echo "FAILED: $package is missing: $missing" && failed=1; }
done

# --- make
objects=(base/{log,file}.o gpu_worker/probe_heads.o tests/model/test_blocks.o)
builds() { # DESCRIPTION WANTED ARGUMENTS...
    local got
    got=$(make "${@:3}" 2>&1 | sed -n 's/^  CC *//p' | sort | paste -sd' ')
    [ "$got" = "$2" ] || { echo "FAILED: $1: builds '$got', wanted '$2'" && failed=1; }
}
release=("${objects[@]/#/build/release/}")
all="base/file.c base/log.c gpu_worker/probe_heads.c tests/model/test_blocks.c"
builds "at first" "$all" "${release[@]}"
builds "at once again" "" "${release[@]}"
touch gpu_worker/probe_text.txt
builds "a text" "gpu_worker/probe_heads.c" "${release[@]}"
touch tests/model/quant_blocks.bin
builds "blocks" "tests/model/test_blocks.c" "${release[@]}"
builds "a version" "$all" VERSION=9 "${release[@]}"
builds "that version again" "" VERSION=9 "${release[@]}"
builds "flags" "$all" VERSION=9 CFLAGS=-g3 "${release[@]}"
builds "the old ones" "$all" "${release[@]}"
# its own objects are those with faults; it takes the others from the release build
builds "a FAULTS build" "base/file.c" CONFIG=faults build/release/base/log.o build/faults/base/file.o
builds "release after it" "" "${release[@]}"
builds "a FAULTS build of another version" "base/file.c base/log.c" CONFIG=faults VERSION=9 build/release/base/log.o build/faults/base/file.o
# of the environment: a make that is called by another one has them twice
cat >>Makefile <<'MAKE'
outer: build/release/base/log.o ; @$(MAKE) inner
inner: build/release/base/log.o build/release/base/file.o
MAKE
export CFLAGS="-g3 -O0"
builds "a make within a make" "base/file.c base/log.c" outer
exit $failed

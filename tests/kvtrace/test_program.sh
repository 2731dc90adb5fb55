#!/bin/sh
# test_program.sh - hill-kvtrace as a person runs it: help, misuse, damaged and foreign files.
set -u
cd "$(dirname "$0")/../.." || exit 1
program=$PWD/build/bin/hill-kvtrace
# shellcheck source=../program.sh
. tests/program.sh

expect 0 'hill-kvtrace run.kvt' --help
# what it says of the live scorer is what that does
part=$(sed -n 's/^#define PLACEMENT_COPIES_PART \([0-9]*\)u$/\1/p' placement/placement.h)
expect 0 "default ${part:?}, as live" --help
expect 0 '^hill-kvtrace [0-9]' --version
expect 100 'no trace given' && one_line
expect 100 'hot: 0 is out of range' x --hot 0 && one_line
expect 100 'hot: 1.5 is out of range' x --hot 1.5 && one_line
expect 100 'gpu-slots' x --gpu-slots -1 && one_line
expect 100 'unknown option --frobnicate' x --frobnicate && one_line
expect 100 'importance-counts' x --svg y && one_line
expect 100 'takes one trace' x y --importance-counts && one_line
expect 100 "$work/none: No such file" "$work/none" && one_line
head -c 1000 /dev/zero >"$work/foreign"
expect 1 "$work/foreign.*no KV trace" "$work/foreign" && one_line
: >"$work/empty"
expect 1 "$work/empty.*trace" "$work/empty" && one_line
expect 1 "no regular file" "$work" && one_line
exit "$failed"

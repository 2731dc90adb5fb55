#!/bin/sh
# test_program.sh - hill-fsck-pool as a person runs it: help, misuse, foreign files.
set -u
cd "$(dirname "$0")/../.." || exit 1
program=$PWD/build/bin/hill-fsck-pool
# shellcheck source=../program.sh
. tests/program.sh

expect 0 'hill-fsck-pool' --help
expect 0 '^hill-fsck-pool [0-9]' --version
expect 100 "which pool" && one_line
expect 100 'unknown option --frobnicate' x --frobnicate && one_line
expect 100 "unexpected argument 'y'" x y && one_line
expect 100 "$work/none.*No such file" "$work/none" && one_line
expect 100 "$work' is a folder" "$work" && one_line
head -c 10000 /dev/zero >"$work/foreign"
expect 1 "$work/foreign.*no cold pool" "$work/foreign" && one_line
exec 9<"$work/foreign"
flock -x 9
expect 100 'is in use' "$work/foreign" && one_line
exec 9<&-
exit "$failed"

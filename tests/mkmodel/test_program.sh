#!/bin/sh
# tests/mkmodel/test_program.sh - hill-mkmodel as a person meets it: help, one line for misuse, exit codes.
set -u
program=build/bin/hill-mkmodel
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failed=0

expect() { # what condition...
    what=$1; shift
    "$@" || { echo "FAIL: $what"; failed=1; }
}
lines() { # file count
    [ "$(wc -l <"$1")" -eq "$2" ]
}

$program --help >"$folder/out" 2>"$folder/err"
expect "--help exits 0" [ $? -eq 0 ]
expect "--help shows an example on stdout" grep -q '^example: hill-mkmodel' "$folder/out"
expect "--help leaves stderr empty" lines "$folder/err" 0

for misuse in "" "-o $folder/x --layers none" "-o $folder/x --frobnicate" "-o $folder/x --heads 4" "-o $folder/x y"; do
    # shellcheck disable=SC2086 # the words of the command line
    $program $misuse >"$folder/out" 2>"$folder/err"
    expect "'$misuse' exits 100" [ $? -eq 100 ]
    expect "'$misuse' gives one line" lines "$folder/err" 1
    expect "'$misuse' points to --help" grep -q 'try --help' "$folder/err"
    expect "'$misuse' writes nothing" [ ! -e "$folder/x" ]
done

$program -o /dev/full >"$folder/out" 2>"$folder/err"
expect "a full device exits 111" [ $? -eq 111 ]
expect "a full device gives one line" lines "$folder/err" 1
expect "the device is still one" [ -c /dev/full ]

mkdir "$folder/small"
(ulimit -f 100; exec $program -o "$folder/small/x.gguf") >"$folder/out" 2>"$folder/err"
expect "a file size limit exits 111" [ $? -eq 111 ]
expect "a file size limit gives one line" lines "$folder/err" 1
expect "nothing is left behind" [ -z "$(ls -A "$folder/small")" ]

$program -o "$folder/small/x.gguf" --random >"$folder/out" 2>"$folder/err"
expect "a model is written" [ $? -eq 0 ]
expect "stdout stays empty" lines "$folder/out" 0
expect "only the model is there" [ "$(ls -A "$folder/small")" = x.gguf ]
exit $failed

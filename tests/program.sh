# tests/program.sh - what tests of a program's command line share; sourced from the top folder with $program set, not run.
#
# $work is a folder that is removed at the end; a test ends with `exit "$failed"`.
# shellcheck shell=sh disable=SC2034,SC2154
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# The program ends with that code, and a line of its output matches.
expect() { # code pattern arguments...
    code=$1 pattern=$2
    shift 2
    "$program" "$@" >"$work/out" 2>&1
    got=$?
    if [ "$got" -ne "$code" ] || ! grep -q -e "$pattern" "$work/out"; then
        echo "${program##*/} $*: exit $got (expected $code), expected '$pattern' in:"
        cat "$work/out"
        failed=1
    fi
}

# What it said last was one line.
one_line() {
    [ "$(wc -l <"$work/out")" -eq 1 ] || { echo "more than one line:"; cat "$work/out"; failed=1; }
}

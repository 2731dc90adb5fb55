#!/usr/bin/env bash
# tests/fuzz/sum over made-up runs in a repository of its own: CPU time judges, findings, code that has changed, older files.
# shellcheck source=../integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
command -v git >/dev/null || skip "no git"

tree=$work/tree
mkdir -p "$tree/tests/fuzz" "$tree/base"
cp tests/fuzz/sum "$tree/tests/fuzz"
in_tree() { git -C "$tree" -c user.name=x -c user.email=x@localhost -c commit.gpgsign=false "$@"; }
commit() { in_tree add . && in_tree commit -qm "$1" && in_tree rev-parse --short=12 HEAD; }
in_tree init -q || skip "git init"
for name in alone enough found; do echo "int $name;" >"$tree/tests/fuzz/fuzz_$name.c"; done
printf '#include "base/log.h"\n' >"$tree/tests/fuzz/fuzz_uses.c"
echo "int part;" >"$tree/base/log_more.c"
first=$(commit first)
run() { printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$@" >>"$work/runs"; }
# sum_says NAME: its line, in single spaces
sum_says() { "$tree/tests/fuzz/sum" "$work/runs" | grep "^$1 " | tr -s ' '; }

run enough 3600 1000.5 7 0 "$first"
run enough 3600 800 5 0 "$first"
run uses 1800 1800 9 0 "$first"
run alone 36000 1790 4 0 "$first"
run found 1800 1800 3 1 "$first"
run found 1800 1800 3 0 "$first-dirty"
run uses 1800 100 1 0 0123456789ab
expect "enough CPU" "$(sum_says enough)" "enough 30.0 120.0 12 0 met"
expect "many hours by the clock, of CPU too little" "$(sum_says alone)" "alone 29.8 600.0 4 0 MISSED by 1"
expect "a finding" "$(sum_says found)" "found 30.0 30.0 3 1 FOUND something (changed since earlier runs)"
expect "a commit that nobody knows" "$(sum_says uses)" "uses 30.0 30.0 9 0 met (changed since earlier runs)"
"$tree/tests/fuzz/sum" "$work/runs" >/dev/null
expect "not all: exit code" $? 1
"$tree/tests/fuzz/sum" "$work/runs" 20 | grep -q "^alone .* met$" || fail "20 minutes are met"
pass "another number of minutes"

echo "int part; // with a comment" >"$tree/base/log_more.c"
expect "only a comment has changed" "$(sum_says uses)" "uses 30.0 30.0 9 0 met (changed since earlier runs)"
echo "int part = 1;" >"$tree/base/log_more.c"
expect "a source that it stands on has changed" "$(sum_says uses)" "uses 0.0 0.0 0 0 never run (changed since earlier runs)"
expect "the others' runs still count" "$(sum_says enough)" "enough 30.0 120.0 12 0 met"
run uses 1900 1900 6 0 "$(commit second)"
expect "its runs since then" "$(sum_says uses)" "uses 31.7 31.7 6 0 met (changed since earlier runs)"

printf 'enough\t3600\t7\t0\t%s\n' "$first" >>"$work/runs"
"$tree/tests/fuzz/sum" "$work/runs" >"$work/out" 2>"$work/err"
expect "a line without CPU: exit code, lines" "$? $(wc -l <"$work/err") $(wc -c <"$work/out")" "100 1 0"
grep -q "line $(wc -l <"$work/runs")" "$work/err" || fail "it does not say which line: $(cat "$work/err")"
finish

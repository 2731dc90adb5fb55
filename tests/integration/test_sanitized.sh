#!/usr/bin/env bash
# The whole pipeline built with ASan (leaks too) and UBSan: the same hashes as the release build, and no report.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
export HILL_LOG_LEVEL=info
export LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:print_suppressions=0" UBSAN_OPTIONS=print_stacktrace=1
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=1"

"$bin/hill-mkmodel" -o "$work/model.gguf" || fail "mkmodel"
head -c 3000 "$text" >"$work/prompt"
run=(-m "$work/model.gguf" -c 4096 --budget 200 --beta 0.25 -f "$work/prompt" -n 24 --temp 0.7 -s 5)

run_json "$work/release" "${run[@]}" || fail "release: $(tail -n 3 "$work/release.err")"
wanted=$(field "$work/release" '"\(.selection_hash) \(.tokens | length)"')
sanitized=$PWD/build/asan+ubsan/bin
[ -x "$sanitized/hill-coordinator" ] || skip "$sanitized is not there (tests/run integration builds it)"
# with a beta of its own measuring, too: what is selected does not depend on it
HILL_BIN_DIR=$sanitized run_json "$work/sanitized" "${run[@]/#0.25/auto}" || fail "sanitized: $(tail -n 3 "$work/sanitized.err")"
expect "selection hash and tokens" "$(field "$work/sanitized" '"\(.selection_hash) \(.tokens | length)"')" "$wanted"
expect "nobody was started again" "$(field "$work/sanitized" '.restarts | add // 0')" 0
expect "reports" "$(grep -cE 'Sanitizer|runtime error' "$work/sanitized.err")" 0
expect_nothing_left
finish

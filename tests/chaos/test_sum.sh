#!/usr/bin/env bash
# tests/chaos/sum over made-up rounds: medians, percentiles, parts of a pause and the bar, worked out by hand; wrong files.
# shellcheck source=../integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"

# samples FILE WRONG SAMPLE...: a run of one setting
samples() {
    local file=$1 wrong=$2
    shift 2
    printf '%s\n' "$@" | jq -cs --argjson wrong "$wrong" '{model: "m", sequences: 1, commit: "c", seed: 1, rounds: length, requests: length,
        wrong: $wrong, failed: 0, leaks: 0, undisturbed_ms: 5, samples: .}' >>"$file"
}
sample() { # WORKER ACTION DETECTED STARTED READY PAUSES
    printf '{"worker":"%s","action":"%s","phase":"decode","detected_ms":%s,"started_ms":%s,"ready_ms":%s,"pauses_ms":[%s]}' "$@"
}
line() { grep -E "^m, 1 +$1 +$2 " "$work/table" | tr -s ' '; }

samples "$work/runs" 0 "$(sample gpu_worker kill 10 40 540 700)" "$(sample gpu_worker kill 20 40 1040 2100)" \
    "$(sample gpu_worker kill 30 90 590 600,2050)" "$(sample cpu_scorer kill 10 30 40 1999.4)" "$(sample csd_agent kill 1 2 3 2001)" \
    "$(sample cpu_scorer stop 1900 2400 2500 3800,2600)" "$(sample csd_agent stop 1900 2400 2500 3901)" \
    "$(sample coordinator stop null null 2500 2510)" "$(sample coordinator hang 5000 5200 5300 6999)" "$(sample coordinator kill 1 2 3 "")"
tests/chaos/sum "$work/runs" >"$work/table"
expect "exit code" $? 0
# rounds, detected: median, maximum; start, load, after; pauses: how many, median, 99th percentile, maximum; bar
expect "the GPU worker, less its load" "$(line gpu_worker kill)" "m, 1 gpu_worker kill decode 3 20 30 30 500 160 4 700 2100 2100 met less load"
expect "a kill below the bar" "$(line cpu_scorer kill)" "m, 1 cpu_scorer kill decode 1 10 10 20 10 1959 1 1999 1999 1999 met"
expect "a kill above it" "$(line csd_agent kill)" "m, 1 csd_agent kill decode 1 1 1 1 1 1998 1 2001 2001 2001 MISSED by 1"
expect "a stop, from its detection on" "$(line cpu_scorer stop)" "m, 1 cpu_scorer stop decode 1 1900 1900 500 100 100 2 2600 3800 3800 met"
expect "a stop that takes too long" "$(line csd_agent stop)" "m, 1 csd_agent stop decode 1 1900 1900 500 100 1401 1 3901 3901 3901 MISSED by 1"
expect "one that goes on by itself" "$(line coordinator stop)" "m, 1 coordinator stop decode 1 - - - - 10 1 2510 2510 2510 met"
expect "a hang" "$(line coordinator hang)" "m, 1 coordinator hang decode 1 5000 5000 200 100 1699 1 6999 6999 6999 met"
expect "no pause at all" "$(line coordinator kill)" "m, 1 coordinator kill decode 1 1 1 1 1 - 0 - - - -"
expect "lines that meet it" "$(grep '^the bar' "$work/table")" "the bar: met by 5 lines, missed by 2"
expect "rounds" "$(tail -n 1 "$work/table")" "10 rounds: 10 requests, 0 wrong, 0 failed, 0 leaks"

samples "$work/runs" 1 "$(sample cpu_scorer kill 10 30 40 100)"
tests/chaos/sum "$work/runs" >"$work/table"
expect "a wrong answer: exit code" $? 1
expect "over all settings" "$(grep -E '^all +cpu_scorer +kill' "$work/table" | tr -s ' ')" "all cpu_scorer kill decode 2 10 10 20 10 60 2 100 1999 1999 met"
for text in "" "no JSON" '{"model":"m","cells":[]}'; do
    echo "$text" >"$work/foreign"
    tests/chaos/sum "$work/foreign" >"$work/out" 2>"$work/err"
    expect "of '$text': exit code" "$? $(wc -l <"$work/err")" "100 1"
done
finish

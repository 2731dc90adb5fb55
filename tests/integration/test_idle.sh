#!/usr/bin/env bash
# An idle pipeline uses under 1 % of a core per process, also while others use all of them.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

"$bin/hill-mkmodel" -o "$work/model.gguf" || fail "mkmodel"
up -m "$work/model.gguf" -c 4096 || fail "up"
printf 'The pass key is 123. The pass key is' >"$work/prompt"
"$hillinfer" generate -f "$work/prompt" -n 8 --temp 0 --run-dir "$run_dir" >"$work/out" 2>"$work/err" || fail "generate: $(cat "$work/err")"

cpu_us() { awk '{ns += $1} END {print int(ns / 1000)}' "/proc/$1"/task/*/schedstat 2>/dev/null; } # of all threads
declare -A before names
wait_for 20 status_is '.running == null' || fail "the request does not end"
for pid in $(pgrep -f -- "--run-dir $run_dir"); do
    [ -r "/proc/$pid/stat" ] || continue
    names[$pid]=$(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -d' ' -f1)
    case ${names[$pid]} in */hill-*) before[$pid]=$(cpu_us "$pid") ;; esac
done
expect "processes" "${#before[@]}" 4
started=${EPOCHREALTIME/[.,]/}
sleep 4
for pid in "${!before[@]}"; do
    now=$(cpu_us "$pid") || { fail "${names[$pid]} has ended" && continue; }
    used=$((now - before[$pid]))
    allowed=$(((${EPOCHREALTIME/[.,]/} - started) / 100))
    if [ "$used" -lt "$allowed" ]; then
        pass "$(basename "${names[$pid]}"): $used of $allowed us"
    else
        fail "${names[$pid]}: $used us, $allowed are allowed"
    fi
done
down || fail "down"
expect_nothing_left
finish

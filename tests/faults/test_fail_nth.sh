#!/usr/bin/env bash
# The Nth allocation, write, read, push into a ring or OpenCL call of a process fails in the middle of a request, one by one:
# the request ends with the answer of an undisturbed run, or with one line that says why; nobody dies by a signal, and the
# next request is right. N is 1, 2, 4, 8 ... up to MOST (default 1), or FROM to TO of every process and kind, or of
# PROCESSES="gpu_worker ..." and KINDS="alloc ..."; where N is never reached, the kind is over. At SIGTERM it says how far it came.
HILL_BIN_DIR=$(cd "$(dirname "$0")/../.." && pwd)/build/faults/bin
export HILL_BIN_DIR
# shellcheck source=../integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"

for number in "${MOST:-1}" "${FROM:-1}" "${TO:-1}"; do
    case $number in '' | 0 | *[!0-9]*) echo "fail_nth: '$number' is not a number above 0" >&2 && exit 100 ;; esac
done
if [ -n "${FROM:-}${TO:-}" ]; then
    mapfile -t times < <(seq "${FROM:-1}" "${TO:-${FROM:-1}}")
else
    for ((n = 1; n <= ${MOST:-1}; n *= 2)); do times+=("$n"); done
fi
export HILL_FAULT_FILE=$work/fault
head -c 700 "$text" >"$work/prompt"
options=(-m "$PWD/models/hill-ref.gguf" -c 1024 --budget 64 --hot-mb 4 --cold-mb 16 --beta 0.25 -t 1 --csd-device 0)
ask=(-f "$work/prompt" -n 24 --temp 0 --ignore-eos --json)
answer() { jq -r '"\(.finish_reason) \(.tokens | join(" ")) \(.selection_hash) \(.logits_hash)"' "$1"; }
# OUTPUT. The program, not lib.sh's function: in that the trap of SIGTERM would say how far it came into OUTPUT.
request() { "$bin/hillctl" generate --run-dir "$run_dir" "${ask[@]}" >"$1" 2>"$1.err" </dev/null; }

# What the log says of deaths by a signal since line $1.
killed_since() {
    tail -n "+$1" "$state_dir/hillinfer.log" | grep -E 'killed by signal|signal [0-9]+' | grep -v 'signal 15' | head -n 2
}

# fail_once SPEC: 0 when it was reached. Nothing is said when all is right.
fail_once() {
    local spec=$1 code line reached=1
    line=$(($(wc -l <"$state_dir/hillinfer.log") + 1))
    echo "$spec" >"$HILL_FAULT_FILE.new"
    mv "$HILL_FAULT_FILE.new" "$HILL_FAULT_FILE"
    request "$work/out1"
    code=$?
    [ ! -e "$HILL_FAULT_FILE.fired" ] || reached=0
    rm -f "$HILL_FAULT_FILE"*
    if [ $code -eq 0 ]; then
        [ "$(answer "$work/out1")" = "$undisturbed" ] || fail "$spec: another answer: $(head -c 300 "$work/out1")"
        answered=$((answered + 1))
    else
        [ "$(wc -l <"$work/out1.err")" -eq 1 ] || fail "$spec: exit code $code, not one line: $(cat "$work/out1.err")"
        refused=$((refused + 1))
    fi
    [ $reached -eq 0 ] || return 1
    [ -z "$(killed_since "$line")" ] || fail "$spec: $(killed_since "$line")"
    wait_for 30 ready || { fail "$spec: it is not ready again: $(tail -n 2 "$state_dir/hillinfer.log")" && up "${options[@]}"; }
    request "$work/out2" || fail "$spec: the next request: $(tail -n 1 "$work/out2.err")"
    [ "$(answer "$work/out2")" = "$undisturbed" ] || fail "$spec: the next request answers otherwise: $(head -c 300 "$work/out2")"
    return 0
}

up "${options[@]}" || fail "up"
request "$work/plain" || fail "undisturbed: $(cat "$work/plain.err")"
undisturbed=$(answer "$work/plain")
answered=0 refused=0 tried=0 spec=-
trap 'echo "stopped at $spec: $tried calls, $failures checks failed" && exit 1' TERM
declare -A over=()
fired=()
for n in "${times[@]}"; do
    for process in ${PROCESSES:-gpu_worker cpu_scorer csd_agent coordinator}; do
        for kind in ${KINDS:-alloc write read push opencl}; do
            [ -z "${over[$process $kind]:-}" ] || continue
            tried=$((tried + 1)) spec=$process:$kind:fail:$n
            if fail_once "$spec"; then fired+=("$process:$kind"); else over[$process $kind]=$n; fi
        done
    done
done
trap - TERM
pass "$tried calls tried, ${#fired[@]} of them failed: $answered requests with their answer, $refused with a line"
# what a request reaches; neither scorer nor coordinator has a device; but for the agent a process reads only whether another is
# alive, after a wait of 100 ms, which a busy machine has and others do not
known="gpu_worker:alloc gpu_worker:write gpu_worker:push gpu_worker:opencl cpu_scorer:alloc cpu_scorer:push csd_agent:alloc \
csd_agent:write csd_agent:read csd_agent:push csd_agent:opencl coordinator:alloc coordinator:write"
[ -n "${FROM:-}${TO:-}${PROCESSES:-}${KINDS:-}" ] ||
    expect "calls that failed" "$(printf '%s\n' "${fired[@]}" | grep -vE '^(gpu_worker|cpu_scorer|coordinator):read$' |
        awk '!seen[$0]++' | paste -sd' ')" "$known"
down || fail "down"
expect_nothing_left
finish

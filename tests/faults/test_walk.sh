#!/usr/bin/env bash
# Every named point of the move protocol (base/fault.h), one by one: the process kills itself there in the middle of a
# request. The request ends with the tokens and hashes of an undisturbed run, and so does the next one; nothing is left.
# FAULT_POINTS="PROCESS:POINT ..." walks those alone; FAULT_ACTION=stop has them hang instead; FAULT_TIME=N kills at the Nth time.
HILL_BIN_DIR=$(cd "$(dirname "$0")/../.." && pwd)/build/faults/bin
export HILL_BIN_DIR
# shellcheck source=../integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"

action=${FAULT_ACTION:-kill}
export HILL_FAULT_FILE # where the processes look for a spec: set by each walk
head -c 700 "$text" >"$work/prompt"
requests_last 4
# moves do not depend on what a write was measured to cost, as those of bkp do
options=(-m "$PWD/models/hill-ref.gguf" -c 1024 --budget 64 --hot-mb 4 --cold-mb 16 --beta 0.5 -t 1 --placement lru)
ask=(-f "$work/prompt" -n 56 --temp 0 --ignore-eos --json)
ask_long=("${ask[@]/#56/300}")

answer() { jq -r '"\(.finish_reason) \(.tokens | join(" ")) \(.selection_hash) \(.logits_hash)"' "$1"; }

# What a point needs to be reached: a request, one that is saved, one that is restored, one whose drive is detached, or detached and
# attached, one that an agent's death takes into another epoch, a start, another epoch.
way_to() { # POINT
    case $1 in
    session.*) echo save ;;
    restore.*) echo restore ;;
    drain.*) echo detach ;;
    attach.*) echo attach ;;
    adopt.*) echo adopt ;;
    format.*) echo start ;;
    epoch.*) echo epoch ;;
    demote.pages) echo long ;; # slots of copies are written over when there are copies of half of what is cold
    *) echo ask ;;
    esac
}

# The time at which it dies: the third, or the first where there is but one in a request.
time_of() { # POINT
    case $1 in
    begin.* | log.* | adopt.* | attach.* | drain.* | prefill.* | session.* | restore.* | format.* | epoch.* | done.* | end.* | trim.* | directory.*) echo 1 ;;
    *) echo "${FAULT_TIME:-3}" ;;
    esac
}

set_spec() { # SPEC
    echo "$1" >"$HILL_FAULT_FILE.new"
    mv "$HILL_FAULT_FILE.new" "$HILL_FAULT_FILE"
}

# A request whose drive is detached while it decodes, a long one, since the machine has other work; afterwards the drive is back.
detached_meanwhile() {
    local asked code
    hillctl generate "${ask_long[@]}" &
    asked=$!
    wait_for 20 decoding 1 && hillctl detach >/dev/null 2>&1
    wait "$asked"
    code=$?
    wait_for 20 ready && hillctl attach >/dev/null 2>&1
    return $code
}

# The same, and the drive comes back while it decodes; of a coordinator that dies meanwhile it is asked for again.
attached_meanwhile() {
    local asked code
    hillctl generate "${ask_long[@]}" &
    asked=$!
    wait_for 20 decoding 1 && hillctl detach >/dev/null 2>&1
    hillctl attach >/dev/null 2>&1
    wait_for 30 ready && { status_is .csd_attached || hillctl attach >/dev/null 2>&1; }
    wait "$asked"
    code=$?
    wait_for 30 ready && status_is .csd_attached || code=1
    return $code
}

# A request that goes on in another epoch.
adopted_meanwhile() {
    local asked
    hillctl generate "${ask_long[@]}" &
    asked=$!
    wait_for 20 decoding 1 && kill_worker csd_agent
    wait "$asked"
}

# request WAY OUTPUT: in the foreground; 0 when it has answered
request() {
    case $1 in
    save) hillctl generate "${ask[@]}" --save "$own/saved" ;;
    restore) hillctl restore "$work/session" -n 12 --json ;;
    detach) detached_meanwhile ;;
    attach) attached_meanwhile ;;
    adopt) adopted_meanwhile ;;
    long) hillctl generate "${ask_long[@]}" ;;
    *) hillctl generate "${ask[@]}" ;;
    esac >"$2" 2>"$2.err" </dev/null
}

restarted_once() { status_is ".workers.$1.restarts == 1"; } # WORKER

# The running request's end, and what a point changes for the next one. One line says that it was tried.
try_point() { # PROCESS POINT
    local way spec expected=$undisturbed answered code
    spec=$1:$2:$action:$(time_of "$2")
    way=$(way_to "$2")
    [ "$way" != restore ] || expected=$restored
    case $way in long | detach | attach | adopt) expected=$long ;; esac
    [ "$way" = start ] || set_spec "$spec"
    if [ "$way" = epoch ]; then
        kill_worker cpu_scorer
        wait_for 20 test -e "$HILL_FAULT_FILE.fired"
        wait_for 30 ready || echo "FAILED: $spec: it is not ready again"
    fi
    request "$way" "$own/out1"
    code=$?
    [ $code -eq 0 ] || echo "FAILED: $spec: exit code $code: $(tail -n 1 "$own/out1.err")"
    answered=$(answer "$own/out1")
    [ "$answered" = "$expected" ] || echo "FAILED: $spec: another answer: $(cat "$own/out1")"
    wait_for 30 test -e "$HILL_FAULT_FILE.fired" || echo "FAILED: $spec: the point was not reached"
    rm -f "$HILL_FAULT_FILE"*
    [ "$1" = coordinator ] || wait_for 30 restarted_once "$1" || echo "FAILED: $spec: $1 was not restarted once"
    wait_for 30 ready || echo "FAILED: $spec: it is not ready again"
    request ask "$own/out2" || echo "FAILED: $spec: the next request: $(tail -n 1 "$own/out2.err")"
    [ "$(answer "$own/out2")" = "$undisturbed" ] || echo "FAILED: $spec: the next request answers otherwise"
    echo "tried: $spec"
}

# A pipeline of its own for a point of each process: a second death of the same worker would wait longer for its start.
try_group() { # PROCESS:POINT...
    local point first=$1 how=("${options[@]}")
    [ "$(way_to "${first#*:}")" != long ] || how=("${options[@]/#0.5/2}") # less of it is cold
    requests_last 4
    for point; do
        case $(way_to "${point#*:}") in
        detach | attach | adopt) requests_last 10 ;; # the drive, or its agent, goes in their middle
        esac
    done
    if [ "$(way_to "${first#*:}")" = start ]; then
        rm -rf "$state_dir"
        set_spec "$first:$action:1"
    fi
    up "${how[@]}" || return 1
    for point; do
        try_point "${point%%:*}" "${point#*:}"
    done
    down || echo "FAILED: $*: down"
}

# Groups (one a line) one after the other, in folders of their own.
walk() { # NAME
    own=$work/$1 run_dir=$work/$1/run state_dir=$work/$1/state HILL_FAULT_FILE=$work/$1/fault
    mkdir -p "$own"
    local group
    while read -ra group; do
        try_group "${group[@]}" || echo "FAILED: ${group[*]}: up: $(cat "$work/up.err")"
    done
    expect_nothing_left
    [ -z "$(find "$own" -name '*.saving')" ] || echo "FAILED: a half session is left"
}

# --- what an undisturbed run answers
HILL_FAULT_FILE=
run_json "$work/plain" "${options[@]}" "${ask[@]}" --session-save "$work/session" || fail "undisturbed: $(cat "$work/plain.err")"
undisturbed=$(answer "$work/plain")
run_json "$work/restored" "${options[@]}" --session-restore "$work/session" -n 12 || fail "restored: $(cat "$work/restored.err")"
restored=$(answer "$work/restored")
run_json "$work/long" "${options[@]}" "${ask_long[@]}" || fail "undisturbed, long: $(cat "$work/long.err")"
long=$(answer "$work/long")
expect "entries move down and up" "$(jq '.moves.demoted > 0 and .moves.promoted > 0' "$work/plain")" true

# --- all points: in a group the agent's first, since a start is one of its ways, and the coordinator's last
mapfile -t points < <("$bin/hill-coordinator" --list-faults | sed -n 's/^\([a-z_]\+:[a-z.]*\)\t.*/\1/p')
[ ${#points[@]} -gt 40 ] || fail "only ${#points[@]} points are listed"
[ -z "${FAULT_POINTS:-}" ] || read -ra points <<<"$FAULT_POINTS"
of() { printf '%s\n' "${points[@]}" | grep "^$1:"; }
paste -d' ' <(of csd_agent) <(of cpu_scorer) <(of gpu_worker) <(of coordinator) >"$work/groups"
walks=3 # at a time: most of a walk is waiting for a new process
pids=()
for ((w = 0; w < walks; w++)); do
    awk -v w=$w -v n=$walks 'NR % n == w' "$work/groups" | walk "walk$w" >"$work/walk$w.log" 2>&1 &
    pids+=($!)
done
for pid in "${pids[@]}"; do
    wait "$pid" || fail "a walk ended early: $?"
done
grep -hv '^tried: ' "$work"/walk?.log
failures=$((failures + $(cat "$work"/walk?.log | grep -c '^FAILED')))
expect "points that were tried ($action)" "$(cat "$work"/walk?.log | grep -c '^tried: ')" ${#points[@]}

# --- a session that is being restored goes on with what is placed, and so does one with a question: neither begins anew.
# Without a drive, so that a record is in its tier when the next one is taken
options=(-m "$PWD/models/hill-ref.gguf" -c 1024 --budget 64 --csd none -t 1)
own=$work/session_walk run_dir=$work/session_walk/run state_dir=$work/session_walk/state
mkdir -p "$own"
HILL_FAULT_FILE=$own/fault
question=(-p "What is a licence?" -n 12 --json)
run_json "$work/questioned" "${options[@]}" --session-restore "$work/session" "${question[@]}" || fail "a question: $(cat "$work/questioned.err")"
restored_anyway() { # WHAT TIME EXPECTED ARGUMENTS...: the scorer dies when it has placed that many records
    local what=$1 time=$2 expected=$3 spec
    spec=cpu_scorer:append.placed:kill:$time
    shift 3
    up "${options[@]}" || fail "up"
    set_spec "$spec"
    hillctl restore "$work/session" "$@" >"$own/out" 2>"$own/err" </dev/null || fail "$what: $(cat "$own/err")"
    [ -e "$HILL_FAULT_FILE.fired" ] || fail "$what: $spec was not reached"
    rm -f "$HILL_FAULT_FILE"*
    expect "$what: the answer" "$(answer "$own/out" | md5sum)" "$(answer "$expected" | md5sum)"
    expect "$what: goes on" "$(jq -c '.recovery | [.recoveries, .attempts]' "$own/out")" "[1,2]"
    down || fail "down"
}
restored_anyway "half restored" 3 "$work/restored" -n 12 --json
restored_anyway "half restored, with a question" 3 "$work/questioned" "${question[@]}"
restored_anyway "its question half read" 9 "$work/questioned" "${question[@]}"

# --- a session that is saved over itself: who dies behind the save leaves a file that cannot be restored as it was; it has the answer
requests_last 1
over_itself() { # WHAT FROM N SPEC [ARGUMENTS...]: of the pipeline; without a SPEC the answer and the file that are expected
    local what=$1 from=$2 n=$3 spec=$4
    shift 4
    rm -rf "$state_dir"
    cp "$from" "$own/over"
    up "${options[@]}" --hang-ms 1000 "$@" || fail "up"
    [ -z "$spec" ] || set_spec "$spec"
    hillctl restore "$own/over" -n "$n" --save "$own/over" --json >"$own/out" 2>"$own/err" </dev/null || fail "$what: $(cat "$own/err")"
    down || fail "down"
    jq -r '"\(.finish_reason) \(.tokens | join(" ")) \(.logits_hash)"' "$own/out" >"$own/ended"
    if [ -z "$spec" ]; then
        mv "$own/ended" "$own/ended.expected"
        mv "$own/over" "$own/over.expected"
        return
    fi
    [ -e "$HILL_FAULT_FILE.fired" ] || fail "$what: $spec was not reached"
    rm -f "$HILL_FAULT_FILE"*
    expect "$what: the answer" "$(md5sum <"$own/ended")" "$(md5sum <"$own/ended.expected")"
    cmp "$own/over" "$own/over.expected" || fail "$what: another file"
    expect "$what: files left" "$(find "$own" -name 'over.*' ! -name over.expected)" ""
}
over_itself "" "$work/session" 1 "" # one token: its step is not made again alone
over_itself "one token is saved" "$work/session" 1 gpu_worker:session.renamed:kill
over_itself "one token is saved, the coordinator dies" "$work/session" 1 coordinator:done.taken:kill
over_itself "one token, which nobody has" "$work/session" 1 coordinator:token.taken:stop
over_itself "" "$work/session" 12 ""
over_itself "its last step is made again" "$work/session" 12 gpu_worker:session.renamed:kill
over_itself "saved under a trace" "$work/session" 12 gpu_worker:session.renamed:kill --trace-kv "$own/kvt"
bin=$PWD/build/bin small_model "$work/small.gguf" # the fault build has no hill-mkmodel
options=(-m "$work/small.gguf" -c 1024 --csd none -t 1)
up "${options[@]}" || fail "up"
random=(-p "A short prompt." --temp 2 --json)
for seed in {1..20}; do
    hillctl generate "${random[@]}" -s "$seed" -n 900 >"$own/out" || fail "seed $seed"
    [ "$(jq -r .finish_reason "$own/out")" != stop ] || break
done
expect "one ends by itself" "$(jq -r .finish_reason "$own/out")" stop
hillctl generate "${random[@]}" -s "$seed" -n 1 --save "$own/first" >"$own/out" || fail "--save after one token"
down || fail "down"
over_itself "" "$own/first" 900 ""
over_itself "one that ends by itself is saved under a trace" "$own/first" 900 gpu_worker:session.renamed:kill --trace-kv "$own/kvt"

# --- other builds have none of it
nm build/bin/hill-coordinator | grep -q ' T main$' || fail "nm names no symbols: nothing is looked for"
expect "symbols in other builds" "$(nm "$PWD"/build/bin/hill-* 2>/dev/null | grep -cE ' (fault_|__wrap_)')" 0
finish

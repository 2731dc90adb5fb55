#!/usr/bin/env bash
# Processes and requests that do not end when asked are forced to, and the next request finds its place: a request that is not
# cancelled in time, one whose client was killed while its prompt was read, workers whose coordinator was killed, and a pipeline that
# gets a second signal.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 40
export HILL_TEST_CANCEL_MS=500 # 10 s otherwise

small_model "$work/model.gguf"
head -c 1500 "$text" >"$work/prompt"
head -c 8000 "$text" >"$work/long" # 15 s: three layers, in chunks of 64 tokens
options=(-m "$work/model.gguf" -c 8192 -b 64 -np 1 --alpha 0.1 --csd none --hang-ms 600000)
common=(--temp 0 --ignore-eos --run-dir "$run_dir")

ask() { "$bin/hillctl" generate -p 'This License' -n 8 "${common[@]}" --json >"$work/out" 2>"$work/err"; }
answer() { jq -r '"\(.tokens | join(" ")) \(.logits_hash)"' "$work/out"; }
asks_again() { # NAME: the next request is answered as ever, soon, and nothing of the one before is left
    local began=$EPOCHSECONDS
    ask || fail "$1: the next request: $(cat "$work/err")"
    expect "$1: the next answer" "$(answer)" "$undisturbed"
    expect "$1: the next answer comes at once" "$((EPOCHSECONDS - began < 10))" 1
    wait_for 10 as_before || fail "$1: descriptors, token logs: $(held), before: $before"
}
held() { # of the coordinator, when nothing runs
    echo "$(find "/proc/$(coordinator_pid)/fd" -mindepth 1 | wc -l) $(find "$state_dir/requests" -type f | wc -l)"
}
settled() { # the descriptor of the last client's connection is closed by another thread
    before=$(held)
    sleep 0.3
    as_before
}
as_before() { [ "$(held)" = "$before" ]; }
idle() { status_is '.requests_running + .requests_waiting == 0'; }
over() { ! kill -0 "$1" 2>/dev/null; } # PID
in_prompt() { status_is '.requests | length == 1 and .[0].prefill_tokens_done > 100 and .[0].predicted_tokens == 0'; }

up "${options[@]}" || fail "up"
ask || fail "undisturbed: $(cat "$work/err")"
undisturbed=$(answer)
wait_for 10 settled || fail "descriptors come and go: $before"

# --- a cancelled request that goes on: a new epoch ends it
epoch=$(status | jq .epoch)
"$bin/hillctl" generate -p 'This License' -n 200 "${common[@]}" >"$work/out" 2>"$work/err" &
client=$!
wait_for 20 decoding 1 || fail "not cancelled: nothing is decoded"
signal_worker STOP gpu_worker
kill -INT "$client"
wait_for 6 over "$client" || fail "not cancelled: the client waits on"
expect "not cancelled: a new epoch" "$(status | jq ".epoch - $epoch")" 1
expect "not cancelled: a line" "$(grep -c 'the GPU worker did not cancel it within 0.5 s' "$state_dir/hillinfer.log")" 1
signal_worker CONT gpu_worker
wait "$client"
expect "not cancelled: exit code" $? 130
wait_for 20 ready || fail "not cancelled: it is not ready again"
asks_again "not cancelled"
expect "not cancelled: the GPU worker is the same" "$(status | jq .workers.gpu_worker.restarts)" 0

# --- a client that is killed while its prompt is read: that is noticed when something is sent to it, the first token, or progress
"$bin/hillctl" generate -f "$work/prompt" -n 2000 "${common[@]}" >"$work/out" 2>"$work/err" &
client=$!
wait_for 20 in_prompt || fail "killed in its prompt: no prompt is read"
kill -KILL "$client"
wait_for 15 idle || fail "killed in its prompt: the request goes on"
asks_again "killed in its prompt"
if command -v script >/dev/null; then
    printf -v line '%q ' exec "$bin/hillctl" generate -f "$work/long" -n 100 "${common[@]}"
    script -qec "$line" /dev/null >"$work/out" 2>&1 </dev/null &
    waiter=$!
    wait_for 20 in_prompt || fail "killed on a terminal: no prompt is read"
    kill -KILL "$(pgrep -nf "hillctl generate -f $work/long")" # below script, whose line has the same words
    wait_for 8 idle || fail "killed on a terminal: its prompt is read on"
    wait "$waiter"
    asks_again "killed on a terminal"
fi
down || fail "down"
expect_nothing_left

# --- a coordinator that nobody starts again is killed: its workers end
start_by_hand() {
    HILL_LOG_LEVEL=info "$bin/hill-coordinator" "${options[@]}" --run-dir "$run_dir" --state-dir "$state_dir" >"$work/log" 2>&1 &
    coordinator=$!
    wait_for 30 ready || fail "the coordinator did not come up: $(cat "$work/log")"
}
start_by_hand
workers=$(status | jq '[.workers[] | select(.pid > 0)] | length')
kill -KILL "$coordinator"
wait "$coordinator" 2>/dev/null
wait_for 5 none_left || fail "workers without a coordinator: $(processes_left)"
expect "workers that have ended with their coordinator" "$workers" 2

# --- SIGTERM or SIGINT, and a second one while a worker does not end
asked_twice() { # FIRST SECOND EXIT-CODE
    start_by_hand
    signal_worker STOP gpu_worker
    kill -s "$1" "$coordinator"
    wait_for 4 grep -q 'info: ending: ' "$work/log" || fail "SIG$1: $(cat "$work/log")"
    kill -s "$2" "$coordinator"
    wait "$coordinator"
    expect "SIG$1, then SIG$2: exit code" $? "$3"
    expect "SIG$1, then SIG$2: a line" "$(grep -c 'asked to end for the second time: killing the workers' "$work/log")" 1
    expect_nothing_left
}
asked_twice TERM INT 0
asked_twice INT TERM 130
finish

#!/usr/bin/env bash
# The coordinator is killed while requests are read, decode, wait and are scored, or hangs: another one takes them over, the clients
# see a pause and the answers of undisturbed runs. Token logs that are damaged, cut, gone or cannot be written; clients that
# do not come back; nobody who starts a coordinator again; a worker that is not waited for.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 14
export HILL_HANG_MS=2000 # some hang on purpose
unset HILL_NO_PREFIX_CACHE # as it is by default: what finished requests have left is used

small_model "$work/model.gguf" -s 7
for n in 1 2 3; do head -c $((900 + 100 * n)) "$text" >"$work/prompt.$n"; done
head -c 14000 "$text" >"$work/prompt.long"
options=(-m "$work/model.gguf" -c 16384 --alpha 0.1 --beta 0.25 -np 2 -b 128)
common=(--ignore-eos --json --run-dir "$run_dir")
# each kind of request: 1 decodes for long, 2 samples, 3 is scored, long has a prompt to be killed in
declare -A asks=(
    [1]="-f $work/prompt.1 -n 300 --temp 0 --no-prefix-cache"
    [2]="-f $work/prompt.2 -n 300 --temp 0.9 -s 11"
    [3]="-f $work/prompt.3 --score-from 200"
    [long]="-f $work/prompt.long -n 40 --temp 0 --no-prefix-cache"
)
logs=$state_dir/requests

ask() { # NAME: into $work/out.NAME
    # shellcheck disable=SC2086  # words
    "$bin/hillctl" generate ${asks[$1]} "${common[@]}" >"$work/out.$1" 2>"$work/err.$1"
}
answer() { # NAME
    jq -r '[.tokens, .text, .logprobs, .selection_hash, .logits_hash, .finish_reason] | tojson' "$work/out.$1" | md5sum
}
check() { # DESCRIPTION NAME PID [RESTARTS]
    wait "$3"
    expect "$1: exit code" $? 0
    expect "$1: the undisturbed answer" "$(answer "$2")" "${whole[$2]}"
    expect "$1: restarts of the coordinator" "$(jq .restarts.coordinator "$work/out.$2")" "${4:-1}"
}
n_logs() {
    find "$logs" -type f 2>/dev/null | wc -l
}
no_logs() {
    [ "$(n_logs)" = 0 ]
}
kill_coordinator() {
    local pid
    pid=$(head -n 1 "$run_dir/lock")
    kill -KILL "$pid"
    wait_for 30 sh -c "! kill -0 $pid 2>/dev/null" || fail "the coordinator lives on"
}
# went_on DESCRIPTION NAME: what lay in the tiers outlives the coordinator: some steps are made again, no unit of the prompt
went_on() {
    expect "$1, $2: recoveries, units of the prompt repeated, few steps" \
        "$(jq -c '.recovery | [.recoveries >= 1, .units_repeated, .steps_repeated <= 8 * .recoveries]' "$work/out.$2")" "[true,0,true]"
}
start_by_hand() { # ARGUMENTS...: without anybody who starts it again
    "$bin/hill-coordinator" "${options[@]}" --run-dir "$run_dir" --state-dir "$state_dir" "$@" >"$work/log" 2>&1 &
    coordinator=$!
    wait_for 30 status_is .ready || fail "the coordinator did not come up: $(cat "$work/log")"
}
stop_by_hand() {
    kill -TERM "$coordinator"
    wait "$coordinator"
    expect "the coordinator ends in order" $? 0
}

# --- undisturbed
up "${options[@]}" || fail "up"
declare -A whole
for name in 1 2 3 long; do
    ask $name || fail "undisturbed: $(cat "$work/err.$name")"
    whole[$name]=$(answer $name)
done
wait_for 30 no_logs || fail "token logs are left after their answers: $(ls "$logs")"

# --- two run, one samples, and a third waits
ask 1 & first=$!
ask 2 & second=$!
wait_for 30 status_is '.requests | length == 2' || fail "no two requests run"
ask 3 & third=$!
wait_for 30 status_is '(.waiting | length == 1) and (.requests | all(.predicted_tokens > 20))' || fail "no third request waits"
expect "token logs" "$(n_logs) $(stat -c %a "$logs") $(find "$logs" -type f -printf '%m ')" "3 700 600 600 600 "
kill_coordinator
check "killed in decode" 1 $first
check "killed in decode, sampled" 2 $second
check "killed while it waited, scored" 3 $third
for name in 1 2; do went_on "killed in decode" $name; done

# --- one that goes on with decoded entries goes on with them, for they were kept
"$bin/hillctl" generate -f "$work/prompt.3" -n 60 --temp 0 "${common[@]}" >"$work/out.said" || fail "the request that is named later"
expect "its id is none that the last coordinator may have given" "$(jq '.request_id > 1000000' "$work/out.said")" true
asks[after]="-p more --after $(jq .request_id "$work/out.said") -n 300 --temp 0"
ask 1 & first=$!
wait_for 30 decoding 1 5 || fail "no token"
ask after & second=$!
wait_for 30 decoding 2 20 || fail "no two requests run: $(cat "$work/err.after")"
kill_coordinator
check "killed beside one over decoded entries" 1 $first 2
wait "$second"
expect "over decoded entries: exit code, tokens" "$? $(jq '.tokens | length' "$work/out.after")" "0 300"
rm "$work/err.after"

# --- in prefill, and once more in the second life
ask long & first=$!
wait_for 30 status_is '.requests[0].prefill_tokens_done > 100' || fail "no prompt is read"
kill_coordinator
wait_for 30 status_is '.requests[0].prefill_tokens_done > 100' || fail "the prompt is not read again"
kill_coordinator
check "killed twice in prefill" long $first 4
expect "nothing is said" "$(cat "$work"/err.*)" ""

# --- it hangs when Ctrl-C comes, and dies with it: the next one is told
ask 1 & first=$!
wait_for 30 decoding 1 5 || fail "no token"
client=$(pgrep -P $first)
kill -STOP "$(head -n 1 "$run_dir/lock")"
kill -INT "$client"
wait_for 10 sh -c "! grep -q '^ShdPnd:.*[2367abef]\$' /proc/$client/status" || fail "the client does not take SIGINT"
kill_coordinator
wait $first
expect "Ctrl-C that died with the coordinator: exit code" $? 130
wait_for 30 no_logs || fail "the request that was cancelled goes on: $(ls "$logs")"
truncate -s 0 "$state_dir/hillinfer.log" # as logrotate's copytruncate does

# --- it hangs: who watches over it kills it after three times --hang-ms, and says so; the GPU worker has waited for it
ask 1 & first=$!
wait_for 30 decoding 1 5 || fail "no token"
kill -STOP "$(head -n 1 "$run_dir/lock")"
check "stopped in decode" 1 $first 6
went_on "stopped in decode" 1
expect "stopped: a line" "$(grep -c "the coordinator's loop stood still for 6 s (three times --hang-ms): killed it" "$state_dir/hillinfer.log")" 1
expect "a log that was cut goes on at its start" "$(head -c 1 "$state_dir/hillinfer.log" | tr -d '\0' | wc -c)" 1
wait_for 30 no_logs || fail "token logs are left after their answers: $(ls "$logs")"
down || fail "down"
expect_nothing_left

# --- the drive that options name is detached and gone, another one is attached, and detached: so it stays in the next life. Where
# one cannot be opened at first, it is tried again
mkdir "$work/drive"
up "${options[@]}" --csd "file:$work/drive/pool" || fail "up"
drives() { status | jq -c '[.csd_attached, .csd_url, .csd_model.latency_us]'; }
dies_in_decode() { # DESCRIPTION RESTARTS COMMAND...: before the coordinator is killed
    ask 1 & first=$!
    wait_for 30 decoding 1 5 || fail "$1: no token"
    "${@:3}" >"$work/said" 2>&1 || fail "$1: $(cat "$work/said")"
    kill_coordinator
    check "$1" 1 $first "$2"
    went_on "$1" 1
}
detach_for_good() { hillctl detach && rm -r "$work/drive"; }
dies_in_decode "detached, and the drive is gone" 1 detach_for_good
expect "detached, and the drive is gone" "$(drives)" '[false,"",null]'
dies_in_decode "another drive is attached" 2 hillctl attach "file:$work/other.pool" latency_us=7
expect "another drive is attached" "$(drives)" "[true,\"file:$work/other.pool\",7]"
dies_in_decode "another model" 3 hillctl csd-model latency_us=8
expect "another model" "$(drives)" "[true,\"file:$work/other.pool\",8]"
rm -f "$work/err.1"
ask 1 & first=$!
wait_for 30 decoding 1 5 || fail "no token"
mv "$work/other.pool" "$work/away.pool" && mkdir "$work/other.pool" # before the next agent looks
kill_coordinator
wait_for 30 status_is '.workers.csd_agent.restarts > 0' || fail "nobody tries the drive again: $(cat "$state_dir/hillinfer.log")"
rmdir "$work/other.pool" && mv "$work/away.pool" "$work/other.pool"
check "a drive that cannot be opened at first" 1 $first 4
mkdir "$work/drive"
dies_in_decode "detached" 5 hillctl detach
expect "detached" "$(drives) $(ls "$work/drive")" '[false,"",8] '
# a detach that comes before the client does waits for the request, whose entries are on the drive
hillctl attach "file:$work/other.pool" >"$work/said" 2>&1 || fail "attach: $(cat "$work/said")"
ask 1 & first=$!
wait_for 30 decoding 1 5 || fail "no token"
client=$(pgrep -P $first)
kill -STOP "$client"
kill_coordinator
wait_for 30 status_is .ready || fail "the next coordinator is not ready"
"$bin/hillctl" detach --run-dir "$run_dir" >"$work/said" 2>&1 & detach=$!
asked $detach
kill -CONT "$client"
check "detached before the client is back" 1 $first 6
went_on "detached before the client is back" 1
wait $detach
expect "that detach: exit code, what it moved" "$? $(grep -c '^detached: [1-9][0-9]* entries .* moved up' "$work/said")" "0 1"
down || fail "down"
expect_nothing_left

# --- a drive that is detached while it has a rest; of several drives one, and another one in its place
up "${options[@]/16384/2048}" --csd "file:$work/rest.pool" --hot-mb 1.3 || fail "up"
dies_in_decode "a rest stays" 1 hillctl detach
expect "a rest stays" "$(grep -c 'stay until their requests end' "$work/said") $(drives)" '1 [false,"",null]'
down || fail "down"
up "${options[@]}" --csd "file:$work/1.pool" --csd "file:$work/2.pool" || fail "up"
dies_in_decode "several" 1 true
dies_in_decode "one of several" 2 hillctl detach "file:$work/1.pool"
dies_in_decode "another one" 3 hillctl attach "file:$work/3.pool"
expect "another one" "$(drives)" "[true,\"file:$work/3.pool,file:$work/2.pool\",null]"
down || fail "down"
expect_nothing_left

# --- the same under h2o, whose sums are kept for fewer steps
up "${options[@]}" --policy h2o --hang-ms 1000 || fail "up --policy h2o"
ask 1 || fail "undisturbed, h2o: $(cat "$work/err.1")"
of_hillinfer=${whole[1]} whole[1]=$(answer 1)
ask 1 & first=$!
wait_for 30 decoding 1 5 || fail "no token"
kill -STOP "$(head -n 1 "$run_dir/lock")"
check "stopped in decode, h2o" 1 $first
went_on "stopped in decode, h2o" 1
whole[1]=$of_hillinfer
down || fail "down"
expect_nothing_left

# --- by hand; meanwhile one log is cut within its last record, one is changed in the middle, one at its order
start_by_hand
ask 1 & first=$!
wait_for 30 status_is '.requests | length == 1' || fail "no request runs" # logs have their ids' order
ask 2 & second=$!
wait_for 30 decoding 2 20 || fail "no two requests run"
ask 3 & third=$!
wait_for 30 status_is '.waiting | length == 1' || fail "no third request waits"
kill_coordinator
mapfile -t files < <(find "$logs" -type f | sort)
truncate -s -7 "${files[0]}"
flip() { # FILE OFFSET
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
    printf '%b' "\\x$(printf %x $((byte ^ 4)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
flip "${files[1]}" $(($(stat -c %s "${files[1]}") - 200))
flip "${files[2]}" 300
start_by_hand
check "a log without its end" 1 $first
check "a log that is damaged in the middle" 2 $second
check "a log that is damaged in its order" 3 $third 0
expect "the damage is said, a line each" "$(grep -c 'token log .* is damaged' "$work/log")" 2
expect "and by the client that began again" "$(cat "$work"/err.*)" "hillctl: the coordinator came back without the request: it begins again"

# --- what a coordinator leaves of the tiers, or of the drives, is damaged meanwhile: the request begins anew; the drive is the options'
damaged_record() { # NAME COMMAND...: done before the coordinator is killed
    stop_by_hand
    start_by_hand
    ask 1 & first=$!
    wait_for 30 decoding 1 20 || fail "no token"
    "${@:2}" >"$work/said" 2>&1 || fail "$1: $(cat "$work/said")"
    kill_coordinator
    flip "$run_dir/$1" 20
    HILL_COORDINATOR_RESTARTS=1 start_by_hand
    check "damaged $1" 1 $first
}
damaged_record tiers true
expect "damaged tiers: it began anew" "$(jq -c '.recovery | [.recoveries, .units_repeated > 0]' "$work/out.1")" "[0,true]"
damaged_record drives hillctl detach
expect "damaged drives: it is said" "$(grep -c 'drives is damaged: the drives are those of the options' "$work/log")" 1
expect "damaged drives: the drive of the options" "$(status | jq .csd_attached)" true

# --- one that ends because of an error before its clients have come back leaves their logs to the next one
ask 1 & first=$!
wait_for 30 decoding 1 20 || fail "no token"
client=$(pgrep -P $first)
kill -STOP "$client"
kill_coordinator
(ulimit -f 500 && exec "$bin/hill-coordinator" "${options[@]}" --run-dir "$run_dir" --state-dir "$state_dir" >"$work/log" 2>&1)
expect "no room for segments: exit code" $? 111
expect "its log stays, and it says so" "$(n_logs) $(grep -c 'its token log stays' "$work/log")" "1 1"
start_by_hand
kill -CONT "$client"
check "one that ended because of an error" 1 $first 2

# --- no room for the log from some token on, as on a full disk: the request goes on, also through a death
ask 1 & first=$!
wait_for 30 decoding 1 20 || fail "no token"
prlimit --pid "$coordinator" --fsize=$(($(find "$logs" -type f -printf %s) + 1000)):
wait_for 30 grep -q 'its client alone has the tokens' "$work/log" || fail "nobody says that the log ends: $(cat "$work/log")"
expect "a full disk: one line" "$(grep -c 'writing token log' "$work/log")" 1
kill_coordinator

# --- no log at all, and a death: asked for again
start_by_hand
check "a full disk, and a death" 1 $first
wait_for 30 no_logs || fail "the log is left"
rmdir "$logs" && : >"$logs"
ask 2 & second=$!
wait_for 30 decoding 1 20 || fail "no token"
expect "no log: one line" "$(grep -c 'going on without a token log' "$work/log")" 1
kill_coordinator
rm "$logs"
start_by_hand
check "no log, and a death" 2 $second 0
stop_by_hand
expect_nothing_left

# --- nobody starts another one: the client gives up; a client that is gone: its request is dropped
start_by_hand --recovery-timeout 1
ask 1 & first=$!
wait_for 30 decoding 1 20 || fail "no token"
kill_coordinator
wait "$first"
expect "nobody comes back: exit code" $? 1
expect "nobody comes back: lines" "$(grep -c 'did not come back within the 1 s' "$work/err.1") $(wc -l <"$work/err.1")" "1 1"
start_by_hand --recovery-timeout 1
wait_for 30 no_logs || fail "the log of a client that is gone stays"
expect "a client that is gone: one line" "$(grep -c 'its client has not come back' "$work/log")" 1
stop_by_hand
expect_nothing_left

# --- the pipeline has ended in order: nothing to wait for. A lost worker is not waited for either
start_by_hand --recovery-timeout 0
ask 1 & first=$!
wait_for 30 decoding 1 20 || fail "no token"
kill_worker cpu_scorer
wait "$first"
expect "a worker is lost for too long: exit code" $? 1
expect "a worker is lost for too long: lines" "$(grep -c 'worker that was lost' "$work/err.1") $(wc -l <"$work/err.1")" "1 1"
wait_for 30 status_is .ready || fail "the scorer did not come back"
stop_by_hand
expect_nothing_left
finish

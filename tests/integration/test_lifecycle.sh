#!/usr/bin/env bash
# Up, down, Ctrl-C, kill -9, restart, attach and detach: what a person sees, and that nothing stays behind.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 10

small_model "$work/model.gguf"
head -c 2500 "$text" >"$work/prompt"
printf '\nThis License' >>"$work/prompt"
options=(-m "$work/model.gguf" -c 8192 --budget 256 --beta 0.25 --csd-device 0) # test_attach.sh has the default
ask=(-f "$work/prompt" -n 64 --temp 0 --ignore-eos --json --run-dir "$run_dir")

answer() { jq -r '"\(.tokens | join(" ")) \(.selection_hash) \(.logits_hash)"' "$1"; }

# --- up, generate, status, down
up "${options[@]}" || fail "up"
"$hillinfer" generate "${ask[@]}" >"$work/first" 2>"$work/err" || fail "generate: $(cat "$work/err")"
first=$(answer "$work/first")
"$hillinfer" generate "${ask[@]}" >"$work/again" || fail "generate again"
expect "the same answer again" "$(answer "$work/again")" "$first"
expect "status" "$("$hillinfer" status --json --run-dir "$run_dir" | jq -r '[.ready, .csd_attached, .requests_done] | join(" ")')" "true true 2"

# --- a second one is refused, and the first one keeps its log
echo "12:00:00 hill-coordinator: error: a line of the first" >>"$state_dir/hillinfer.log"
expect_one_line "up while up" 100 "$hillinfer" up --detach --run-dir "$run_dir" --state-dir "$state_dir" -m "$work/model.gguf"
expect "up while up: the first one's log" "$(grep -c 'a line of the first' "$state_dir/hillinfer.log")" 1
expect_one_line "up in another run folder while up" 100 "$hillinfer" up --detach --run-dir "$work/other" --state-dir "$state_dir" -m "$work/model.gguf"
expect "up in another run folder while up: names a way on" "$(grep -c -e '--state-dir DIR or --csd file:OTHER' "$work/err")" 1
expect "up in another run folder while up: the first one's log" "$(grep -c 'a line of the first' "$state_dir/hillinfer.log")" 1
expect_one_line "up with a wrong option while up" 100 "$hillinfer" up --detach --run-dir "$work/other" --state-dir "$state_dir" -m "$work/model.gguf" --alpha 7
expect "up with a wrong option while up: its own line, not one of the log" "$(grep -c -e '--alpha: 7 is out of range' "$work/err")" 1

# --- attach and detach between requests
"$hillinfer" detach --run-dir "$run_dir" >/dev/null || fail "detach"
expect "detached" "$("$hillinfer" status --json --run-dir "$run_dir" | jq .csd_attached)" false
"$hillinfer" generate "${ask[@]}" >"$work/detached" || fail "generate, detached"
expect "the same answer without the drive" "$(answer "$work/detached")" "$first"
expect "all entries hot" "$(jq .tiers.cold.tokens "$work/detached")" 0
"$hillinfer" attach --run-dir "$run_dir" >/dev/null || fail "attach"
"$hillinfer" generate "${ask[@]}" >"$work/attached" || fail "generate, attached"
expect "the same answer with the drive back" "$(answer "$work/attached")" "$first"

# --- while a request runs, or its prompt is read: that is waited for. It is long enough to be met
long=("${ask[@]/#64/250}")
"$hillinfer" generate "${long[@]}" >"$work/long" || fail "generate, long"
undisturbed=$(answer "$work/long" | md5sum)
"$hillinfer" generate "${long[@]}" >"$work/running" &
request=$!
wait_for 20 status_is '.requests_running == 1' || fail "no request runs"
"$hillinfer" detach --run-dir "$run_dir" >/dev/null || fail "detach during a request"
"$hillinfer" attach --run-dir "$run_dir" >/dev/null || fail "attach during a request"
wait "$request" || fail "the request of that time"
expect "its answer" "$(answer "$work/running" | md5sum)" "$undisturbed"

# --- a worker dies in mid-request: the request goes on, the answer is the same
for worker in csd_agent cpu_scorer gpu_worker; do
    "$hillinfer" generate "${long[@]}" >"$work/killed" 2>"$work/err" &
    request=$!
    wait_for 20 decoding 1 5 || fail "nothing is decoded before $worker is killed"
    kill_worker "$worker"
    wait "$request" || fail "request with $worker killed: $(cat "$work/err")"
    expect "the same answer with $worker killed" "$(answer "$work/killed" | md5sum)" "$undisturbed"
    expect "restarts of $worker" "$(jq ".restarts.$worker" "$work/killed")" 1
done

# --- restart WORKER by hand
expect_one_line "restart with an unknown option" 100 "$hillinfer" restart csd_agent --bogus --run-dir "$run_dir"
"$hillinfer" restart csd_agent --run-dir "$run_dir" || fail "restart csd_agent"
wait_for 30 status_is '.ready and .workers.csd_agent.restarts == 2' || fail "csd_agent did not come back"

# --- damage on the drive while a request is answered: the request goes on, and its answer is the one of an undisturbed run
pool=$state_dir/cold.pool
size=$(stat -c %s "$pool")
damaged_meanwhile() { # NAME RECOVERY COMMAND...: what .recovery must be; the command damages the pool
    local name=$1 recovery=$2 request
    shift 2
    "$hillinfer" generate "${long[@]}" >"$work/out" 2>"$work/err" &
    request=$!
    wait_for 20 decoding 1 5 || fail "$name: nothing is decoded"
    "$@"
    wait "$request" || fail "$name: $(cat "$work/err")"
    expect "$name: the answer" "$(answer "$work/out" | md5sum)" "$undisturbed"
    expect "$name: $(jq -c .recovery "$work/out")" "$(jq ".recovery | $recovery" "$work/out")" true
    grep 'damaged in the cold pool' "$state_dir/hillinfer.log" | tail -n 1
}
# of layer 0, behind 225 KB of superblock and directory
some_digests() { # the agent meets all of them at once
    local at
    signal_worker STOP csd_agent
    # in ten pages, another token's in each: some of them have moved up, and what is left of those counts no more
    for at in $(seq 262244 4136 299468); do printf '\245' | dd of="$pool" bs=1 seek="$at" conv=notrunc status=none; done
    sync "$pool"
    signal_worker CONT csd_agent
}
digests() { dd if=/dev/urandom of="$pool" bs=64K seek=4 count=4 conv=notrunc,fsync status=none; }
entries() { dd if=/dev/urandom of="$pool" bs=1M seek=$((size / 2)) oflag=seek_bytes count=$((size / 2 / 1048576)) conv=notrunc,fsync status=none; }
damaged_meanwhile "some digests damaged" "[.recoveries, .entries_repeated > 0, .units_repeated] == [1, true, 0]" some_digests
damaged_meanwhile "all digests damaged" "[.attempts > 1, .entries_repeated, .units_repeated > 0] == [true, 0, true]" digests
damaged_meanwhile "entries damaged" "[.attempts > 1, .entries_repeated, .units_repeated > 0] == [true, 0, true]" entries
"$hillinfer" generate "${ask[@]}" >"$work/after" || fail "generate after the damage"
expect "the same answer after the damage" "$(answer "$work/after")" "$first"

# --- a pool that is cut short: an error of the drive ends the request with one line. A write behind its end makes the file
# long again: then what is read is a hole, whose checksum does not match, and the request goes on
"$hillinfer" generate "${long[@]}" >"$work/out" 2>"$work/err" &
request=$!
wait_for 20 decoding 1 5 || fail "nothing is decoded before the pool is cut"
truncate -s 256K "$pool"
wait "$request"
code=$?
case "$code $(cat "$work/err")" in
"0 "*) expect "a pool that is cut short: the answer" "$(answer "$work/out" | md5sum)" "$undisturbed" ;;
"111 "*"cannot be read from the cold pool" | "111 "*"on the drive: input/output failed"* | "111 "*" to the cold pool")
    pass "a pool that is cut short: $(cat "$work/err")" ;;
*) fail "a pool that is cut short: $code: $(cat "$work/err")" ;;
esac
[ $code -eq 0 ] || expect "a pool that is cut short: lines" "$(wc -l <"$work/err")" 1
"$hillinfer" generate "${ask[@]}" >"$work/after" || fail "generate after the cut"
expect "the same answer after the cut" "$(answer "$work/after")" "$first"

# --- Ctrl-C cancels a request, the pipeline stays
rm -f "$work/out"
"$bin/hillctl" generate -f "$work/prompt" -n 2000 --temp 0 --ignore-eos --run-dir "$run_dir" >"$work/out" 2>"$work/err" &
request=$!
wait_for 20 test -s "$work/out" || fail "no text before Ctrl-C"
kill -INT "$request"
wait "$request"
expect "Ctrl-C: exit code" $? 130
"$hillinfer" generate "${ask[@]}" >"$work/after" || fail "generate after Ctrl-C"
expect "the same answer after Ctrl-C" "$(answer "$work/after")" "$first"

down || fail "down"
expect_nothing_left

# --- Ctrl-C on a whole run: the request is cancelled first, the pipeline stopped second
rm -f "$work/out"
setsid --wait "$hillinfer" run "${options[@]}" --run-dir "$run_dir" --state-dir "$state_dir" -f "$work/prompt" -n 2000 --temp 0 --ignore-eos \
    >"$work/out" 2>"$work/err" &
waiter=$!
wait_for 20 test -s "$work/out" || fail "no text before Ctrl-C"
pid=$(pgrep -f "hillctl generate.*--run-dir $run_dir" | head -n 1)
kill -INT -- "-$(ps -o pgid= -p "$pid" | tr -d ' ')"
wait "$waiter"
expect "Ctrl-C on run: exit code" $? 130
expect_nothing_left

# --- so does a signal to its script alone, while it answers, and while it starts
run_signalled() { # SIGNAL COMMAND...: once the command succeeds
    local signal=$1 request began
    shift
    rm -f "$work/out"
    "$hillinfer" run "${options[@]}" --run-dir "$run_dir" --state-dir "$state_dir" -f "$work/prompt" -n 5000 --temp 0 --ignore-eos \
        >"$work/out" 2>"$work/err" &
    request=$!
    wait_for 20 "$@" || fail "SIG$signal to a run: '$*' never"
    began=$EPOCHSECONDS
    kill -s "$signal" "$request"
    wait "$request"
    expect "SIG$signal to a run ($2 ${3##*/}): exit code" $? 130
    expect "SIG$signal to a run ($2 ${3##*/}): at once" "$((EPOCHSECONDS - began < 10))" 1
    expect_nothing_left
}
run_signalled TERM test -s "$work/out"
run_signalled HUP test -s "$work/out"
run_signalled TERM test -e "$run_dir/lock"

# --- and a signal to up --detach while it starts
mkdir "$work/tmp"
TMPDIR=$work/tmp "$hillinfer" up --detach "${options[@]}" --run-dir "$run_dir" --state-dir "$state_dir" 2>"$work/err" &
request=$!
while [ ! -e "$run_dir/lock" ] && kill -0 "$request" 2>/dev/null; do sleep 0.01; done
kill -TERM "$request"
wait "$request"
expect "SIGTERM to up --detach that is not ready: exit code, temporary files" "$? $(ls "$work/tmp")" "130 "
expect_nothing_left

# --- kill -9 of the coordinator of a run: another one goes on with its request. Of all of a run: the next start cleans up
"$hillinfer" run "${options[@]}" --run-dir "$run_dir" --state-dir "$state_dir" -f "$work/prompt" -n 250 --temp 0 --ignore-eos --json \
    >"$work/out" 2>"$work/err" &
request=$!
wait_for 30 status_is '.requests_running == 1' || fail "no request runs"
kill -KILL "$(coordinator_pid)"
wait "$request" || fail "a run whose coordinator was killed: $(cat "$work/err")"
expect "the same answer with its coordinator killed" "$(answer "$work/out" | md5sum)" "$undisturbed"
rm -f "$work/out"
setsid --wait "$hillinfer" run "${options[@]}" --run-dir "$run_dir" --state-dir "$state_dir" -f "$work/prompt" -n 2000 --temp 0 --ignore-eos \
    >"$work/out" 2>"$work/err" &
request=$!
wait_for 20 test -s "$work/out" || fail "no text before kill -9"
# shellcheck disable=SC2046  # a list of numbers
kill -KILL $(pgrep -f -- "--run-dir $run_dir")
wait "$request"
code=$?
[ "$code" -ne 0 ] || fail "a run that was killed ended with 0"
expect "kill -9 of all: the socket that is left" "$([ -S "$run_dir/control.sock" ] && echo there)" there
timeout 60 "$bin/hillctl" detach --run-dir "$run_dir" >"$work/out" 2>"$work/err" &
request=$!
timeout 60 "$hillinfer" down --run-dir "$run_dir" 2>"$work/down.err"
expect "down after kill -9 of all: exit code, lines" "$? $(wc -l <"$work/down.err") $(grep -c 'nothing to stop' "$work/down.err")" "0 1 1"
wait "$request"
expect "detach after kill -9 of all: exit code, lines" "$? $(wc -l <"$work/err") $(grep -c 'does not answer' "$work/err")" "111 1 1"
run_json "$work/out" "${options[@]}" -f "$work/prompt" -n 64 --temp 0 --ignore-eos || fail "start after kill -9: $(cat "$work/out.err")"
expect "the same answer after kill -9" "$(answer "$work/out")" "$first"
expect "token logs left" "$(ls -A "$state_dir/requests")" ""
expect_nothing_left

# --- Ctrl-C of a foreground up, or the end of its terminal, reaches the whole process group: the pipeline ends in order, and once
for signal in INT HUP; do
    rm -f "$work/log"
    set -m
    HILL_TEST_TURN_MS="" HILL_LOG_LEVEL=info "$hillinfer" up "${options[@]}" --run-dir "$run_dir" --state-dir "$state_dir" 2>"$work/log" </dev/null &
    foreground=$!
    set +m
    wait_for 30 grep -qs 'info: ready: ' "$work/log" || fail "foreground up: $(cat "$work/log")"
    kill -s $signal -- "-$foreground"
    wait "$foreground"
    expect "SIG$signal of a foreground up: exit code" $? 0
    expect "SIG$signal of a foreground up: in order" "$(grep -c 'info: ending: ' "$work/log") $(grep -c ': warn: \|: error: ' "$work/log")" "1 0"
    expect_nothing_left
done

# --- the supervisor script starts a killed coordinator again
up "${options[@]}" || fail "up"
kill -KILL "$(coordinator_pid)"
wait_for 30 ready || fail "the coordinator was not started again"
"$hillinfer" generate "${ask[@]}" >"$work/out" 2>"$work/err" || fail "generate after the coordinator's restart: $(cat "$work/err")"
expect "the same answer after the coordinator's restart" "$(answer "$work/out")" "$first"
expect "restarts of the coordinator" "$(jq .restarts.coordinator "$work/out")" 1
down || fail "down"
expect_nothing_left

# --- a client that is stopped for long (Ctrl-Z), or whose terminal takes nothing (Ctrl-S), gets its answer; of one that was killed
# the request goes
up "${options[@]}" -np 1 --hang-ms 600000 --recovery-timeout 5 || fail "up"
mkfifo "$work/terminal"
exec 7<>"$work/terminal"
dd if=/dev/zero of="$work/terminal" oflag=nonblock bs=64K count=1 status=none # full
"$bin/hillctl" generate -f "$work/prompt" -n 250 --temp 0 --ignore-eos --run-dir "$run_dir" >"$work/terminal" 2>"$work/slow.err" 7>&- &
slow=$!
wait_for 20 status_is '.requests_done == 1' || fail "the request is not answered"
"$bin/hillctl" generate "${long[@]}" >"$work/stopped" 2>"$work/err" &
stopped=$!
wait_for 20 decoding 1 5 || fail "nothing is decoded before the client is stopped"
signal_worker STOP gpu_worker # so that nothing is sent to it, and it decodes for as long as this takes
"$bin/hillctl" generate "${ask[@]}" >"$work/out" 2>&1 &
killed=$!
wait_for 20 status_is '.requests_waiting == 1' || fail "no request waits"
sleep 3 # both have asked for the status
kill -STOP "$stopped"
kill -KILL "$killed"
wait_for 25 status_is '.requests_waiting == 0' || fail "the request of a killed client waits on"
sleep 4 # as long for the other one
expect "a stopped client: it runs" "$(status | jq .requests_running)" 1
signal_worker CONT gpu_worker
kill -CONT "$stopped"
wait "$stopped"
expect "a stopped client: exit code" $? 0
expect "a stopped client: its answer, said" "$(answer "$work/stopped" | md5sum) $(cat "$work/err")" "$undisturbed "
expect "a terminal that takes nothing: its client waits" "$(kill -0 "$slow" && echo yes)" yes
exec 8<"$work/terminal" 7>&-
cat <&8 >"$work/shown"
exec 8<&-
wait "$slow"
expect "a terminal that takes nothing: exit code" $? 0
[ "$(tail -c +65537 "$work/shown" | tr -d '\0')" = "$(field "$work/long" .text | tr -d '\0')" ] || fail "a terminal that takes nothing: not the answer"
down || fail "down"
expect_nothing_left

# --- a coordinator that dies again and again without progress is given up, in one line
mkdir "$work/fake"
printf '#!/bin/sh\nkill -SEGV $$\n' >"$work/fake/hill-coordinator"
chmod +x "$work/fake/hill-coordinator"
HILL_BIN_DIR=$work/fake "$hillinfer" up --run-dir "$run_dir" 2>"$work/err"
expect "given up: exit code" $? 111
expect "given up: the last line" "$(tail -n 1 "$work/err")" \
    "hillinfer: error: gave up because the coordinator was killed by signal 11, 5 times in a row without progress"
finish

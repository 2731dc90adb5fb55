#!/usr/bin/env bash
# Sessions at their edges: settings that the policy does not use may differ; orders to save that come while a session is being
# saved, and of a request that has no room yet, are answered; a save that fails at the end fails, whatever the file's error: the
# request is not started again.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 5

small_model "$work/random.gguf" --layers 5 -s 7
head -c 1000 LICENSE >"$work/prompt"
options=(-m "$work/random.gguf" -c 16384)
many=15000 # tokens: some seconds

generate() { # N OUTPUT [ARGUMENTS...]
    local n=$1 out=$2
    shift 2
    "$bin/hillctl" generate -f "$work/prompt" -n "$n" --temp 0 --ignore-eos --json --run-dir "$run_dir" "$@" >"$out" 2>"$out.err"
}
save() { # REQUEST FILE
    "$bin/hillctl" save "$1" "$2" --run-dir "$run_dir" >"$work/save" 2>"$work/save.err"
}
# shellcheck disable=SC2317  # through wait_for
runs() { status_is "[.requests[] | select(.predicted_tokens $1)] | length >= 1"; }
newest() { status | jq '.requests | max_by(.request).request'; }
tokens() { cat "$@" | jq -rs 'map(.tokens) | add | map(tostring) | join(" ")'; }

# --- policy full has no use for a window, scores or a budget
up "${options[@]}" --policy full --window 17 || fail "up"
generate 20 "$work/whole" || fail "whole: $(cat "$work/whole.err")"
generate 8 "$work/part" --save "$work/full" || fail "save: $(cat "$work/part.err")"
down || fail "down"
up "${options[@]}" --policy full --window 16 --alpha 0.5 --importance sum || fail "up"
"$bin/hillctl" restore "$work/full" -n 12 --json --run-dir "$run_dir" >"$work/rest" 2>"$work/rest.err" || fail "policy full with another window: $(cat "$work/rest.err")"
expect "policy full with another window" "$(tokens "$work/part" "$work/rest")" "$(tokens "$work/whole")"
down || fail "down"

# --- a session's file is being saved by somebody else, while another request runs: one try
up "${options[@]}" -np 3 --log-level info || fail "up"
log=$state_dir/hillinfer.log
generate $many "$work/long" &
long=$!
wait_for 20 runs "> 3" || fail "nothing decodes"
exec 8>"$work/busy.saving"
flock 8
generate 5 "$work/out" --save "$work/busy"
expect "a file that is being saved: exit code" $? 100
expect "a file that is being saved: says so" "$(grep -c 'is being saved already' "$work/out.err")" 1
expect "a file that is being saved: told once in the log" "$(grep -c 'is being saved already' "$log")" 1
expect "a file that is being saved: started again" "$(grep -c 'it waits\|starting it again' "$log")" 0
exec 8>&-
# a socket of that name cannot be opened, as a disk that is offline (ENXIO): nobody's device is gone
ln "$(find "$run_dir" -type s | head -n 1)" "$work/gone.saving" || fail "no socket"
generate 5 "$work/out" --save "$work/gone"
expect "a file on a disk that is gone: exit code" $? 111
expect "a file on a disk that is gone: says so" "$(grep -c 'No such device or address' "$work/out.err") $(wc -l <"$work/out.err")" "1 1"
expect "a file on a disk that is gone: started again" "$(grep -c 'it waits\|starting it again' "$log")" 0

# --- saved at the end, slowly, for the file is a pipe that nobody reads; an order to save comes meanwhile
mkfifo "$work/slow.saving"
generate 5 "$work/out" --save "$work/slow" &
slow=$!
wait_for 20 runs "== 5" || fail "the request with the slow file has not come to its end"
id=$(newest) # here: the shell of the job would wait for it, which is not the question that asked waits for
save "$id" "$work/ordered" &
order=$!
asked $order
cat "$work/slow.saving" >"$work/nothing"
wait $order
expect "an order while it is being saved at the end: exit code" $? 0
expect "an order while it is being saved at the end: the file" "$([ -s "$work/ordered" ] && echo there)" there
wait $slow
expect "a pipe is no file: exit code" $? 100

# --- the GPU worker is killed while it writes, or thereabouts: nothing half is left
id=$(newest)
save "$id" "$work/killed" &
order=$!
wait_for 30 sh -c "[ -e '$work/killed.saving' ] || [ -e '$work/killed' ]" || fail "nothing is written"
kill_worker gpu_worker
wait $order
expect "the GPU worker is killed while it saves: what is left" "$(find "$work" -name 'killed.saving')" ""
down || fail "down"
wait $long

# --- an order for a request that turns out to have no room yet
up "${options[@]}" -np 2 --csd none --hot-mb 34 --hang-ms 600000 || fail "up" # a worker is stopped below for as long as it takes
generate $many "$work/long" &
long=$!
wait_for 20 runs "> 3" || fail "nothing decodes"
signal_worker STOP gpu_worker
generate $many "$work/out" &
other=$!
wait_for 30 status_is '.requests | length == 2' || fail "the second is not sent"
id=$(newest)
save "$id" "$work/early" &
order=$!
asked $order
signal_worker CONT gpu_worker
wait_for 30 sh -c "! kill -0 $order 2>/dev/null" || fail "the order is not answered while the request waits"
grep -q 'no room' "$work/save.err" || fail "the order's answer does not say why: $(cat "$work/save" "$work/save.err")"
down || fail "down"
wait $long $other

# --- the coordinator is lost while an order waits: the next one knows nothing of it
up "${options[@]}" --csd none --hang-ms 600000 || fail "up"
generate $many "$work/long" &
long=$!
wait_for 20 runs "> 3" || fail "nothing decodes"
id=$(newest)
signal_worker STOP gpu_worker
timeout 60 "$bin/hillctl" save "$id" "$work/lost" --run-dir "$run_dir" >"$work/save" 2>"$work/save.err" &
order=$!
asked $order
kill -KILL "$(coordinator_pid)"
wait $order
expect "the coordinator is lost before a session is saved: exit code" $? 111
expect "the coordinator is lost before a session is saved: said" \
    "$(grep -c 'was lost before the session was saved; ask again' "$work/save.err") $(wc -l <"$work/save.err")" "1 1"
wait_for 60 ready || fail "the coordinator did not come back"
down || fail "down"
wait $long
expect_nothing_left
finish

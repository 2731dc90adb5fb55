#!/usr/bin/env bash
# Four drives of unequal modelled speed at once: the answer is that of none, each has its share of the entries; one that is killed
# costs a pause; one goes and comes back by its name while a request decodes, and so do all but one; one whose entries have no place
# elsewhere stays. What makes no sense is one line.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 20

"$bin/hill-mkmodel" -o "$work/model.gguf" 2>/dev/null || fail "mkmodel"
pass_key_prompt 1000 800 >"$work/prompt"
common=(-m "$work/model.gguf" -c 4096 --budget 128 --beta 0.25)
pools_in_memory
for i in 1 2 3 4; do drive[i]=file:$pools/$i.pool; done
four=(--csd "${drive[1]}" --csd "${drive[2]}" --csd "${drive[3]}" --csd "${drive[4]}")
slow=score=0.02,latency_us=0 fast=score=0.06,latency_us=0
for model in $slow $fast $slow $fast; do models_of+=(--csd-model "$model"); done

ask() { # OUTPUT [TOKENS]: hashes and tokens of one request, on one line
    hillctl generate --json -f "$work/prompt" -n "${2:-40}" --temp 0 --ignore-eos >"$1.json" 2>"$1.err" || tail -n 1 "$1.err"
    jq -c '[.selection_hash, .logits_hash, .tokens]' "$1.json" >"$1"
}
decodes() { status_is '[.requests[].predicted_tokens] | max > 3'; }
idle() { status_is '.ready and .requests_running == 0'; }
same() { expect "$1" "$(cat "$work/$2")" "$(cat "$work/${3:-none}")"; }
agents() { status | jq -c '[.workers[] | select(.drive and .state == "ready")] | length'; }
change() { hillctl "$1" "${drive[$2]}" >"$work/said" 2>&1 || fail "$1 of drive $2: $(cat "$work/said")"; }

refused() { # DESCRIPTION OPTIONS...
    local description=$1
    shift
    expect_one_line "$description" 100 "$bin/hill-coordinator" --run-dir "$run_dir" --state-dir "$state_dir" "${common[@]}" "$@"
}
refused "five drives" "${four[@]}" --csd "file:$pools/5.pool"
refused "a drive twice" --csd "${drive[1]}" --csd "${drive[1]}"
touch "$pools/1.pool"
ln -s 1.pool "$pools/link.pool"
refused "a drive under two names" --csd "${drive[1]}" --csd "file:$pools/link.pool"
rm "$pools/1.pool" "$pools/link.pool"
refused "recording" "${four[@]}" --record "$work/recording"
refused "models" "${four[@]}" --csd-model flash=1 --csd-model flash=2

up "${common[@]}" --csd none || exit 1
ask "$work/none"
[ -s "$work/none" ] || fail "no answer without a drive: the others would be compared with nothing"
ask "$work/twice" 80
ask "$work/long" 240
down
up "${common[@]}" "${four[@]}" "${models_of[@]}" || exit 1
ask "$work/of4"
same "four drives: as without any" of4
expect "agents" "$(status | jq -c '[.workers | to_entries[] | select(.value.drive) | .key]')" '["csd_agent","csd_agent_2","csd_agent_3","csd_agent_4"]'
echo "drives: $(jq -c .drives "$work/of4.json")"
# both of a kind together: a processor that another process has for a moment makes one modelled drive look slower than it is
expect "faster ones have more entries" "$(jq '.drives.each | map(.tokens) | .[0] > 0 and .[2] > 0 and .[1] + .[3] > 1.5 * (.[0] + .[2])' "$work/of4.json")" true

ask "$work/killed" 80 &
wait_for 60 decodes || fail "no request decodes"
kill -KILL "$(worker_pid csd_agent_2)"
wait
same "one is killed while a request decodes" killed twice
expect "restarts" "$(jq -c .restarts "$work/killed.json")" '{"gpu_worker":0,"cpu_scorer":0,"csd_agent":1,"coordinator":0}'

# all workers at once, as when memory is short: more deaths in a row than one worker may have before it is ready
ask "$work/all_killed" &
wait_for 60 decodes || fail "no request decodes"
mapfile -t pids < <(status | jq '.workers[].pid | select(. > 0)')
kill -KILL "${pids[@]}"
wait
same "all workers are killed while a request decodes" all_killed
expect "it goes on" "$(jq -c '.recovery | [.attempts, .units_repeated, .steps_repeated <= 8]' "$work/all_killed.json")" "[2,0,true]"
expect "all have died, one of them for the second time" "${#pids[@]} $(jq -c .restarts "$work/all_killed.json")" '6 {"gpu_worker":1,"cpu_scorer":1,"csd_agent":5,"coordinator":0}'

# --- one goes and comes back while a request decodes, which is long enough for all of that
down
requests_last 60
up "${common[@]}" "${four[@]}" "${models_of[@]}" || exit 1
expect_one_line "detach: which" 100 hillctl detach
expect_one_line "detach: not there" 100 hillctl detach file:/nowhere
expect_one_line "attach: no place" 100 hillctl attach "file:$pools/5.pool"
ask "$work/changed" 240 &
asked=$!
for d in 2 4 1; do # one drive is left, then all four again
    wait_for 60 decodes || fail "no request decodes"
    change detach $d
    expect "drive $d: its entries have a place" "$(grep -c '^detached: [1-9][0-9]* entries .* moved' "$work/said")" 1
done
expect "one agent is left" "$(agents)" 1
expect_one_line "attach: the same twice" 100 hillctl attach "${drive[3]}"
for d in 2 4 1; do
    wait_for 60 decodes || fail "no request decodes"
    change attach $d
done
expect "a request decodes all the while" "$(status | jq .requests_running)" 1
wait "$asked"
same "drives go and come while a request decodes" changed long
echo "drives: $(jq -c .drives "$work/changed.json")"
expect "those that came have their shares" "$(jq '.drives.each | map(.tokens) | (add / 12) as $least | all(. > $least)' "$work/changed.json")" true
ask "$work/again"
same "four again" again
down
expect_nothing_left

# --- degrade: the drives that are left go on, and the request begins anew with them
up "${common[@]}" "${four[@]}" "${models_of[@]}" --csd-on-loss degrade || exit 1
ask "$work/lost" 240 &
asked=$!
wait_for 60 decodes || fail "no request decodes"
kill -KILL "$(worker_pid csd_agent_2)"
wait "$asked"
same "one is lost for good while a request decodes" lost long
expect "restarts" "$(jq -c .restarts "$work/lost.json")" '{"gpu_worker":0,"cpu_scorer":0,"csd_agent":1,"coordinator":0}'
three_left() { status_is '.ready and .csd_attached and ([.workers[] | select(.drive and .state == "ready")] | length == 3)'; }
wait_for 60 three_left || fail "drives that are left: $(agents)"
change attach 2
expect "it comes back" "$(agents)" 4
ask "$work/back"
same "with the one that came back" back
down
expect_nothing_left
for i in 1 2 3 4; do
    expect "hill-fsck-pool" "$("$bin/hill-fsck-pool" --json "$pools/$i.pool" | jq -c '[.stripes_used, .bad_records, .bad_entries, .bad_digests, .twice]')" "[0,0,0,0,0]"
done

# --- two drives with a stripe a layer each, which one request has: neither can take the other's entries
up "${common[@]}" --csd "${drive[1]}" --csd "${drive[2]}" --cold-mb 9.5 --hot-mb 3.5 || exit 1
ask "$work/tight" 240 &
asked=$!
wait_for 60 decodes || fail "no request decodes"
expect_one_line "detach: no place for the entries" 111 hillctl detach "${drive[2]}"
expect "it says how much" "$(grep -c '[1-9][0-9]* bytes) of requests that run have no place' "$work/err")" 1
wait "$asked"
same "after a detach that was refused" tight long
expect "it has entries all the same" "$(jq '.drives.each[1].tokens > 0' "$work/tight.json")" true
change detach 2
expect "when no request runs it goes" "$(agents)" 1
down
expect_nothing_left
finish

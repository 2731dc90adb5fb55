#!/usr/bin/env bash
# -np: eight requests at once each give what they give alone; one that is cancelled, a worker that dies, more requests
# than slots, and requests that have no room beside one another change nothing for the others.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 5

"$bin/hill-mkmodel" -o "$work/model.gguf" || fail "mkmodel"
# bytes of the prompt, tokens to make, temperature
lengths=(300 900 60 1500 600 2000 150 1100)
predicts=(72 64 96 48 80 56 88 52)
temperatures=(0 0.8 0.8 0 0.7 0 0.9 0.8)
for i in 0 1 2 3 4 5 6 7; do
    tail -c +$((1 + 500 * i)) "$text" | head -c "${lengths[i]}" >"$work/prompt$i"
    printf '\nThis License' >>"$work/prompt$i"
done
options=(-m "$work/model.gguf" -c 4096 --budget 200 --beta 0.25)

# ask I OUTPUT [ARGUMENTS...]: in the foreground
ask() {
    local i=$1 out=$2
    shift 2
    "$bin/hillctl" generate -f "$work/prompt$i" -n "${predicts[i]}" --temp "${temperatures[i]}" -s $((100 + i)) --ignore-eos \
        --json --run-dir "$run_dir" "$@" >"$out" 2>"$out.err"
}
answer() { jq -r '"\(.finish_reason) \(.tokens | join(" ")) \(.selection_hash) \(.logits_hash)"' "$1"; }
# running N: at least N requests run
running() { status_is ".requests_running >= $1"; }
idle() { status_is '.ready and .requests_running + .requests_waiting == 0'; }

# all_equal NAME I...: these answered as they did alone
all_equal() {
    local name=$1 i
    shift
    for i; do
        [ "$(answer "$work/out$i")" = "${alone[i]}" ] ||
            fail "$name: request $i differs: $(head -c 300 "$work/out$i.err") $(answer "$work/out$i" | head -c 300), alone ${alone[i]:0:300}"
    done
    pass "$name: $# requests answer as alone"
}

# at_once I...: ask for all of them; their processes in pids[]
at_once() {
    local i
    pids=()
    for i; do
        ask "$i" "$work/out$i" &
        pids[i]=$!
    done
}
# all_at_once: eight that run together, whenever each of them came: they are answered when nobody is stopped any more
all_at_once() {
    signal_worker STOP gpu_worker
    at_once 0 1 2 3 4 5 6 7
    wait_for 60 running 8 || fail "eight do not run at once"
}
wait_all() { # NAME I...
    local name=$1 i
    shift
    for i; do
        wait "${pids[i]}" || fail "$name: request $i ended with $?: $(cat "$work/out$i.err")"
    done
}

# --- refused
for n in 0 65; do
    "$hillinfer" up --run-dir "$run_dir" --state-dir "$state_dir" "${options[@]}" -np $n >"$work/out" 2>"$work/err"
    expect "-np $n: exit code" $? 100
done
"$hillinfer" up --run-dir "$run_dir" --state-dir "$state_dir" "${options[@]}" -np 64 --hot-mb 8 >"$work/out" 2>"$work/err"
expect "a hot cap too small for -np 64: exit code" $? 100
grep -q 'parallel 64.*MiB needed' "$work/err" || fail "the refusal does not say what is needed: $(cat "$work/err")"

# --- alone
alone=()
up "${options[@]}" || fail "up -np 1"
for i in 0 1 2 3 4 5 6 7; do
    ask "$i" "$work/out$i" || fail "alone $i: $(cat "$work/out$i.err")"
    alone[i]=$(answer "$work/out$i")
done
expect "different prompts answer differently" "$(printf '%s\n' "${alone[@]}" | sort -u | wc -l)" 8
at_once 0 1 2
wait_all "-np 1, three at once" 0 1 2
all_equal "-np 1, three at once" 0 1 2
down || fail "down"

# --- eight at once
requests_last 12
up "${options[@]}" -np 8 --log-level debug --hang-ms 600000 || fail "up -np 8"
for i in 0 1 2 3 4 5 6 7; do
    ask "$i" "$work/out$i" || fail "alone on -np 8: $i: $(cat "$work/out$i.err")"
done
all_equal "-np 8, one after the other" 0 1 2 3 4 5 6 7
all_at_once
status >"$work/status"
signal_worker CONT gpu_worker
expect "a line for each" "$(field "$work/status" '.requests | length')" 8
expect "each on a sequence of its own" "$(field "$work/status" '[.requests[].sequence] | unique | length')" 8
wait_all "eight at once" 0 1 2 3 4 5 6 7
all_equal "eight at once" 0 1 2 3 4 5 6 7

# --- one is cancelled while the others go on
at_once 0 1 2 3 4 6 7
ask 5 "$work/out5" -n 2000 &
pids[5]=$!
wait_for 60 status_is '[.requests[] | select(.prompt_tokens > 1900 and .predicted_tokens > 0)] | length == 1' || fail "it does not decode"
kill -INT "$(pgrep -P "${pids[5]}")" # hillctl, below the shell of the job
wait "${pids[5]}"
expect "the cancelled one: exit code" $? 130
wait_all "one cancelled" 0 1 2 3 4 6 7
all_equal "one cancelled" 0 1 2 3 4 6 7
wait_for 20 idle || fail "not idle after a cancel"

# --- workers die while eight run: all are computed again
down || fail "down"
requests_last 30
up "${options[@]}" -np 8 --log-level debug --hang-ms 600000 || fail "up -np 8"
for worker in cpu_scorer gpu_worker; do
    at_once 0 1 2 3 4 5 6 7
    wait_for 60 decoding 2 || fail "nothing decodes"
    kill_worker $worker
    wait_all "$worker killed" 0 1 2 3 4 5 6 7
    all_equal "$worker killed" 0 1 2 3 4 5 6 7
    expect "restarts of $worker" "$(cat "$work"/out[0-7] | jq -s "map(.restarts.$worker) | max")" 1
done

# --- little memory and a drive: entries move while the attention reads hot ones in place, or copies of them; a scorer dies
down || fail "down"
requests_last 20
for copy in "" 1; do
    for placement in bkp recency; do
        rows=$([ $placement = bkp ] && echo 3 || echo 1) # in flight; the answers are the same
        HILL_TEST_COPY_HOT=$copy up "${options[@]}" -np 3 --beta 0.25 --hot-mb 12 --placement $placement \
            --rows-in-flight "$rows" || fail "up -np 3, $placement"
        at_once 0 1 3
        wait_all "-np 3, $placement, copy '$copy'" 0 1 3
        all_equal "-np 3, $placement, copy '$copy'" 0 1 3
        expect "$placement, copy '$copy': something went down" "$(cat "$work"/out[013] | jq -s 'map(.. | .demoted? // empty) | add > 0')" true
        at_once 0 1 3
        wait_for 60 decoding 2 || fail "nothing decodes"
        kill_worker cpu_scorer
        wait_all "-np 3, $placement, copy '$copy', scorer killed" 0 1 3
        all_equal "-np 3, $placement, copy '$copy', scorer killed" 0 1 3
        expect "-np 3, $placement, copy '$copy', scorer killed: in time" "$(cat "$work"/out[013] | jq -s 'any(.recovery.attempts > 1)')" true
        down || fail "down"
    done
done
requests_last 12
up "${options[@]}" -np 8 --log-level debug --hang-ms 600000 || fail "up -np 8"

# --- more than eight wait and are served in the order in which they came
log=$state_dir/hillinfer.log
lines=$(wc -l <"$log")
all_at_once
more=()
for i in 0 1 2 3; do
    ask $i "$work/more$i" &
    more[i]=$!
done
wait_for 30 status_is '.requests_waiting == 4' || fail "nobody waits"
signal_worker CONT gpu_worker
wait_all "twelve" 0 1 2 3 4 5 6 7
for i in 0 1 2 3; do
    wait "${more[i]}" || fail "the one that waited: $(cat "$work/more$i.err")"
    expect "the one that waited, $i" "$(answer "$work/more$i" | md5sum)" "$(echo "${alone[i]}" | md5sum)"
done
started=$(tail -n +$((lines + 1)) "$log" | sed -n 's/.*request \([0-9]*\): starting on sequence .*/\1/p' | tr '\n' ' ')
expect "twelve were started" "$(wc -w <<<"$started")" 12
expect "in order" "$started" "$(tr ' ' '\n' <<<"$started" | sort -n | sed '/^$/d' | tr '\n' ' ')"
down || fail "down"

# --- without a drive and with little memory, a long one has no room beside others: it waits, and nobody fails
up "${options[@]}" -np 4 --csd none --hot-mb 11 --log-level debug || fail "up --csd none"
at_once 0 1 2 3 4 5 6 7
wait_all "no room beside the others" 0 1 2 3 4 5 6 7
all_equal "no room beside the others" 0 1 2 3 4 5 6 7
grep -q 'no room beside the others' "$log" || fail "everything had room: this checks nothing"
down || fail "down"
expect_nothing_left
finish

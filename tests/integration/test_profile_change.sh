#!/usr/bin/env bash
# The device model changes while the two sides are being measured: what comes out is of neither model, so nothing is kept of it
# under either, and the client that asked is told; the next measurement is kept.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
export HILL_HANG_MS=60000 # the scorer is stopped for as long as two clients take

small_model "$work/random.gguf" --layers 5 -s 7
kept() { jq -r '.profiles | keys[] | sub(".*model "; "")' "$state_dir/profile.json" 2>/dev/null; }
model() { "$bin/hillctl" csd-model "$1" --run-dir "$run_dir"; }
# shellcheck disable=SC2317  # through wait_for
measured() { kept | grep -qxF -- "$1"; }

up -m "$work/random.gguf" -c 4096 --beta auto || fail "up"
wait_for 30 measured off || fail "nothing is measured at the start: $(kept)"
signal_worker STOP cpu_scorer # so that the measurement and both changes reach it together
first=$(model flash=2.5,score=3.2) || fail "csd-model"
second=$(model score=0.2) || fail "csd-model"
signal_worker CONT cpu_scorer
wait_for 30 measured "$second" || fail "the second model is not measured: $(kept)"
expect "nothing is kept of the first" "$(kept | grep -cxF -- "$first")" 0
# asked for by a client
signal_worker STOP cpu_scorer
"$bin/hillctl" profile --run-dir "$run_dir" >"$work/profile" 2>&1 &
client=$!
asked $client
expect_one_line "a second client" 100 "$bin/hillctl" profile --run-dir "$run_dir"
expect "a second client: is told to wait" "$(grep -c 'speeds are being measured for another client: try again' "$work/err")" 1
third=$(model score=0.3) || fail "csd-model"
signal_worker CONT cpu_scorer
wait $client
expect "a client that asked: exit code" $? 100
expect "a client that asked: is told" "$(grep -c 'was changed while' "$work/profile")" 1
wait_for 30 measured "$third" || fail "the third model is not measured: $(kept)"
down || fail "down"
expect_nothing_left
finish

#!/usr/bin/env bash
# --speculate: what is selected depends on the mode, never on placement, SIMD path, the way hot entries are read, other requests or a
# worker that dies; verify selects what off does.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 10

small_model "$work/random.gguf" --layers 5 -s 7
for i in 0 1 2 3; do tail -c +$((1 + 700 * i)) "$text" | head -c $((500 + 200 * i)) >"$work/prompt$i"; done
{
    printf 'Once upon a time, there was a little girl named Lily. %.0s' 1 2 3 4 5 6
    printf 'She loved to play outside in the park with her dog. One day, she saw a big, red ball. %.0s' 1 2 3 4 5
} >"$work/story"

placements=("--csd none" "--beta 4 --placement bkp" "--beta 0.25 --placement bkp" "--beta 0.25 --placement recency"
    "--beta 0.25 --placement bkp --pin 0.02 --simd reference")

# hashes_of NAME MODE ARGUMENTS...: of every placement, read in place and copied; they must be one, which is left in $hashes
hashes_of() {
    local name=$1 mode=$2 placement copy got
    shift 2
    hashes=""
    for placement in "${placements[@]}"; do
        for copy in "" 1; do
            [ "$copy" = "" ] || [ "$placement" = "--csd none" ] || [ "$placement" = "--beta 0.25 --placement bkp" ] || continue
            # shellcheck disable=SC2086  # words on purpose
            HILL_TEST_COPY_HOT=$copy run_json "$work/out" "$@" --temp 0 --ignore-eos --speculate "$mode" --exact-layers 1 $placement ||
                fail "$name $mode $placement: $(cat "$work/out.err")"
            got=$(field "$work/out" '"\(.selection_hash) \(.logits_hash)"')
            hashes=${hashes:-$got}
            expect "$name, $mode, $placement, copy '$copy': hashes" "$got" "$hashes"
            expect "$name, $mode, $placement: mode" "$(field "$work/out" .speculate)" "$mode"
            [ "$mode" = verify ] || continue
            expect "$name, $placement: a recall of each layer but the first" \
                "$(field "$work/out" '[.speculation.recall_per_layer | (.[0] == null), (.[1:][] | . > 0 and . < 1)] | all')" true
            case $placement in
            *none*) expect "$name, $placement: late fetches" "$(field "$work/out" .speculation.late_fetches)" 0 ;;
            *0.25*)
                expect "$name, $placement: late fetches, but not of all" \
                    "$(field "$work/out" '.speculation.late_fetches > 0 and .speculation.late_fetches < .tiers.cold.hits')" true
                ;;
            esac
        done
    done
}

# modes NAME ARGUMENTS...
modes() {
    local name=$1 off on
    shift
    hashes_of "$name" off "$@"
    off=$hashes
    hashes_of "$name" on "$@"
    on=$hashes
    hashes_of "$name" verify "$@"
    expect "$name: verify answers as off" "$hashes" "$off"
    [ "${on% *}" != "${off% *}" ] || fail "$name: guesses select what exact queries do: this checks nothing"
    run_json "$work/out" "$@" --temp 0 --ignore-eos --speculate on --exact-layers 1024 --csd none || fail "exact layers: $(cat "$work/out.err")"
    expect "$name: on with every layer exact answers as off" "$(field "$work/out" '"\(.selection_hash) \(.logits_hash)"')" "$off"
}

modes random -m "$work/random.gguf" -c 2048 --alpha 0.1 -f "$work/prompt2" -n 24
placements=("${placements[0]}" "${placements[2]}") # real weights: where nothing moves, and where most does
if [ -r "$models/stories260K.gguf" ]; then
    modes stories -m "$models/stories260K.gguf" -c 512 --alpha 0.1 --sinks 2 --window 8 -f "$work/story" -n 40
else
    echo "without stories260K: the reference models are not in $models"
fi
run_json "$work/out" -m "$work/random.gguf" -c 2048 --policy full -f "$work/prompt2" -n 12 --temp 0 --ignore-eos --csd none || fail "policy full"
full=$(field "$work/out" .logits_hash)
for mode in on verify; do
    run_json "$work/out" -m "$work/random.gguf" -c 2048 --policy full -f "$work/prompt2" -n 12 --temp 0 --ignore-eos --speculate $mode --beta 0.5 || fail "policy full, $mode"
    expect "policy full, $mode" "$(field "$work/out" .logits_hash)" "$full"
done

# --- several at once, and workers that die
options=(-m "$work/random.gguf" -c 2048 --alpha 0.1 --beta 0.25 --exact-layers 1)
ask() { # I OUTPUT
    "$bin/hillctl" generate -f "$work/prompt$1" -n 120 --temp 0.8 -s $((100 + $1)) --ignore-eos --json --run-dir "$run_dir" >"$2" 2>"$2.err"
}
answer() { jq -r '"\(.finish_reason) \(.tokens | join(" ")) \(.selection_hash) \(.logits_hash)"' "$1"; }
# at_once NAME [WORKER]: four at once, as alone; the worker is killed while they decode
at_once() {
    local name=$1 worker=${2:-} i pids=()
    for i in 0 1 2 3; do
        ask "$i" "$work/out$i" &
        pids[i]=$!
    done
    if [ -n "$worker" ]; then
        wait_for 60 decoding 1 || fail "$name: nothing decodes"
        kill_worker "$worker"
    fi
    for i in 0 1 2 3; do
        wait "${pids[i]}" || fail "$name: request $i: $(cat "$work/out$i.err")"
        expect "$name, request $i" "$(answer "$work/out$i" | md5sum)" "${alone[i]}"
    done
    [ -z "$worker" ] || expect "$name: restarts" "$(cat "$work"/out[0-3] | jq -s "map(.restarts.$worker) | max")" 1
}
for mode in off on verify; do
    alone=()
    up "${options[@]}" --speculate $mode || fail "up $mode"
    for i in 0 1 2 3; do
        ask $i "$work/out$i" || fail "$mode alone $i: $(cat "$work/out$i.err")"
        alone[i]=$(answer "$work/out$i" | md5sum)
        [ $mode = off ] && off_alone[i]=${alone[i]}
        [ $mode = verify ] && expect "verify answers as off, request $i" "${alone[i]}" "${off_alone[i]}"
    done
    down || fail "down"
    [ $mode = off ] && continue
    requests_last 30
    up "${options[@]}" --speculate $mode -np 4 || fail "up -np 4 $mode"
    requests_last 10
    at_once "$mode, four at once"
    for worker in cpu_scorer gpu_worker csd_agent; do at_once "$mode, $worker killed" $worker; done
    down || fail "down"
done
expect_nothing_left
finish

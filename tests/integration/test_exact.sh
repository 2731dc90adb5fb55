#!/usr/bin/env bash
# Exact while it is cheap: below --exact-below tokens every policy attends to all of them, from there on to its selection; at
# 2047, 2048 and 2049 tokens, across the border in one answer, in a session, with guesses, and in the caps.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
unset HILL_EXACT_BELOW

small_model "$work/random.gguf"
options=(-m "$work/random.gguf" -c 4096 --beta 0.25 --temp 0 --ignore-eos)

for n in 2046 2047 2048 2049; do head -c $((n - 1)) "$text" >"$work/p$n"; done # a byte is a token, one is the start of the text

# run NAME PROMPT TOKENS ARGUMENTS...
run() {
    local name=$1 prompt=$2 n=$3
    shift 3
    run_json "$work/$name" "${options[@]}" -f "$work/$prompt" -n "$n" "$@" || fail "$name: $(cat "$work/$name.err")"
}
of() { # NAME: what is compared of an answer
    field "$work/$1" '"\(.prompt_tokens) \(.budget) \(.selection_hash) \(.logits_hash)"'
}

# the second token's query covers the prompt
for n in 2047 2048 2049; do
    run default "p$n" 2
    expect "$n tokens: exact_below" "$(field "$work/default" .exact_below)" 2048
    expect "$n tokens: of the prompt" "$(field "$work/default" .prompt_tokens)" $n
    run full "p$n" 2 --policy full
    run off "p$n" 2 --exact-below 0
    expect "$n tokens, --exact-below 0: tokens a query" "$(field "$work/off" .budget)" 410
    same=off
    [ $n -ge 2048 ] || same=full
    expect "$n tokens: as $same" "$(of default)" "$(of $same)"
    [ "$(of full)" != "$(of off)" ] || fail "$n tokens: nothing tells the two apart"
    [ $n != 2047 ] || full=$(of full) off=$(of off) full_logits=$(field "$work/full" .logits_hash) # they are compared with below
done

# who asks for a share or a budget has it, unless --exact-below is given, too
run alpha p2047 2 --alpha 0.2
expect "--alpha alone" "$(field "$work/alpha" .exact_below) $(of alpha)" "0 $off"
HILL_BUDGET=410 run budget p2047 2
expect "HILL_BUDGET alone" "$(field "$work/budget" .exact_below) $(of budget)" "0 $off"
run both p2047 2 --alpha 0.2 --exact-below 2048
expect "--alpha with --exact-below" "$(of both)" "$full"

# across the border in one answer, wherever entries lie and however queries are made, under every policy
run across p2046 8
expect "across the border: tokens of the prompt" "$(field "$work/across" .prompt_tokens)" 2046
expect "across the border: tokens a query at the end" "$(field "$work/across" .budget)" 411
for other in "--csd none" "--hot-mb 8 --beta 0.05 --placement recency" "--speculate verify" "-t 1 --simd reference"; do
    # shellcheck disable=SC2086  # words
    run other p2046 8 $other
    expect "across the border, $other" "$(of other)" "$(of across)"
done
run guessed p2046 8 --speculate on
run other p2046 8 --speculate on --csd none
expect "across the border, --speculate on" "$(of other)" "$(of guessed)"
for policy in h2o oracle leoam prefetch; do
    run cross p2046 8 --policy $policy
    run other p2046 8 --policy $policy --hot-mb 12 --beta 0.1
    expect "$policy across the border" "$(of other)" "$(of cross)"
    run exact p2047 2 --policy $policy
    expect "$policy at 2047: logits" "$(field "$work/exact" .logits_hash)" "$full_logits"
done

# a session saved below, after a decode step, and restored; the term is the pipeline's
up "${options[@]:0:4}" --beta 0.25 || fail "up"
expect "status: exact_below" "$(status | jq .exact_below)" 2048
head -c 3000 "$text" >"$work/p3001"
expect_one_line "a request that selects more than the pipeline does" 1 "$bin/hillctl" generate --run-dir "$run_dir" -f "$work/p3001" -n 2 --policy full
grep -q 'select 3003 entries a layer, and this pipeline has reserved 2048 ' "$work/err" || fail "the refusal does not say why: $(cat "$work/err")"
[ -n "$(segments)" ] || fail "no segments of a running pipeline are found"
hillctl generate -f "$work/p2046" -n 2 --temp 0 --ignore-eos --json --save "$work/s" >"$work/part" || fail "save"
hillctl restore "$work/s" -n 6 --json >"$work/rest" || fail "restore"
expect "restored across the border" "$(hashes "$work/rest") $(field "$work/rest" .budget)" "$(hashes "$work/across") 411"
down || fail "down"
up "${options[@]:0:4}" --exact-below 1024 || fail "up"
expect_one_line "restored with --exact-below 1024" 100 hillctl restore "$work/s" -n 6
grep -qF -- '--exact-below 2048' "$work/err" || fail "the refusal does not name the term: $(cat "$work/err")"
down || fail "down"

# the caps are for all of a short context
run_json "$work/out" "${options[@]}" -f "$work/p2047" -n 2 --budget 100 --gpu-kv-mb 5 || fail "a small GPU cap: $(cat "$work/out.err")"
expect_one_line "a GPU cap below what is exact" 1 "$hillinfer" run --run-dir "$run_dir" --state-dir "$state_dir" \
    "${options[@]}" -f "$work/p2047" -n 2 --budget 100 --exact-below 2048 --gpu-kv-mb 5
grep -q -- '--gpu-kv-mb' "$work/err" || fail "the refusal does not name the cap: $(cat "$work/err")"
expect_nothing_left
finish

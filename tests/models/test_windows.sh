#!/usr/bin/env bash
# A model with windows in most layers (Gemma 3 270M), with a prompt longer than its window of 512 tokens: selection and logits do not
# depend on placement, and what decode attended to is what prefill does: the text goes on alike when its beginning is in the prompt.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
real_model gemma270m gemma-3-270m-q4_k_m.gguf
head -c 3600 LICENSE >"$work/licence"
weights_in_memory "$work/licence"

first=""
for placement in "--csd none" "--beta 0.25 --placement bkp" "--beta 1 --placement recency"; do
    # shellcheck disable=SC2086  # words on purpose
    run_json "$work/out" -m "$model" -f "$work/licence" -n 16 -c 1024 --temp 0 --alpha 0.3 $placement || fail "$placement: $(cat "$work/out.err")"
    hashes=$(field "$work/out" '"\(.selection_hash) \(.logits_hash)"')
    [ -n "$first" ] || first=$hashes
    expect "$placement: hashes" "$hashes" "$first"
done

run_json "$work/out" -m "$model" -f "$work/licence" -n 16 -c 1024 --temp 0 --policy full || fail "full: $(cat "$work/out.err")"
[ "$(field "$work/out" .prompt_tokens)" -gt 600 ] || fail "the prompt is no longer than the window"
for kept in 3 7; do
    # the text's beginning as a prompt: of whole words, so that its tokens are those
    beginning=$(field "$work/out" .text | head -n 1 | cut -d ' ' -f "1-$((kept + 1))")
    printf '%s%s' "$(cat "$work/licence")" "$beginning" >"$work/longer"
    run_json "$work/next" -m "$model" -f "$work/longer" -n 6 -c 1024 --temp 0 --policy full || fail "full: $(cat "$work/next.err")"
    whole=$(field "$work/out" .text) rest=$(field "$work/next" .text)
    case $whole in
    "$beginning$rest"*) pass "after $kept words: $rest" ;;
    *) fail "after '$beginning' came '$rest', not what is in '$whole'" ;;
    esac
done
finish

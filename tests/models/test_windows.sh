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

# --- a prompt over entries that are there: another question behind a document longer than the window, the document cut short
# (within the window of what goes, and far before it), both again out of the store on the drive, and two at once
unset HILL_NO_PREFIX_CACHE
stored=(-m "$model" -c 1600 --alpha 0.3 -np 2 --prefix-dir "$work/store" --prefix-mb 200)
for i in 1 2; do
    { cat "$work/licence" && tail -c $((60 * i)) "$text"; } >"$work/asked$i"
done
head -c 3300 "$work/licence" >"$work/cut"
head -c 1500 "$work/licence" >"$work/short"
ask() { # OUTPUT ARGUMENTS...
    local out=$1
    shift
    hillctl generate -n 12 --temp 0 --ignore-eos --json "$@" >"$out" 2>"$out.err" || { fail "$out: $(cat "$out.err")" && return 1; }
}
answer() { field "$1" '"\(.tokens) \(.selection_hash) \(.logits_hash)"'; }
takes() { # NAME PROMPT LEAST: at least so many tokens are taken, and the answer is the whole prompt's
    ask "$work/out" -f "$work/$2"
    expect "$1: answer" "$(answer "$work/out")" "$(answer "$work/$2.whole")"
    expect "$1: taken" "$(field "$work/out" ".prefix.reused_tokens >= $3")" true
}
up "${stored[@]}" --beta 0.25 || fail "up"
for i in asked1 asked2 cut short; do ask "$work/$i.whole" --no-prefix-cache -f "$work/$i"; done
takes "the first" asked1 0
takes "another question" asked2 600
takes "the document cut short" cut 600
takes "cut far before" short 250
ask "$work/both" -f "$work/asked1" &
ask "$work/out" -f "$work/asked2"
wait $! || fail "one beside another"
expect "two at once, one" "$(answer "$work/both")" "$(answer "$work/asked1.whole")"
expect "two at once, the other" "$(answer "$work/out")" "$(answer "$work/asked2.whole")"
down
up "${stored[@]}" --csd none || fail "up"
takes "out of the store" asked2 600
expect "it came from the drive" "$(field "$work/out" '.prefix.from_drive_tokens >= 600')" true
takes "the document cut short, of the store's" cut 600
takes "cut far before, of the store's" short 250
down

# --- only the important tokens of it first: a layer with a window takes its window
selects=(--csd none --prefix-attention select)
up "${stored[@]}" "${selects[@]}" || fail "up"
takes "a store without keys" asked2 600
down
up "${stored[@]}" "${selects[@]}" || fail "up"
ask "$work/both" -n 60 -p "The opposite of hot is" & # layers with a window are queued one behind the other meanwhile
wait_for 60 decoding 1 || fail "nothing decodes"
ask "$work/out" -f "$work/asked1"
wait $! || fail "one beside another"
expect "important tokens" "$(field "$work/out" '"\(.prefix.attention) \(.prefix.loaded_later_bytes > .prefix.loaded_bytes)"')" "select true"
takes "behind important tokens" asked2 600
down
# out of caches that hold a part of what a question takes: what it gives without them
for caches in "" "--prefix-cache-mb 2 --prefix-gpu-cache-mb 2"; do
    # shellcheck disable=SC2086 # two options, or none
    up "${stored[@]}" "${selects[@]}" -np 1 $caches || fail "up"
    for i in 1 2 3; do
        ask "$work/out" -f "$work/asked2"
        [ -e "$work/important" ] || cp "$work/out" "$work/important"
        expect "important tokens, $i: attention $caches" "$(field "$work/out" .prefix.attention)" select
        expect "important tokens, $i: answer $caches" "$(answer "$work/out")" "$(answer "$work/important")"
        ask "$work/whole" --no-prefix-cache -f "$work/asked1" # it takes the slot
    done
    down
done
expect "some of it was in the caches" "$(field "$work/out" '.prefix | .loaded_bytes > 0 and .cached_gpu_bytes > 0')" true
finish

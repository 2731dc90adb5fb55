#!/usr/bin/env bash
# tests/long/questions.sh - QUESTIONS=20 on one document: it is read once, every answer is that of a fresh run of document and
# question, and from the second on the time to the first token is at most a twentieth of the first's.
#
# SmolLM2 (MODEL: another file) on DOCUMENT (default: the GPL; another text) cut to BYTES, with CONTEXT; FRESH: so many
# questions, evenly spread, are also answered fresh (default: all). About a quarter of an hour on two CPUs. Prints a line a
# question: tokens computed, ms to the first token, of them fresh.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
unset HILL_NO_PREFIX_CACHE HILL_EXACT_BELOW

questions=${QUESTIONS:-20} fresh=${FRESH:-$questions} context=${CONTEXT:-8192} bytes=${BYTES:-29000}
name=SmolLM2-135M-Instruct.Q4_1.gguf
model=${MODEL:-$(model_file "$name")}
[ -n "$model" ] || skip "$name is not there (scripts/hillinfer get-models smollm2)"
head -c "$bytes" "${DOCUMENT:-$text}" >"$work/document"

ask() { # QUESTION OUTPUT ARGUMENTS...
    local out=$2
    { cat "$work/document" && printf '\n\nQuestion %s: what does the %s word of the text mean?\nAnswer:' "$1" "$(($1 * 7))th"; } >"$work/prompt"
    shift 2
    hillctl generate -f "$work/prompt" -n 16 --temp 0 --ignore-eos --json "$@" >"$out" 2>"$out.err" || fail "question: $(cat "$out.err")"
}
answer() { field "$1" '"\(.tokens) \(.selection_hash) \(.logits_hash)"'; }

up -m "$model" -c "$context" -np 1 || fail "up"
hillctl generate -p "Hello." -n 2 --no-prefix-cache >"$work/warm" 2>&1 || fail "warm-up: $(cat "$work/warm")" # kernels are loaded
: >"$work/ttft"
for ((i = 1; i <= questions; i++)); do
    ask "$i" "$work/answer$i"
    prompt=$(field "$work/answer$i" .prompt_tokens) computed=$(field "$work/answer$i" .prefix.computed_tokens)
    [ "$i" = 1 ] && expect "the first computes all" "$computed" "$prompt"
    [ "$i" = 1 ] || expect "question $i computes itself alone" "$((computed < 64))" 1
    echo "question $i: $computed of $prompt tokens computed, $(field "$work/answer$i" '.ttft_ms | floor') ms" | tee -a "$work/ttft"
done
for ((k = 0; k < fresh; k++)); do
    i=$((1 + k * questions / fresh))
    ask "$i" "$work/fresh" --no-prefix-cache
    expect "question $i fresh: all is computed" "$(field "$work/fresh" .prefix.reused_tokens)" 0
    expect "question $i: the answer of a fresh run" "$(answer "$work/answer$i")" "$(answer "$work/fresh")"
    echo "question $i fresh: $(field "$work/fresh" '.ttft_ms | floor') ms"
done
first=$(field "$work/answer1" .ttft_ms)
for ((i = 2; i <= questions; i++)); do field "$work/answer$i" .ttft_ms; done | sort -g >"$work/later"
worst=$(tail -n 1 "$work/later") median=$(sed -n "$((questions / 2))p" "$work/later")
echo "first $first ms; later: median $median, longest $worst"
awk -v first="$first" -v worst="$worst" 'BEGIN {exit !(worst * 20 <= first)}' || fail "the longest later one is more than a twentieth of the first"
down
expect_nothing_left
finish

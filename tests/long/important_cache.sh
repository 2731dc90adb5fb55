#!/usr/bin/env bash
# tests/long/important_cache.sh - --prefix-cache-mb and --prefix-gpu-cache-mb on real documents: bytes that questions load
# before their first token when what stays is chosen by importance and frequency, and by age alone (LRU), at equal memory.
#
# DOCUMENTS (6) pieces of BYTES (16000) of TEXT (Moby-Dick; docs/data.md) are read once, with SmolLM2 (MODEL: another file),
# then QUESTIONS (48) are asked, in the same order with both rules; SEED draws it, some documents are asked oftener. CACHES: sizes
# in MiB, 24 in memory alone, 12+12 on the device and in memory. Fails where importance loads no fewer bytes than age. Prints a line a size. About ten minutes on two CPUs.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
unset HILL_NO_PREFIX_CACHE HILL_EXACT_BELOW

documents=${DOCUMENTS:-6} bytes=${BYTES:-16000} questions=${QUESTIONS:-48} seed=${SEED:-16} caches=${CACHES:-8 24 48}
name=SmolLM2-135M-Instruct.Q4_1.gguf
source=${TEXT:-${BENCH_DATA:-build/bench/data}/mobydick.txt}
model=${MODEL:-$(model_file "$name")}
[ -n "$model" ] || skip "$name is not there (scripts/hillinfer get-models smollm2)"
[ -r "$source" ] || skip "$source is not there (docs/data.md)"
echo "SEED=$seed"
for ((d = 0; d < documents; d++)); do tail -c +$((30000 + d * bytes)) "$source" | head -c "$bytes" >"$work/document$d"; done
asked=("Who is speaking?" "Where does this happen?" "What does the captain want?" "What is said about the sea?"
    "Which animals are named?" "What happens last?" "Who is afraid, and of what?" "What time of the day is it?")
# never a document twice in a row: the tiers would have it
awk -v n="$questions" -v d="$documents" -v q="${#asked[@]}" -v seed="$seed" 'BEGIN {
    srand(seed); last = -1
    for (i = 0; i < n; ) {
        x = int(rand() * d); y = int(rand() * d); x = y < x ? y : x
        if (x == last) continue
        print x, int(rand() * q); last = x; i++
    } }' >"$work/order"
pipeline=(-m "$model" -c 8192 -np 1 --csd none --prefix-dir "$work/store" --prefix-mb 4G --prefix-attention select)

ask() { # DOCUMENT QUESTION OUTPUT
    { cat "$work/document$1" && printf '\n\nQuestion: %s\nAnswer:' "$2"; } >"$work/prompt"
    hillctl generate -f "$work/prompt" -n 1 --temp 0 --ignore-eos --json >"$3" 2>"$3.err" || fail "document $1: $(cat "$3.err")"
}
# of all questions: bytes read, bytes of the caches, of the device's alone, questions
questions_with() { # RULE MIB OUTPUT
    local levels=(--prefix-cache-mb "${2#*+}")
    [ "$2" = "${2#*+}" ] || levels+=(--prefix-gpu-cache-mb "${2%+*}")
    export HILL_TEST_RUN_CACHE=$1
    up "${pipeline[@]}" "${levels[@]}" || fail "up"
    : >"$work/loaded"
    while read -r document question <&3; do
        ask "$document" "${asked[question]}" "$work/answer"
        [ "$(field "$work/answer" .prefix.attention)" = select ] || fail "$1, $2 MiB: all of document $document was read"
        field "$work/answer" '"\(.prefix.loaded_bytes) \(.prefix.cached_bytes) \(.prefix.cached_gpu_bytes)"' >>"$work/loaded"
    done 3<"$work/order"
    awk '{read += $1; cached += $2; device += $3} END {print read, cached, device, NR}' "$work/loaded" >"$3"
    down
}
up "${pipeline[@]}" || fail "up"
for ((d = 0; d < documents; d++)); do ask "$d" "${asked[0]}" "$work/first"; done
down
for mib in $caches; do
    questions_with importance "$mib" "$work/importance"
    questions_with lru "$mib" "$work/lru"
    read -r by_importance cached_importance device_importance n <"$work/importance"
    read -r by_age cached_age device_age n_age <"$work/lru"
    expect "$mib MiB: questions" "$n $n_age" "$questions $questions"
    echo "$mib MiB: a question reads $((by_importance / n)) bytes by importance (cached $((cached_importance / n)), of these on" \
        "the device $((device_importance / n))), $((by_age / n)) by age ($((cached_age / n)), $((device_age / n)))"
    [ "$by_importance" -lt "$by_age" ] || fail "$mib MiB: importance loads no fewer bytes than age"
done
expect_nothing_left
finish

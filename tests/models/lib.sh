# tests/models/lib.sh - what the tests of real models share; sourced, not run.
#
# SmolLM2 is tested by `make check` where it lies; the larger ones only by `make check-models`.
# shellcheck shell=bash source=../integration/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../integration/lib.sh"

# real_model NAME FILE: $model is its path; skips where there is none. A pipeline that attends to everything is up, since to load such
# a model takes longer than a short request; weights_in_memory ends it.
real_model() {
    [ "$1" = smollm2 ] || [ -n "${HILL_CHECK_MODELS:-}" ] || skip "make check-models runs $1"
    model=$(model_file "$2") || skip "$2 is not there: scripts/hillinfer get-models $1"
    up -m "$model" -c 1024 --csd none --policy full || fail "up"
}

fully() { # OUTPUT ARGUMENTS...: a request to that pipeline; errors go to OUTPUT.err
    local out=$1
    shift
    hillctl generate --json --temp 0 --ignore-eos "$@" >"$out" 2>"$out.err"
}

# The ids and the text are the same prompt: as many tokens, the same logits.
same_prompt() { # DESCRIPTION IDS TEXT ARGUMENTS...
    local description=$1 ids=$2 text=$3
    shift 3
    fully "$work/ids" -n 1 --token-ids -p "$ids" || fail "$description: $(cat "$work/ids.err")"
    fully "$work/text" -n 1 -p "$text" "$@" || fail "$description: $(cat "$work/text.err")"
    expect "$description: tokens" "$(field "$work/text" .prompt_tokens)" "$(wc -w <<<"$ids")"
    expect "$description: logits" "$(field "$work/text" .logits_hash)" "$(field "$work/ids" .logits_hash)"
}

# greedy TEXT WANTED: the ids of the answer
greedy() {
    fully "$work/greedy" -n "$(wc -w <<<"$2")" -p "$1" || fail "$1: $(cat "$work/greedy.err")"
    expect "greedy after '$1'" "$(field "$work/greedy" '.tokens | join(" ")')" "$2"
}

# perplexity WANTED TOKENS: of the reference sentence (the first token is given), within 3 %: the reference is
# arithmetic in F32 on the dequantised weights, the product rounds activations
perplexity() {
    local sentence="It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. The capital of France is Paris, and the capital of Germany is Berlin."
    fully "$work/ppl" -p "$sentence" --score-from 1 || fail "perplexity: $(cat "$work/ppl.err")"
    expect "perplexity: scored tokens" "$(field "$work/ppl" '.logprobs | length')" $(($2 - 1))
    field "$work/ppl" '-(.logprobs | add / length) | exp' >"$work/value"
    awk -v wanted="$1" '{exit !($1 > 0.97 * wanted && $1 < 1.03 * wanted)}' "$work/value" || fail "perplexity $(cat "$work/value"), wanted $1"
    pass "perplexity $(cat "$work/value"), F32 arithmetic: $1"
}

# placements PROMPT-FILE N ARGUMENTS...: hot only, mostly on the drive, no drive: equal hashes
placements() {
    local prompt=$1 n=$2 first="" placement hot cold entries
    shift 2
    for placement in "--csd none" "--beta 4 --placement bkp" "--beta 0.25 --placement recency"; do
        # shellcheck disable=SC2086  # words on purpose
        run_json "$work/out" -m "$model" "$@" -f "$prompt" -n "$n" --temp 0 --ignore-eos $placement || fail "$placement: $(cat "$work/out.err")"
        [ -n "$first" ] || first=$(hashes "$work/out")
        expect "$placement: hashes" "$(hashes "$work/out")" "$first"
        read -r hot cold <<<"$(field "$work/out" '"\(.tiers.hot.tokens) \(.tiers.cold.tokens)"')"
        entries=$((hot + cold))
        case $placement in
        *none*) expect "$placement: cold entries" "$cold" 0 ;;
        *0.25*) [ $((cold * 100)) -ge $((entries * 75)) ] || fail "$placement: only $cold of $entries entries are cold" ;;
        esac
    done
    HILL_TEST_WRONG_SCORE=100 run_json "$work/out" -m "$model" "$@" -f "$prompt" -n "$n" --temp 0 --ignore-eos --beta 0.25 || fail "wrong score: $(cat "$work/out.err")"
    [ "$(field "$work/out" .selection_hash)" != "${first% *}" ] || fail "a wrong score for a cold entry did not change the selection"
}

# weights_in_memory PROMPT-FILE: after a prompt the GPU worker's packed weights (its mappings that ask for huge pages: here no other
# buffer is that large) and what it still maps of the file take at most 10 % more than the file; of the file itself at most 8 % is mapped
weights_in_memory() {
    local size packed left
    size=$(stat -L -c %s "$model")
    hillctl generate -f "$1" -n 8 --temp 0 --ignore-eos >"$work/out" 2>&1 || fail "generate: $(cat "$work/out")"
    awk -v file="$(readlink -f "$model")" '
        /^[0-9a-f]+-[0-9a-f]+ / {named = $6; ours = $0 ~ file "$"}
        /^Pss:/ {pss = $2 * 1024; left += ours ? pss : 0}
        /^VmFlags:/ && / hg( |$)/ && named == "" {packed += pss}
        END {print packed + 0, left + 0}' "/proc/$(worker_pid gpu_worker)/smaps" >"$work/pss"
    down
    read -r packed left <"$work/pss"
    [ $((size * 8)) -ge $((left * 100)) ] || fail "$left bytes of the file's $size are mapped after it was packed"
    [ "$packed" -gt 0 ] || {
        echo "packed weights are not measured: this kernel has no huge pages"
        return
    }
    [ $((packed * 10)) -gt $((size * 5)) ] || fail "$packed bytes cannot be the packed weights of $size"
    [ $(((packed + left) * 10)) -le $((size * 11)) ] || fail "weights of $size bytes take $packed and $left of the file"
    pass "weights: PSS $packed packed, $left of the file, which has $size"
}

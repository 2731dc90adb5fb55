#!/usr/bin/env bash
# Real weights: the first 60 greedy tokens of stories260K equal llama.cpp's (expected.md), with every KV entry attended to in both policies.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
need_models
[ -r "$models/expected.md" ] || skip "expected.md is not in $models"

# The text between the fences under the heading "## PROMPT".
expected() {
    awk -v heading="## $1" '$0 == heading {found = 1} found && /^```/ {if (inside) exit; inside = 1; next} inside {print}' "$models/expected.md"
}

for prompt in "Once upon a time" "One day, a little boy named Tim went to the park"; do
    wanted=$(expected "$prompt")
    [ -n "$wanted" ] || fail "no expected text for '$prompt'"
    for policy in "--policy full" "--policy hillinfer --alpha 1.0"; do
        # shellcheck disable=SC2086  # two words on purpose
        run_json "$work/out" -m "$models/stories260K.gguf" -c 512 $policy -p "$prompt" -n 60 --temp 0 || fail "run: $(cat "$work/out.err")"
        text=$(field "$work/out" .text)
        expect "$policy, '$prompt': tokens" "$(field "$work/out" .predicted_tokens)" 60
        if [ ${#text} -ge 150 ] && [[ $wanted == "$text"* ]]; then
            pass "$policy, '$prompt': ${#text} characters equal"
        else
            fail "$policy, '$prompt': got '$text'"
        fi
        expect "$policy: keys over the link" "$(field "$work/out" .bytes.link_key)" 0
    done
done
expect_nothing_left
finish

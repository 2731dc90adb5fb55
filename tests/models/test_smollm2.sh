#!/usr/bin/env bash
# SmolLM2-135M-Instruct (Q4_1): greedy ids, perplexity, tokens of a chat's marks, and hashes that do not depend on where entries lie.
# Reference values: F32 arithmetic in numpy on the dequantised weights.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
real_model smollm2 SmolLM2-135M-Instruct.Q4_1.gguf
greedy "The capital of France is" "7042 30 198 198 504 2988 314 42"
perplexity 7.683 44
same_prompt "a text" "504 3575 282 4649 314" "The capital of France is"
# <|im_start|> is 1, <|im_end|> 2; typed, they are text
same_prompt "a chat's marks" "1 4093 198 504 3575 282 4649 314 2" $'<|im_start|>user\nThe capital of France is<|im_end|>' --special
fully "$work/out" -n 1 -p "<|im_start|>" || fail "generate: $(cat "$work/out.err")"
[ "$(field "$work/out" .prompt_tokens)" -gt 1 ] || fail "a control token that was typed was taken as one"
head -c 2400 "$text" >"$work/prompt"
weights_in_memory "$work/prompt"
placements "$work/prompt" 12 -c 2048 --alpha 0.1
expect_nothing_left
finish

#!/usr/bin/env bash
# Qwen2.5-Coder-0.5B-Instruct (Q4_K_M): greedy ids, perplexity, and hashes that do not depend on where entries lie.
# Reference values: F32 arithmetic in numpy on the dequantised weights.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
real_model qwen0.5b qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
greedy "The capital of France is" "12095 13 12095 374 7407 304"
perplexity 5.558 44
same_prompt "a text" "785 6722 315 9625 374" "The capital of France is"
head -c 2400 "$text" >"$work/prompt"
weights_in_memory "$work/prompt"
placements "$work/prompt" 12 -c 2048 --alpha 0.1
expect_nothing_left
finish

#!/usr/bin/env bash
# Qwen2.5-Coder-1.5B-Instruct (Q4_K_M): greedy ids, perplexity, what its weights take.
# Reference values: F32 arithmetic in numpy on the dequantised weights.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
real_model qwen1.5b qwen2.5-coder-1.5b-instruct-q4_k_m.gguf
greedy "The capital of France is" "12095 13"
perplexity 2.932 44
head -c 2400 "$text" >"$work/prompt"
weights_in_memory "$work/prompt"
expect_nothing_left
finish

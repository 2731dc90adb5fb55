/*
 * gateway/fill.h - the prompt of an infill, as Qwen Coder reads it.
 *
 * What: the texts before and after what is wanted, and before them those of other files, each
 * behind its name: llama-server's order and names. Where the vocabulary lacks the tokens that part
 * files, the other files are left out. Pure. Who calls it: job_generate.c. Failure: NULL, out of
 * memory. Concurrency: stateless.
 */
#pragma once

#include "gateway/order.h"

/* Tokens of Qwen Coder's vocabulary: what is before, what is after, what is wanted; what begins
 * several files, and each of them. */
#define FILL_BEFORE "<|fim_prefix|>"
#define FILL_AFTER  "<|fim_suffix|>"
#define FILL_WANTED "<|fim_middle|>"
#define FILL_WHOLE  "<|repo_name|>"
#define FILL_FILE   "<|file_sep|>"

/* *n of them, the caller's to free; their texts are the order's. files: the vocabulary has the
 * tokens for several files. */
struct prompt_piece *fill_pieces(const struct order *order, bool files, size_t *n);

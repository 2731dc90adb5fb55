/*
 * tools/bench/peer.h - other engines' programs beside the running pipeline, on the same model file
 * and as many threads.
 *
 * What: PEER_DIR names folders of llama-bench, and of llama-completion or llama-cli, with ":"
 * between them, each followed by flags of its own after a space ("/a/bin:/b/bin -rtr 1");
 * PEER_NAMES ("llama.cpp:ik_llama.cpp") is what they are called in a section, which must not name
 * paths. Without PEER_DIR there is no peer, and a figure says so. Who calls it: bench_decode.c,
 * bench_models.c, bench_prefill.c (the first peer alone).
 * Concurrency: one thread. Failure: bench_fail() when a program gives no number.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tools/bench/harness.h"

#define PEERS_MAX 8u

bool peer_is_there(void);
uint32_t peer_count(void);
/* What a section calls it: of PEER_NAMES, or "peer 1". */
const char *peer_name(uint32_t index);
/* Its entry of PEER_DIR. */
const char *peer_given(uint32_t index);

/* What its llama-cli or llama-completion says of itself: "version: 4840 (8337e4cd3)". */
const char *peer_version(uint32_t index);
/* A line for a section: the first n peers' versions. */
void peer_print_versions(uint32_t n);

/* llama-bench: tokens a second of the one test that `options` ask for, with flags as peer_flags
 * gives them. */
double peer_bench_of(uint32_t index, const char *model, const char *options, const char *flags);

/* Does the --help of its llama-bench have these words? */
bool peer_bench_knows(uint32_t index, const char *words);

/* Sets of flags to choose the best of: those of PEER_DIR alone, or else what llama-bench --help
 * offers of -fa and -rtr, 0 and 1. How many. */
#define PEER_FLAGS_MAX 4u
uint32_t peer_flags(uint32_t index, char flags[PEER_FLAGS_MAX][128]);
/* Each set `runs` times, in turn; the best by its median. speeds: of each set. */
uint32_t peer_best_flags(uint32_t index, const char *model, const char *options, uint32_t runs,
                         double speeds[PEER_FLAGS_MAX]);

/* What its llama-bench is asked for decoding at a depth, which it says in one way or another. */
void peer_depth_options(uint32_t index, uint32_t depth, uint32_t steps, char out[64]);

/* Tokens a second of `steps` steps after the prompt in file `prompt`, of `depth` tokens, whose KV
 * state the program keeps in file `state` for the next time: a prompt is read once. */
double peer_decode_of(uint32_t index, const char *model, const char *flags, const char *prompt,
                      const char *state, uint32_t depth, uint32_t steps);

/* Of speeds of each peer: which peer's median is the highest. */
uint32_t peer_fastest(const struct bench_samples *speeds);

/* The first peer on model.gguf of the figure's folder: its best flags for a test of llama-bench
 * (each set `runs` times, PEER_PROBES where the test is short), and that test. */
#define PEER_PROBES 3u
void peer_first_flags(const char *options, uint32_t runs, char flags[128]);
double peer_first_bench(const char *options, const char *flags);

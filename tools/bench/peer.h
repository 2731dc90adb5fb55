/*
 * tools/bench/peer.h - llama.cpp's programs beside the running pipeline, on the same model file and
 * as many threads.
 *
 * What: PEER_DIR names the folder of llama-bench and llama-cli; without it there is no peer, and a
 * figure says so. The model is model.gguf of the figure's folder (dense_model.h). Who calls it:
 * bench_decode.c, bench_prefill.c, bench_models.c. Concurrency: one thread. Failure: bench_fail() when a program
 * gives no number.
 */
#ifndef HILL_BENCH_PEER_H
#define HILL_BENCH_PEER_H

#include <stdbool.h>
#include <stdint.h>

bool peer_is_there(void);

/* llama-bench: tokens a second of the one test that `options` ask for. */
double peer_bench(const char *options);

/* Several peers: PEER_DIR may be folders one after the other with ":" between them, each followed by
 * options of its own after a space ("/a/bin:/b/bin -rtr 1"). How many; the i-th as it was given; its
 * llama-bench on any model file. peer_bench and peer_decode use the first. */
uint32_t peer_count(void);
const char *peer_name(uint32_t index);
double peer_bench_of(uint32_t index, const char *model, const char *options);

/* llama-cli: tokens a second of `steps` steps after the prompt NAME.txt of `depth` tokens, whose KV
 * state it keeps in the figure's folder for the next time. */
double peer_decode(const char *prompt, uint32_t depth, uint32_t steps);

#endif

/*
 * gpu_worker/prompt_sums.c - checksums of what of a prompt outlives the process.
 *
 * What: a number of 64 bits for each row of 32-bit words: four sums, each over every fourth word,
 * (sum ^ word) * prime, joined in the same way. A row in which one word is another has another sum,
 * always; the device computes it behind a unit's kernels (sum_rows in attention.cl), the host where
 * it has the rows anyway. Who calls it: prompt_memory.c. Concurrency: as the engine's. Failure: the
 * device's.
 */
#include <string.h>

#include "gpu_worker/engine_internal.h"

#define SUM_PRIME UINT64_C(0x9e3779b97f4a7c15) /* as in attention.cl */

static uint64_t row_sum(const uint8_t *row, uint32_t bytes)
{
    uint32_t words = bytes / 4, at = 0, word[4];
    uint64_t h[4];
    for (uint32_t i = 0; i < 4; i++)
        h[i] = words + 1 + i;
    for (; at + 4 <= words; at += 4) {
        memcpy(word, row + 4ull * at, sizeof word);
        for (uint32_t i = 0; i < 4; i++)
            h[i] = (h[i] ^ word[i]) * SUM_PRIME;
    }
    for (; at < words; at++) {
        memcpy(word, row + 4ull * at, sizeof *word);
        h[0] = (h[0] ^ word[0]) * SUM_PRIME;
    }
    return ((h[0] * SUM_PRIME ^ h[1]) * SUM_PRIME ^ h[2]) * SUM_PRIME ^ h[3];
}

void prompt_sum_rows(const uint8_t *rows, uint32_t row_bytes, uint32_t count, uint64_t *sums)
{
    for (uint32_t i = 0; i < count; i++)
        sums[i] = row_sum(rows + (uint64_t)i * row_bytes, row_bytes);
}

bool prompt_sums_fit(const uint8_t *rows, uint32_t row_bytes, uint32_t count, const uint64_t *sums)
{
    for (uint32_t i = 0; i < count; i++)
        if (sums[i] != row_sum(rows + (uint64_t)i * row_bytes, row_bytes))
            return false;
    return true;
}

int prompt_sums_enqueue(struct engine *e, cl_mem rows, uint32_t row_bytes, uint32_t from,
                        uint32_t count, uint32_t to, struct hill_why *why)
{
    uint32_t words = row_bytes / 4;
    return LAUNCH(e, KERNEL_SUM_ROWS, 0, count, 1, NULL, why, ARG_BUFFER(rows), ARG_U32(words),
                  ARG_U32(from), ARG_BUFFER(e->prompt.sums.mem), ARG_U32(to));
}

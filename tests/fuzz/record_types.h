/*
 * tests/fuzz/record_types.h - the record types and geometries that the first two bytes of an input
 * of fuzz_records choose from; shared by the harness and the seed maker.
 */
#pragma once

#include "proto/records.h"

static const uint32_t fuzz_types[] = {
    RECORD_SEQ_BEGIN, RECORD_APPEND,     RECORD_STEP_END,  RECORD_SEQ_END,     RECORD_QUERY,
    RECORD_SELECTION, RECORD_SEQ_READY,  RECORD_SEQ_STATS, RECORD_COMMIT,      RECORD_AGENT_QUERY,
    RECORD_FETCH,     RECORD_TRIM,       RECORD_DEMOTE,    RECORD_SCORE_BLOCK, RECORD_COMPLETION,
    RECORD_RELEASE,   RECORD_READS_DONE, RECORD_READ_KEYS, RECORD_RESUME,      RECORD_READ,
    RECORD_ENTRIES,   RECORD_PROMPT,     RECORD_MASS,      RECORD_ADOPT};
#define FUZZ_N_TYPES (sizeof(fuzz_types) / sizeof(fuzz_types[0]))

static const struct kv_geometry fuzz_geometries[] = {
    {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8},
    {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 1},
    {.n_layers = 1024, .n_heads = 256, .n_kv_heads = 256, .head_dim = 256},
    {.n_layers = 3, .n_heads = 9, .n_kv_heads = 3, .head_dim = 5},
};
#define FUZZ_N_GEOMETRIES (sizeof(fuzz_geometries) / sizeof(fuzz_geometries[0]))

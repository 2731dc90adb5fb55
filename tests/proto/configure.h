/*
 * tests/proto/configure.h - small settings that fit a layout, for tests of recordings, which begin
 * with a Configure, and of who enters an epoch. Pure.
 */
#pragma once

#include "proto/epoch_settings.h"

static inline struct epoch_settings make_settings(const struct layout_input *layout, uint32_t epoch)
{
    return (struct epoch_settings){.run_id = 1,
                                   .epoch = epoch,
                                   .plan = {.geometry = layout->geometry,
                                            .n_embd = 64,
                                            .n_ff = 64,
                                            .n_vocab = 32,
                                            .ctx_tokens = layout->ctx_tokens,
                                            .batch_tokens = 8,
                                            .n_sequences = layout->n_sequences,
                                            .selection.alpha = 0.2},
                                   .model_path = "model.gguf",
                                   .threads = 1,
                                   .gpu_slots = 64,
                                   .staging_slots = 64,
                                   .block_tokens = 16};
}

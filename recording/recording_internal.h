/* recording/recording_internal.h - what the reading and the writing side of recording.h share. */
#pragma once

#include "kv/plane.h"
#include "recording/recording.h"

static inline uint64_t recording_pad(uint64_t bytes)
{
    return (bytes + 7) & ~UINT64_C(7);
}

/* What others have put into memory that is shared: no looks lie before it. */
static inline bool recording_memory(uint8_t kind)
{
    return kind == RECORDING_STAGING || kind == RECORDING_WINDOW;
}

/* Frames of these kinds have no payload. */
static inline bool recording_bare(uint8_t kind)
{
    return kind == RECORDING_ROOM || kind == RECORDING_CREDITS || kind == RECORDING_GONE;
}

/* Bytes of a window of keys; 0: none are read. */
static inline uint32_t recording_window_bytes(const struct epoch_settings *s)
{
    return kv_key_window_bytes(&s->plan.geometry, s->plan.selection.policy, s->plan.ctx_tokens);
}

uint64_t recording_frame_check(const struct recording_frame *frame, const void *payload,
                               uint64_t padded_bytes, uint64_t number);

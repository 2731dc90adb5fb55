/* proto/recording_internal.h - what the reading and the writing side of recording.h share. */
#ifndef HILL_PROTO_RECORDING_INTERNAL_H
#define HILL_PROTO_RECORDING_INTERNAL_H

#include "proto/recording.h"

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

uint64_t recording_frame_check(const struct recording_frame *frame, const void *payload,
                               uint64_t padded_bytes, uint64_t number);

#endif

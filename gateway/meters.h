/*
 * gateway/meters.h - what /metrics tells, in Prometheus' text form.
 *
 * What: counters of what went through this gateway, added up when a request is over, and gauges of
 * the pipeline as its status has them at that moment. Names: docs/http.md. Who calls it: jobs.
 * Concurrency: one thread.
 */
#pragma once

#include <stdint.h>

#include "gateway/text_buffer.h"
#include "proto/hill.pb-c.h"

#define METER_BUCKETS 12u

struct meter_times { /* a histogram: seconds up to the bounds in meters.c */
    uint64_t counts[METER_BUCKETS], n;
    double sum;
};

/* KV entries that decoding has read, and that full attention would have. */
struct attention_bytes {
    double selected, full;
};

struct meters {
    uint64_t prompt_tokens, generation_tokens, requests, refused;
    struct meter_times first_token, between_tokens;
    uint64_t hits[3];  /* gpu, hot, cold */
    uint64_t link[4];  /* key, score, kv, gpu */
    uint64_t moves[3]; /* promoted, demoted, bounced */
    struct attention_bytes attention;
    double stages[6]; /* seconds: gpu_busy, gpu_idle, score_hot, score_cold, merge, fetch */
};

/* Zeros where nothing is known yet. */
struct attention_bytes meters_attention(const Hill__SequenceStats *stats, uint32_t prompt_tokens,
                                        uint32_t predicted_tokens);
void meters_time(struct meter_times *times, double seconds);
void meters_add(struct meters *meters, const Hill__Summary *summary);
void meters_write(struct text_buffer *out, const struct meters *meters,
                  const Hill__StatusReply *status);

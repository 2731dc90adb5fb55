/*
 * csd_agent/fpga/hls_score.c - see hls_score.h.
 *
 * One loop takes a beat a cycle: a group's exponents first, which are kept, then the words of each
 * head. A beat of words is four (INT8) or eight (INT4) dimensions of sixteen tokens, so lanes never
 * meet: each has an int32 accumulator of a head's product, whose addition is all that one cycle
 * leaves to the next (an integer one: a float adder's latency would). With the head's last word the
 * product is shifted and goes into the lane's int64 sum and maximum, with the last head the score
 * is made. Several query heads of a KV head are as many passes over the same digests, which lie in
 * the card's memory: the loop stays as it is, and between passes sums and maxima lie in block RAM.
 * Reads are consecutive and unconditional, so that they become bursts; scores are gathered
 * and written as one. Integers of standard types only, no pointer is cast: Vitis HLS and gcc
 * (-Wno-unknown-pragmas) compile the same file. README.md derives what it costs.
 */
#include "csd_agent/fpga/hls_score.h"

#include <stdbool.h>

#define CHUNK_GROUPS 256u /* of a burst of scores */

/* What is held while digests stream past. */
struct held {
    uint32_t query[HLS_QUERY_WORDS_MAX];
    uint8_t shifts[HLS_HEADS_MAX];
    uint64_t offsets[HLS_HEADS_MAX];
    uint32_t exponents[HLS_KV_HEADS_MAX / 4][HLS_LANES]; /* of the group: beats as they came */
};

struct shape {
    uint32_t n_kv_heads, passes, head_words, exponent_beats, group_beats;
    bool maximum; /* of terms, not their sum */
};

/* Of each token, between passes. */
struct values {
    uint64_t sum[CHUNK_GROUPS][HLS_LANES];
    int64_t maximum[CHUNK_GROUPS][HLS_LANES];
};

/* Of each token. */
struct lanes {
    int32_t product[HLS_LANES];
    uint64_t sum[HLS_LANES];
    int64_t maximum[HLS_LANES];
};

static int32_t signed_byte(uint32_t word, uint32_t j)
{
#pragma HLS INLINE
    uint32_t byte = word >> (8 * j) & 255u;
    return (int32_t)(byte ^ 128u) - 128;
}

/* A nibble is the mantissa + 8; dimensions 0..3 are the lower ones of the bytes. */
static int32_t nibble(uint32_t word, uint32_t j)
{
#pragma HLS INLINE
    return (int32_t)(word >> (8 * (j % 4) + 4 * (j / 4)) & 15u) - 8;
}

/* A word of one token with the query's. */
static int32_t word_product(bool int4, uint32_t word, const uint32_t query[2])
{
#pragma HLS INLINE
    int32_t sum = 0;
    for (uint32_t j = 0; j < 8; j++) {
#pragma HLS UNROLL
        if (int4)
            sum += nibble(word, j) * signed_byte(query[j / 4], j % 4);
        else if (j < 4)
            sum += signed_byte(word, j) * signed_byte(query[0], j);
    }
    return sum;
}

static uint32_t floor_log2(uint64_t a)
{
#pragma HLS INLINE
    uint32_t e = 0;
    for (uint32_t i = 0; i < 6; i++) {
#pragma HLS UNROLL
        uint32_t step = 32u >> i;
        if (a >> step != 0) {
            a >>= step;
            e += step;
        }
    }
    return e;
}

/* kv_score16: sign, exponent, 9 bits of mantissa; monotone. */
static uint16_t score16(int64_t value)
{
#pragma HLS INLINE
    uint64_t a = value < 0 ? (uint64_t)0 - (uint64_t)value : (uint64_t)value;
    uint32_t magnitude = (uint32_t)a;
    if (a >= 512) {
        uint32_t e = floor_log2(a);
        magnitude = ((e - 8u) << 9) | ((uint32_t)(a >> (e - 9u)) & 511u);
    }
    return (uint16_t)(value < 0 ? 0x7fffu - magnitude : 0x8000u + magnitude);
}

/* A head's words are over: its term, in unsigned numbers and modulo 64, so that a damaged exponent
 * gives the reference's wrong score. */
static void add_term(const struct held *held, struct lanes *lanes, uint32_t head, uint32_t term_at)
{
#pragma HLS INLINE
    for (uint32_t t = 0; t < HLS_LANES; t++) {
#pragma HLS UNROLL
        uint32_t four = held->exponents[head / 4][head % 4 * 4 + t / 4];
        uint32_t shift = (four >> (8 * (t % 4)) & 255u) + held->shifts[term_at];
        uint64_t term =
            ((uint64_t)(int64_t)lanes->product[t] << (shift & 63u)) - held->offsets[term_at];
        lanes->sum[t] = (head == 0 ? 0 : lanes->sum[t]) + term;
        if (head == 0 || (int64_t)term > lanes->maximum[t])
            lanes->maximum[t] = (int64_t)term;
    }
}

static void add_words(bool int4, const struct held *held, struct lanes *lanes,
                      const uint32_t words[HLS_LANES], uint32_t at, bool first)
{
#pragma HLS INLINE
    uint32_t query[2] = {held->query[int4 ? 2 * at : at], int4 ? held->query[2 * at + 1] : 0};
    for (uint32_t t = 0; t < HLS_LANES; t++) {
#pragma HLS UNROLL
        int32_t product = word_product(int4, words[t], query);
        lanes->product[t] = (first ? 0 : lanes->product[t]) + product;
    }
}

/* A group's last head is over in this pass. */
static void end_group(const struct shape *shape, uint32_t pass, const struct lanes *lanes,
                      uint32_t group, struct values *values, uint16_t made[CHUNK_GROUPS][HLS_LANES])
{
#pragma HLS INLINE
    for (uint32_t t = 0; t < HLS_LANES; t++) {
#pragma HLS UNROLL
        uint64_t sum = (pass == 0 ? 0 : values->sum[group][t]) + lanes->sum[t];
        int64_t maximum = lanes->maximum[t];
        if (pass != 0 && values->maximum[group][t] > maximum)
            maximum = values->maximum[group][t];
        values->sum[group][t] = sum;
        values->maximum[group][t] = maximum;
        made[group][t] = score16(shape->maximum ? maximum : (int64_t)sum);
    }
}

/* One pass over at most CHUNK_GROUPS groups, from beat `at` on; the last one makes the scores. */
static void score_groups(bool int4, const struct shape *shape, uint32_t pass, struct held *held,
                         const uint32_t *digests, uint32_t at, uint32_t n_groups,
                         struct values *values, uint16_t made[CHUNK_GROUPS][HLS_LANES])
{
    struct lanes lanes = {{0}, {0}, {0}};
#pragma HLS ARRAY_PARTITION variable = lanes.product complete
#pragma HLS ARRAY_PARTITION variable = lanes.sum complete
#pragma HLS ARRAY_PARTITION variable = lanes.maximum complete
    const uint32_t n_beats = n_groups * shape->group_beats;
    uint32_t group = 0, position = 0, head = 0, word = 0; /* of the beat: in its group, its head */

    for (uint32_t beat = 0; beat < n_beats; beat++) {
#pragma HLS PIPELINE II = 1
        uint32_t words[HLS_LANES];
#pragma HLS ARRAY_PARTITION variable = words complete
        for (uint32_t t = 0; t < HLS_LANES; t++) {
#pragma HLS UNROLL
            words[t] = digests[(at + beat) * HLS_LANES + t];
        }
        if (position < shape->exponent_beats) {
            for (uint32_t t = 0; t < HLS_LANES; t++) {
#pragma HLS UNROLL
                held->exponents[position][t] = words[t];
            }
            position++;
            continue;
        }
        add_words(int4, held, &lanes, words,
                  (head * shape->passes + pass) * shape->head_words + word, word == 0);
        position++;
        word++;
        if (word < shape->head_words)
            continue;
        add_term(held, &lanes, head, head * shape->passes + pass);
        word = 0;
        head++;
        if (head < shape->n_kv_heads)
            continue;
        end_group(shape, pass, &lanes, group, values, made);
        group++;
        position = 0;
        head = 0;
    }
}

static void write_scores(uint16_t *scores, uint32_t first_group, uint32_t n_groups,
                         uint16_t made[CHUNK_GROUPS][HLS_LANES])
{
    for (uint32_t group = 0; group < n_groups; group++) {
#pragma HLS PIPELINE II = 1
        for (uint32_t t = 0; t < HLS_LANES; t++) {
#pragma HLS UNROLL
            scores[(first_group + group) * HLS_LANES + t] = made[group][t];
        }
    }
}

static void hold_query(bool int4, const struct shape *shape, struct held *held,
                       const uint32_t *query)
{
    uint32_t terms = shape->n_kv_heads * shape->passes;
    uint32_t n_words = terms * shape->head_words * (int4 ? 2 : 1);
    const uint32_t *words = query + 2 * terms;
    for (uint32_t h = 0; h < terms; h++) {
#pragma HLS PIPELINE II = 2
        held->offsets[h] = query[2 * h] | (uint64_t)query[2 * h + 1] << 32;
    }
    for (uint32_t w = 0; w < n_words; w++) {
#pragma HLS PIPELINE II = 1
        held->query[w] = words[w];
    }
    for (uint32_t h = 0; h < terms; h++) {
#pragma HLS PIPELINE II = 1
        held->shifts[h] = (uint8_t)(words[n_words + h / 4] >> (8 * (h % 4)));
    }
}

static void score_runs(bool int4, const uint32_t *digests, const uint32_t *runs,
                       const uint32_t *query, uint32_t n_runs, uint32_t n_kv_heads,
                       uint32_t query_heads, uint32_t head_words, uint32_t importance,
                       uint16_t *scores)
{
#pragma HLS INLINE
    const struct shape shape = {.n_kv_heads = n_kv_heads,
                                .passes = importance == HLS_BY_QUERY_HEAD ? query_heads : 1,
                                .head_words = head_words,
                                .exponent_beats = (n_kv_heads + 3) / 4,
                                .group_beats = (n_kv_heads + 3) / 4 + n_kv_heads * head_words,
                                .maximum = importance != 0};
    struct held held;
    struct values values;
    uint16_t made[CHUNK_GROUPS][HLS_LANES];
#pragma HLS ARRAY_PARTITION variable = held.query cyclic factor = 2
#pragma HLS ARRAY_PARTITION variable = values.sum complete dim = 2
#pragma HLS ARRAY_PARTITION variable = values.maximum complete dim = 2
#pragma HLS ARRAY_PARTITION variable = held.exponents complete dim = 2
#pragma HLS ARRAY_PARTITION variable = made complete dim = 2

    hold_query(int4, &shape, &held, query);
    for (uint32_t r = 0; r < n_runs; r++) {
        uint32_t at = runs[r * HLS_RUN_WORDS], n_groups = runs[r * HLS_RUN_WORDS + 1];
        uint32_t to = runs[r * HLS_RUN_WORDS + 2];
        for (uint32_t done = 0; done < n_groups; done += CHUNK_GROUPS) {
            uint32_t n = n_groups - done < CHUNK_GROUPS ? n_groups - done : CHUNK_GROUPS;
            for (uint32_t pass = 0; pass < shape.passes; pass++)
                score_groups(int4, &shape, pass, &held, digests, at + done * shape.group_beats, n,
                             &values, made);
            write_scores(scores, to + done, n, made);
        }
    }
}

void hill_score_int8(const uint32_t *digests, const uint32_t *runs, const uint32_t *query,
                     uint32_t n_runs, uint32_t n_kv_heads, uint32_t query_heads,
                     uint32_t head_words, uint32_t importance, uint16_t *scores)
{
#pragma HLS INTERFACE m_axi port = digests bundle = keys max_widen_bitwidth = 512
#pragma HLS INTERFACE m_axi port = runs bundle = small
#pragma HLS INTERFACE m_axi port = query bundle = small
#pragma HLS INTERFACE m_axi port = scores bundle = scores max_widen_bitwidth = 256
    score_runs(false, digests, runs, query, n_runs, n_kv_heads, query_heads, head_words, importance,
               scores);
}

void hill_score_int4(const uint32_t *digests, const uint32_t *runs, const uint32_t *query,
                     uint32_t n_runs, uint32_t n_kv_heads, uint32_t query_heads,
                     uint32_t head_words, uint32_t importance, uint16_t *scores)
{
#pragma HLS INTERFACE m_axi port = digests bundle = keys max_widen_bitwidth = 512
#pragma HLS INTERFACE m_axi port = runs bundle = small
#pragma HLS INTERFACE m_axi port = query bundle = small
#pragma HLS INTERFACE m_axi port = scores bundle = scores max_widen_bitwidth = 256
    score_runs(true, digests, runs, query, n_runs, n_kv_heads, query_heads, head_words, importance,
               scores);
}

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

/* What is held while digests stream past. Of the query: [term of a pass][KV head, then pass]. */
struct held {
    uint32_t query[HLS_TERMS][HLS_QUERY_WORDS_MAX]; /* ... then word */
    uint8_t shifts[HLS_TERMS][HLS_HEADS_MAX];
    uint64_t offsets[HLS_TERMS][HLS_HEADS_MAX];
    uint32_t exponents[HLS_KV_HEADS_MAX / 4][HLS_LANES]; /* of the group: beats as they came */
};

struct shape {
    uint32_t n_kv_heads, terms; /* terms: of a KV head */
    uint32_t passes, head_words, exponent_beats, group_beats;
    bool maximum; /* of terms, not their sum, whose KV heads have one term */
};

/* Of each token. */
struct lanes {
    int32_t product[HLS_TERMS][HLS_LANES];
    int64_t value[HLS_LANES]; /* of the terms so far: the sum or the maximum */
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

static uint32_t at_most(uint32_t value, uint32_t most)
{
#pragma HLS INLINE
    return value < most ? value : most;
}

/* Of each KV head. */
static uint32_t terms_in(const struct shape *shape, uint32_t pass)
{
#pragma HLS INLINE
    uint32_t left = shape->terms - pass * HLS_TERMS;
    return left < HLS_TERMS ? left : HLS_TERMS;
}

/* A head's words are over: its terms in this pass, in unsigned numbers and with limits of shifts,
 * so that damaged bytes give the reference's wrong score. Where terms are summed a head has one, so
 * among them the largest is right for both, and only that one meets what the beats before left. */
static void add_terms(const struct shape *shape, const struct held *held, struct lanes *lanes,
                      uint32_t head, uint32_t pass)
{
#pragma HLS INLINE
    const uint32_t slot = head * shape->passes + pass, n_terms = terms_in(shape, pass);
    for (uint32_t t = 0; t < HLS_LANES; t++) {
#pragma HLS UNROLL
        uint32_t four = held->exponents[head / 4][head % 4 * 4 + t / 4];
        uint32_t exponent = four >> (8 * (t % 4)) & 255u;
        int64_t largest = INT64_MIN;
        for (uint32_t u = 0; u < HLS_TERMS; u++) {
#pragma HLS UNROLL
            if (u >= n_terms)
                continue;
            uint32_t shift = at_most(exponent, 16) + at_most(held->shifts[u][slot], 8);
            int64_t term = (int64_t)(((uint64_t)(int64_t)lanes->product[u][t] << shift) -
                                     held->offsets[u][slot]);
            if (term > largest)
                largest = term;
        }
        if (head == 0 || (shape->maximum && largest > lanes->value[t]))
            lanes->value[t] = largest;
        else if (!shape->maximum)
            lanes->value[t] = (int64_t)((uint64_t)lanes->value[t] + (uint64_t)largest);
    }
}

static void add_words(bool int4, const struct held *held, struct lanes *lanes,
                      const uint32_t words[HLS_LANES], uint32_t n_terms, uint32_t at, bool first)
{
#pragma HLS INLINE
    for (uint32_t u = 0; u < HLS_TERMS; u++) {
#pragma HLS UNROLL
        if (u >= n_terms)
            continue;
        const uint32_t query[2] = {held->query[u][int4 ? 2 * at : at],
                                   int4 ? held->query[u][2 * at + 1] : 0};
        for (uint32_t t = 0; t < HLS_LANES; t++) {
#pragma HLS UNROLL
            int32_t product = word_product(int4, words[t], query);
            lanes->product[u][t] = (first ? 0 : lanes->product[u][t]) + product;
        }
    }
}

/* A group's last head is over in this pass. maxima: of the passes before. */
static void end_group(uint32_t pass, const struct lanes *lanes, int64_t maxima[HLS_LANES],
                      uint16_t made[HLS_LANES])
{
#pragma HLS INLINE
    for (uint32_t t = 0; t < HLS_LANES; t++) {
#pragma HLS UNROLL
        int64_t value = lanes->value[t];
        if (pass != 0 && maxima[t] > value)
            value = maxima[t];
        maxima[t] = value;
        made[t] = score16(value);
    }
}

/* One pass over at most CHUNK_GROUPS groups, from beat `at` on; the last one makes the scores. */
static void score_groups(bool int4, const struct shape *shape, uint32_t pass, struct held *held,
                         const uint32_t *digests, uint32_t at, uint32_t n_groups,
                         int64_t maxima[CHUNK_GROUPS][HLS_LANES],
                         uint16_t made[CHUNK_GROUPS][HLS_LANES])
{
    struct lanes lanes = {{{0}}, {0}};
#pragma HLS ARRAY_PARTITION variable = lanes.product complete dim = 0
#pragma HLS ARRAY_PARTITION variable = lanes.value complete
    const uint32_t n_beats = n_groups * shape->group_beats, n_terms = terms_in(shape, pass);
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
        add_words(int4, held, &lanes, words, n_terms,
                  (head * shape->passes + pass) * shape->head_words + word, word == 0);
        position++;
        word++;
        if (word < shape->head_words)
            continue;
        add_terms(shape, held, &lanes, head, pass);
        word = 0;
        head++;
        if (head < shape->n_kv_heads)
            continue;
        end_group(pass, &lanes, maxima[group], made[group]);
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

/* A query's terms, one after the other, to where a pass finds them: a term of its KV head, and that
 * head. */
struct place {
    uint32_t term, head;
};

static void next_place(const struct shape *shape, struct place *place)
{
#pragma HLS INLINE
    place->term++;
    if (place->term == shape->terms) {
        place->term = 0;
        place->head++;
    }
}

static uint32_t slot_of(const struct shape *shape, struct place place)
{
#pragma HLS INLINE
    return place.head * shape->passes + place.term / HLS_TERMS;
}

static void hold_query(bool int4, const struct shape *shape, struct held *held,
                       const uint32_t *query)
{
    const uint32_t terms = shape->n_kv_heads * shape->terms;
    const uint32_t term_words = shape->head_words * (int4 ? 2 : 1), n_words = terms * term_words;
    const uint32_t *words = query + 2 * terms;
    struct place place = {0, 0};
    for (uint32_t i = 0; i < terms; i++, next_place(shape, &place)) {
#pragma HLS PIPELINE II = 2
        held->offsets[place.term % HLS_TERMS][slot_of(shape, place)] =
            query[2 * i] | (uint64_t)query[2 * i + 1] << 32;
    }
    place = (struct place){0, 0};
    for (uint32_t i = 0, word = 0; i < n_words; i++) {
#pragma HLS PIPELINE II = 1
        held->query[place.term % HLS_TERMS][slot_of(shape, place) * term_words + word] = words[i];
        word++;
        if (word == term_words) {
            word = 0;
            next_place(shape, &place);
        }
    }
    place = (struct place){0, 0};
    for (uint32_t i = 0; i < terms; i++, next_place(shape, &place)) {
#pragma HLS PIPELINE II = 1
        held->shifts[place.term % HLS_TERMS][slot_of(shape, place)] =
            (uint8_t)(words[n_words + i / 4] >> (8 * (i % 4)));
    }
}

static void score_runs(bool int4, const uint32_t *digests, const uint32_t *runs,
                       const uint32_t *query, uint32_t n_runs, uint32_t n_kv_heads,
                       uint32_t query_heads, uint32_t head_words, uint32_t importance,
                       uint16_t *scores)
{
#pragma HLS INLINE
    const uint32_t terms = importance == HLS_BY_QUERY_HEAD ? query_heads : 1;
    const struct shape shape = {.n_kv_heads = n_kv_heads,
                                .terms = terms,
                                .passes = hls_passes(terms),
                                .head_words = head_words,
                                .exponent_beats = (n_kv_heads + 3) / 4,
                                .group_beats = (n_kv_heads + 3) / 4 + n_kv_heads * head_words,
                                .maximum = importance != 0};
    struct held held;
    int64_t maxima[CHUNK_GROUPS][HLS_LANES];
    uint16_t made[CHUNK_GROUPS][HLS_LANES];
#pragma HLS ARRAY_PARTITION variable = held.query complete dim = 1
#pragma HLS ARRAY_PARTITION variable = held.query cyclic factor = 2 dim = 2
#pragma HLS ARRAY_PARTITION variable = held.shifts complete dim = 1
#pragma HLS ARRAY_PARTITION variable = held.offsets complete dim = 1
#pragma HLS ARRAY_PARTITION variable = held.exponents complete dim = 2
#pragma HLS ARRAY_PARTITION variable = maxima complete dim = 2
#pragma HLS ARRAY_PARTITION variable = made complete dim = 2

    hold_query(int4, &shape, &held, query);
    for (uint32_t r = 0; r < n_runs; r++) {
        uint32_t at = runs[r * HLS_RUN_WORDS], n_groups = runs[r * HLS_RUN_WORDS + 1];
        uint32_t to = runs[r * HLS_RUN_WORDS + 2];
        for (uint32_t done = 0; done < n_groups; done += CHUNK_GROUPS) {
            uint32_t n = n_groups - done < CHUNK_GROUPS ? n_groups - done : CHUNK_GROUPS;
            for (uint32_t pass = 0; pass < shape.passes; pass++)
                score_groups(int4, &shape, pass, &held, digests, at + done * shape.group_beats, n,
                             maxima, made);
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

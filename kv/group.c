/*
 * kv/group.c - digests of single tokens into and out of groups (kv/group.h). Concurrency: pure
 * functions. Failure: none.
 */
#include "kv/group.h"

#include <string.h>

#define LANE_STRIDE                                                                                \
    ((uint64_t)KV_GROUP_TOKENS * sizeof(uint32_t)) /* from a token's word to its next */

static uint64_t group_at(const struct kv_geometry *g, uint64_t index)
{
    return index / KV_GROUP_TOKENS * kv_group_bytes(g);
}

/* Of a token, from the start of the groups: its exponent of head 0, its first word of head h. */
static uint64_t exponent_at(const struct kv_geometry *g, uint64_t index)
{
    return group_at(g, index) + index % KV_GROUP_TOKENS;
}

static uint64_t words_at(const struct kv_geometry *g, uint64_t index, uint32_t h)
{
    return group_at(g, index) + kv_group_mantissas_at(g) +
           (uint64_t)h * kv_head_words(g) * LANE_STRIDE +
           index % KV_GROUP_TOKENS * sizeof(uint32_t);
}

/* Dimensions of the head from `mantissas` on as a word; n: how many there are. */
static uint32_t word_of(const int8_t *mantissas, uint32_t n, uint32_t bits)
{
    uint32_t word = 0;
    if (bits == 8) {
        memcpy(&word, mantissas, n < 4 ? n : 4);
        return word;
    }
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t nibble = (uint32_t)((i < n ? mantissas[i] : 0) + KV_NIBBLE_BIAS);
        word |= (nibble & 15u) << (8 * (i % 4) + 4 * (i / 4));
    }
    return word;
}

static void word_to(int8_t *mantissas, uint32_t n, uint32_t bits, uint32_t word)
{
    if (bits == 8) {
        memcpy(mantissas, &word, n < 4 ? n : 4);
        return;
    }
    for (uint32_t i = 0; i < 8 && i < n; i++)
        mantissas[i] =
            (int8_t)((int32_t)(word >> (8 * (i % 4) + 4 * (i / 4)) & 15u) - KV_NIBBLE_BIAS);
}

void kv_digest_put_head(const struct kv_geometry *g, uint8_t *groups, uint64_t index, uint32_t h,
                        const int8_t *mantissas, uint8_t exponent)
{
    uint8_t *at = groups + words_at(g, index, h);
    uint32_t bits = kv_digest_bits(g), dims = kv_word_dims(g);
    groups[exponent_at(g, index) + h * KV_GROUP_TOKENS] = exponent;
    for (uint32_t i = 0; i < g->head_dim; i += dims, at += LANE_STRIDE) {
        uint32_t word = word_of(mantissas + i, g->head_dim - i, bits);
        memcpy(at, &word, sizeof word);
    }
}

uint8_t kv_digest_get_head(const struct kv_geometry *g, const uint8_t *groups, uint64_t index,
                           uint32_t h, int8_t *mantissas)
{
    const uint8_t *at = groups + words_at(g, index, h);
    uint32_t bits = kv_digest_bits(g), dims = kv_word_dims(g);
    for (uint32_t i = 0; i < g->head_dim; i += dims, at += LANE_STRIDE) {
        uint32_t word;
        memcpy(&word, at, sizeof word);
        word_to(mantissas + i, g->head_dim - i, bits, word);
    }
    return groups[exponent_at(g, index) + h * KV_GROUP_TOKENS];
}

static void copy_lane(const struct kv_geometry *g, uint8_t *to, uint64_t to_index,
                      const uint8_t *from, uint64_t from_index)
{
    const uint8_t *word = from + words_at(g, from_index, 0);
    const uint8_t *exponent = from + exponent_at(g, from_index);
    uint8_t *to_word = to + words_at(g, to_index, 0), *to_exponent = to + exponent_at(g, to_index);
    uint64_t words = (uint64_t)g->n_kv_heads * kv_head_words(g);
    for (uint64_t w = 0; w < words; w++)
        memcpy(to_word + w * LANE_STRIDE, word + w * LANE_STRIDE, sizeof(uint32_t));
    for (uint32_t h = 0; h < g->n_kv_heads; h++)
        to_exponent[h * KV_GROUP_TOKENS] = exponent[h * KV_GROUP_TOKENS];
}

void kv_digest_copy(const struct kv_geometry *g, uint8_t *to, uint64_t to_index,
                    const uint8_t *from, uint64_t from_index, uint32_t n)
{
    uint64_t bytes = kv_group_bytes(g);
    for (uint32_t done = 0, some; done < n; done += some) {
        uint64_t a = to_index + done, b = from_index + done;
        some = 1;
        if (a % KV_GROUP_TOKENS != 0 || b % KV_GROUP_TOKENS != 0 || n - done < KV_GROUP_TOKENS) {
            copy_lane(g, to, a, from, b);
            continue;
        }
        some = (n - done) / KV_GROUP_TOKENS * KV_GROUP_TOKENS;
        memcpy(to + a / KV_GROUP_TOKENS * bytes, from + b / KV_GROUP_TOKENS * bytes,
               some / KV_GROUP_TOKENS * bytes);
    }
}

const int8_t *kv_query_words(const struct kv_geometry *g, uint32_t n_heads, const int8_t *mantissas,
                             int8_t *room)
{
    uint32_t padded = kv_head_words(g) * kv_word_dims(g);
    if (padded == g->head_dim)
        return mantissas;
    for (uint32_t h = 0; h < n_heads; h++) {
        memcpy(room + (uint64_t)h * padded, mantissas + (uint64_t)h * g->head_dim, g->head_dim);
        memset(room + (uint64_t)h * padded + g->head_dim, 0, padded - g->head_dim);
    }
    return room;
}

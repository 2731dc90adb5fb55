/* tools/mkmodel/weights_random.c - see weights_random.h. */
#include "tools/mkmodel/weights_random.h"

#include <math.h>

/* splitmix64 (Steele, Lea, Flood 2014): the state may be any counter. */
static uint64_t next_u64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* About N(0, 1): the sum of twelve 16-bit uniforms, exact in integers. */
static double next_normal(uint64_t *state)
{
    int64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        const uint64_t bits = next_u64(state);
        for (int part = 0; part < 4; part++)
            sum += (int64_t)(bits >> 16 * part & 0xffff);
    }
    return (double)(2 * sum - 12 * 65535) / (2 * 65536.0);
}

static double role_deviation(const struct mkmodel_shape *shape, enum tensor_role role,
                             uint64_t row_length)
{
    const double unit = 1 / sqrt((double)row_length);
    switch (role) {
    case ROLE_TOKEN_EMBD:
        /* Tied, it is the unembedding too, and must stay small beside what the layers add, or every
         * token repeats. */
        return shape->tied ? 2 * unit : 1;
    case ROLE_OUTPUT:
        return 2 * unit;
    case ROLE_ATTN_Q:
    case ROLE_ATTN_K:
        return 1.5 * unit; /* attention that prefers some tokens: logits of deviation 2.25 */
    case ROLE_ATTN_OUTPUT:
    case ROLE_FFN_DOWN:
        return unit / sqrt(2.0 * shape->n_layers);
    case ROLE_OUTPUT_NORM:
    case ROLE_ATTN_NORM:
    case ROLE_FFN_NORM:
        return 0.1;
    case ROLE_ATTN_V:
    case ROLE_FFN_GATE:
    case ROLE_FFN_UP:
        break;
    }
    return unit;
}

void random_row(const struct mkmodel_shape *shape, enum tensor_role role, uint32_t layer,
                uint64_t row, float *out)
{
    uint64_t length, rows;
    shape_of_role(shape, role, &length, &rows);
    const double deviation = role_deviation(shape, role, length);
    const double mean = role_is_norm(role) ? 1 : 0;
    uint64_t state = shape->seed;
    state = next_u64(&state) ^ ((uint64_t)layer << 8 | (uint64_t)role);
    state = next_u64(&state) ^ row;
    state = next_u64(&state);
    for (uint64_t i = 0; i < length; i++)
        out[i] = (float)(mean + deviation * next_normal(&state));
}

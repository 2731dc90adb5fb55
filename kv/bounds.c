/* kv/bounds.c - see bounds.h. */
#include "kv/bounds.h"

uint64_t kv_bounds_bytes(const struct kv_geometry *g, uint32_t ctx_tokens)
{
    uint64_t chunks = (uint64_t)ctx_tokens / KV_CHUNK_FINE + ctx_tokens / KV_CHUNK_COARSE + 2;
    return chunks * kv_bounds_halves(g) * sizeof(uint16_t);
}

/* FP16 bits as an integer of the same order. It is its own inverse. */
static int16_t ordered(uint16_t bits)
{
    uint16_t size = bits & 0x7fff, sign = bits & 0x8000;
    size = size > 0x7bff ? 0x7bff : size;
    return (int16_t)(sign ? (uint16_t)~size : size);
}

static uint16_t halves(int16_t value)
{
    return value < 0 ? (uint16_t)((uint16_t)~value | 0x8000u) : (uint16_t)value;
}

typedef int16_t lanes __attribute__((vector_size(32)));

/* The same of 16 values at a time. */
static inline void load_ordered(const uint16_t *from, lanes *out)
{
    lanes bits;
    memcpy(&bits, from, sizeof bits);
    lanes size = bits & 0x7fff, negative = bits >> 15;
    lanes above = size > 0x7bff;
    *out = ((size & ~above) | (above & 0x7bff)) ^ negative;
}

static inline void store_halves(const lanes *value, uint16_t *to)
{
    lanes negative = *value >> 15, bits = (*value ^ negative) | (negative & INT16_MIN);
    memcpy(to, &bits, sizeof bits);
}

static void add_lanes(const uint16_t *keys, uint64_t stride_halfs, uint32_t n, int first,
                      uint16_t *least, uint16_t *largest)
{
    lanes low, high, value;
    load_ordered(first ? keys : least, &low);
    load_ordered(first ? keys : largest, &high);
    for (uint32_t i = 0; i < n; i++, keys += stride_halfs) {
        load_ordered(keys, &value);
        lanes below = value<low, above = value> high;
        low = (value & below) | (low & ~below);
        high = (value & above) | (high & ~above);
    }
    store_halves(&low, least);
    store_halves(&high, largest);
}

void kv_bounds_add(const struct kv_geometry *g, const uint16_t *keys, uint64_t stride_halfs,
                   uint32_t n, int first, uint16_t *abstract)
{
    uint32_t dims = kv_key_dims(g), d = 0;
    uint16_t *least = abstract, *largest = abstract + dims;
    for (; d + 16 <= dims; d += 16)
        add_lanes(keys + d, stride_halfs, n, first, least + d, largest + d);
    for (; d < dims; d++)
        for (uint32_t i = 0; i < n; i++) {
            int16_t value = ordered(keys[i * stride_halfs + d]);
            if ((first && i == 0) || value < ordered(least[d]))
                least[d] = halves(value);
            if ((first && i == 0) || value > ordered(largest[d]))
                largest[d] = halves(value);
        }
}

void kv_bounds_query(const struct kv_geometry *g, const float *prepared, float *positive,
                     float *negative)
{
    for (uint64_t i = 0; i < kv_mass_query_floats(g); i++) {
        positive[i] = prepared[i] > 0 ? prepared[i] : 0.0f;
        negative[i] = prepared[i] < 0 ? prepared[i] : 0.0f;
    }
}

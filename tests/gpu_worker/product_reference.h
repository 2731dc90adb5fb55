/*
 * tests/gpu_worker/product_reference.h - a product with a row of a quantised tensor in plain C, in
 * the order of sums that gpu_worker/product.cl states, from the row as it lies in the file.
 */
#pragma once

#include <math.h>
#include <stdint.h>

#include "base/half.h"
#include "model/blocks.h"

/* 32 activations: integers and their scale. */
static inline float reference_int8(const float x[32], int32_t q[32])
{
    float largest = 0;
    for (int i = 0; i < 32; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    float inverse = largest > 1e-30f ? 127.0f / largest : 0;
    for (int i = 0; i < 32; i++)
        q[i] = (int32_t)rintf(x[i] * inverse);
    return largest > 1e-30f ? largest / 127.0f : 0;
}

/* Integers of values first .. end - 1 times the levels of their codes; *sum: the integers alone. */
static inline int32_t reference_dot(const struct block_format *f, const uint8_t *codes,
                                    const int32_t *q, uint32_t n, int32_t *sum)
{
    int32_t dot = 0;
    *sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        int level = f->table ? f->table[codes[i]] : codes[i] - f->zero;
        dot += level * q[i];
        *sum += q[i];
    }
    return dot;
}

/* The next 32 values of a block, from value `at` on. */
static inline float reference_add(const struct block_format *f, const struct block_parts *p,
                                  uint32_t at, const float x[32], float y)
{
    int32_t q[32], sums[2] = {0, 0};
    float scale = reference_int8(x, q), d = half_to_float(p->d);
    float dmin = half_to_float(p->dmin) * (float)f->min_sign, t = 0;
    uint32_t n = f->sub_items, sub = at / n;
    for (uint32_t h = 0; h < 32 / n; h++) {
        int32_t dot = reference_dot(f, p->codes + at + h * n, q + h * n, n, &sums[h]);
        float s = d * (float)p->scale[sub + h];
        t = h ? fmaf((float)dot, s, t) : (float)dot * s;
    }
    y = fmaf(t, scale, y);
    for (uint32_t h = 0; f->min_sign && h < 32 / n; h++)
        y = fmaf(dmin * (float)p->min[sub + h], (float)sums[h] * scale, y);
    return y;
}

/* Parts of 32 values are added to `slices` sums in turn, which are added in order. */
static inline float reference_quantised(const struct block_format *f, const uint8_t *row,
                                        uint32_t k, const float *x, uint32_t slices)
{
    float y = 0;
    for (uint32_t slice = 0; slice < slices; slice++) {
        float sum = 0;
        for (uint32_t part = slice; part < k / 32; part += slices) {
            struct block_parts p;
            block_split(f, row + (uint64_t)(part * 32 / f->items) * f->bytes, &p);
            sum = reference_add(f, &p, part * 32 % f->items, x + part * 32, sum);
        }
        y = slices > 1 ? y + sum : sum;
    }
    return y;
}

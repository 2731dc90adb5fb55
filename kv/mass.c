/* kv/mass.c - the plain path of kv/mass.h, the choice among paths, and what joins blocks. */
#include "kv/mass.h"

#include <math.h>
#include <stddef.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kv/mass_paths.h"
#include "kv/score.h"

#define MASS_HALVES 0
#define MASS_NAME   "reference"
#define MASS_OPS    kv_mass_plain
#include "kv/mass_lanes.h"

void kv_mass_query(const struct kv_geometry *g, const float *q, float *out)
{
    uint32_t head = kv_mass_head(g);
    float scale = 1.0f / sqrtf((float)g->head_dim);
    memset(out, 0, kv_mass_query_floats(g) * sizeof *out);
    for (uint32_t h = 0; h < g->n_heads; h++)
        for (uint32_t i = 0; i < g->head_dim; i++) {
            float value = q[(uint64_t)h * g->head_dim + i] * scale;
            out[(uint64_t)h * head + i] = isfinite(value) ? value : 0.0f;
        }
}

static int has_avx2(void)
{
#if defined(__x86_64__)
    unsigned a, b, c,
        d; /* not by __builtin_cpu_supports: not every compiler knows the name there */
    return kv_score_has_avx2() && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
#else
    return 0;
#endif
}

const struct kv_mass_ops *kv_mass_choose(const char *name)
{
    int any = strcmp(name, "auto") == 0;
    int avx512 = strcmp(name, "avx512") == 0 || strcmp(name, "avx512vnni") == 0;
    if (strcmp(name, "reference") == 0)
        return &kv_mass_plain;
    if ((any || avx512) && kv_score_has_avx512())
        return &kv_mass_avx512;
    if ((any || strcmp(name, "avx2") == 0) && has_avx2())
        return &kv_mass_avx2;
    return any ? &kv_mass_plain : NULL;
}

void kv_mass_merge_max(float *max, uint32_t row, uint32_t n_blocks)
{
    for (uint32_t b = 1; b < n_blocks; b++)
        for (uint32_t c = 0; c < row; c++)
            if (max[(uint64_t)b * row + c] > max[c])
                max[c] = max[(uint64_t)b * row + c];
}

void kv_mass_merge_sum(const struct kv_geometry *g, const float *sum, uint32_t n_blocks,
                       float *scale)
{
    uint32_t row = kv_mass_row(g);
    memset(scale, 0, row * sizeof *scale);
    for (uint32_t b = 0; b < n_blocks; b++)
        for (uint32_t h = 0; h < g->n_heads; h++)
            scale[h] += sum[(uint64_t)b * row + h];
    for (uint32_t h = 0; h < g->n_heads; h++)
        scale[h] = 1.0f / scale[h]; /* at least 1: the maximum's own weight */
}

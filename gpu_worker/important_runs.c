/* gpu_worker/important_runs.c - see important_runs.h. */
#include "gpu_worker/important_runs.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"

struct run {
    double mass;
    uint32_t index;
};

static int by_mass(const void *a, const void *b)
{
    const struct run *x = a, *y = b;
    if (x->mass != y->mass)
        return x->mass < y->mass ? 1 : -1;
    return x->index < y->index ? 1 : -1;
}

static int by_index(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

uint32_t important_runs(uint32_t n_tokens, uint32_t run_tokens, double share)
{
    double tokens = ceil(share * n_tokens);
    tokens = tokens < IMPORTANT_LEAST ? IMPORTANT_LEAST : tokens;
    uint32_t runs = (uint32_t)ceil(tokens / run_tokens), all = n_tokens / run_tokens;
    return runs < all ? runs : all;
}

double important_mass(const float *mass, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += mass[i] > 0 ? mass[i] : 0;
    return sum;
}

int important_choose(const float *mass, uint32_t n_runs, uint32_t run_tokens, uint32_t wanted,
                     uint32_t *out)
{
    struct run *runs = malloc((n_runs + 1ull) * sizeof *runs);
    uint32_t newest = (IMPORTANT_NEWEST + run_tokens - 1) / run_tokens;
    if (!runs)
        return HILL_E_NOMEM;
    for (uint32_t i = 0; i < n_runs; i++) {
        bool always = i == 0 || i + newest >= n_runs;
        runs[i] = (struct run){
            always ? INFINITY : important_mass(mass + (uint64_t)i * run_tokens, run_tokens), i};
    }
    qsort(runs, n_runs, sizeof *runs, by_mass);
    for (uint32_t i = 0; i < wanted; i++)
        out[i] = runs[i].index;
    qsort(out, wanted, sizeof *out, by_index);
    free(runs);
    return 0;
}

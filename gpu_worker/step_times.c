/* gpu_worker/step_times.c - see step_times.h. */
#include "gpu_worker/step_times.h"

#include <stdlib.h>
#include <string.h>

void step_times_add(struct step_times *t, int64_t token_ns, int64_t idle_ns)
{
    uint32_t at = t->n++ % STEP_TIMES;
    t->token_ms[at] = (float)token_ns * 1e-6f;
    t->idle_ms[at] = (float)idle_ns * 1e-6f;
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Of an even number the mean of both in the middle. */
static double median(const struct step_times *t, const float *values)
{
    float sorted[STEP_TIMES];
    uint32_t n = t->n < STEP_TIMES ? t->n : STEP_TIMES;
    if (n == 0)
        return 0;
    memcpy(sorted, values, n * sizeof *values);
    qsort(sorted, n, sizeof *sorted, compare);
    return ((double)sorted[(n - 1) / 2] + (double)sorted[n / 2]) / 2;
}

double step_times_token_ms(const struct step_times *t)
{
    return median(t, t->token_ms);
}

double step_times_idle_ms(const struct step_times *t)
{
    return median(t, t->idle_ms);
}

/* tools/bench/read_rate.c - see read_rate.h. */
#include "tools/bench/read_rate.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

void read_area_share(uint64_t bytes, uint32_t t, uint32_t n_threads, uint64_t *from, uint64_t *to)
{
    uint64_t each = bytes / n_threads / 512 * 512;
    *from = t * each;
    *to = t + 1 == n_threads ? bytes / 512 * 512 : *from + each;
}

static void read_words(void *context, uint32_t t, uint32_t n_threads)
{
    struct read_area *area = context;
    uint64_t from, to, sum = 0;
    read_area_share(area->bytes, t, n_threads, &from, &to);
    const uint64_t *words = (const void *)area->memory;
    for (uint64_t i = from / 8; i < to / 8; i++)
        sum += words[i];
    area->sums[t] = sum;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void read_avx2(void *context, uint32_t t, uint32_t n_threads)
{
    struct read_area *area = context;
    uint64_t from, to, lanes[4];
    __m256i sum[4] = {0};
    read_area_share(area->bytes, t, n_threads, &from, &to);
    for (uint64_t i = from; i < to; i += 128)
        for (int j = 0; j < 4; j++)
            sum[j] = _mm256_add_epi64(
                sum[j], _mm256_load_si256((const void *)(area->memory + i + (uint64_t)j * 32)));
    _mm256_storeu_si256((void *)lanes, _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]),
                                                        _mm256_add_epi64(sum[2], sum[3])));
    area->sums[t] = lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

__attribute__((target("avx512f"))) static void read_avx512(void *context, uint32_t t,
                                                           uint32_t n_threads)
{
    struct read_area *area = context;
    uint64_t from, to, lanes[8];
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    read_area_share(area->bytes, t, n_threads, &from, &to);
    for (uint64_t i = from; i < to; i += 256) {
        const uint8_t *at = area->memory + i;
        a = _mm512_add_epi64(a, _mm512_load_si512(at));
        b = _mm512_add_epi64(b, _mm512_load_si512(at + 64));
        c = _mm512_add_epi64(c, _mm512_load_si512(at + 128));
        d = _mm512_add_epi64(d, _mm512_load_si512(at + 192));
    }
    a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
    _mm512_storeu_si512(lanes, a);
    area->sums[t] = 0;
    for (int i = 0; i < 8; i++)
        area->sums[t] += lanes[i];
}
#endif

uint32_t read_loops(struct read_loop out[READ_LOOPS_MAX])
{
    uint32_t n = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        out[n++] = (struct read_loop){"AVX2", read_avx2};
    if (__builtin_cpu_supports("avx512f"))
        out[n++] = (struct read_loop){"AVX-512", read_avx512};
#endif
    if (!n)
        out[n++] = (struct read_loop){"words of 8 bytes", read_words};
    return n;
}

double read_rate(struct read_area *area, uint32_t n_threads)
{
    struct read_loop loops[READ_LOOPS_MAX];
    uint32_t n = read_loops(loops);
    double best = 0;
    for (uint32_t i = 0; i < n; i++) {
        double rate = (double)area->bytes / bench_parallel(n_threads, loops[i].part, area);
        best = rate > best ? rate : best;
    }
    return best;
}

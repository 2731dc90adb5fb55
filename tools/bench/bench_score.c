/*
 * tools/bench/bench_score.c - figure "score": local INT8 scoring beside the read bandwidth of the
 * machine.
 *
 * What: each scoring kernel walks a digest set much larger than the last-level cache, on one and on
 * two threads, in turn with wide read-and-sum loops (AVX2, AVX-512) and memcpy over the same bytes.
 * There a thread scores its share in calls of one pool stripe's worth of tokens. "The scorer" is
 * what hill-cpu-scorer does: its thread pool over blocks of 64 tokens that lie as the prefill
 * leaves them (LAYERS lists, four blocks of each in turn), one job a layer; then also with the
 * scores put by position and the best selected. The same over shared and private memory, on small
 * and on huge pages, shows what pages matter. GB/s counts digest bytes (whole groups, kv/group.h)
 * once; scores written (2 bytes a token) are not counted; memcpy counts the bytes it copies, and
 * moves twice as many. The scores of all kernels are compared. Concurrency: bench_parallel,
 * score_pool. Failure: status 1 when two kernels differ.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>

#include <numa.h>

#include "base/clock.h"
#include "base/huge_pages.h"
#include "tools/bench/harness.h"
#include "tools/bench/read_rate.h"
#include "cpu_scorer/scoring.h"
#include "kv/plan.h"
#include "kv/score.h"
#include "kv/select.h"

#define CALL_TOKENS 4096u
#define SET_BYTES   (256ull << 20)
#define QUICK_BYTES (8ull << 20)
#define MAX_METHODS 16u
#define MAX_THREADS 2u
#define LAYERS      8u /* lists of blocks in the scorer's pool; a job scores one */
#define RUN_BLOCKS  4u /* blocks that follow one another in a scattered list */
#define SPIN_NS     4000

struct score_set {
    struct kv_geometry geometry;
    struct kv_query query;
    uint32_t n;            /* tokens */
    uint64_t bytes;        /* of their groups of digests */
    uint8_t *digests;      /* [bytes] */
    uint8_t *copy;         /* [bytes]: memcpy's target */
    uint16_t *scores;      /* [n] */
    uint16_t *by_layer;    /* [n]: of a token as the scorer's jobs get to it */
    struct read_area area; /* the digests, for the read loops */
    struct read_loop loops[READ_LOOPS_MAX];
    char loop_names[READ_LOOPS_MAX][48];
    kv_score_fn *kernel;
    /* the scorer's */
    uint32_t *blocks, *scattered; /* [LAYERS][layer_blocks] */
    uint32_t layer_blocks;
    struct score_pool *pools[MAX_THREADS];
    struct kv_selector *selector;
    uint32_t *selected; /* [tokens of a layer] */
};

struct method {
    const char *name;
    bench_part *part;
    kv_score_fn *kernel;   /* NULL: a bandwidth loop */
    const uint8_t *memory; /* the scorer over these digests; NULL: part() */
    bool reads;            /* part()'s context is the set's read_area */
    bool select;           /* and puts scores in order and selects */
    bool scattered;
    struct bench_samples seconds[MAX_THREADS];
};

/* ---- the loops ------------------------------------------------------------------------------ */

static void copy(void *context, uint32_t t, uint32_t n_threads)
{
    struct score_set *set = context;
    uint64_t from, to;
    read_area_share(set->bytes, t, n_threads, &from, &to);
    memcpy(set->copy + from, set->digests + from, to - from);
}

static void score(void *context, uint32_t t, uint32_t n_threads)
{
    struct score_set *set = context;
    uint32_t calls = (set->n + CALL_TOKENS - 1) / CALL_TOKENS;
    uint32_t last = (uint32_t)((uint64_t)calls * (t + 1) / n_threads);
    for (uint32_t call = (uint32_t)((uint64_t)calls * t / n_threads); call < last; call++) {
        uint32_t from = call * CALL_TOKENS;
        uint32_t n = set->n - from < CALL_TOKENS ? set->n - from : CALL_TOKENS;
        set->kernel(&set->geometry, &set->query,
                    set->digests + (uint64_t)from * kv_digest_bytes(&set->geometry), n,
                    set->scores + from);
    }
}

/* ---- the scorer ----------------------------------------------------------------------------- */

/* As the pipeline does it: take chunks, then wait for the helpers. */
static void score_layer(struct score_pool *pool, const struct score_job *job)
{
    struct shm_doorbell bell;
    shm_doorbell_init(&bell);
    score_pool_start(pool, job, &bell);
    while (score_pool_work(pool))
        continue;
    for (;;) {
        uint32_t seen = shm_doorbell_read(&bell);
        if (score_pool_done(pool))
            break;
        shm_doorbell_wait(&bell, seen, clock_deadline_ms(1000), SPIN_NS);
    }
    score_pool_wait(
        pool); /* the helper that rings holds the lock: the bell is done with after it */
}

static void select_layer(struct score_set *set, const uint16_t *scores)
{
    const struct kv_selection_settings settings = {.alpha = 0.05, .sinks = 4, .window = 32};
    uint32_t n = set->layer_blocks * KV_HOT_BLOCK_TOKENS;
    if (kv_selector_begin(set->selector, &settings, n) != 0)
        bench_fail("beginning a selection failed");
    for (uint32_t at = 0; at < n; at += KV_HOT_BLOCK_TOKENS)
        if (kv_selector_add_run(set->selector, at, scores + at, KV_HOT_BLOCK_TOKENS) != 0)
            bench_fail("adding scores to a selection failed");
    if (kv_selector_finish(set->selector, set->selected) < 0)
        bench_fail("a selection failed");
}

static double run_scorer(struct score_set *set, const struct method *m, uint32_t n_threads)
{
    uint32_t tokens = set->layer_blocks * KV_HOT_BLOCK_TOKENS;
    const uint32_t *blocks = m->scattered ? set->scattered : set->blocks;
    struct score_job job = {.geometry = &set->geometry,
                            .query = set->query,
                            .digests = m->memory,
                            .n_blocks = set->layer_blocks};
    int64_t start = clock_now_ns();
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        job.blocks = blocks + (uint64_t)layer * set->layer_blocks;
        job.scores = set->by_layer + (uint64_t)layer * tokens;
        score_layer(set->pools[n_threads - 1], &job);
        if (m->select)
            select_layer(set, job.scores);
    }
    double seconds = (double)(clock_now_ns() - start) * 1e-9;
    for (uint32_t i = 0; i < set->n / KV_HOT_BLOCK_TOKENS; i++)
        memcpy(set->scores + (uint64_t)blocks[i] * KV_HOT_BLOCK_TOKENS,
               set->by_layer + (uint64_t)i * KV_HOT_BLOCK_TOKENS, 2 * KV_HOT_BLOCK_TOKENS);
    return seconds;
}

static void prepare_scorer(struct score_set *set, uint32_t max_threads)
{
    uint32_t n_blocks = set->n / KV_HOT_BLOCK_TOKENS, tokens = set->n / LAYERS;
    set->layer_blocks = n_blocks / LAYERS;
    set->blocks = bench_memory(n_blocks * sizeof(*set->blocks));
    set->scattered = bench_memory(n_blocks * sizeof(*set->scattered));
    set->by_layer = bench_memory(set->n * sizeof(*set->by_layer));
    set->selected = bench_memory(tokens * sizeof(*set->selected));
    for (uint32_t i = 0; i < n_blocks; i++) {
        uint32_t layer = i / RUN_BLOCKS % LAYERS, turn = i / RUN_BLOCKS / LAYERS;
        set->blocks[i] = i;
        set->scattered[layer * set->layer_blocks + turn * RUN_BLOCKS + i % RUN_BLOCKS] = i;
    }
    for (uint32_t threads = 1; threads <= max_threads; threads++)
        if (score_pool_create(&set->pools[threads - 1], threads, kv_score_choose("auto"), NULL) !=
            0)
            bench_fail("starting scoring threads failed");
    if (kv_selector_create(&set->selector, tokens) != 0)
        bench_fail("creating a selection of %u tokens failed", tokens);
}

static void finish_scorer(struct score_set *set)
{
    for (uint32_t i = 0; i < MAX_THREADS; i++)
        score_pool_destroy(set->pools[i]);
    kv_selector_destroy(set->selector);
    bench_memory_free(set->blocks, set->n / KV_HOT_BLOCK_TOKENS * sizeof(*set->blocks));
    bench_memory_free(set->scattered, set->n / KV_HOT_BLOCK_TOKENS * sizeof(*set->scattered));
    bench_memory_free(set->by_layer, set->n * sizeof(*set->by_layer));
    bench_memory_free(set->selected, set->n / LAYERS * sizeof(*set->selected));
}

/* What the kernel says of CPU 0's level-3 cache (sysconf adds up those of a whole socket on some
 * machines); 0: not stated. */
static uint64_t cache_bytes(void)
{
    unsigned long kib = 0;
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (file != NULL) {
        if (fscanf(file, "%luK", &kib) != 1)
            kib = 0;
        fclose(file);
    }
    return (uint64_t)kib << 10;
}

/* ---- measuring ------------------------------------------------------------------------------ */

static uint32_t find_methods(struct score_set *set, struct method *methods)
{
    static const char *const kernels[] = {"reference", "avx2", "avx512", "avx512vnni"};
    uint32_t n = 0;
    uint32_t loops = read_loops(set->loops);
    for (; n < loops; n++) {
        snprintf(set->loop_names[n], sizeof set->loop_names[n], "read and sum, %s",
                 set->loops[n].name);
        methods[n] =
            (struct method){.name = set->loop_names[n], .part = set->loops[n].part, .reads = true};
    }
    methods[n++] = (struct method){.name = "memcpy", .part = copy};
    for (uint32_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        kv_score_fn *kernel = kv_score_choose(kernels[i]); /* NULL: not in this build or CPU */
        if (kernel != NULL)
            methods[n++] = (struct method){.name = kernels[i], .part = score, .kernel = kernel};
    }
    kv_score_fn *best = kv_score_choose("auto");
    methods[n++] = (struct method){.name = "the scorer", .kernel = best, .memory = set->digests};
    methods[n++] = (struct method){
        .name = "the scorer, selecting", .kernel = best, .memory = set->digests, .select = true};
    methods[n++] = (struct method){.name = "the scorer, scattered blocks",
                                   .kernel = best,
                                   .memory = set->digests,
                                   .scattered = true};
    return n;
}

/* Random digests in the ranges that kv/digest.c makes: mantissas -127..127, exponents 0..16. */
static void fill(struct score_set *set, int8_t *mantissas, uint8_t *shifts)
{
    uint64_t state = 20240607;
    uint32_t terms = kv_query_terms(&set->geometry, set->query.importance);
    uint32_t group = kv_group_bytes(&set->geometry);
    for (uint64_t i = 0; i < set->bytes; i++) {
        uint64_t r = bench_random(&state) >> 32;
        set->digests[i] = i % group >= kv_group_mantissas_at(&set->geometry)
                              ? (uint8_t)(int8_t)((int64_t)(r % 255) - 127)
                              : (uint8_t)(r % (KV_KEY_EXP_MAX + 1));
    }
    for (uint32_t i = 0; i < terms * set->geometry.head_dim; i++)
        mantissas[i] = (int8_t)((int64_t)(bench_random(&state) % 255) - 127);
    for (uint32_t t = 0; t < terms; t++)
        shifts[t] = (uint8_t)(bench_random(&state) % (KV_QUERY_SHIFT_MAX + 1));
}

/* Run a kernel and hold its scores against those of the reference. */
static double run_method(struct score_set *set, const struct method *m, uint32_t n_threads,
                         const uint16_t *expected)
{
    uint64_t bytes = (uint64_t)set->n * sizeof(*set->scores);
    set->kernel = m->kernel;
    if (m->kernel != NULL)
        memset(set->scores, 0, bytes);
    double seconds = m->memory != NULL
                         ? run_scorer(set, m, n_threads)
                         : bench_parallel(n_threads, m->part, m->reads ? (void *)&set->area : set);
    if (m->kernel != NULL && memcmp(set->scores, expected, bytes) != 0)
        bench_fail("kernel %s does not give the scores of the reference", m->name);
    return seconds;
}

static double rate(const struct score_set *set, const struct method *m, uint32_t threads)
{
    return (double)set->bytes / bench_median(&m->seconds[threads - 1]) * 1e-9;
}

static void print_table(const struct score_set *set, const struct method *methods, uint32_t n,
                        uint32_t max_threads)
{
    const struct kv_geometry *g = &set->geometry;
    printf("\n%u KV heads x %u, %u terms (`%s`): %u tokens, %.1f MiB of digests (%u bytes a "
           "token)\n\n",
           g->n_kv_heads, g->head_dim, kv_query_terms(g, set->query.importance),
           kv_importance_name(set->query.importance), set->n, (double)set->bytes / 1048576,
           kv_digest_bytes(g));
    printf("| method | threads | GB/s, median | lowest - highest | of the best read |\n");
    printf("|---|---:|---:|---:|---:|\n");
    for (uint32_t threads = 1; threads <= max_threads; threads++) {
        double best = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (methods[i].reads && rate(set, &methods[i], threads) > best)
                best = rate(set, &methods[i], threads);
        }
        for (uint32_t i = 0; i < n; i++) {
            const struct method *m = &methods[i];
            const struct bench_samples *s = &m->seconds[threads - 1];
            bool kernel = m->kernel != NULL && m->memory == NULL;
            printf("| %s%s%s | %u | %.2f | %.2f - %.2f | ", kernel ? "kernel `" : "", m->name,
                   kernel ? "`" : "", threads, rate(set, m, threads),
                   (double)set->bytes / bench_highest(s) * 1e-9,
                   (double)set->bytes / bench_lowest(s) * 1e-9);
            if (best > 0)
                printf("%.0f %% |\n", 100 * rate(set, m, threads) / best);
            else
                printf("- |\n");
        }
    }
}

static void measure(const struct bench_options *options, struct score_set *set,
                    struct method *methods, uint32_t n, uint32_t max_threads,
                    const uint16_t *expected)
{
    for (uint32_t round = 1; round <= options->rounds; round++) {
        for (uint32_t i = 0; i < n; i++) {
            bench_progress(round, options->rounds, methods[i].name);
            for (uint32_t threads = 1; threads <= max_threads; threads++)
                bench_sample(&methods[i].seconds[threads - 1],
                             run_method(set, &methods[i], threads, expected));
        }
        bench_progress(round, options->rounds, "");
    }
}

/* ---- pages ---------------------------------------------------------------------------------- */

struct pages {
    const char *name;
    int share, advice; /* of mmap, of madvise */
};

static const struct pages page_kinds[] = {
    {"shared memory, small pages", MAP_SHARED, MADV_NOHUGEPAGE},
    {"shared memory, MADV_HUGEPAGE", MAP_SHARED, MADV_HUGEPAGE},
    {"private memory, small pages", MAP_PRIVATE, MADV_NOHUGEPAGE},
    {"private memory, MADV_HUGEPAGE", MAP_PRIVATE, MADV_HUGEPAGE},
};
#define N_PAGE_KINDS (sizeof(page_kinds) / sizeof(page_kinds[0]))

/* A copy of the digests on such pages; a multiple of 2 MiB, so that a huge page can hold its end.
 */
static uint8_t *copy_on(const struct pages *kind, const struct score_set *set, uint64_t bytes)
{
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind->share | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        bench_fail("mapping %llu bytes failed", (unsigned long long)bytes);
    madvise(memory, bytes, kind->advice); /* what came of it is printed */
    memcpy(memory, set->digests, set->bytes);
    return memory;
}

static void print_pages(const struct score_set *set, const struct method *methods,
                        const uint64_t *huge, uint64_t bytes, uint32_t max_threads)
{
    const struct method *small = NULL, *large = NULL;
    printf("\n### Pages under the scorer\n\n| memory | in huge pages | threads | GB/s, median | "
           "lowest - highest |\n|---|---:|---:|---:|---:|\n");
    for (uint32_t i = 0; i < N_PAGE_KINDS; i++) {
        for (uint32_t threads = 1; threads <= max_threads; threads++)
            printf("| %s | %llu %% | %u | %.2f | %.2f - %.2f |\n", methods[i].name,
                   (unsigned long long)(100 * huge[i] / bytes), threads,
                   rate(set, &methods[i], threads),
                   (double)set->bytes / bench_highest(&methods[i].seconds[threads - 1]) * 1e-9,
                   (double)set->bytes / bench_lowest(&methods[i].seconds[threads - 1]) * 1e-9);
        if (huge[i] == 0)
            small = small == NULL || page_kinds[i].share == MAP_PRIVATE ? &methods[i] : small;
        else if (huge[i] > bytes / 2)
            large = &methods[i];
    }
    if (huge[1] == 0)
        printf(
            "\nThis machine gives shared memory no huge pages "
            "(/sys/kernel/mm/transparent_hugepage/shmem_enabled): the advice changes nothing.\n");
    if (small == NULL || large == NULL) {
        printf("\nNo two kinds of pages to compare.\n");
        return;
    }
    double gain = rate(set, large, max_threads) / rate(set, small, max_threads) - 1;
    printf("\nHuge pages instead of small ones (%s beside %s) change scoring with %u threads by "
           "%+.0f %%: they %s.\n",
           large->name, small->name, max_threads, 100 * gain,
           gain > 0.1 ? "matter" : "do not matter much");
}

/* The hot segment is shared memory: what do pages change for the scorer? */
static void measure_pages(const struct bench_options *options, struct score_set *set,
                          uint32_t max_threads, const uint16_t *expected)
{
    struct method methods[N_PAGE_KINDS];
    uint64_t huge[N_PAGE_KINDS], bytes = (set->bytes + (2u << 20) - 1) >> 21 << 21;
    uint8_t *copies[N_PAGE_KINDS];
    for (uint32_t i = 0; i < N_PAGE_KINDS; i++) {
        copies[i] = copy_on(&page_kinds[i], set, bytes);
        huge[i] = huge_pages_mapped(copies[i]);
        methods[i] = (struct method){
            .name = page_kinds[i].name, .kernel = kv_score_choose("auto"), .memory = copies[i]};
    }
    measure(options, set, methods, N_PAGE_KINDS, max_threads, expected);
    print_pages(set, methods, huge, bytes, max_threads);
    int nodes = numa_available() < 0 ? 1 : numa_num_configured_nodes();
    printf("\nNUMA nodes: %d%s\n", nodes,
           nodes == 1 ? "; there is nothing to place."
                      : ". The figures above are with the placement that the system chose.");
    for (uint32_t i = 0; i < N_PAGE_KINDS; i++)
        munmap(copies[i], bytes);
}

/* ---- shapes --------------------------------------------------------------------------------- */

static void measure_shape(const struct bench_options *options, struct kv_geometry g,
                          uint32_t importance, uint64_t set_bytes, bool pages)
{
    struct method methods[MAX_METHODS];
    int8_t mantissas[KV_MAX_HEAD_DIM * 16];
    uint8_t shifts[KV_MAX_HEADS];
    uint32_t max_threads = bench_cpus() < MAX_THREADS ? bench_cpus() : MAX_THREADS;
    uint32_t unit = LAYERS * RUN_BLOCKS * KV_HOT_BLOCK_TOKENS;
    struct score_set set = {.geometry = g};
    set.n = ((uint32_t)(set_bytes / kv_digest_bytes(&g)) / unit + 1) * unit;
    set.bytes = (uint64_t)set.n * kv_digest_bytes(&g);
    set.digests = bench_memory(set.bytes);
    set.copy = bench_memory(set.bytes);
    set.area = (struct read_area){.memory = set.digests, .bytes = set.bytes};
    uint64_t score_bytes = (uint64_t)set.n * sizeof(uint16_t);
    set.scores = bench_memory(score_bytes);
    uint16_t *expected = bench_memory(score_bytes);
    set.query = (struct kv_query){mantissas, shifts, importance, NULL};
    fill(&set, mantissas, shifts);
    prepare_scorer(&set, max_threads);
    kv_score_reference(&g, &set.query, set.digests, set.n, expected);
    uint32_t n = find_methods(&set, methods);
    measure(options, &set, methods, n, max_threads, expected);
    print_table(&set, methods, n, max_threads);
    if (pages)
        measure_pages(options, &set, max_threads, expected);
    finish_scorer(&set);
    bench_memory_free(set.digests, set.bytes);
    bench_memory_free(set.copy, set.bytes);
    bench_memory_free(set.scores, score_bytes);
    bench_memory_free(expected, score_bytes);
}

int main(int argc, char **argv)
{
    static const struct {
        struct kv_geometry g;
        uint32_t importance;
    } shapes[] = {
        {{.n_layers = 1, .n_heads = 8, .n_kv_heads = 8, .head_dim = 64}, KV_IMPORTANCE_SUM},
        {{.n_layers = 1, .n_heads = 8, .n_kv_heads = 1, .head_dim = 256}, KV_IMPORTANCE_SUM},
        {{.n_layers = 1, .n_heads = 12, .n_kv_heads = 12, .head_dim = 64}, KV_IMPORTANCE_SUM},
        /* Qwen2.5-0.5B: a term for each KV head, or for each query head */
        {{.n_layers = 1, .n_heads = 14, .n_kv_heads = 2, .head_dim = 64}, KV_IMPORTANCE_SUM},
        {{.n_layers = 1, .n_heads = 14, .n_kv_heads = 2, .head_dim = 64}, KV_IMPORTANCE_HEADS},
    };
    struct bench_options options = bench_start("score", argc, argv);
    uint64_t l3 = cache_bytes(), set_bytes = options.quick ? QUICK_BYTES : SET_BYTES;
    if (!options.quick && 4 * l3 > set_bytes)
        set_bytes = 4 * l3;
    printf("## Local INT8 scoring\n\n");
    printf("Digest bytes scored per second beside reading the same memory. ");
    if (l3 > 0)
        printf("Last-level cache: %llu MiB. ", (unsigned long long)(l3 >> 20));
    else
        printf("Last-level cache: not stated by this machine. ");
    printf("Calls of %u tokens; %u rounds, methods in turn; threads pinned, one a CPU.\n",
           CALL_TOKENS, options.rounds);
    printf("memcpy counts the bytes copied and moves twice as many. All kernels gave equal "
           "scores.\n");
    printf(
        "The scorer: the thread pool of hill-cpu-scorer with the kernel `auto`, not pinned, over "
        "%u lists of %u-token blocks, one job a list; selecting: 5 %% of each list are chosen as "
        "well; scattered: no more than %u blocks of a list follow one another.\n",
        LAYERS, KV_HOT_BLOCK_TOKENS, RUN_BLOCKS);
    for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        measure_shape(&options, shapes[i].g, shapes[i].importance, set_bytes, i == 0);
    return 0;
}

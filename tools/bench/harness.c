/*
 * tools/bench/harness.c - see harness.h.
 */
#include "tools/bench/harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

#define ROUNDS       9u
#define ROUNDS_QUICK 3u
#define THREADS_MAX  64u
#define DATA         "build/bench/data"

static const char *figure_name = "bench";
static int64_t started_ns;
static volatile sig_atomic_t ending; /* by a signal: a thread of its own leaves */

void bench_fail(const char *format, ...)
{
    va_list arguments;
    while (ending)
        pause(); /* it fails because it is being ended */
    fprintf(stderr, "bench_%s: ", figure_name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static void misuse(void)
{
    fprintf(stderr,
            "usage: bench_%s [--quick] [--full] [--rounds N] [--folder DIR]   (N: odd, 1..%u)\n"
            "example: bench_%s --rounds 9 >section.md\n",
            figure_name, BENCH_ROUNDS_MAX, figure_name);
    exit(100);
}

/* ---- an end by a signal ---- */

static int end_pipe[2];

/* Async-signal-safe: the thread below does the rest. */
static void note_signal(int number)
{
    char byte = (char)number;
    ending = 1; /* before the programs that the same signal has ended are noticed */
    if (write(end_pipe[1], &byte, 1) != 1)
        _exit(128 + number);
}

/* exit() runs what the figure has to stop and remove, also while the main thread waits for a
 * program. */
static void *wait_for_end(void *unused)
{
    char byte;
    (void)unused;
    if (read(end_pipe[0], &byte, 1) != 1)
        return NULL;
    fprintf(stderr, "bench_%s: stopped by signal %d\n", figure_name, byte);
    exit(128 + byte);
}

/* A handler and not a mask: programs that are started begin with the default again. */
static void end_on_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    pthread_t thread;
    if (pipe2(end_pipe, O_CLOEXEC) || pthread_create(&thread, NULL, wait_for_end, NULL))
        bench_fail("cannot prepare for signals");
    pthread_detach(thread);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaction(signals[i], &action, NULL);
}

struct bench_options bench_start(const char *figure, int argc, char **argv)
{
    struct bench_options options = {.figure = figure, .folder = "."};
    figure_name = figure;
    started_ns = clock_now_ns();
    end_on_signals();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            options.quick = true;
        } else if (strcmp(argv[i], "--full") == 0) {
            options.full = true;
        } else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
            char *end;
            unsigned long rounds = strtoul(argv[++i], &end, 10);
            if (*end != 0 || rounds == 0 || rounds > BENCH_ROUNDS_MAX || rounds % 2 == 0)
                misuse();
            options.rounds = (uint32_t)rounds;
        } else if (strcmp(argv[i], "--folder") == 0 && i + 1 < argc) {
            options.folder = argv[++i];
        } else {
            misuse();
        }
    }
    mkdir("build/bench", 0777); /* that it is there is noticed when something is written */
    if (options.rounds == 0)
        options.rounds = options.quick ? ROUNDS_QUICK : ROUNDS;
    return options;
}

/* ---- samples -------------------------------------------------------------------------------- */

void bench_sample(struct bench_samples *samples, double value)
{
    if (samples->count < BENCH_ROUNDS_MAX)
        samples->values[samples->count++] = value;
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

double bench_quantile(double *values, uint64_t n, double share)
{
    qsort(values, n, sizeof(*values), compare);
    double place = share * (double)(n - 1);
    uint64_t at = (uint64_t)place, next = at + 1 < n ? at + 1 : at;
    return values[at] + (place - (double)at) * (values[next] - values[at]);
}

static double quantile_of(const struct bench_samples *samples, double share)
{
    struct bench_samples sorted = *samples;
    if (sorted.count == 0)
        bench_fail("a method has no samples");
    return bench_quantile(sorted.values, sorted.count, share);
}

double bench_median(const struct bench_samples *samples)
{
    return quantile_of(samples, 0.5);
}

double bench_lowest(const struct bench_samples *samples)
{
    return quantile_of(samples, 0);
}

double bench_highest(const struct bench_samples *samples)
{
    return quantile_of(samples, 1);
}

void bench_print_samples(const char *name, const struct bench_samples *samples,
                         const struct bench_samples *peer)
{
    printf("| %s | %.1f | %.1f - %.1f |", name, bench_median(samples), bench_lowest(samples),
           bench_highest(samples));
    if (peer && peer->count)
        printf(" %.2f |\n", bench_median(samples) / bench_median(peer));
    else
        printf(" |\n");
}

struct bench_samples bench_ratios(const struct bench_samples *a, const struct bench_samples *b)
{
    struct bench_samples ratio = {.count = 0};
    for (uint32_t i = 0; i < a->count && i < b->count; i++)
        bench_sample(&ratio, a->values[i] / b->values[i]);
    return ratio;
}

void bench_print_quartiles(const struct bench_samples *s, const char *form)
{
    bool few = s->count < BENCH_QUARTILES_LEAST;
    printf(form, bench_median(s), quantile_of(s, few ? 0 : 0.25), quantile_of(s, few ? 1 : 0.75));
}

/* ---- what the environment asks for ---- */

bool bench_is_set(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value;
}

bool bench_is_asked(const char *variable, const char *name)
{
    char list[256], *save = NULL;
    if (!bench_is_set(variable))
        return true;
    snprintf(list, sizeof list, "%s", getenv(variable));
    for (char *w = strtok_r(list, " ,", &save); w; w = strtok_r(NULL, " ,", &save))
        if (strstr(name, w))
            return true;
    return false;
}

void bench_data_file(const char *file, char path[512])
{
    snprintf(path, 512, "%s/%s", bench_is_set("BENCH_DATA") ? getenv("BENCH_DATA") : DATA, file);
}

bool bench_time_is_left(void)
{
    return !bench_is_set("SECONDS") ||
           clock_now_ns() - started_ns < atoi(getenv("SECONDS")) * INT64_C(1000000000);
}

void bench_progress(uint32_t round, uint32_t rounds, const char *method)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K  %s: round %u/%u, %s%s", figure_name, round, rounds, method,
                round == rounds && *method == 0 ? "\n" : "");
    else if (*method == 0)
        fprintf(stderr, "  %s: round %u/%u done\n", figure_name, round, rounds);
}

/* ---- memory --------------------------------------------------------------------------------- */

void *bench_memory(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        bench_fail("no %llu MiB of memory", (unsigned long long)(bytes >> 20));
    madvise(memory, bytes, MADV_HUGEPAGE); /* best effort */
    memset(memory, 1, bytes);
    return memory;
}

void bench_memory_free(void *memory, uint64_t bytes)
{
    munmap(memory, bytes);
}

/* ---- threads -------------------------------------------------------------------------------- */

/* The CPUs of the process as it was started: pinning a thread must not narrow what others see. */
static const cpu_set_t *allowed(void)
{
    static cpu_set_t set;
    static bool known;
    if (!known && sched_getaffinity(getpid(), sizeof(set), &set) != 0)
        bench_fail("asking for the CPUs of this process failed");
    known = true;
    return &set;
}

uint32_t bench_cpus(void)
{
    return (uint32_t)CPU_COUNT(allowed());
}

void bench_pin(uint32_t index)
{
    const cpu_set_t *set = allowed();
    uint32_t skip = index % (uint32_t)CPU_COUNT(set);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, set) || skip-- > 0)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof(one), &one) != 0)
            bench_fail("pinning to CPU %d failed", cpu);
        return;
    }
}

void bench_unpin(void)
{
    if (sched_setaffinity(0, sizeof(cpu_set_t), allowed()) != 0)
        bench_fail("unpinning failed");
}

struct worker {
    pthread_t thread;
    pthread_barrier_t *barrier;
    bench_part *part;
    void *context;
    uint32_t index, n_threads;
    int64_t start_ns, end_ns;
};

static void *work(void *argument)
{
    struct worker *w = argument;
    bench_pin(w->index);
    pthread_barrier_wait(w->barrier);
    w->start_ns = clock_now_ns();
    w->part(w->context, w->index, w->n_threads);
    w->end_ns = clock_now_ns();
    return NULL;
}

double bench_parallel(uint32_t n_threads, bench_part *part, void *context)
{
    struct worker workers[THREADS_MAX];
    pthread_barrier_t barrier;
    allowed();
    if (n_threads > THREADS_MAX || pthread_barrier_init(&barrier, NULL, n_threads) != 0)
        bench_fail("no barrier for %u threads", n_threads);
    for (uint32_t i = 0; i < n_threads; i++) {
        workers[i] = (struct worker){.barrier = &barrier,
                                     .part = part,
                                     .context = context,
                                     .index = i,
                                     .n_threads = n_threads};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            bench_fail("starting thread %u failed", i);
    }
    int64_t start = INT64_MAX, end = 0;
    for (uint32_t i = 0; i < n_threads; i++) {
        pthread_join(workers[i].thread, NULL);
        start = workers[i].start_ns < start ? workers[i].start_ns : start;
        end = workers[i].end_ns > end ? workers[i].end_ns : end;
    }
    pthread_barrier_destroy(&barrier);
    return (double)(end - start) * 1e-9;
}

uint64_t bench_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

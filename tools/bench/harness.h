/*
 * tools/bench/harness.h - what every figure needs: options, samples and their medians, pinned
 * threads, memory, progress.
 *
 * A figure (bench_<name>.c) measures several methods in turn, round after round (interleaved), so
 * that a slow minute of the machine falls on all of them, and prints its section as Markdown on
 * stdout: text and tables made only of what it measured. Progress goes to stderr.
 * Who calls it: the figures. Failure: bench_fail() ends the process with status 1 and one line.
 * Concurrency: bench_parallel starts its threads and waits for them; the rest is for one thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define BENCH_ROUNDS_MAX 101u

struct bench_options {
    const char *figure;
    bool quick;         /* a smoke run: small sizes, few rounds; its numbers mean nothing */
    bool full;          /* more points than by default, where a figure has such */
    uint32_t rounds;    /* odd, so that a median is a sample */
    const char *folder; /* where a figure may put a large file */
};

/* Parse [--quick] [--full] [--rounds N] [--folder DIR]; misuse ends the process with status 100.
 * From here on SIGINT, SIGTERM and SIGHUP end the process by exit(), so that atexit() handlers run
 * (in a thread of their own). */
struct bench_options bench_start(const char *figure, int argc, char **argv);

/* The samples of one method, one a round. */
struct bench_samples {
    double values[BENCH_ROUNDS_MAX];
    uint32_t count;
};

void bench_sample(struct bench_samples *samples, double value);
double bench_median(const struct bench_samples *samples);
double bench_lowest(const struct bench_samples *samples);
double bench_highest(const struct bench_samples *samples);

/* A row of a table: "| name | median | lowest - highest | of the peer's median |". peer: NULL or
 * without samples for none. */
void bench_print_samples(const char *name, const struct bench_samples *samples,
                         const struct bench_samples *peer);

/* The value below which `share` (0..1) of n values lie, between the two nearest of them in
 * proportion; sorts them. n > 0. */
double bench_quantile(double *values, uint64_t n, double share);

/* Round by round, a's value over b's, so that a slow minute of the machine is in both. */
struct bench_samples bench_ratios(const struct bench_samples *a, const struct bench_samples *b);
/* By a form with three numbers: median, lower and upper quartile; of fewer than
 * BENCH_QUARTILES_LEAST samples the lowest and the highest instead, since a quartile of three is no
 * more than that. */
#define BENCH_QUARTILES_LEAST 5u
#define BENCH_QUARTILES_TEXT  "quartiles (below 5 rounds: lowest - highest)"
void bench_print_quartiles(const struct bench_samples *samples, const char *form);

/* Is the environment variable there and not empty? */
bool bench_is_set(const char *variable);
/* Does one of the variable's words occur in the name? Without the variable: yes. */
bool bench_is_asked(const char *variable, const char *name);
/* The path of a text or a trace: in $BENCH_DATA, by default build/bench/data. */
void bench_data_file(const char *file, char path[512]);
/* Have fewer than $SECONDS passed since bench_start? Without the variable: yes. */
bool bench_time_is_left(void);

/* "round 3/9 name" on stderr: rewritten in place on a terminal, a line each elsewhere. */
void bench_progress(uint32_t round, uint32_t rounds, const char *method);

/* Page-aligned memory, huge pages advised, every page touched; never NULL (bench_fail). */
void *bench_memory(uint64_t bytes);
void bench_memory_free(void *memory, uint64_t bytes);

/* Run part(context, thread, n_threads) on n threads, thread i pinned to the i-th CPU that this
 * process may use; returns the seconds from the first start to the last end. */
typedef void bench_part(void *context, uint32_t thread, uint32_t n_threads);
double bench_parallel(uint32_t n_threads, bench_part *part, void *context);

/* CPUs this process may use, and pin the caller to the i-th of them (modulo their number). */
uint32_t bench_cpus(void);
void bench_pin(uint32_t index);
/* Let the caller run on all of them again. */
void bench_unpin(void);

/* xorshift64*: fast, the same everywhere. */
uint64_t bench_random(uint64_t *state);

void bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/*
 * tools/bench/comparison.h - methods that differ from one another by one factor, measured in turn
 * on real KV, round after round, and a table of them.
 *
 * What: a round measures each method once (point_run) and is kept as soon as it is whole
 * (kept_rounds.h), so that short quiet minutes can complete a figure: RESUME=1 goes on, SECONDS=N
 * begins no further round after N seconds, TESTS="words" chooses comparisons by parts of their
 * names, PREPARE=1 makes sessions alone. A ratio is taken within each round, of a method's time
 * over that of the method named in `against`. Who calls it: bench_policies.c, bench_ablation.c.
 * Concurrency: one thread. Failure: bench_fail.
 */
#pragma once

#include "tools/bench/point.h"
#include "base/csd_model.h"

#define COMPARISON_METHODS_MAX 20u
#define COMPARISON_HOT_SHARE   0.2           /* of the entries, by M_0 */
#define COMPARISON_HOST_DIGEST "host-digest" /* the policy that hillinfer's drive competes with */
#define COMPARISON_SCORE                                                                           \
    "The drive's `score` is derived (64 bytes of digests a cycle at 250 MHz, 0.7 of the time): "   \
    "nobody has synthesised that kernel."

/* Of a step of all rows unless said otherwise; ms. */
enum measure {
    M_STEP,
    M_IDLE,      /* of it, how long the GPU waited for selections */
    M_HOT,       /* share of the entries that is hot */
    M_COLD_HITS, /* share of the selected entries that came from the drive */
    M_HOST,      /* CPU time of the host's scoring threads, for the last row */
    M_FLASH,     /* bytes read from flash */
    M_LINK,      /* bytes over the drive's link */
    M_UPLOAD,    /* bytes over the GPU's link, of the last row */
    M_WRITTEN,   /* page bytes written in the whole run, over the bytes of what ever was cold */
    M_LATE,      /* what the real work took beyond the modelled time, over the step */
    M_BUSY_FLASH,
    M_BUSY_DRAM,
    M_BUSY_SCORE,
    M_BUSY_LINK,
    MEASURES
};

struct method {
    const char *name;
    uint32_t against; /* which method its ratio is taken over; itself: none */
    struct point point;
    char options[320], csd_model[CSD_MODEL_TEXT]; /* point's own point here */
    bool may_refuse; /* where the pipeline refuses it, it takes 0 ms; else that ends the figure */
    struct bench_samples measured[MEASURES];
};

struct comparison {
    char name[160];
    struct method methods[COMPARISON_METHODS_MAX];
    uint32_t n, rounds; /* rounds: as many as are kept */
    char commits[256];
};

/* One more method, as `like` but for its name; the caller changes one thing of it. */
struct method *comparison_add(struct comparison *c, const char *name, const struct point *like,
                              uint32_t against);

/* Load what is kept, then measure in turn until each has o->rounds rounds or time is over. file: of
 * the rounds. */
void comparison_measure_all(struct comparison *list, uint32_t n, const char *file,
                            const struct bench_options *o);

/* Was this measured method refused by the pipeline? */
bool comparison_was_refused(const struct method *m);

/* a's time over b's, round by round. */
struct bench_samples comparison_ratio(const struct method *a, const struct method *b);

/* The device model of a method with another size of DRAM. */
void comparison_set_dram(struct method *m, double bytes);

/* The words NAME[:ROWS] of $KV, or those that are usual (another one for a quick run): at most
 * `most`. */
struct comparison_kv {
    char name[72];
    uint32_t rows; /* sequences of the batch, from 1 on; without :ROWS 1 */
};
uint32_t comparison_kv(const struct bench_options *o, const char *usual, const char *quick,
                       struct comparison_kv list[], uint32_t most);
/* Decode steps: $STEPS, or those that are usual; of a quick run three. */
uint32_t comparison_steps(const struct bench_options *o, uint32_t usual);

/* The table, or that nothing was measured; then the rounds, and at which commits. */
void comparison_print(const struct comparison *c);
/* What its columns mean, once for all tables. */
void comparison_print_legend(void);

/*
 * coordinator/balance.h - how many KV bytes belong to the hot pool: the paper's Eq. 2 to 4.
 *
 * What: pure arithmetic. M_c bytes are hot (scored by the CPU at f_c, sent to the GPU at B_c), M_s
 * are cold (scored by the drive at f_s, sent at B_s); alpha_c and alpha_s are the shares of them
 * that are selected and sent. Eq. 2: T_CPU = M_c / f_c + alpha_c M_c / B_c and T_CSD = M_s / f_s +
 * alpha_s M_s / B_s; beta = M_c / M_s makes them equal. Units: f and B in bytes of FP16 KV per
 * second, M in bytes. Who calls it: service_profile.c, once both sides are measured. Failure:
 * HILL_E_INVALID when a number is not finite, a rate is not above 0, or a share is outside [0, 1].
 * Source: HillInfer paper 4.3, Eq. 2, 3, 4. Concurrency: stateless.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct balance_rates {
    double f_c, f_s; /* scored bytes per second: CPU, drive */
    double B_c, B_s; /* bytes per second to the GPU: from the hot pool, from the drive */
};

/* Eq. 4 with a share of its own for each side (the skewness correction of section 4.3: what is
 * often selected is hot): (1 / f_s + alpha_s / B_s) / (1 / f_c + alpha_c / B_c). */
int balance_beta(double *beta, const struct balance_rates *rates, double alpha_c, double alpha_s,
                 struct hill_why *why);

/* M_0 holds fewer entries than beta asks for, and in the room of one entry `digests` cold tokens'
 * digests fit, which the CPU scores then. Do these save the drive more time than the entry does?
 * The CPU scores digests - 1 tokens more, which saves the drive (digests - 1) / f_s for each byte
 * of an entry; the entry is selected with a probability of alpha, which for one between the hot
 * ones and the cold ones is the mean of alpha_c and alpha_s, and comes from the drive then:
 * alpha / B_s. lends: the answer was yes before; after a no digests must save half as much again,
 * so that the answer does not change with every measurement. */
bool balance_digests_pay(const struct balance_rates *rates, double alpha_c, double alpha_s,
                         double digests, bool lends);
/* The share of all tokens that the CPU scores if it has their digests but no entries, so that every
 * entry that is selected comes from the drive: Eq. 2 with M_c = 0 and the scoring of that share at
 * f_c, (1 / f_s + alpha_s / B_s) / (1 / f_c + 1 / f_s) (cpu_scorer/hot_share.h). Above 1: the CPU
 * has scored all tokens before the drive has fetched. */
int balance_host_scores(double *share, const struct balance_rates *rates, double alpha_s,
                        struct hill_why *why);

/* Of several drives, n of them, f_s and B_s each: the speed of each (entries' bytes a second that
 * it scores and sends alpha_s of), into speeds; a drive that has not been measured: 0. When entries
 * lie in proportion to these all drives end together, so that they are one drive of the sum for Eq.
 * 4, which *rates gets as f_s and B_s. HILL_E_INVALID: none was measured. */
struct balance_drive {
    double f_s, B_s;
};
int balance_drives(struct balance_rates *rates, double *speeds, const struct balance_drive *drives,
                   unsigned n, double alpha_s, struct hill_why *why);

/* A beta, above 0, with its bound beta <= M_0 / M_s (Eq. 3): of M bytes in all, at most M_0 are
 * hot. A beta above it becomes M_0 / (M - M_0); everything fits hot (M <= M_0): it stays. M and
 * M_0 >= 0. */
int balance_bound(double *beta, double free_beta, double M, double M_0, struct hill_why *why);

/* Where M_0 has room for all entries: is the drive to have the part that beta gives it? Its part of
 * a query's entries saves the CPU seconds / (1 + beta), of `seconds` that all of them take (Eq. 2's
 * T_CPU); to ask it and to take in its answer takes the host BALANCE_ASKING_S, which Eq. 4 does not
 * know (docs/decisions/beta.md). A drive that is not asked yet has to save twice as much, so that
 * entries do not go to and fro. */
#define BALANCE_ASKING_S 50e-6
bool balance_drive_pays(double beta, double seconds, bool asked);

/* The last samples of a figure that is measured step by step; a few wild ones do not move its
 * median. Zeroed: empty. */
#define BALANCE_WINDOW 9u
struct balance_window {
    double samples[BALANCE_WINDOW];
    uint32_t n; /* taken in so far */
};
static inline bool balance_window_is_full(const struct balance_window *window)
{
    return window->n >= BALANCE_WINDOW;
}
/* Not finite or negative: ignored. */
void balance_window_add(struct balance_window *window, double sample);
/* Of a window that is full; otherwise `fallback`. */
double balance_window_median(const struct balance_window *window, double fallback);

/* One step of beta towards its target (both above 0): none when they are within BALANCE_DEAD_BAND
 * of each other, otherwise half the way (as ratios), by a factor of BALANCE_STEP_MAX at most. A
 * target that stands still is approached from one side and never passed. */
#define BALANCE_DEAD_BAND 0.05
#define BALANCE_STEP_MAX  1.25
double balance_follow(double beta, double target);

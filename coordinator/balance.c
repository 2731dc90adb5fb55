/* coordinator/balance.c - see balance.h. */
#include "coordinator/balance.h"

#include <math.h>

static bool is_rate(double value)
{
    return isfinite(value) && value > 0;
}

static int check(const struct balance_rates *r, struct hill_why *why)
{
    if (!is_rate(r->f_c) || !is_rate(r->f_s))
        return hill_fail(why, HILL_E_INVALID,
                         "balance: scoring rates f_c %g and f_s %g must be above 0", r->f_c,
                         r->f_s);
    if (!is_rate(r->B_c) || !is_rate(r->B_s))
        return hill_fail(why, HILL_E_INVALID,
                         "balance: bandwidths B_c %g and B_s %g must be above 0", r->B_c, r->B_s);
    return 0;
}

/* Sums of inverse rates may leave the range of a double although each rate is in it. */
static int finish(double *beta, double value, struct hill_why *why)
{
    if (!is_rate(value))
        return hill_fail(why, HILL_E_INVALID, "balance: the rates give no finite beta");
    *beta = value;
    return 0;
}

int balance_beta(double *beta, const struct balance_rates *r, double alpha_c, double alpha_s,
                 struct hill_why *why)
{
    int code = check(r, why);
    if (code)
        return code;
    if (!(alpha_c >= 0 && alpha_c <= 1 && alpha_s >= 0 && alpha_s <= 1))
        return hill_fail(why, HILL_E_INVALID, "balance: shares %g and %g are outside [0, 1]",
                         alpha_c, alpha_s);
    return finish(beta, (1 / r->f_s + alpha_s / r->B_s) / (1 / r->f_c + alpha_c / r->B_c), why);
}

bool balance_digests_pay(const struct balance_rates *r, double alpha_c, double alpha_s,
                         double digests, bool lends)
{
    return (digests - 1) / r->f_s > (alpha_c + alpha_s) / 2 / r->B_s * (lends ? 1 : 1.5);
}

int balance_host_scores(double *share, const struct balance_rates *r, double alpha_s,
                        struct hill_why *why)
{
    int code = check(r, why);
    if (code)
        return code;
    if (!(alpha_s >= 0 && alpha_s <= 1))
        return hill_fail(why, HILL_E_INVALID, "balance: share %g is outside [0, 1]", alpha_s);
    return finish(share, (1 / r->f_s + alpha_s / r->B_s) / (1 / r->f_c + 1 / r->f_s), why);
}

int balance_drives(struct balance_rates *rates, double *speeds, const struct balance_drive *drives,
                   unsigned n, double alpha_s, struct hill_why *why)
{
    double sum = 0, score_s = 0,
           send_s = 0; /* seconds for the sum's bytes, of which each has a share */
    for (unsigned i = 0; i < n; i++) {
        bool there = is_rate(drives[i].f_s) && is_rate(drives[i].B_s);
        speeds[i] = there ? 1 / (1 / drives[i].f_s + alpha_s / drives[i].B_s) : 0;
        sum += speeds[i];
    }
    if (!is_rate(sum))
        return hill_fail(why, HILL_E_INVALID, "balance: the speed of no drive is known");
    for (unsigned i = 0; i < n; i++)
        if (speeds[i] > 0) {
            score_s += speeds[i] / sum * (speeds[i] / sum) / drives[i].f_s;
            send_s += speeds[i] / sum * (speeds[i] / sum) / drives[i].B_s;
        }
    rates->f_s = 1 / score_s;
    rates->B_s = 1 / send_s;
    return 0;
}

int balance_bound(double *beta, double free_beta, double M, double M_0, struct hill_why *why)
{
    if (!is_rate(free_beta))
        return hill_fail(why, HILL_E_INVALID, "balance: beta %g must be above 0", free_beta);
    if (!isfinite(M) || M < 0 || !isfinite(M_0) || M_0 < 0)
        return hill_fail(why, HILL_E_INVALID, "balance: M %g and M_0 %g must not be negative", M,
                         M_0);
    double M_c = M * free_beta / (1 + free_beta);
    *beta = M_c > M_0 ? M_0 / (M - M_0) : free_beta;
    return 0;
}

bool balance_drive_pays(double beta, double seconds, bool asked)
{
    return seconds / (1 + beta) > BALANCE_ASKING_S * (asked ? 1 : 2);
}

/* ---- following --------------------------------------------------------------------------- */

void balance_window_add(struct balance_window *w, double sample)
{
    if (isfinite(sample) && sample >= 0)
        w->samples[w->n++ % BALANCE_WINDOW] = sample;
}

double balance_window_median(const struct balance_window *w, double fallback)
{
    double sorted[BALANCE_WINDOW];
    if (w->n < BALANCE_WINDOW)
        return fallback;
    for (unsigned i = 0; i < BALANCE_WINDOW; i++) {
        unsigned j = i;
        for (; j > 0 && sorted[j - 1] > w->samples[i]; j--)
            sorted[j] = sorted[j - 1];
        sorted[j] = w->samples[i];
    }
    return sorted[BALANCE_WINDOW / 2];
}

double balance_follow(double beta, double target)
{
    double way = log(target / beta), most = log(BALANCE_STEP_MAX);
    if (!isfinite(way) || fabs(way) < log(1 + BALANCE_DEAD_BAND))
        return beta;
    return beta * exp(fmax(-most, fmin(most, way / 2)));
}

/* coordinator/balance.c - see balance.h. */
#include "coordinator/balance.h"

#include <math.h>
#include <stdbool.h>

static bool is_rate(double value)
{
    return isfinite(value) && value > 0;
}

int balance_check(const struct balance_rates *r, struct hill_why *why)
{
    if (!is_rate(r->f_c) || !is_rate(r->f_s))
        return hill_fail(why, HILL_E_INVALID,
                         "balance: scoring rates f_c %g and f_s %g must be above 0", r->f_c,
                         r->f_s);
    if (!is_rate(r->B_c) || !is_rate(r->B_s))
        return hill_fail(why, HILL_E_INVALID,
                         "balance: bandwidths B_c %g and B_s %g must be above 0", r->B_c, r->B_s);
    if (!is_rate(r->alpha) || r->alpha > 1)
        return hill_fail(why, HILL_E_INVALID, "balance: alpha %g is outside (0, 1]", r->alpha);
    return 0;
}

/* Seconds that one byte costs on its path: scored once, and sent with probability alpha. */
static double cpu_seconds_per_byte(const struct balance_rates *r)
{
    return 1 / r->f_c + r->alpha / r->B_c;
}

static double csd_seconds_per_byte(const struct balance_rates *r)
{
    return 1 / r->f_s + r->alpha / r->B_s;
}

static int path_seconds(double *out, double per_byte, double bytes, struct hill_why *why)
{
    if (!isfinite(bytes) || bytes < 0)
        return hill_fail(why, HILL_E_INVALID, "balance: %g is no number of bytes", bytes);
    *out = bytes * per_byte;
    return 0;
}

int balance_cpu_seconds(double *out, const struct balance_rates *r, double M_c,
                        struct hill_why *why)
{
    int code = balance_check(r, why);
    return code ? code : path_seconds(out, cpu_seconds_per_byte(r), M_c, why);
}

int balance_csd_seconds(double *out, const struct balance_rates *r, double M_s,
                        struct hill_why *why)
{
    int code = balance_check(r, why);
    return code ? code : path_seconds(out, csd_seconds_per_byte(r), M_s, why);
}

/* Products of four rates may leave the range of a double although each rate is in it. */
static int finish(double *beta, double value, struct hill_why *why)
{
    if (!is_rate(value))
        return hill_fail(why, HILL_E_INVALID, "balance: the rates give no finite beta");
    *beta = value;
    return 0;
}

int balance_beta(double *beta, const struct balance_rates *r, struct hill_why *why)
{
    int code = balance_check(r, why);
    if (code)
        return code;
    double numerator = r->B_c * r->f_c * (r->B_s + r->alpha * r->f_s);
    double denominator = r->B_s * r->f_s * (r->B_c + r->alpha * r->f_c);
    return finish(beta, numerator / denominator, why);
}

int balance_beta_bounded(double *beta, const struct balance_rates *r, double M, double M_0,
                         struct hill_why *why)
{
    double free_beta;
    int code = balance_beta(&free_beta, r, why);
    if (code)
        return code;
    if (!isfinite(M) || M < 0 || !isfinite(M_0) || M_0 < 0)
        return hill_fail(why, HILL_E_INVALID, "balance: M %g and M_0 %g must not be negative", M,
                         M_0);
    double M_c = M * free_beta / (1 + free_beta);
    *beta = M_c > M_0 ? M_0 / (M - M_0) : free_beta;
    return 0;
}

int balance_beta_two_links(double *beta, const struct balance_rates *r, struct hill_why *why)
{
    int code = balance_check(r, why);
    if (code)
        return code;
    double numerator =
        r->f_c * (r->B_s * r->B_c + r->alpha * r->B_c * r->f_s + r->alpha * r->B_s * r->f_s);
    double denominator = r->B_s * r->f_s * (r->B_c + r->alpha * r->f_c);
    return finish(beta, numerator / denominator, why);
}

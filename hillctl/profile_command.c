/* hillctl/profile_command.c - `hillctl profile`: measure how fast CPU and drive are, now. */
#include "hillctl/command_list.h"

#include <stdio.h>

#include "hillctl/report.h"
#include "hillctl/short_command.h"

static const struct option_spec specs[] = {
    OPTION("json", FLAG, NULL, "print one JSON object"),
};

static void print(const Hill__Profile *m)
{
    const Hill__Rates *r = m->rates, *d = m->spread;
    printf(
        "CPU    scores %.3f GB/s of KV (quartiles apart by %.0f %%), copies %.3f GB/s (%.0f %%)\n",
        r->f_c / 1e9, d->f_c * 100, r->b_c / 1e9, d->b_c * 100);
    printf(
        "drive  scores %.3f GB/s of KV (quartiles apart by %.0f %%), fetches %.3f GB/s (%.0f %%)\n",
        r->f_s / 1e9, d->f_s * 100, r->b_s / 1e9, d->b_s * 100);
    printf(
        "beta   %.4g by Eq. 4, %.4g within M_0 at full context%s; a query uploads %.3g of the hot, "
        "%.3g of the cold entries\n",
        m->beta, m->beta_bounded,
        m->beta_bounded >= HILL_BETA_ALL_HOT ? " (all hot: the drive would save too little)" : "",
        m->alpha_c, m->alpha_s);
    printf("%u rounds of %u hot and %u cold tokens, %u fetched, in %.0f ms\n", m->rounds,
           m->hot_tokens, m->cold_tokens, m->fetch_tokens, m->took_ms);
}

int command_profile(int argc, char **argv)
{
    struct short_command c = {
        .program = {.name = "hillctl profile",
                    .usage = "[--json] [--run-dir DIR]",
                    .summary =
                        "Measure f_c, f_s, B_c and B_s, between requests: bytes of FP16 KV a "
                        "second that CPU and\ndrive score, and bring to staging, while the "
                        "other one does the same. --beta auto follows.",
                    .example = "hillctl profile --json | jq .f_s",
                    .notes = "The result is kept in the state folder for the next start.\n"},
        .own = {.title = "output", .specs = specs, .count = 1}};
    int left = short_command_begin(&c, argc, argv);
    if (left != 0)
        return left - 1;
    Hill__ProfileRequest request = HILL__PROFILE_REQUEST__INIT;
    Hill__Message *result = NULL;
    struct hill_why why = {""};
    Hill__Message message = PROTO_MESSAGE(PROFILE_REQUEST, profile_request, &request);
    int code = client_call(&c.client, &message, HILL__MESSAGE__BODY_PROFILE_RESULT,
                           CLIENT_ANSWER_MS, &result, &why);
    if (code == 0 && options_flag(c.options, "json"))
        code = report_write_json(report_profile_json(result->profile_result->profile), &why);
    else if (code == 0)
        print(result->profile_result->profile);
    proto_free(result);
    return short_command_end(&c, code, &why);
}

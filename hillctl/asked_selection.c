/* hillctl/asked_selection.c - see asked_selection.h. */
#include "hillctl/asked_selection.h"

#include <string.h>

#include "kv/score.h"
#include "proto/options_hill.h"

static const char *const names[ASKED_SELECTION_SPECS] = {
    "policy", "alpha", "budget", "importance", "exact-below", "granularity", "sinks", "window"};

const struct option_spec *asked_selection_specs(void)
{
    static struct option_spec specs[ASKED_SELECTION_SPECS];
    for (unsigned i = 0; i < ASKED_SELECTION_SPECS; i++)
        for (unsigned p = 0; p < hill_pipeline_count; p++)
            if (strcmp(hill_pipeline_specs[p].name, names[i]) == 0) {
                specs[i] = hill_pipeline_specs[p];
                specs[i].fallback = NULL;
                specs[i].unset_help = strcmp(names[i], "exact-below") == 0
                                          ? "the pipeline's; 0 with --alpha or --budget"
                                          : "the pipeline's";
            }
    return specs;
}

static bool asked(const struct options *options, const char *name)
{
    return options_source(options, name) == OPTION_FROM_ARGUMENT;
}

int asked_selection_check(const struct options *options, bool *any, struct hill_why *why)
{
    *any = false;
    for (unsigned i = 0; i < ASKED_SELECTION_SPECS; i++)
        *any |= asked(options, names[i]);
    return asked(options, "alpha") && asked(options, "budget")
               ? hill_fail(why, HILL_E_INVALID, "--alpha and --budget exclude each other")
               : 0;
}

static void change(Hill__Selection *s, const struct options *options)
{
    uint32_t number;
    if (asked(options, "policy") && kv_policy_parse(options_text(options, "policy"), &number) == 0)
        s->policy = number;
    if (asked(options, "importance") &&
        kv_importance_parse(options_text(options, "importance"), &number) == 0)
        s->importance = number;
    if (asked(options, "alpha")) {
        s->alpha = options_real(options, "alpha");
        s->budget = 0;
    }
    if (asked(options, "budget"))
        s->budget = (uint32_t)options_integer(options, "budget");
    if (asked(options, "alpha") || asked(options, "budget"))
        s->exact_below = 0;
    if (asked(options, "exact-below"))
        s->exact_below = (uint32_t)options_integer(options, "exact-below");
    if (asked(options, "granularity"))
        s->granularity = hill_granularity(options);
    if (asked(options, "sinks"))
        s->sinks = (uint32_t)options_integer(options, "sinks");
    if (asked(options, "window"))
        s->window = (uint32_t)options_integer(options, "window");
}

int asked_selection_make(const struct options *options, struct client *client, Hill__Selection *out,
                         struct hill_why *why)
{
    Hill__Message *reply = NULL;
    int code = client_status(client, CLIENT_ANSWER_MS, &reply, why);
    if (code)
        return code;
    if (reply->status_reply->selection) {
        *out = *reply->status_reply->selection; /* numbers alone */
        out->base.n_unknown_fields = 0;
        out->base.unknown_fields = NULL;
        change(out, options);
    } else {
        code = hill_fail(why, HILL_E_PROTOCOL, "the coordinator did not say how it selects");
    }
    proto_free(reply);
    return code;
}

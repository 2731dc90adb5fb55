/* coordinator/service.c - who is served by what; see service.h. */
#include "coordinator/service.h"

#include "base/clock.h"

static const struct route routes[] = {
    {HILL__MESSAGE__BODY_GENERATE, FROM_CLIENT, request_take_generate},
    {HILL__MESSAGE__BODY_CANCEL, FROM_CLIENT, request_take_cancel},
    {HILL__MESSAGE__BODY_FOLLOW, FROM_CLIENT, follow_take},
    {HILL__MESSAGE__BODY_DELIVERED, FROM_CLIENT, delivered_take},
    {HILL__MESSAGE__BODY_STATUS_REQUEST, FROM_CLIENT, status_take_request},
    {HILL__MESSAGE__BODY_SAVE_SESSION, FROM_CLIENT, session_take_save},
    {HILL__MESSAGE__BODY_RESTORE_SESSION, FROM_CLIENT, session_take_restore},
    {HILL__MESSAGE__BODY_CSD_MODEL_CHANGE, FROM_CLIENT, csd_model_take_change},
    {HILL__MESSAGE__BODY_PROFILE_REQUEST, FROM_CLIENT, profile_take_request},
    {HILL__MESSAGE__BODY_MODEL_INFO_REQUEST, FROM_CLIENT, model_take_info_request},
    {HILL__MESSAGE__BODY_TOKENIZE, FROM_CLIENT, model_take_tokenize},
    {HILL__MESSAGE__BODY_DETOKENIZE, FROM_CLIENT, model_take_detokenize},
    {HILL__MESSAGE__BODY_TRACE_REQUEST, FROM_CLIENT, trace_ask},
    {HILL__MESSAGE__BODY_PROGRESS, FROM_GPU, request_on_progress},
    {HILL__MESSAGE__BODY_TOKEN, FROM_GPU, request_on_token},
    {HILL__MESSAGE__BODY_RESUMED, FROM_GPU, request_on_resumed},
    {HILL__MESSAGE__BODY_DONE, FROM_GPU, request_on_done},
    {HILL__MESSAGE__BODY_SAVED, FROM_GPU, session_on_saved},
    {HILL__MESSAGE__BODY_SEQUENCE_STATS, FROM_SCORER, request_on_stats},
    {HILL__MESSAGE__BODY_PROFILE_RESULT, FROM_SCORER, profile_take_result},
    {HILL__MESSAGE__BODY_STAGE_TIMES, FROM_SCORER, profile_take_stages},
    {HILL__MESSAGE__BODY_CSD_MODEL_COUNTERS, FROM_AGENT, csd_model_take_counters},
    {HILL__MESSAGE__BODY_FAILURE, FROM_WORKERS, request_on_failure},
    {HILL__MESSAGE__BODY_TRACE_ANSWER, FROM_WORKERS, trace_pass_on},
};

/* ---- what the supervisor says --------------------------------------------------------------- */

static void epoch_ends(void *context, bool counts)
{
    requests_interrupt(context, counts);
    profile_interrupt(context);
}

static void ending(void *context, int code, const char *text)
{
    bool asked_for = !code || code == HILL_E_CANCELLED;
    requests_end_all(
        context, asked_for ? HILL__FINISH_REASON__FINISH_CANCEL : HILL__FINISH_REASON__FINISH_ERROR,
        asked_for ? 0 : code, asked_for ? "the pipeline is ending" : text);
}

static void worker_came(void *context, enum worker w)
{
    if (worker_is_agent(w))
        csd_model_new_agent(context, w - WORKER_AGENT);
}

static void balance(void *context, struct epoch_settings *now)
{
    now->beta = profile_beta(context);
    now->host_scores = profile_host_scores(context);
}

static bool is_busy(void *context)
{
    const struct service *sv = context;
    return sv->book.running;
}

static bool is_reading(void *context)
{
    return requests_reading(context);
}

static bool can_go_on(void *context)
{
    return requests_are_entries(context);
}

static bool keeps_tiers(void *context)
{
    return requests_keep_tiers(context);
}

/* ---- life ----------------------------------------------------------------------------------- */

void service_open(struct service *sv, struct settings *settings, struct router *router,
                  struct supervisor *supervisor, struct supervisor_hooks *hooks)
{
    *sv = (struct service){.settings = settings,
                           .router = router,
                           .supervisor = supervisor,
                           .started_ns = clock_now_ns()};
    prefix_store_init(&sv->prefixes);
    request_book_init(&sv->book, settings->epoch.plan.n_sequences);
    router_register(router, routes, sizeof routes / sizeof *routes, sv);
    *hooks = (struct supervisor_hooks){sv,      epoch_ends, ending,    worker_came, balance,
                                       is_busy, is_reading, can_go_on, keeps_tiers};
}

void service_close(struct service *sv)
{
    request_book_finish(&sv->book);
    prefix_store_finish(&sv->prefixes);
}

bool service_tick(struct service *sv, int64_t now_ns)
{
    requests_tick(sv, now_ns);
    return supervisor_ready(sv->supervisor) && profile_tick(sv, now_ns);
}

int64_t service_next_ns(const struct service *sv)
{
    int64_t requests = requests_next_ns(sv), profile = profile_next_ns(sv);
    return requests < profile ? requests : profile;
}

/*
 * coordinator/service_profile.c - when the two sides are measured, and the beta that follows.
 *
 * What: with a drive and --beta auto, the rates of coordinator/balance.h are looked up in the state
 * folder's cache; when it has none for this machine, model and drive, the scorer measures them
 * before the pipeline is said to be ready, or before the next request when the drive has changed. A
 * client may ask for it between requests, whatever --beta says. beta is Eq. 4 of the rates, with
 * the share of each tier that queries upload in place of alpha; while requests run, medians of what
 * the last queries' stages took and uploaded take the place of what was measured, and beta follows
 * them, damped (balance_follow). Several drives are measured at every start, whatever --beta says:
 * the speed of each says how many entries go there. Where M_0 has room for everything, all of it is
 * hot unless the drive's part saves more than asking for it costs (balance_drive_pays). The scorer
 * is told beta; M_0 bounds it there for each sequence, and here for what is shown. Who calls it:
 * service.c, service_requests.c, service_status.c. Concurrency: one thread. Failure: nothing is
 * held up for more than a second; what cannot be measured leaves beta as it was, with one warning.
 */
#include "coordinator/service.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kv/plane.h"

#define WAIT_MS   1000 /* for a measurement, at most, before going on without it */
#define TRIES_MAX 2u   /* of one that is interrupted by a worker's death */
/* And its inverse: beyond, one side has next to nothing, and its times say little. */
#define BETA_MOST 64.0
#define FAR_LEAST 16 /* of so many cold tokens the drive must have scored one */

static void cache_path(char out[HILL_PATH_BYTES + 32], const struct service *sv)
{
    snprintf(out, HILL_PATH_BYTES + 32, "%s/profile.json", sv->settings->state_dir);
}

static void fingerprint(char out[PROFILE_FINGERPRINT_BYTES], struct service *sv)
{
    const struct epoch_settings *epoch = &sv->settings->epoch;
    if (!sv->profile.cpu[0])
        profile_cpu_name(sv->profile.cpu, sizeof sv->profile.cpu);
    const char *device = epoch->csd_device;
    char scores[220]; /* what scores on either side */
    snprintf(scores, sizeof scores, "%.100s; drive's digests on %.50s, %llu MiB of them in DRAM",
             sv->profile.cpu, device && *device ? device : "host",
             (unsigned long long)(epoch->csd_dram_bytes >> 20));
    profile_fingerprint(out, sv->settings, scores);
}

/* ---- the file ------------------------------------------------------------------------------ */

static void keep(struct service *sv, const struct profile *values)
{
    char path[HILL_PATH_BYTES + 32];
    struct hill_why why = {""};
    cache_path(path, sv);
    if (settings_several(sv->settings))
        return;
    if (profile_cache_store(path, sv->profile.asked_for, values, &why))
        log_warn("%s; the next start has nothing of what was measured since", why.text);
}

/* ---- beta -------------------------------------------------------------------------------- */

double profile_beta(const struct service *sv)
{
    bool use = sv->settings->epoch.beta_auto && sv->profile.have;
    double ours = sv->profile.all_hot ? HILL_BETA_ALL_HOT : sv->profile.beta;
    return use ? ours : sv->settings->epoch.beta;
}

double profile_host_scores(const struct service *sv)
{
    bool use = sv->settings->epoch.beta_auto && sv->profile.have;
    return use ? sv->profile.host_scores : 0;
}

double profile_beta_effective(const struct service *sv)
{
    bool use = sv->settings->epoch.beta_auto && sv->profile.have;
    return use ? sv->profile.beta_bounded : sv->settings->epoch.beta;
}

/* Of all contexts when they are full: bytes of entries, and what M_0 holds of them. */
static void volumes(const struct settings *s, double *M, double *M_0)
{
    double entry = kv_entry_bytes(&s->epoch.plan.geometry);
    *M = entry * s->epoch.plan.geometry.n_layers * s->epoch.plan.ctx_tokens *
         s->epoch.plan.n_sequences;
    *M_0 = entry * s->hot.n_blocks * KV_HOT_BLOCK_TOKENS;
}

/* Bytes of a side that go on to the GPU cross its modelled link as well. */
static double with_link(const struct service *sv, double seconds_a_byte)
{
    const struct csd_model *m = &sv->settings->epoch.csd_model;
    return 1 / (seconds_a_byte + (m->on ? 1e-9 / m->gpu_link : 0));
}

/* Until this run's queries have told: as those of an earlier run had it. */
static bool digests_pay(struct service *sv, const struct balance_rates *now)
{
    struct kv_lent_unit unit = kv_lent_unit(&sv->settings->epoch.plan.geometry);
    struct profile *values = &sv->profile.values;
    bool told = balance_window_is_full(&sv->profile.fetch_cold) &&
                balance_window_is_full(&sv->profile.share_cold);
    if (!told && values->digests)
        return values->digests > 0;
    bool pay =
        balance_digests_pay(now, sv->profile.alpha_c, sv->profile.alpha_s,
                            (double)unit.n_frames / unit.n_blocks, sv->profile.host_scores > 0);
    int digests = pay ? 1 : -1;
    if (told && values->digests != digests) {
        values->digests = digests;
        keep(sv, values);
    }
    return pay;
}

/* What of M_0 is to hold digests of cold tokens in place of entries. */
static int weigh_digests(struct service *sv, const struct balance_rates *now, struct hill_why *why)
{
    double share;
    int code = balance_host_scores(&share, now, sv->profile.alpha_s, why);
    bool pay = !code && digests_pay(sv, now);
    if (pay != (sv->profile.host_scores > 0))
        log_debug("of a sequence beyond its part of M_0, M_0 is to hold %s",
                  pay ? "digests, and fewer entries" : "entries alone");
    sv->profile.host_scores = pay ? share : 0;
    return code;
}

/* beta within M_0, and whether M_0 is to have everything. `now`: what beta is Eq. 4 of. */
static int weigh(struct service *sv, const struct balance_rates *now, struct hill_why *why)
{
    const struct kv_plan_input *plan = &sv->settings->epoch.plan;
    double M, M_0, bytes = (double)kv_entry_bytes(&plan->geometry) * plan->ctx_tokens;
    double seconds = bytes * (1 / now->f_c + sv->profile.alpha_c / now->B_c); /* a query, Eq. 2 */
    volumes(sv->settings, &M, &M_0);
    int code = balance_bound(&sv->profile.beta_bounded, sv->profile.beta, M, M_0, why);
    if (!code)
        code = weigh_digests(sv, now, why);
    sv->profile.all_hot =
        !code && M <= M_0 && !balance_drive_pays(sv->profile.beta, seconds, !sv->profile.all_hot);
    if (sv->profile.all_hot)
        sv->profile.beta_bounded = HILL_BETA_ALL_HOT;
    return code;
}

static int work_out(struct service *sv, struct hill_why *why)
{
    const struct balance_rates *r = &sv->profile.values.rates;
    const struct balance_rates rates = {r->f_c, r->f_s, with_link(sv, 1 / r->B_c),
                                        with_link(sv, 1 / r->B_s)};
    int code =
        balance_beta(&sv->profile.beta, &rates, sv->profile.alpha_c, sv->profile.alpha_s, why);
    sv->profile.all_hot = false;
    return code ? code : weigh(sv, &rates, why);
}

static bool is_wanted(const struct service *sv)
{
    const struct epoch_settings *e = &sv->settings->epoch;
    uint32_t policy = e->plan.selection.policy;
    bool scores = !kv_policy_reads_keys(policy) && policy != KV_POLICY_HOST_DIGEST;
    return e->beta_auto || (settings_several(sv->settings) && scores);
}

static void tell_scorer(struct service *sv)
{
    Hill__Balance balance = HILL__BALANCE__INIT;
    const struct epoch_settings *e = &sv->settings->epoch;
    double speeds[LAYOUT_DRIVES_MAX];
    if (!is_wanted(sv))
        return;
    for (uint32_t d = 0; d < e->csd_drives; d++)
        speeds[d] = e->drives[d].speed;
    balance.beta = profile_beta(sv);
    balance.host_scores = profile_host_scores(sv);
    balance.speeds = speeds;
    balance.n_speeds = e->csd_drives;
    Hill__Message message = PROTO_MESSAGE(BALANCE, balance, &balance);
    router_to_worker(sv->router, WORKER_SCORER,
                     &message); /* one that is not there gets it with Configure */
}

static void forget_stages(struct service *sv)
{
    sv->profile.score_hot = sv->profile.score_cold = sv->profile.copy_hot = sv->profile.fetch_cold =
        sv->profile.share_hot = sv->profile.share_cold = (struct balance_window){.n = 0};
}

/* Of several drives: the speed of each, and the one drive that they are for Eq. 4. */
static int take_drives(struct service *sv, struct hill_why *why)
{
    struct profile *values = &sv->profile.values;
    struct balance_rates rates;
    double speeds[LAYOUT_DRIVES_MAX];
    if (values->n_drives != sv->settings->epoch.csd_drives || values->n_drives == 0)
        return 0;
    int code =
        balance_drives(&rates, speeds, values->drives, values->n_drives, sv->profile.alpha_s, why);
    if (code)
        return code;
    values->rates.f_s = rates.f_s;
    values->rates.B_s = rates.B_s;
    settings_set_speeds(sv->settings, speeds);
    for (uint32_t d = 0; d < values->n_drives; d++)
        log_info("drive %u, %s: scores %.3f and sends %.3f GB/s of entries", d + 1,
                 sv->settings->drives[d].url, values->drives[d].f_s / 1e9,
                 values->drives[d].B_s / 1e9);
    return 0;
}

/* Take up rates, and say what they are. */
static void adopt(struct service *sv, const struct profile *values)
{
    const struct settings *s = sv->settings;
    struct hill_why why = {""};
    const struct balance_rates *r = &sv->profile.values.rates, *d = &values->spread;
    char source[64] = "measured before";
    sv->profile.values = *values;
    forget_stages(sv);
    sv->profile.alpha_c = sv->profile.alpha_s =
        (double)kv_budget_tokens(&s->epoch.plan.selection, s->epoch.plan.ctx_tokens) /
        s->epoch.plan.ctx_tokens;
    int code = take_drives(sv, &why);
    if (code == 0)
        code = work_out(sv, &why);
    sv->profile.have = code == 0;
    sv->profile.beta_measured = sv->profile.beta;
    if (code) {
        log_warn("%s; beta stays %g", why.text, s->epoch.beta);
        return;
    }
    if (!values->cached)
        snprintf(source, sizeof source, "measured in %.0f ms", values->took_ms);
    log_info("beta %.4g: entries kept in DRAM for each on the drive, from speeds %s%s%s",
             sv->profile.beta_bounded, source,
             sv->profile.all_hot
                 ? "; --hot-mb has room for all, and the drive would save too little"
                 : "",
             s->epoch.beta_auto ? "" : "; --beta is fixed and stays");
    if (getenv("HILL_TEST_EVEN_SHARES"))
        log_warn("test hook HILL_TEST_EVEN_SHARES: beta is followed without skewness correction");
    log_debug(
        "profile: f_c %.3f, f_s %.3f, B_c %.3f, B_s %.3f GB/s (quartiles apart by %.0f, %.0f, "
        "%.0f, %.0f %%); Eq. 4 gives beta %.4g, within M_0 %.4g",
        r->f_c / 1e9, r->f_s / 1e9, r->B_c / 1e9, r->B_s / 1e9, d->f_c * 100, d->f_s * 100,
        d->B_c * 100, d->B_s * 100, sv->profile.beta, sv->profile.beta_bounded);
    tell_scorer(sv);
}

/* A sample of seconds a byte: none where nothing was done. */
static void sample_cost(struct balance_window *window, uint64_t ns, double bytes)
{
    if (ns && bytes > 0)
        balance_window_add(window, (double)ns / 1e9 / bytes);
}

static void sample_share(struct balance_window *window, uint64_t part, uint64_t whole)
{
    if (whole)
        balance_window_add(window, fmin((double)part / (double)whole, 1));
}

/* What queries upload of each side. HILL_TEST_EVEN_SHARES=1: of both together, Eq. 4 without the
 * paper's skewness correction, to compare with. */
static void sample_shares(struct service *sv, const Hill__StageTimes *m)
{
    uint64_t hits = m->hot_hits + m->cold_hits, tokens = m->hot_tokens + m->cold_tokens;
    bool even = getenv("HILL_TEST_EVEN_SHARES") != NULL;
    sample_share(&sv->profile.share_hot, even ? hits : m->hot_hits, even ? tokens : m->hot_tokens);
    sample_share(&sv->profile.share_cold, even ? hits : m->cold_hits,
                 even ? tokens : m->cold_tokens);
}

/* Where beta would be if all stayed as it was lately, which *now gets. */
static int target_of(struct service *sv, double *target, struct balance_rates *now)
{
    const struct balance_rates *r = &sv->profile.values.rates;
    *now = (struct balance_rates){
        1 / balance_window_median(&sv->profile.score_hot, 1 / r->f_c),
        1 / balance_window_median(&sv->profile.score_cold, 1 / r->f_s),
        with_link(sv, balance_window_median(&sv->profile.copy_hot, 1 / r->B_c)),
        with_link(sv, balance_window_median(&sv->profile.fetch_cold, 1 / r->B_s))};
    sv->profile.alpha_c = balance_window_median(&sv->profile.share_hot, sv->profile.alpha_c);
    sv->profile.alpha_s = balance_window_median(&sv->profile.share_cold, sv->profile.alpha_s);
    int code = balance_beta(target, now, sv->profile.alpha_c, sv->profile.alpha_s, NULL);
    double most = fmax(BETA_MOST, sv->profile.beta_measured);
    *target = code ? 1 : fmax(1 / BETA_MOST, fmin(most, *target));
    return code;
}

void profile_take_stages(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const Hill__StageTimes *m = a->message->stage_times;
    const struct settings *s = sv->settings;
    double entry = kv_entry_bytes(&s->epoch.plan.geometry), target = 0;
    struct balance_rates now;
    if (!sv->profile.have || !s->epoch.beta_auto)
        return;
    double near = (double)m->near_tokens, far = (double)m->cold_tokens - near;
    sample_cost(&sv->profile.score_hot, m->score_hot_ns, entry * ((double)m->hot_tokens + near));
    if (far * FAR_LEAST >= (double)m->cold_tokens) /* else it is the time of a command alone */
        sample_cost(&sv->profile.score_cold, m->score_cold_ns, entry * far);
    sample_cost(&sv->profile.copy_hot, m->copy_hot_ns, entry * (double)m->hot_hits);
    sample_cost(&sv->profile.fetch_cold, m->fetch_cold_ns, entry * (double)m->cold_hits);
    sample_shares(sv, m);
    if (target_of(sv, &target, &now))
        return;
    double before = profile_beta(sv), scored = profile_host_scores(sv);
    sv->profile.beta = balance_follow(sv->profile.beta, target);
    weigh(sv, &now, NULL);
    if (profile_beta(sv) == before && (profile_host_scores(sv) > 0) == (scored > 0))
        return;
    log_debug("beta %.4g, was %.4g: on its way to %.4g", profile_beta(sv), before, target);
    tell_scorer(sv);
}

/* ---- measuring --------------------------------------------------------------------------- */

static void ask(struct service *sv, const struct proto_address *client, int64_t now_ns)
{
    Hill__ProfileRequest request = HILL__PROFILE_REQUEST__INIT;
    Hill__Message message = PROTO_MESSAGE(PROFILE_REQUEST, profile_request, &request);
    sv->profile.client = client ? *client : (struct proto_address){0};
    sv->profile.asked = true;
    sv->profile.late = false;
    sv->profile.deadline_ns = now_ns + CLOCK_MS(WAIT_MS);
    sv->profile.tries++;
    router_to_worker(sv->router, WORKER_SCORER, &message); /* one that is gone brings a new epoch */
}

/* The drive, or what else rates depend on, is not what it was: true when they must be measured. */
static bool look_up(struct service *sv)
{
    char path[HILL_PATH_BYTES + 32];
    struct hill_why why = {""};
    struct profile found;
    sv->profile.have = false;
    sv->profile.tries = 0;
    cache_path(path, sv);
    int code = settings_several(sv->settings)
                   ? HILL_E_WOULD_BLOCK
                   : profile_cache_find(&found, path, sv->profile.asked_for, &why);
    if (code == HILL_E_DAMAGED)
        log_warn("%s; measuring anew", why.text);
    if (code == 0)
        adopt(sv, &found);
    return code != 0;
}

bool profile_tick(struct service *sv, int64_t now_ns)
{
    char wanted[PROFILE_FINGERPRINT_BYTES];
    if (sv->profile.asked && now_ns < sv->profile.deadline_ns)
        return false;
    if (sv->profile.asked && !sv->profile.late) {
        sv->profile.late = true;
        log_warn("measuring the two sides takes more than %d ms; going on with beta %g meanwhile",
                 WAIT_MS, profile_beta(sv));
    }
    if (sv->profile.asked || !is_wanted(sv) || !settings_has_drive(sv->settings) ||
        sv->book.running || request_book_returns(&sv->book)) /* measuring needs their slots */
        return true;
    fingerprint(wanted, sv);
    if (strcmp(wanted, sv->profile.asked_for) != 0) {
        memcpy(sv->profile.asked_for, wanted, sizeof wanted);
        if (!look_up(sv))
            return true;
    } else if (sv->profile.have || sv->profile.tries == 0 || sv->profile.tries >= TRIES_MAX) {
        return true;
    }
    ask(sv, NULL, now_ns);
    return false;
}

int64_t profile_next_ns(const struct service *sv)
{
    return sv->profile.asked && !sv->profile.late ? sv->profile.deadline_ns : CLOCK_NEVER;
}

void profile_interrupt(struct service *sv)
{
    if (!sv->profile.asked)
        return;
    sv->profile.asked = false;
    router_reply(sv->router, &sv->profile.client, HILL_E_PEER_GONE,
                 "a worker ended while the two sides were being measured");
}

/* ---- messages ---------------------------------------------------------------------------- */

void profile_take_request(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const struct proto_address *from = &a->from;
    const char *text = NULL;
    int code = HILL_E_BUSY;
    if (sv->supervisor->ending)
        text = "the pipeline is ending";
    else if (!settings_has_drive(sv->settings))
        text = "no CSD is attached: there is nothing to balance", code = HILL_E_INVALID;
    else if (sv->settings->record_path[0])
        text = "the rings are being recorded: what they carry must be requests' alone",
        code = HILL_E_INVALID;
    else if (sv->book.running || sv->book.first || request_book_returns(&sv->book))
        text = "a request runs or waits: speeds are measured between requests";
    else if (sv->profile.asked && sv->profile.client.length)
        text = "speeds are being measured for another client: try again in a second";
    else if (sv->supervisor->change != CHANGE_NONE || !supervisor_ready(sv->supervisor))
        text = "the pipeline is not ready yet";
    if (text) {
        router_reply(sv->router, from, code, text);
        return;
    }
    if (sv->profile.asked) { /* for nobody, by itself: that result is for this client, too */
        sv->profile.client = *from;
        return;
    }
    fingerprint(sv->profile.asked_for, sv);
    ask(sv, from, clock_now_ns());
}

static struct balance_rates rates_from_wire(const Hill__Rates *in)
{
    return (struct balance_rates){in->f_c, in->f_s, in->b_c, in->b_s};
}

/* The client that asked gets what was measured. */
static void answer(struct service *sv)
{
    Hill__ProfileResult result = HILL__PROFILE_RESULT__INIT;
    struct profile_wire wire;
    result.text = (char *)"";
    result.profile = profile_show(sv, &wire);
    Hill__Message message = PROTO_MESSAGE(PROFILE_RESULT, profile_result, &result);
    if (!result.profile)
        router_reply(sv->router, &sv->profile.client, HILL_E_INVALID,
                     "the rates give no finite beta");
    else if (sv->profile.client.length)
        router_to_client(sv->router, &sv->profile.client, &message);
}

void profile_take_result(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const Hill__ProfileResult *result = a->message->profile_result;
    char now[PROFILE_FINGERPRINT_BYTES], path[HILL_PATH_BYTES + 32];
    struct profile earlier;
    if (!sv->profile.asked)
        return;
    sv->profile.asked = false;
    sv->profile.tries = TRIES_MAX; /* answered: not asked again on our own */
    fingerprint(now, sv);
    if (!result->code && strcmp(now, sv->profile.asked_for) != 0) { /* of neither, nor to be kept */
        router_reply(sv->router, &sv->profile.client, HILL_E_BUSY,
                     "the drive's model was changed while the two sides were measured; ask again");
        return;
    }
    if (result->code) {
        if (sv->profile.client.length)
            router_reply(sv->router, &sv->profile.client, result->code, result->text);
        else
            log_warn("%s; beta stays %g", result->text, profile_beta(sv));
        return;
    }
    const Hill__Profile *in = result->profile;
    struct profile values = {.rates = rates_from_wire(in->rates),
                             .spread = rates_from_wire(in->spread),
                             .rounds = in->rounds,
                             .hot_tokens = in->hot_tokens,
                             .cold_tokens = in->cold_tokens,
                             .fetch_tokens = in->fetch_tokens,
                             .took_ms = in->took_ms,
                             .n_drives = (uint32_t)in->n_drives_f_s};
    for (uint32_t d = 0; d < values.n_drives; d++)
        values.drives[d] = (struct balance_drive){in->drives_f_s[d], in->drives_b_s[d]};
    cache_path(path, sv);
    if (profile_cache_find(&earlier, path, now, NULL) == 0)
        values.digests = earlier.digests; /* what queries had does not depend on this measurement */
    adopt(sv, &values);
    keep(sv, &values);
    answer(sv);
}

static void rates_to_wire(Hill__Rates *out, const struct balance_rates *in)
{
    hill__rates__init(out);
    out->f_c = in->f_c;
    out->f_s = in->f_s;
    out->b_c = in->B_c;
    out->b_s = in->B_s;
}

Hill__Profile *profile_show(const struct service *sv, struct profile_wire *wire)
{
    const struct profile *values = &sv->profile.values;
    Hill__Profile *out = &wire->profile;
    if (!sv->profile.have || !settings_has_drive(sv->settings)) /* else of a drive that is gone */
        return NULL;
    hill__profile__init(out);
    rates_to_wire(out->rates = &wire->rates, &values->rates);
    rates_to_wire(out->spread = &wire->spread, &values->spread);
    out->rounds = values->rounds;
    out->hot_tokens = values->hot_tokens;
    out->cold_tokens = values->cold_tokens;
    out->fetch_tokens = values->fetch_tokens;
    out->took_ms = values->took_ms;
    out->cached = values->cached;
    out->alpha_c = sv->profile.alpha_c;
    out->alpha_s = sv->profile.alpha_s;
    out->beta = sv->profile.beta;
    out->beta_bounded = sv->profile.beta_bounded;
    return out;
}

/* hillctl/report.c - see report.h. */
#include "hillctl/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/json_text.h"
#include "kv/score.h"
#include "kv/select.h"
#include "proto/epoch_settings.h"

#define MIB (1024.0 * 1024.0)

static const char *finish_name(Hill__FinishReason finish)
{
    switch (finish) {
    case HILL__FINISH_REASON__FINISH_STOP:
        return "stop";
    case HILL__FINISH_REASON__FINISH_LENGTH:
        return "length";
    case HILL__FINISH_REASON__FINISH_CANCEL:
        return "cancel";
    default:
        return "error";
    }
}

static void set_integer(json_t *object, const char *key, bool measured, uint64_t value)
{
    json_object_set_new(object, key, measured ? json_integer((json_int_t)value) : json_null());
}

static void set_real(json_t *object, const char *key, bool measured, double value)
{
    json_object_set_new(object, key, measured && isfinite(value) ? json_real(value) : json_null());
}

static void set_hash(json_t *object, const char *key, bool measured, uint64_t hash)
{
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    json_object_set_new(object, key, measured ? json_string(text) : json_null());
}

static void set_selection(json_t *object, const Hill__Selection *s)
{
    const char *policy = s ? kv_policy_name(s->policy) : NULL,
               *importance = s ? kv_importance_name(s->importance) : NULL;
    json_object_set_new(object, "policy", policy ? json_string(policy) : json_null());
    set_real(object, "alpha", s != NULL, s ? s->alpha : 0);
    set_integer(object, "exact_below", s != NULL, s ? s->exact_below : 0);
    set_integer(object, "granularity", s != NULL, s && s->granularity ? s->granularity : 1);
    json_object_set_new(object, "importance", importance ? json_string(importance) : json_null());
}

/* Of the guessed queries that were verified: the share of what the exact ones chose. A layer that
 * was not guessed, or in which nothing but sinks and window was selected, has none. */
static json_t *recall_per_layer(const Hill__SequenceStats *s, double *mean)
{
    json_t *list = json_array();
    double sum = 0;
    unsigned n = 0;
    for (size_t i = 0; i < s->n_guess_chosen; i++) {
        double recall = (double)s->guess_found[i] / (double)s->guess_chosen[i];
        json_array_append_new(list, s->guess_chosen[i] ? json_real(recall) : json_null());
        sum += s->guess_chosen[i] ? recall : 0;
        n += s->guess_chosen[i] ? 1 : 0;
    }
    *mean = n ? sum / n : NAN;
    return list;
}

static json_t *speculation(const Hill__Summary *m, const Hill__SequenceStats *s)
{
    if (!m || !s || m->speculate == HILL__SPECULATE__SPECULATE_OFF)
        return json_null();
    json_t *object = json_object();
    double mean;
    bool verified = m->speculate == HILL__SPECULATE__SPECULATE_VERIFY;
    set_integer(object, "exact_layers", true, m->exact_layers);
    set_integer(object, "queries", true, s->guess_queries);
    json_object_set_new(object, "recall_per_layer", recall_per_layer(s, &mean));
    set_real(object, "recall", verified, mean);
    set_integer(object, "late_fetches", verified, s->late_fetches);
    return object;
}

static json_t *tier(const Hill__TierStats *t)
{
    json_t *object = json_object();
    set_integer(object, "tokens", t, t ? t->tokens : 0);
    set_integer(object, "bytes", t, t ? t->bytes : 0);
    set_integer(object, "cap_bytes", t, t ? t->cap_bytes : 0);
    set_integer(object, "hits", t, t ? t->hits : 0);
    return object;
}

static json_t *tiers(const Hill__Done *gpu, const Hill__SequenceStats *s)
{
    json_t *object = json_object(), *g = json_object();
    set_integer(g, "resident_bytes", gpu, gpu ? gpu->gpu_resident_bytes : 0);
    set_integer(g, "hits", s && s->gpu, s && s->gpu ? s->gpu->hits : 0);
    json_object_set_new(object, "gpu", g);
    json_object_set_new(object, "hot", tier(s ? s->hot : NULL));
    json_object_set_new(object, "cold", tier(s ? s->cold : NULL));
    set_integer(json_object_get(object, "cold"), "near", s, s ? s->near_tokens : 0);
    return object;
}

static json_t *bytes(const Hill__Done *gpu, const Hill__SequenceStats *s)
{
    json_t *object = json_object();
    set_integer(object, "link_key", s, s ? s->link_key_bytes : 0);
    set_integer(object, "link_score", s, s ? s->link_score_bytes : 0);
    set_integer(object, "link_kv", s, s ? s->link_kv_bytes : 0);
    set_integer(object, "flash_read", s, s ? s->flash_read_bytes : 0);
    set_integer(object, "flash_write", s, s ? s->flash_write_bytes : 0);
    set_integer(object, "gpu_upload", gpu, gpu ? gpu->gpu_upload_bytes : 0);
    set_integer(object, "weights", gpu, gpu ? gpu->weights_read_bytes : 0);
    set_integer(object, "attended", gpu, gpu ? gpu->attended_bytes : 0);
    set_integer(object, "scored", s, s ? s->scored_bytes : 0);           /* by the host's threads */
    set_integer(object, "link_gpu", gpu, gpu ? gpu->link_gpu_bytes : 0); /* modelled */
    return object;
}

/* Of several drives, in the order in which they were named. */
static json_t *drives(const Hill__SequenceStats *s)
{
    json_t *list = json_array(), *object = json_object();
    for (size_t i = 0; i < s->n_drives; i++) {
        json_t *drive = json_object();
        set_integer(drive, "tokens", true, s->drives[i]->tokens);
        set_real(drive, "score_ms", true, s->drives[i]->score_ms);
        set_real(drive, "fetch_ms", true, s->drives[i]->fetch_ms);
        json_array_append_new(list, drive);
    }
    json_object_set_new(object, "each", list);
    set_real(object, "spread", true, s->drive_spread);
    return object;
}

static json_t *stages(const Hill__Done *gpu, const Hill__SequenceStats *s)
{
    json_t *object = json_object();
    set_real(object, "gpu_busy_ms", gpu, gpu ? gpu->gpu_busy_ms : 0);
    set_real(object, "gpu_idle_ms", gpu, gpu ? gpu->gpu_idle_ms : 0);
    set_real(object, "token_median_ms", gpu, gpu ? gpu->token_median_ms : 0);
    set_real(object, "idle_median_ms", gpu, gpu ? gpu->idle_median_ms : 0);
    set_real(object, "bounds_ms", s, s ? s->bounds_ms : 0); /* leoam's */
    set_real(object, "score_hot_ms", s, s ? s->score_hot_ms : 0);
    set_real(object, "score_cold_ms", s, s ? s->score_cold_ms : 0);
    set_real(object, "score_cpu_ms", s, s ? s->score_cpu_ms : 0); /* of all threads */
    set_real(object, "merge_ms", s, s ? s->merge_ms : 0);
    set_real(object, "fetch_ms", s, s ? s->fetch_ms : 0);
    set_real(object, "imbalance", s && s->steps_compared, s ? s->imbalance : 0);
    set_real(object, "link_gpu_ms", gpu, gpu ? (double)gpu->link_gpu_ns / 1e6 : 0); /* modelled */
    return object;
}

/* Of leoam: whose keys its bounds named. */
static json_t *candidates(const Hill__Summary *m, const Hill__SequenceStats *s)
{
    if (!m || !s || !m->selection || m->selection->policy != HILL__POLICY__POLICY_LEOAM)
        return json_null();
    json_t *object = json_object();
    set_integer(object, "hot", true, s->candidates_hot);
    set_integer(object, "cold", true, s->candidates_cold);
    set_integer(object, "runs", true, s->candidate_runs);
    set_integer(object, "between", true, s->between_candidates);
    return object;
}

static json_t *moves(const Hill__SequenceStats *s)
{
    json_t *object = json_object();
    set_integer(object, "promoted", s, s ? s->promoted : 0);
    set_integer(object, "demoted", s, s ? s->demoted : 0);
    set_integer(object, "bounced", s, s ? s->bounced : 0);
    set_integer(object, "demoted_free", s, s ? s->demoted_free : 0);
    set_integer(object, "copies_given_for_stream", s, s ? s->given_stream : 0);
    set_integer(object, "copies_given_for_room", s, s ? s->given_room : 0);
    set_integer(object, "ever_cold", s, s ? s->ever_cold : 0);
    return object;
}

/* Of the reused ones: out of the store on the drive. */
static uint32_t drive_tokens(const Hill__Summary *m)
{
    uint32_t n = m->gpu ? m->gpu->drive_tokens : 0;
    return n < m->reused_tokens ? n : m->reused_tokens;
}

/* Of the prompt: neither of earlier requests nor out of a session. */
static uint32_t computed_tokens(const Hill__Summary *m)
{
    uint32_t rest = m->prompt_tokens - m->reused_tokens;
    uint32_t there = m->gpu ? m->gpu->session_tokens : 0;
    return there < rest ? rest - there : 0;
}

/* What of the prompt was not computed, and from where it was where a history was to be had. */
static json_t *prefix(const Hill__Summary *m)
{
    json_t *object = json_object();
    bool again = m && m->history_tokens > m->reused_tokens;
    set_integer(object, "reused_tokens", m, m ? m->reused_tokens : 0);
    set_integer(object, "computed_tokens", m, m ? computed_tokens(m) : 0);
    set_integer(object, "decoded_tokens", m, m ? m->reused_decoded : 0);
    set_integer(object, "from_tiers_tokens", m, m ? m->reused_tokens - drive_tokens(m) : 0);
    set_integer(object, "from_drive_tokens", m, m ? drive_tokens(m) : 0);
    set_real(object, "from_drive_ms", m && drive_tokens(m), m && m->gpu ? m->gpu->drive_ms : 0);
    set_real(object, "saved_ms", m && drive_tokens(m),
             m && m->gpu ? m->gpu->drive_saved_ms - m->gpu->drive_ms : 0);
    bool loaded = m && m->gpu && m->gpu->loaded_bytes;
    bool away =
        m && m->gpu && m->gpu->away_tokens; /* also of a later attempt, which has loaded none */
    json_object_set_new(object, "attention",
                        loaded || away ? json_string(m->gpu->selected ? "select" : "all")
                                       : json_null());
    set_integer(object, "away_tokens", m && m->gpu, m && m->gpu ? m->gpu->away_tokens : 0);
    set_integer(object, "loaded_entries", loaded, loaded ? m->gpu->loaded_entries : 0);
    set_integer(object, "loaded_bytes", loaded, loaded ? m->gpu->loaded_bytes : 0);
    set_integer(object, "loaded_later_bytes", loaded, loaded ? m->gpu->later_bytes : 0);
    set_real(object, "probe_ms", loaded && m->gpu->selected, loaded ? m->gpu->probe_ms : 0);
    set_integer(object, "cached_bytes", loaded && m->gpu->selected,
                loaded ? m->gpu->cached_bytes : 0);
    set_integer(object, "cached_gpu_bytes", loaded && m->gpu->selected,
                loaded ? m->gpu->cached_gpu_bytes : 0);
    set_integer(object, "left_chunks", m && m->gpu, m && m->gpu ? m->gpu->left_chunks : 0);
    set_integer(object, "computed_again_from", again, again ? m->reused_tokens : 0);
    return object;
}

/* What workers' deaths have cost the request. */
static json_t *recovery(const Hill__Summary *m)
{
    json_t *object = json_object();
    set_integer(object, "attempts", m, m ? m->attempts : 0);
    set_integer(object, "recoveries", m, m ? m->recoveries : 0);
    set_integer(object, "steps_repeated", m, m ? m->steps_repeated : 0);
    set_integer(object, "units_repeated", m, m ? m->units_repeated : 0);
    set_integer(object, "entries_repeated", m, m ? m->entries_repeated : 0);
    return object;
}

static json_t *restarts(const Hill__Restarts *r)
{
    json_t *object = json_object();
    set_integer(object, "gpu_worker", r, r ? r->gpu_worker : 0);
    set_integer(object, "cpu_scorer", r, r ? r->cpu_scorer : 0);
    set_integer(object, "csd_agent", r, r ? r->csd_agent : 0);
    set_integer(object, "coordinator", r, r ? r->coordinator : 0);
    return object;
}

/* Its last attempt's. The first token comes with the prompt, unless the attempt goes on from tokens
 * that were there; the stop token takes a step, and is none of the answer's. */
double report_steps_per_second(const Hill__Done *gpu)
{
    uint32_t steps = gpu->predicted_tokens - gpu->resumed_tokens;
    bool stops = gpu->finish == HILL__FINISH_REASON__FINISH_STOP;
    if (steps && !gpu->resumed_tokens && !stops)
        steps--;
    return gpu->predicted_ms > 0 ? steps * 1000.0 / gpu->predicted_ms : NAN;
}

static void set_rates(json_t *object, const Hill__Rates *r)
{
    set_real(object, "f_c", r, r ? r->f_c : 0);
    set_real(object, "f_s", r, r ? r->f_s : 0);
    set_real(object, "B_c", r, r ? r->b_c : 0);
    set_real(object, "B_s", r, r ? r->b_s : 0);
}

json_t *report_profile_json(const Hill__Profile *m)
{
    json_t *object = json_object(), *spread = json_object();
    set_rates(object, m ? m->rates : NULL);
    set_rates(spread, m ? m->spread : NULL);
    json_object_set_new(object, "spread", spread);
    set_real(object, "alpha_c", m, m ? m->alpha_c : 0);
    set_real(object, "alpha_s", m, m ? m->alpha_s : 0);
    set_real(object, "beta", m, m ? m->beta : 0);
    set_real(object, "beta_bounded", m, m ? m->beta_bounded : 0);
    json_object_set_new(object, "cached", m ? json_boolean(m->cached) : json_null());
    set_real(object, "took_ms", m, m ? m->took_ms : 0);
    set_integer(object, "rounds", m, m ? m->rounds : 0);
    set_integer(object, "hot_tokens", m, m ? m->hot_tokens : 0);
    set_integer(object, "cold_tokens", m, m ? m->cold_tokens : 0);
    set_integer(object, "fetch_tokens", m, m ? m->fetch_tokens : 0);
    return object;
}

json_t *report_json(const struct report *r)
{
    const Hill__Summary *m = r->summary;
    const Hill__Done *gpu = m ? m->gpu : NULL;
    const Hill__SequenceStats *s = m ? m->scorer : NULL;
    json_t *object = json_object(), *tokens = json_array();
    for (size_t i = 0; i < r->n_tokens; i++)
        json_array_append_new(tokens, json_integer(r->tokens[i]));
    json_object_set_new(object, "text", json_text(r->text ? r->text : "", r->text_bytes));
    json_object_set_new(object, "tokens", tokens);
    if (r->scored) {
        json_t *logprobs = json_array();
        for (size_t i = 0; i < r->n_tokens; i++)
            json_array_append_new(logprobs, json_real(r->logprobs[i]));
        json_object_set_new(object, "logprobs", logprobs);
    }
    json_object_set_new(object, "finish_reason", json_string(m ? finish_name(m->finish) : "error"));
    if (r->code != 0) {
        const char *why = r->why ? r->why : hill_strerror(r->code);
        json_object_set_new(object, "error", json_text(why, strlen(why)));
    }
    set_integer(object, "request_id", m, m ? m->request_id : 0);
    set_integer(object, "prompt_tokens", m, m ? m->prompt_tokens : 0);
    json_object_set_new(object, "prefix", prefix(m));
    set_integer(object, "predicted_tokens", m, m ? m->predicted_tokens : 0);
    set_selection(object, m ? m->selection : NULL);
    json_object_set_new(object, "speculate",
                        m ? json_string(epoch_speculate_name(m->speculate)) : json_null());
    json_object_set_new(object, "speculation", speculation(m, s));
    set_integer(object, "budget", s, s ? s->budget : 0);
    set_real(object, "beta", s && s->beta >= 0, s ? s->beta : 0);
    set_hash(object, "selection_hash", s, s ? s->selection_hash : 0);
    set_hash(object, "logits_hash", gpu, gpu ? gpu->logits_hash : 0);
    set_real(object, "ttft_ms", m, m ? m->ttft_ms : 0);
    set_real(object, "prompt_ms", gpu, gpu ? gpu->prompt_ms : 0);
    set_real(object, "predicted_ms", gpu, gpu ? gpu->predicted_ms : 0);
    set_real(object, "predicted_per_second", gpu, gpu ? report_steps_per_second(gpu) : 0);
    json_object_set_new(object, "tiers", tiers(gpu, s));
    json_object_set_new(object, "bytes", bytes(gpu, s));
    json_object_set_new(object, "stages", stages(gpu, s));
    if (s && s->n_drives)
        json_object_set_new(object, "drives", drives(s));
    json_object_set_new(object, "candidates", candidates(m, s));
    json_object_set_new(object, "moves", moves(s));
    json_object_set_new(object, "profile", report_profile_json(m ? m->profile : NULL));
    json_object_set_new(object, "writes", report_writes_json(m ? m->csd_model_counters : NULL));
    json_object_set_new(object, "csd_model",
                        m ? report_csd_model_json(m->csd_model, m->csd_model_counters)
                          : json_null());
    json_object_set_new(object, "recovery", recovery(m));
    json_object_set_new(object, "restarts", restarts(m ? m->restarts : NULL));
    return object;
}

int report_write_json(json_t *object, struct hill_why *why)
{
    bool written = object &&
                   json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) == 0 &&
                   putchar('\n') != EOF && fflush(stdout) == 0;
    json_decref(object);
    return written ? 0 : hill_fail(why, HILL_E_IO, "writing the JSON to stdout failed");
}

json_t *report_writes_json(const Hill__CsdModelCounters *c)
{
    if (!c || !c->payload_bytes)
        return json_null();
    json_t *object = json_object();
    double all = (double)(c->written_bytes + c->directory_bytes);
    set_integer(object, "payload", true, c->payload_bytes);
    set_integer(object, "pages", true, c->written_bytes);
    set_integer(object, "directory", true, c->directory_bytes);
    set_real(object, "amplification", true, all / (double)c->payload_bytes);
    return object;
}

json_t *report_csd_model_json(const Hill__CsdModel *model, const Hill__CsdModelCounters *c)
{
    if (!model || (!model->on && !(c && c->commands)))
        return json_null();
    json_t *object = json_object();
    json_object_set_new(object, "on", json_boolean(model->on)); /* false: it was, for a part */
    set_real(object, "flash", model->on, model->flash);
    set_real(object, "write", model->on, model->write);
    set_real(object, "link", model->on, model->link);
    set_real(object, "gpu_link", model->on, model->gpu_link);
    json_object_set_new(object, "gpu_link_modelled", json_boolean(model->on));
    set_real(object, "score", model->on, model->score);
    set_real(object, "dram", model->on, model->dram);
    set_real(object, "dram_read", model->on, model->dram_read);
    set_real(object, "latency_us", model->on, model->latency_us);
    set_real(object, "cpu", model->on && model->cpu > 0, model->cpu);
    set_integer(object, "changes", c, c ? c->changes : 0);
    set_integer(object, "commands", c, c ? c->commands : 0);
    set_real(object, "flash_ms", c, c ? (double)c->flash_ns / 1e6 : 0);
    set_real(object, "score_ms", c, c ? (double)c->score_ns / 1e6 : 0);
    set_real(object, "dram_ms", c, c ? (double)c->dram_ns / 1e6 : 0);
    set_real(object, "link_ms", c, c ? (double)c->link_ns / 1e6 : 0);
    set_integer(object, "late", c, c ? c->late : 0);
    set_real(object, "late_ms", c, c ? (double)c->late_ns / 1e6 : 0);
    set_real(object, "late_max_ms", c, c ? (double)c->late_max_ns / 1e6 : 0);
    set_real(object, "lag_ms", c, c ? (double)c->lag_ns / 1e6 : 0);
    return object;
}

void report_csd_model_print(FILE *to, const char *head, const Hill__CsdModel *message,
                            const Hill__CsdModelCounters *c)
{
    struct csd_model model = proto_csd_model(message);
    char text[CSD_MODEL_TEXT];
    if (!model.on && !(c && c->commands))
        return;
    fprintf(to, "%s%s", head, csd_model_print(text, &model));
    if (c && c->commands)
        fprintf(to, " (modelled: flash %.1f ms, scoring %.1f ms, link %.1f ms",
                (double)c->flash_ns / 1e6, (double)c->score_ns / 1e6, (double)c->link_ns / 1e6);
    else
        fprintf(to, " (modelled");
    if (c && c->late)
        fprintf(to,
                "; %" PRIu64 " of %" PRIu64 " commands late, %.1f ms together: the machine is "
                "slower than the model",
                c->late, c->commands, (double)c->late_ns / 1e6);
    fprintf(to, ")\n");
}

json_t *report_live_json(const Hill__SequenceStats *s)
{
    if (!s)
        return json_null();
    json_t *object = json_object(), *places = json_object();
    json_object_set_new(object, "request",
                        s->request_id ? json_integer((json_int_t)s->request_id) : json_null());
    json_object_set_new(places, "gpu", tier(s->gpu));
    json_object_set_new(places, "hot", tier(s->hot));
    json_object_set_new(places, "cold", tier(s->cold));
    json_object_set_new(object, "tiers", places);
    json_object_set_new(object, "moves", moves(s));
    json_object_set_new(object, "bytes", bytes(NULL, s));
    json_object_set_new(object, "queries", json_integer((json_int_t)s->queries));
    json_object_set_new(object, "budget", json_integer((json_int_t)s->budget));
    return object;
}

void report_print(FILE *to, const struct report *r)
{
    const Hill__Summary *m = r->summary;
    const Hill__Done *gpu = m ? m->gpu : NULL;
    const Hill__SequenceStats *s = m ? m->scorer : NULL;
    if (!m)
        return;
    report_csd_model_print(to, "device model ", m->csd_model, m->csd_model_counters);
    fprintf(to, "request %" PRIu64 ": %u prompt tokens, %u generated, finish: %s\n", m->request_id,
            m->prompt_tokens, m->predicted_tokens, finish_name(m->finish));
    if (m->reused_tokens)
        fprintf(to, "%u of the prompt's tokens were there, %u were computed\n", m->reused_tokens,
                m->prompt_tokens - m->reused_tokens);
    if (gpu)
        fprintf(to,
                "prefill %.2f s (%.0f tokens/s), decode %.2f tokens/s, first token after %.2f s\n",
                gpu->prompt_ms / 1000,
                gpu->prompt_ms > 0 ? (m->prompt_tokens - m->reused_tokens) * 1000.0 / gpu->prompt_ms
                                   : 0,
                gpu->predicted_ms > 0 ? report_steps_per_second(gpu) : 0, m->ttft_ms / 1000);
    if (!s || !s->hot || !s->cold || !s->gpu)
        return;
    uint64_t entries = s->hot->tokens + s->cold->tokens,
             hits = s->gpu->hits + s->hot->hits + s->cold->hits;
    fprintf(to, "KV entries: %.1f %% hot (%.1f MiB), %.1f %% cold (%.1f MiB)\n",
            entries ? 100.0 * (double)s->hot->tokens / (double)entries : 0,
            (double)s->hot->bytes / MIB,
            entries ? 100.0 * (double)s->cold->tokens / (double)entries : 0,
            (double)s->cold->bytes / MIB);
    fprintf(to,
            "selected entries (%u a query): %.1f %% on the GPU already, %.1f %% from DRAM, %.1f %% "
            "from the drive\n",
            s->budget, hits ? 100.0 * (double)s->gpu->hits / (double)hits : 0,
            hits ? 100.0 * (double)s->hot->hits / (double)hits : 0,
            hits ? 100.0 * (double)s->cold->hits / (double)hits : 0);
    fprintf(to,
            "over the link: keys for scoring %" PRIu64
            " B, scores %.2f MiB, selected KV %.2f MiB; flash read %.1f MiB\n",
            s->link_key_bytes, (double)s->link_score_bytes / MIB, (double)s->link_kv_bytes / MIB,
            (double)s->flash_read_bytes / MIB);
    fprintf(to, "selection %016" PRIx64 ", logits %016" PRIx64 "\n", s->selection_hash,
            gpu ? gpu->logits_hash : 0);
}

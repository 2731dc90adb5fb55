/*
 * proto/validate.c - the range of every field of every control message (envelope.h:
 * proto_validate).
 *
 * Each body has one function; a check that fails names the message and the field. Ranges are those
 * that keep later arithmetic safe; what is right for a model or a machine is checked by whoever
 * knows it.
 */
#include "proto/envelope.h"
#include "proto/layout.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/hash_state.h"
#include "base/stage_trace.h"
#include "kv/geometry.h"
#include "kv/plan.h"
#include "kv/score.h"
#include "kv/select.h"
#include "proto/epoch_settings.h"
#include "proto/options_hill.h"
#include "proto/records.h"

#define TEXT_MAX      4096u
#define SEQUENCES_MAX KV_MAX_SEQUENCES
#define TOKENS_MAX    KV_MAX_TOKENS
#define PIECES_MAX    65536u
#define CAP_MAX       (UINT64_C(1) << 50) /* 1 PiB */

static int refuse(struct hill_why *why, const char *message, const char *field)
{
    return hill_fail(why, HILL_E_PROTOCOL, "%s message refused: field %s is out of range", message,
                     field);
}

#define CHECK(message, field, condition)                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return refuse(why, message, field);                                                    \
    } while (0)

static bool known(const ProtobufCEnumDescriptor *choices, int value)
{
    return protobuf_c_enum_descriptor_get_value(choices, value) != NULL;
}

static bool text_ok(const char *text)
{
    return text && strlen(text) <= TEXT_MAX;
}

static bool not_negative(double value)
{
    return isfinite(value) && value >= 0;
}

static bool logprob_ok(double value)
{
    return isfinite(value) && value <= 0;
}

static bool role_ok(Hill__Role role)
{
    return role >= HILL__ROLE__ROLE_COORDINATOR && role <= HILL__ROLE__ROLE_CLIENT;
}

static bool worker_role(Hill__Role role)
{
    return role >= HILL__ROLE__ROLE_GPU_WORKER && role <= HILL__ROLE__ROLE_CSD_AGENT;
}

static int check_hello(const Hill__Hello *m, struct hill_why *why)
{
    CHECK("hello", "role", worker_role(m->role));
    CHECK("hello", "pid", m->pid > 0);
    CHECK("hello", "version", text_ok(m->version));
    return 0;
}

static int check_selection(const Hill__Selection *m, struct hill_why *why)
{
    CHECK("selection", "alpha", isfinite(m->alpha) && m->alpha > 0 && m->alpha <= 1);
    CHECK("selection", "budget", m->budget <= TOKENS_MAX);
    CHECK("selection", "sinks", m->sinks <= TOKENS_MAX);
    CHECK("selection", "window", m->window <= TOKENS_MAX);
    CHECK("selection", "exact_below", m->exact_below <= KV_EXACT_BELOW_MAX);
    CHECK("selection", "granularity",
          m->granularity <= KV_GRANULARITY_MAX && (m->granularity & (m->granularity - 1)) == 0);
    CHECK("selection", "policy", (unsigned)m->policy < KV_POLICY_COUNT);
    CHECK("selection", "importance", (unsigned)m->importance < KV_IMPORTANCE_COUNT);
    return 0;
}

/* NULL is none. */
static bool csd_model_ok(const Hill__CsdModel *m)
{
    struct csd_model model = proto_csd_model(m);
    return csd_model_check(&model, NULL) == 0;
}

static bool rate_ok(double value)
{
    return isfinite(value) && value > 0;
}

static bool share_ok(double value)
{
    return not_negative(value) && value <= 1;
}

/* A figure for each of several drives. */
static bool each_ok(size_t n, const double *values)
{
    for (size_t i = 0; i < n && i < LAYOUT_DRIVES_MAX; i++)
        if (!not_negative(values[i]))
            return false;
    return n <= LAYOUT_DRIVES_MAX;
}

static int check_drives(const Hill__Configure *m, struct hill_why *why)
{
    CHECK("configure", "csd_drives", m->csd_drives <= LAYOUT_DRIVES_MAX);
    CHECK("configure", "csd_drive", m->csd_drive < (m->csd_drives > 1 ? m->csd_drives : 1));
    CHECK("configure", "drives", m->n_drives == (m->csd_drives > 1 ? m->csd_drives : 0));
    for (size_t i = 0; i < m->n_drives; i++)
        CHECK("configure", "drives",
              m->drives[i]->cap_bytes <= CAP_MAX && not_negative(m->drives[i]->speed));
    return 0;
}

static int check_profile(const Hill__Profile *m, struct hill_why *why)
{
    const Hill__Rates *r = m->rates, *s = m->spread;
    CHECK("profile", "rates",
          r && rate_ok(r->f_c) && rate_ok(r->f_s) && rate_ok(r->b_c) && rate_ok(r->b_s));
    CHECK("profile", "spread",
          s && not_negative(s->f_c) && not_negative(s->f_s) && not_negative(s->b_c) &&
              not_negative(s->b_s));
    CHECK("profile", "took_ms", not_negative(m->took_ms));
    CHECK("profile", "alpha_c", share_ok(m->alpha_c));
    CHECK("profile", "alpha_s", share_ok(m->alpha_s));
    CHECK("profile", "beta", not_negative(m->beta));
    CHECK("profile", "beta_bounded", not_negative(m->beta_bounded));
    CHECK("profile", "drives_f_s", each_ok(m->n_drives_f_s, m->drives_f_s));
    CHECK("profile", "drives_B_s",
          m->n_drives_b_s == m->n_drives_f_s && each_ok(m->n_drives_b_s, m->drives_b_s));
    return 0;
}

static int check_profile_result(const Hill__ProfileResult *m, struct hill_why *why)
{
    CHECK("profile_result", "code", m->code <= 0);
    CHECK("profile_result", "text", text_ok(m->text));
    CHECK("profile_result", "profile", m->code || m->profile);
    return m->code ? 0 : check_profile(m->profile, why);
}

static int check_configure(const Hill__Configure *m, struct hill_why *why)
{
    const struct kv_geometry g = {m->n_layers, m->n_heads, m->n_kv_heads, m->head_dim,
                                  m->score_bits};
    CHECK("configure", "epoch", m->epoch > 0);
    CHECK("configure", "tiers_epoch", m->tiers_epoch <= m->epoch);
    CHECK("configure", "model_path", text_ok(m->model_path) && m->model_path[0]);
    CHECK("configure", "geometry", kv_geometry_check(&g, NULL) == 0);
    CHECK("configure", "ctx_tokens", m->ctx_tokens > 0 && m->ctx_tokens <= TOKENS_MAX);
    CHECK("configure", "n_sequences", m->n_sequences > 0 && m->n_sequences <= SEQUENCES_MAX);
    CHECK("configure", "batch_tokens", m->batch_tokens > 0 && m->batch_tokens <= TOKENS_MAX);
    CHECK("configure", "threads", m->threads > 0 && m->threads <= EPOCH_THREADS_MAX);
    CHECK("configure", "block_tokens",
          m->block_tokens > 0 && m->block_tokens <= RECORD_STRIPE_SLOTS_MAX);
    CHECK("configure", "selection", m->selection != NULL);
    int code = check_selection(m->selection, why);
    if (code != 0)
        return code;
    CHECK("configure", "beta", not_negative(m->beta));
    CHECK("configure", "host_scores", not_negative(m->host_scores));
    CHECK("configure", "hot_cap_bytes", m->hot_cap_bytes <= CAP_MAX);
    CHECK("configure", "gpu_kv_cap_bytes", m->gpu_kv_cap_bytes <= CAP_MAX);
    CHECK("configure", "gpu_slots", m->gpu_slots > 0 && m->gpu_slots <= TOKENS_MAX);
    CHECK("configure", "csd_dram_bytes", m->csd_dram_bytes <= CAP_MAX);
    CHECK("configure", "digest_cache_bytes", m->digest_cache_bytes <= CAP_MAX);
    CHECK("configure", "rows_in_flight", m->rows_in_flight <= KV_MAX_SEQUENCES);
    CHECK("configure", "cold_cap_bytes", m->cold_cap_bytes <= CAP_MAX);
    CHECK("configure", "csd_device", text_ok(m->csd_device));
    CHECK("configure", "csd_key", text_ok(m->csd_key));
    CHECK("configure", "csd_peer", text_ok(m->csd_peer));
    CHECK("configure", "csd_url", text_ok(m->csd_url) && (!m->csd_attached || m->csd_url[0]));
    CHECK("configure", "device", text_ok(m->device));
    CHECK("configure", "simd", known(&hill__simd__descriptor, m->simd));
    CHECK("configure", "trace_path", text_ok(m->trace_path));
    CHECK("configure", "record_path", text_ok(m->record_path));
    CHECK("configure", "prefix_dir", text_ok(m->prefix_dir));
    CHECK("configure", "prefix_bytes", m->prefix_bytes <= CAP_MAX);
    CHECK("configure", "prefix_share", not_negative(m->prefix_share) && m->prefix_share <= 1);
    CHECK("configure", "prefix_cache_bytes", m->prefix_cache_bytes <= CAP_MAX);
    CHECK("configure", "prefix_away", !m->prefix_away || m->prefix_share > 0);
    CHECK("configure", "prefix_gpu_cache_bytes", m->prefix_gpu_cache_bytes <= CAP_MAX);
    CHECK("configure", "placement", known(&hill__placement__descriptor, m->placement));
    CHECK("configure", "pin", isfinite(m->pin) && m->pin <= 1);
    CHECK("configure", "gpu_drop", not_negative(m->gpu_drop) && m->gpu_drop <= 1);
    CHECK("configure", "csd_model", csd_model_ok(m->csd_model));
    CHECK("configure", "speculate", known(&hill__speculate__descriptor, m->speculate));
    CHECK("configure", "exact_layers", m->exact_layers <= KV_MAX_LAYERS);
    CHECK("configure", "hot_bytes", m->hot_bytes <= CAP_MAX);
    CHECK("configure", "staging_slots", m->staging_slots > 0);
    CHECK("configure", "n_embd", m->n_embd > 0 && m->n_embd <= 1u << 20);
    CHECK("configure", "n_ff", m->n_ff <= 1u << 24);
    CHECK("configure", "global_every", m->layer_window == 0 || m->global_every > 0);
    CHECK("configure", "n_vocab", m->n_vocab > 0 && m->n_vocab <= 1u << 24);
    return check_drives(m, why);
}

static int check_sampling(const Hill__Sampling *m, struct hill_why *why)
{
    CHECK("sampling", "temperature", not_negative(m->temperature) && m->temperature <= 1000);
    CHECK("sampling", "top_p", not_negative(m->top_p) && m->top_p <= 1);
    CHECK("sampling", "min_p", not_negative(m->min_p) && m->min_p <= 1);
    CHECK("sampling", "repeat_penalty",
          isfinite(m->repeat_penalty) && m->repeat_penalty > 0 && m->repeat_penalty <= 1000);
    CHECK("sampling", "unset", m->unset <= HILL_SAMPLING_ALL);
    return 0;
}

static bool path_ok(const char *path)
{
    return text_ok(path) && path[0] == '/';
}

static int check_session_file(const Hill__SessionFile *m, struct hill_why *why)
{
    CHECK("session_file", "path", path_ok(m->path));
    CHECK("session_file", "terms", m->terms.len == PROTO_SESSION_TERMS_BYTES);
    CHECK("session_file", "n_prompt", m->n_prompt <= TOKENS_MAX);
    CHECK("session_file", "first_append", m->first_append <= TOKENS_MAX);
    CHECK("session_file", "first_append", (m->first_append != 0) == (m->n_prompt != 0));
    return 0;
}

static int check_prefill_files(const Hill__Prefill *m, struct hill_why *why)
{
    CHECK("prefill", "restore", !m->restore || m->from_prompt || (m->n_tokens > 1 && !m->n_forced));
    CHECK("prefill", "question",
          !m->question || (m->restore && m->question < m->n_tokens && !m->n_forced));
    CHECK("prefill", "from_prompt", !m->from_prompt || m->restore);
    CHECK("prefill", "save", !m->save || m->n_forced == 0);
    int code = m->restore ? check_session_file(m->restore, why) : 0;
    return code == 0 && m->save ? check_session_file(m->save, why) : code;
}

static int check_save(const Hill__Save *m, struct hill_why *why)
{
    CHECK("save", "file", m->file != NULL);
    return check_session_file(m->file, why);
}

static int check_saved(const Hill__Saved *m, struct hill_why *why)
{
    CHECK("saved", "code", m->code <= 0);
    CHECK("saved", "text", text_ok(m->text));
    CHECK("saved", "tokens", m->tokens <= TOKENS_MAX);
    return 0;
}

static int check_pieces(const char *message, Hill__PromptPiece *const *pieces, size_t n,
                        struct hill_why *why)
{
    CHECK(message, "pieces", n <= PIECES_MAX);
    for (size_t i = 0; i < n; i++)
        CHECK(message, "pieces.kind",
              pieces[i]->kind >= HILL__PROMPT_KIND__PROMPT_TEXT &&
                  pieces[i]->kind <= HILL__PROMPT_KIND__PROMPT_LITERAL);
    return 0;
}

static int check_restore_session(const Hill__RestoreSession *m, struct hill_why *why)
{
    CHECK("restore_session", "path", path_ok(m->path));
    CHECK("restore_session", "predict", m->predict <= TOKENS_MAX);
    CHECK("restore_session", "save_path",
          text_ok(m->save_path) && (!m->save_path[0] || (m->save_path[0] == '/' && !m->n_forced)));
    CHECK("restore_session", "forced", m->n_forced <= TOKENS_MAX);
    CHECK("restore_session", "from_prompt", m->from_prompt || !m->n_forced);
    CHECK("restore_session", "token_ids", !m->n_token_ids || (!m->n_pieces && !m->n_forced));
    int code = check_pieces("restore_session", m->pieces, m->n_pieces, why);
    if (code)
        return code;
    CHECK("restore_session", "pieces", !m->n_pieces || !m->n_forced);
    return m->selection ? check_selection(m->selection, why) : 0;
}

static bool states_ok(const uint8_t *bytes, size_t n)
{
    struct hash_state state;
    for (size_t at = 0; at + sizeof state <= n; at += sizeof state) {
        memcpy(&state, bytes + at, sizeof state);
        if (!hash_state_is_sound(&state))
            return false;
    }
    return n % sizeof state == 0;
}

static int check_reuse(const Hill__Prefill *p, struct hill_why *why)
{
    const Hill__Reuse *m = p->reuse;
    CHECK("reuse", "identity", m->identity != 0);
    CHECK("reuse", "tokens", m->tokens > 0 && m->tokens < p->n_tokens);
    CHECK("reuse", "plain", m->plain <= m->tokens);
    CHECK("reuse", "prefill", !p->restore);
    return 0;
}

static int check_resume(const Hill__Prefill *p, struct hill_why *why)
{
    const Hill__Resume *m = p->resume;
    if (!m)
        return 0;
    CHECK("resume", "identity", p->identity != 0);
    CHECK("resume", "tokens", m->n_tokens > 0 && m->n_tokens <= p->predict);
    CHECK("resume", "first_state", m->first_state < m->n_tokens);
    CHECK("resume", "plain", m->plain <= p->n_tokens);
    CHECK("resume", "logits_states",
          m->logits_states.len == (m->n_tokens - m->first_state) * sizeof(struct hash_state) &&
              states_ok(m->logits_states.data, m->logits_states.len));
    return 0;
}

static int check_token(const Hill__Token *m, struct hill_why *why)
{
    CHECK("token", "logprob", logprob_ok(m->logprob));
    CHECK("token", "logits_state",
          m->logits_state.len <= sizeof(struct hash_state) &&
              states_ok(m->logits_state.data, m->logits_state.len));
    return 0;
}

static int check_prefill(const Hill__Prefill *m, struct hill_why *why)
{
    CHECK("prefill", "sequence", m->sequence < SEQUENCES_MAX);
    CHECK("prefill", "tokens", m->n_tokens > 0 && m->n_tokens <= TOKENS_MAX);
    CHECK("prefill", "predict", m->predict > 0 && m->predict <= TOKENS_MAX);
    CHECK("prefill", "stop_tokens", m->n_stop_tokens <= 64);
    CHECK("prefill", "forced", m->n_forced == 0 || m->n_forced == m->predict);
    CHECK("prefill", "sampling", m->sampling != NULL);
    CHECK("prefill", "selection", m->selection != NULL);
    int code = check_sampling(m->sampling, why);
    if (code == 0)
        code = check_selection(m->selection, why);
    if (code == 0)
        code = check_resume(m, why);
    if (code == 0 && m->reuse)
        code = check_reuse(m, why);
    return code != 0 ? code : check_prefill_files(m, why);
}

static bool finish_ok(Hill__FinishReason finish)
{
    return finish >= HILL__FINISH_REASON__FINISH_STOP &&
           finish <= HILL__FINISH_REASON__FINISH_ERROR;
}

static int check_done(const Hill__Done *m, struct hill_why *why)
{
    CHECK("done", "finish", finish_ok(m->finish));
    CHECK("done", "text", text_ok(m->text));
    CHECK("done", "prompt_ms", not_negative(m->prompt_ms));
    CHECK("done", "predicted_ms", not_negative(m->predicted_ms));
    CHECK("done", "gpu_busy_ms", not_negative(m->gpu_busy_ms));
    CHECK("done", "gpu_idle_ms", not_negative(m->gpu_idle_ms));
    CHECK("done", "longest_gap_ms", not_negative(m->longest_gap_ms));
    CHECK("done", "token_median_ms", not_negative(m->token_median_ms));
    CHECK("done", "idle_median_ms", not_negative(m->idle_median_ms));
    CHECK("done", "predicted_tokens", m->predicted_tokens <= TOKENS_MAX);
    CHECK("done", "drive_ms", not_negative(m->drive_ms));
    CHECK("done", "drive_saved_ms", not_negative(m->drive_saved_ms));
    CHECK("done", "probe_ms", not_negative(m->probe_ms));
    CHECK("done", "drive_tokens", m->drive_tokens <= m->reused_tokens);
    CHECK("done", "away_tokens", m->away_tokens <= TOKENS_MAX);
    CHECK("done", "reused_plain", m->reused_plain <= m->reused_tokens);
    CHECK("done", "resumed_tokens", m->resumed_tokens <= m->predicted_tokens);
    return 0;
}

#define PASSAGES_MAX 512u /* cpu_scorer/scorer.h */

static int check_sequence_stats(const Hill__SequenceStats *m, struct hill_why *why)
{
    CHECK("sequence_stats", "beta", isfinite(m->beta));
    CHECK("sequence_stats", "gpu", m->gpu != NULL);
    CHECK("sequence_stats", "hot", m->hot != NULL);
    CHECK("sequence_stats", "cold", m->cold != NULL);
    CHECK("sequence_stats", "bounds_ms", not_negative(m->bounds_ms));
    CHECK("sequence_stats", "score_hot_ms", not_negative(m->score_hot_ms));
    CHECK("sequence_stats", "score_cpu_ms", not_negative(m->score_cpu_ms));
    CHECK("sequence_stats", "score_cold_ms", not_negative(m->score_cold_ms));
    CHECK("sequence_stats", "merge_ms", not_negative(m->merge_ms));
    CHECK("sequence_stats", "fetch_ms", not_negative(m->fetch_ms));
    CHECK("sequence_stats", "guess_chosen", m->n_guess_chosen <= KV_MAX_LAYERS);
    CHECK("sequence_stats", "guess_found", m->n_guess_found == m->n_guess_chosen);
    for (size_t i = 0; i < m->n_guess_found; i++)
        CHECK("sequence_stats", "guess_found", m->guess_found[i] <= m->guess_chosen[i]);
    CHECK("sequence_stats", "chosen", m->n_chosen <= PASSAGES_MAX);
    CHECK("sequence_stats", "passage_tokens", !m->n_chosen || m->passage_tokens > 0);
    CHECK("sequence_stats", "imbalance", share_ok(m->imbalance));
    CHECK("sequence_stats", "drive_spread", share_ok(m->drive_spread));
    CHECK("sequence_stats", "drives", m->n_drives <= LAYOUT_DRIVES_MAX);
    for (size_t i = 0; i < m->n_drives; i++)
        CHECK("sequence_stats", "drives",
              not_negative(m->drives[i]->score_ms) && not_negative(m->drives[i]->fetch_ms));
    return 0;
}

static int check_heartbeat(const Hill__Heartbeat *m, struct hill_why *why)
{
    CHECK("heartbeat", "role", worker_role(m->role));
    CHECK("heartbeat", "pid", m->pid > 0);
    CHECK("heartbeat", "live_others", m->n_live_others < SEQUENCES_MAX);
    CHECK("heartbeat", "live", m->live || !m->n_live_others);
    int code = m->live ? check_sequence_stats(m->live, why) : 0;
    for (size_t i = 0; code == 0 && i < m->n_live_others; i++)
        code = check_sequence_stats(m->live_others[i], why);
    return code;
}

#define ANSWER_END_MAX 65536u /* bytes of a template's own text */

static int check_generate(const Hill__Generate *m, struct hill_why *why)
{
    CHECK("generate", "predict", m->predict <= TOKENS_MAX);
    CHECK("generate", "score_from", m->score_from <= TOKENS_MAX);
    CHECK("generate", "save_path",
          text_ok(m->save_path) &&
              (!m->save_path[0] || (m->save_path[0] == '/' && !m->score_from)));
    CHECK("generate", "sampling", m->sampling != NULL);
    CHECK("generate", "after", !m->after || (!m->score_from && !m->no_prefix_cache));
    CHECK("generate", "pieces", !m->n_pieces || !m->prompt.len);
    CHECK("generate", "token_ids", !m->n_token_ids || (!m->prompt.len && !m->n_pieces));
    CHECK("generate", "answer_end", m->answer_end.len <= ANSWER_END_MAX);
    CHECK("generate", "sampling.json", !m->sampling->json || (!m->save_path[0] && !m->score_from));
    int code = check_pieces("generate", m->pieces, m->n_pieces, why);
    if (code == 0)
        code = check_sampling(m->sampling, why);
    if (code == 0 && m->selection)
        code = check_selection(m->selection, why);
    return code;
}

static int check_follow(const Hill__Follow *m, struct hill_why *why)
{
    CHECK("follow", "key", m->key != 0);
    CHECK("follow", "serial", m->serial != 0);
    CHECK("follow", "tokens", m->n_tokens <= TOKENS_MAX);
    return 0;
}

static int check_request_order(const Hill__RequestOrder *m, struct hill_why *why)
{
    CHECK("request_order", "request_id", m->request_id != 0);
    CHECK("request_order", "key", m->key != 0);
    CHECK("request_order", "prefill", m->prefill != NULL);
    CHECK("request_order", "terms", m->terms.len == PROTO_SESSION_TERMS_BYTES);
    return check_prefill(m->prefill, why);
}

static int check_prefill_progress(const Hill__PrefillProgress *m, struct hill_why *why)
{
    CHECK("prefill_progress", "tokens_done", not_negative(m->tokens_done));
    CHECK("prefill_progress", "tokens_total", not_negative(m->tokens_total));
    CHECK("prefill_progress", "tokens_per_second", not_negative(m->tokens_per_second));
    CHECK("prefill_progress", "seconds_left", not_negative(m->seconds_left));
    return 0;
}

static int check_summary(const Hill__Summary *m, struct hill_why *why)
{
    CHECK("summary", "finish", finish_ok(m->finish));
    CHECK("summary", "text", text_ok(m->text));
    CHECK("summary", "ttft_ms", not_negative(m->ttft_ms));
    CHECK("summary", "csd_model", csd_model_ok(m->csd_model));
    CHECK("summary", "speculate", known(&hill__speculate__descriptor, m->speculate));
    int code = m->gpu ? check_done(m->gpu, why) : 0;
    if (code == 0 && m->scorer)
        code = check_sequence_stats(m->scorer, why);
    if (code == 0 && m->selection)
        code = check_selection(m->selection, why);
    if (code == 0 && m->profile)
        code = check_profile(m->profile, why);
    return code;
}

static int check_worker_status(const Hill__WorkerStatus *m, struct hill_why *why)
{
    CHECK("status_reply", "workers.role", role_ok(m->role));
    CHECK("status_reply", "workers.state", text_ok(m->state));
    CHECK("status_reply", "workers.device", text_ok(m->device));
    CHECK("status_reply", "workers.name", text_ok(m->name));
    CHECK("status_reply", "workers.drive", text_ok(m->drive));
    CHECK("status_reply", "workers.last_heartbeat_ms", isfinite(m->last_heartbeat_ms));
    return 0;
}

static int check_running(const Hill__RunningRequest *m, struct hill_why *why)
{
    CHECK("status_reply", "running.prefill_tokens_done", not_negative(m->prefill_tokens_done));
    CHECK("status_reply", "running.elapsed_ms", not_negative(m->elapsed_ms));
    CHECK("status_reply", "running.prefill_ms", not_negative(m->prefill_ms));
    CHECK("status_reply", "running.predicted_per_second", not_negative(m->predicted_per_second));
    return 0;
}

static int check_status_reply(const Hill__StatusReply *m, struct hill_why *why)
{
    CHECK("status_reply", "model", text_ok(m->model));
    CHECK("status_reply", "csd_url", text_ok(m->csd_url));
    CHECK("status_reply", "uptime_seconds", not_negative(m->uptime_seconds));
    CHECK("status_reply", "csd_model", csd_model_ok(m->csd_model));
    int code = m->coordinator ? check_worker_status(m->coordinator, why) : 0;
    for (size_t i = 0; code == 0 && i < m->n_workers; i++)
        code = check_worker_status(m->workers[i], why);
    if (code == 0 && m->running)
        code = check_running(m->running, why);
    if (code == 0 && m->live)
        code = check_sequence_stats(m->live, why);
    CHECK("status_reply", "requests", m->n_requests <= SEQUENCES_MAX);
    CHECK("status_reply", "sequences", m->n_sequences <= SEQUENCES_MAX);
    for (size_t i = 0; code == 0 && i < m->n_requests; i++)
        code = check_running(m->requests[i], why);
    for (size_t i = 0; code == 0 && i < m->n_sequences; i++)
        code = check_sequence_stats(m->sequences[i], why);
    if (code == 0 && m->profile)
        code = check_profile(m->profile, why);
    return code;
}

static int check_trace_answer(const Hill__TraceAnswer *m, struct hill_why *why)
{
    CHECK("trace_answer", "role", role_ok(m->role));
    CHECK("trace_answer", "pid", m->pid > 0);
    CHECK("trace_answer", "events", m->events.len % sizeof(struct stage_event) == 0);
    CHECK("trace_answer", "code", m->code <= 0);
    CHECK("trace_answer", "expected", m->expected <= 64);
    for (size_t i = 0; i < m->n_turns; i++)
        CHECK("trace_answer", "turns.sequence", m->turns[i]->sequence < KV_MAX_SEQUENCES);
    for (size_t at = 0; at < m->events.len; at += sizeof(struct stage_event)) {
        struct stage_event event;
        memcpy(&event, m->events.data + at, sizeof event);
        CHECK("trace_answer", "events.stage", event.stage < STAGE_COUNT);
        CHECK("trace_answer", "events.time", event.start_ns >= 0 && event.end_ns >= event.start_ns);
    }
    return 0;
}

/* Messages of a field or two, and those of none. */
static int check_short(const Hill__Message *message, struct hill_why *why)
{
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_MODEL_INFO:
        CHECK("model_info", "ctx_tokens", message->model_info->ctx_tokens > 0);
        return message->model_info->sampling ? check_sampling(message->model_info->sampling, why)
                                             : 0; /* of a coordinator of a version before */
    case HILL__MESSAGE__BODY_READY:
        CHECK("ready", "device", text_ok(message->ready->device));
        return 0;
    case HILL__MESSAGE__BODY_FAILURE:
        CHECK("failure", "code", message->failure->code < 0);
        CHECK("failure", "text", text_ok(message->failure->text));
        return 0;
    case HILL__MESSAGE__BODY_PROGRESS:
        CHECK("progress", "units_done",
              message->progress->units_done <= message->progress->units_total);
        return 0;
    case HILL__MESSAGE__BODY_ATTACH:
        CHECK("attach", "url", text_ok(message->attach->url));
        CHECK("attach", "csd_model", text_ok(message->attach->csd_model));
        return 0;
    case HILL__MESSAGE__BODY_DETACH:
        CHECK("detach", "url", text_ok(message->detach->url));
        return 0;
    case HILL__MESSAGE__BODY_TEXT:
        CHECK("text", "text", message->text->text.len <= TEXT_MAX);
        CHECK("text", "logprob", logprob_ok(message->text->logprob));
        return 0;
    case HILL__MESSAGE__BODY_TOKEN:
        return check_token(message->token, why);
    case HILL__MESSAGE__BODY_REPLY:
        CHECK("reply", "text", text_ok(message->reply->text));
        return 0;
    case HILL__MESSAGE__BODY_CSD_MODEL:
        CHECK("csd_model", "figures", csd_model_ok(message->csd_model));
        return 0;
    case HILL__MESSAGE__BODY_CSD_MODEL_CHANGE:
        CHECK("csd_model_change", "text", text_ok(message->csd_model_change->text));
        return 0;
    case HILL__MESSAGE__BODY_PROFILE_REQUEST:
        CHECK("profile_request", "limit_ms", message->profile_request->limit_ms <= 60000);
        return 0;
    case HILL__MESSAGE__BODY_TAKEN:
        CHECK("taken", "request_ids", message->taken->n_request_ids <= KV_MAX_SEQUENCES);
        CHECK("taken", "tokens", message->taken->n_tokens == message->taken->n_request_ids);
        return 0;
    case HILL__MESSAGE__BODY_BALANCE:
        CHECK("balance", "beta", not_negative(message->balance->beta));
        CHECK("balance", "host_scores", not_negative(message->balance->host_scores));
        CHECK("balance", "speeds", each_ok(message->balance->n_speeds, message->balance->speeds));
        return 0;
    case HILL__MESSAGE__BODY_TOKENIZE:
        return check_pieces("tokenize", message->tokenize->pieces, message->tokenize->n_pieces,
                            why);
    case HILL__MESSAGE__BODY_DETOKENIZE:
        CHECK("detokenize", "tokens", message->detokenize->n_tokens <= TOKENS_MAX);
        return 0;
    case HILL__MESSAGE__BODY_TOKENS:
        CHECK("tokens", "pieces",
              !message->tokens->n_pieces || message->tokens->n_pieces == message->tokens->n_tokens);
        return 0;
    case HILL__MESSAGE__BODY_SAVE_SESSION:
        CHECK("save_session", "path", path_ok(message->save_session->path));
        return 0;
    case HILL__MESSAGE__BODY_TRACE_REQUEST:
    case HILL__MESSAGE__BODY_STAGE_TIMES:
    case HILL__MESSAGE__BODY_CSD_MODEL_COUNTERS:
    case HILL__MESSAGE__BODY_CANCEL:
    case HILL__MESSAGE__BODY_SHUTDOWN:
    case HILL__MESSAGE__BODY_STATUS_REQUEST:
    case HILL__MESSAGE__BODY_MODEL_INFO_REQUEST:
    case HILL__MESSAGE__BODY_ACCEPTED:
    case HILL__MESSAGE__BODY_DELIVERED:
    case HILL__MESSAGE__BODY_RESUMED:
    case HILL__MESSAGE__BODY_DRAIN:
    case HILL__MESSAGE__BODY_DRAINED:
        return 0; /* any value of their fields is legal here; ids are looked up by the receiver */
    default:
        return hill_fail(why, HILL_E_PROTOCOL,
                         "message refused: it has no body this program knows");
    }
}

#define BODY(BODY_NAME, name)                                                                      \
    case HILL__MESSAGE__BODY_##BODY_NAME:                                                          \
        return check_##name(message->name, why)

int proto_validate(const Hill__Message *message, struct hill_why *why)
{
    switch (message->body_case) {
        BODY(HELLO, hello);
        BODY(CONFIGURE, configure);
        BODY(HEARTBEAT, heartbeat);
        BODY(PREFILL, prefill);
        BODY(DONE, done);
        BODY(SEQUENCE_STATS, sequence_stats);
        BODY(GENERATE, generate);
        BODY(FOLLOW, follow);
        BODY(REQUEST_ORDER, request_order);
        BODY(PREFILL_PROGRESS, prefill_progress);
        BODY(SUMMARY, summary);
        BODY(STATUS_REPLY, status_reply);
        BODY(PROFILE_RESULT, profile_result);
        BODY(TRACE_ANSWER, trace_answer);
        BODY(SAVE, save);
        BODY(SAVED, saved);
        BODY(RESTORE_SESSION, restore_session);
    default:
        return check_short(message, why);
    }
}

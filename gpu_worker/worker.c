/*
 * gpu_worker/worker.c - configuration and control messages of the GPU worker. See worker.h.
 *
 * The weights stay over epochs as long as the model is the same; the slot table's contents and the
 * rings do not.
 */
#include "gpu_worker/request.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define OPEN_DEADLINE_MS 30000
#define IDLE_SLICE_MS    1000
#define TURN_MS_MAX      1000u /* of HILL_TEST_TURN_MS */

static void take_message(struct worker *w, Hill__Message *message)
{
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_CONFIGURE:
        proto_free(w->pending);
        w->pending = message;
        return;
    case HILL__MESSAGE__BODY_PREFILL:
        request_arrive(w, message);
        return;
    case HILL__MESSAGE__BODY_CANCEL:
        request_cancel(w, message->cancel->request_id);
        break;
    case HILL__MESSAGE__BODY_TAKEN:
        request_note_taken(w, message->taken);
        break;
    case HILL__MESSAGE__BODY_SAVE:
        save_take_order(w, message->save);
        break;
    case HILL__MESSAGE__BODY_CSD_MODEL:
        w->settings.csd_model = proto_csd_model(message->csd_model);
        w->model.figures = w->settings.csd_model;
        break;
    case HILL__MESSAGE__BODY_REPLY:
        log_debug("the coordinator says: %s", message->reply->text);
        break;
    default:
        log_warn("a message of kind %d is not for a gpu worker and is dropped",
                 (int)message->body_case);
    }
    proto_free(message);
}

static void unload_model(struct worker *w)
{
    stored_close(w);
    engine_destroy(w->engine);
    w->engine = NULL;
    sampler_finish(&w->sampler);
    json_tokens_close(w->json);
    w->json = NULL;
    cldevice_close(&w->device);
    if (w->file)
        gguf_close(w->file);
    w->file = NULL;
    free(w->logits);
    w->logits = NULL;
    free(w->model_path);
    w->model_path = NULL;
}

static int check_geometry(const struct worker *w, struct hill_why *why)
{
    const struct model_hparams *hp = &w->hparams;
    const struct kv_plan_input *plan = &w->settings.plan;
    const struct kv_geometry *g = &plan->geometry;
    if (hp->n_layers == g->n_layers && hp->n_heads == g->n_heads &&
        hp->n_kv_heads == g->n_kv_heads && hp->head_dim == g->head_dim &&
        hp->n_vocab == plan->n_vocab)
        return 0;
    return hill_fail(why, HILL_E_DAMAGED,
                     "%s has another shape than was configured: has it been replaced?",
                     w->settings.model_path);
}

/* Building kernels takes seconds and cannot be interrupted, and nothing is lost with it: SIGTERM
 * ends the process at once then, instead of after the coordinator's SIGKILL. */
static void mask_sigterm(int how)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(how, &set, NULL);
}

static int load_model(struct worker *w, struct hill_why *why)
{
    const struct epoch_settings *s = &w->settings;
    int64_t start = clock_now_ns();
    unload_model(w);
    cldevice_set_threads(s->threads);
    log_info("loading %s and building its kernels: some seconds more when the device has not seen "
             "such a model yet",
             s->model_path);
    int rc = gguf_open(&w->file, s->model_path, why);
    if (!rc)
        rc = model_hparams_read(&w->hparams, w->file, why);
    if (!rc)
        rc = cldevice_open(&w->device, s->device, why);
    if (!rc) {
        engine_choose_kernels(&w->device);
        mask_sigterm(SIG_UNBLOCK);
        if (worker_link_stopping(w->link))
            rc = hill_fail(why, HILL_E_CANCELLED, "asked to end");
        else
            rc = engine_create(&w->engine, &w->device, w->file, &w->hparams, why);
        mask_sigterm(SIG_BLOCK);
    }
    if (!rc)
        rc = sampler_init(&w->sampler, w->hparams.n_vocab);
    w->logits = rc ? NULL : calloc(w->hparams.n_vocab, sizeof *w->logits);
    w->model_path = rc ? NULL : strdup(s->model_path);
    if (rc)
        return rc;
    if (!w->logits || !w->model_path)
        return hill_fail(why, HILL_E_NOMEM, "no memory for %u logits", w->hparams.n_vocab);
    log_info("loaded: %.1f MiB of weights on %s in %.1f s",
             engine_weight_bytes(w->engine) / 1048576.0, w->device.name,
             (clock_now_ns() - start) * 1e-9);
    return 0;
}

/* Leave the epoch: the device lets go of shared memory before it is unmapped. */
static void leave_epoch(struct worker *w)
{
    struct hill_why why;
    worker_link_set_doorbell(w->link, NULL);
    stored_listen(w, NULL);
    if (w->engine && (engine_attach_staging(w->engine, NULL, 0, 0, &why) ||
                      engine_attach_hot(w->engine, NULL, 0, &why) ||
                      engine_attach_prompt(w->engine, NULL, 0, false, &why)))
        log_warn("%s", why.text);
    w->reads_hot = false;
    dataplane_detach(&w->plane);
}

static int attach_epoch(struct worker *w, struct hill_why *why)
{
    leave_epoch(w);
    int rc = dataplane_attach(&w->plane, &w->settings, worker_waiting, w, why);
    if (rc)
        return rc;
    worker_link_set_doorbell(w->link, w->plane.party.bell);
    rc = dataplane_open(&w->plane, clock_deadline_ms(OPEN_DEADLINE_MS), why);
    if (rc) {
        worker_link_set_doorbell(w->link, NULL);
        dataplane_detach(&w->plane);
    }
    return rc;
}

static bool copies_all(const struct worker *w)
{
    const char *copy = getenv("HILL_TEST_COPY_HOT"); /* as a device with memory of its own */
    return !w->device.shares_memory || (copy && *copy);
}

/* Where a prompt outlives this process. Without it one begins anew. */
static void attach_prompt(struct worker *w)
{
    struct hill_why why = {.text = ""};
    struct shm_segment *segment = &w->plane.party.prompt;
    int rc = party_attach_prompt(&w->plane.party, &w->settings, &why);
    if (!rc)
        rc = engine_attach_prompt(w->engine, shm_segment_payload(segment),
                                  shm_segment_payload_bytes(segment), !copies_all(w), &why);
    if (rc)
        log_debug("prompts are not kept: %s", why.text);
}

/* Where it cannot be, hot entries come by way of staging, as on a device with memory of its own. */
static void attach_hot(struct worker *w)
{
    struct hill_why why = {.text = "HILL_TEST_COPY_HOT"};
    if (!w->device.shares_memory)
        return;
    int rc = copies_all(w) ? HILL_E_UNSUPPORTED : 0;
    if (!rc)
        rc = party_attach_hot(&w->plane.party, &w->settings, &why);
    if (!rc)
        rc = engine_attach_hot(w->engine, shm_segment_payload(&w->plane.party.hot),
                               shm_segment_payload_bytes(&w->plane.party.hot), &why);
    w->reads_hot = rc == 0;
    if (rc)
        log_debug("hot entries are copied before they are read: %s", why.text);
}

static int set_guesses(struct worker *w, struct hill_why *why)
{
    const struct epoch_settings *s = &w->settings;
    uint32_t first = s->exact_layers ? s->exact_layers : 1;
    return engine_guess_from(w->engine, s->speculate == HILL__SPECULATE__SPECULATE_OFF ? 0 : first,
                             why);
}

/* A cache: without it prompts are computed. What is wrong with its folder from the beginning the
 * coordinator has refused; this is one that went, or is held by what ran before, since. */
static void open_store(struct worker *w)
{
    struct hill_why why = {""};
    bool was_open = w->store;
    if (stored_open(w, &why))
        log_warn("no prefix store until the next epoch: %s", why.text);
    if (w->store && !was_open)
        away_note_windows(w);
    stored_listen(w, w->plane.party.bell);
}

/* The coordinator, which plans, does not know how much memory a card has. */
static void bound_kv(struct worker *w)
{
    struct epoch_settings *s = &w->settings;
    uint64_t weights = engine_weight_bytes(w->engine),
             room = cldevice_room(&w->device, weights + s->prefix_gpu_cache_bytes);
    if (s->gpu_kv_cap_bytes <= room)
        return;
    log_warn("%s has %.0f MiB, of which weights take %.0f: %.0f MiB are left for KV, less than the "
             "%.0f of --gpu-kv-mb",
             w->device.name, (double)w->device.global_bytes / 1048576.0,
             (double)weights / 1048576.0, (double)room / 1048576.0,
             (double)s->gpu_kv_cap_bytes / 1048576.0);
    s->gpu_kv_cap_bytes = room ? room : 1; /* 0: no cap */
}

static int carry_out(struct worker *w, struct hill_why *why)
{
    const struct epoch_settings *s = &w->settings;
    const struct shm_arena *arena = &w->plane.party.arena;
    uint32_t n_sequences = s->plan.n_sequences;
    int rc = attach_epoch(w, why);
    if (!rc && (!w->model_path || strcmp(w->model_path, s->model_path) != 0))
        rc = load_model(w, why);
    if (!rc)
        rc = check_geometry(w, why);
    if (!rc)
        bound_kv(w);
    if (!rc)
        rc = engine_configure(w->engine, s->plan.batch_tokens, s->gpu_slots, n_sequences, why);
    if (!rc)
        rc = engine_set_context(w->engine, s->plan.ctx_tokens, why);
    if (!rc)
        rc = set_guesses(w, why);
    if (!rc)
        rc = engine_attach_staging(w->engine, arena->slots, arena->stride, arena->slot_count, why);
    if (!rc)
        open_store(w);
    if (!rc)
        attach_hot(w);
    if (!rc)
        attach_prompt(w);
    if (!rc)
        rc = step_make_tables(&w->step, s->gpu_slots, n_sequences, why);
    w->n_sequences = rc ? 0 : n_sequences;
    w->model.figures = s->csd_model;
    return rc;
}

static void let_all_go(struct worker *w)
{
    for (uint32_t i = 0; i < ENGINE_SEQUENCES_MAX; i++) {
        if (!w->requests[i])
            continue;
        log_debug("request %llu is let go", (unsigned long long)w->requests[i]->prefill->identity);
        request_free(w->requests[i]);
    }
}

int worker_configure(struct worker *w)
{
    struct hill_why why = {.text = ""};
    let_all_go(w); /* here: one may have come right before the Configure, and never had a turn */
    proto_free(w->configure);
    w->configure = w->pending;
    w->pending = NULL;
    w->ready = false;
    w->peer_gone_ns = 0;
    memset(w->ready_owed, 0, sizeof w->ready_owed);
    int rc = epoch_settings_read(&w->settings, w->configure->configure, &why);
    uint32_t epoch = w->settings.epoch;
    if (rc == 0)
        rc = carry_out(w, &why);
    if (rc == 0) {
        w->ready = true;
        worker_link_set_epoch(w->link, epoch);
        worker_link_ready(w->link, epoch, w->device.name, engine_weight_bytes(w->engine));
    } else if (rc == HILL_E_PEER_GONE || w->pending || worker_link_stopping(w->link)) {
        /* its segments are gone: a newer Configure is here or on its way */
        log_debug("epoch %u is left before it was entered: %s", epoch, why.text);
        rc = 0;
    } else {
        log_debug("cannot enter epoch %u: %s", epoch, why.text);
        worker_link_failure(w->link, rc, why.text, true, 0);
    }
    return rc;
}

/* ---- the loop ---- */

static void sleep_idle(struct worker *w)
{
    struct shm_doorbell *bell = worker_link_doorbell(w->link);
    uint32_t seen = shm_doorbell_read(bell);
    if (worker_poll(w) || w->n_requests)
        return;
    shm_doorbell_wait(bell, seen, clock_deadline_ms(IDLE_SLICE_MS), 0);
}

static int64_t least_turn_ns(void)
{
    const char *text = getenv("HILL_TEST_TURN_MS");
    unsigned long ms = text ? strtoul(text, NULL, 10) : 0;
    if (ms)
        log_warn("test hook HILL_TEST_TURN_MS: a turn takes %lu ms at least", ms);
    return CLOCK_MS(ms < TURN_MS_MAX ? ms : TURN_MS_MAX);
}

int worker_run(struct worker *w)
{
    static const struct worker_hooks hooks = {take_message, schedule_take_records};
    int rc = 0;
    w->hooks = &hooks;
    w->turn_ns = least_turn_ns();
    while (rc == 0 && !worker_link_stopping(w->link)) {
        if (w->pending)
            rc = worker_configure(w);
        else if (w->n_requests)
            rc = schedule_run(w);
        else
            sleep_idle(w);
    }
    return rc;
}

void worker_finish(struct worker *w)
{
    let_all_go(w); /* first: a save rings the epoch's bell */
    if (w->link)
        leave_epoch(w);
    unload_model(w);
    proto_free(w->pending);
    proto_free(w->configure);
    step_free_tables(&w->step);
}

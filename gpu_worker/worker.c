/*
 * gpu_worker/worker.c - configuration and control messages of the GPU worker. See worker.h.
 *
 * The weights stay over epochs as long as the model is the same; the slot table's contents and the
 * rings do not.
 */
#include "gpu_worker/worker.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define OPEN_DEADLINE_MS 30000

/* A request that comes while one runs is a mistake of the sender: answered, not queued. */
static void refuse_request(struct worker *w, const Hill__Prefill *prefill)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Done done = HILL__DONE__INIT;
    done.request_id = prefill->request_id;
    done.finish = HILL__FINISH_REASON__FINISH_ERROR;
    done.code = HILL_E_BUSY;
    done.text = (char *)"the gpu worker runs another request";
    message.body_case = HILL__MESSAGE__BODY_DONE;
    message.done = &done;
    worker_link_send(w->link, &message);
}

static void take_message(struct worker *w, Hill__Message *message)
{
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_CONFIGURE:
        proto_free(w->pending);
        w->pending = message;
        if (!w->running_request) { /* what was asked of the old epoch is asked again in the new one
                                    */
            proto_free(w->request);
            w->request = NULL;
        }
        return;
    case HILL__MESSAGE__BODY_PREFILL:
        if (!w->request) {
            w->request = message;
            w->cancelled = false;
            return;
        }
        refuse_request(w, message->prefill);
        break;
    case HILL__MESSAGE__BODY_CANCEL:
        if (w->request && message->cancel->request_id == w->request->prefill->request_id)
            w->cancelled = true;
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

bool worker_interrupted(void *context)
{
    struct worker *w = context;
    Hill__Message *message;
    while ((message = worker_link_poll(w->link)))
        take_message(w, message);
    return w->cancelled || w->pending || worker_link_stopping(w->link);
}

static void unload_model(struct worker *w)
{
    engine_destroy(w->engine);
    w->engine = NULL;
    sampler_finish(&w->sampler);
    cldevice_close(&w->device);
    if (w->file)
        gguf_close(w->file);
    w->file = NULL;
    free(w->logits);
    w->logits = NULL;
    free(w->model_path);
    w->model_path = NULL;
}

static int check_geometry(const struct worker *w, const Hill__Configure *c, struct hill_why *why)
{
    const struct model_hparams *hp = &w->hparams;
    if (hp->n_layers == c->n_layers && hp->n_heads == c->n_heads &&
        hp->n_kv_heads == c->n_kv_heads && hp->head_dim == c->head_dim && hp->n_vocab == c->n_vocab)
        return 0;
    return hill_fail(why, HILL_E_DAMAGED,
                     "%s has another shape than was configured: has it been replaced?",
                     c->model_path);
}

static int load_model(struct worker *w, const Hill__Configure *c, struct hill_why *why)
{
    int64_t start = clock_now_ns();
    unload_model(w);
    cldevice_set_threads(c->threads);
    int rc = gguf_open(&w->file, c->model_path, why);
    if (!rc)
        rc = model_hparams_read(&w->hparams, w->file, why);
    if (!rc)
        rc = cldevice_open(&w->device, c->device, why);
    if (!rc)
        rc = engine_create(&w->engine, &w->device, w->file, &w->hparams, why);
    if (!rc)
        rc = sampler_init(&w->sampler, w->hparams.n_vocab);
    w->logits = rc ? NULL : calloc(w->hparams.n_vocab, sizeof *w->logits);
    w->model_path = rc ? NULL : strdup(c->model_path);
    if (rc)
        return rc;
    if (!w->logits || !w->model_path)
        return hill_fail(why, HILL_E_NOMEM, "no memory for %u logits", w->hparams.n_vocab);
    log_info("%s: %.1f MiB of weights on %s in %.1f s", c->model_path,
             engine_weight_bytes(w->engine) / 1048576.0, w->device.name,
             (clock_now_ns() - start) * 1e-9);
    return 0;
}

static void free_tables(struct worker *w)
{
    free(w->item_slots);
    free(w->uploads);
    free(w->uploads_given);
    w->item_slots = NULL;
    w->uploads = NULL;
    w->uploads_given = NULL;
}

/* Leave the epoch: the device lets go of staging before it is unmapped. */
static void leave_epoch(struct worker *w)
{
    struct hill_why why;
    worker_link_set_doorbell(w->link, NULL);
    if (w->engine && engine_attach_staging(w->engine, NULL, 0, 0, &why))
        log_warn("%s", why.text);
    dataplane_detach(&w->plane);
}

/* Tables on the host whose size follows from the configuration. */
static int make_tables(struct worker *w, const Hill__Configure *c, struct hill_why *why)
{
    free_tables(w);
    w->item_slots = calloc(c->gpu_slots, sizeof *w->item_slots);
    w->uploads = calloc(c->gpu_slots, sizeof *w->uploads);
    w->uploads_given = calloc(c->gpu_slots, sizeof *w->uploads_given);
    if (w->item_slots && w->uploads && w->uploads_given)
        return 0;
    return hill_fail(why, HILL_E_NOMEM, "no memory for a table of %u slots", c->gpu_slots);
}

static int attach_epoch(struct worker *w, const Hill__Configure *c, struct hill_why *why)
{
    struct dataplane_settings settings = {
        .run_id = c->run_id,
        .epoch = c->epoch,
        .layout = {.geometry = {c->n_layers, c->n_heads, c->n_kv_heads, c->head_dim},
                   .ctx_tokens = c->ctx_tokens,
                   .n_sequences = c->n_sequences},
        .interrupted = worker_interrupted,
        .context = w,
    };
    leave_epoch(w);
    int rc = dataplane_attach(&w->plane, &settings, why);
    if (rc)
        return rc;
    worker_link_set_doorbell(w->link, w->plane.bell);
    rc = dataplane_open(&w->plane, clock_deadline_ms(OPEN_DEADLINE_MS), why);
    if (rc) {
        worker_link_set_doorbell(w->link, NULL);
        dataplane_detach(&w->plane);
    }
    return rc;
}

static int carry_out(struct worker *w, const Hill__Configure *c, struct hill_why *why)
{
    int rc = attach_epoch(w, c, why);
    if (!rc && (!w->model_path || strcmp(w->model_path, c->model_path) != 0))
        rc = load_model(w, c, why);
    if (!rc)
        rc = check_geometry(w, c, why);
    if (!rc)
        rc = engine_configure(w->engine, c->batch_tokens, c->gpu_slots, why);
    if (!rc)
        rc = engine_attach_staging(w->engine, w->plane.arena.slots, w->plane.arena.stride,
                                   w->plane.arena.slot_count, why);
    if (!rc)
        rc = make_tables(w, c, why);
    w->epoch = c->epoch;
    w->ctx_tokens = c->ctx_tokens;
    w->gpu_slots = c->gpu_slots;
    w->gpu_kv_cap_bytes = c->gpu_kv_cap_bytes;
    return rc;
}

int worker_configure(struct worker *w)
{
    Hill__Message *message = w->pending;
    struct hill_why why = {.text = ""};
    w->pending = NULL;
    w->ready_owed = 0;
    const Hill__Configure *c = message->configure;
    int rc = carry_out(w, c, &why);
    if (rc == 0) {
        worker_link_set_epoch(w->link, c->epoch);
        worker_link_ready(w->link, c->epoch, w->device.name, engine_weight_bytes(w->engine));
    } else if (w->pending || worker_link_stopping(w->link)) {
        log_info("epoch %u is left before it was entered: %s", c->epoch, why.text);
        rc = 0;
    } else {
        log_debug("cannot enter epoch %u: %s", c->epoch, why.text);
        worker_link_failure(w->link, rc, why.text, true, 0);
    }
    proto_free(message);
    return rc;
}

void worker_finish(struct worker *w)
{
    if (w->link)
        leave_epoch(w);
    unload_model(w);
    proto_free(w->pending);
    proto_free(w->request);
    free_tables(w);
}

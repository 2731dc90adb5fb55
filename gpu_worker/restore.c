/* gpu_worker/restore.c - see restore.h. */
#include "gpu_worker/restore.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "gpu_worker/request.h"
#include "session/session.h"

#define TURN_MS     20u         /* others may wait so long for their step, as for a prompt's unit */
#define TURN_MS_MAX 10000u      /* of HILL_TEST_RESTORE_MS */
#define READ_AHEAD  (16u << 20) /* bytes that the kernel is asked for before they are needed */

/* HILL_TEST_RESTORE_MS: a bench that waits for many sessions gives them longer turns. */
int64_t restore_turn_ns(void)
{
    const char *text = getenv("HILL_TEST_RESTORE_MS");
    unsigned long value = text ? strtoul(text, NULL, 10) : 0;
    return (int64_t)(value > 0 && value <= TURN_MS_MAX ? value : TURN_MS) * 1000000;
}

/* The coordinator has read the same header and tokens when it took the request: has the file been
 * replaced since, perhaps between two attempts, of which the first left entries in the tiers? The
 * terms are this pipeline's; what the policy does not use of them may differ. */
static int check_file(struct request *r, struct hill_why *why)
{
    const struct session_header *h = &r->session->header;
    const Hill__SessionFile *order = r->prefill->restore;
    struct session_terms here;
    memcpy(&here, order->terms.data, sizeof here); /* of PROTO_SESSION_TERMS_BYTES: validated */
    uint32_t there = request_session_tokens(r);
    if (h->checksum != order->checksum ||
        h->n_tokens != there + (r->prefill->from_prompt ? 1 : 0) ||
        session_compare(h, &here, order->path, NULL))
        return hill_fail(why, HILL_E_DAMAGED, "session %.300s was replaced while it was restored",
                         order->path);
    uint32_t *tokens = malloc(sizeof *tokens * h->n_tokens);
    int rc = tokens ? request_file_status(session_read_tokens(r->session, tokens, why))
                    : hill_fail(why, HILL_E_NOMEM, "out of memory for %u tokens", h->n_tokens);
    if (!rc && memcmp(tokens, r->tokens, sizeof *tokens * there) != 0)
        rc = hill_fail(why, HILL_E_DAMAGED, "session %.300s was replaced while it was restored",
                       order->path);
    if (!rc)
        r->restored_token = tokens[h->n_tokens - 1];
    free(tokens);
    return rc;
}

/* Before the entries: a query waits for its tokens, not for what follows them. */
static int push_resume(struct request *r, struct hill_why *why)
{
    struct dataplane *plane = &r->w->plane;
    if (request_asks_session(r))
        return 0; /* what follows is an answer of its own: step and hashes begin anew */
    r->step = r->session->header.step;
    struct record_resume resume = {.header = request_header(r, 0),
                                   .request_id = r->prefill->request_id,
                                   .selection_hash = r->session->header.selection_hash};
    r->w->waiting = r;
    int rc = dataplane_push(plane, plane->append, RECORD_RESUME, &resume, sizeof resume,
                            worker_deadline(), why);
    r->w->waiting = NULL;
    return rc;
}

/* What the tiers have of it from an earlier attempt is not sent again. A layer that they have in
 * part is read from its start on, for its checksum. */
static int pass_kept(struct request *r, struct hill_why *why)
{
    const struct session_header *h = &r->session->header;
    if (!r->kept_tokens)
        return 0;
    if (resume_hopes(r)) /* as of its last step: in every layer */
        r->kept_layer = h->terms.n_layers - 1;
    if (r->kept_tokens > h->n_entries || r->kept_layer >= h->terms.n_layers)
        return hill_fail(why, HILL_E_PROTOCOL, "the scorer keeps %u tokens, which is not offered",
                         r->kept_tokens);
    uint32_t whole = r->kept_layer + (r->kept_tokens == h->n_entries ? 1 : 0);
    session_pass(r->session, whole);
    r->unit = whole * (r->units / h->terms.n_layers);
    log_debug("request %llu: the tiers have %u layers of its session, and %u tokens of layer %u",
              (unsigned long long)r->prefill->identity, whole, r->kept_tokens, r->kept_layer);
    if (r->unit)
        resume_tell(r, r->unit, 0);
    return 0;
}

int restore_begin(struct request *r, struct hill_why *why)
{
    const struct worker *w = r->w;
    r->session = calloc(1, sizeof *r->session);
    if (!r->session)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for restoring a session");
    int rc = request_file_status(session_open(r->session, r->prefill->restore->path, why));
    if (!rc)
        rc = check_file(r, why);
    const struct session_header *h = &r->session->header;
    if (!rc && h->entry_bytes != worker_entry_bytes(w))
        rc = hill_fail(why, HILL_E_INVALID, "session %.300s has entries of %u bytes, not %u",
                       r->session->path, h->entry_bytes, worker_entry_bytes(w));
    if (rc)
        return rc;
    if (strncmp(h->device, w->device.name, sizeof h->device - 1) != 0)
        log_warn("session %s was computed on %s: this device's next logits may differ in their "
                 "last bits",
                 r->session->path, h->device);
    r->first_prompt = h->n_prompt;
    r->first_append = h->first_append;
    r->session_entries = h->n_entries;
    uint32_t at_once = layout_append_tokens_max(&w->plane.party.layout);
    r->units = h->terms.n_layers * (1 + (h->n_entries - r->first_append + at_once - 1) / at_once);
    if (request_weighs(r)) /* session_compare: the file has them */
        r->units += h->terms.n_layers * request_mass_records(r, h->n_entries);
    else
        session_pass_masses(r->session);
    if (request_asks_session(r)) {
        uint32_t batch = w->settings.plan.batch_tokens, n = r->prompt - h->n_entries;
        r->units_behind = (n + batch - 1) / batch * h->terms.n_layers;
    }
    if ((rc = pass_kept(r, why)) != 0)
        return rc;
    r->state = REQUEST_RESTORING;
    session_read_ahead(r->session, READ_AHEAD);
    return push_resume(r, why);
}

/* Entries that the tiers have. */
static int pass(struct request *r, uint32_t n, struct hill_why *why)
{
    void *entries = malloc((size_t)n * r->session->header.entry_bytes);
    int rc = entries ? request_file_status(session_read_entries(r->session, n, entries, why))
                     : hill_fail(why, HILL_E_NOMEM, "out of memory for restoring a session");
    free(entries);
    return rc;
}

static int append(struct request *r, struct hill_why *why)
{
    struct dataplane *plane = &r->w->plane;
    struct session_file *f = r->session;
    uint32_t left = f->header.n_entries - f->next, layer = f->layer, first = f->next;
    uint32_t n = layout_append_tokens_max(&plane->party.layout);
    n = n < left ? n : left;
    if (first == 0 && r->first_append < n)
        n = r->first_append; /* what the scorer takes from them it takes again */
    uint32_t held = layer == r->kept_layer ? r->kept_tokens : 0;
    if (first < held)
        return pass(r, held - first < n ? held - first : n, why);
    uint32_t bytes = (uint32_t)sizeof(struct record_append) + n * f->header.entry_bytes;
    void *payload;
    r->w->waiting = r;
    int rc = dataplane_reserve(plane, plane->append, bytes, &payload, worker_deadline(), why);
    r->w->waiting = NULL;
    if (rc)
        return rc;
    struct record_append *record = payload;
    *record =
        (struct record_append){.header = request_header(r, layer), .first = first, .n_tokens = n};
    rc = request_file_status(session_read_entries(f, n, record + 1, why));
    FAULT_POINT(gpu_worker, restore, reading);
    if (!rc)
        shm_ring_publish(plane->append, RECORD_APPEND, bytes);
    return rc;
}

static int append_mass(struct request *r, struct hill_why *why)
{
    struct session_file *f = r->session;
    struct record_mass *record;
    int rc =
        request_reserve_mass(r, f->layer, f->next, f->header.n_entries - f->next, &record, why);
    if (!rc)
        rc = request_file_status(
            session_read_masses(f, record->n_tokens, (float *)(void *)(record + 1), why));
    if (!rc)
        request_publish_mass(r, record);
    return rc;
}

static int finish(struct request *r, struct hill_why *why)
{
    const struct session_header *h = &r->session->header;
    uint32_t n_entries = h->n_entries;
    if (request_asks_session(r)) {
        restore_drop(r);
        r->units_before = r->units;
        r->units_behind = 0;
        r->n_past = n_entries;
        r->kept_tokens = r->kept_layer = 0; /* the tiers have the session's, none of the question */
        r->state = REQUEST_RESTORED;
        return 0;
    }
    int rc = request_push_step_end(r, n_entries, why);
    if (!hash_state_load(r->hash, &h->logits_hash))
        log_info("session %s was saved with another version of xxHash: its logits_hash begins anew",
                 r->session->path);
    log_debug("request %llu: %u tokens restored from %s in %.3f s",
              (unsigned long long)r->prefill->identity, h->n_tokens, r->session->path,
              (clock_now_ns() - r->begun_ns) * 1e-9);
    restore_drop(r);
    r->prompt_done_ns = clock_now_ns();
    r->state = REQUEST_DECODE;
    return rc;
}

int restore_turn(struct request *r, struct hill_why *why)
{
    int64_t end = clock_now_ns() + restore_turn_ns();
    int rc = 0;
    do {
        if (r->session->layer == r->session->header.terms.n_layers)
            return finish(r, why);
        session_read_ahead(r->session, READ_AHEAD);
        rc = r->session->masses ? append_mass(r, why) : append(r, why);
        r->unit += r->unit < r->units; /* what was passed over may have cut one in two */
        worker_unit_of_work(r->w);
    } while (!rc && clock_now_ns() < end);
    request_progress(r, r->unit);
    return rc;
}

void restore_drop(struct request *r)
{
    if (r->session)
        session_close(r->session);
    free(r->session);
    r->session = NULL;
}

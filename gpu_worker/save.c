/*
 * gpu_worker/save.c - see save.h.
 *
 * The order of the file: tokens, then the entries layer by layer, of h2o each layer's sums of
 * attention behind them, the header last. One READ is
 * under way at a time; its entries are copied out of staging as they are announced, and staging is
 * looked at again afterwards: a slot that was given to someone else meanwhile fails the save.
 */
#include "gpu_worker/save.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "gpu_worker/request.h"
#include "session/session_writer.h"

_Static_assert(sizeof(struct session_terms) == PROTO_SESSION_TERMS_BYTES, "SessionFile.terms");

struct save {
    struct session_writer *writer;
    struct session_header header;
    bool answer; /* by Saved; else by Done */
    bool finishing;
    uint32_t tokens;       /* given to the writer */
    uint32_t layer, first; /* of the next entry to be read */
    bool masses;           /* the layer's entries are there: of the next mass */
    uint32_t at_once;      /* entries of a READ, at most */
    uint8_t *room;         /* the buffer being filled, or NULL */
    uint32_t filled;
    uint32_t read_id, asked; /* the READ under way: entries, 0: none */
    int64_t asked_ns;
    int rc; /* why the entries cannot be had */
    struct hill_why why;
};

/* ---- orders ------------------------------------------------------------------------------- */

static void tell(struct worker *w, uint64_t request_id, int code, const char *text,
                 const struct session_header *h)
{
    Hill__Saved saved = HILL__SAVED__INIT;
    saved.request_id = request_id;
    saved.code = code;
    saved.text = (char *)text;
    saved.tokens = h ? h->n_tokens : 0;
    saved.bytes = h ? h->file_bytes : 0;
    worker_link_send(w->link, &PROTO_MESSAGE(SAVED, saved, &saved));
}

static struct request *find(const struct worker *w, uint64_t request_id)
{
    for (uint32_t i = 0; i < w->n_sequences; i++)
        if (w->requests[i] && w->requests[i]->prefill->request_id == request_id)
            return w->requests[i];
    return NULL;
}

static const char stays_away[] = "a request is not saved whose prefix has tokens that stay away "
                                 "(--prefix-unimportant never)";

void save_take_order(struct worker *w, const Hill__Save *message)
{
    struct request *r = find(w, message->request_id);
    if (!r || r->cancelled)
        tell(w, message->request_id, HILL_E_INVALID, "the request is over", NULL);
    else if (r->prefill->n_forced)
        tell(w, message->request_id, HILL_E_INVALID, "a request that scores a text is not saved",
             NULL);
    else if (r->json.tokens)
        tell(w, message->request_id, HILL_E_INVALID,
             "a request whose answer is held to JSON is not saved", NULL);
    else if (r->holds_chosen)
        tell(w, message->request_id, HILL_E_INVALID, stays_away, NULL);
    else if (r->save_path)
        tell(w, message->request_id, HILL_E_BUSY, "the request is being saved already", NULL);
    else if (!(r->save_path = strdup(message->file->path)))
        tell(w, message->request_id, HILL_E_NOMEM, "out of memory for saving the session", NULL);
    else
        memcpy(r->save_terms, message->file->terms.data, sizeof r->save_terms);
}

/* At its end: with no token in it that the coordinator lacks, for the file may replace the one from
 * which the request would have to be restored to make that token again. */
static bool owed_at_end(const struct request *r)
{
    return r->over && r->prefill->save && !r->saved_at_end && request_is_heard(r);
}

/* Steps that are made again are in the scorer's hash already: a session has that of its own step.
 */
bool save_owed(const struct request *r)
{
    return r->state == REQUEST_DECODE && r->step >= r->replay_to &&
           (r->save_path || r->save || owed_at_end(r));
}

/* ---- begin -------------------------------------------------------------------------------- */

static void fill_header(const struct request *r, const void *terms, struct session_header *h)
{
    const struct worker *w = r->w;
    memset(h, 0, sizeof *h);
    memcpy(&h->terms, terms, sizeof h->terms);
    h->temperature = r->sampling.temperature;
    h->top_p = r->sampling.top_p;
    h->min_p = r->sampling.min_p;
    h->repeat_penalty = r->sampling.repeat_penalty;
    h->top_k = r->sampling.top_k;
    h->seed = r->sampling.seed;
    h->ignore_eos = r->prefill->n_stop_tokens == 0;
    h->n_prompt = r->first_prompt;
    /* a stop token is part of the session: what follows, follows it */
    h->n_tokens = r->n_tokens + (r->over && r->finish == HILL__FINISH_REASON__FINISH_STOP);
    h->n_entries = h->n_tokens - 1;
    h->entry_bytes = worker_entry_bytes(w);
    h->step = r->step;
    h->first_append = r->first_append;
    hash_state_save(&h->logits_hash, r->hash);
    snprintf(h->device, sizeof h->device, "%.*s", (int)sizeof h->device - 1, w->device.name);
    session_seal(h);
}

/* As many as the scorer has set staging slots aside for, and as a buffer takes. */
static uint32_t entries_at_once(const struct request *r)
{
    uint32_t k = request_read_max(r);
    uint32_t room = SESSION_BUFFER_BYTES / worker_entry_bytes(r->w);
    return k < room ? k : room;
}

static int begin(struct request *r, struct hill_why *why)
{
    const char *path = r->save_path ? r->save_path : r->prefill->save->path;
    const void *terms = r->save_path ? (const void *)r->save_terms : r->prefill->save->terms.data;
    if (r->holds_chosen) /* the order came before the request began */
        return hill_fail(why, HILL_E_INVALID, "%s", stays_away);
    r->save = calloc(1, sizeof *r->save);
    if (!r->save)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for saving %.300s", path);
    r->save->answer = r->save_path != NULL;
    r->save->at_once = entries_at_once(r);
    fill_header(r, terms, &r->save->header);
    log_debug("request %llu: saving %u tokens, %.1f MiB, to %s",
              (unsigned long long)r->prefill->identity, r->save->header.n_tokens,
              r->save->header.file_bytes / 1048576.0, path);
    return request_file_status(session_writer_open(&r->save->writer, path,
                                                   r->save->header.file_bytes, worker_ring,
                                                   r->w->plane.party.bell, why));
}

/* ---- sections ----------------------------------------------------------------------------- */

static void give(struct save *save, bool section_end)
{
    session_writer_give(save->writer, save->filled, section_end);
    save->room = NULL;
    save->filled = 0;
}

static void give_tokens(struct request *r)
{
    struct save *save = r->save;
    uint32_t rest = save->header.n_tokens - save->tokens;
    uint32_t most = SESSION_BUFFER_BYTES / (uint32_t)sizeof *r->tokens;
    uint32_t n = rest < most ? rest : most;
    save->filled = n * (uint32_t)sizeof *r->tokens;
    memcpy(save->room, r->tokens + save->tokens, save->filled);
    save->tokens += n;
    give(save, n == rest);
}

/* Of what is read now. */
static uint32_t item_bytes(const struct save *save)
{
    return save->masses ? (uint32_t)sizeof(float) : save->header.entry_bytes;
}

static int ask(struct request *r, struct hill_why *why)
{
    struct save *save = r->save;
    uint32_t left = save->header.n_entries - save->first;
    uint32_t room = (SESSION_BUFFER_BYTES - save->filled) / item_bytes(save);
    save->asked = left < save->at_once ? left : save->at_once;
    save->asked = room < save->asked ? room : save->asked;
    struct record_read read = {.first = save->first,
                               .n_tokens = save->asked,
                               .what = save->masses ? READ_MASS : READ_ENTRIES};
    int rc = request_push_read(r, save->layer, &read, why);
    save->read_id = read.read_id;
    save->asked_ns = clock_now_ns();
    return rc;
}

/* n items are in the buffer: the writer gets it when it is full or ends a section. */
static void note_items(struct save *save, uint32_t n)
{
    save->first += n;
    bool end = save->first == save->header.n_entries;
    if (end || SESSION_BUFFER_BYTES - save->filled < item_bytes(save))
        give(save, end);
    if (!end)
        return;
    save->first = 0;
    save->masses = !save->masses && session_has_masses(&save->header.terms);
    save->layer += save->masses ? 0 : 1;
}

/* Copy them out of staging. */
static int take_entries(struct request *r, const struct record_entries *e)
{
    struct save *save = r->save;
    const struct dataplane *plane = &r->w->plane;
    const struct staged_entry *slots = (const struct staged_entry *)(e + 1);
    uint32_t bytes = save->header.entry_bytes;
    if (e->status)
        return hill_fail(&save->why, e->status,
                         "the scorer cannot read entries %u.. of layer %u: %s", save->first,
                         save->layer, hill_strerror(e->status));
    if (save->masses || e->n_entries != save->asked || e->header.layer != save->layer)
        return hill_fail(&save->why, HILL_E_PROTOCOL, "%u entries of layer %u came for %u of %u",
                         e->n_entries, e->header.layer, save->asked, save->layer);
    save->header.selection_hash = e->selection_hash;
    for (uint32_t i = 0; i < e->n_entries; i++) {
        const struct selected_upload slot = {slots[i].staging_slot, slots[i].generation, 0, 0};
        int rc = dataplane_check_staged(plane, &slot, 1, &save->why);
        if (rc)
            return rc;
        memcpy(save->room + save->filled, shm_arena_slot(&plane->party.arena, slot.staging_slot),
               bytes);
        rc = dataplane_check_staged(plane, &slot, 1, &save->why);
        if (rc)
            return rc;
        save->filled += bytes;
    }
    note_items(save, e->n_entries);
    return 0;
}

static int take_masses(struct save *save, const struct record_mass *m)
{
    if (m->status)
        return hill_fail(&save->why, m->status,
                         "the scorer cannot read the attention of layer %u: %s", save->layer,
                         hill_strerror(m->status));
    if (!save->masses || m->n_tokens != save->asked || m->first != save->first ||
        m->header.layer != save->layer)
        return hill_fail(&save->why, HILL_E_PROTOCOL,
                         "attention of %u tokens of layer %u came for %u of %u", m->n_tokens,
                         m->header.layer, save->asked, save->layer);
    memcpy(save->room + save->filled, m + 1, m->n_tokens * sizeof(float));
    save->filled += m->n_tokens * (uint32_t)sizeof(float);
    note_items(save, m->n_tokens);
    return 0;
}

/* Whose the answer to a READ is; NULL: nobody's. */
static struct request *reader(const struct worker *w, const struct record_header *h,
                              uint32_t read_id)
{
    struct request *r = w->requests[h->sequence];
    return r && r->save && r->save->asked && r->save->read_id == read_id ? r : NULL;
}

static bool took(struct request *r, int rc)
{
    r->save->rc = rc;
    r->save->asked = 0;
    worker_unit_of_work(r->w);
    return true;
}

bool save_take_entries(struct worker *w, const struct record_entries *e)
{
    struct request *r = reader(w, &e->header, e->read_id);
    return r && took(r, take_entries(r, e));
}

bool save_take_masses(struct worker *w, const struct record_mass *m)
{
    struct request *r = reader(w, &m->header, m->read_id);
    return r && took(r, take_masses(r->save, m));
}

/* ---- turns -------------------------------------------------------------------------------- */

/* 1: it moved on, 0: it waits, negative: the save has failed. */
static int go_on(struct request *r, struct hill_why *why)
{
    struct save *save = r->save;
    if (save->asked) {
        if (clock_now_ns() < save->asked_ns + WORKER_WAIT_MS * 1000000ll)
            return 0;
        return hill_fail(why, HILL_E_TIMEOUT, "the scorer sent no answer to a READ in time");
    }
    if (!save->room && !(save->room = session_writer_room(save->writer)))
        return 0;
    if (save->tokens < save->header.n_tokens) {
        give_tokens(r);
        return 1;
    }
    if (save->layer < save->header.terms.n_layers) {
        int rc = ask(r, why);
        return rc ? rc : 1;
    }
    session_seal(&save->header); /* with the selection hash */
    session_writer_finish(save->writer, &save->header);
    save->finishing = true;
    return 1;
}

/* The outcome; the request goes on, or its Done tells it. */
static void conclude(struct request *r, int rc, const char *text)
{
    struct save *save = r->save;
    /* an order may have come while the session was being saved at the end: it is next */
    bool answer = save ? save->answer : r->save_path != NULL;
    if (rc) /* who asked for it is told, and says so */
        log_debug("request %llu: %s", (unsigned long long)r->prefill->identity, text);
    if (answer) {
        tell(r->w, r->prefill->request_id, rc, rc ? text : "", save ? &save->header : NULL);
        free(r->save_path);
        r->save_path = NULL;
    } else {
        r->saved_at_end = true;
        r->over_rc = rc;
        snprintf(r->over_why.text, sizeof r->over_why.text, "%s", rc ? text : "");
    }
    session_writer_close(save ? save->writer : NULL);
    free(save);
    r->save = NULL;
}

int save_turn(struct request *r, struct hill_why *why)
{
    int rc = r->save ? r->save->rc : begin(r, why);
    if (r->save && r->save->rc)
        *why = r->save->why;
    int state = rc ? rc : request_file_status(session_writer_state(r->save->writer, why));
    rc = state;
    if (state == 1)
        rc = r->save->finishing ? 0 : go_on(r, why);
    if (rc == HILL_E_NODEV || rc == HILL_E_PEER_GONE || (rc == HILL_E_CANCELLED && state == 1))
        return rc; /* of the epoch or the request, not of the save */
    if (rc < 0 || state == 0) {
        conclude(r, rc, why->text);
        return 1;
    }
    return rc;
}

bool save_reads(const struct request *r)
{
    return r->save && r->save->asked;
}

void save_drop(struct request *r)
{
    if (r->save)
        session_writer_close(r->save->writer);
    free(r->save);
    free(r->save_path);
    r->save = NULL;
    r->save_path = NULL;
}

/* tools/replay/replay_script.c - see replay_script.h. */
#include "tools/replay/replay_script.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "kv/plan.h"

struct reader {
    struct script *script;
    const struct recording_file *file;
    struct hill_why *why;
    uint32_t current[KV_MAX_SEQUENCES]; /* index + 1 */
    uint8_t *prompt[KV_MAX_SEQUENCES];  /* of the request that is about to begin */
    uint32_t prompt_bytes[KV_MAX_SEQUENCES], prompt_total[KV_MAX_SEQUENCES];
};

static int bad(const struct reader *r, const struct recording_event *e, const char *what)
{
    return hill_fail(r->why, HILL_E_DAMAGED,
                     "the recording makes no sense at event %" PRIu64 ": %s", e->number, what);
}

static int out_of_memory(const struct reader *r)
{
    return hill_fail(r->why, HILL_E_NOMEM, "out of memory for the recording's requests");
}

/* Payloads are 8-byte aligned in the file; records ask for no more but in rings. */
static const struct record_header *header_of(const struct recording_event *e)
{
    return (const struct record_header *)(const void *)e->payload;
}

static struct script_request *request_of(const struct reader *r, const struct recording_event *e)
{
    uint32_t index = r->current[header_of(e)->sequence];
    return index ? &r->script->requests[index - 1] : NULL;
}

static int add_line(const struct reader *r, struct script_request *q, enum script_ring ring,
                    const struct recording_event *e)
{
    if (!GROW(q->lines[ring], q->room[ring], q->n_lines[ring] + 1))
        return out_of_memory(r);
    q->lines[ring][q->n_lines[ring]++] = (struct script_line){.record = *e};
    return 0;
}

/* ---- the append ring ---------------------------------------------------------------------- */

static int take_prompt(struct reader *r, const struct recording_event *e)
{
    const struct record_prompt *p = (const void *)e->payload;
    uint32_t sequence = p->header.sequence;
    if (p->first_byte == 0) {
        free(r->prompt[sequence]);
        r->prompt[sequence] = malloc(p->total_bytes);
        r->prompt_bytes[sequence] = 0;
        r->prompt_total[sequence] = p->total_bytes;
        if (!r->prompt[sequence])
            return out_of_memory(r);
    } else if (!r->prompt[sequence] || p->first_byte != r->prompt_bytes[sequence] ||
               p->total_bytes != r->prompt_total[sequence]) {
        return bad(r, e, "a PROMPT goes on where none stopped");
    }
    memcpy(r->prompt[sequence] + p->first_byte, p + 1, p->n_bytes);
    r->prompt_bytes[sequence] = p->first_byte + p->n_bytes;
    return 0;
}

static int take_begin(struct reader *r, const struct recording_event *e)
{
    const struct record_seq_begin *b = (const void *)e->payload;
    struct script *s = r->script;
    uint32_t sequence = b->header.sequence;
    if (!r->prompt[sequence])
        return bad(r, e, "a SEQ_BEGIN without its PROMPT");
    if (!GROW(s->requests, s->room, s->n_requests + 1))
        return out_of_memory(r);
    struct script_request *q = &s->requests[s->n_requests++];
    *q = (struct script_request){.request_id = b->request_id,
                                 .begun = e->number,
                                 .sequence = sequence,
                                 .max_tokens = b->max_tokens,
                                 .prompt = r->prompt[sequence],
                                 .prompt_bytes = r->prompt_bytes[sequence]};
    r->prompt[sequence] = NULL;
    r->current[sequence] = s->n_requests;
    q->entries = calloc((size_t)s->n_layers * b->max_tokens, sizeof *q->entries);
    return q->entries ? add_line(r, q, SCRIPT_APPEND, e) : out_of_memory(r);
}

static int take_append(const struct reader *r, struct script_request *q,
                       const struct recording_event *e)
{
    const struct record_append *a = (const void *)e->payload;
    uint32_t entry_bytes = kv_entry_bytes(&r->file->layout.geometry);
    if (a->first > q->max_tokens || a->n_tokens > q->max_tokens - a->first)
        return bad(r, e, "an APPEND beyond its request's tokens");
    for (uint32_t i = 0; i < a->n_tokens; i++)
        q->entries[(size_t)a->header.layer * q->max_tokens + a->first + i] =
            (const uint8_t *)(a + 1) + (size_t)i * entry_bytes;
    return 0;
}

static int take_append_ring(struct reader *r, const struct recording_event *e)
{
    if (e->type == RECORD_PROMPT)
        return take_prompt(r, e);
    if (e->type == RECORD_SEQ_BEGIN)
        return take_begin(r, e);
    struct script_request *q = request_of(r, e);
    if (!q)
        return 0; /* of a request that began before the recording: cannot be, or was dropped */
    if (e->type == RECORD_SEQ_END)
        q->natural = ((const struct record_seq_end *)(const void *)e->payload)->status == 0;
    int rc = e->type == RECORD_APPEND ? take_append(r, q, e) : 0;
    return rc ? rc : add_line(r, q, SCRIPT_APPEND, e);
}

/* ---- queries and answers ------------------------------------------------------------------ */

static int take_query_ring(struct reader *r, const struct recording_event *e)
{
    struct script_request *q = request_of(r, e);
    uint64_t id = e->type == RECORD_QUERY
                      ? ((const struct record_query *)(const void *)e->payload)->request_id
                      : ((const struct record_reads_done *)(const void *)e->payload)->request_id;
    if (e->type == RECORD_READ || !q || q->request_id != id)
        return 0; /* a session was saved; of a request that was over */
    return add_line(r, q, SCRIPT_QUERY, e);
}

/* Has its SEQ_END come, of one that was cancelled or failed? What a query is answered after that
 * says so, and is no cause of it: to the replay it has no answer. */
static bool was_cut_short(const struct script_request *q)
{
    uint32_t n = q->n_lines[SCRIPT_APPEND];
    return !q->natural && n && q->lines[SCRIPT_APPEND][n - 1].record.type == RECORD_SEQ_END;
}

static void take_answer(struct reader *r, const struct recording_event *e)
{
    struct script_request *q = request_of(r, e);
    if (!q)
        return;
    if (e->type == RECORD_SEQ_READY && !q->ready.kind)
        q->ready = *e;
    if (e->type != RECORD_SELECTION || was_cut_short(q))
        return;
    uint32_t id = ((const struct record_selection *)(const void *)e->payload)->query_id;
    for (uint32_t i = q->n_lines[SCRIPT_QUERY]; i-- > 0;) {
        struct script_line *line = &q->lines[SCRIPT_QUERY][i];
        const struct record_query *asked = (const void *)line->record.payload;
        if (line->record.type != RECORD_QUERY || asked->query_id != id)
            continue;
        line->answer = *e;
        return;
    }
}

int script_read(struct script *script, struct recording_file *file, struct hill_why *why)
{
    struct reader r = {.script = script, .file = file, .why = why};
    struct recording_event e;
    int rc = 0;
    *script = (struct script){.n_layers = file->layout.geometry.n_layers};
    recording_rewind(file);
    while (!rc && recording_next(file, &e)) {
        bool in = e.kind == RECORDING_IN, out = e.kind == RECORDING_OUT;
        if ((!in && !out) || header_of(&e)->epoch != file->settings.epoch)
            continue;
        if (in && e.ring == RING_APPEND)
            rc = take_append_ring(&r, &e);
        else if (in && e.ring == RING_QUERY)
            rc = take_query_ring(&r, &e);
        else if (out && e.ring == RING_SELECTION)
            take_answer(&r, &e);
    }
    for (uint32_t i = 0; i < KV_MAX_SEQUENCES; i++)
        free(r.prompt[i]);
    if (!rc && script->n_requests == 0)
        rc = hill_fail(why, HILL_E_INVALID, "no request began in the recording");
    return rc;
}

void script_free(struct script *script)
{
    for (uint32_t i = 0; i < script->n_requests; i++) {
        struct script_request *q = &script->requests[i];
        for (int ring = 0; ring < SCRIPT_RINGS; ring++)
            free(q->lines[ring]);
        free(q->prompt);
        free(q->entries);
    }
    free(script->requests);
    *script = (struct script){0};
}

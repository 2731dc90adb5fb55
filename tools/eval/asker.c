/* tools/eval/asker.c - see asker.h. */
#include "tools/eval/asker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define PING_MS 2000

struct slot {
    bool used;
    bool reading;        /* the prompt of the job, for it and others */
    uint64_t order;      /* of sending */
    uint64_t request_id; /* 0: not accepted yet */
    const struct job *job;
    struct answer answer;
};

struct asker {
    const struct asker_order *order;
    struct client *client;
    struct slot slots[ASKER_PARALLEL_MAX];
    unsigned n_used;
    uint64_t n_sent;
    int64_t started_ns, last_heard_ns, last_ping_ns;
};

/* ---- out ----------------------------------------------------------------------------------- */

/* path: only read the prompt, and save it there; NULL: answer. */
static int send_generate(struct asker *a, const struct job *job, char *path, struct hill_why *why)
{
    const struct item *item = job->item;
    Hill__Sampling sampling = HILL__SAMPLING__INIT;
    Hill__Generate generate = HILL__GENERATE__INIT;
    Hill__Selection selection;
    sampling.top_p = 1;
    sampling.repeat_penalty = 1;
    sampling.seed = 1; /* temperature 0: not used */
    setting_selection(job->setting, item->n_tokens, &selection);
    generate.token_ids = item->tokens;
    generate.n_token_ids = path ? item_prompt_tokens(item) : item->n_tokens;
    generate.predict = path || item_is_scored(item) ? 1 : item->predict;
    generate.score_from = path ? 0 : item->score_from;
    generate.sampling = &sampling;
    generate.selection = &selection;
    if (path)
        generate.save_path = path;
    return client_send(a->client, &PROTO_MESSAGE(GENERATE, generate, &generate), why);
}

static int send_restore(struct asker *a, const struct job *job, char *path, struct hill_why *why)
{
    const struct item *item = job->item;
    Hill__RestoreSession restore = HILL__RESTORE_SESSION__INIT;
    Hill__Selection selection;
    setting_selection(job->setting, item->n_tokens, &selection);
    restore.path = path;
    restore.selection = &selection;
    restore.from_prompt = true;
    if (item_is_scored(item)) {
        restore.forced = item->tokens + item->score_from;
        restore.n_forced = item->n_tokens - item->score_from;
    } else {
        restore.predict = item->predict;
    }
    return client_send(a->client, &PROTO_MESSAGE(RESTORE_SESSION, restore_session, &restore), why);
}

/* The job's request, or first one that reads its prompt for it and others. */
static int send_job(struct asker *a, struct slot *slot, const struct job *job, struct hill_why *why)
{
    char path[HILL_PATH_BYTES];
    enum prompt_state state = job->prompt->state;
    bool reading = state == PROMPT_UNREAD;
    sessions_path(a->order->sessions, a->order->subject, job->prompt, path);
    int code = state == PROMPT_READ ? send_restore(a, job, path, why)
                                    : send_generate(a, job, reading ? path : NULL, why);
    if (code)
        return code;
    *slot = (struct slot){.used = true, .reading = reading, .order = a->n_sent++, .job = job};
    slot->answer.reading = reading;
    slot->answer.restored = state == PROMPT_READ;
    if (reading)
        job->prompt->state = PROMPT_READING;
    a->n_used++;
    return 0;
}

static void send_ping(struct asker *a)
{
    client_ping(a->client, NULL); /* one that is lost is followed by another */
    a->last_ping_ns = clock_now_ns();
}

static void cancel_all(struct asker *a)
{
    for (unsigned i = 0; i < a->order->parallel; i++) {
        Hill__Cancel cancel = HILL__CANCEL__INIT;
        if (!a->slots[i].used)
            continue;
        cancel.request_id = a->slots[i].request_id;
        client_send(a->client, &PROTO_MESSAGE(CANCEL, cancel, &cancel), NULL);
    }
}

/* ---- in ------------------------------------------------------------------------------------ */

/* The coordinator takes requests in the order in which they were sent: an Accepted or a refusal is
 * about the oldest that has had neither. */
static struct slot *oldest_open(struct asker *a)
{
    struct slot *oldest = NULL;
    for (unsigned i = 0; i < a->order->parallel; i++) {
        struct slot *s = &a->slots[i];
        if (s->used && !s->request_id && (!oldest || s->order < oldest->order))
            oldest = s;
    }
    return oldest;
}

static struct slot *slot_of(struct asker *a, uint64_t request_id)
{
    for (unsigned i = 0; i < a->order->parallel; i++)
        if (a->slots[i].used && a->slots[i].request_id == request_id && request_id)
            return &a->slots[i];
    return NULL;
}

static int end_job(struct asker *a, struct slot *slot, struct hill_why *why)
{
    struct prompt *prompt = slot->job->prompt;
    int code = a->order->take(a->order->context, slot->job, &slot->answer, why);
    if (slot->reading)
        prompt->state = slot->answer.code ? PROMPT_DIRECT : PROMPT_READ;
    else
        sessions_answered(a->order->sessions, a->order->subject, prompt);
    free(slot->answer.text);
    *slot = (struct slot){0};
    a->n_used--;
    return code;
}

static int fail_job(struct asker *a, struct slot *slot, int code, const char *text,
                    struct hill_why *why)
{
    slot->answer.code = code;
    snprintf(slot->answer.why, sizeof slot->answer.why, "%s", text);
    return end_job(a, slot, why);
}

static int take_text(struct slot *slot, const Hill__Text *t, struct hill_why *why)
{
    struct answer *answer = &slot->answer;
    char *text = realloc(answer->text, answer->text_bytes + t->text.len + 1);
    if (!text)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for an answer");
    answer->text = text;
    if (t->text.len)
        memcpy(text + answer->text_bytes, t->text.data, t->text.len);
    answer->text_bytes += t->text.len;
    if (t->token == UINT32_MAX) /* more text, no token */
        return 0;
    if (item_is_scored(slot->job->item) && answer->n_tokens > 0) { /* 0: the prefill's */
        answer->logprob += t->logprob;
        answer->n_scored++;
    }
    answer->n_tokens++;
    return 0;
}

static int take_summary(struct asker *a, struct slot *slot, const Hill__Summary *m,
                        struct hill_why *why)
{
    struct answer *answer = &slot->answer;
    const struct item *item = slot->job->item;
    if (m->finish == HILL__FINISH_REASON__FINISH_ERROR)
        return fail_job(a, slot, m->code < 0 ? m->code : HILL_E_PROTOCOL, m->text, why);
    if (m->finish == HILL__FINISH_REASON__FINISH_CANCEL)
        return hill_fail(why, HILL_E_PEER_GONE, "the pipeline is ending: it cancelled a request");
    if (!slot->reading && item_is_scored(item) && answer->n_scored != item->n_scored)
        return fail_job(a, slot, HILL_E_PROTOCOL, "not all of the tokens were scored", why);
    answer->prompt_tokens = m->prompt_tokens;
    answer->prompt_ms = m->gpu ? m->gpu->prompt_ms : 0;
    answer->predicted_ms = m->gpu ? m->gpu->predicted_ms : 0;
    answer->selected = m->scorer ? m->scorer->budget : 0;
    return end_job(a, slot, why);
}

static int take_reply(struct asker *a, const Hill__Reply *reply, struct hill_why *why)
{
    struct slot *slot = oldest_open(a);
    if (reply->code == 0 || !slot)
        return 0;
    if (reply->code == HILL_E_PEER_GONE)
        return hill_fail(why, reply->code, "%s", reply->text);
    return fail_job(a, slot, reply->code, reply->text, why);
}

static int take_message(struct asker *a, const Hill__Message *message, struct hill_why *why)
{
    struct slot *slot;
    a->last_heard_ns = clock_now_ns();
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_ACCEPTED:
        if ((slot = oldest_open(a)))
            slot->request_id = message->accepted->request_id;
        return 0;
    case HILL__MESSAGE__BODY_TEXT:
        slot = slot_of(a, message->text->request_id);
        return slot ? take_text(slot, message->text, why) : 0;
    case HILL__MESSAGE__BODY_SUMMARY:
        slot = slot_of(a, message->summary->request_id);
        return slot ? take_summary(a, slot, message->summary, why) : 0;
    case HILL__MESSAGE__BODY_REPLY:
        return take_reply(a, message->reply, why);
    case HILL__MESSAGE__BODY_STATUS_REPLY:
        if (message->status_reply->uptime_seconds * 1e9 <
            (double)(a->last_heard_ns - a->started_ns) - 1e9)
            return hill_fail(why, HILL_E_PEER_GONE,
                             "the coordinator was replaced; its requests are lost");
        return 0;
    default:
        return 0;
    }
}

/* ---- the run ------------------------------------------------------------------------------- */

static int wait_and_take(struct asker *a, struct hill_why *why)
{
    Hill__Message *message = NULL;
    int code = client_receive(a->client, clock_deadline_ms(PING_MS / 4), &message, why);
    if (code == 0) {
        code = take_message(a, message, why);
        proto_free(message);
    } else if (code == HILL_E_TIMEOUT) {
        code = 0;
    } else if (code == HILL_E_CANCELLED) {
        cancel_all(a);
    }
    int64_t now = clock_now_ns();
    if (code == 0 && now - a->last_ping_ns > CLOCK_MS(PING_MS))
        send_ping(a);
    if (code == 0 && now - a->last_heard_ns > CLOCK_MS(CLIENT_ANSWER_MS))
        code = hill_fail(why, HILL_E_PEER_GONE, "the pipeline in %s stopped answering",
                         a->client->run_dir);
    return code;
}

static struct slot *free_slot(struct asker *a)
{
    for (unsigned i = 0; i < a->order->parallel; i++)
        if (!a->slots[i].used)
            return &a->slots[i];
    return NULL;
}

int asker_run(const struct asker_order *order, struct hill_why *why)
{
    struct asker a = {.order = order, .client = order->client, .started_ns = clock_now_ns()};
    a.last_heard_ns = a.last_ping_ns = a.started_ns;
    int code = 0;
    size_t next = 0;
    while (code == 0 && (next < order->n_jobs || a.n_used)) {
        const struct job *job = next < order->n_jobs ? &order->jobs[next] : NULL;
        struct slot *slot = job && job->prompt->state != PROMPT_READING ? free_slot(&a) : NULL;
        code = slot ? send_job(&a, slot, job, why) : wait_and_take(&a, why);
        next += slot && !slot->reading;
    }
    for (unsigned i = 0; i < order->parallel; i++)
        free(a.slots[i].answer.text);
    return code;
}

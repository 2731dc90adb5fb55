/*
 * gateway/job_looks.c - what a client may see of how its own answer came about: which passages its
 * queries have chosen, and where the time of one of its tokens went. See job.h.
 *
 * The stage events of all requests come by the request's own line. Told are those of its own
 * sequence, which its Summary names, from when its watch began to its newest token: before and
 * after that its slot may have been another's. What others do in a step that is shared is told
 * unless there are several keys. One client at a time can watch the stages: beside another one, and
 * where an answer has too few tokens, the timeline is null. Nothing fails for it: the coordinator
 * answers in the order in which it was asked, so as many refusals as requests are unanswered are
 * about these, whatever they say.
 */
#include "gateway/job.h"

#include "base/clock.h"

#define WATCH_TOKENS 3u /* at least a whole step */
#define WATCH_MS     20 /* until the workers have heard of it */
#define ANSWERS_MS   1000

static void ask(struct job *job, bool on)
{
    struct looks *l = &job->generation.looks;
    Hill__TraceRequest request = HILL__TRACE_REQUEST__INIT;
    request.on = on;
    request.serial = ++l->serial;
    l->expected = UINT32_MAX;
    l->heard = 0;
    Hill__Message message = PROTO_MESSAGE(TRACE_REQUEST, trace_request, &request);
    l->unanswered += proto_send(job->line, NULL, &message) == 0; /* lost: there is no timeline */
}

void looks_on_token(struct job *job, int64_t now_ns)
{
    struct generation *gen = &job->generation;
    struct looks *l = &gen->looks;
    if (job->order.timeline && l->state == LOOKS_NONE) {
        l->state = LOOKS_WATCHING;
        l->since_ns = now_ns;
        l->since_tokens = gen->follower.n_tokens;
        ask(job, true);
    } else if (l->state == LOOKS_WATCHING &&
               gen->follower.n_tokens - l->since_tokens >= WATCH_TOKENS &&
               now_ns - l->since_ns > CLOCK_MS(WATCH_MS)) {
        looks_stop(job);
    }
}

void looks_stop(struct job *job)
{
    struct looks *l = &job->generation.looks;
    if (l->state != LOOKS_WATCHING)
        return;
    l->state = LOOKS_ENDING;
    l->deadline_ns = clock_deadline_ms(ANSWERS_MS);
    ask(job, false);
}

void looks_take(struct job *job, const Hill__TraceAnswer *answer)
{
    struct looks *l = &job->generation.looks;
    if (answer->role == HILL__ROLE__ROLE_COORDINATOR) {
        l->unanswered -= l->unanswered > 0;
        if (answer->serial == l->serial)
            l->expected = answer->expected;
    } else {
        timeline_add(&l->timeline, answer->events.data, answer->events.len);
        l->heard += answer->serial == l->serial;
    }
    if (l->state == LOOKS_ENDING && l->heard >= l->expected)
        l->state = LOOKS_OVER;
}

bool looks_refused(struct job *job, const Hill__Reply *reply)
{
    struct looks *l = &job->generation.looks;
    if (!reply->code || !l->unanswered)
        return false;
    l->unanswered--;
    l->state = LOOKS_OVER;
    return true;
}

void looks_lost(struct job *job)
{
    struct looks *l = &job->generation.looks;
    l->unanswered = 0;
    if (l->state != LOOKS_NONE)
        l->state = LOOKS_OVER;
}

bool looks_wait(struct job *job, int64_t now_ns)
{
    struct looks *l = &job->generation.looks;
    looks_stop(job);
    if (l->state == LOOKS_ENDING && now_ns > l->deadline_ns)
        l->state = LOOKS_OVER;
    return l->state == LOOKS_ENDING;
}

static void add_selection(struct text_buffer *out, const Hill__Summary *s)
{
    const Hill__SequenceStats *stats = s->scorer;
    text_puts(out, ",\"selection\":");
    if (!stats || !s->n_passages) {
        text_puts(out, "null");
        return;
    }
    uint32_t tokens = s->prompt_tokens + s->predicted_tokens;
    text_printf(out, "{\"passage_tokens\":%u,\"queries\":%llu,\"passages\":[",
                stats->passage_tokens, (unsigned long long)stats->chosen_queries);
    for (size_t i = 0; i < s->n_passages && i < stats->n_chosen; i++) {
        uint64_t first = (uint64_t)i * stats->passage_tokens,
                 rest = tokens > first ? tokens - first : 1;
        uint64_t n = rest < stats->passage_tokens ? rest : stats->passage_tokens;
        double asked = (double)n * (double)stats->chosen_queries;
        text_puts(out, i ? ",{\"text\":" : "{\"text\":");
        text_add_json(out, s->passages[i].len ? (const char *)s->passages[i].data : "",
                      s->passages[i].len);
        text_printf(out, ",\"share\":%.4g}", asked > 0 ? stats->chosen[i] / asked : 0);
    }
    text_puts(out, "]}");
}

void looks_keep(struct job *job, const Hill__Summary *summary)
{
    struct looks *l = &job->generation.looks;
    l->sequence = summary->sequence;
    if (job->order.selection)
        add_selection(&l->json, summary);
}

void looks_write(struct job *job)
{
    struct looks *l = &job->generation.looks;
    if (job->order.selection && !l->json.length) /* it ended without a Summary */
        text_puts(&l->json, ",\"selection\":null");
    if (!job->order.timeline)
        return;
    timeline_keep(&l->timeline, l->since_ns, job->generation.token_ns);
    text_puts(&l->json, ",\"timeline\":");
    const struct timeline_of of = {job->generation.follower.id, l->sequence,
                                   job->gateway->settings->keys.n < 2};
    timeline_write(&l->json, &l->timeline, &of);
}

void looks_finish(struct job *job)
{
    timeline_finish(&job->generation.looks.timeline);
    text_finish(&job->generation.looks.json);
}

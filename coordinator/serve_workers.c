/*
 * coordinator/serve_workers.c - messages of the workers: Hello, Ready, heartbeats, failures, and
 * what a request makes.
 *
 * Who calls it: the loop in pipeline.c. Failure: a message that is malformed, from nobody we know
 * or out of place is counted, answered with a Reply, and otherwise without effect.
 */
#include "coordinator/pipeline_internal.h"

#include <string.h>

#include "base/clock.h"

int worker_send(struct pipeline *p, enum worker w, const Hill__Message *message)
{
    const struct worker_row *row = &p->workers.rows[w];
    return row->address.length ? proto_send(p->worker_socket, &row->address, message)
                               : HILL_E_PEER_GONE;
}

static void refuse(struct pipeline *p, const struct proto_address *from, const char *text)
{
    p->malformed++;
    log_warn("a worker's message was refused: %s", text);
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Reply reply = HILL__REPLY__INIT;
    reply.code = HILL_E_PROTOCOL;
    reply.text = (char *)text;
    message.body_case = HILL__MESSAGE__BODY_REPLY;
    message.reply = &reply;
    if (from->length)
        proto_send(p->worker_socket, from, &message);
}

static void take_hello(struct pipeline *p, const struct proto_address *from,
                       const Hill__Hello *hello)
{
    enum worker w = worker_table_by_role(hello->role);
    if (w == WORKER_COUNT || p->workers.rows[w].pid != hello->pid) {
        refuse(p, from, "a Hello from a process that was not started here");
        return;
    }
    struct worker_row *row = &p->workers.rows[w];
    if (row->state != WORKER_STARTED)
        return; /* it is being stopped */
    if (hello->records_version != PROTO_RECORDS_VERSION ||
        hello->protocol_version != PROTO_VERSION || strcmp(hello->version, HILL_VERSION) != 0) {
        char text[256];
        snprintf(text, sizeof text,
                 "%s is version %.40s with protocol %u and records version %llu, this coordinator "
                 "is %s with %u and %u: install them together",
                 row->binary, hello->version, hello->protocol_version,
                 (unsigned long long)hello->records_version, HILL_VERSION, PROTO_VERSION,
                 PROTO_RECORDS_VERSION);
        pipeline_end(p, HILL_E_UNSUPPORTED, text);
        return;
    }
    row->address = *from;
    if (w == WORKER_AGENT)
        csd_model_new_agent(p);
    worker_table_heartbeat(&p->workers, w, 0, clock_now_ns());
    worker_table_configured(&p->workers, w);
    epoch_configure(p, w);
}

static void take_ready(struct pipeline *p, enum worker w, const Hill__Ready *ready)
{
    struct worker_row *row = &p->workers.rows[w];
    if (ready->epoch != p->epoch || !p->epoch_exists)
        return; /* of an epoch that is over; the answer to the newer Configure follows */
    snprintf(row->device, sizeof row->device, "%s", ready->device);
    if (!row->process_ready)
        log_info("%s (pid %d) is ready%s%s", row->name, (int)row->pid, *ready->device ? " on " : "",
                 ready->device);
    worker_table_ready_at(&p->workers, w, ready->epoch, clock_now_ns());
}

static void take_failure(struct pipeline *p, enum worker w, const Hill__Failure *failure)
{
    struct worker_row *row = &p->workers.rows[w];
    struct request *r = request_book_by_wire(&p->book, failure->request_id);
    if (r && !r->failure_code) {
        r->failure_code = failure->code;
        snprintf(r->failure_text, sizeof r->failure_text, "%s", failure->text);
    }
    if (!failure->fatal) {
        log_debug("%s: %s", row->name, failure->text);
        return;
    }
    worker_table_failure(&p->workers, w, failure->code, failure->text);
    if (p->ending || row->ever_ready || request_worth_retry(failure->code)) {
        log_debug("%s cannot go on: %s", row->name, failure->text); /* it has said so itself */
        return;                                                     /* its exit does the rest */
    }
    if (p->change == CHANGE_ATTACH && w == WORKER_AGENT) {
        change_attach_failed(p, failure->code, failure->text);
    } else {
        char text[400];
        snprintf(text, sizeof text, "%s: %s", row->name, row->failure_text);
        pipeline_end(p, failure->code, text);
    }
}

static void take_stats(struct pipeline *p, Hill__Message *message)
{
    struct request *r = request_book_by_wire(&p->book, message->sequence_stats->request_id);
    if (!r || request_take_stats(r, message))
        proto_free(message);
}

/* Messages of a request by the GPU worker; takes the message. */
static void take_work(struct pipeline *p, Hill__Message *message)
{
    struct request *r = NULL;
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_PROGRESS:
        if ((r = request_book_by_wire(&p->book, message->progress->request_id)))
            request_on_progress(p, r, message->progress);
        break;
    case HILL__MESSAGE__BODY_TOKEN:
        if ((r = request_book_by_wire(&p->book, message->token->request_id)))
            request_on_token(p, r, message->token);
        break;
    case HILL__MESSAGE__BODY_SAVED:
        if ((r = request_book_by_wire(&p->book, message->saved->request_id)))
            session_on_saved(p, r, message->saved);
        break;
    default:
        if ((r = request_book_by_wire(&p->book, message->done->request_id))) {
            request_on_done(p, r, message);
            return;
        }
    }
    proto_free(message);
}

/* Takes the message. */
static void take_message(struct pipeline *p, const struct proto_address *from,
                         Hill__Message *message)
{
    enum worker w = worker_table_by_address(&p->workers, from);
    Hill__Message__BodyCase body = message->body_case;
    if (body == HILL__MESSAGE__BODY_HELLO) {
        take_hello(p, from, message->hello);
    } else if (w == WORKER_COUNT) {
        p->malformed++; /* late words of a worker that is gone, or a stranger's */
    } else if (body == HILL__MESSAGE__BODY_READY) {
        take_ready(p, w, message->ready);
    } else if (body == HILL__MESSAGE__BODY_TRACE_ANSWER) {
        trace_pass_on(p, message);
    } else if (body == HILL__MESSAGE__BODY_FAILURE) {
        take_failure(p, w, message->failure);
    } else if (body == HILL__MESSAGE__BODY_CSD_MODEL_COUNTERS && w == WORKER_AGENT) {
        csd_model_take_counters(p, message->csd_model_counters);
    } else if (body == HILL__MESSAGE__BODY_PROFILE_RESULT && w == WORKER_SCORER) {
        profile_take_result(p, message->profile_result);
    } else if (body == HILL__MESSAGE__BODY_STAGE_TIMES && w == WORKER_SCORER) {
        profile_take_stages(p, message->stage_times);
    } else if (body == HILL__MESSAGE__BODY_SEQUENCE_STATS && w == WORKER_SCORER) {
        take_stats(p, message);
        return;
    } else if (w == WORKER_GPU &&
               (body == HILL__MESSAGE__BODY_PROGRESS || body == HILL__MESSAGE__BODY_TOKEN ||
                body == HILL__MESSAGE__BODY_SAVED || body == HILL__MESSAGE__BODY_DONE)) {
        take_work(p, message);
        return;
    } else {
        refuse(p, from, "a message that this worker does not send");
    }
    proto_free(message);
}

void serve_workers(struct pipeline *p)
{
    for (unsigned i = 0; i < PIPELINE_BURST; i++) {
        struct proto_address from;
        struct hill_why why = {{0}};
        Hill__Message *message;
        int code = proto_receive(p->worker_socket, &from, &message, &why);
        if (code == HILL_E_PROTOCOL)
            refuse(p, &from, why.text);
        else if (code)
            return;
        else
            take_message(p, &from, message);
    }
}

/* Takes the message. */
static void take_heartbeat(struct pipeline *p, enum worker w, Hill__Message *message)
{
    const Hill__Heartbeat *beat = message->heartbeat;
    worker_table_heartbeat(&p->workers, w, beat->work_done, clock_now_ns());
    worker_table_usage(&p->workers, w, beat->cpu_ms, beat->rss_bytes);
    if (w == WORKER_SCORER && beat->live) {
        proto_free(p->live);
        p->live = message;
    } else {
        proto_free(message);
    }
}

void serve_heartbeats(struct pipeline *p)
{
    for (unsigned i = 0; i < PIPELINE_BURST; i++) {
        struct proto_address from;
        Hill__Message *message;
        int code = proto_receive(p->heartbeat_socket, &from, &message, NULL);
        if (code && code != HILL_E_PROTOCOL)
            return;
        enum worker w = WORKER_COUNT;
        if (!code && message->body_case == HILL__MESSAGE__BODY_HEARTBEAT)
            w = worker_table_by_role(message->heartbeat->role);
        if (w != WORKER_COUNT && message->heartbeat->pid == p->workers.rows[w].pid) {
            take_heartbeat(p, w, message);
            continue;
        }
        p->malformed++;
        if (!code)
            proto_free(message);
    }
}

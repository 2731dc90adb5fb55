/* gateway/job.c - see job.h. */
#include "gateway/job.h"

#include <stdlib.h>

#include "base/clock.h"

struct job *job_create(struct gateway *gateway)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    job->gateway = gateway;
    job->key = -1;
    job->deadline_ns = clock_deadline_ms(gateway->settings->idle_s * 1000);
    job->next = gateway->jobs;
    gateway->jobs = job;
    return job;
}

static void forget_body(struct job *job)
{
    job->gateway->body_bytes -= job->body_counted;
    job->body_counted = 0;
    text_finish(&job->body);
}

void job_destroy(struct job *job)
{
    struct job **at = &job->gateway->jobs;
    while (*at && *at != job)
        at = &(*at)->next;
    if (*at)
        *at = job->next;
    job_end(job);
    forget_body(job);
    render_finish(job->render);
    generate_finish(job);
    order_finish(&job->order);
    text_finish(&job->out);
    free(job->wanted);
    free(job);
}

/* Several of the largest bodies together, however many connections there are. */
static size_t bodies_bound(const struct gateway *g)
{
    return 4 * g->settings->body_bytes;
}

bool job_take_body(struct job *job, const char *bytes, size_t n)
{
    struct gateway *g = job->gateway;
    struct api_error error = {0};
    if (job->state != JOB_READING || !job->route.post)
        return false; /* read, and nobody has asked for it: it takes nothing of the others' room */
    if (n > g->settings->body_bytes - job->body.length) {
        api_refuse(&error, 413, "body_too_large", NULL, "the body is larger than %llu bytes",
                   (unsigned long long)g->settings->body_bytes);
    } else if (n > bodies_bound(g) - g->body_bytes) {
        api_refuse(&error, 429, "bodies_too_large", NULL, "too much is being sent at once");
        error.retry_after_s = 1;
    } else {
        text_add(&job->body, bytes, n);
        g->body_bytes += n;
        job->body_counted += n;
        if (!job->body.failed)
            return true;
        api_refuse(&error, 500, NULL, NULL, "out of memory for the body");
    }
    forget_body(job);
    job_refuse(job, &error);
    return false;
}

static bool generates(const struct job *job)
{
    return job->route.endpoint == ENDPOINT_CHAT || job->route.endpoint == ENDPOINT_COMPLETIONS ||
           job->route.endpoint == ENDPOINT_INFILL;
}

static void take_rendering(struct job *job)
{
    if (!render_is_done(job->render))
        return;
    if (job->detached)
        job_end(job);
    else if (job->render->code)
        job_fail(job, job->render->code, job->render->why.text);
    else if (generates(job))
        generate_rendered(job);
    else
        ask_rendered(job);
}

void job_begin(struct job *job)
{
    if (job->state != JOB_READING)
        return;
    if (generates(job))
        generate_begin(job);
    else
        ask_begin(job);
    forget_body(job); /* the order has its own */
    if (job->state == JOB_RENDERING)
        take_rendering(job); /* by a template that is built in: at once */
}

void job_receive(struct job *job)
{
    Hill__Message *message;
    struct hill_why why;
    while (job->line) {
        int code = proto_receive(job->line, NULL, &message, &why);
        if (code == HILL_E_WOULD_BLOCK)
            return;
        if (code) {
            job_fail(job, HILL_E_IO, "the coordinator sent what is no message");
        } else {
            if (job->state == JOB_GENERATING)
                generate_take(job, message);
            else if (job->state == JOB_ASKING)
                ask_take(job, message);
            proto_free(message);
        }
    }
}

void job_tick(struct job *job, int64_t now_ns)
{
    if (job->state == JOB_RENDERING)
        take_rendering(job);
    else if (job->state == JOB_GENERATING)
        generate_tick(job, now_ns);
    else if (job->state == JOB_READING && now_ns > job->deadline_ns)
        job_end(job); /* libmicrohttpd answers nobody who still sends: the connection ends */
    else if (job->state == JOB_ASKING && now_ns > job->deadline_ns)
        job_fail(job, HILL_E_TIMEOUT, "the coordinator does not answer");
}

int64_t job_next_ns(const struct job *job)
{
    if (job->state == JOB_OVER)
        return CLOCK_NEVER;
    if (job->state == JOB_READING || job->state == JOB_ASKING)
        return job->deadline_ns;
    return clock_deadline_ms(250);
}

void job_detach(struct job *job)
{
    job->detached = true;
    job_uncount(job);
    if (job->state == JOB_GENERATING)
        generate_cancel(job);
    else if (job->state == JOB_RENDERING)
        render_stop(job->render);
    else
        job_end(job);
}

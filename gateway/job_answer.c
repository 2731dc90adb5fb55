/*
 * gateway/job_answer.c - how a job is answered, and asks. See job.h.
 */
#include "gateway/job.h"

#include "base/clock.h"
#include "gateway/tools.h"

void job_answer(struct job *job, int status, const char *content_type)
{
    job->status = status;
    job->content_type = content_type;
    job->changed = true;
}

void job_answer_whole(struct job *job, const char *content_type)
{
    job_answer(job, 200, content_type);
    job_end(job);
}

void job_uncount(struct job *job)
{
    if (job->generation.counted)
        job->gateway->generating--;
    job->generation.counted = false;
}

void job_end(struct job *job)
{
    job_uncount(job);
    upstream_hang_up(job->line);
    job->line = NULL;
    job->closed = job->changed = true;
    job->state = JOB_OVER;
}

void job_refuse(struct job *job, const struct api_error *error)
{
    job->gateway->meters.refused++;
    if (job->stream && job->status) { /* its head is out */
        struct text_buffer json = {0};
        api_error_write(&json, error);
        answer_error(&job->out, json.bytes, json.length);
        text_finish(&json);
    } else {
        job->stream = false;
        job->out.length = 0;
        api_error_write(&job->out, error);
        job->retry_after_s = error->retry_after_s;
        job_answer(job, error->status, "application/json");
    }
    job_end(job);
}

void job_fail(struct job *job, int code, const char *text)
{
    struct api_error error;
    api_refuse_as(&error, code, text);
    job_refuse(job, &error);
}

void job_refused(struct job *job, const Hill__Reply *reply)
{
    job_fail(job, reply->code == HILL_E_PROTOCOL ? HILL_E_INVALID : reply->code, reply->text);
}

void job_unavailable(struct job *job)
{
    struct api_error error;
    api_refuse(&error, 503, "pipeline_unavailable", NULL, "no pipeline answers in %s yet",
               job->gateway->upstream.run_dir);
    error.retry_after_s = 1;
    job_refuse(job, &error);
}

bool job_open_line(struct job *job)
{
    job->line = upstream_line(&job->gateway->upstream);
    if (!job->line)
        job_unavailable(job);
    return job->line != NULL;
}

bool job_sent(struct job *job, int code)
{
    if (code) {
        job_fail(job, code,
                 code == HILL_E_TOO_LONG
                     ? "the request cannot be sent to the pipeline: it is too large"
                     : hill_strerror(code));
        return false;
    }
    job->deadline_ns = clock_deadline_ms(job->gateway->settings->patience_s * 1000);
    return true;
}

bool job_call(struct job *job, const Hill__Message *message)
{
    return job_open_line(job) && job_sent(job, proto_send(job->line, NULL, message));
}

void job_render(struct job *job, const struct chat_format *format)
{
    const struct gateway *g = job->gateway;
    struct order *o = &job->order;
    struct api_error error;
    o->no_think &= chat_prompt_has_thinking(g->upstream.info->model_info);
    if (tools_tell(o, format, &error)) {
        job_refuse(job, &error);
        return;
    }
    job->state = JOB_RENDERING;
    job->render =
        render_start(g->upstream.info, o->no_think, o->messages, o->n_messages, g->render_fd);
    if (!job->render)
        job_fail(job, HILL_E_NOMEM, "out of memory for the conversation");
}

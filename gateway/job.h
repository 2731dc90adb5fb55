/*
 * gateway/job.h - one HTTP request, from its body to the last byte of its answer.
 *
 * What: reads the body, has a conversation rendered, asks the coordinator on a line of its own, and
 * writes the answer into `out`, from which http_server.c takes it; it knows nothing of sockets of
 * HTTP. States: READING -> (RENDERING ->) ASKING or GENERATING -> OVER. A client that goes away
 * makes a GENERATING job cancel its request; the job stays until the coordinator has said that the
 * request is over. Who calls it: http_server.c, gateway_loop.c. Concurrency: one thread. Failure:
 * an answer with the error in OpenAI's shape; in a stream that has begun, an event with it.
 */
#pragma once

#include "gateway/answers.h"
#include "gateway/gateway_settings.h"
#include "gateway/meters.h"
#include "gateway/order.h"
#include "gateway/reasoning.h"
#include "gateway/render.h"
#include "gateway/routes.h"
#include "gateway/stop_strings.h"
#include "gateway/timeline.h"
#include "gateway/tool_calls.h"
#include "gateway/upstream.h"
#include "proto/follower.h"

/* What all jobs share. */
struct gateway {
    const struct gateway_settings *settings;
    struct upstream upstream;
    struct meters meters;
    struct job *jobs;    /* all of them */
    unsigned generating; /* jobs in state GENERATING or RENDERING whose client is there */
    size_t body_bytes;   /* of all bodies that are here */
    int render_fd;       /* an eventfd: a thread has rendered something */
};

enum job_state { JOB_READING, JOB_RENDERING, JOB_ASKING, JOB_GENERATING, JOB_OVER };

/* What its client may see of how it came about (job_looks.c). */
enum looks_state { LOOKS_NONE, LOOKS_WATCHING, LOOKS_ENDING, LOOKS_OVER };
struct looks {
    enum looks_state state; /* of the timeline's events */
    uint32_t serial, expected, heard;
    uint32_t unanswered; /* TraceRequests, by the coordinator */
    int64_t since_ns, deadline_ns;
    size_t since_tokens;
    uint32_t sequence;
    struct timeline timeline;
    struct text_buffer json; /* members of the answer */
};

/* A request at the coordinator, and its answer so far. */
struct generation {
    struct answer_head head;
    struct answer_figures figures;
    struct stop_matcher stops;
    struct reasoning_reader thoughts; /* of a chat's reasoning */
    struct call_reader reader;        /* of calls, in a chat that has tools */
    struct answer_parts parts;        /* what is certain and not in the answer yet */
    struct text_buffer sure; /* what the stop strings have let go, on its way to the readers */
    struct text_buffer said; /* what is no reasoning, on its way to the reader of calls */
    struct logprobs logprobs;
    struct follower follower;
    uint64_t accepted; /* the number that the coordinator gave last; 0: none yet */
    bool counted;      /* in gateway.generating */
    bool cancelling;
    int64_t begun_ns, token_ns; /* token_ns: of the newest; 0: none yet */
    struct looks looks;
    const char *finish; /* the Summary has come, and what is to be seen has not yet; else NULL */
};

struct job {
    struct job *next;
    struct gateway *gateway;
    struct route route;
    char *wanted; /* of /v1/models/NAME; owned */
    int key;      /* which of the keys asks; -1: none is wanted */
    enum job_state state;
    uint64_t request; /* the coordinator's number for it, as all logs have it; 0: none yet */
    struct text_buffer body;
    size_t body_counted; /* of gateway.body_bytes */
    /* the answer */
    int status; /* HTTP; 0: not known yet */
    const char *content_type;
    unsigned retry_after_s;
    struct text_buffer out;
    bool stream;   /* out may be taken before it is closed */
    bool closed;   /* nothing more comes */
    bool changed;  /* out, status or closed, since http_server.c looked */
    bool detached; /* the client is gone, or has its answer */
    bool orphan;   /* no connection has it any more */
    /* how it comes about */
    void *line; /* to the coordinator; NULL: none */
    int64_t deadline_ns, out_ns;
    struct order order;
    struct render *render;
    struct generation generation;
};

/* NULL: out of memory. */
struct job *job_create(struct gateway *gateway);
/* Also out of gateway->jobs; only one that is over. */
void job_destroy(struct job *job);

/* A piece of the body; false: it is not kept (larger than allowed, or of a request without one). */
bool job_take_body(struct job *job, const char *bytes, size_t n);
/* The body is whole. */
void job_begin(struct job *job);
/* Its line has something; its rendering is done; time has passed. */
void job_receive(struct job *job);
void job_tick(struct job *job, int64_t now_ns);
int64_t job_next_ns(const struct job *job);
/* Its client is gone, or has the whole answer. */
void job_detach(struct job *job);

/* Answer with an error. */
void job_refuse(struct job *job, const struct api_error *error);

/* ---- parts of it: job_answer.c ---- */
void job_answer(struct job *job, int status, const char *content_type);
void job_answer_whole(struct job *job, const char *content_type); /* 200, and it is over */
void job_fail(struct job *job, int code, const char *text); /* a pipeline's code (base/error.h) */
/* The pipeline's Reply: a message that it refused (HILL_E_PROTOCOL) is the request's mistake. */
void job_refused(struct job *job, const Hill__Reply *reply);
void job_unavailable(struct job *job); /* there is no pipeline yet */
/* A line of its own; what sending on it gave; both. False: it is answered. */
bool job_open_line(struct job *job);
bool job_sent(struct job *job, int code);
bool job_call(struct job *job, const Hill__Message *message);
/* Tools are told of in the messages, which are rendered; or it is answered. */
void job_render(struct job *job, const struct chat_format *format);
void job_end(struct job *job);     /* OVER: hangs up */
void job_uncount(struct job *job); /* it is none of gateway.generating any more */

/* ---- job_ask.c: what is answered from one message ---- */
void ask_begin(struct job *job);
void ask_take(struct job *job, const Hill__Message *message);
void ask_rendered(struct job *job); /* of /apply-template */

/* ---- job_looks.c ---- */
void looks_on_token(struct job *job, int64_t now_ns);
void looks_stop(struct job *job); /* no more events are wanted */
void looks_take(struct job *job, const Hill__TraceAnswer *answer);
bool looks_refused(struct job *job, const Hill__Reply *reply); /* is it about these? */
void looks_lost(struct job *job);                 /* the coordinator that was asked is gone */
bool looks_wait(struct job *job, int64_t now_ns); /* the answer is over: are events to come? */
void looks_keep(struct job *job, const Hill__Summary *summary);
void looks_write(struct job *job); /* into looks.json */
void looks_finish(struct job *job);

/* ---- job_generate.c ---- */
void generate_begin(struct job *job);
void generate_rendered(struct job *job);
void generate_take(struct job *job, const Hill__Message *message);
void generate_tick(struct job *job, int64_t now_ns);
void generate_cancel(struct job *job);
void generate_finish(struct job *job); /* frees */

/*
 * coordinator/pipeline_internal.h - what the parts of the pipeline share; included by this folder
 * alone.
 *
 * Parts: pipeline.c (sockets, loop, timers, end), epoch.c (segments, Configure, starting and ending
 * workers), serve_workers.c and serve_clients.c (messages), serve_profile.c (beta), requests.c
 * (attempts, streaming, summaries). Rule: a function that may remove a request says so; its caller
 * does not touch the request afterwards.
 */
#ifndef HILL_COORDINATOR_PIPELINE_INTERNAL_H
#define HILL_COORDINATOR_PIPELINE_INTERNAL_H

#include "coordinator/pipeline.h"
#include "coordinator/profile.h"
#include "coordinator/request_book.h"
#include "coordinator/worker_table.h"

/* Messages handled of one socket before the others get their turn. */
#define PIPELINE_BURST 256

enum pipeline_change { CHANGE_NONE, CHANGE_ATTACH, CHANGE_DETACH, CHANGE_UNDO };

struct pipeline {
    struct settings *settings;
    struct run_folder *folder;
    struct worker_table workers;
    struct request_book book;
    void *context, *worker_socket, *heartbeat_socket, *control_socket;
    int signal_fd, ready_fd;
    int64_t started_ns;
    int64_t reap_at_ns; /* CLOCK_NEVER: no child has ended */
    uint32_t epoch;
    bool epoch_exists;  /* its segments have been created */
    bool epoch_delayed; /* no room for new segments until the workers let go of the old ones */
    bool announced;     /* was READY once */
    enum pipeline_change change; /* of the drive, under way */
    struct proto_address change_client;
    int change_code; /* UNDO: what the client is told when the pipeline is ready again */
    char change_text[512];
    uint64_t malformed;
    uint64_t model_identity; /* 0: not asked for yet */
    struct {
        struct csd_model_use before, last; /* of the agents that are gone; as this one said last */
        uint32_t changes;                  /* of the model by clients */
    } csd_model;
    struct {
        bool have;                   /* measured, now or at an earlier start */
        bool asked, late;            /* the scorer is at it; for longer than the pipeline waits */
        int64_t deadline_ns;         /* of what was asked */
        uint32_t tries;              /* without an answer */
        struct proto_address client; /* that asked; none: it was the start */
        char cpu[256];               /* its name; empty: not asked for yet */
        char asked_for[PROFILE_FINGERPRINT_BYTES]; /* measured, looked up or tried last */
        struct profile values;
        double alpha_c, alpha_s; /* share of each tier that a query uploads */
        /* as the last queries had it: seconds a byte, and shares; empty: as measured */
        struct balance_window score_hot, score_cold, copy_hot, fetch_cold, share_hot, share_cold;
        double beta_measured;      /* Eq. 4 of the values */
        double beta, beta_bounded; /* in force, without and with M_c <= M_0 */
    } profile;
    Hill__Message *live; /* the scorer's last heartbeat with statistics, owned; NULL: none yet */
    struct proto_address trace_client; /* who watches the stages */
    int64_t trace_until_ns;            /* it has the watch to itself so long after it last asked */
    bool ending;
    int end_code;
    struct hill_why end_why;
};

/* ---- pipeline.c ---- */
/* End in order: requests are told, workers stopped one after the other. code 0: as asked for; the
 * first call counts. */
void pipeline_end(struct pipeline *p, int code, const char *text);

/* ---- epoch.c ---- */
/* Remove the epoch's segments and create the next one's; survivors are told. Interrupts the running
 * requests (which may remove them). A failure ends the pipeline. */
void epoch_begin(struct pipeline *p, const char *reason);
void epoch_remove_segments(struct pipeline *p);
void epoch_configure(struct pipeline *p, enum worker w);
void worker_start(struct pipeline *p, enum worker w);
void worker_terminate(struct pipeline *p, enum worker w, const char *reason);
/* After SIGCHLD: take note of every child that has ended. */
void workers_reap(struct pipeline *p);
/* The drive: answer the client when an attach or detach is through (code 0) or has failed. */
void change_finish(struct pipeline *p, int code, const char *text);
/* A newly attached agent cannot work: detach again; the client is told why when the others are
 * ready again. */
void change_attach_failed(struct pipeline *p, int code, const char *text);

/* ---- serve_workers.c, serve_clients.c: take what has arrived ---- */
void serve_workers(struct pipeline *p);
void serve_heartbeats(struct pipeline *p);
void serve_clients(struct pipeline *p);
/* May a request be taken now? And take it: into the queue, Accepted to its client; save_path: where
 * its session goes at the end, or empty. On failure the request is destroyed. */
int request_room(struct pipeline *p, struct hill_why *why);
int request_accept(struct pipeline *p, const struct proto_address *from, struct request *r,
                   const char *save_path, struct hill_why *why);
/* Send to a client; a Reply with code and text. */
int client_reply(struct pipeline *p, const struct proto_address *to, int code, const char *text);
int worker_send(struct pipeline *p, enum worker w, const Hill__Message *message);

/* ---- serve_csd_model.c ---- */
void csd_model_take_change(struct pipeline *p, const struct proto_address *from,
                           const Hill__CsdModelChange *change);
/* An agent says Hello: another process, which counts from 0. */
void csd_model_new_agent(struct pipeline *p);
void csd_model_take_counters(struct pipeline *p, const Hill__CsdModelCounters *counters);
/* Of the modelled drive since the pipeline started. */
struct csd_model_use csd_model_used(const struct pipeline *p);
/* The model in force, and what was counted since then. */
void csd_model_show(const struct pipeline *p, const struct csd_model_use *since,
                    Hill__CsdModel *model, Hill__CsdModelCounters *counters);

/* ---- serve_sessions.c ---- */
struct session_terms;
void session_take_save(struct pipeline *p, const struct proto_address *from,
                       const Hill__SaveSession *order);
void session_take_restore(struct pipeline *p, const struct proto_address *from,
                          const Hill__RestoreSession *order);
void session_on_saved(struct pipeline *p, struct request *r, const Hill__Saved *saved);
/* A save that was ordered will not come: its client is told. */
void session_save_lost(struct pipeline *p, struct request *r, const char *reason);
/* A worker has died: the same, and what a killed one left of the file is removed. */
void session_save_interrupted(struct pipeline *p, struct request *r);
/* out points into terms and at path. */
void session_to_wire(struct pipeline *p, const struct request *r, const char *path,
                     struct session_terms *terms, Hill__SessionFile *out);

/* ---- serve_trace.c: stage events, from the workers to the client that watches ---- */
void trace_ask(struct pipeline *p, const struct proto_address *from,
               const Hill__TraceRequest *request);
void trace_pass_on(struct pipeline *p, const Hill__Message *message);

/* ---- serve_profile.c ---- */
struct profile_wire {
    Hill__Profile profile;
    Hill__Rates rates, spread;
};
/* With all workers ready: measures, when --beta auto wants to know and no request runs. False: not
 * yet, nothing is to be started. */
bool profile_tick(struct pipeline *p, int64_t now_ns);
int64_t profile_next_ns(const struct pipeline *p);
/* serve_model.c */
void model_take_info_request(struct pipeline *p, const struct proto_address *from);
/* The first token of a template's text that can end an answer; TOKEN_NONE: none. */
uint32_t model_answer_end(const struct tokenizer *tokenizer, const char *text, uint64_t bytes);

void profile_take_request(struct pipeline *p, const struct proto_address *from);
void profile_take_result(struct pipeline *p, const Hill__ProfileResult *result);
/* How long the stages of the last queries took, and what they uploaded: beta follows. */
void profile_take_stages(struct pipeline *p, const Hill__StageTimes *times);
/* The epoch ends: what was asked will not be answered. */
void profile_interrupt(struct pipeline *p);
/* What is told to the scorer; M_0 bounds it there. */
double profile_beta(const struct pipeline *p);
/* The same within M_0, of a full context. */
double profile_beta_effective(const struct pipeline *p);
/* NULL: nothing is measured. */
Hill__Profile *profile_show(const struct pipeline *p, struct profile_wire *wire);

/* ---- requests.c ---- */
/* When all workers are ready: send again what was interrupted, and what waits, in order (may remove
 * requests). */
void requests_start(struct pipeline *p, int64_t now_ns);
/* Deadlines (may remove requests); when the next one falls due. */
void requests_tick(struct pipeline *p, int64_t now_ns);
int64_t requests_next_ns(const struct pipeline *p);
/* The epoch ends under the running requests (may remove them). */
void requests_interrupt(struct pipeline *p);
void requests_end_all(struct pipeline *p, Hill__FinishReason finish, int code, const char *text);
/* Each may remove the request. */
void request_cancel(struct pipeline *p, struct request *r);
void request_on_token(struct pipeline *p, struct request *r, const Hill__Token *token);
void request_on_progress(struct pipeline *p, struct request *r, const Hill__Progress *progress);
void request_on_done(struct pipeline *p, struct request *r,
                     Hill__Message *message); /* takes the message */
/* Send to the request's client; notes when it is gone. */
void request_send(struct pipeline *p, struct request *r, const Hill__Message *message);
/* How often the supervisor script started this coordinator again. */
uint32_t coordinator_restarts(void);

#endif

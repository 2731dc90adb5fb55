/*
 * coordinator/service.h - what clients get: requests, sessions, status, the profile, the trace, the
 * device model.
 *
 * What: takes what clients ask for and what workers say of requests, keeps the requests (over
 * workers' deaths), and answers. service.c holds the one table of {message, sender, handler}; its
 * parts, each on those before it: service_trace.c, service_csd_model.c, service_profile.c (beta),
 * service_saves.c, service_log.c (token logs), service_prefix.c, service_stream.c (text),
 * service_requests.c (attempts, summaries), service_follow.c (requests of a coordinator that died,
 * clients that come back), service_model.c (what a client that renders chats asks),
 * service_intake.c (generate, cancel), service_restore.c, service_status.c. The workers are the
 * supervisor's; it calls back through its hooks. Rule: a function that may remove a request says
 * so; its caller does not touch the request afterwards. Who calls it: pipeline.c the first section;
 * the parts the rest. Concurrency: one thread. Failure: a Reply or a Summary with a code and one
 * line; the pipeline goes on.
 */
#pragma once

#include "coordinator/profile.h"
#include "coordinator/request_book.h"
#include "coordinator/supervisor.h"

/* A function (void *owner, struct arrival *a) below is the handler of one message, in the table of
 * service.c; owner is the service. */

#define TRACE_TURNS 16u /* of a sequence: who watches the stages looks five times a second */

/* Whose a sequence is and has been: a ring. */
struct trace_turns {
    struct {
        uint64_t request; /* 0: nobody's */
        int64_t since_ns; /* above that of the turn before */
    } of[TRACE_TURNS];
    uint64_t n; /* all so far */
};

struct service {
    struct settings *settings;
    struct router *router;
    struct supervisor *supervisor;
    struct request_book book;
    struct prefix_store prefixes; /* of requests that are over */
    int64_t started_ns;
    uint64_t model_identity; /* 0: not asked for yet */
    struct {
        Hill__CsdModelCounters before;                  /* of the agents that are gone */
        Hill__CsdModelCounters last[LAYOUT_DRIVES_MAX]; /* as each drive's has said */
        uint32_t changes;                               /* of the model by clients */
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
        double beta, beta_bounded; /* Eq. 4, followed, without and with M_c <= M_0 */
        double host_scores;        /* of the same rates; 0: M_0 holds no digests of cold tokens */
        bool all_hot;              /* in force instead: the drive's part would not pay */
    } profile;
    struct proto_address trace_client; /* who watches the stages */
    int64_t trace_until_ns;            /* it has the watch to itself so long after it last asked */
    uint32_t trace_serial, trace_owed; /* the workers' answers to the newest request */
    bool trace_ending;                 /* that request switches it off */
    struct trace_turns turns[REQUEST_PARALLEL_MAX];
};

/* ---- service.c ---- */
/* Registers its handlers; hooks: what the supervisor is opened with. */
void service_open(struct service *sv, struct settings *settings, struct router *router,
                  struct supervisor *supervisor, struct supervisor_hooks *hooks);
void service_close(struct service *sv); /* safe on a zeroed struct */
/* Deadlines; with all workers ready: measures where that is due, else starts what waits. True: the
 * pipeline is ready and nothing is being measured. */
bool service_tick(struct service *sv, int64_t now_ns);
int64_t service_next_ns(const struct service *sv); /* when it has something to do by itself */

/* ---- service_trace.c: stage events, from the workers to the client that watches ---- */
/* A client begins, goes on with or ends the watch; the workers' events go to it. */
void trace_ask(void *owner, struct arrival *a);
void trace_pass_on(void *owner, struct arrival *a);
/* From now on a sequence is this request's; 0: nobody's. */
void trace_note_turn(struct service *sv, uint32_t sequence, uint64_t request);

/* ---- service_csd_model.c: the device model ---- */
/* A client changes the model of a drive; an agent says what was counted. */
void csd_model_take_change(void *owner, struct arrival *a);
void csd_model_take_counters(void *owner, struct arrival *a);
/* An agent says Hello: another process, which counts from 0. */
void csd_model_new_agent(struct service *sv, uint32_t drive);
/* Of the modelled drive since the pipeline started. */
Hill__CsdModelCounters csd_model_used(const struct service *sv);
/* The model in force, and what was counted since then. */
void csd_model_show(const struct service *sv, const Hill__CsdModelCounters *since,
                    Hill__CsdModel *model, Hill__CsdModelCounters *counters);

/* ---- service_profile.c ---- */
struct profile_wire {
    Hill__Profile profile;
    Hill__Rates rates, spread;
};
/* A client wants both sides measured; the scorer has measured them. */
void profile_take_request(void *owner, struct arrival *a);
void profile_take_result(void *owner, struct arrival *a);
/* How long the stages of the last queries took, and what they uploaded: beta follows. */
void profile_take_stages(void *owner, struct arrival *a);
/* With all workers ready: measures, when --beta auto wants to know and no request runs. False: not
 * yet, nothing is to be started. */
bool profile_tick(struct service *sv, int64_t now_ns);
int64_t profile_next_ns(const struct service *sv); /* when profile_tick is to be called again */
/* The epoch ends: what was asked will not be answered. */
void profile_interrupt(struct service *sv);
/* What is told to the scorer; M_0 bounds it there. */
double profile_beta(const struct service *sv);
/* host_scores of struct epoch_settings. */
double profile_host_scores(const struct service *sv);
/* The same within M_0, of a full context. */
double profile_beta_effective(const struct service *sv);
/* NULL: nothing is measured. */
Hill__Profile *profile_show(const struct service *sv, struct profile_wire *wire);

/* ---- service_saves.c ---- */
struct session_terms;
/* A client wants a request saved; the GPU worker has saved it, or not. */
void session_take_save(void *owner, struct arrival *a);
void session_on_saved(void *owner, struct arrival *a);
/* A save that was ordered will not come: its client is told. */
void session_save_lost(struct service *sv, struct request *r, const char *reason);
/* A worker has died: the same, and what a killed one left of the file is removed. */
void session_save_interrupted(struct service *sv, struct request *r);
/* An attempt to restore the request again has failed. Had one before it saved the whole answer?
 * Then its Done is that of the answer, without statistics. */
bool session_take_saved_end(struct service *sv, struct request *r);
/* What a file that is saved under this selection will have to be restored under. */
void session_fill_terms(struct service *sv, const struct kv_selection_settings *selection,
                        struct session_terms *out);
/* out points into terms and at path. */
void session_to_wire(struct service *sv, const struct request *r, const char *path,
                     struct session_terms *terms, Hill__SessionFile *out);

/* ---- service_log.c ---- */
#define REQUEST_LOG_NAME_BYTES 40u
/* The folder of the token logs; a request's file in it. */
void request_logs_folder(const struct service *sv, char out[HILL_PATH_BYTES + 16]);
void request_log_name(char out[REQUEST_LOG_NAME_BYTES], uint64_t run_id, uint64_t id);
/* When a request was accepted, by this boot's clock. */
int64_t request_accepted_ns(int64_t accepted_us);
/* What the GPU worker is told of it, but for ids and stop tokens; out points into the others. */
void request_fill_prefill(struct service *sv, struct request *r, Hill__Prefill *out,
                          Hill__Selection *selection, struct session_terms *terms,
                          Hill__SessionFile *restore, Hill__SessionFile *save);
/* A request is accepted: its log, where it has a key. */
void request_log_begin(struct service *sv, struct request *r);
/* Token `index` of the request, before its client gets it. */
void request_log_token(struct request *r, uint32_t index, double logprob);
/* It goes on over decoded entries: its tokens cannot be made again without them. */
void request_log_decoded(struct request *r);
/* Its first token came of important tokens alone: attempts after it are to do so again. */
void request_log_selected(struct request *r);
/* It has a slot, and is about to be sent. */
void request_log_start(struct request *r);
/* The GPU worker may make tokens beyond these. */
void request_logs_tell_taken(struct service *sv);
/* Flushes the logs that are due (--log-fsync); when the next one is. */
void request_logs_flush(struct service *sv, int64_t now_ns);
int64_t request_logs_flush_ns(const struct service *sv);

/* ---- service_prefix.c ---- */
/* Can a request go on with entries that are there, as this pipeline is set up? */
bool requests_can_go_on(const struct service *sv);
/* And are entries all that they need for it? Then others may, and drives come and go beneath
 * them. */
bool requests_are_entries(const struct service *sv);
/* May it take over what others have left, and leave its own? */
bool request_keeps(const struct service *sv, const struct request *r);
/* Its slot and its prefix: when it has been given a slot and before it is sent. */
void request_take_prefix(struct service *sv, struct request *r);
/* It was refused, and the scorer has forgotten nothing for it: what its slot held is kept again. */
void request_return_prefix(struct service *sv, struct request *r);
/* Of the prompt of one that goes on: known to be plain (prefix/README.md). */
uint32_t request_resume_plain(const struct request *r);
bool request_fill_reuse(const struct request *r, Hill__Reuse *out); /* false: nothing is reused */
/* Tokens of its prompt that were not computed. */
uint32_t request_reused(const struct request *r);
/* Of these: decoded, or computed over decoded ones. */
uint32_t request_reused_decoded(const struct request *r);
/* It is over, and what it leaves can be taken; finished: by itself. */
void request_leave_prefix(struct service *sv, const struct request *r, bool finished);
/* The kept request that a client names; HILL_E_INVALID, HILL_E_UNSUPPORTED with the reason. */
int prefix_find_named(const struct service *sv, uint64_t id, const struct prefix_entry **out,
                      struct hill_why *why);

/* ---- service_stream.c ---- */
/* Another computation of its prompt has other bits (docs/decisions/prefix.md). */
#define REQUEST_DECODED_LOST                                                                       \
    "it went on with an earlier answer's entries, which were lost with a process: ask again"
/* So does one over other tokens of its prefix (docs/decisions/important-prefix.md). */
#define REQUEST_SELECTED_LOST                                                                      \
    "its first token came of important tokens of a stored prefix alone, and that could not be "    \
    "repeated after a process was lost: ask again"
#define TEXT_NO_TOKEN UINT32_MAX /* Text.token: more text of the token before, or its end */
/* Send to the request's client; notes when it is gone. */
void request_send(struct service *sv, struct request *r, const Hill__Message *message);
/* serial: of the Follow that it answers, or 0. */
void request_send_accepted(struct service *sv, struct request *r, uint32_t serial);
/* A piece of text, with the token whose it is (TEXT_NO_TOKEN: none). */
void request_send_text(struct service *sv, struct request *r, const char *text, uint64_t length,
                       uint32_t token, double logprob);
/* A token that the client has not got; HILL_E_NOMEM. */
int request_send_token(struct service *sv, struct request *r, uint32_t token, double logprob);
/* Its text begins. HILL_E_NOMEM. */
int request_begin_text(struct request *r, const struct tokenizer *tokenizer);
/* To a client that has the first n_there tokens and bytes_there of the text: the rest so far.
 * HILL_E_NOMEM; HILL_E_PROTOCOL: it has less text than these tokens make. */
int request_send_again(struct service *sv, struct request *r, uint32_t n_there,
                       uint64_t bytes_there);

/* ---- service_passages.c ---- */
/* Where its client wants them: summary->passages, which is to be freed, and so is what is returned.
 * NULL: there are none. */
char *request_fill_passages(const struct service *sv, const struct request *r,
                            Hill__Summary *summary);

/* ---- service_requests.c ---- */
/* Why a token with this code of request_take_token ends its request. */
const char *request_bad_token(const struct request *r, int code);
/* What workers say of a request; each may remove it. */
void request_on_token(void *owner, struct arrival *a);
void request_on_progress(void *owner, struct arrival *a);
void request_on_resumed(void *owner, struct arrival *a);
void request_on_done(void *owner, struct arrival *a);
void request_on_stats(void *owner, struct arrival *a);
void request_on_failure(void *owner, struct arrival *a);
/* When all workers are ready: send again what was interrupted, and what waits, in order (may remove
 * requests). */
void requests_start(struct service *sv, int64_t now_ns);
/* Deadlines (may remove requests); when the next one falls due. */
void requests_tick(struct service *sv, int64_t now_ns);
int64_t requests_next_ns(const struct service *sv);
/* The epoch has ended: can requests go on with what lies in the tiers? */
bool requests_keep_tiers(const struct service *sv);
/* The epoch ends under the running requests (may remove them). */
void requests_interrupt(struct service *sv, bool counts);
/* Does a running request still read its prompt, or could not go on yet in another epoch? Or has one
 * of a killed coordinator, whose entries are there, not come back yet? */
bool requests_reading(const struct service *sv);
/* Every request gets its Summary with this, and is removed. */
void requests_end_all(struct service *sv, Hill__FinishReason finish, int code, const char *text);
/* May remove the request. */
void request_cancel(struct service *sv, struct request *r);
/* It fails with this line, and is removed. */
void request_fail(struct service *sv, struct request *r, int code, const char *text);
/* Removed with its log, without a word: nobody waits for it any more. */
void request_drop(struct service *sv, struct request *r);

/* ---- service_follow.c ---- */
/* What a coordinator that was killed in this run folder has left: AWAITED, each. Before the first
 * epoch: whether it keeps the tiers depends on them. */
void requests_take_over(struct service *sv);
/* A client comes back to its request; it has the Summary, and the log goes. */
void follow_take(void *owner, struct arrival *a);
void delivered_take(void *owner, struct arrival *a);
/* A client has sent the order of a request that is here already: it follows it. False: it is new.
 */
bool follow_instead(struct service *sv, const struct proto_address *from, uint64_t key);

/* ---- service_model.c ---- */
/* What the model is (template, vocabulary); a text's tokens; tokens' text. */
void model_take_info_request(void *owner, struct arrival *a);
void model_take_tokenize(void *owner, struct arrival *a);
void model_take_detokenize(void *owner, struct arrival *a);
/* The first token of a template's text that can end an answer; TOKEN_NONE: none. */
uint32_t model_answer_end(const struct tokenizer *tokenizer, const char *text, uint64_t bytes);

/* ---- service_intake.c ---- */
/* A client's Generate, or Cancel. */
void request_take_generate(void *owner, struct arrival *a);
void request_take_cancel(void *owner, struct arrival *a);
/* A prompt as a client has sent it: ids, else pieces, else a text. */
struct prompt_sent {
    ProtobufCBinaryData text;
    Hill__PromptPiece **pieces;
    size_t n_pieces;
    const uint32_t *ids;
    size_t n_ids;
    bool goes_on; /* after other tokens: nothing is put before it */
};
/* Its tokens, malloc'ed. HILL_E_TOO_LONG at once for so many bytes that no tokens of ctx_tokens
 * make them; else its tokens may be more than these. */
int prompt_encode(const struct tokenizer *tokenizer, const struct prompt_sent *sent,
                  uint32_t ctx_tokens, uint32_t **tokens, uint64_t *count, struct hill_why *why);
/* May a request be taken now? And take it: into the queue, Accepted to its client; save_path: where
 * its session goes at the end, or empty; key: of Generate. On failure the request is destroyed. */
int request_room(struct service *sv, struct hill_why *why);
int request_accept(struct service *sv, const struct proto_address *from, struct request *r,
                   const char *save_path, uint64_t key, struct hill_why *why);

/* ---- service_restore.c, service_status.c ---- */
/* A client wants a saved session to go on; or the status. */
void session_take_restore(void *owner, struct arrival *a);
void status_take_request(void *owner, struct arrival *a);

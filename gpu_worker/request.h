/*
 * gpu_worker/request.h - one request's life: it arrives, waits for its turn to prefill, has its
 * prompt computed unit by unit, joins the decode steps, ends.
 *
 * Every function does a bounded piece and returns; schedule.c calls them in turn. Ends: stop token,
 * length, cancel, error (all with SEQ_END, once SEQ_BEGIN is out, and Done), or silently with its
 * epoch (request_free): the coordinator sends it again. Functions that return int give an error
 * that ends the request, with the reason in why. Concurrency: one thread.
 */
#pragma once

#include <xxhash.h>

#include "gpu_worker/away.h"
#include "gpu_worker/mend.h"
#include "gpu_worker/past.h"
#include "gpu_worker/restore.h"
#include "gpu_worker/save.h"
#include "gpu_worker/selected.h"
#include "gpu_worker/step_times.h"
#include "gpu_worker/stored.h"
#include "gpu_worker/worker.h"

enum request_state {
    REQUEST_WAITING,   /* for the engine's prefill to be free */
    REQUEST_BEGINNING, /* SEQ_BEGIN is out, the scorer's answer is not here */
    REQUEST_FETCHING,  /* its first tokens' entries come from the prefix store (stored.h) */
    REQUEST_LOADING,   /* the prompt's tokens go to the device */
    REQUEST_PREFILL,   /* (layer, chunk) units */
    REQUEST_RESTORING, /* instead: a saved session's entries (restore.h) */
    REQUEST_RESTORED,  /* n_past tokens have their entries, and what follows is to be computed */
    REQUEST_FILLING,   /* its first token is out, and entries before it come (selected.h) */
    REQUEST_MENDING,   /* it goes on, once damaged entries are made again (mend.h) */
    REQUEST_DECODE,
};

struct request {
    struct worker *w;
    Hill__Message *message; /* the Prefill, owned */
    const Hill__Prefill *prefill;
    enum request_state state;
    uint64_t arrival;             /* requests prefill in this order */
    uint32_t sequence, step;      /* sequence slot; the newest step, 0: the prompt */
    uint32_t prompt, predict;     /* tokens: given; to be made at most */
    uint32_t *tokens;             /* [prompt + predict]: the sequence so far */
    uint32_t n_tokens, predicted; /* in tokens[]; of these, made by the model */
    uint32_t taken;               /* of the predicted: tokens that the coordinator has, or more */
    uint32_t resumed;             /* of the predicted: tokens made by an earlier attempt */
    uint32_t reused;              /* of the prompt: tokens with entries of earlier requests */
    bool cancelled;
    bool begun; /* SEQ_BEGIN is out: SEQ_END is owed */
    bool ready; /* the scorer has answered, with ready_status */
    int ready_status;
    uint32_t hot_offset, hot_entries; /* as SEQ_READY said */
    uint32_t kept_tokens, kept_step;  /* the same: kept of an earlier attempt; 0: nothing is */
    uint32_t kept_layer;              /* of a prompt: kept_tokens are this layer's */
    uint32_t replay_to;               /* the step up to which steps are made again; 0: none are */
    bool hash_late;                   /* the logits' hash is not known before resume->first_state */
    struct mend *mend;                /* damaged entries that are made again (mend.h), or NULL */
    struct engine_prompt prompt_kept; /* units of an earlier attempt; 0: none */
    uint32_t n_past;   /* tokens before those that are computed: their entries are there */
    struct past *past; /* their entries on the way to the device (past.h), or NULL */
    uint32_t loaded;   /* prefill: tokens given to the device */
    uint32_t units, unit, queued; /* prefill: units in all, the next to be read, those queued */
    uint32_t units_before, units_behind; /* of a session's entries; of the question behind them */
    struct sampler_settings sampling;
    struct json_answer json; /* where Sampling.json asks for it */
    XXH64_state_t *hash;
    int64_t started_ns, begun_ns, prompt_done_ns, token_ns, idle_ns, longest_gap_ns, progress_ns;
    int64_t token_idle_ns; /* idle_ns at the last token */
    struct step_times times;
    uint64_t upload_bytes;
    uint64_t weights_read, attended_bytes; /* by the steps it took part in; by its own attention */
    uint64_t link_bytes, link_ns;          /* what the modelled link carried */
    bool reads_hot;                        /* as SEQ_BEGIN said */
    bool declined;                         /* the scorer answers no known queries of it */
    Hill__FinishReason finish;
    /* sessions */
    uint32_t first_append;        /* entries of each layer's first APPEND */
    uint32_t first_prompt;        /* tokens that were given, before a session was saved or now */
    uint32_t session_entries;     /* of a restored session: tokens whose entries it has */
    struct session_file *session; /* being restored, or NULL */
    uint32_t restored_token;      /* the session's newest */
    struct save *save;            /* under way (save.h), or NULL */
    char *save_path;              /* of a Save message that is not answered yet, or NULL */
    uint8_t save_terms[PROTO_SESSION_TERMS_BYTES];
    /* the prefix store */
    struct stored *stored;              /* taking from it, or leaving in it, or NULL */
    uint32_t n_plain;                   /* of the prompt: prefilled over prefilled ones */
    uint32_t drive_tokens, left_chunks; /* of reused; what was left */
    double drive_ms, saved_ms;          /* what that took; computing them had taken */
    struct selected *selected;          /* over the important ones of them (selected.h), or NULL */
    bool whole_prefix; /* all of the prefix is loaded first, whatever was asked for */
    bool chose;        /* its first token came of important tokens alone */
    bool holds_chosen; /* its entries are these tokens' and its own, to its end (away.h) */
    uint32_t n_away;   /* tokens of its prefix that have none then */
    uint64_t loaded_bytes, loaded_entries, later_bytes; /* of the store: before that token, after */
    uint64_t cached_bytes, cached_gpu_bytes; /* of loaded_entries: not read; on the device */
    double probe_ms;                         /* finding what is important */
    /* left in the prefix store: the prompt's whole chunks; everything */
    bool left_prompt, left;
    bool over; /* its last token is out; what it owes (a save, the store) comes before Done */
    bool saved_at_end; /* its save at the end is done */
    int over_rc;       /* what became of that save */
    struct hill_why over_why;
};

/* A Prefill: takes a place, or is answered with Done. Owns the message. */
void request_arrive(struct worker *w, Hill__Message *message);
/* Marks it; schedule.c ends it. */
void request_cancel(struct worker *w, uint64_t request_id);

/* What the coordinator has of each. */
void request_note_taken(struct worker *w, const Hill__Taken *taken);
/* May it make another token? Has the coordinator all that it has made? */
static inline bool request_may_step(const struct request *r)
{
    uint32_t most = r->prefill->ahead_max;
    return !most || r->predicted <= r->taken || r->predicted - r->taken < most;
}

static inline bool request_is_heard(const struct request *r)
{
    return !r->prefill->ahead_max || r->predicted <= r->taken;
}

/* What the error of a session's file says: a disk that is gone is not this worker's device, one
 * that is late is not another worker. */
static inline int request_file_status(int status)
{
    return status == HILL_E_NODEV || status == HILL_E_TIMEOUT ? HILL_E_IO : status;
}

/* Is it within limits? SEQ_BEGIN to the scorer. */
int request_begin(struct request *r, struct hill_why *why);
/* A SEQ_READY of the sequence. */
void request_take_ready(struct worker *w, const struct record_seq_ready *record);
/* A record was malformed: whoever waits for SEQ_READY gets that for an answer. */
void request_spoil_ready(struct worker *w, int code);
/* When the scorer has answered: on to REQUEST_LOADING. */
int request_check_ready(struct request *r, struct hill_why *why);
/* Some of the prompt's tokens; after the last on to REQUEST_PREFILL. */
int request_load(struct request *r, struct hill_why *why);
/* The tokens from n_past on are to be computed: on to REQUEST_LOADING. */
int request_begin_prefill(struct request *r, uint32_t n_past, struct hill_why *why);
/* Until the current unit is computed. alone: the next one may be queued before, so that the device
 * never pauses; else decode steps run in between, also while the unit waits for its past. */
int request_await_unit(struct request *r, bool alone, struct hill_why *why);
bool request_computes_unit(const struct request *r); /* it is queued, or the last one is over */
/* The current unit's entries to the scorer while the next one computes; after the last one the
 * logits are in w->logits and the request is in REQUEST_DECODE, or REQUEST_FILLING. */
int request_append_unit(struct request *r, struct hill_why *why);

/* ---- request_records.c ---- */

/* Push a record of this request into the append ring; its cancel ends the wait for room. */
int request_push(struct request *r, uint32_t type, const void *record, uint32_t bytes,
                 struct hill_why *why);
/* Entries [n][entry] of tokens first .. first + n - 1 of a layer, to the scorer. */
int request_append_entries(struct request *r, uint32_t layer, uint32_t first, uint32_t n,
                           const void *entries, struct hill_why *why);
/* The next token, and the state of the logits' hash. */
void request_send_token(struct request *r, uint32_t token, double logprob);
/* Of its prompt or session: units done of r->units. */
void request_progress(struct request *r, uint32_t done);
struct record_header request_header(const struct request *r, uint32_t layer);
/* Does the scorer rank by what all its queries have attended to? Then it is told of those that it
 * has not seen: a MASS record of as many of `rest` tokens from `first` on as the ring takes, whose
 * n_tokens says how many; the caller fills it in. Given back by publishing, or not at all. */
bool request_weighs(const struct request *r);
int request_reserve_mass(struct request *r, uint32_t layer, uint32_t first, uint32_t rest,
                         struct record_mass **out, struct hill_why *why);
/* Asks the scorer for what *read names; header and numbers are filled in here. */
int request_push_read(struct request *r, uint32_t layer, struct record_read *read,
                      struct hill_why *why);
/* Entries that a READ of this request may ask for at most: so much staging is set aside. */
uint32_t request_read_max(const struct request *r);
uint32_t request_mass_records(const struct request *r, uint32_t n_tokens); /* of so many tokens */
void request_publish_mass(struct request *r, const struct record_mass *record);
int request_push_step_end(struct request *r, uint32_t n_tokens, struct hill_why *why);

/* ---- resume.c ---- */

/* What of an earlier attempt the scorer may take up: into the record. */
void resume_offer(struct request *r, struct record_seq_begin *begin);
/* It has: the request is where it was after that step. */
int resume_begin(struct request *r, struct hill_why *why);
/* A token was made: the logits' hash goes on, or is the one that was kept. */
int resume_hash(struct request *r, struct hill_why *why);
/* A request ends: where this attempt has not reached the newest token that the client has, the
 * logits' hash becomes that after this token. */
void resume_end_hash(struct request *r);
/* The prompt's first unit, or the one with which it goes on. */
int resume_prompt(struct request *r, struct hill_why *why);
/* How many of a unit's first entries the scorer has from an earlier attempt. */
uint32_t resume_passed(const struct request *r, const struct engine_unit *unit);
/* What a session that is saved later says of its first entries, where another attempt or request
 * has appended them. */
void request_note_beginning(struct request *r);
/* To the coordinator: it goes on after so many units of its prompt or session, of which some had
 * begun. */
void resume_tell(const struct request *r, uint32_t units, uint32_t repeated);
/* May it be in time to decode at once? Such requests begin before those with a prompt to
 * compute. */
bool resume_hopes(const struct request *r);

/* ---- request.c ---- */

/* Is a question read after the session's tokens? */
static inline bool request_asks_session(const struct request *r)
{
    return r->prefill->restore && r->prefill->question;
}

/* Of the prompt's tokens: the session's. */
static inline uint32_t request_session_tokens(const struct request *r)
{
    return r->prompt - r->prefill->question;
}

/* Tokens whose entries the prefill or the session brings: the newest of a session that simply goes
 * on is still to go through the layers. */
static inline uint32_t request_entries(const struct request *r)
{
    bool goes_on = r->prefill->restore && !r->prefill->from_prompt && !request_asks_session(r);
    return r->prompt - (goes_on ? 1 : 0);
}

/* Of a session's tokens those whose entries its file has: the newest is still to go through the
 * layers, but where it is the answer's first. */
static inline uint32_t request_session_entries(const struct request *r)
{
    return request_session_tokens(r) - (r->prefill->from_prompt ? 0 : 1);
}

/* The index of a token's entry among the sequence's, and how many entries as many tokens have:
 * where some stay away, of a token behind them. */
static inline uint32_t request_index(const struct request *r, uint32_t token)
{
    return token - r->n_away;
}

/* A token from the logits in w->logits, or the forced one and its log-probability in them. 1: the
 * request is at its end. */
int request_take_token(struct request *r, struct hill_why *why);
/* The first one after a restored prompt: the session's, or the forced one. */
int request_take_restored(struct request *r);

/* SEQ_END, Done with rc's reason, freed. */
void request_end(struct request *r, int rc, const char *text);
void request_free(struct request *r);

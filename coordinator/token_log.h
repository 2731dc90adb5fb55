/*
 * coordinator/token_log.h - a request on disk: its order and every token that it has made so far,
 * so that a coordinator that is killed loses neither.
 *
 * What: one append-only file a request. Layout, all numbers little endian:
 *     struct token_log_header
 *     records: struct token_log_record, then `bytes` of payload
 * The first record is ORDER: a packed RequestOrder (proto/hill.proto). TOKEN records follow in the
 * order of their index, a STARTED for each attempt, a RESTARTED for each coordinator that took the
 * request over, a DECODED when the request has gone on over entries that an earlier one had
 * decoded, and a SELECTED before a first token that came of important tokens of a stored prefix
 * alone. A record's checksum is the xxHash64 of its kind, its size and its payload, seeded with
 * that of the record before it (the first: with the header's), so that no record can be left out,
 * doubled or swapped.
 * A record is one write, made before the client gets the token.
 * Reading: what is behind the last whole record is cut off. A record that is not all there is a
 * torn tail, as a kill or a power cut leaves it; one that is all there and wrong is damage, and the
 * log ends before it. Without header or ORDER there is nothing to go on with: HILL_E_DAMAGED.
 * What survives: a write survives the process. It survives a power cut from the flush on that
 * flush_ms orders (--log-fsync).
 * Who calls it: the coordinator's service. Concurrency: one thread; a file is one log's. Failure:
 * codes with one line that names the file; a record that could not be written whole is taken back,
 * and what was there before stays readable.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/hash_state.h"
#include "proto/envelope.h"

#define TOKEN_LOG_MAGIC     UINT64_C(0x31474f4c4b544c48) /* "HLTKLOG1" */
#define TOKEN_LOG_VERSION   4u
#define TOKEN_LOG_BYTES_MAX (UINT64_C(1) << 31) /* a larger file is none of ours */

/* When what was written is flushed: milliseconds at most after it was written, or one of these. */
#define TOKEN_LOG_FLUSH_NEVER (-1) /* by the kernel, some time */
#define TOKEN_LOG_FLUSH_EACH  0    /* before the call returns */

struct token_log_header {
    uint64_t magic;
    uint32_t version, header_bytes;
    uint64_t run_id;   /* of the run folder (coordinator/run_folder.h) */
    uint64_t checksum; /* xxHash64 of all before it */
};

enum token_log_kind {
    TOKEN_LOG_ORDER = 1,
    TOKEN_LOG_TOKEN = 2,
    TOKEN_LOG_RESTARTED = 3,
    TOKEN_LOG_STARTED = 4,  /* struct token_log_start */
    TOKEN_LOG_DECODED = 5,  /* uint32_t: how many of them */
    TOKEN_LOG_SELECTED = 6, /* uint32_t: 0 */
};

struct token_log_record {
    uint32_t kind, bytes; /* of the payload */
    uint64_t checksum;
};

struct token_log_start {
    uint32_t sequence; /* the slot */
    uint32_t reserved;
    uint64_t attempt; /* of two logs with one slot the higher number had it last */
};

struct token_log_token {
    uint32_t index, token;
    double logprob;           /* as in Token (proto/hill.proto) */
    int64_t since_ns;         /* since the request was accepted */
    struct hash_state logits; /* of the hash over the logits after this token; bytes 0: unknown */
};

_Static_assert(sizeof(struct token_log_header) == 32, "file format");
_Static_assert(sizeof(struct token_log_record) == 16, "file format");
_Static_assert(sizeof(struct token_log_start) == 16, "file format");
_Static_assert(sizeof(struct token_log_token) == 128, "file format");

/* What a log holds; the caller gives it back with token_log_contents_finish. */
struct token_log_contents {
    Hill__Message *order;           /* body request_order, validated */
    struct token_log_token *tokens; /* [n_tokens], index i is at i */
    uint32_t n_tokens;
    uint32_t restarts;  /* coordinators that took it over so far */
    uint32_t fruitless; /* of these, since the last token */
    bool started;       /* it had the slot `sequence` last */
    uint32_t sequence;
    uint64_t attempt;    /* that had it; 0: not said */
    uint64_t torn_bytes; /* cut off behind the last whole record */
    bool damaged;        /* they were no torn tail */
    bool decoded;        /* there is a DECODED */
    bool selected;       /* there is a SELECTED */
};

struct token_log;

/* A new file, mode 0600, with the order (body request_order) in it. HILL_E_INVALID: it is there
 * already, or the order is too large. */
int token_log_create(struct token_log **out, const char *path, uint64_t run_id, int flush_ms,
                     const Hill__Message *order, struct hill_why *why);
/* Read it, cut off what is not whole, and go on with it: contents are those of before, RESTARTED is
 * written. HILL_E_DAMAGED: the file stays as it is. */
int token_log_open(struct token_log **out, const char *path, uint64_t run_id, int flush_ms,
                   struct token_log_contents *contents, struct hill_why *why);
void token_log_contents_finish(struct token_log_contents *contents); /* safe on zeros */

/* The next token. What could not be written ends the log: later tokens are no longer written; from
 * a flush that failed on they are no longer flushed. No failure is told twice. */
int token_log_append(struct token_log *log, const struct token_log_token *token, int64_t now_ns,
                     struct hill_why *why);

/* The request has taken over n decoded entries. */
int token_log_note_decoded(struct token_log *log, uint32_t n, struct hill_why *why);
/* Its first token, which is next, came of important tokens alone. */
int token_log_note_selected(struct token_log *log, struct hill_why *why);
/* It runs on this slot from now on, by this attempt. As token_log_append. */
int token_log_start(struct token_log *log, uint32_t sequence, uint64_t attempt,
                    struct hill_why *why);

/* Flush if that is due. When it will be; CLOCK_NEVER: nothing waits for it. */
int token_log_flush(struct token_log *log, int64_t now_ns, struct hill_why *why);
int64_t token_log_flush_ns(const struct token_log *log);

/* The file stays; it goes. NULL allowed. */
void token_log_close(struct token_log *log);
void token_log_remove(struct token_log *log);

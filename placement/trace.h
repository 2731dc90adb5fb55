/*
 * placement/trace.h - KV traces: which tokens each query selected, and where they were.
 *
 * What: the file that `--trace-kv FILE` makes and hill-kvtrace reads. A header, then one record per
 * (step, layer) of a request. All numbers little endian; a record's header has a checksum of its
 * own, so that a wrong length is told from a file that was cut short.
 *     struct trace_header (256 bytes)
 *     { struct trace_record (64 bytes), u32 words[n_selected], u16 scores[n_tokens] if
 *       TRACE_SCORES, zeroes to a multiple of 8 }...
 * A word is the position (24 bits) with its tags: TRACE_COLD when the entry was in the cold tier
 * (else hot), TRACE_GPU when the GPU still had a copy. Words ascend by position.
 * Who calls it: the scorer writes (one writer, one thread); hill-kvtrace, bench and tests read.
 * Concurrency: one thread per writer or file. Blocking: trace_query writes to the file when its
 * buffer of TRACE_BUFFER_BYTES is full. Failure: a writer that has failed stays failed; records
 * before the failure are whole. A damaged or foreign file: HILL_E_DAMAGED and one line that names
 * file and record; a file that ends inside a record is used up to there (trace_file_tail says so).
 */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "kv/geometry.h"

#define TRACE_MAGIC         "HILLKVT"
#define TRACE_VERSION       2u
#define TRACE_RECORD_MAGIC  0x4352544bu /* "KTRC" */
#define TRACE_BUFFER_BYTES  (1u << 20)
#define TRACE_POSITION_MASK 0x00ffffffu
#define TRACE_COLD          0x40000000u
#define TRACE_GPU           0x80000000u

_Static_assert(KV_MAX_TOKENS - 1 <= TRACE_POSITION_MASK, "a position fits its bits");

enum trace_flags { TRACE_SCORES = 1 };

/* What was traced; what of it is not known is 0. */
struct trace_settings {
    struct kv_geometry geometry;
    uint32_t sinks, window;
    uint32_t budget; /* 0: alpha */
    uint32_t ctx_tokens, reserved;
    double alpha, beta;
    char model[96]; /* a name for people, NUL-terminated */
};

struct trace_header {
    char magic[8];
    uint32_t version, header_bytes;
    struct trace_settings settings;
    uint8_t reserved[80];
    uint64_t checksum; /* XXH64 of what precedes it */
};

struct trace_record {
    uint64_t header_checksum;  /* XXH64 of the header's other bytes */
    uint64_t payload_checksum; /* XXH64 of what follows the header, padding included */
    uint32_t magic;
    uint32_t flags;   /* enum trace_flags */
    uint64_t request; /* of an attempt: one that begins anew makes its queries again */
    uint32_t sequence, step, layer;
    uint32_t n_tokens;   /* the query covers positions 0 .. n_tokens - 1 */
    uint32_t n_selected; /* at most n_tokens */
    uint32_t payload_bytes;
    uint32_t reserved[2];
};

_Static_assert(sizeof(struct trace_settings) == 152, "trace file layout");
_Static_assert(sizeof(struct trace_header) == 256, "trace file layout");
_Static_assert(sizeof(struct trace_record) == 64, "trace file layout");

/* ---- writing ------------------------------------------------------------------------------ */

struct trace_query {
    uint64_t request;
    uint32_t sequence, step, layer;
    uint32_t n_tokens, n_selected;
    const uint32_t *words;  /* [n_selected], ascending by position */
    const uint16_t *scores; /* [n_tokens] by position; NULL: not recorded */
};

struct trace_writer;

/* Create the file, or empty one that is there. HILL_E_INVALID: the geometry is none. Else the codes
 * of hill_from_errno. */
int trace_open(struct trace_writer **out, const char *path, const struct trace_settings *settings,
               struct hill_why *why);

/* The same, but nothing that is there is touched: PATH.2, PATH.3 and so on are tried (HILL_E_IO:
 * up to PATH.9999 all are there). name: what was created. */
#define TRACE_NAME_BYTES 4160
int trace_open_new(struct trace_writer **out, const char *path,
                   const struct trace_settings *settings, char name[TRACE_NAME_BYTES],
                   struct hill_why *why);

/* HILL_E_INVALID: counts or positions that no reader would take (nothing is written). Otherwise 0
 * or what the first failed write gave. */
int trace_query(struct trace_writer *writer, const struct trace_query *query);

/* Write what is buffered: 0 or what the first failed write gave. */
int trace_flush(struct trace_writer *writer);

/* Write what is buffered and close; returns what trace_query would. NULL allowed. */
int trace_close(struct trace_writer *writer);

/* ---- reading ------------------------------------------------------------------------------ */

struct trace_file;

/* Open, check every record, and keep an index of them (not their payload). */
int trace_file_open(struct trace_file **out, const char *path, struct hill_why *why);
void trace_file_close(struct trace_file *file); /* NULL allowed */

const char *trace_file_path(const struct trace_file *file);
const struct trace_settings *trace_file_settings(const struct trace_file *file);
uint32_t trace_file_count(const struct trace_file *file);
/* How the file ends: NULL when with a whole record, else one line about what was left out. */
const char *trace_file_tail(const struct trace_file *file);

/* The index entry of record i < count. Valid until close. */
const struct trace_record *trace_file_record(const struct trace_file *file, uint32_t i);

/* Read record i's payload, checked again: *words [n_selected], *scores [n_tokens] or NULL. Valid
 * until the next read or close. */
int trace_file_read(struct trace_file *file, uint32_t i, const uint32_t **words,
                    const uint16_t **scores, struct hill_why *why);

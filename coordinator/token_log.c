/* coordinator/token_log.c - see token_log.h. */
#include "coordinator/token_log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/clock.h"
#include "base/whole_io.h"

#define PATH_BYTES 4200u

struct token_log {
    int fd;
    char path[PATH_BYTES];
    uint64_t bytes;   /* whole records, the header included */
    uint64_t chain;   /* checksum of the last record */
    int flush_ms;     /* of token_log_create; from a flush that failed on: never */
    int64_t flush_ns; /* CLOCK_NEVER: nothing to flush */
    bool ended;       /* a record could not be written: those behind it would have no place */
};

/* ---- writing ----------------------------------------------------------------------------- */

static uint64_t checksum_of(const struct token_log_record *record, const void *payload,
                            uint64_t chain)
{
    uint64_t head = XXH64(record, 2 * sizeof(uint32_t), chain);
    return XXH64(payload, record->bytes, head);
}

static int flush(struct token_log *log, struct hill_why *why)
{
    log->flush_ns = CLOCK_NEVER;
    if (fdatasync(log->fd) == 0)
        return 0;
    log->flush_ms = TOKEN_LOG_FLUSH_NEVER;
    return hill_fail(why, hill_from_errno(errno), "flushing token log %.300s failed: %s", log->path,
                     strerror(errno));
}

/* All of it at the end, or nothing: then the file is as it was. */
static int write_whole(struct token_log *log, const void *from, size_t bytes, struct hill_why *why)
{
    ssize_t n = pwrite(log->fd, from, bytes, (off_t)log->bytes);
    if (n == (ssize_t)bytes) {
        log->bytes += bytes;
        return 0;
    }
    int err = n < 0 ? errno : ENOSPC;
    if (ftruncate(log->fd, (off_t)log->bytes))
        err = errno; /* a tail is left, which the reader finds torn */
    return hill_fail(why, hill_from_errno(err), "writing token log %.300s failed: %s", log->path,
                     strerror(err));
}

/* room: of sizeof(struct token_log_record) + bytes, the payload in place. */
static int write_record(struct token_log *log, enum token_log_kind kind, uint8_t *room,
                        uint32_t bytes, struct hill_why *why)
{
    struct token_log_record record = {.kind = kind, .bytes = bytes};
    record.checksum = checksum_of(&record, room + sizeof record, log->chain);
    memcpy(room, &record, sizeof record);
    int code = write_whole(log, room, sizeof record + bytes, why);
    if (!code)
        log->chain = record.checksum;
    return code;
}

static int write_header(struct token_log *log, uint64_t run_id, struct hill_why *why)
{
    struct token_log_header header = {.magic = TOKEN_LOG_MAGIC,
                                      .version = TOKEN_LOG_VERSION,
                                      .header_bytes = sizeof header,
                                      .run_id = run_id};
    header.checksum = XXH64(&header, offsetof(struct token_log_header, checksum), 0);
    log->chain = header.checksum;
    return write_whole(log, &header, sizeof header, why);
}

static int write_order(struct token_log *log, const Hill__Message *order, struct hill_why *why)
{
    size_t bytes = hill__message__get_packed_size(order);
    if (bytes > PROTO_MESSAGE_MAX)
        return hill_fail(why, HILL_E_INVALID, "the order of %zu bytes is too large for a token log",
                         bytes);
    uint8_t *room = malloc(sizeof(struct token_log_record) + bytes);
    if (!room)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a token log");
    hill__message__pack(order, room + sizeof(struct token_log_record));
    int code = write_record(log, TOKEN_LOG_ORDER, room, (uint32_t)bytes, why);
    free(room);
    return code;
}

/* The file's name, too, is to be there after a power cut. */
static int flush_folder(const struct token_log *log, struct hill_why *why)
{
    int code = whole_flush_folder(log->path);
    return code ? hill_fail(why, code, "flushing the folder of token log %.300s failed: %s",
                            log->path, strerror(errno))
                : 0;
}

static struct token_log *new_log(const char *path, int flush_ms)
{
    struct token_log *log = strlen(path) < PATH_BYTES ? calloc(1, sizeof *log) : NULL;
    if (!log)
        return NULL;
    strcpy(log->path, path);
    log->fd = -1;
    log->flush_ms = flush_ms;
    log->flush_ns = CLOCK_NEVER;
    return log;
}

int token_log_create(struct token_log **out, const char *path, uint64_t run_id, int flush_ms,
                     const Hill__Message *order, struct hill_why *why)
{
    *out = NULL;
    struct token_log *log = new_log(path, flush_ms);
    if (!log)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a token log");
    log->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (log->fd < 0) {
        int err = errno;
        token_log_close(log);
        return hill_fail(why, err == EEXIST ? HILL_E_INVALID : hill_from_errno(err),
                         "creating token log %.300s failed: %s", path, strerror(err));
    }
    int code = write_header(log, run_id, why);
    if (!code)
        code = write_order(log, order, why);
    if (!code && flush_ms != TOKEN_LOG_FLUSH_NEVER)
        code = flush(log, why);
    if (!code && flush_ms != TOKEN_LOG_FLUSH_NEVER)
        code = flush_folder(log, why);
    if (code)
        token_log_remove(log);
    else
        *out = log;
    return code;
}

int token_log_append(struct token_log *log, const struct token_log_token *token, int64_t now_ns,
                     struct hill_why *why)
{
    uint8_t room[sizeof(struct token_log_record) + sizeof *token];
    if (log->ended)
        return 0;
    memcpy(room + sizeof(struct token_log_record), token, sizeof *token);
    int code = write_record(log, TOKEN_LOG_TOKEN, room, sizeof *token, why);
    log->ended = code != 0;
    if (code || log->flush_ms == TOKEN_LOG_FLUSH_NEVER)
        return code;
    if (log->flush_ns == CLOCK_NEVER)
        log->flush_ns = now_ns + CLOCK_MS(log->flush_ms);
    return token_log_flush(log, now_ns, why);
}

/* A record beside the tokens, of few bytes. */
static int note(struct token_log *log, enum token_log_kind kind, const void *payload,
                uint32_t bytes, struct hill_why *why)
{
    uint8_t room[sizeof(struct token_log_record) + sizeof(struct token_log_start)];
    if (log->ended)
        return 0;
    memcpy(room + sizeof(struct token_log_record), payload, bytes);
    int code = write_record(log, kind, room, bytes, why);
    log->ended = code != 0;
    return code;
}

int token_log_note_decoded(struct token_log *log, uint32_t n, struct hill_why *why)
{
    return note(log, TOKEN_LOG_DECODED, &n, sizeof n, why);
}

int token_log_note_selected(struct token_log *log, struct hill_why *why)
{
    const uint32_t none = 0;
    return note(log, TOKEN_LOG_SELECTED, &none, sizeof none, why);
}

int token_log_start(struct token_log *log, uint32_t sequence, uint64_t attempt,
                    struct hill_why *why)
{
    const struct token_log_start start = {.sequence = sequence, .attempt = attempt};
    return note(log, TOKEN_LOG_STARTED, &start, sizeof start, why);
}

int token_log_flush(struct token_log *log, int64_t now_ns, struct hill_why *why)
{
    return now_ns >= log->flush_ns ? flush(log, why) : 0;
}

int64_t token_log_flush_ns(const struct token_log *log)
{
    return log->flush_ns;
}

void token_log_close(struct token_log *log)
{
    if (!log)
        return;
    if (log->fd >= 0)
        close(log->fd);
    free(log);
}

void token_log_remove(struct token_log *log)
{
    if (log)
        unlink(log->path);
    token_log_close(log);
}

/* ---- reading ----------------------------------------------------------------------------- */

struct reading {
    const uint8_t *bytes;
    uint64_t size, at; /* at: behind the last whole record */
    uint64_t chain;
    bool torn; /* what follows may be a write that was not finished */
};

/* A size that is written with that kind. */
static bool is_size_of(uint32_t kind, uint32_t bytes)
{
    switch (kind) {
    case TOKEN_LOG_TOKEN:
        return bytes == sizeof(struct token_log_token);
    case TOKEN_LOG_STARTED:
        return bytes == sizeof(struct token_log_start);
    case TOKEN_LOG_RESTARTED:
    case TOKEN_LOG_DECODED:
    case TOKEN_LOG_SELECTED:
        return bytes == sizeof(uint32_t);
    default:
        return false;
    }
}

/* The next record, or NULL. */
static const uint8_t *next_record(struct reading *r, struct token_log_record *record)
{
    uint64_t left = r->size - r->at;
    r->torn = left < sizeof *record;
    if (r->torn)
        return NULL;
    memcpy(record, r->bytes + r->at, sizeof *record);
    left -= sizeof *record;
    if (record->bytes > left) { /* a size nobody writes is no torn write */
        r->torn = is_size_of(record->kind, record->bytes);
        return NULL;
    }
    const uint8_t *payload = r->bytes + r->at + sizeof *record;
    return checksum_of(record, payload, r->chain) == record->checksum ? payload : NULL;
}

static void take_record(struct reading *r, const struct token_log_record *record)
{
    r->at += sizeof *record + record->bytes;
    r->chain = record->checksum;
}

static int damaged(const char *path, struct hill_why *why, const char *what)
{
    return hill_fail(why, HILL_E_DAMAGED, "token log %.300s is damaged: %s", path, what);
}

static int read_header(struct reading *r, const char *path, uint64_t run_id, struct hill_why *why)
{
    struct token_log_header header;
    if (r->size < sizeof header)
        return damaged(path, why, "it is shorter than its header");
    memcpy(&header, r->bytes, sizeof header);
    if (header.magic != TOKEN_LOG_MAGIC)
        return damaged(path, why, "its magic number is another");
    if (header.version != TOKEN_LOG_VERSION)
        return hill_fail(why, HILL_E_DAMAGED,
                         "token log %.300s has version %u, this program has %u", path,
                         header.version, TOKEN_LOG_VERSION);
    if (header.checksum != XXH64(&header, offsetof(struct token_log_header, checksum), 0) ||
        header.header_bytes != sizeof header)
        return damaged(path, why, "the header's checksum is wrong");
    if (header.run_id != run_id)
        return damaged(path, why, "run_id is another run folder's");
    r->at = sizeof header;
    r->chain = header.checksum;
    return 0;
}

static int read_order(struct reading *r, const char *path, struct token_log_contents *out,
                      struct hill_why *why)
{
    struct token_log_record record;
    const uint8_t *payload = next_record(r, &record);
    if (!payload || record.kind != TOKEN_LOG_ORDER)
        return damaged(path, why, "the request's order is not whole");
    out->order = hill__message__unpack(NULL, record.bytes, payload);
    if (!out->order || out->order->body_case != HILL__MESSAGE__BODY_REQUEST_ORDER)
        return damaged(path, why, "the request's order does not parse");
    struct hill_why field = {{0}};
    if (proto_validate(out->order, &field))
        return damaged(path, why, field.text);
    take_record(r, &record);
    return 0;
}

/* False: the record says what its place does not allow. */
static bool take_token(const uint8_t *payload, uint32_t bytes, struct token_log_contents *out)
{
    const Hill__Prefill *prefill = out->order->request_order->prefill;
    struct token_log_token token;
    if (bytes != sizeof token || out->n_tokens >= prefill->predict)
        return false;
    memcpy(&token, payload, sizeof token);
    if (token.index != out->n_tokens || !isfinite(token.logprob) || token.logprob > 0 ||
        token.since_ns < 0 || (token.logits.bytes && !hash_state_is_sound(&token.logits)))
        return false;
    out->tokens[out->n_tokens++] = token;
    out->fruitless = 0;
    return true;
}

static bool take_start(const uint8_t *payload, uint32_t bytes, struct token_log_contents *out)
{
    struct token_log_start start = {0};
    if (!is_size_of(TOKEN_LOG_STARTED, bytes))
        return false;
    memcpy(&start, payload, bytes);
    out->sequence = start.sequence;
    out->attempt = start.attempt;
    return out->started = true;
}

static int read_records(struct reading *r, struct token_log_contents *out, struct hill_why *why)
{
    struct token_log_record record;
    /* no more than the file can hold, whatever the order says */
    uint64_t most = (r->size - r->at) / (sizeof record + sizeof *out->tokens) + 1;
    out->tokens = malloc(most * sizeof *out->tokens);
    if (!out->tokens)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a token log");
    for (const uint8_t *payload; (payload = next_record(r, &record));) {
        bool fits = record.kind == TOKEN_LOG_TOKEN     ? take_token(payload, record.bytes, out)
                    : record.kind == TOKEN_LOG_STARTED ? take_start(payload, record.bytes, out)
                                                       : is_size_of(record.kind, record.bytes);
        if (!fits)
            break;
        if (record.kind == TOKEN_LOG_RESTARTED) {
            out->restarts++;
            out->fruitless++;
        }
        out->decoded |= record.kind == TOKEN_LOG_DECODED;
        out->selected |= record.kind == TOKEN_LOG_SELECTED;
        take_record(r, &record);
    }
    out->torn_bytes = r->size - r->at;
    out->damaged = out->torn_bytes && !r->torn;
    return 0;
}

/* The whole file; *bytes is the caller's. */
static int read_file(const struct token_log *log, uint8_t **bytes, uint64_t *size,
                     struct hill_why *why)
{
    struct stat info;
    if (fstat(log->fd, &info))
        return hill_fail(why, hill_from_errno(errno), "reading token log %.300s failed: %s",
                         log->path, strerror(errno));
    if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size > TOKEN_LOG_BYTES_MAX)
        return damaged(log->path, why, "it is no file, or too large");
    *size = (uint64_t)info.st_size;
    *bytes = malloc(*size + 1);
    if (!*bytes)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for token log %.300s", log->path);
    int64_t n = whole_read(log->fd, *bytes, *size, 0);
    return n == info.st_size ? 0
                             : hill_fail(why, n < 0 ? (int)n : HILL_E_DAMAGED,
                                         "reading token log %.300s failed: %s", log->path,
                                         n < 0 ? strerror(errno) : "it became shorter");
}

static int read_contents(struct token_log *log, uint64_t run_id, struct token_log_contents *out,
                         struct hill_why *why)
{
    uint8_t *bytes = NULL;
    struct reading r = {0};
    int code = read_file(log, &bytes, &r.size, why);
    r.bytes = bytes;
    if (!code)
        code = read_header(&r, log->path, run_id, why);
    if (!code)
        code = read_order(&r, log->path, out, why);
    if (!code)
        code = read_records(&r, out, why);
    log->bytes = r.at;
    log->chain = r.chain;
    free(bytes);
    return code;
}

/* From now on: cut, and that it was taken over. On a full disk neither may work: the next token
 * meets that again, and what is there can still be read. */
static void go_on(struct token_log *log, uint64_t torn_bytes)
{
    uint8_t room[sizeof(struct token_log_record) + sizeof(uint32_t)] = {0};
    if (torn_bytes && ftruncate(log->fd, (off_t)log->bytes))
        return;
    write_record(log, TOKEN_LOG_RESTARTED, room, sizeof(uint32_t), NULL);
}

int token_log_open(struct token_log **out, const char *path, uint64_t run_id, int flush_ms,
                   struct token_log_contents *contents, struct hill_why *why)
{
    *out = NULL;
    *contents = (struct token_log_contents){0};
    struct token_log *log = new_log(path, flush_ms);
    if (!log)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a token log");
    log->fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    int code = log->fd < 0 ? hill_fail(why, hill_from_errno(errno),
                                       "opening token log %.300s failed: %s", path, strerror(errno))
                           : read_contents(log, run_id, contents, why);
    if (!code) {
        go_on(log, contents->torn_bytes);
        *out = log;
        return 0;
    }
    token_log_contents_finish(contents);
    token_log_close(log);
    return code;
}

void token_log_contents_finish(struct token_log_contents *contents)
{
    proto_free(contents->order);
    free(contents->tokens);
    *contents = (struct token_log_contents){0};
}

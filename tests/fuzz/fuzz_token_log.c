/*
 * tests/fuzz/fuzz_token_log.c - any bytes as the token log of a request that a dead coordinator has
 * left.
 *
 * What: byte 0 says which checksums are made right (session_seed.h), the rest is the file. A log
 * that opens is taken over, a token is added, and it is opened again. Failure: sanitizer findings;
 * abort() where tokens are not in order or not the request's, or where the second reading finds
 * other ones than the first and the one that was added. Who calls it: libFuzzer (tests/fuzz/run).
 * Concurrency: one thread.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "coordinator/token_log.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/session_seed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[64];

static void remove_file(void)
{
    unlink(path);
}

/* A name of its own: a log that is a link is refused. */
static void write_log(const uint8_t *bytes, size_t size)
{
    if (!path[0]) {
        snprintf(path, sizeof path, "/dev/shm/hill-fuzz-log-%d", (int)getpid());
        atexit(remove_file);
    }
    write_file(path, bytes, size);
}

/* Each record's checksum begins with that of the one before. */
static void seal(uint8_t *file, size_t size, uint8_t what)
{
    struct token_log_header h;
    struct token_log_record r;
    if (size < sizeof h)
        return;
    memcpy(&h, file, sizeof h);
    if (what & FUZZ_SEAL_HEADER) {
        h.run_id = FUZZ_LOG_RUN_ID;
        h.checksum = XXH64(&h, offsetof(struct token_log_header, checksum), 0);
    }
    memcpy(file, &h, sizeof h);
    uint64_t chain = h.checksum;
    for (size_t at = sizeof h; what & FUZZ_SEAL_PARTS && size - at >= sizeof r;) {
        memcpy(&r, file + at, sizeof r);
        if (r.bytes > size - at - sizeof r)
            return;
        chain = XXH64(&r, 2 * sizeof(uint32_t), chain);
        r.checksum = chain = XXH64(file + at + sizeof r, r.bytes, chain);
        memcpy(file + at, &r, sizeof r);
        at += sizeof r + r.bytes;
    }
}

static void check(const struct token_log_contents *c)
{
    const Hill__RequestOrder *order = c->order->request_order;
    if (c->n_tokens > order->prefill->predict || c->fruitless > c->restarts)
        abort();
    for (uint32_t i = 0; i < c->n_tokens; i++)
        if (c->tokens[i].index != i || !isfinite(c->tokens[i].logprob))
            abort();
}

/* Adds a token to what is in the log; how many it has then. */
static uint32_t add_token(struct token_log *log, const struct token_log_contents *c)
{
    const struct token_log_token token = {.index = c->n_tokens, .token = 5, .logprob = -1};
    struct hill_why why;
    if (c->n_tokens == c->order->request_order->prefill->predict)
        return c->n_tokens;
    if (token_log_append(log, &token, clock_now_ns(), &why))
        abort();
    return c->n_tokens + 1;
}

static void take_over(struct token_log *log, const struct token_log_contents *before)
{
    struct token_log_contents now;
    struct hill_why why;
    check(before);
    uint32_t n = add_token(log, before);
    token_log_close(log);
    if (token_log_open(&log, path, FUZZ_LOG_RUN_ID, TOKEN_LOG_FLUSH_NEVER, &now, &why))
        abort(); /* it was whole, or has been made so */
    check(&now);
    if (now.n_tokens != n || now.torn_bytes || now.restarts != before->restarts + 1 ||
        now.started != before->started ||
        memcmp(now.tokens, before->tokens, before->n_tokens * sizeof *now.tokens) != 0)
        abort();
    token_log_contents_finish(&now);
    token_log_close(log);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct token_log_contents contents;
    struct token_log *log;
    struct hill_why why = {""};
    if (size < 1)
        return 0;
    uint8_t *file = malloc(size);
    if (!file)
        abort();
    memcpy(file, data + 1, size - 1);
    seal(file, size - 1, data[0]);
    write_log(file, size - 1);
    free(file);
    if (token_log_open(&log, path, FUZZ_LOG_RUN_ID, TOKEN_LOG_FLUSH_NEVER, &contents, &why) == 0) {
        take_over(log, &contents);
        token_log_contents_finish(&contents);
    }
    return 0;
}

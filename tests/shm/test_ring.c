/*
 * tests/shm/test_ring.c - shm/ring within one process: against a model of cells, with two
 * threads, and with damaged shared memory. Indices start just below their wrap-around.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/ring.h"
#include "tests/shm/oracle.h"

#define START (UINT32_MAX - 3)

struct pair {
    uint8_t *memory;
    uint64_t bytes;
    struct shm_doorbell *producer_bell, *consumer_bell;
    struct shm_ring_end producer, consumer;
};

static struct shm_ring_header *header_of(struct pair *pair)
{
    return (struct shm_ring_header *)pair->memory;
}

static void pair_init(struct pair *pair, uint32_t capacity)
{
    memset(pair, 0, sizeof *pair);
    pair->bytes = shm_ring_bytes(capacity);
    pair->memory = aligned_alloc(64, (pair->bytes + 63) / 64 * 64);
    pair->producer_bell = aligned_alloc(64, 128);
    assert_non_null(pair->memory);
    assert_non_null(pair->producer_bell);
    pair->consumer_bell = pair->producer_bell + 1;
    memset(pair->memory, 0xa5, pair->bytes);
    memset(pair->producer_bell, 0, 128);
    shm_doorbell_init(pair->producer_bell);
    shm_doorbell_init(pair->consumer_bell);
    assert_int_equal(shm_ring_init(pair->memory, capacity, START), 0);
    assert_int_equal(shm_ring_open(&pair->producer, pair->memory, pair->bytes, true,
                                   pair->producer_bell, pair->consumer_bell),
                     0);
    assert_int_equal(shm_ring_open(&pair->consumer, pair->memory, pair->bytes, false,
                                   pair->consumer_bell, pair->producer_bell),
                     0);
}

static void pair_finish(struct pair *pair)
{
    shm_ring_close(&pair->producer);
    shm_ring_close(&pair->consumer);
    free(pair->memory);
    free(pair->producer_bell);
}

static int peek_any(struct shm_ring_end *end)
{
    uint32_t type, size;
    const void *payload;
    return shm_ring_peek(end, &type, &payload, &size);
}

static void assert_record(struct shm_ring_end *end, uint32_t type, const char *text)
{
    uint32_t got_type, size;
    const void *payload;
    assert_int_equal(shm_ring_peek(end, &got_type, &payload, &size), 0);
    assert_int_equal(got_type, type);
    assert_int_equal(size, strlen(text));
    assert_int_equal((uintptr_t)payload % 16, 0);
    assert_memory_equal(payload, text, size);
}

/* ---- opening ---------------------------------------------------------------------------- */

static void init_refuses_bad_capacities(void **state)
{
    (void)state;
    _Alignas(64) static uint8_t memory[4096];
    static const uint32_t bad[] = {0, 1, 32, 63, 65, 96, 1000, 1u << 31, UINT32_MAX};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(shm_ring_init(memory, bad[i], 0), HILL_E_INVALID);
    assert_int_equal(shm_ring_init(memory, 64, 0), 0);
    assert_int_equal(shm_ring_init(memory + 8, 64, 0), HILL_E_INVALID);
}

static void open_refuses_damaged_headers(void **state)
{
    (void)state;
    struct pair pair;
    struct shm_ring_end end;
    pair_init(&pair, 1024);
    shm_ring_close(&pair.producer);
    struct shm_ring_header *header = header_of(&pair);
    assert_int_equal(shm_ring_open(&end, pair.memory, pair.bytes - 1, true, NULL, NULL),
                     HILL_E_DAMAGED);
    assert_int_equal(shm_ring_open(&end, pair.memory, 100, true, NULL, NULL), HILL_E_DAMAGED);
    static const uint32_t capacities[] = {0, 1023, 2048, 1u << 31};
    for (unsigned i = 0; i < 4; i++) {
        header->capacity = capacities[i];
        assert_int_equal(shm_ring_open(&end, pair.memory, pair.bytes, true, NULL, NULL),
                         HILL_E_DAMAGED);
    }
    header->capacity = 1024;
    uint32_t head = atomic_load_explicit(&header->head, memory_order_relaxed);
    atomic_store_explicit(&header->head, head + 1, memory_order_relaxed);
    assert_int_equal(shm_ring_open(&end, pair.memory, pair.bytes, true, NULL, NULL),
                     HILL_E_DAMAGED);
    atomic_store_explicit(&header->head, head, memory_order_relaxed);
    atomic_store_explicit(&header->magic, 0, memory_order_relaxed);
    assert_int_equal(shm_ring_open(&end, pair.memory, pair.bytes, true, NULL, NULL),
                     HILL_E_DAMAGED);
    atomic_store_explicit(&header->magic, SHM_RING_MAGIC, memory_order_relaxed);
    assert_int_equal(shm_ring_open(&end, pair.memory, pair.bytes, true, NULL, NULL), 0);
    shm_ring_close(&end);
    pair_finish(&pair);
}

static void a_held_end_is_busy(void **state)
{
    (void)state;
    struct pair pair;
    struct shm_ring_end end;
    pair_init(&pair, 256);
    assert_int_equal(shm_ring_open(&end, pair.memory, pair.bytes, true, NULL, NULL), HILL_E_BUSY);
    assert_int_equal(shm_ring_open(&end, pair.memory, pair.bytes, false, NULL, NULL), HILL_E_BUSY);
    pair_finish(&pair);
}

/* ---- records ---------------------------------------------------------------------------- */

static void records_come_out_as_they_went_in(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, 256);
    assert_int_equal(peek_any(&pair.consumer), HILL_E_WOULD_BLOCK);
    assert_int_equal(shm_ring_push(&pair.producer, 7, "hello", 5), 0);
    assert_int_equal(shm_ring_push(&pair.producer, UINT32_MAX, "", 0), 0);
    assert_record(&pair.consumer, 7, "hello");
    assert_record(&pair.consumer, 7, "hello");
    shm_ring_release(&pair.consumer);
    assert_record(&pair.consumer, UINT32_MAX, "");
    shm_ring_release(&pair.consumer);
    assert_int_equal(peek_any(&pair.consumer), HILL_E_WOULD_BLOCK);
    pair_finish(&pair);
}

static void an_unpublished_record_is_never_seen(void **state)
{
    (void)state;
    struct pair pair;
    void *payload;
    pair_init(&pair, 256);
    assert_int_equal(shm_ring_reserve(&pair.producer, 100, &payload), 0);
    memset(payload, 1, 100);
    assert_int_equal(peek_any(&pair.consumer), HILL_E_WOULD_BLOCK);
    /* the next reservation replaces it, and may publish less than it reserved */
    assert_int_equal(shm_ring_reserve(&pair.producer, 64, &payload), 0);
    memcpy(payload, "abc", 3);
    shm_ring_publish(&pair.producer, 9, 3);
    assert_record(&pair.consumer, 9, "abc");
    shm_ring_release(&pair.consumer);
    assert_int_equal(peek_any(&pair.consumer), HILL_E_WOULD_BLOCK);
    assert_int_equal(shm_ring_reserve(&pair.producer, 64, &payload), 0);
    shm_ring_close(&pair.producer);
    assert_int_equal(peek_any(&pair.consumer), HILL_E_PEER_GONE);
    pair_finish(&pair);
}

static void staged_records_appear_at_the_flush(void **state)
{
    (void)state;
    struct pair pair;
    void *payload;
    pair_init(&pair, 256);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(shm_ring_reserve(&pair.producer, 3, &payload), 0);
        memcpy(payload, "xyz", 3);
        shm_ring_stage(&pair.producer, (uint32_t)i, 3);
    }
    uint32_t rings = shm_doorbell_read(pair.consumer_bell);
    assert_int_equal(peek_any(&pair.consumer), HILL_E_WOULD_BLOCK);
    shm_ring_flush(&pair.producer);
    assert_int_equal(shm_doorbell_read(pair.consumer_bell), rings + 1);
    for (uint32_t i = 0; i < 3; i++) {
        assert_record(&pair.consumer, i, "xyz");
        shm_ring_release(&pair.consumer);
    }
    pair_finish(&pair);
}

static void a_full_ring_flushes_what_is_staged(void **state)
{
    (void)state;
    struct pair pair;
    void *payload;
    int staged = 0, rc;
    pair_init(&pair, 256);
    while ((rc = shm_ring_reserve(&pair.producer, 10, &payload)) == 0) {
        memcpy(payload, "0123456789", 10);
        shm_ring_stage(&pair.producer, 1, 10);
        staged++;
    }
    assert_int_equal(rc, HILL_E_WOULD_BLOCK);
    assert_int_equal(staged, 7); /* the filler at the wrap-around takes the room of half a record */
    for (int i = 0; i < staged; i++) {
        assert_record(&pair.consumer, 1, "0123456789");
        shm_ring_release(&pair.consumer);
    }
    pair_finish(&pair);
}

/* A look at the record behind the peeked one takes nothing, also across the end of the data. */
static void the_record_behind_can_be_looked_at(void **state)
{
    (void)state;
    struct pair pair;
    uint32_t type, size;
    const void *payload;
    pair_init(&pair, 256);
    assert_false(shm_ring_peek_behind(&pair.consumer, &type, &payload, &size));
    assert_int_equal(shm_ring_push(&pair.producer, 1, "first", 5), 0);
    assert_false(shm_ring_peek_behind(&pair.consumer, &type, &payload, &size)); /* none is peeked */
    for (uint32_t i = 1; i < 40; i++) {
        char this[64] = "";
        memset(this, 'a' + (int)i % 26, i * 7 % 60);
        assert_int_equal(peek_any(&pair.consumer), 0);
        assert_false(shm_ring_peek_behind(&pair.consumer, &type, &payload, &size));
        assert_int_equal(shm_ring_push(&pair.producer, i, this, (uint32_t)strlen(this)), 0);
        assert_true(shm_ring_peek_behind(&pair.consumer, &type, &payload, &size));
        assert_int_equal(type, i);
        assert_int_equal(size, strlen(this));
        assert_memory_equal(payload, this, size);
        shm_ring_release(&pair.consumer);
        assert_record(&pair.consumer, i, this);
    }
    pair_finish(&pair);
}

static void skipped_records_stay_until_released(void **state)
{
    (void)state;
    struct pair pair;
    const void *first;
    uint32_t type, size;
    pair_init(&pair, 256);
    for (int i = 0; i < 7; i++)
        assert_int_equal(shm_ring_push(&pair.producer, 1, i ? "later" : "first", 5), 0);
    assert_int_equal(shm_ring_peek(&pair.consumer, &type, &first, &size), 0);
    shm_ring_skip(&pair.consumer);
    for (int i = 1; i < 6; i++) {
        assert_record(&pair.consumer, 1, "later");
        shm_ring_skip(&pair.consumer);
    }
    assert_int_equal(shm_ring_push(&pair.producer, 1, "new", 3), HILL_E_WOULD_BLOCK);
    assert_memory_equal(first, "first", 5);
    assert_record(&pair.consumer, 1, "later");
    shm_ring_skip(&pair.consumer);
    assert_int_equal(peek_any(&pair.consumer), HILL_E_WOULD_BLOCK); /* gives all back */
    assert_int_equal(shm_ring_credits(&pair.producer), shm_ring_payload_max(&pair.producer));
    pair_finish(&pair);
}

/* ---- the model: cells of 16 bytes, used or not ------------------------------------------ */

struct model {
    uint32_t cells, write;
    bool used[256];
    /* queue of records: first cell to free, cells to free */
    uint32_t first[256], count[256], oldest, newest;
};

/* The cells from `at` that a record of n would take with what it jumps over; 0 if it cannot. */
static uint32_t model_fits(const struct model *model, uint32_t n)
{
    uint32_t jump = model->write + n > model->cells ? model->cells - model->write : 0;
    for (uint32_t k = 0; k < jump + n; k++)
        if (k >= model->cells || model->used[(model->write + k) % model->cells])
            return 0;
    return jump + n;
}

static void model_push(struct model *model, uint32_t n)
{
    uint32_t slot = model->newest++ % 256;
    model->first[slot] = model->write;
    model->count[slot] = n;
    for (uint32_t k = 0; k < n; k++)
        model->used[(model->write + k) % model->cells] = true;
    model->write = (model->write + n) % model->cells;
}

static void model_pop(struct model *model)
{
    uint32_t slot = model->oldest++ % 256;
    for (uint32_t k = 0; k < model->count[slot]; k++)
        model->used[(model->first[slot] + k) % model->cells] = false;
}

static uint32_t model_credits(const struct model *model)
{
    uint32_t best = 0;
    for (uint32_t n = 1; n <= model->cells / 2; n++)
        if (model_fits(model, n))
            best = (n - 1) * 16;
    return best;
}

static void room_and_credits_are_exact(void **state)
{
    (void)state;
    const uint32_t capacity = 1024;
    const uint64_t seed = 20240117;
    struct pair pair;
    struct model model = {.cells = capacity / 16, .write = capacity / 16 - 1};
    uint64_t random = seed, pushed = 0, popped = 0, refused = 0;
    pair_init(&pair, capacity);
    assert_int_equal(shm_ring_payload_max(&pair.producer), capacity / 2 - 16);
    while (pushed < 30000) {
        assert_int_equal(shm_ring_credits(&pair.producer), model_credits(&model));
        if (oracle_next(&random) % 2) {
            uint8_t bytes[512];
            uint32_t size = oracle_size(seed, pushed, shm_ring_payload_max(&pair.producer));
            uint32_t cells = model_fits(&model, 1 + (size + 15) / 16);
            oracle_fill(seed, pushed, bytes, size);
            int rc = shm_ring_push(&pair.producer, oracle_type(seed, pushed), bytes, size);
            assert_int_equal(rc, cells ? 0 : HILL_E_WOULD_BLOCK);
            if (!cells) {
                refused++;
                /* a full ring may stay full for this size: make progress */
                random++;
            } else {
                model_push(&model, cells);
                pushed++;
            }
        } else {
            uint32_t type, size;
            const void *payload;
            int rc = shm_ring_peek(&pair.consumer, &type, &payload, &size);
            assert_int_equal(rc, popped < pushed ? 0 : HILL_E_WOULD_BLOCK);
            if (rc)
                continue;
            assert_int_equal(type, oracle_type(seed, popped));
            assert_int_equal(size, oracle_size(seed, popped, 496));
            assert_true(oracle_matches(seed, popped, payload, size));
            shm_ring_release(&pair.consumer);
            model_pop(&model);
            popped++;
        }
    }
    assert_true(refused > 1000);
    pair_finish(&pair);
}

static void too_large_a_record_is_invalid(void **state)
{
    (void)state;
    struct pair pair;
    void *payload;
    pair_init(&pair, 256);
    uint32_t max = shm_ring_payload_max(&pair.producer);
    assert_int_equal(shm_ring_reserve(&pair.producer, max + 1, &payload), HILL_E_INVALID);
    assert_int_equal(shm_ring_reserve(&pair.producer, UINT32_MAX, &payload), HILL_E_INVALID);
    assert_int_equal(shm_ring_wait(&pair.producer, max + 1, 0), HILL_E_INVALID);
    assert_int_equal(shm_ring_reserve(&pair.producer, max, &payload), 0);
    pair_finish(&pair);
}

/* ---- two threads ------------------------------------------------------------------------ */

#define THREAD_RECORDS 60000
#define THREAD_SEED    99

struct stream {
    struct pair *pair;
    bool batched;
    int rc;
};

static void *produce(void *argument)
{
    struct stream *stream = argument;
    struct shm_ring_end *end = &stream->pair->producer;
    uint32_t max = shm_ring_payload_max(end);
    for (uint64_t i = 0; i < THREAD_RECORDS && !stream->rc;) {
        uint32_t size = oracle_size(THREAD_SEED, i, max);
        void *payload;
        int rc = shm_ring_reserve(end, size, &payload);
        if (rc == HILL_E_WOULD_BLOCK) {
            stream->rc = shm_ring_wait(end, size, clock_deadline_ms(20000));
            continue;
        }
        if (rc) {
            stream->rc = rc;
            break;
        }
        oracle_fill(THREAD_SEED, i, payload, size);
        if (stream->batched)
            shm_ring_stage(end, oracle_type(THREAD_SEED, i), size);
        else
            shm_ring_publish(end, oracle_type(THREAD_SEED, i), size);
        i++;
    }
    shm_ring_close(end); /* flushes */
    return NULL;
}

static void stream_through(bool batched)
{
    struct pair pair;
    pair_init(&pair, 2048);
    struct stream stream = {&pair, batched, 0};
    uint32_t max = shm_ring_payload_max(&pair.consumer);
    uint64_t bad = 0, i = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, produce, &stream), 0);
    int rc;
    for (;;) {
        uint32_t type, size;
        const void *payload;
        rc = shm_ring_peek(&pair.consumer, &type, &payload, &size);
        if (rc == HILL_E_WOULD_BLOCK)
            rc = shm_ring_wait(&pair.consumer, 0, clock_deadline_ms(20000));
        else if (rc == 0) {
            bad += type != oracle_type(THREAD_SEED, i) ||
                   size != oracle_size(THREAD_SEED, i, max) ||
                   !oracle_matches(THREAD_SEED, i, payload, size);
            if (batched && i % 3)
                shm_ring_skip(&pair.consumer);
            else
                shm_ring_release(&pair.consumer);
            i++;
        }
        if (rc)
            break;
    }
    pthread_join(thread, NULL);
    assert_int_equal(stream.rc, 0);
    assert_int_equal(rc, HILL_E_PEER_GONE);
    assert_int_equal(i, THREAD_RECORDS);
    assert_int_equal(bad, 0);
    pair_finish(&pair);
}

static void two_threads_stream_records(void **state)
{
    (void)state;
    stream_through(false);
}

static void two_threads_stream_in_batches(void **state)
{
    (void)state;
    stream_through(true);
}

/* ---- peers and damage ------------------------------------------------------------------- */

static void a_closed_producer_is_drained_first(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, 256);
    assert_int_equal(shm_ring_push(&pair.producer, 1, "one", 3), 0);
    assert_int_equal(shm_ring_push(&pair.producer, 2, "two", 3), 0);
    shm_ring_close(&pair.producer);
    assert_false(shm_ring_peer_alive(&pair.consumer));
    assert_int_equal(shm_ring_wait(&pair.consumer, 0, CLOCK_NEVER), 0);
    assert_record(&pair.consumer, 1, "one");
    shm_ring_release(&pair.consumer);
    assert_record(&pair.consumer, 2, "two");
    shm_ring_release(&pair.consumer);
    assert_int_equal(peek_any(&pair.consumer), HILL_E_PEER_GONE);
    assert_int_equal(shm_ring_wait(&pair.consumer, 0, CLOCK_NEVER), HILL_E_PEER_GONE);
    pair_finish(&pair);
}

static void a_closed_consumer_ends_the_producer(void **state)
{
    (void)state;
    struct pair pair;
    void *payload;
    pair_init(&pair, 256);
    assert_true(shm_ring_peer_alive(&pair.producer));
    shm_ring_close(&pair.consumer);
    assert_int_equal(shm_ring_reserve(&pair.producer, 1, &payload), HILL_E_PEER_GONE);
    assert_int_equal(shm_ring_wait(&pair.producer, 1, CLOCK_NEVER), HILL_E_PEER_GONE);
    pair_finish(&pair);
}

static void waiting_ends_at_the_deadline(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, 256);
    int64_t start = clock_now_ns();
    assert_int_equal(shm_ring_wait(&pair.consumer, 0, start + CLOCK_MS(150)), HILL_E_TIMEOUT);
    assert_true(clock_now_ns() - start >= CLOCK_MS(150));
    assert_int_equal(shm_ring_wait(&pair.producer, 64, 0), 0);
    while (shm_ring_push(&pair.producer, 0, "x", 1) == 0)
        ;
    assert_int_equal(shm_ring_wait(&pair.producer, 1, clock_deadline_ms(20)), HILL_E_TIMEOUT);
    pair_finish(&pair);
}

static void a_peer_not_yet_open_counts_as_there(void **state)
{
    (void)state;
    _Alignas(64) uint8_t memory[192 + 256];
    struct shm_ring_end end;
    assert_int_equal(shm_ring_init(memory, 256, START), 0);
    assert_int_equal(shm_ring_open(&end, memory, sizeof memory, true, NULL, NULL), 0);
    assert_true(shm_ring_peer_alive(&end));
    assert_int_equal(shm_ring_push(&end, 1, "early", 5), 0);
    shm_ring_close(&end);
    assert_int_equal(shm_ring_open(&end, memory, sizeof memory, false, NULL, NULL), 0);
    assert_record(&end, 1, "early");
    shm_ring_close(&end);
}

/* Every word of a record's header, wrong in several ways, is refused and changes nothing. */
static void damaged_record_headers_are_not_followed(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, 1024);
    /* START rounds down to the last 16 bytes of the data: no filler, records from offset 0 on */
    assert_int_equal(shm_ring_push(&pair.producer, 0, NULL, 0), 0);
    assert_int_equal(peek_any(&pair.consumer), 0);
    shm_ring_release(&pair.consumer);
    assert_int_equal(shm_ring_push(&pair.producer, 5, "payload", 7), 0);
    uint32_t *words = (uint32_t *)(pair.memory + SHM_RING_HEADER_BYTES), good[4];
    memcpy(good, words, sizeof good);
    assert_int_equal(good[1], 5);
    assert_int_equal(good[2], 7);
    static const uint32_t wrong[] = {0xffffffff, 0x80000000, 17, 497, 1024, 0xfffffff0};
    for (int word = 0; word < 4; word++)
        for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            if (word == 1) /* the type is the user's: any value goes */
                continue;
            words[word] = wrong[i];
            assert_int_equal(peek_any(&pair.consumer), HILL_E_DAMAGED);
            memcpy(words, good, sizeof good);
        }
    assert_record(&pair.consumer, 5, "payload");
    pair_finish(&pair);
}

static void indices_out_of_range_are_damage(void **state)
{
    (void)state;
    struct pair pair;
    void *payload;
    pair_init(&pair, 256);
    struct shm_ring_header *header = header_of(&pair);
    uint32_t index = atomic_load_explicit(&header->head, memory_order_relaxed);
    static const uint32_t ahead[] = {272, 8, 0x80000000, 0xfffffff0};
    for (unsigned i = 0; i < sizeof ahead / sizeof ahead[0]; i++) {
        atomic_store_explicit(&header->head, index + ahead[i], memory_order_relaxed);
        assert_int_equal(peek_any(&pair.consumer), HILL_E_DAMAGED);
    }
    atomic_store_explicit(&header->head, index, memory_order_relaxed);
    static const uint32_t behind[] = {16, 8, 0x80000000, (uint32_t)-272};
    for (unsigned i = 0; i < sizeof behind / sizeof behind[0]; i++) {
        atomic_store_explicit(&header->tail, index + behind[i], memory_order_relaxed);
        assert_int_equal(shm_ring_reserve(&pair.producer, 1, &payload), HILL_E_DAMAGED);
        assert_int_equal(shm_ring_credits(&pair.producer), 0);
    }
    atomic_store_explicit(&header->tail, index, memory_order_relaxed);
    assert_int_equal(shm_ring_push(&pair.producer, 3, "fine", 4), 0);
    assert_record(&pair.consumer, 3, "fine");
    pair_finish(&pair);
}

/* A release that nobody waits for must not wake the producer out of another wait. */
static void a_release_rings_only_a_producer_that_lacked_room(void **state)
{
    (void)state;
    struct pair pair;
    void *payload;
    pair_init(&pair, 256);
    uint32_t rings = shm_doorbell_read(pair.producer_bell);
    assert_int_equal(shm_ring_push(&pair.producer, 1, "a", 2), 0);
    assert_int_equal(peek_any(&pair.consumer), 0);
    shm_ring_release(&pair.consumer);
    assert_int_equal(shm_doorbell_read(pair.producer_bell), rings);

    while (shm_ring_push(&pair.producer, 1, "b", 2) == 0)
        ;
    for (uint32_t i = 1; i <= 2; i++) { /* refused by reserve: the next release rings, once */
        assert_int_equal(peek_any(&pair.consumer), 0);
        shm_ring_release(&pair.consumer);
        assert_int_equal(shm_doorbell_read(pair.producer_bell), rings + 1);
    }
    assert_true(shm_ring_credits(&pair.producer) < shm_ring_payload_max(&pair.producer));
    assert_int_equal(peek_any(&pair.consumer), 0);
    shm_ring_release(&pair.consumer);
    assert_int_equal(shm_doorbell_read(pair.producer_bell), rings + 2);

    while (shm_ring_reserve(&pair.producer, 2, &payload) == 0)
        shm_ring_publish(&pair.producer, 1, 2);
    assert_int_equal(shm_ring_wait(&pair.producer, 64, clock_now_ns() + CLOCK_MS(1)),
                     HILL_E_TIMEOUT);
    rings = shm_doorbell_read(pair.producer_bell);
    assert_int_equal(peek_any(&pair.consumer), 0);
    shm_ring_release(&pair.consumer);
    assert_int_equal(shm_doorbell_read(pair.producer_bell), rings + 1);
    pair_finish(&pair);
}

/* ---- a tap ------------------------------------------------------------------------------- */

struct watcher {
    struct pair *pair;
    enum shm_ring_moment seen[32];
    uint32_t n, room; /* room: the answer to a reservation */
    bool helps;       /* puts a record, makes room, where there is none */
};

static uint32_t watch(void *context, enum shm_ring_moment moment, uint32_t type,
                      const void *payload, uint32_t bytes)
{
    struct watcher *w = context;
    (void)type;
    (void)payload;
    assert_true(w->n < 32);
    w->seen[w->n++] = moment;
    if (moment == SHM_RING_EMPTY && w->helps)
        return shm_ring_push(&w->pair->producer, 5, "late", 4) == 0;
    if (moment == SHM_RING_FULL && w->helps && peek_any(&w->pair->consumer) == 0)
        shm_ring_release(&w->pair->consumer);
    return moment == SHM_RING_CREDITS    ? bytes / 2
           : moment == SHM_RING_RESERVED ? w->room
                                         : w->helps;
}

static void assert_seen(struct watcher *w, const enum shm_ring_moment *moments, uint32_t n)
{
    assert_int_equal(w->n, n);
    assert_memory_equal(w->seen, moments, n * sizeof *moments);
    w->n = 0;
}

#define ASSERT_SEEN(w, ...)                                                                        \
    assert_seen((w), (const enum shm_ring_moment[]){__VA_ARGS__},                                  \
                sizeof((enum shm_ring_moment[]){__VA_ARGS__}) / sizeof(enum shm_ring_moment))

static void a_tap_decides_what_a_consumer_finds(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, 1024);
    struct watcher w = {.pair = &pair};
    struct shm_ring_tap tap = {&w, watch};
    pair.consumer.tap = &tap;
    assert_int_equal(peek_any(&pair.consumer), HILL_E_WOULD_BLOCK);
    ASSERT_SEEN(&w, SHM_RING_EMPTY);
    w.helps = true;
    assert_record(&pair.consumer, 5, "late");
    assert_record(&pair.consumer, 5, "late");
    ASSERT_SEEN(&w, SHM_RING_EMPTY, SHM_RING_PEEKED, SHM_RING_STILL);
    shm_ring_decide(&pair.consumer);
    ASSERT_SEEN(&w, SHM_RING_DECIDES);
    w.helps = false;
    shm_ring_release(&pair.consumer);
    shm_ring_close(&pair.producer);
    assert_int_equal(peek_any(&pair.consumer), HILL_E_PEER_GONE);
    ASSERT_SEEN(&w, SHM_RING_EMPTY);
    pair_finish(&pair);
}

static void a_tap_decides_what_room_a_producer_finds(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, 64);
    struct watcher w = {.pair = &pair};
    struct shm_ring_tap tap = {&w, watch};
    pair.producer.tap = &tap;
    assert_int_equal(shm_ring_push(&pair.producer, 1, "ab", 2), HILL_E_WOULD_BLOCK);
    ASSERT_SEEN(&w, SHM_RING_RESERVED);
    uint32_t credits = shm_ring_credits(&pair.producer);
    assert_int_equal(credits, shm_ring_payload_max(&pair.producer) / 2);
    ASSERT_SEEN(&w, SHM_RING_CREDITS);
    w.room = 1;
    assert_int_equal(shm_ring_push(&pair.producer, 1, "ab", 2), 0); /* behind a filler */
    ASSERT_SEEN(&w, SHM_RING_RESERVED, SHM_RING_PUBLISHED);
    assert_int_equal(shm_ring_push(&pair.producer, 1, "ab", 2), HILL_E_WOULD_BLOCK);
    ASSERT_SEEN(&w, SHM_RING_FULL);
    w.helps = true;
    assert_int_equal(shm_ring_push(&pair.producer, 1, "ab", 2), 0);
    ASSERT_SEEN(&w, SHM_RING_FULL, SHM_RING_RESERVED, SHM_RING_PUBLISHED);
    w.room = SHM_RING_NOBODY;
    for (int i = 0; i < 2; i++)
        assert_int_equal(shm_ring_push(&pair.producer, 1, "ab", 2), HILL_E_PEER_GONE);
    ASSERT_SEEN(&w, SHM_RING_RESERVED, SHM_RING_GONE);
    pair_finish(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(init_refuses_bad_capacities),
        cmocka_unit_test(open_refuses_damaged_headers),
        cmocka_unit_test(a_held_end_is_busy),
        cmocka_unit_test(records_come_out_as_they_went_in),
        cmocka_unit_test(an_unpublished_record_is_never_seen),
        cmocka_unit_test(staged_records_appear_at_the_flush),
        cmocka_unit_test(a_full_ring_flushes_what_is_staged),
        cmocka_unit_test(the_record_behind_can_be_looked_at),
        cmocka_unit_test(skipped_records_stay_until_released),
        cmocka_unit_test(room_and_credits_are_exact),
        cmocka_unit_test(a_release_rings_only_a_producer_that_lacked_room),
        cmocka_unit_test(too_large_a_record_is_invalid),
        cmocka_unit_test(two_threads_stream_records),
        cmocka_unit_test(two_threads_stream_in_batches),
        cmocka_unit_test(a_closed_producer_is_drained_first),
        cmocka_unit_test(a_closed_consumer_ends_the_producer),
        cmocka_unit_test(waiting_ends_at_the_deadline),
        cmocka_unit_test(a_peer_not_yet_open_counts_as_there),
        cmocka_unit_test(damaged_record_headers_are_not_followed),
        cmocka_unit_test(indices_out_of_range_are_damage),
        cmocka_unit_test(a_tap_decides_what_a_consumer_finds),
        cmocka_unit_test(a_tap_decides_what_room_a_producer_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

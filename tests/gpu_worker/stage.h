/*
 * tests/gpu_worker/stage.h - coordinator and scorer played by a test, around a real hill-gpu-worker
 * process.
 *
 * The played scorer keeps every entry and selects all of them, staging what is not resident, in GPU
 * slots that are a permutation of the positions. It checks the order of what it is sent.
 * Single-threaded: stage_pump does what is to be done.
 */
#ifndef TESTS_GPU_WORKER_STAGE_H
#define TESTS_GPU_WORKER_STAGE_H

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "proto/envelope.h"
#include "proto/layout.h"
#include "proto/records.h"
#include "shm/arena.h"
#include "tests/gpu_worker/random_model.h"

enum { STAGE_CTX = 192, STAGE_TOKENS = 64 };

struct stage {
    char dir[64], model[96];
    void *context, *control, *heartbeat;
    struct proto_address worker;
    pid_t pid;
    uint64_t run_id;
    uint32_t epoch;
    struct random_model m;
    struct layout_input layout;
    /* the scorer */
    struct shm_segment rings, staging;
    struct shm_ring_end append, query, selection;
    struct shm_arena arena;
    uint32_t entry_bytes, appended[8], resident[8], taken[STAGE_CTX], n_taken;
    uint8_t *entries[8];
    /* what was seen */
    uint32_t n_begins, n_ends, n_steps, n_queries;
    /* what is to go wrong, at the query with this number (counted from 1; 0: never) */
    uint32_t stall_at, refuse_at, old_generation_at, cancel_at;
    uint64_t request_id;
    /* what came back */
    uint32_t tokens[STAGE_TOKENS], n_tokens, n_ready, n_failures;
    bool done;
    Hill__FinishReason finish;
    int code;
    uint64_t logits_hash;
    double busy_ms, idle_ms;
};

static inline void *stage_bind(struct stage *s, const char *file)
{
    char address[128];
    snprintf(address, sizeof address, "ipc://%s/%s", s->dir, file);
    void *socket = zmq_socket(s->context, ZMQ_ROUTER);
    assert_int_equal(zmq_bind(socket, address), 0);
    return socket;
}

/* ---- the scorer ---- */

static inline void stage_leave_epoch(struct stage *s)
{
    shm_ring_close(&s->append);
    shm_ring_close(&s->query);
    shm_ring_close(&s->selection);
    if (s->arena.header)
        shm_arena_finish(&s->arena);
    for (int i = 0; i < 2; i++) {
        struct shm_segment *segment = i ? &s->staging : &s->rings;
        if (segment->base) {
            shm_segment_unlink(segment->name);
            shm_segment_detach(segment);
        }
    }
    memset(&s->append, 0, sizeof s->append);
    memset(&s->query, 0, sizeof s->query);
    memset(&s->selection, 0, sizeof s->selection);
    memset(&s->arena, 0, sizeof s->arena);
    s->n_taken = 0;
}

static inline void stage_enter_epoch(struct stage *s)
{
    char name[SHM_NAME_BYTES];
    struct hill_why why = {0};
    uint64_t fingerprint = layout_fingerprint(&s->layout),
             rings_bytes = layout_rings_bytes(&s->layout);
    stage_leave_epoch(s);
    s->epoch++;
    shm_segment_name(name, s->run_id, s->epoch, "rings");
    assert_int_equal(shm_segment_create(&s->rings, name, rings_bytes, fingerprint, s->epoch, &why),
                     0);
    shm_segment_name(name, s->run_id, s->epoch, "staging");
    assert_int_equal(shm_segment_create(&s->staging, name,
                                        shm_arena_bytes(STAGE_CTX, s->entry_bytes), fingerprint,
                                        s->epoch, &why),
                     0);
    void *rings = shm_segment_payload(&s->rings), *staging = shm_segment_payload(&s->staging);
    assert_int_equal(layout_init(rings, rings_bytes, &s->layout), 0);
    assert_int_equal(shm_arena_init(staging, STAGE_CTX, s->entry_bytes), 0);
    assert_int_equal(shm_arena_own(&s->arena, staging, shm_segment_payload_bytes(&s->staging)), 0);
    assert_int_equal(
        layout_open(&s->append, rings, rings_bytes, &s->layout, RING_APPEND, PARTY_SCORER), 0);
    assert_int_equal(
        layout_open(&s->query, rings, rings_bytes, &s->layout, RING_QUERY, PARTY_SCORER), 0);
    assert_int_equal(
        layout_open(&s->selection, rings, rings_bytes, &s->layout, RING_SELECTION, PARTY_SCORER),
        0);
}

static inline void stage_take_append(struct stage *s, uint32_t type, const void *payload)
{
    const struct record_header *header = payload;
    assert_int_equal(header->epoch, s->epoch);
    if (type == RECORD_SEQ_BEGIN) {
        struct record_seq_ready ready = {.header = *header};
        s->n_begins++;
        s->n_steps = s->n_queries = 0;
        memset(s->appended, 0, sizeof s->appended);
        memset(s->resident, 0, sizeof s->resident);
        assert_int_equal(shm_ring_push(&s->selection, RECORD_SEQ_READY, &ready, sizeof ready), 0);
    } else if (type == RECORD_APPEND) {
        const struct record_append *a = payload;
        assert_int_equal(a->first, s->appended[header->layer]); /* in order, each once */
        assert_true(a->first + a->n_tokens <= STAGE_CTX);
        memcpy(s->entries[header->layer] + (size_t)a->first * s->entry_bytes, a + 1,
               (size_t)a->n_tokens * s->entry_bytes);
        s->appended[header->layer] += a->n_tokens;
    } else if (type == RECORD_STEP_END) {
        for (uint32_t l = 0; l < s->m.shape.n_layers; l++)
            assert_int_equal(s->appended[l], ((const struct record_step_end *)payload)->n_tokens);
        assert_int_equal(header->step, s->n_steps++);
    } else {
        assert_int_equal(type, RECORD_SEQ_END);
        s->n_ends++;
    }
}

static inline uint32_t stage_slot(uint32_t position)
{
    return (position * 5 + 11) % STAGE_CTX; /* a permutation: 5 and 192 share no factor */
}

static inline void stage_answer(struct stage *s, const struct record_query *q)
{
    uint32_t layer = q->header.layer, n = q->n_tokens, n_uploads = n - s->resident[layer],
             number = ++s->n_queries;
    if (number == s->stall_at)
        return;
    if (s->n_taken)
        shm_arena_give(&s->arena, s->n_taken, s->taken);
    assert_int_equal(shm_arena_take(&s->arena, n_uploads, s->taken), 0);
    s->n_taken = n_uploads;
    uint32_t bytes = (uint32_t)(sizeof(struct record_selection) + n * sizeof(struct selected_item) +
                                n_uploads * sizeof(struct selected_upload));
    void *payload;
    assert_int_equal(shm_ring_reserve(&s->selection, bytes, &payload), 0);
    struct record_selection *out = payload;
    struct selected_item *items = (struct selected_item *)(out + 1);
    struct selected_upload *uploads = (struct selected_upload *)(items + n);
    *out = (struct record_selection){q->header, q->query_id, n, n_uploads,
                                     number == s->refuse_at ? HILL_E_DAMAGED : 0};
    for (uint32_t i = 0; i < n; i++)
        items[i] = (struct selected_item){i, stage_slot(i)};
    for (uint32_t i = 0; i < n_uploads; i++) {
        uint32_t position = s->resident[layer] + i, slot = s->taken[i];
        memcpy(shm_arena_slot(&s->arena, slot),
               s->entries[layer] + (size_t)position * s->entry_bytes, s->entry_bytes);
        uploads[i] = (struct selected_upload){slot, shm_arena_generation(&s->arena, slot),
                                              stage_slot(position), 0};
        uploads[i].generation -= number == s->old_generation_at;
    }
    s->resident[layer] = n;
    shm_ring_publish(&s->selection, RECORD_SELECTION, bytes);
}

static inline void stage_send(struct stage *s, Hill__Message *message)
{
    assert_int_equal(proto_send(s->control, &s->worker, message), 0);
}

static inline void stage_cancel(struct stage *s)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Cancel cancel = HILL__CANCEL__INIT;
    cancel.request_id = s->request_id;
    message.body_case = HILL__MESSAGE__BODY_CANCEL;
    message.cancel = &cancel;
    stage_send(s, &message);
}

static inline void stage_pump_rings(struct stage *s)
{
    struct hill_why why = {0};
    uint32_t type, bytes;
    const void *payload;
    while (s->append.ring && shm_ring_peek(&s->append, &type, &payload, &bytes) == 0) {
        if (record_check(type, payload, bytes, &s->layout.geometry, 1, &why))
            fail_msg("%s", why.text);
        stage_take_append(s, type, payload);
        shm_ring_release(&s->append);
    }
    while (s->query.ring && shm_ring_peek(&s->query, &type, &payload, &bytes) == 0) {
        if (record_check(type, payload, bytes, &s->layout.geometry, 1, &why))
            fail_msg("%s", why.text);
        const struct record_query *q = payload;
        assert_int_equal(type, RECORD_QUERY);
        assert_true(s->appended[q->header.layer] >= q->n_tokens); /* N is appended before */
        if (s->n_queries + 1 == s->cancel_at) {
            s->cancel_at = 0;
            s->n_queries++;
            stage_cancel(s);
        } else {
            stage_answer(s, q);
        }
        shm_ring_release(&s->query);
    }
}

/* ---- the coordinator ---- */

static inline void stage_take_message(struct stage *s, const Hill__Message *message)
{
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_READY:
        assert_int_equal(message->ready->epoch, s->epoch);
        s->n_ready++;
        break;
    case HILL__MESSAGE__BODY_TOKEN:
        assert_int_equal(message->token->index, s->n_tokens);
        assert_true(s->n_tokens < STAGE_TOKENS);
        s->tokens[s->n_tokens++] = message->token->token;
        break;
    case HILL__MESSAGE__BODY_DONE:
        s->done = true;
        s->finish = message->done->finish;
        s->code = message->done->code;
        s->logits_hash = message->done->logits_hash;
        s->busy_ms = message->done->gpu_busy_ms;
        s->idle_ms = message->done->gpu_idle_ms;
        break;
    case HILL__MESSAGE__BODY_FAILURE:
        print_message("failure: %s\n", message->failure->text);
        s->n_failures++;
        break;
    case HILL__MESSAGE__BODY_HELLO:
    case HILL__MESSAGE__BODY_PROGRESS:
        break;
    default:
        fail_msg("an unexpected message %d", (int)message->body_case);
    }
}

static inline void stage_pump(struct stage *s)
{
    Hill__Message *message;
    struct proto_address from;
    stage_pump_rings(s);
    while (proto_receive(s->control, &from, &message, NULL) == 0) {
        s->worker = from;
        stage_take_message(s, message);
        proto_free(message);
    }
    while (proto_receive(s->heartbeat, &from, &message, NULL) == 0)
        proto_free(message);
    usleep(200);
}

#define STAGE_UNTIL(s, condition)                                                                  \
    do {                                                                                           \
        int64_t until_ = clock_deadline_ms(60000);                                                 \
        while (!(condition)) {                                                                     \
            stage_pump(s);                                                                         \
            if (clock_now_ns() > until_)                                                           \
                fail_msg("after 60 s still not: %s", #condition);                                  \
        }                                                                                          \
    } while (0)

static inline void stage_configure(struct stage *s)
{
    const struct random_shape *m = &s->m.shape;
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Configure c = HILL__CONFIGURE__INIT;
    Hill__Selection selection = HILL__SELECTION__INIT;
    selection.alpha = 1;
    c.run_id = s->run_id;
    c.epoch = s->epoch;
    c.model_path = s->model;
    c.n_layers = m->n_layers;
    c.n_heads = m->n_heads;
    c.n_kv_heads = m->n_kv_heads;
    c.head_dim = m->head_dim;
    c.ctx_tokens = c.gpu_slots = STAGE_CTX;
    c.n_sequences = 1;
    c.batch_tokens = 32;
    c.threads = 1;
    c.block_tokens = 256;
    c.selection = &selection;
    c.staging_slots = STAGE_CTX;
    c.gpu_kv_cap_bytes = 64 << 20;
    c.csd_url = c.device = c.simd = c.importance = (char *)"";
    c.n_embd = m->n_embd;
    c.n_ff = m->n_ff;
    c.n_vocab = m->n_vocab;
    message.body_case = HILL__MESSAGE__BODY_CONFIGURE;
    message.configure = &c;
    stage_send(s, &message);
}

static inline void stage_request(struct stage *s, const uint32_t *tokens, uint32_t n,
                                 uint32_t predict, uint32_t stop)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Prefill p = HILL__PREFILL__INIT;
    Hill__Sampling sampling = HILL__SAMPLING__INIT;
    Hill__Selection selection = HILL__SELECTION__INIT;
    selection.alpha = 1;
    sampling.top_p = sampling.repeat_penalty = 1;
    p.request_id = ++s->request_id;
    p.tokens = (uint32_t *)tokens;
    p.n_tokens = n;
    p.predict = predict;
    p.sampling = &sampling;
    p.selection = &selection;
    p.stop_tokens = &stop;
    p.n_stop_tokens = stop != UINT32_MAX;
    message.body_case = HILL__MESSAGE__BODY_PREFILL;
    message.prefill = &p;
    s->n_tokens = 0;
    s->done = false;
    stage_send(s, &message);
}

static inline void stage_open(struct stage *s, const struct random_shape *shape,
                              const char *program)
{
    struct hill_why why = {0};
    memset(s, 0, sizeof *s);
    snprintf(s->dir, sizeof s->dir, "/tmp/hill-test-gpu-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->model, sizeof s->model, "%s/model.gguf", s->dir);
    struct blob bytes = random_model_build(&s->m, shape, 5);
    FILE *f = fopen(s->model, "wb");
    assert_int_equal(fwrite(bytes.data, 1, bytes.size, f), bytes.size);
    fclose(f);
    free(bytes.data);
    assert_int_equal(gguf_open(&s->m.file, s->model, &why), 0);
    assert_int_equal(model_hparams_read(&s->m.hp, s->m.file, &why), 0);
    s->layout = (struct layout_input){
        {shape->n_layers, shape->n_heads, shape->n_kv_heads, shape->head_dim}, STAGE_CTX, 1};
    s->entry_bytes = kv_entry_bytes(&s->layout.geometry);
    for (uint32_t l = 0; l < shape->n_layers; l++)
        s->entries[l] = calloc(STAGE_CTX, s->entry_bytes);
    s->run_id = UINT64_C(0x7e57000000000000) + (uint64_t)getpid();
    s->context = zmq_ctx_new();
    s->control = stage_bind(s, "worker.sock");
    s->heartbeat = stage_bind(s, "heartbeat.sock");
    s->pid = fork();
    if (s->pid == 0) {
        execl(program, program, "--run-dir", s->dir, "--log-level", "warn", (char *)NULL);
        _exit(127);
    }
    STAGE_UNTIL(s, s->worker.length > 0);
}

/* The worker's exit status after SIGTERM. */
static inline int stage_close(struct stage *s)
{
    int status = -1;
    char path[128];
    kill(s->pid, SIGTERM);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    stage_leave_epoch(s);
    zmq_close(s->control);
    zmq_close(s->heartbeat);
    zmq_ctx_term(s->context);
    for (uint32_t l = 0; l < s->m.shape.n_layers; l++)
        free(s->entries[l]);
    random_model_free(&s->m);
    static const char *const files[] = {"model.gguf", "worker.sock", "heartbeat.sock"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", s->dir, files[i]);
        unlink(path);
    }
    rmdir(s->dir);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif

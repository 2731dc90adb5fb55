/*
 * tests/cpu_scorer/rig_gpu.c - the fake GPU worker: begins requests, appends random entries, asks,
 * and has each answer compared by the oracle. Interface: pipeline_rig.h.
 */
#include "tests/cpu_scorer/pipeline_rig.h"

void gpu_push(struct rig *r, enum layout_ring ring, uint32_t type, const void *record,
              uint32_t bytes)
{
    int64_t deadline = clock_deadline_ms(60000);
    int rc;
    while ((rc = shm_ring_push(&r->gpu[ring], type, record, bytes)) == HILL_E_WOULD_BLOCK &&
           clock_now_ns() < deadline)
        shm_ring_wait(&r->gpu[ring], bytes, deadline);
    assert_int_equal(rc, 0);
}

const void *gpu_wait(struct rig *r, uint32_t expected)
{
    uint32_t type, bytes;
    const void *payload;
    assert_int_equal(shm_ring_wait(&r->gpu[RING_SELECTION], 0, clock_deadline_ms(60000)), 0);
    assert_int_equal(shm_ring_peek(&r->gpu[RING_SELECTION], &type, &payload, &bytes), 0);
    assert_int_equal(record_check(type, payload, bytes, &rig_geometry, RIG_SEQUENCES_MAX, NULL), 0);
    assert_int_equal(type, expected);
    return payload;
}

struct record_header gpu_header(const struct rig_request *q, uint32_t layer)
{
    return (struct record_header){RIG_EPOCH, q->sequence, q->step, layer};
}

static struct record_seq_begin begin_of(const struct rig_request *q, uint32_t prompt, uint32_t max)
{
    const struct kv_selection_settings *settings = &q->settings;
    return (struct record_seq_begin){.header = gpu_header(q, 0),
                                     .request_id = q->request_id,
                                     .prompt_tokens = prompt,
                                     .max_tokens = max,
                                     .alpha = settings->alpha,
                                     .budget = settings->budget,
                                     .sinks = settings->sinks,
                                     .window = settings->window,
                                     .policy = settings->policy,
                                     .importance = settings->importance,
                                     .reads_hot = q->rig->reads_hot,
                                     .identity = q->request_id,
                                     .past_tokens = q->rig->past_tokens};
}

void gpu_push_begin(const struct rig_request *q, uint32_t max)
{
    const struct record_seq_begin begin = begin_of(q, q->n, max);
    gpu_push(q->rig, RING_APPEND, RECORD_SEQ_BEGIN, &begin, sizeof begin);
}

void gpu_go_on(struct rig_request *q, struct rig *r, uint32_t prompt, uint32_t max,
               uint32_t adopt_min, uint32_t adopt_max, struct rig_ready *out)
{
    q->rig = r;
    q->n_reading = q->n_staged = 0;
    struct record_seq_begin begin = begin_of(q, prompt, max);
    begin.adopt_min = adopt_min;
    begin.adopt_max = adopt_max;
    gpu_push(r, RING_APPEND, RECORD_SEQ_BEGIN, &begin, sizeof begin);
    const struct record_seq_ready *ready = gpu_wait(r, RECORD_SEQ_READY);
    out->ready = *ready;
    memcpy(out->damaged, ready + 1, ready->n_damaged * sizeof *out->damaged);
    shm_ring_release(&r->gpu[RING_SELECTION]);
}

void gpu_append_again(struct rig_request *q, uint32_t layer, uint32_t position)
{
    struct {
        struct record_append append;
        uint8_t entry[RIG_ENTRY];
    } out = {.append = {.header = gpu_header(q, layer), .first = position, .n_tokens = 1}};
    memcpy(out.entry, q->entries[layer][position], RIG_ENTRY);
    if (q->spoil)
        memcpy(out.entry + sizeof q->spoil * q->spoil_at, &q->spoil, sizeof q->spoil);
    gpu_push(q->rig, RING_APPEND, RECORD_APPEND, &out, sizeof out);
}

struct rig_request *gpu_begin(struct rig *r, uint32_t sequence, uint32_t prompt, uint32_t max,
                              const struct kv_selection_settings *settings, int expected_status)
{
    struct rig_request *q = calloc(1, sizeof *q);
    assert_int_equal(kv_group_bytes(&rig_geometry), RIG_GROUP_BYTES);
    q->rig = r;
    q->sequence = sequence;
    q->request_id = 1000 + sequence;
    q->random = 4711 + sequence;
    q->settings = *settings;
    q->n = prompt;
    q->check = true;
    q->hash = XXH64_createState();
    XXH64_reset(q->hash, 0);
    gpu_push_begin(q, max);
    const struct record_seq_ready *ready = gpu_wait(r, RECORD_SEQ_READY);
    assert_int_equal(ready->status, expected_status);
    if (r->reads_hot && !expected_status) {
        const struct hkm *tables = scorer_tables(r->pipeline);
        assert_ptr_equal((uint8_t *)r->hot_memory + 64ull * ready->hot_offset, tables->entries);
        assert_int_equal(ready->hot_entries, tables->n_blocks * KV_HOT_BLOCK_TOKENS);
    } else {
        assert_int_equal(ready->hot_entries, 0);
    }
    shm_ring_release(&r->gpu[RING_SELECTION]);
    return q;
}

static uint16_t rig_half(uint64_t *random)
{
    return (uint16_t)(rig_random(random, 2) << 15 | (9 + rig_random(random, 9)) << 10 |
                      rig_random(random, 1024));
}

/* The eight columns of each KV head with the largest sums over the first n tokens. */
static void rig_keep_columns(struct rig_request *q, uint32_t layer, uint32_t n)
{
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t d = 0; d < 16; d++) {
            double sums[16] = {0};
            uint32_t before = 0;
            for (uint32_t i = 0; i < n * 16; i++)
                sums[i % 16] += fabs(rig_half_value(q->entries[layer][i / 16][h * 16 + i % 16]));
            for (uint32_t other = 0; other < 16; other++)
                before += sums[other] > sums[d] || (sums[other] == sums[d] && other < d);
            q->kept[layer][h][d] = before < 8;
        }
}

void gpu_append(struct rig_request *q, uint32_t layer, uint32_t n)
{
    struct {
        struct record_append append;
        uint8_t entries[24][RIG_ENTRY];
    } out = {.append = {.header = gpu_header(q, layer), .first = q->appended[layer]}};
    out.append.n_tokens = n;
    for (uint32_t i = 0; i < n; i++) {
        uint16_t *entry = q->entries[layer][q->appended[layer] + i];
        for (uint32_t j = 0; j < RIG_ENTRY / 2; j++)
            entry[j] = rig_half(&q->random);
        memcpy(out.entries[i], entry, RIG_ENTRY);
        if (q->spoil && i + 1 == n)
            memcpy(out.entries[i] + sizeof q->spoil * q->spoil_at, &q->spoil, sizeof q->spoil);
        kv_digest_keys(&rig_geometry, entry, RIG_ENTRY / 2, 1, q->digests[layer],
                       q->appended[layer] + i);
    }
    if (q->appended[layer] == 0)
        rig_keep_columns(q, layer, n);
    gpu_push(q->rig, RING_APPEND, RECORD_APPEND, &out,
             (uint32_t)(sizeof out.append + n * RIG_ENTRY));
    q->appended[layer] += n;
}

void gpu_finish_reading(struct rig_request *q)
{
    if (q->n_reading && q->linger_us)
        usleep(q->linger_us);
    gpu_check_reading(q);
    q->n_reading = q->n_staged = 0;
}

static void gpu_reads_done(struct rig_request *q)
{
    struct record_reads_done done = {.header = gpu_header(q, 0), .request_id = q->request_id};
    gpu_finish_reading(q);
    if (q->rig->reads_hot)
        gpu_push(q->rig, RING_QUERY, RECORD_READS_DONE, &done, sizeof done);
}

void gpu_step_end(struct rig_request *q)
{
    gpu_reads_done(q);

    struct record_step_end end = {.header = gpu_header(q, 0), .n_tokens = q->n};
    gpu_push(q->rig, RING_APPEND, RECORD_STEP_END, &end, sizeof end);
    q->step++;
}

void gpu_weigh(struct rig_request *q, uint32_t layer)
{
    for (uint32_t first = 0; first < q->n; first += 100) {
        uint32_t n = q->n - first < 100 ? q->n - first : 100;
        struct {
            struct record_mass mass;
            float values[100];
        } out = {.mass = {.header = gpu_header(q, layer), .first = first, .n_tokens = n}};
        for (uint32_t i = 0; i < n; i++) {
            out.values[i] = (float)rig_random(&q->random, 1000) / 500;
            q->seen[layer][first + i] += out.values[i];
        }
        gpu_push(q->rig, RING_APPEND, RECORD_MASS, &out,
                 (uint32_t)(sizeof out.mass + n * sizeof(float)));
    }
}

void gpu_prefill(struct rig_request *q)
{
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        while (q->appended[layer] < q->n) {
            uint32_t left = q->n - q->appended[layer];
            gpu_append(q, layer, left < 24 ? left : 24);
        }
        if (q->settings.policy == KV_POLICY_H2O)
            gpu_weigh(q, layer);
    }
    gpu_step_end(q);
}

void gpu_fill_question(struct rig_request *q, uint32_t layer, uint32_t n, enum query_kind kind,
                       struct rig_question *out)
{
    *out = (struct rig_question){.query = {.header = gpu_header(q, layer),
                                           .query_id = ++q->query_id * 2 + q->sequence,
                                           .kind = kind,
                                           .n_heads = 4,
                                           .n_tokens = n,
                                           .request_id = q->request_id}};
    for (int i = 0; i < 64; i++)
        out->q[i] = (float)(int)(rig_random(&q->random, 2001)) / 1000.0f - 1.0f;
}

void gpu_ask(struct rig_request *q, uint32_t layer, uint32_t n, bool append_first,
             struct rig_question *out)
{
    gpu_finish_reading(q);
    gpu_fill_question(q, layer, n, QUERY_EXACT, out);
    if (append_first)
        gpu_append(q, layer, 1);
    gpu_push(q->rig, RING_QUERY, RECORD_QUERY, out, sizeof *out);
    if (!append_first && q->appended[layer] == n)
        gpu_append(q, layer, 1);
}

int gpu_answer(struct rig_request *q, uint32_t layer, uint32_t n, const struct rig_question *asked)
{
    const struct record_selection *answer = gpu_wait(q->rig, RECORD_SELECTION);
    assert_int_equal(answer->query_id, asked->query.query_id);
    int status = answer->status;
    if (status == 0)
        oracle_check_answer(q, layer, n, asked->q, answer);
    else
        assert_int_equal(answer->n_selected, 0);
    shm_ring_release(&q->rig->gpu[RING_SELECTION]);
    return status;
}

int gpu_query(struct rig_request *q, uint32_t layer, uint32_t n, bool append_first)
{
    struct rig_question asked;
    gpu_ask(q, layer, n, append_first, &asked);
    return gpu_answer(q, layer, n, &asked);
}

int gpu_decode(struct rig_request *q)
{
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        int status = gpu_query(q, layer, q->n, (q->step + layer) % 2);
        if (status)
            return status;
    }
    q->n++;
    gpu_step_end(q);
    return 0;
}

void gpu_decode_settled(struct rig_request *q, uint32_t steps)
{
    for (uint32_t i = 1; i <= steps; i++) {
        assert_int_equal(gpu_decode(q), 0);
        if (i % 4 == 0 || i == steps)
            rig_settle(q->rig);
    }
}

int gpu_decode_guessed(struct rig_request *q, enum query_kind kind)
{
    struct rig_question asked[RIG_LAYERS], exact;
    int status = 0;
    for (uint32_t layer = 0; layer < RIG_LAYERS && !status; layer++) {
        gpu_finish_reading(q);
        if (layer == 0) {
            gpu_ask(q, 0, q->n, q->step % 2, &asked[0]);
        } else if (kind == QUERY_AHEAD) { /* the exact query is not quite what was guessed */
            gpu_fill_question(q, layer, q->n, QUERY_EXACT, &exact);
            memcpy(exact.q, asked[layer].q, sizeof exact.q - 16 * sizeof *exact.q);
            oracle_recall(q, layer, q->n, asked[layer].q, exact.q);
            asked[layer] = exact;
            gpu_push(q->rig, RING_QUERY, RECORD_QUERY, &exact, sizeof exact);
        }
        if (q->appended[layer] == q->n)
            gpu_append(q, layer, 1);
        if (layer + 1 < RIG_LAYERS) {
            gpu_fill_question(q, layer + 1, q->n, kind, &asked[layer + 1]);
            gpu_push(q->rig, RING_QUERY, RECORD_QUERY, &asked[layer + 1], sizeof asked[0]);
        }
        status = gpu_answer(q, layer, q->n, &asked[layer]);
    }
    if (status)
        return status;
    q->n++;
    gpu_step_end(q);
    return 0;
}

void gpu_free(struct rig_request *q)
{
    XXH64_freeState(q->hash);
    free(q);
}

struct scorer_stats gpu_end(struct rig_request *q)
{
    struct rig *r = q->rig;
    struct record_seq_end end = {.header = gpu_header(q, 0), .request_id = q->request_id};
    gpu_push(r, RING_APPEND, RECORD_SEQ_END, &end, sizeof end);
    const struct record_seq_stats *stats = gpu_wait(r, RECORD_SEQ_STATS);
    assert_int_equal(stats->request_id, q->request_id);
    struct scorer_stats answer = r->stats;
    shm_ring_release(&r->gpu[RING_SELECTION]);
    gpu_free(q);
    return answer;
}

bool nothing_was_said(struct rig *r)
{
    uint32_t type, bytes;
    const void *payload;
    return shm_ring_peek(&r->gpu[RING_SELECTION], &type, &payload, &bytes) == HILL_E_WOULD_BLOCK;
}

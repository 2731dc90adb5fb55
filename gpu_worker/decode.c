/*
 * gpu_worker/decode.c - a step: the tokens of some sequences through the layers, attention over
 * selected entries. See engine.h.
 *
 * One launch a layer where launches are dear (devices that share the host's memory): from the
 * uploads of a layer to the query of the next, or the logits; the host waits once a layer,
 * uploads that are attended to are read from staging and written to their slots in one go, and hot
 * entries are read where they lie. Where all lists are there before the first layer begins, one
 * launch and one wait are enough for the whole step; lists and new entries of all layers are kept
 * side by side for that.
 * Elsewhere the same phases run one by one, after uploads have been scattered. A new token's
 * entry is the last item of its row's list. The guessed query of layer i + 1 is made of layer i's
 * input by the same phase that makes layer i's own query, so it takes no launch of its own and is
 * there before the attention of layer i.
 */
#include <string.h>

#include "gpu_worker/engine_internal.h"

/* What the host wrote, for the device; the host leaves it alone until the next await(). */
static int push_part(struct engine *e, const struct shared_buffer *b, uint64_t offset,
                     uint64_t bytes, struct hill_why *why)
{
    if (e->device.shares_memory || bytes == 0)
        return 0;
    return cldevice_check(clEnqueueWriteBuffer(e->queue, b->device.mem, CL_FALSE, offset, bytes,
                                               (const uint8_t *)b->host + offset, 0, NULL, NULL),
                          "cannot write to the device", why);
}

static int push(struct engine *e, const struct shared_buffer *b, uint64_t bytes,
                struct hill_why *why)
{
    return push_part(e, b, 0, bytes, why);
}

/* What the device is going to write, for the host: there after the next await(). */
static int pull(struct engine *e, const struct shared_buffer *b, uint64_t bytes,
                struct hill_why *why)
{
    if (e->device.shares_memory)
        return 0;
    return cldevice_check(
        clEnqueueReadBuffer(e->queue, b->device.mem, CL_FALSE, 0, bytes, b->host, 0, NULL, NULL),
        "cannot read from the device", why);
}

/* Everything that was launched is done. */
static int await(struct engine *e, struct hill_why *why)
{
    return cldevice_check(clFinish(e->queue), "the device failed", why);
}

/* Of what is kept for every layer, where this layer's begins, in rows. */
static uint32_t first_row(const struct engine *e, uint32_t layer)
{
    return e->layers_kept > 1 ? layer * e->n_sequences : 0;
}

/* Pairs: how many items a row's list of a layer has (0: there is none), its first tile. */
static uint32_t *list_of(const struct engine *e, uint32_t layer, uint32_t row)
{
    return (uint32_t *)e->lists.host + 2ull * (first_row(e, layer) + row);
}

/* The queries and entries of `layer` and the guess of the one after it, or with n_layers the
 * logits, come next to the host. */
static int pull_results(struct engine *e, uint32_t layer, struct hill_why *why)
{
    if (layer == e->hp.n_layers)
        return pull(e, &e->logits, 4ull * e->n_rows * logits_stride(e), why);
    int rc = pull(e, &e->step_q, 4ull * e->n_rows * q_stride(e), why);
    if (!rc && engine_guesses(e, layer + 1))
        rc = pull(e, &e->step_guess, 4ull * e->n_rows * q_stride(e), why);
    return rc ? rc : pull(e, &e->fresh, 2ull * e->n_rows * fresh_stride(e), why);
}

/* Stages first .. end - 1 (decode_launch.c), and what the last one gives. */
static int launch(struct engine *e, uint32_t first, uint32_t end, enum phase phase,
                  struct hill_why *why)
{
    int rc = decode_launch(e, first, end, phase, why);
    if (!rc)
        rc = pull_results(e, end - 1, why);
    return rc ? rc : cldevice_check(clFlush(e->queue), "the device failed", why);
}

/* Before a layer's uploads are noted. */
static void expect_layer(struct engine *e, uint32_t layer)
{
    e->next_layer = layer;
    e->awaited = false;
    e->n_uploads = e->n_attended = 0;
    for (uint32_t r = 0; r < e->n_rows; r++)
        e->rows[r] = (struct step_row){.sequence = e->rows[r].sequence};
}

static int take_rows(struct engine *e, uint32_t n_rows, const struct engine_row *rows,
                     struct hill_why *why)
{
    uint64_t seen = 0; /* a bit a sequence */
    _Static_assert(ENGINE_SEQUENCES_MAX <= 64, "a bit a sequence");
    if (n_rows == 0 || n_rows > e->n_sequences)
        return hill_fail(why, HILL_E_INVALID, "%u rows for %u sequences", n_rows, e->n_sequences);
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t sequence = rows[r].sequence;
        if (sequence >= e->n_sequences || seen >> sequence & 1)
            return hill_fail(why, HILL_E_INVALID, "sequence %u is twice in a step or not there",
                             sequence);
        seen |= UINT64_C(1) << sequence;
        int rc = engine_embedding(e, rows[r].token, rows[r].position,
                                  (float *)e->x.host + r * e->hidden_stride, why);
        if (rc)
            return rc;
        for (uint32_t table = 0; table < model_rope_tables(&e->hp); table++)
            engine_turns(e, table, rows[r].position,
                         (float *)e->turn.host +
                             ((size_t)table * e->n_sequences + r) * e->hp.rope_dims);
        e->rows[r].sequence = sequence;
    }
    e->n_rows = n_rows;
    return 0;
}

int engine_step_begin(struct engine *e, uint32_t n_rows, const struct engine_row *rows,
                      struct hill_why *why)
{
    e->next_layer = UINT32_MAX;
    e->untouched = false;
    int rc = await(e, why);
    if (!rc)
        rc = take_rows(e, n_rows, rows, why);
    if (!rc)
        rc = push(e, &e->x, 4ull * n_rows * e->hidden_stride, why);
    if (!rc)
        rc = push(e, &e->turn, 4ull * e->n_sequences * e->hp.rope_dims * model_rope_tables(&e->hp),
                  why);
    if (rc)
        return rc;
    memset(e->lists.host, 0, 8ull * e->n_sequences * e->layers_kept);
    expect_layer(e, 0);
    e->untouched = true;
    return 0;
}

bool engine_steps_ahead(const struct engine *e)
{
    return e->layers_kept > 1;
}

static void copy_entry(const struct engine *e, uint32_t layer, uint32_t row, void *entry)
{
    memcpy(entry,
           (const uint16_t *)e->fresh.host + ((size_t)first_row(e, layer) + row) * fresh_stride(e),
           e->entry_bytes);
}

int engine_step_query(struct engine *e, uint32_t layer, uint32_t row, float *q, void *entry,
                      struct hill_why *why)
{
    if (layer != e->next_layer || layer >= e->hp.n_layers || row >= e->n_rows)
        return hill_fail(why, HILL_E_INVALID, "row %u of layer %u is out of order", row, layer);
    int rc = e->untouched ? launch(e, 0, 1, PHASE_QUANT_QKV, why) : 0;
    e->untouched = false;
    if (!rc && !e->awaited)
        rc = await(e, why);
    if (rc)
        return rc;
    for (uint32_t r = 0; !e->awaited && e->layers_kept == 1 && r < e->n_rows; r++)
        *list_of(e, layer, r) = 0; /* the device has read the last layer's */
    e->awaited = true;
    if (q)
        memcpy(q, (const float *)e->step_q.host + (size_t)row * q_stride(e),
               4ull * e->hp.n_heads * e->hp.head_dim);
    copy_entry(e, layer, row, entry);
    return 0;
}

int engine_step_entry(struct engine *e, uint32_t layer, uint32_t row, void *entry,
                      struct hill_why *why)
{
    if (e->layers_kept == 1 || e->next_layer != e->hp.n_layers || !e->awaited ||
        layer >= e->hp.n_layers || row >= e->n_rows)
        return hill_fail(why, HILL_E_INVALID, "the entry of row %u, layer %u is out of order", row,
                         layer);
    copy_entry(e, layer, row, entry);
    return 0;
}

int engine_step_guess(struct engine *e, uint32_t layer, uint32_t row, float *q,
                      struct hill_why *why)
{
    if (!engine_guesses(e, layer) || layer != e->next_layer + 1 || !e->awaited || row >= e->n_rows)
        return hill_fail(why, HILL_E_INVALID, "the guess of row %u, layer %u is out of order", row,
                         layer);
    memcpy(q, (const float *)e->step_guess.host + (size_t)row * q_stride(e),
           4ull * e->hp.n_heads * e->hp.head_dim);
    return 0;
}

static uint32_t first_slot(const struct engine *e, uint32_t row)
{
    return e->rows[row].sequence * e->gpu_slots;
}

/* Entries side by side in staging go to the device as one piece; a batch in more pieces than this
 * is put together first. */
#define PIECES_MOST 32u

/* How many of the uploads lie side by side, upwards or downwards (then *down). */
static uint32_t piece_length(const struct engine_upload *uploads, uint32_t count, bool *down)
{
    uint32_t n = 1;
    *down = count > 1 && uploads[1].staging_slot + 1 == uploads[0].staging_slot;
    while (n < count && (*down ? uploads[n].staging_slot + 1 == uploads[n - 1].staging_slot
                               : uploads[n].staging_slot == uploads[n - 1].staging_slot + 1))
        n++;
    return n;
}

static bool goes_in_pieces(const struct engine *e, uint32_t count,
                           const struct engine_upload *uploads)
{
    uint32_t pieces = 0;
    bool down;
    if (!e->staging || e->staging_stride != e->entry_bytes)
        return false;
    for (uint32_t i = 0; i < count && pieces <= PIECES_MOST; pieces++)
        i += piece_length(uploads + i, count - i, &down);
    return pieces <= PIECES_MOST;
}

static int write_entries(struct engine *e, const struct upload_half *h, uint32_t first,
                         uint32_t count, const uint8_t *from, cl_uint n_after,
                         const cl_event *after, struct hill_why *why)
{
    return cldevice_check(clEnqueueWriteBuffer(e->read_queue, h->entries.mem, CL_FALSE,
                                               (uint64_t)first * e->entry_bytes,
                                               (uint64_t)count * e->entry_bytes, from, n_after,
                                               after, NULL),
                          "cannot write entries to the device", why);
}

/* Straight from staging, where the device can read that; pairs: which entry goes where. */
static int send_pieces(struct engine *e, const struct upload_half *h, uint32_t *pairs,
                       uint32_t table, uint32_t count, const struct engine_upload *uploads,
                       cl_uint n_after, const cl_event *after, struct hill_why *why)
{
    int rc = 0;
    for (uint32_t i = 0, n; !rc && i < count; i += n) {
        bool down;
        n = piece_length(uploads + i, count - i, &down);
        for (uint32_t j = 0; j < n; j++) {
            pairs[2 * (i + j)] = down ? i + n - 1 - j : i + j;
            pairs[2 * (i + j) + 1] = table + uploads[i + j].gpu_slot;
        }
        uint64_t lowest = uploads[down ? i + n - 1 : i].staging_slot;
        rc = write_entries(e, h, i, n, e->staging_slots + lowest * e->staging_stride, n_after,
                           after, why);
    }
    return rc;
}

/* Through pinned memory. */
static int send_copies(struct engine *e, const struct upload_half *h, uint32_t *pairs,
                       uint32_t table, uint32_t count, const struct engine_upload *uploads,
                       cl_uint n_after, const cl_event *after, struct hill_why *why)
{
    for (uint32_t i = 0; i < count; i++) {
        memcpy(h->host + (uint64_t)i * e->entry_bytes,
               e->staging_slots + uploads[i].staging_slot * e->staging_stride, e->entry_bytes);
        pairs[2 * i] = i;
        pairs[2 * i + 1] = table + uploads[i].gpu_slot;
    }
    return write_entries(e, h, 0, count, h->host, n_after, after, why);
}

/* A batch goes to the device through the second queue, and is scattered from there. */
static int send_batch(struct engine *e, uint32_t layer, uint32_t table, uint32_t count,
                      const struct engine_upload *uploads, struct hill_why *why)
{
    struct upload_half *h = &e->halves[e->next_half++ % 2];
    uint32_t *pairs = (uint32_t *)(void *)(h->host + (uint64_t)UPLOAD_BATCH * e->entry_bytes);
    int rc =
        h->written ? cldevice_check(clWaitForEvents(1, &h->written), "the device failed", why) : 0;
    if (rc)
        return rc;
    engine_forget_event(&h->written);
    cl_uint n_after = h->scattered ? 1 : 0;
    const cl_event *after = n_after ? &h->scattered : NULL;
    rc = goes_in_pieces(e, count, uploads)
             ? send_pieces(e, h, pairs, table, count, uploads, n_after, after, why)
             : send_copies(e, h, pairs, table, count, uploads, n_after, after, why);
    if (!rc)
        rc = cldevice_check(clEnqueueWriteBuffer(e->read_queue, h->list.mem, CL_FALSE, 0,
                                                 8ull * count, pairs, n_after, after, &h->written),
                            "cannot write entries to the device", why);
    if (!rc)
        rc = cldevice_check(clFlush(e->read_queue), "the device failed", why);
    if (rc)
        return rc;
    engine_forget_event(&h->scattered);
    rc = decode_launch_scatter(e, layer, h, count, why);
    if (rc)
        return rc;
    /* the second queue waits for it (OpenCL 1.2, 5.13: only what is flushed is sure to end) */
    return cldevice_check(clFlush(e->queue), "the device failed", why);
}

/* Noted until engine_step_run: the kernel reads staging itself. A row's uploads lie side by side.
 */
static int note_uploads(struct engine *e, uint32_t row, uint32_t count,
                        const struct engine_upload *uploads, struct hill_why *why)
{
    struct step_row *r = &e->rows[row];
    uint32_t *pairs = (uint32_t *)e->uploads.host + 2ull * e->n_uploads;
    if (r->n_uploads || count > e->gpu_slots)
        return hill_fail(why, HILL_E_INVALID, "row %u has more uploads than GPU slots", row);
    for (uint32_t i = 0; i < count; i++) {
        pairs[2 * i] = uploads[i].staging_slot;
        pairs[2 * i + 1] = first_slot(e, row) + uploads[i].gpu_slot;
    }
    r->first_upload = e->n_uploads;
    r->n_uploads = count;
    e->n_uploads += count;
    return 0;
}

int engine_step_upload(struct engine *e, uint32_t layer, uint32_t row, uint32_t count,
                       const struct engine_upload *uploads, struct hill_why *why)
{
    if (layer != e->next_layer || !e->awaited || row >= e->n_rows || *list_of(e, layer, row))
        return hill_fail(why, HILL_E_INVALID, "uploads of row %u, layer %u are out of order", row,
                         layer);
    for (uint32_t i = 0; i < count; i++)
        if (uploads[i].gpu_slot >= e->gpu_slots || uploads[i].staging_slot >= e->staging_count)
            return hill_fail(
                why, HILL_E_INVALID, "staging slot %u of %u or GPU slot %u of %u is out of range",
                uploads[i].staging_slot, e->staging_count, uploads[i].gpu_slot, e->gpu_slots);
    if (e->device.shares_memory)
        return note_uploads(e, row, count, uploads, why);
    int rc = 0;
    for (uint32_t first = 0; !rc && first < count; first += UPLOAD_BATCH) {
        uint32_t n = count - first < UPLOAD_BATCH ? count - first : UPLOAD_BATCH;
        rc = send_batch(e, layer, first_slot(e, row), n, uploads + first, why);
    }
    return rc;
}

/* The list of a row's attention: entries that are uploaded now are read from staging. */
static void list_items(struct engine *e, uint32_t layer, uint32_t row, uint32_t n,
                       const uint32_t *slots)
{
    struct step_row *r = &e->rows[row];
    uint32_t *items =
        (uint32_t *)e->items.host + ((size_t)first_row(e, layer) + row) * (e->gpu_slots + 1);
    uint32_t table = first_slot(e, row), *pairs = e->uploads.host;
    uint32_t end = r->first_upload + r->n_uploads;
    /* the attention may read past the last value of an entry, but not past staging */
    bool direct = r->n_uploads && e->hp.head_dim % 16 == 0;
    for (uint32_t u = r->first_upload; direct && u < end; u++)
        e->upload_of[pairs[2 * u + 1] - table] = u + 1;
    for (uint32_t i = 0; i < n; i++) {
        if (slots[i] & ENGINE_HOT) {
            items[i] = ITEM_HOT | (slots[i] & ~ENGINE_HOT);
            continue;
        }
        uint32_t u = direct ? e->upload_of[slots[i]] : 0;
        items[i] = u ? ITEM_STAGED | (u - 1) : table + slots[i];
        if (u && !(pairs[2 * (u - 1)] & UPLOAD_ATTENDED)) {
            pairs[2 * (u - 1)] |= UPLOAD_ATTENDED;
            e->n_attended++;
        }
    }
    items[n] = ITEM_FRESH;
    for (uint32_t u = r->first_upload; direct && u < end; u++)
        e->upload_of[pairs[2 * u + 1] - table] = 0;
    *list_of(e, layer, row) = n + 1;
}

/* May lists of the layer be made now? It is next, or nothing of the step is launched. */
static bool may_list(const struct engine *e, uint32_t layer, uint32_t row)
{
    bool now = layer == e->next_layer && e->awaited;
    bool ahead = e->untouched && e->layers_kept > 1 && layer < e->hp.n_layers;
    return (now || ahead) && row < e->n_rows;
}

int engine_step_attend(struct engine *e, uint32_t layer, uint32_t row, uint32_t n_slots,
                       const uint32_t *slots, struct hill_why *why)
{
    /* of a row that has failed meanwhile there may be a list */
    if (!may_list(e, layer, row) || n_slots > e->gpu_slots || (n_slots && *list_of(e, layer, row)))
        return hill_fail(why, HILL_E_INVALID,
                         "row %u of layer %u with %u entries is out of order or range", row, layer,
                         n_slots);
    for (uint32_t i = 0; i < n_slots; i++) {
        uint32_t most = slots[i] & ENGINE_HOT ? e->hot_entries : e->gpu_slots;
        if ((slots[i] & ~ENGINE_HOT) >= most)
            return hill_fail(why, HILL_E_INVALID, "slot %x of %u", slots[i], most);
    }
    list_items(e, layer, row, n_slots, slots);
    return push_part(e, &e->items, 4ull * row * (e->gpu_slots + 1), 4ull * (n_slots + 1), why);
}

/* Where each row's tiles of its list begin. False: a row has no list. */
static bool place_tiles(struct engine *e, uint32_t layer)
{
    uint32_t tiles = 0;
    for (uint32_t r = 0; r < e->n_rows; r++) {
        uint32_t *list = list_of(e, layer, r);
        if (!list[0])
            return false;
        list[1] = tiles;
        tiles += (list[0] + DECODE_TILE - 1) / DECODE_TILE;
    }
    return true;
}

int engine_step_run(struct engine *e, uint32_t layer, struct hill_why *why)
{
    if (layer != e->next_layer || !e->awaited)
        return hill_fail(why, HILL_E_INVALID, "layer %u is out of order", layer);
    if (!place_tiles(e, layer))
        return hill_fail(why, HILL_E_INVALID, "layer %u has a row without a list", layer);
    int rc = push(e, &e->lists, 8ull * e->n_rows, why);
    if (!rc)
        rc = launch(e, layer + 1, layer + 2, PHASE_SCATTER, why);
    expect_layer(e, rc ? UINT32_MAX : layer + 1);
    return rc;
}

int engine_step_run_all(struct engine *e, struct hill_why *why)
{
    if (!e->untouched || e->layers_kept == 1)
        return hill_fail(why, HILL_E_INVALID, "a step in one launch is out of order");
    for (uint32_t layer = 0; layer < e->hp.n_layers; layer++)
        if (!place_tiles(e, layer))
            return hill_fail(why, HILL_E_INVALID, "layer %u has a row without a list", layer);
    e->untouched = false;
    int rc = launch(e, 0, e->hp.n_layers + 1, PHASE_QUANT_QKV, why);
    expect_layer(e, rc ? UINT32_MAX : e->hp.n_layers);
    return rc;
}

/* x is the last hidden state: its logits. */
int engine_logits(struct engine *e, float *logits, struct hill_why *why)
{
    uint32_t n_rows = e->n_rows;
    e->n_rows = 1;
    int rc = launch(e, e->hp.n_layers, e->hp.n_layers + 1, PHASE_QUANT_LOGITS, why);
    e->n_rows = n_rows;
    if (!rc)
        rc = await(e, why);
    if (!rc)
        memcpy(logits, e->logits.host, 4ull * e->hp.n_vocab);
    return rc;
}

int engine_step_logits(struct engine *e, uint32_t row, float *logits, struct hill_why *why)
{
    if (e->next_layer != e->hp.n_layers || row >= e->n_rows)
        return hill_fail(why, HILL_E_INVALID, "logits before all layers are done");
    int rc = e->awaited ? 0 : await(e, why);
    if (rc)
        return rc;
    e->awaited = true;
    if (logits)
        memcpy(logits, (const float *)e->logits.host + (size_t)row * logits_stride(e),
               4ull * e->hp.n_vocab);
    return 0;
}

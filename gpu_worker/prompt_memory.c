/*
 * gpu_worker/prompt_memory.c - what of a prompt outlives the process: see engine.h.
 *
 * In the memory: a head, three words, the hidden states, those of a chunk as they were before, the
 * entries of the newest units, and a checksum of each row of all three (prompt_sums.c). A unit u
 * that begins sets BEFORE to u + 1, copies the hidden states which it will change to `before`, and
 * sets BEGUN to u + 1; when all of it is computed and summed it sets DONE to u + 1. So whenever the
 * process is killed, the hidden states after DONE units are there: where BEGUN is larger, `before`
 * has the chunk that is half changed, and BEFORE says whose `before` is. Whoever goes on compares
 * all of it with the sums first. Keys and values of the layer are made of its entries again. A
 * device that works in the host's memory computes in these bytes, and its queue keeps the order; of
 * another device the host copies each unit's rows and entries, when they are computed.
 */
#include <stdatomic.h>
#include <string.h>

#include <xxhash.h>

#include "gpu_worker/engine_internal.h"
#include "kv/plan.h"

#define PAGE 4096u

enum { BEGUN, DONE, BEFORE }; /* the words */

/* The first bytes; everything is of one prompt, or the check does not fit. */
struct prompt_head {
    uint64_t check; /* of the rest; last */
    uint64_t name;
    uint32_t n_tokens, batch_tokens, window, n_layers, hidden_stride, entry_bytes;
};

_Static_assert(sizeof(struct prompt_head) == 40, "prompt segment layout");

/* Where the parts lie, from the memory's start. */
struct prompt_places {
    uint64_t words, hidden, before, entries, sums, end;
};

static uint64_t pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static uint32_t chunk_tokens(const struct engine *e, uint32_t n_tokens)
{
    return e->batch_tokens < n_tokens ? e->batch_tokens : n_tokens;
}

/* Units whose entries are there: those of a layer and one that is being computed, and as many as
 * may be on their way to the tiers. */
static uint32_t window_units(const struct engine *e, uint32_t n_tokens)
{
    uint64_t unit_bytes = (uint64_t)chunk_tokens(e, n_tokens) * e->entry_bytes;
    uint32_t chunks = (n_tokens + e->batch_tokens - 1) / e->batch_tokens;
    uint64_t lag = KV_PROMPT_LAG / unit_bytes + 1, most = (uint64_t)chunks * e->hp.n_layers;
    uint64_t window = lag > chunks + 1 ? lag : chunks + 1;
    return (uint32_t)(window < most ? window : most);
}

static void find_places(const struct engine *e, uint32_t n_tokens, struct prompt_places *at)
{
    uint64_t row = 4ull * e->hidden_stride, chunk = chunk_tokens(e, n_tokens);
    at->words = PAGE;
    at->hidden = 2 * PAGE;
    at->before = at->hidden + pages(n_tokens * row);
    at->entries = at->before + pages(chunk * row);
    at->sums = at->entries + pages(window_units(e, n_tokens) * chunk * e->entry_bytes);
    at->end = at->sums + pages(8 * (n_tokens + chunk + window_units(e, n_tokens) * chunk));
}

uint64_t engine_prompt_bytes(const struct engine *e, uint32_t n_tokens)
{
    struct prompt_places at;
    find_places(e, n_tokens, &at);
    return at.end;
}

static _Atomic uint32_t *words(const struct engine *e)
{
    return (_Atomic uint32_t *)(void *)(e->prompt.base + PAGE);
}

/* ---- what is there ---- */

static struct prompt_head head_of(const struct engine *e, uint64_t name, uint32_t n_tokens)
{
    struct prompt_head head = {.name = name,
                               .n_tokens = n_tokens,
                               .batch_tokens = e->batch_tokens,
                               .window = window_units(e, n_tokens),
                               .n_layers = e->hp.n_layers,
                               .hidden_stride = e->hidden_stride,
                               .entry_bytes = e->entry_bytes};
    head.check =
        XXH3_64bits((const uint8_t *)&head + sizeof head.check, sizeof head - sizeof head.check);
    return head;
}

/* A prompt that was found, and where. */
struct found {
    const struct engine *e;
    struct prompt_places at;
    uint32_t n_tokens, chunk, chunks, window;
};

static const uint64_t *sums_at(const struct found *f)
{
    return (const uint64_t *)(const void *)(f->e->prompt.base + f->at.sums);
}

static bool rows_fit(const struct found *f, uint32_t from, uint32_t to)
{
    uint32_t row = 4 * f->e->hidden_stride;
    return prompt_sums_fit(f->e->prompt.base + f->at.hidden + (uint64_t)from * row, row, to - from,
                           sums_at(f) + from);
}

/* Are the hidden states after so many units what they were? begun: the one after them has changed
 * its chunk, which lies beside them. */
static bool hidden_fits(const struct found *f, uint32_t units, bool begun)
{
    uint32_t first = units % f->chunks * f->chunk, row = 4 * f->e->hidden_stride;
    uint32_t end = first + f->chunk < f->n_tokens ? first + f->chunk : f->n_tokens;
    if (!begun)
        return rows_fit(f, 0, f->n_tokens);
    /* acquire: as in engine_prompt_find */
    if (atomic_load_explicit(&words(f->e)[BEFORE], memory_order_acquire) != units + 1)
        return false; /* the next unit's, which has not begun: they fit their sums as well */
    return rows_fit(f, 0, first) && rows_fit(f, end, f->n_tokens) &&
           prompt_sums_fit(f->e->prompt.base + f->at.before, row, end - first,
                           sums_at(f) + f->n_tokens);
}

static bool entries_fit(const struct found *f, uint32_t unit)
{
    uint32_t first = unit % f->chunks * f->chunk, place = unit % f->window * f->chunk;
    uint32_t count = f->n_tokens - first < f->chunk ? f->n_tokens - first : f->chunk;
    uint32_t bytes = f->e->entry_bytes;
    return prompt_sums_fit(f->e->prompt.base + f->at.entries + (uint64_t)place * bytes, bytes,
                           count, sums_at(f) + f->n_tokens + f->chunk + place);
}

/* What of it is as it was noted: all hidden states, or those before the newest unit, which is
 * computed again then; entries as far as nothing is damaged, at least the layer's. */
static bool check_found(const struct found *f, struct engine_prompt *out)
{
    bool whole = hidden_fits(f, out->units, out->begun);
    out->damaged = !whole;
    if (!whole && (out->begun || out->units == 1 || !hidden_fits(f, out->units - 1, true)))
        return false;
    if (!whole) {
        out->units--;
        out->begun = true;
    }
    for (uint32_t unit = out->units; unit > out->oldest; unit--)
        if (!entries_fit(f, unit - 1)) {
            out->oldest = unit;
            out->damaged = true;
        }
    return out->oldest <= out->units - out->units % f->chunks;
}

bool engine_prompt_find(const struct engine *e, uint64_t name, uint32_t n_tokens,
                        struct engine_prompt *out)
{
    const struct prompt_memory *m = &e->prompt;
    *out = (struct engine_prompt){0};
    if (!m->base || !e->batch_tokens || n_tokens == 0 ||
        engine_prompt_bytes(e, n_tokens) > m->bytes)
        return false;
    struct prompt_head head = head_of(e, name, n_tokens);
    if (memcmp(m->base, &head, sizeof head) != 0)
        return false;
    struct found f = {.e = e,
                      .n_tokens = n_tokens,
                      .chunk = chunk_tokens(e, n_tokens),
                      .chunks = (n_tokens + e->batch_tokens - 1) / e->batch_tokens,
                      .window = head.window};
    uint32_t units = f.chunks * e->hp.n_layers;
    /* acquire: pairs with the release of a predecessor's host; a device's writes are older still */
    uint32_t done = atomic_load_explicit(&words(e)[DONE], memory_order_acquire);
    uint32_t begun = atomic_load_explicit(&words(e)[BEGUN], memory_order_acquire);
    if (done == 0 || done > units || (begun != done && begun != done + 1))
        return false;
    uint32_t written = done < units ? done + 1 : units; /* the one after them may have begun */
    out->units = done;
    out->begun = begun > done;
    out->oldest = written > head.window ? written - head.window : 0;
    find_places(e, n_tokens, &f.at);
    return check_found(&f, out);
}

/* ---- attach ---- */

static void forget_events(struct prompt_memory *m)
{
    for (int i = 0; i < 2; i++)
        engine_forget_event(&m->saved[i]);
}

void prompt_memory_release(struct engine *e)
{
    struct prompt_memory *m = &e->prompt;
    struct device_buffer *buffers[] = {&m->words, &m->hidden, &m->before, &m->entries, &m->sums};
    bool any = false;
    for (unsigned i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        any |= buffers[i]->mem != NULL;
        engine_release(e, buffers[i]);
    }
    forget_events(m);
    m->on = false;
    if (any) /* another buffer may get the same handle */
        memset(e->set_args, 0, sizeof e->set_args);
}

int engine_attach_prompt(struct engine *e, void *memory, uint64_t bytes, bool in_place,
                         struct hill_why *why)
{
    struct prompt_memory *m = &e->prompt;
    int rc = engine_finish(e, why);
    prompt_memory_release(e);
    m->base = memory;
    m->bytes = memory ? bytes : 0;
    m->in_place = in_place && e->device.shares_memory;
    e->n_tokens = 0;
    return rc;
}

/* ---- begin ---- */

/* counted: in what the engine has taken of the GPU's memory. */
static int lay_over(struct engine *e, struct device_buffer *b, uint64_t from, uint64_t to,
                    bool counted, struct hill_why *why)
{
    cl_int status;
    b->mem = clCreateBuffer(e->device.context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, to - from,
                            e->prompt.base + from, &status);
    if (status != CL_SUCCESS)
        b->mem = NULL;
    else if (counted)
        e->kv_bytes += b->bytes = to - from;
    return cldevice_check(status, "cannot compute in the prompt segment", why);
}

static int make_buffers(struct engine *e, const struct prompt_places *at, uint32_t n_tokens,
                        struct hill_why *why)
{
    struct prompt_memory *m = &e->prompt;
    uint64_t row = 4ull * e->hidden_stride;
    if (!m->in_place) {
        int rc = 0;
        for (int i = 0; !rc && i < 2; i++)
            rc = engine_reserve(e, &m->out[i], prompt_copy_bytes(e, n_tokens) / 2, why);
        return rc;
    }
    int rc = lay_over(e, &m->words, at->words, at->words + 64, false, why);
    if (!rc)
        rc = lay_over(e, &m->hidden, at->hidden, at->hidden + n_tokens * row, true, why);
    if (!rc)
        rc = lay_over(e, &m->before, at->before, at->entries, false, why);
    if (!rc)
        rc = lay_over(e, &m->entries, at->entries, at->sums, false, why);
    return rc ? rc : lay_over(e, &m->sums, at->sums, at->end, false, why);
}

/* With one chunk a unit changes the rows of the one before, which may still be read. */
uint64_t prompt_copy_bytes(const struct engine *e, uint32_t n_tokens)
{
    bool copies = e->prompt.base && !e->prompt.in_place && n_tokens <= e->batch_tokens;
    return copies ? 2 * 4ull * n_tokens * e->hidden_stride : 0;
}

/* Sums of the hidden states; of those before, and of the entries, behind them. */
static uint64_t *sums(const struct engine *e)
{
    return (uint64_t *)(void *)(e->prompt.base + e->prompt.at_sums);
}

static uint32_t sums_before(const struct engine *e)
{
    return e->n_tokens;
}

static uint32_t sums_entries(const struct engine *e, uint32_t unit)
{
    uint32_t chunk = chunk_tokens(e, e->n_tokens);
    return e->n_tokens + chunk + unit % e->prompt.window * chunk;
}

/* The hidden states as they are after m->from units. */
static void undo_unit(struct engine *e, const struct prompt_places *at)
{
    struct prompt_memory *m = &e->prompt;
    struct engine_unit u = engine_prefill_unit(e, m->from);
    uint64_t row = 4ull * e->hidden_stride;
    memcpy(m->base + at->hidden + u.first * row, m->base + at->before, u.count * row);
    memcpy(sums(e) + u.first, sums(e) + sums_before(e), u.count * sizeof *sums(e));
}

static void write_head(struct engine *e, uint64_t name, uint32_t n_tokens)
{
    struct prompt_head head = head_of(e, name, n_tokens);
    struct prompt_memory *m = &e->prompt;
    memset(m->base, 0, sizeof head);
    /* release: a head that fits stands beside words of its prompt alone, whenever this is killed */
    atomic_store_explicit(&words(e)[BEGUN], 0, memory_order_release);
    atomic_store_explicit(&words(e)[DONE], 0, memory_order_release);
    atomic_store_explicit(&words(e)[BEFORE], 0, memory_order_release);
    memcpy(m->base + sizeof head.check, (const uint8_t *)&head + sizeof head.check,
           sizeof head - sizeof head.check);
    atomic_thread_fence(memory_order_release); /* the check after what it is of */
    memcpy(m->base, &head.check, sizeof head.check);
}

int prompt_memory_begin(struct engine *e, uint32_t n_tokens, const struct engine_keep *keep,
                        struct hill_why *why)
{
    struct prompt_memory *m = &e->prompt;
    struct prompt_places at;
    struct engine_prompt found = {0};
    prompt_memory_release(e);
    m->from = m->read_from = 0;
    if (!keep)
        return 0;
    find_places(e, n_tokens, &at);
    if (!m->base || at.end > m->bytes)
        return hill_fail(why, HILL_E_INVALID, "the prompt segment has %llu bytes, not %llu",
                         (unsigned long long)m->bytes, (unsigned long long)at.end);
    if (keep->goes_on && !engine_prompt_find(e, keep->name, n_tokens, &found))
        return hill_fail(why, HILL_E_INVALID, "the prompt that is to go on is not there");
    if (found.units && keep->first_unit < found.oldest)
        return hill_fail(why, HILL_E_INVALID, "the entries of unit %u are not there any more",
                         keep->first_unit);
    m->from = found.units;
    m->read_from = found.units ? keep->first_unit : 0;
    m->window = window_units(e, n_tokens);
    m->at_hidden = at.hidden;
    m->at_before = at.before;
    m->at_entries = at.entries;
    m->at_sums = at.sums;
    if (!found.units)
        write_head(e, keep->name, n_tokens);
    else if (found.damaged) /* the newest unit may be computed again; BEGUN is beyond it */
        atomic_store_explicit(&words(e)[DONE], found.units, memory_order_release);
    m->on = true;
    return make_buffers(e, &at, n_tokens, why);
}

/* ---- a unit ---- */

cl_mem prompt_hidden(const struct engine *e)
{
    return e->prompt.on && e->prompt.in_place ? e->prompt.hidden.mem : e->hidden.mem;
}

cl_mem prompt_entries(const struct engine *e, uint32_t unit, uint32_t *first)
{
    const struct prompt_memory *m = &e->prompt;
    bool in_place = m->on && m->in_place;
    *first = in_place ? unit % m->window * chunk_tokens(e, e->n_tokens) : 0;
    return in_place ? m->entries.mem : e->entries[unit % 2].mem;
}

static uint8_t *kept_entries(const struct engine *e, uint32_t unit)
{
    const struct prompt_memory *m = &e->prompt;
    return m->base + m->at_entries +
           (uint64_t)(unit % m->window) * chunk_tokens(e, e->n_tokens) * e->entry_bytes;
}

void prompt_embedded(struct engine *e, uint32_t first, uint32_t count)
{
    const struct prompt_memory *m = &e->prompt;
    uint64_t row = 4ull * e->hidden_stride;
    if (!m->on || m->in_place)
        return;
    memcpy(m->base + m->at_hidden + first * row, e->host_row, count * row);
    prompt_sum_rows((const uint8_t *)e->host_row, (uint32_t)row, count, sums(e) + first);
}

/* The device sets a word when it has come here. */
static int set_word(struct engine *e, uint32_t word, uint32_t value, struct hill_why *why)
{
    return cldevice_check(clEnqueueFillBuffer(e->queue, e->prompt.words.mem, &value, sizeof value,
                                              word * sizeof value, sizeof value, 0, NULL, NULL),
                          "cannot note a unit of the prompt", why);
}

static int copy_rows(struct engine *e, const struct engine_unit *u, cl_mem to, cl_event *done,
                     struct hill_why *why)
{
    uint64_t row = 4ull * e->hidden_stride;
    return cldevice_check(clEnqueueCopyBuffer(e->queue, prompt_hidden(e), to, u->first * row, 0,
                                              u->count * row, 0, NULL, done),
                          "cannot copy hidden states", why);
}

int prompt_unit_begins(struct engine *e, const struct engine_unit *u, uint32_t unit,
                       struct hill_why *why)
{
    struct prompt_memory *m = &e->prompt;
    if (!m->on || !m->in_place)
        return 0;
    int rc = 0;
    if (unit == 0) /* all embeddings */
        rc = prompt_sums_enqueue(e, prompt_hidden(e), 4 * e->hidden_stride, 0, e->n_tokens, 0, why);
    if (!rc)
        rc = set_word(e, BEFORE, unit + 1, why);
    if (!rc)
        rc = copy_rows(e, u, m->before.mem, NULL, why);
    if (!rc)
        rc = cldevice_check(clEnqueueCopyBuffer(e->queue, m->sums.mem, m->sums.mem, 8ull * u->first,
                                                8ull * sums_before(e), 8ull * u->count, 0, NULL,
                                                NULL),
                            "cannot copy checksums", why);
    return rc ? rc : set_word(e, BEGUN, unit + 1, why);
}

static int sum_unit(struct engine *e, const struct engine_unit *u, uint32_t unit,
                    struct hill_why *why)
{
    uint32_t first;
    cl_mem entries = prompt_entries(e, unit, &first);
    int rc = prompt_sums_enqueue(e, prompt_hidden(e), 4 * e->hidden_stride, u->first, u->count,
                                 u->first, why);
    return rc ? rc
              : prompt_sums_enqueue(e, entries, e->entry_bytes, first, u->count,
                                    sums_entries(e, unit), why);
}

int prompt_unit_ends(struct engine *e, const struct engine_unit *u, uint32_t unit,
                     struct hill_why *why)
{
    struct prompt_memory *m = &e->prompt;
    if (!m->on)
        return 0;
    if (m->in_place) {
        int rc = sum_unit(e, u, unit, why);
        return rc ? rc : set_word(e, DONE, unit + 1, why);
    }
    engine_forget_event(&m->saved[unit % 2]);
    if (e->n_chunks == 1)
        return copy_rows(e, u, m->out[unit % 2].mem, &m->saved[unit % 2], why);
    return cldevice_check(clEnqueueMarkerWithWaitList(e->queue, 0, NULL, &m->saved[unit % 2]),
                          "the device failed", why);
}

int engine_prefill_save(struct engine *e, uint32_t unit, struct hill_why *why)
{
    struct prompt_memory *m = &e->prompt;
    if (!m->on || m->in_place || unit < m->from)
        return 0;
    struct engine_unit u = engine_prefill_unit(e, unit);
    uint64_t row = 4ull * e->hidden_stride;
    uint8_t *rows = m->base + m->at_hidden + u.first * row;
    atomic_store_explicit(&words(e)[BEFORE], unit + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* before what it is about changes */
    memcpy(m->base + m->at_before, rows, u.count * row);
    memcpy(sums(e) + sums_before(e), sums(e) + u.first, u.count * sizeof *sums(e));
    /* release: the rows before are there when the word is, and so on, for who is killed between two
     * stores */
    atomic_store_explicit(&words(e)[BEGUN], unit + 1, memory_order_release);
    bool copied = e->n_chunks == 1;
    cl_int status = clEnqueueReadBuffer(
        e->read_queue, copied ? m->out[unit % 2].mem : e->hidden.mem, CL_TRUE,
        copied ? 0 : u.first * row, u.count * row, rows, 1, &m->saved[unit % 2], NULL);
    if (status == CL_SUCCESS) /* computed before them */
        status = clEnqueueReadBuffer(e->read_queue, e->entries[unit % 2].mem, CL_TRUE, 0,
                                     (uint64_t)u.count * e->entry_bytes, kept_entries(e, unit), 0,
                                     NULL, NULL);
    int rc = cldevice_check(status, "cannot read a unit of the prompt", why);
    if (rc)
        return rc;
    prompt_sum_rows(rows, (uint32_t)row, u.count, sums(e) + u.first);
    prompt_sum_rows(kept_entries(e, unit), e->entry_bytes, u.count,
                    sums(e) + sums_entries(e, unit));
    atomic_store_explicit(&words(e)[DONE], unit + 1, memory_order_release);
    return 0;
}

/* ---- going on ---- */

bool prompt_was_computed(const struct engine *e, uint32_t unit)
{
    return e->prompt.on && unit < e->prompt.from;
}

void prompt_read_kept(const struct engine *e, uint32_t unit, uint32_t first, uint32_t count,
                      void *entries)
{
    memcpy(entries, kept_entries(e, unit) + (uint64_t)first * e->entry_bytes,
           (uint64_t)count * e->entry_bytes);
}

/* Keys and values of a chunk of the layer, out of its entries. */
static int load_chunk(struct engine *e, uint32_t unit, struct hill_why *why)
{
    struct engine_unit u = engine_prefill_unit(e, unit);
    uint32_t first;
    cl_mem entries = prompt_entries(e, unit, &first);
    int rc = 0;
    if (!e->prompt.in_place)
        rc = cldevice_check(clEnqueueWriteBuffer(e->queue, entries, CL_TRUE, 0,
                                                 (uint64_t)u.count * e->entry_bytes,
                                                 kept_entries(e, unit), 0, NULL, NULL),
                            "cannot write entries to the device", why);
    return rc ? rc
              : LAUNCH_HEADS(e, KERNEL_LOAD_ENTRIES, 0, u.count, e->hp.n_kv_heads, NULL, why,
                             ARG_BUFFER(entries), ARG_U32(first), ARG_U32(u.first),
                             ARG_BUFFER(e->kt.mem), ARG_BUFFER(e->v.mem), ARG_U32(e->panels));
}

int prompt_memory_load(struct engine *e, struct hill_why *why)
{
    struct prompt_memory *m = &e->prompt;
    if (!m->on || !m->from)
        return 0;
    struct prompt_places at;
    find_places(e, e->n_tokens, &at);
    /* acquire: as in engine_prompt_find */
    if (atomic_load_explicit(&words(e)[BEGUN], memory_order_acquire) > m->from)
        undo_unit(e, &at);
    int rc = 0;
    if (!m->in_place)
        rc = cldevice_check(clEnqueueWriteBuffer(e->queue, e->hidden.mem, CL_TRUE, 0,
                                                 4ull * e->n_tokens * e->hidden_stride,
                                                 m->base + m->at_hidden, 0, NULL, NULL),
                            "cannot write hidden states to the device", why);
    uint32_t first = m->from - m->from % e->n_chunks;
    for (uint32_t unit = first; !rc && unit < m->from; unit++)
        rc = load_chunk(e, unit, why);
    return rc;
}

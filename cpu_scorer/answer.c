/* cpu_scorer/answer.c - see answer.h. */
#include "cpu_scorer/answer.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"

/* DRAM gives at least so many entries to one thread while the drive gives one. */
#define COPIES_PER_FETCH 2u

int answer_create(struct answer *a, struct core *core, struct agent *agent)
{
    uint32_t n = core->config.gpu_slots;
    *a = (struct answer){.core = core, .agent = agent};
    a->items = calloc(n, sizeof *a->items);
    a->positions = calloc(n, sizeof *a->positions);
    a->slots = calloc(n, sizeof *a->slots);
    a->copies = calloc(n, sizeof *a->copies);
    return a->items && a->positions && a->slots && a->copies ? 0 : HILL_E_NOMEM;
}

void answer_destroy(struct answer *a)
{
    free(a->items);
    free(a->positions);
    free(a->slots);
    free(a->copies);
}

uint64_t answer_private_bytes(const struct scorer_config *c)
{
    return (uint64_t)c->gpu_slots *
           (sizeof(struct answer_item) + 2 * sizeof(uint32_t) + sizeof(struct copy_item));
}

void answer_begin(struct answer *a)
{
    a->n_items = a->n_uploads = a->n_in_place = a->n_cold = 0;
    a->n_fetches = a->n_copies = a->n_fetched = 0;
    a->fetches_open = 0;
    memset(a->drives, 0, sizeof a->drives);
    a->pushed = a->copied = a->reads = false;
    a->status = 0;
}

/* ---- places --------------------------------------------------------------------------------- */

int answer_locate(struct answer *a, const struct sequence *s, uint32_t layer, uint32_t n)
{
    int rc = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t word = core_location(a->core, s, layer, a->positions[i]);
        bool in_place = s->reads_hot && hkm_tag(word) == HKM_HOT;
        a->items[i] = (struct answer_item){.position = a->positions[i],
                                           .location = word,
                                           .gpu_slot = SELECTED_HOT | hkm_slot(word),
                                           .flags = in_place ? ANSWER_IN_PLACE : 0};
        a->n_in_place += in_place;
        if (hkm_tag(word) != HKM_HOT && hkm_tag(word) != HKM_COLD)
            rc = HILL_E_ENTRY; /* a token that is placed is in some tier, always */
    }
    a->n_items = n;
    return rc;
}

/* What is not read in place, into `positions`; how many. */
static uint32_t list_others(struct answer *a)
{
    uint32_t n = 0;
    for (uint32_t i = 0; a->n_in_place && i < a->n_items; i++)
        if (!(a->items[i].flags & ANSWER_IN_PLACE))
            a->positions[n++] = a->items[i].position;
    return a->n_in_place ? n : a->n_items; /* all of them are there */
}

/* What the GPU keeps of an entry that has moved up since gives way in time. */
int answer_give_places(struct answer *a, const struct sequence *s, uint32_t layer)
{
    struct tiers *t = &a->core->tiers;
    uint32_t n = list_others(a);
    int64_t uploads =
        gpu_slots_select(&t->gpu, tiers_list(t, s->index, layer), a->positions, n, a->slots);
    if (uploads < 0)
        return (int)uploads;
    for (uint32_t i = 0, j = 0; i < a->n_items; i++) {
        struct answer_item *item = &a->items[i];
        if (item->flags & ANSWER_IN_PLACE)
            continue;
        item->gpu_slot = a->slots[j] & ~GPU_SLOTS_UPLOAD;
        item->flags = a->slots[j++] & GPU_SLOTS_UPLOAD ? ANSWER_UPLOAD : 0;
        a->n_cold += item->flags && hkm_tag(item->location) == HKM_COLD;
    }
    a->n_uploads = (uint32_t)uploads;
    return 0;
}

void answer_find_lacking(struct answer *a, const struct sequence *s, uint32_t layer)
{
    const struct tiers *t = &a->core->tiers;
    gpu_slots_find(&t->gpu, tiers_list(t, s->index, layer), a->positions, a->n_items, a->slots);
    for (uint32_t i = 0; i < a->n_items; i++)
        if ((a->slots[i] & GPU_SLOTS_UPLOAD) && !(a->items[i].flags & ANSWER_IN_PLACE))
            a->items[i].flags |= ANSWER_BRING;
}

/* ---- gathering ------------------------------------------------------------------------------ */

void answer_plan(struct answer *a)
{
    for (uint32_t i = 0; i < a->n_items; i++) {
        const struct answer_item *item = &a->items[i];
        if (!(item->flags & ANSWER_BRING))
            continue;
        if (hkm_tag(item->location) == HKM_COLD) {
            a->n_fetches++;
            a->drives[agent_drive(a->agent, hkm_slot(item->location))].n_fetches++;
        } else {
            a->n_copies++;
        }
    }
}

void answer_list_copies(struct answer *a)
{
    const struct tiers *t = &a->core->tiers;
    for (uint32_t i = 0, n = 0; n < a->n_copies; i++) {
        const struct answer_item *item = &a->items[i];
        if ((item->flags & ANSWER_BRING) && hkm_tag(item->location) == HKM_HOT)
            a->copies[n++] = (struct copy_item){shm_arena_slot(t->staging, item->staging),
                                                hkm_entry(&t->hkm, hkm_slot(item->location))};
    }
}

/* The next n entries to be fetched from a drive. */
static void fill_fetch(struct answer *a, uint32_t drive, struct fetch_item *out, uint32_t n)
{
    struct shm_arena *staging = a->core->tiers.staging;
    for (uint32_t i = 0; i < n;) {
        const struct answer_item *item = &a->items[a->drives[drive].next++];
        uint32_t slot = hkm_slot(item->location);
        if ((item->flags & ANSWER_BRING) && hkm_tag(item->location) == HKM_COLD &&
            agent_drive(a->agent, slot) == drive)
            out[i++] =
                (struct fetch_item){agent_slot(a->agent, slot), item->position, item->staging,
                                    shm_arena_generation(staging, item->staging)};
    }
}

/* A command with n of the entries goes to the drive. */
static void note_sent(struct answer *a, uint32_t drive, uint64_t tag, uint32_t n)
{
    struct answer_drive *d = &a->drives[drive];
    d->tags[0] = d->tags[0] ? d->tags[0] : tag;
    d->tags[1] = tag;
    d->sent_ns = d->sent_ns ? d->sent_ns : clock_now_ns();
    d->sent += n;
    d->open++;
    a->fetches_open++;
}

/* 1: all of a drive's commands are out; 0: no room now. */
static int push_drive(struct answer *a, uint32_t drive, const struct record_header *header)
{
    struct answer_drive *d = &a->drives[drive];
    uint32_t most = agent_fetch_max(a->agent, drive);
    while (d->sent < d->n_fetches) {
        uint32_t n = d->n_fetches - d->sent;
        n = n < most ? n : most;
        uint32_t bytes = (uint32_t)(sizeof(struct record_fetch) + n * sizeof(struct fetch_item));
        void *payload;
        int rc = agent_reserve(a->agent, drive, bytes, &payload);
        if (rc != 1)
            return rc;
        struct record_fetch *record = payload;
        uint64_t tag = agent_tag(a->agent);
        *record = (struct record_fetch){.header = *header, .tag = tag, .n_entries = n};
        fill_fetch(a, drive, (struct fetch_item *)(record + 1), n);
        agent_publish(a->agent, drive, RING_COMMAND, RECORD_FETCH, bytes);
        FAULT_POINT(cpu_scorer, fetch, pushed);
        note_sent(a, drive, tag, n);
    }
    return 1;
}

void answer_join_fetch(struct answer *a, uint32_t drive, struct fetch_item *items, uint64_t tag,
                       uint32_t together)
{
    uint32_t n = a->drives[drive].n_fetches;
    fill_fetch(a, drive, items, n);
    note_sent(a, drive, tag, n);
    a->drives[drive].together = together;
}

int answer_push_fetches(struct answer *a, const struct record_header *header)
{
    int all = 1;
    for (uint32_t drive = 0; drive < a->agent->n_drives; drive++) {
        int rc = push_drive(a, drive, header);
        if (rc < 0)
            return rc;
        all &= rc;
    }
    return all;
}

/* Do the drive's fetches take longer than one thread's copies? It is the slower by several times.
 */
static bool drive_is_slower(const struct answer *a)
{
    return a->fetches_open && a->n_copies <= COPIES_PER_FETCH * a->n_fetches;
}

/* The hot ones into their staging slots, on all scoring threads: they are read from all over the
 * hot pool. While the drive is the slower one this thread does it alone, and leaves the other CPUs
 * to the agent, which has just been woken; and while the threads score another row's tokens. */
static void copy_hot(struct answer *a, struct sequence *s)
{
    struct copy_job job = {
        .items = a->copies, .bytes = a->core->tiers.hkm.entry_bytes, .n = a->n_copies};
    a->copied = true;
    if (s->reads_hot && a->n_copies == 0)
        return;
    int64_t start = clock_now_ns();
    if (drive_is_slower(a) || a->core->scored) {
        for (uint32_t i = 0; i < job.n; i++)
            memcpy(job.items[i].to, job.items[i].from, job.bytes);
    } else {
        score_pool_start_copy(a->core->pool, &job, NULL);
        score_pool_wait(a->core->pool);
    }
    s->stats.copy_hot_ns += a->reads ? 0 : clock_now_ns() - start;
}

int answer_gather(struct answer *a, struct sequence *s, const struct record_header *header)
{
    int rc = answer_push_fetches(a, header);
    if (rc == 0)
        return 0;
    a->pushed = true;
    if (rc == 1 && !a->copied)
        copy_hot(a, s);
    /* also after one has failed: a slot that the agent may still write to must not be given to
     * others */
    if (a->fetches_open)
        return a->agent->status;
    if (rc < 0 || a->status)
        return rc < 0 ? rc : a->status;
    if (a->n_fetched == a->n_fetches)
        return 1;
    core_fail(a->core, s, HILL_E_PROTOCOL, "the drive fetched %u of %u entries", a->n_fetched,
              a->n_fetches);
    return HILL_E_PROTOCOL;
}

void answer_take_fetch(struct answer *a, struct sequence *s, uint32_t layer,
                       const struct record_completion *r)
{
    struct answer_drive *d = &a->drives[a->agent->from];
    if (d->open == 0 || r->tag < d->tags[0] || r->tag > d->tags[1])
        return;
    a->fetches_open--;
    d->open--;
    d->done_ns = clock_now_ns();
    uint32_t part = d->together ? d->n_fetches : 1, whole = d->together ? d->together : 1;
    agent_count(s, r, part, whole);
    if (!a->reads)
        agent_count_time(a->agent, s, r, part, whole);
    FAULT_POINT(cpu_scorer, fetch, answered);
    if (d->together && r->status) { /* whose entry is at fault it does not say */
        *d = (struct answer_drive){.n_fetches = d->n_fetches, .sent_ns = d->sent_ns};
        a->pushed = false;
        return;
    }
    a->n_fetched += !d->together ? r->count : r->count == d->together ? d->n_fetches : 0;
    if (!r->status || a->status)
        return;
    a->status = agent_status(r->status);
    core_fail(a->core, s, a->status,
              a->status == HILL_E_ENTRY
                  ? "the entry of position %u in layer %u is damaged in the cold pool (its "
                    "checksum does not match); check the drive"
                  : "the entry of position %u in layer %u cannot be read from the cold pool",
              r->detail, layer);
}

const void *answer_staged(const struct answer *a, uint32_t position)
{
    uint32_t low = 0, n = a->n_items;
    while (n > 1) {
        uint32_t half = n / 2;
        low += a->items[low + half].position <= position ? half : 0;
        n -= half;
    }
    const struct answer_item *item = &a->items[low];
    return n && item->position == position && (item->flags & ANSWER_UPLOAD) &&
                   hkm_tag(item->location) == HKM_COLD
               ? shm_arena_slot(a->core->tiers.staging, item->staging)
               : NULL;
}

/* csd_agent/score_blocks.c - a query's scores on their way to the host; see score_blocks.h. */
#include "csd_agent/score_blocks.h"

#include <stdlib.h>

#include "base/fault.h"
#include "base/stage_trace.h"
#include "csd_agent/command_output.h"
#include "csd_agent/fpga/hls_score.h"

struct query_run {
    struct data_plane *plane;
    const struct record_agent_query *record;
    uint32_t block_slots; /* slots that a Score Block covers at most */
    uint32_t count;
    struct cold_cost *cost;
    struct drive_command *device;
    struct drive_digests charged; /* of cost->scored_*: what blocks have been charged */
};

/* Slots first .. first + n - 1 of a stripe into a Score Block; returns how many of them count. */
static uint32_t fill_block(const struct query_run *run, struct record_score_block *block,
                           uint32_t stripe, uint32_t first, uint32_t n, const uint16_t *scores)
{
    struct data_plane *plane = run->plane;
    uint32_t base = stripe * cold_pool_layout(plane->pool)->stripe_slots + first, tuples = 0;
    struct score_tuple *tuple = (struct score_tuple *)(block + 1);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t position = cold_pool_position(plane->pool, base + i);
        if (position == COLD_NO_POSITION)
            continue;
        bool wrong = position == plane->wrong_position;
        tuple[tuples++] =
            (struct score_tuple){.slot_offset = (uint16_t)i, .score = wrong ? 65535 : scores[i]};
    }
    *block = (struct record_score_block){.header = run->record->header,
                                         .query_id = run->record->query_id,
                                         .stripe = stripe,
                                         .first_slot = first,
                                         .n = tuples,
                                         .version = SCORE_BLOCK_VERSION,
                                         .planes = 1};
    return tuples;
}

/* FP16 K and V that the scorer is charged. `score` is a rate of INT8 digests, a byte a value: FP16
 * keys that are cast are twice as many bytes, INT4 digests half; what the kernel for an FPGA reads
 * again for more terms of a KV head counts each time. */
static uint64_t charged_kv(const struct query_run *run, uint32_t n_slots)
{
    const struct pool_layout *layout = cold_pool_layout(run->plane->pool);
    const struct kv_geometry *g = &layout->geometry;
    uint32_t bits = pool_has_keys(layout) ? 16 : kv_digest_bits(g);
    uint32_t passes = hls_passes(kv_query_terms(g, run->record->importance) / g->n_kv_heads);
    return (uint64_t)n_slots * kv_entry_bytes(g) * passes * bits / 8;
}

/* The same under a device model: the block leaves when its scores are on the host. read: for these
 * slots, of flash and of DRAM. */
static int hold_block(struct query_run *run, uint32_t stripe, uint32_t first, uint32_t n,
                      const uint16_t *scores, struct drive_digests read)
{
    struct data_plane *plane = run->plane;
    int64_t due = run->device->start;
    struct held_record *held = output_hold_room(
        plane, (uint32_t)(sizeof(struct record_score_block) + n * sizeof(struct score_tuple)));

    if (!held)
        return plane->lost;
    uint32_t tuples = fill_block(run, (void *)held->payload, stripe, first, n, scores);
    if (plane->drive.model.figures.on) /* its scorer passes over slots that do not count */
        due = drive_score(&plane->drive, run->device, read, charged_kv(run, tuples),
                          tuples * sizeof(struct score_tuple));
    if (tuples == 0) {
        free(held);
        return 0;
    }
    held->type = RECORD_SCORE_BLOCK;
    held->bytes =
        (uint32_t)(sizeof(struct record_score_block) + tuples * sizeof(struct score_tuple));
    held_add(&plane->held, HELD_QUERY, held, due);
    run->count += tuples;
    return output_send_due(plane);
}

/* One Score Block over slots first .. first + n - 1 of a stripe; none when no slot of them is
 * committed. */
static int send_block(struct query_run *run, uint32_t stripe, uint32_t first, uint32_t n,
                      const uint16_t *scores)
{
    struct data_plane *plane = run->plane;
    void *block;
    int status = output_reserve(
        plane, plane->score,
        (uint32_t)(sizeof(struct record_score_block) + n * sizeof(struct score_tuple)), &block);

    if (status != 0)
        return status;
    uint32_t tuples = fill_block(run, block, stripe, first, n, scores);
    if (tuples == 0)
        return 0; /* the next reserve takes the place */
    shm_ring_publish(
        plane->score, RECORD_SCORE_BLOCK,
        (uint32_t)(sizeof(struct record_score_block) + tuples * sizeof(struct score_tuple)));
    run->count += tuples;
    FAULT_POINT(csd_agent, query, scored);
    return 0;
}

static int send_scores(void *context, uint32_t stripe, uint32_t first_slot, uint32_t n,
                       const uint16_t *scores)
{
    struct query_run *run = context;
    struct drive_digests read = {run->cost->scored_bytes - run->charged.flash_bytes,
                                 run->cost->scored_dram_bytes - run->charged.dram_bytes};
    int status = 0;

    for (uint32_t at = 0; status == 0 && at < n; at += run->block_slots) {
        uint32_t left = n - at, slots = left < run->block_slots ? left : run->block_slots;
        /* of what is left, so that nothing is lost */
        struct drive_digests share = {read.flash_bytes * slots / left,
                                      read.dram_bytes * slots / left};
        read.flash_bytes -= share.flash_bytes;
        read.dram_bytes -= share.dram_bytes;
        status = output_direct(run->plane)
                     ? send_block(run, stripe, first_slot + at, slots, scores + at)
                     : hold_block(run, stripe, first_slot + at, slots, scores + at, share);
    }
    run->charged = (struct drive_digests){run->cost->scored_bytes, run->cost->scored_dram_bytes};
    return status;
}

/* Slots per block as asked, but no more than a record of the ring can carry. */
static uint32_t block_slots(struct data_plane *plane, uint32_t asked)
{
    uint32_t most = (shm_ring_payload_max(plane->score) - sizeof(struct record_score_block)) /
                    sizeof(struct score_tuple);
    return asked < most ? asked : most;
}

int score_blocks_run(struct data_plane *plane, const void *payload,
                     struct record_completion *completion, struct cold_cost *cost,
                     struct hill_why *why)
{
    const struct record_agent_query *record = payload;
    struct query_run run = {.plane = plane,
                            .record = record,
                            .block_slots = block_slots(plane, record->block_tokens),
                            .cost = cost,
                            .device = plane->device};
    struct cold_query query = {
        .sequence = record->header.sequence,
        .layer = record->header.layer,
        .committed = record->committed,
        .host = (const uint64_t *)(const void *)(record + 1),
        .n_host_words = record->n_host_words,
        .query =
            kv_query_at(&plane->geometry, record->importance, record_agent_query_terms(record)),
        .scored = send_scores,
        .context = &run,
    };
    STAGE_BEGIN_AT(agent_score, &record->header);
    int status = cold_pool_query(plane->pool, &query, cost, why);
    STAGE_END(agent_score, cost->flash_read_bytes);

    completion->count = run.count;
    if (status == 0 && run.count != record->expected)
        status = hill_fail(why, HILL_E_PROTOCOL, "%u slots were scored, %u expected", run.count,
                           record->expected);
    return status;
}

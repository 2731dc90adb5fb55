/*
 * csd_agent/commands.c - command records carried out and answered; see commands.h.
 */
#include "csd_agent/commands.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/stage_trace.h"
#include "proto/records.h"

#define WAIT_SLICE_MS 100 /* how soon a stop is noticed while an output ring is full */

/* A flood of bad records must not flood the log: the first few, then at powers of two. */
static bool worth_a_line(uint64_t count)
{
    return count <= 8 || (count & (count - 1)) == 0;
}

/* ---- output ---- */

/* Room for a record in an output ring, however long that takes within the deadline. A failure is
 * the plane's end. */
static int reserve(struct data_plane *plane, struct shm_ring_end *end, uint32_t bytes,
                   void **payload)
{
    int64_t deadline = clock_deadline_ms(OUTPUT_DEADLINE_MS);
    int status;

    while ((status = shm_ring_reserve(end, bytes, payload)) == HILL_E_WOULD_BLOCK) {
        if (plane->stopping && plane->stopping(plane->stopping_context)) {
            status = HILL_E_CANCELLED;
            break;
        }
        if (clock_now_ns() >= deadline) {
            log_error("the scorer has not taken a record for %d s; giving the rings up",
                      OUTPUT_DEADLINE_MS / 1000);
            status = HILL_E_TIMEOUT;
            break;
        }
        shm_ring_wait(end, bytes, clock_deadline_ms(WAIT_SLICE_MS));
    }
    if (status != 0)
        plane->lost = status;
    return status;
}

/* Send a record now. */
static int send(struct data_plane *plane, uint32_t type, const void *record, uint32_t bytes)
{
    struct shm_ring_end *end = type == RECORD_SCORE_BLOCK ? plane->score : plane->completion;
    void *payload;
    int status = reserve(plane, end, bytes, &payload);

    if (status != 0)
        return status;
    memcpy(payload, record, bytes);
    shm_ring_publish(end, type, bytes);
    return 0;
}

/* ---- output under a device model ---- */

/* Nothing is held and nothing has to be: records go straight to their rings. */
static bool direct(const struct data_plane *plane)
{
    return !plane->drive.model.figures.on && plane->held.bytes == 0;
}

/* Send what is due. A completion's busy time ends now. */
static int send_due(struct data_plane *plane)
{
    struct held_record *held;
    int status = 0;

    while (status == 0 && (held = held_take(&plane->held, clock_now_ns()))) {
        if (held->type == RECORD_COMPLETION) {
            struct record_completion *completion = (void *)held->payload;
            int64_t now = clock_now_ns();
            completion->busy_ns = (uint64_t)(now - held->start_ns);
            plane->drive.counters.lag_ns += (uint64_t)(now - held->due_ns);
        }
        status = send(plane, held->type, held->payload, held->bytes);
        free(held);
    }
    return status;
}

/* Sleep until something held is due and send it. */
static int wait_for_due(struct data_plane *plane)
{
    int64_t until = clock_deadline_ms(WAIT_SLICE_MS);

    if (held_next_ns(&plane->held) < until)
        until = held_next_ns(&plane->held);
    struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    if (plane->stopping && plane->stopping(plane->stopping_context))
        return plane->lost = HILL_E_CANCELLED;
    return send_due(plane);
}

/* A record to be held; waits for those before it when they are too many. NULL: plane->lost. */
static struct held_record *hold_room(struct data_plane *plane, uint32_t bytes)
{
    uint64_t most = plane->held_max ? plane->held_max : HELD_BYTES_MAX;
    struct held_record *record = NULL;

    while (plane->lost == 0) {
        if (plane->held.bytes <= most)
            record = held_create(bytes);
        if (record)
            return record;
        if (plane->held.bytes == 0)
            plane->lost = HILL_E_NOMEM;
        else
            wait_for_due(plane); /* a failure is plane->lost */
    }
    return NULL;
}

/* A completion, when the modelled drive is done; at once without one. */
static int answer(struct data_plane *plane, enum held_stream stream,
                  const struct record_completion *completion, const struct drive_command *device)
{
    if (direct(plane))
        return send(plane, RECORD_COMPLETION, completion, sizeof *completion);
    struct held_record *held = hold_room(plane, sizeof *completion);
    if (!held)
        return plane->lost;
    int64_t now = clock_now_ns(), due = device->done > now ? device->done : now;
    if (completion->command == RECORD_TRIM && held_last_ns(&plane->held) > due)
        due = held_last_ns(&plane->held); /* what was drained before it is answered before it */
    memcpy(held->payload, completion, sizeof *completion);
    held->type = RECORD_COMPLETION;
    held->bytes = sizeof *completion;
    held->start_ns = device->start;
    held_add(&plane->held, stream, held, due);
    return send_due(plane);
}

/* ---- query ---- */

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

/* The same under a device model: the block leaves when its scores are on the host. read: for these
 * slots, of flash and of DRAM. */
static int hold_block(struct query_run *run, uint32_t stripe, uint32_t first, uint32_t n,
                      const uint16_t *scores, struct drive_digests read)
{
    struct data_plane *plane = run->plane;
    int64_t due = run->device->start;
    struct held_record *held = hold_room(
        plane, (uint32_t)(sizeof(struct record_score_block) + n * sizeof(struct score_tuple)));

    if (!held)
        return plane->lost;
    uint32_t tuples = fill_block(run, (void *)held->payload, stripe, first, n, scores);
    uint64_t kv_bytes = (uint64_t)tuples * kv_entry_bytes(&plane->geometry);
    if (plane->drive.model.figures.on) /* its scorer passes over slots that do not count */
        due = drive_score(&plane->drive, run->device, read, kv_bytes,
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
    return send_due(plane);
}

/* One Score Block over slots first .. first + n - 1 of a stripe; none when no slot of them is
 * committed. */
static int send_block(struct query_run *run, uint32_t stripe, uint32_t first, uint32_t n,
                      const uint16_t *scores)
{
    struct data_plane *plane = run->plane;
    void *block;
    int status = reserve(
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
        status = direct(run->plane)
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

static int run_query(struct data_plane *plane, const void *payload,
                     struct record_completion *completion, struct cold_cost *cost,
                     struct hill_why *why)
{
    const struct record_agent_query *record = payload;
    const int8_t *mantissas = (const int8_t *)(record + 1);
    struct query_run run = {.plane = plane,
                            .record = record,
                            .block_slots = block_slots(plane, record->block_tokens),
                            .cost = cost,
                            .device = plane->device};
    struct cold_query query = {
        .sequence = record->header.sequence,
        .layer = record->header.layer,
        .expected = record->expected,
        .query = {mantissas, (const uint8_t *)mantissas + kv_key_dims(&plane->geometry),
                  record->importance},
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

/* ---- the other commands ---- */

static int run_commit(struct data_plane *plane, const void *payload,
                      struct record_completion *completion, struct cold_cost *cost,
                      struct hill_why *why)
{
    const struct record_commit *record = payload;

    (void)cost;
    STAGE_BEGIN_AT(agent_commit, &record->header);
    int status = cold_pool_commit(plane->pool, record->header.sequence, record->header.layer,
                                  (const uint32_t *)(record + 1), record->n_slots, why);
    STAGE_END(agent_commit, record->n_slots * sizeof(uint32_t));
    completion->count = status == 0 ? record->n_slots : 0;
    return status;
}

static int run_release(struct data_plane *plane, const void *payload,
                       struct record_completion *completion, struct cold_cost *cost,
                       struct hill_why *why)
{
    const struct record_release *record = payload;

    (void)cost;
    STAGE_BEGIN_AT(agent_release, &record->header);
    int status = cold_pool_release(plane->pool, record->header.sequence, record->header.layer,
                                   (const uint32_t *)(record + 1), record->n_slots, why);
    STAGE_END(agent_release, record->n_slots * sizeof(uint32_t));
    completion->count = status == 0 ? record->n_slots : 0;
    return status;
}

static int run_fetch(struct data_plane *plane, const void *payload,
                     struct record_completion *completion, struct cold_cost *cost,
                     struct hill_why *why)
{
    const struct record_fetch *record = payload;
    STAGE_BEGIN_AT(agent_fetch, &record->header);
    int status = cold_pool_fetch(plane->pool, record->header.sequence, record->header.layer,
                                 (const struct fetch_item *)(record + 1), record->n_entries,
                                 plane->staging, cost, &completion->detail, why);
    STAGE_END(agent_fetch, cost->flash_read_bytes);

    completion->count = status == 0 ? record->n_entries : 0;
    return status;
}

static int run_read_keys(struct data_plane *plane, const void *payload,
                         struct record_completion *completion, struct cold_cost *cost,
                         struct hill_why *why)
{
    const struct record_read_keys *record = payload;
    struct cold_keys keys = {.sequence = record->header.sequence,
                             .layer = record->header.layer,
                             .ranges = (const struct key_range *)(record + 1),
                             .n_ranges = record->n_ranges,
                             .window_bytes = plane->key_window_bytes};
    if (plane->key_windows) /* record_check has looked at its number */
        keys.window = plane->key_windows + (uint64_t)record->window * plane->key_window_bytes;
    STAGE_BEGIN_AT(agent_fetch, &record->header);
    int status = cold_pool_read_keys(plane->pool, &keys, cost, why);
    STAGE_END(agent_fetch, cost->flash_read_bytes);
    completion->count = status == 0 ? record->n_ranges : 0;
    return status;
}

static int run_demote(struct data_plane *plane, const void *payload,
                      struct record_completion *completion, struct cold_cost *cost,
                      struct hill_why *why)
{
    const struct record_demote *record = payload;
    const uint8_t *bytes = payload;
    struct demote_parts parts;

    record_demote_parts(&parts, &plane->geometry, record->first_slot, record->n_slots);
    struct cold_demote demote = {
        .sequence = record->header.sequence,
        .layer = record->header.layer,
        .first_slot = record->first_slot,
        .n_slots = record->n_slots,
        .stripe_order = record->stripe_order,
        .slots = record->scattered ? (const uint32_t *)(const void *)(bytes + parts.total) : NULL,
        .positions = (const uint32_t *)(const void *)(bytes + parts.positions),
        .digests = bytes + parts.digests,
        .entries = bytes + parts.entries,
    };
    STAGE_BEGIN_AT(agent_demote, &record->header);
    int status = cold_pool_demote(plane->pool, &demote, cost, why);
    STAGE_END(agent_demote, cost->flash_write_bytes);
    plane->drive.counters.written_bytes += cost->flash_write_bytes;
    plane->drive.counters.payload_bytes +=
        status == 0 ? record->n_slots * cold_pool_slot_bytes(plane->pool) : 0;
    completion->count = status == 0 ? record->n_slots : 0;
    return status;
}

static int run_adopt(struct data_plane *plane, const void *payload,
                     struct record_completion *completion, struct cold_cost *cost,
                     struct hill_why *why)
{
    const struct record_adopt *record = payload;
    const struct cold_adopt adopt = {.sequence = record->header.sequence,
                                     .layer = record->header.layer,
                                     .stripe = record->stripe,
                                     .stripe_order = record->stripe_order,
                                     .items = (const struct adopt_item *)(record + 1),
                                     .n_items = record->n_slots};

    (void)cost;
    STAGE_BEGIN_AT(agent_commit, &record->header);
    int status = cold_pool_adopt(plane->pool, &adopt, why);
    STAGE_END(agent_commit, record->n_slots * sizeof(struct adopt_item));
    completion->count = status == 0 ? record->n_slots : 0;
    return status;
}

/* Carry out the demotes that are in the background ring before a sequence is trimmed. More than a
 * ringful are newer than the trim. */
static void drain_background(struct data_plane *plane, uint32_t sequence);

static int run_trim(struct data_plane *plane, const void *payload,
                    struct record_completion *completion, struct cold_cost *cost,
                    struct hill_why *why)
{
    const struct record_trim *record = payload;

    (void)completion;
    (void)cost;
    (void)why;
    drain_background(plane, record->header.sequence);
    STAGE_BEGIN_AT(agent_trim, &record->header);
    cold_pool_trim(plane->pool, record->header.sequence);
    STAGE_END(agent_trim, 0);
    return plane->lost;
}

/* ---- dispatch ---- */

enum { ON_COMMAND = 1, ON_BACKGROUND = 2 };

static const struct command {
    uint32_t type;
    unsigned rings; /* that it may come on */
    uint32_t fixed_bytes;
    int (*run)(struct data_plane *plane, const void *payload, struct record_completion *completion,
               struct cold_cost *cost, struct hill_why *why);
} commands[] = {
    {RECORD_AGENT_QUERY, ON_COMMAND, sizeof(struct record_agent_query), run_query},
    {RECORD_COMMIT, ON_COMMAND, sizeof(struct record_commit), run_commit},
    {RECORD_RELEASE, ON_COMMAND, sizeof(struct record_release), run_release},
    {RECORD_FETCH, ON_COMMAND, sizeof(struct record_fetch), run_fetch},
    {RECORD_ADOPT, ON_COMMAND, sizeof(struct record_adopt), run_adopt},
    {RECORD_READ_KEYS, ON_COMMAND, sizeof(struct record_read_keys), run_read_keys},
    {RECORD_TRIM, ON_COMMAND, sizeof(struct record_trim), run_trim},
    {RECORD_DEMOTE, ON_BACKGROUND, sizeof(struct record_demote), run_demote},
};

static const struct command *find_command(uint32_t type)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (commands[i].type == type)
            return &commands[i];
    return NULL;
}

/* The tag of a command whose fixed part is there: right after the header in all but the query. */
static uint64_t tag_of(const struct command *command, const void *payload)
{
    uint64_t tag;

    if (command->type == RECORD_AGENT_QUERY)
        return ((const struct record_agent_query *)payload)->query_id;
    _Static_assert(offsetof(struct record_commit, tag) == sizeof(struct record_header), "tag");
    _Static_assert(offsetof(struct record_release, tag) == sizeof(struct record_header), "tag");
    _Static_assert(offsetof(struct record_fetch, tag) == sizeof(struct record_header), "tag");
    _Static_assert(offsetof(struct record_read_keys, tag) == sizeof(struct record_header), "tag");
    _Static_assert(offsetof(struct record_trim, tag) == sizeof(struct record_header), "tag");
    _Static_assert(offsetof(struct record_demote, tag) == sizeof(struct record_header), "tag");
    memcpy(&tag, (const uint8_t *)payload + sizeof(struct record_header), sizeof tag);
    return tag;
}

/* Is the record one that can be carried out? */
static int check(const struct data_plane *plane, const struct command *command, bool background,
                 const void *payload, uint32_t bytes, struct hill_why *why)
{
    if (!(command->rings & (background ? ON_BACKGROUND : ON_COMMAND)))
        return hill_fail(why, HILL_E_PROTOCOL, "%s record on the %s ring",
                         record_name(command->type), background ? "background" : "command");
    return record_check(command->type, payload, bytes, &plane->geometry, plane->n_sequences, why);
}

static void note_failure(struct data_plane *plane, const struct command *command,
                         const struct record_completion *completion, bool malformed,
                         const struct hill_why *why)
{
    if (malformed && !worth_a_line(++plane->malformed))
        return;
    log_warn("%s of sequence %u, layer %u failed: %s (%s)", record_name(command->type),
             completion->header.sequence, completion->header.layer, why->text,
             hill_strerror(completion->status));
}

/* What a command other than a query moved. A query is charged as its scores come. */
static void charge(struct data_plane *plane, const struct command *command,
                   const struct cold_cost *cost, struct drive_command *device)
{
    if (!plane->drive.model.figures.on || command->type == RECORD_AGENT_QUERY)
        return;
    if (cost->flash_read_bytes)
        drive_read(&plane->drive, device, cost->flash_read_bytes);
    if (cost->flash_write_bytes)
        drive_write(&plane->drive, device, cost->flash_write_bytes);
}

static enum held_stream stream_of(const struct command *command, bool background)
{
    if (background)
        return HELD_BACKGROUND;
    return command->type == RECORD_AGENT_QUERY ? HELD_QUERY : HELD_COMMAND;
}

static void carry_out(struct data_plane *plane, const struct command *command, bool background,
                      const void *payload, uint32_t bytes)
{
    struct record_completion completion = {.tag = tag_of(command, payload),
                                           .command = command->type};
    struct cold_cost cost = {0};
    struct drive_command device;
    struct hill_why why = {""};
    int64_t start = clock_now_ns();

    drive_begin(&device, &plane->drive, start);
    plane->device = &device; /* a trim's demotes have their own, and it needs its no more */
    memcpy(&completion.header, payload, sizeof completion.header);
    completion.status = check(plane, command, background, payload, bytes, &why);
    bool malformed = completion.status != 0;
    if (malformed) { /* the answer must pass the scorer's own check */
        completion.header.sequence %= plane->n_sequences;
        completion.header.layer %= plane->geometry.n_layers;
    }
    if (!malformed)
        completion.status = command->run(plane, payload, &completion, &cost, &why);
    plane->device = NULL;
    if (plane->lost != 0)
        return; /* nobody to answer */
    if (completion.status != 0)
        note_failure(plane, command, &completion, malformed, &why);
    charge(plane, command, &cost, &device);
    drive_end(&plane->drive, &device, clock_now_ns());
    completion.flash_read_bytes = cost.flash_read_bytes;
    completion.flash_write_bytes = cost.flash_write_bytes;
    completion.link_kv_bytes = cost.link_kv_bytes;
    completion.link_key_bytes = cost.link_key_bytes;
    completion.busy_ns = (uint64_t)(clock_now_ns() - start);
    answer(plane, stream_of(command, background), &completion, &device);
    plane->commands++;
}

/* A record as it came from a ring. */
static void take(struct data_plane *plane, uint32_t type, bool background, const void *payload,
                 uint32_t bytes)
{
    const struct command *command = find_command(type);
    struct record_header header;

    if (bytes >= sizeof header) {
        memcpy(&header, payload, sizeof header);
        if (header.epoch != plane->epoch) {
            if (worth_a_line(++plane->dropped))
                log_warn("dropped a %s record of epoch %u, this is %u", record_name(type),
                         header.epoch, plane->epoch);
            return;
        }
    }
    if (command && bytes >= command->fixed_bytes)
        carry_out(plane, command, background, payload, bytes);
    else if (worth_a_line(++plane->malformed))
        log_warn("dropped a record of type %u with %u bytes: no command of mine", type, bytes);
}

/* 1 when a record was taken, 0 when the ring is empty, negative when it is of no use any more. */
static int turn_ring(struct data_plane *plane, struct shm_ring_end *end, bool background,
                     uint32_t *taken_bytes)
{
    const void *payload;
    uint32_t type, bytes;
    int status = shm_ring_peek(end, &type, &payload, &bytes);

    if (status == HILL_E_WOULD_BLOCK)
        return 0;
    if (status != 0) {
        plane->lost = status;
        return status;
    }
    *taken_bytes = bytes;
    take(plane, type, background, payload, bytes);
    shm_ring_release(end);
    return plane->lost != 0 ? plane->lost : 1;
}

/* Is the next one of another sequence, and into slots that a RELEASE frees, which may stand behind
 * the trim? It waits then. The scorer trims a sequence whose own demotes are over, so that none of
 * them waits behind it. */
static bool may_need_a_release(struct shm_ring_end *end, uint32_t sequence)
{
    struct record_demote record;
    const void *payload;
    uint32_t type, bytes;

    if (shm_ring_peek(end, &type, &payload, &bytes) != 0 || type != RECORD_DEMOTE ||
        bytes < sizeof record)
        return false;
    memcpy(&record, payload, sizeof record);
    return record.scattered && record.header.sequence != sequence;
}

static void drain_background(struct data_plane *plane, uint32_t sequence)
{
    uint64_t taken = 0;
    uint32_t bytes;

    while (taken <= plane->background->capacity &&
           !may_need_a_release(plane->background, sequence) &&
           turn_ring(plane, plane->background, true, &bytes) == 1)
        taken += bytes + SHM_RECORD_ALIGN;
}

/* May work that nobody waits for go to the drive? */
static bool flash_is_free(struct data_plane *plane)
{
    plane->gated =
        plane->drive.model.figures.on && drive_flash_free(&plane->drive) > clock_now_ns();
    return !plane->gated;
}

/* Is a record there, or the ring of no use? */
static bool waits(struct shm_ring_end *end)
{
    const void *payload;
    uint32_t type, bytes;
    return shm_ring_peek(end, &type, &payload, &bytes) != HILL_E_WOULD_BLOCK;
}

int data_plane_turn(struct data_plane *plane)
{
    uint32_t bytes;

    if (plane->lost == 0)
        send_due(plane); /* a failure is plane->lost */
    if (plane->lost != 0)
        return plane->lost;
    int status = turn_ring(plane, plane->command, false, &bytes);
    if (status != 0 || !flash_is_free(plane) || !waits(plane->background))
        return status;
    /* What has come on the command ring before this record came on the other is there now, a
     * RELEASE of slots that it writes to: that goes first [I18]. */
    status = turn_ring(plane, plane->command, false, &bytes);
    return status == 0 ? turn_ring(plane, plane->background, true, &bytes) : status;
}

int data_plane_write_directory(struct data_plane *plane, struct hill_why *why)
{
    struct drive_command device;

    if (!flash_is_free(plane))
        return 0;
    drive_begin(&device, &plane->drive, clock_now_ns());
    int status = cold_pool_write_directory(plane->pool, why);
    if (status == 1)
        plane->drive.counters.directory_bytes +=
            pool_directory_page_bytes(cold_pool_layout(plane->pool));
    if (status == 1 && plane->drive.model.figures.on)
        drive_write(&plane->drive, &device,
                    pool_directory_page_bytes(cold_pool_layout(plane->pool)));
    return status;
}

void data_plane_set_model(struct data_plane *plane, const struct csd_model *figures)
{
    plane->drive.model.figures = *figures;
}

int64_t data_plane_next_ns(const struct data_plane *plane)
{
    int64_t next = held_next_ns(&plane->held);

    return plane->gated && drive_flash_free(&plane->drive) < next ? drive_flash_free(&plane->drive)
                                                                  : next;
}

void data_plane_close(struct data_plane *plane)
{
    held_finish(&plane->held);
}

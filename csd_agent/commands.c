/*
 * csd_agent/commands.c - command records carried out and answered; see commands.h.
 */
#include "csd_agent/commands.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/grow.h"
#include "base/log.h"
#include "base/stage_trace.h"
#include "csd_agent/command_output.h"
#include "csd_agent/score_blocks.h"

/* A flood of bad records must not flood the log: the first few, then at powers of two. */
static bool worth_a_line(uint64_t count)
{
    return count <= 8 || (count & (count - 1)) == 0;
}

/* ---- copies ---- */

static void copy_part(struct record_copy *copy, const uint8_t *payload, uint64_t from, uint64_t to)
{
    to = to < copy->bytes ? to : copy->bytes;
    if (from < to)
        memcpy(copy->record + from, payload + from, to - from);
}

/* Each byte is read once: the parts of a DEMOTE are where the copy says. false: no memory. */
static bool copy_record(struct record_copy *copy, const struct kv_geometry *g, uint32_t type,
                        const void *payload, uint32_t bytes)
{
    const struct record_demote *demote;
    struct demote_parts parts;

    copy->bytes = 0;
    if (!GROW(copy->record, copy->room, bytes + 1)) /* an empty one is somewhere, too */
        return false;
    copy->type = type;
    copy->bytes = bytes;
    if (type != RECORD_DEMOTE || bytes < sizeof *demote) {
        copy_part(copy, payload, 0, bytes);
        return true;
    }
    copy_part(copy, payload, 0, sizeof *demote);
    demote = (const void *)copy->record;
    record_demote_parts(&parts, g, demote->first_slot, demote->n_slots);
    copy_part(copy, payload, sizeof *demote, parts.digests);
    copy_part(copy, payload, parts.total, bytes);
    return true;
}

static void free_copy(struct record_copy *copy)
{
    free(copy->record);
    *copy = (struct record_copy){0};
}

/* ---- the commands ---- */

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

static struct cold_fetch fetch_of(const struct data_plane *plane, const struct record_fetch *record)
{
    const struct fetch_item *items = (const struct fetch_item *)(record + 1);
    return (struct cold_fetch){.sequence = record->header.sequence,
                               .layer = record->header.layer,
                               .items = items,
                               .n_items = record->n_entries,
                               .staging = plane->staging,
                               .rows = (const struct fetch_row *)(items + record->n_entries),
                               .n_rows = record->n_rows};
}

static int run_fetch(struct data_plane *plane, const void *payload,
                     struct record_completion *completion, struct cold_cost *cost,
                     struct hill_why *why)
{
    const struct record_fetch *record = payload;
    const struct cold_fetch fetch = fetch_of(plane, record);
    STAGE_BEGIN_AT(agent_fetch, &record->header);
    int status = cold_pool_fetch(plane->pool, &fetch, cost, &completion->detail, why);
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
    if (plane->key_windows)
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
    const uint8_t *bytes = payload, *data = plane->demoted;
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
        .digests = data + parts.digests,
        .entries = data + parts.entries,
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
    struct cold_adopted adopted;

    (void)cost;
    STAGE_BEGIN_AT(agent_commit, &record->header);
    int status = cold_pool_adopt(plane->pool, &adopt, &adopted, why);
    STAGE_END(agent_commit, record->n_slots * sizeof(struct adopt_item));
    completion->count = adopted.n;
    completion->detail = status == HILL_E_DAMAGED ? adopted.bad_position : 0;
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
    {RECORD_AGENT_QUERY, ON_COMMAND, sizeof(struct record_agent_query), score_blocks_run},
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

/* All that the command under way reads has been asked for: the drive would have nothing to do while
 * its last bytes are scored or copied. So what the next command reads is asked for, where that one
 * only reads, too: nothing is written between the two. */
static void look_ahead(void *context)
{
    struct data_plane *plane = context;
    const struct command *command;
    const void *payload;
    uint32_t type, bytes;
    bool begun = false;

    if (!shm_ring_peek_behind(plane->command, &type, &payload, &bytes) ||
        (type != RECORD_AGENT_QUERY && type != RECORD_FETCH))
        return;
    command = find_command(type);
    if (bytes < command->fixed_bytes ||
        !copy_record(&plane->ahead, &plane->geometry, type, payload, bytes))
        return; /* in its turn somebody hears of it */
    const void *copy = plane->ahead.record;
    bool good = ((const struct record_header *)copy)->epoch == plane->epoch &&
                check(plane, command, false, copy, bytes, NULL) == 0;
    if (good && type == RECORD_FETCH) {
        const struct cold_fetch fetch = fetch_of(plane, copy);
        begun = cold_pool_fetch_ahead(plane->pool, &fetch);
    } else if (good) {
        const struct record_agent_query *record = copy;
        const struct cold_query query = {.sequence = record->header.sequence,
                                         .layer = record->header.layer,
                                         .committed = record->committed,
                                         .host = (const uint64_t *)(const void *)(record + 1),
                                         .n_host_words = record->n_host_words};
        begun = cold_pool_query_ahead(plane->pool, &query);
    }
    if (begun)
        plane->read_ahead++;
    else
        plane->ahead.bytes = 0;
}

/* What has been read ahead is nobody's: its command is not what it was. */
static void drop_ahead(struct data_plane *plane)
{
    if (plane->ahead.bytes)
        cold_pool_drop_ahead(plane->pool);
    plane->ahead.bytes = 0;
}

static bool is_ahead(const struct data_plane *plane, const struct record_copy *copy)
{
    const struct record_copy *ahead = &plane->ahead;
    return ahead->bytes && ahead->type == copy->type && ahead->bytes == copy->bytes &&
           memcmp(ahead->record, copy->record, copy->bytes) == 0;
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
    if (malformed)
        drop_ahead(plane);
    /* under a model times are the model's */
    bool ahead = plane->ahead.bytes && !plane->drive.model.figures.on;
    plane->ahead.bytes = 0; /* it is this one's */
    if (!malformed)
        completion.status = command->run(plane, payload, &completion, &cost, &why);
    plane->device = NULL;
    if (plane->lost != 0)
        return; /* nobody to answer */
    if (command->type == RECORD_FETCH && completion.status == 0)
        completion.detail = ahead;
    if (completion.status != 0)
        note_failure(plane, command, &completion, malformed, &why);
    charge(plane, command, &cost, &device);
    drive_end(&plane->drive, &device, clock_now_ns());
    completion.flash_read_bytes = cost.flash_read_bytes;
    completion.flash_write_bytes = cost.flash_write_bytes;
    completion.link_kv_bytes = cost.link_kv_bytes;
    completion.link_key_bytes = cost.link_key_bytes;
    completion.busy_ns = (uint64_t)(clock_now_ns() - start);
    output_answer(plane, stream_of(command, background), &completion, &device);
    plane->commands++;
}

/* A record as it came from a ring. */
static void take(struct data_plane *plane, uint32_t type, bool background, const void *payload,
                 uint32_t bytes)
{
    const struct command *command = find_command(type);
    struct record_copy *copy = &plane->taken[background];

    if (!copy_record(copy, &plane->geometry, type, payload, bytes)) {
        plane->lost = HILL_E_NOMEM;
        return;
    }
    const struct record_header *header = (const void *)copy->record;
    if (!is_ahead(plane, copy))
        drop_ahead(plane);
    if (bytes >= sizeof *header && header->epoch != plane->epoch) {
        drop_ahead(plane);
        if (worth_a_line(++plane->dropped))
            log_warn("dropped a %s record of epoch %u, this is %u", record_name(type),
                     header->epoch, plane->epoch);
        return;
    }
    if (command && bytes >= command->fixed_bytes) {
        plane->demoted = payload;
        carry_out(plane, command, background, copy->record, bytes);
        return;
    }
    drop_ahead(plane);
    if (worth_a_line(++plane->malformed))
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

    cold_pool_when_begun(plane->pool, look_ahead, plane);
    if (plane->lost == 0)
        output_send_due(plane); /* a failure is plane->lost */
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
    free_copy(&plane->taken[0]);
    free_copy(&plane->taken[1]);
    free_copy(&plane->ahead);
}

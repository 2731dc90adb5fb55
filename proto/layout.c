/*
 * proto/layout.c - sizes and offsets of the rings segment, from one table of who talks to whom.
 *
 * Payload: one doorbell a party, then the rings in enum order, each at a 64-byte boundary; behind
 * them the doorbells of the other drives' agents, and their rings: with one drive there are none.
 * Everything follows from struct layout_input, so that processes agree without storing offsets in
 * shared memory. Who calls it: coordinator (size, fingerprint), scorer (init), all workers (open).
 * Concurrency: layout_init by the scorer's thread before anyone else can open; a ring's magic is
 * published last (shm/ring.h).
 */
#include "proto/layout.h"

#include <string.h>

#include <xxhash.h>

#include "kv/plan.h"
#include "kv/score.h"
#include "proto/envelope.h"
#include "proto/records.h"

#define LAYOUT_VERSION     3u
#define RING_ALIGN         64u
#define BULK_RECORD_TARGET (1u << 20) /* APPEND and DEMOTE aim at a record of 1 MiB */
#define BULK_RECORD_TOKENS 1024u

struct link {
    const char *name;
    enum layout_party producer, consumer;
    uint32_t capacity_min; /* bytes; room for many small records */
};

static const struct link links[RING_COUNT] = {
    [RING_APPEND] = {"append", PARTY_GPU, PARTY_SCORER, 1u << 20},
    [RING_QUERY] = {"query", PARTY_GPU, PARTY_SCORER, 1u << 16},
    [RING_SELECTION] = {"selection", PARTY_SCORER, PARTY_GPU, 1u << 16},
    [RING_COMMAND] = {"command", PARTY_SCORER, PARTY_AGENT, 1u << 20},
    [RING_BACKGROUND] = {"background", PARTY_SCORER, PARTY_AGENT, 1u << 20},
    [RING_SCORE] = {"score", PARTY_AGENT, PARTY_SCORER, 1u << 20},
    [RING_COMPLETION] = {"completion", PARTY_AGENT, PARTY_SCORER, 1u << 16},
};

/* Of the first drive, that which stands where this one does; *drive: whose it is. */
static enum layout_ring first_of(enum layout_ring ring, uint32_t *drive)
{
    *drive = ring < RING_COUNT ? 0 : 1 + (ring - RING_COUNT) / LAYOUT_AGENT_RINGS;
    return *drive ? RING_COMMAND + (ring - RING_COUNT) % LAYOUT_AGENT_RINGS : ring;
}

uint64_t layout_fingerprint(const struct layout_input *in)
{
    const uint32_t words[] = {
        LAYOUT_VERSION,        PROTO_RECORDS_VERSION,
        SHM_LAYOUT_VERSION,    in->geometry.n_layers,
        in->geometry.n_heads,  in->geometry.n_kv_heads,
        in->geometry.head_dim, in->ctx_tokens,
        in->n_sequences,       kv_digest_bits(&in->geometry),
    };
    return XXH3_64bits(words, sizeof(words));
}

static uint32_t bulk_tokens(uint64_t token_bytes)
{
    uint64_t tokens = BULK_RECORD_TARGET / token_bytes;
    if (tokens > BULK_RECORD_TOKENS)
        return BULK_RECORD_TOKENS;
    return tokens == 0 ? 1 : (uint32_t)tokens;
}

uint32_t layout_append_tokens_max(const struct layout_input *in)
{
    return bulk_tokens(kv_entry_bytes(&in->geometry));
}

uint32_t layout_demote_slots_max(const struct layout_input *in)
{
    return bulk_tokens((uint64_t)kv_entry_bytes(&in->geometry) + kv_digest_bytes(&in->geometry) +
                       sizeof(uint32_t));
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Payload bytes of the largest record that a ring carries. */
static uint64_t record_bytes_max(const struct layout_input *in, enum layout_ring ring)
{
    const struct kv_geometry *g = &in->geometry;
    struct demote_parts parts;
    switch (ring) {
    case RING_APPEND:
        return sizeof(struct record_append) +
               (uint64_t)layout_append_tokens_max(in) * kv_entry_bytes(g);
    case RING_QUERY:
        return sizeof(struct record_query) + (uint64_t)g->n_heads * g->head_dim * sizeof(float);
    case RING_SELECTION: /* policy full selects, and may have to upload, every token */
        return sizeof(struct record_selection) +
               in->ctx_tokens *
                   (uint64_t)(sizeof(struct selected_item) + sizeof(struct selected_upload));
    case RING_COMMAND:
        return larger(
            sizeof(struct record_agent_query) + RECORD_HOST_WORDS_MAX * sizeof(uint64_t) +
                kv_query_bytes_max(g),
            larger(sizeof(struct record_fetch) + LAYOUT_FETCH_ITEMS_MAX * sizeof(struct fetch_item),
                   sizeof(struct record_commit) + LAYOUT_COMMIT_SLOTS_MAX * sizeof(uint32_t)));
    case RING_BACKGROUND:
        /* slots that begin in the last lane of a group lie in one group more */
        record_demote_parts(&parts, g, KV_GROUP_TOKENS - 1, layout_demote_slots_max(in));
        return parts.scattered_total;
    case RING_SCORE:
        return sizeof(struct record_score_block) +
               RECORD_STRIPE_SLOTS_MAX * sizeof(struct score_tuple);
    case RING_COMPLETION:
    case RING_COUNT:
        break;
    }
    return sizeof(struct record_completion);
}

/* Room of one record in a ring. */
static uint64_t in_ring(uint64_t bytes)
{
    return record_pad16(bytes) + SHM_RECORD_ALIGN;
}

/* What sequences that run at the same time put into a ring beside two of its largest records: a
 * query each, a guess each and what says that a step's reads are done, an entry each of a layer and
 * of the next with the end of its step (that of a layer may wait until the next one's query), the
 * answers of a usual selection (a wait for room is no error there: the GPU worker drains that ring
 * whatever it waits for). */
static uint64_t parallel_bytes(const struct layout_input *in, enum layout_ring ring)
{
    uint64_t n = in->n_sequences;
    if (ring == RING_QUERY)
        return n * (2 * in_ring(record_bytes_max(in, RING_QUERY)) +
                    in_ring(sizeof(struct record_reads_done)));
    if (ring == RING_APPEND)
        return n * (2 * in_ring(sizeof(struct record_append) + kv_entry_bytes(&in->geometry)) +
                    in_ring(sizeof(struct record_step_end)));
    return ring == RING_SELECTION ? (n - 1) * links[RING_SELECTION].capacity_min : 0;
}

/* A ring takes payloads up to half its capacity less a record header (shm_ring_payload_max). */
static uint32_t ring_capacity(const struct layout_input *in, enum layout_ring ring)
{
    uint64_t needed = 2 * in_ring(record_bytes_max(in, ring)) + parallel_bytes(in, ring);
    uint64_t capacity = links[ring].capacity_min;
    while (capacity < needed)
        capacity *= 2;
    return (uint32_t)capacity; /* at most 2^30: KV_MAX_TOKENS * 24 bytes, twice, and 2^22 */
}

static uint64_t ring_bytes(const struct layout_input *in, enum layout_ring ring)
{
    return (shm_ring_bytes(ring_capacity(in, ring)) + RING_ALIGN - 1) & ~(uint64_t)(RING_ALIGN - 1);
}

/* Where the rings of all parties but further agents end, and these have their doorbells. */
static uint64_t further_offset(const struct layout_input *in)
{
    uint64_t offset = PARTY_COUNT * sizeof(struct shm_doorbell);
    for (enum layout_ring r = 0; r < RING_COUNT; r++)
        offset += ring_bytes(in, r);
    return offset;
}

/* Where a ring lies in the payload; of layout_rings: where the payload ends. */
static uint64_t ring_offset(const struct layout_input *in, uint32_t ring)
{
    uint64_t offset = PARTY_COUNT * sizeof(struct shm_doorbell);
    uint32_t drive;
    if (layout_rings(in) > RING_COUNT && ring >= RING_COUNT)
        offset += (in->n_drives - 1) * sizeof(struct shm_doorbell);
    for (uint32_t r = 0; r < ring; r++)
        offset += ring_bytes(in, first_of(r, &drive));
    return offset;
}

uint64_t layout_rings_bytes(const struct layout_input *in)
{
    return ring_offset(in, layout_rings(in));
}

static bool input_valid(const struct layout_input *in)
{
    return kv_geometry_check(&in->geometry, NULL) == 0 && in->ctx_tokens > 0 &&
           in->ctx_tokens <= KV_MAX_TOKENS && in->n_sequences > 0 &&
           in->n_sequences <= KV_MAX_SEQUENCES && in->n_drives <= LAYOUT_DRIVES_MAX;
}

int layout_init(void *payload, uint64_t bytes, const struct layout_input *in)
{
    if (!input_valid(in) || bytes < layout_rings_bytes(in))
        return HILL_E_INVALID;
    /* The doorbells are left alone: zeroed ones are fresh, and a party may sleep on its own
     * already. */
    for (uint32_t ring = 0; ring < layout_rings(in); ring++) {
        uint32_t drive;
        int rc = shm_ring_init((uint8_t *)payload + ring_offset(in, ring),
                               ring_capacity(in, first_of(ring, &drive)), 0);
        if (rc != 0)
            return rc;
    }
    return 0;
}

struct shm_doorbell *layout_doorbell(void *payload, enum layout_party party)
{
    return (struct shm_doorbell *)payload + party;
}

struct shm_doorbell *layout_agent_bell(void *payload, const struct layout_input *in, uint32_t drive)
{
    struct shm_doorbell *further = (void *)((uint8_t *)payload + further_offset(in));
    return drive ? further + (drive - 1) : layout_doorbell(payload, PARTY_AGENT);
}

static struct shm_doorbell *bell_of(void *payload, const struct layout_input *in,
                                    enum layout_party party, uint32_t drive)
{
    return party == PARTY_AGENT ? layout_agent_bell(payload, in, drive)
                                : layout_doorbell(payload, party);
}

int layout_open(struct shm_ring_end *end, void *payload, uint64_t bytes,
                const struct layout_input *in, enum layout_ring ring, enum layout_party party)
{
    memset(end, 0, sizeof(*end));
    if (!input_valid(in) || (uint32_t)ring >= layout_rings(in) || (uint32_t)party >= PARTY_COUNT ||
        bytes < layout_rings_bytes(in))
        return HILL_E_INVALID;
    uint32_t drive;
    enum layout_ring first = first_of(ring, &drive);
    const struct link *link = &links[first];
    if (party != link->producer && party != link->consumer)
        return HILL_E_INVALID;
    bool producer = party == link->producer;
    enum layout_party other = producer ? link->consumer : link->producer;
    struct shm_ring_header *header = (void *)((uint8_t *)payload + ring_offset(in, ring));
    /* acquire: pairs with the release of magic in shm_ring_init; 0 until the scorer was there */
    if (atomic_load_explicit(&header->magic, memory_order_acquire) == 0)
        return HILL_E_WOULD_BLOCK;
    if (header->capacity != ring_capacity(in, first))
        return HILL_E_DAMAGED;
    return shm_ring_open(end, header, ring_bytes(in, first), producer,
                         bell_of(payload, in, party, drive), bell_of(payload, in, other, drive));
}

const char *layout_ring_name(enum layout_ring ring)
{
    uint32_t drive;
    return (uint32_t)ring < LAYOUT_RINGS_MAX ? links[first_of(ring, &drive)].name : "unknown";
}

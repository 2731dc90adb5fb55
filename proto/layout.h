/*
 * proto/layout.h - which segments there are and where the rings, doorbells and arenas lie in them.
 *
 * Segments (shm_segment_name with these `what`s), created by the coordinator for each epoch:
 *     "rings"    doorbells and the seven rings, and a doorbell and four rings more for each further
 *                drive
 *     "staging"  the staging arena (owner: scorer; the agent fills slots, the GPU worker reads)
 *     "hot"      hot pool and tables (owner: scorer), laid out by cpu_scorer alone; a GPU worker
 *                whose device shares the host's memory reads entries in it, where SEQ_READY says
 *     "prompt"   of the prompt that is being computed: what outlives the GPU worker, which alone
 *                lays it out (gpu_worker/prompt_memory.c); its pages come when prompts need them
 * The coordinator's fresh segment is zeroed; the scorer, which takes part in every ring, lays the
 * rings out (layout_init); the others wait until the rings' magic appears (layout_open).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kv/geometry.h"
#include "shm/ring.h"
#include "shm/segment.h"

enum layout_ring {
    RING_APPEND,     /* gpu -> scorer */
    RING_QUERY,      /* gpu -> scorer */
    RING_SELECTION,  /* scorer -> gpu */
    RING_COMMAND,    /* scorer -> agent */
    RING_BACKGROUND, /* scorer -> agent */
    RING_SCORE,      /* agent -> scorer */
    RING_COMPLETION, /* agent -> scorer */
    RING_COUNT
};

/* Drives of one pipeline at most. Each has an agent, with a doorbell and four rings of its own;
 * those of the first are named above, the others' follow (layout_ring_of). */
#define LAYOUT_DRIVES_MAX  4u
#define LAYOUT_AGENT_RINGS (RING_COUNT - RING_COMMAND)
#define LAYOUT_RINGS_MAX   (RING_COUNT + (LAYOUT_DRIVES_MAX - 1) * LAYOUT_AGENT_RINGS)

enum layout_party { PARTY_GPU, PARTY_SCORER, PARTY_AGENT, PARTY_COUNT };

struct layout_input {
    struct kv_geometry geometry;
    uint32_t ctx_tokens, n_sequences;
    uint32_t n_drives; /* that there are rings for; 0: one */
};

/* The ring of a drive's agent that stands where `ring`, from RING_COMMAND on, does for the
 * first. */
static inline enum layout_ring layout_ring_of(enum layout_ring ring, uint32_t drive)
{
    return (enum layout_ring)(
        drive ? RING_COUNT + (drive - 1) * LAYOUT_AGENT_RINGS + (ring - RING_COMMAND) : ring);
}

/* Rings that there are. */
static inline uint32_t layout_rings(const struct layout_input *in)
{
    return RING_COUNT + (in->n_drives > 1 ? in->n_drives - 1 : 0) * LAYOUT_AGENT_RINGS;
}

/* Fingerprint of geometry, context, record and layout versions: segments of another one are
 * refused. Not of the drives: the hot segment outlives them. */
uint64_t layout_fingerprint(const struct layout_input *in);

/* Payload bytes of the "rings" segment. Rings are sized so that the largest record fits twice, and
 * beside them a query of each sequence and an entry of each. */
uint64_t layout_rings_bytes(const struct layout_input *in);

/* Tokens that one APPEND record may carry, slots that one DEMOTE may carry, items that one FETCH
 * may carry. */
uint32_t layout_append_tokens_max(const struct layout_input *in);
uint32_t layout_demote_slots_max(const struct layout_input *in);
#define LAYOUT_FETCH_ITEMS_MAX  4096u
#define LAYOUT_COMMIT_SLOTS_MAX 4096u
#define LAYOUT_KEY_RANGES_MAX   4096u

/* Scorer: lay the rings out in a zeroed payload; doorbells are valid as zeros and are left alone.
 * HILL_E_INVALID: a shape that cannot be, or too few bytes. */
int layout_init(void *payload, uint64_t bytes, const struct layout_input *in);

/* The doorbell of a party; of PARTY_AGENT: the first drive's. */
struct shm_doorbell *layout_doorbell(void *payload, enum layout_party party);
/* Of a drive's agent. */
struct shm_doorbell *layout_agent_bell(void *payload, const struct layout_input *in,
                                       uint32_t drive);

/* Open this party's end of a ring (producer or consumer follows from the table). HILL_E_WOULD_BLOCK
 * while the scorer has not laid it out; HILL_E_INVALID when the party has no end of that ring. */
int layout_open(struct shm_ring_end *end, void *payload, uint64_t bytes,
                const struct layout_input *in, enum layout_ring ring, enum layout_party party);

const char *layout_ring_name(enum layout_ring ring);

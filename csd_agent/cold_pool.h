/*
 * csd_agent/cold_pool.h - the cold pool while the agent owns it: what lies in which stripe, and the
 * commands on it.
 *
 * What: pool/ knows the format, a drive (csd_drive.h) moves the bytes and scores; this module knows
 * the state: stripes of each (sequence, layer) in order, slots written and slots committed, partly
 * filled pages. A slot's life: free -> written (demote: entry and digest are on flash) -> committed
 * (counts for queries, can be fetched) -> written (release), from where it is committed again or
 * written anew -> free (trim, a whole sequence at a time). Slot ids are chosen by the scorer.
 * Invariants [I18]: the directory's bit of a slot is set after its data is on flash, and reaches
 * flash later (cold_pool_write_directory); digests of committed slots are read from flash for every
 * query, but for those in the drive's DRAM (cold_pool_limit_dram); a stripe belongs to one
 * (sequence, layer) until it is trimmed.
 * Who calls it: the agent's commands. Concurrency: one thread. Failure: HILL_E_PROTOCOL for a
 * command that does not fit the state (nothing changed), HILL_E_DAMAGED for an entry whose checksum
 * is wrong, what the drive reports; a line in why.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "csd_agent/csd_drive.h"
#include "kv/score.h"
#include "pool/pool.h"
#include "proto/records.h"
#include "shm/arena.h"

#define COLD_NO_POSITION UINT32_MAX

struct cold_pool;

struct cold_pool_config {
    const char *url;
    struct csd_options options;
    struct kv_geometry geometry;
    uint32_t n_sequences;
    uint64_t cap_bytes;
    uint64_t fingerprint;
    uint32_t key_bytes;      /* of a slot in the plane of keys; 0: the plane is of digests */
    struct pool_stamp stamp; /* whose entries it is to hold */
    bool keeps;              /* they are there already: slots can be adopted */
};

/* Bytes that a command moved. */
struct cold_cost {
    uint64_t flash_read_bytes, flash_write_bytes, link_kv_bytes, link_key_bytes;
    /* a query's bytes of flash and of DRAM up to the scores handed over, these included */
    uint64_t scored_bytes, scored_dram_bytes;
};

/* Open or format the pool; its directory is empty afterwards. A file that is neither empty nor one
 * of our pools is left as it is (HILL_E_DAMAGED). Others: pool_layout_with_keys, pool_format,
 * csd_drive_open. */
int cold_pool_open(struct cold_pool **out, const struct cold_pool_config *config,
                   struct hill_why *why);
/* Writes what is left of the directory. NULL allowed. */
void cold_pool_close(struct cold_pool *pool);

/* Digests that the drive may keep in its DRAM. */
void cold_pool_limit_dram(struct cold_pool *pool, uint64_t bytes);

/* Of what a slot holds: its entry, and its digest or key. */
uint64_t cold_pool_slot_bytes(const struct cold_pool *pool);

const struct pool_layout *cold_pool_layout(const struct cold_pool *pool);
void cold_pool_describe(const struct cold_pool *pool, char *text, size_t size);
/* HILL_E_IO: the drive answers with errors alone, and only opening it anew can help. */
int cold_pool_lost(const struct cold_pool *pool, struct hill_why *why);

/* Entries and digests of slots as a DEMOTE record has them: of consecutive ones of one stripe, or
 * of those that `slots` names, in stripes that (sequence, layer) has. */
struct cold_demote {
    uint32_t sequence, layer, first_slot, n_slots, stripe_order;
    const uint32_t *slots;     /* [n], ascending, none committed; NULL: first_slot .. + n - 1 */
    const uint32_t *positions; /* [n] */
    /* groups (kv/group.h) from first_slot / 16 on, as the stripe has them; for a plane of parts of
     * keys [n][key_bytes]. With `slots`: as if those followed one another from first_slot on */
    const uint8_t *digests;
    const uint8_t *entries; /* [n][entry bytes] */
};
/* HILL_E_PROTOCOL (nothing changed), HILL_E_NOMEM, or what the drive reports. */
int cold_pool_demote(struct cold_pool *pool, const struct cold_demote *demote,
                     struct cold_cost *cost, struct hill_why *why);

/* Written slots count from now on: all or none. HILL_E_PROTOCOL. */
int cold_pool_commit(struct cold_pool *pool, uint32_t sequence, uint32_t layer,
                     const uint32_t *slots, uint32_t n_slots, struct hill_why *why);

/* Committed slots are written ones again: they do not count, and can be committed or written anew.
 * All slots or none. HILL_E_PROTOCOL. */
int cold_pool_release(struct cold_pool *pool, uint32_t sequence, uint32_t layer,
                      const uint32_t *slots, uint32_t n_slots, struct hill_why *why);

/* Slots of a stripe that an earlier agent had committed: they are committed again, ascending; those
 * that are already are passed over. HILL_E_DAMAGED: with a bad position all but the damaged ones
 * are, of which that is the first; without, the pool is not the one of that time. HILL_E_IO: some
 * of what lies there cannot be read. */
struct cold_adopt {
    uint32_t sequence, layer, stripe, stripe_order;
    const struct adopt_item *items;
    uint32_t n_items; /* 0: the stripe is taken */
};
struct cold_adopted {
    uint32_t n;            /* committed now */
    uint32_t bad_position; /* COLD_NO_POSITION: none */
};
int cold_pool_adopt(struct cold_pool *pool, const struct cold_adopt *adopt,
                    struct cold_adopted *adopted, struct hill_why *why);

/* Every stripe of the sequence is free. */
void cold_pool_trim(struct cold_pool *pool, uint32_t sequence);

/* Entries to be copied into staging slots; from rows[i].first on they are that sequence's
 * (proto/records.h: n_rows of a FETCH). */
struct cold_fetch {
    uint32_t sequence, layer;
    const struct fetch_item *items;
    uint32_t n_items;
    struct shm_arena *staging;
    const struct fetch_row *rows;
    uint32_t n_rows;
};
/* HILL_E_PROTOCOL, HILL_E_DAMAGED (a checksum), HILL_E_NOMEM, or what the drive reports.
 * *bad_position: of the entry at fault when not 0 is returned for one. */
int cold_pool_fetch(struct cold_pool *pool, const struct cold_fetch *fetch, struct cold_cost *cost,
                    uint32_t *bad_position, struct hill_why *why);

struct cold_query {
    uint32_t sequence, layer;
    uint32_t committed; /* slots, as the scorer counts them */
    /* [n_host_words] of AGENT_QUERY: slots that are passed over */
    const uint64_t *host;
    uint32_t n_host_words;
    struct kv_query query;
    /* Scores of slots first_slot .. first_slot + n - 1 of a stripe, in order; slots that are not
     * committed are among them, or passed over. A negative code ends the query. */
    int (*scored)(void *context, uint32_t stripe, uint32_t first_slot, uint32_t n,
                  const uint16_t *scores);
    void *context;
};
/* HILL_E_PROTOCOL: the pool is not to be scored, or has not as many committed slots; HILL_E_NOMEM,
 * HILL_E_DAMAGED, what the drive or `scored` reports. */
int cold_pool_query(struct cold_pool *pool, const struct cold_query *query, struct cold_cost *cost,
                    struct hill_why *why);

/* Reading ahead: a query or fetch calls begun once, when all that it reads has been asked for. From
 * within, one of these two may begin the reads of the command that comes next, which must be that
 * query or fetch (cold_pool_drop_ahead: it is not). They say whether any was begun. */
void cold_pool_when_begun(struct cold_pool *pool, void (*begun)(void *context), void *context);
bool cold_pool_query_ahead(struct cold_pool *pool, const struct cold_query *query);
bool cold_pool_fetch_ahead(struct cold_pool *pool, const struct cold_fetch *fetch);
void cold_pool_drop_ahead(struct cold_pool *pool);

/* Keys, or whole groups of digests, for the host to evaluate. */
struct cold_keys {
    uint32_t sequence, layer;
    const struct key_range *ranges; /* each within a stripe, none beyond the last committed slot */
    uint32_t n_ranges;
    uint8_t *window; /* page-aligned; NULL: this pipeline has none */
    uint64_t window_bytes;
};
/* The ranges' pages into the window, one after the other. HILL_E_PROTOCOL also without a window. */
int cold_pool_read_keys(struct cold_pool *pool, const struct cold_keys *keys,
                        struct cold_cost *cost, struct hill_why *why);

/* Position of a committed slot, else COLD_NO_POSITION. */
uint32_t cold_pool_position(const struct cold_pool *pool, uint32_t slot);
uint32_t cold_pool_committed(const struct cold_pool *pool, uint32_t sequence, uint32_t layer);

/* Write one changed page of the directory: 1 written, 0 none was left, negative: failed (it stays
 * changed). */
int cold_pool_write_directory(struct cold_pool *pool, struct hill_why *why);

/*
 * base/hash_state.h - the state of a running xxHash64 as bytes, so that another process can go on
 * with it.
 *
 * What: a restored session's selection_hash and logits_hash go on where the saved one's stopped, so
 * that they equal those of a run that was never interrupted. xxHash says that the state's layout is
 * its own: the bytes carry the library's version and are taken by the same version only. Who calls
 * it: gpu_worker, cpu_scorer, coordinator, session. Concurrency: pure functions.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <xxhash.h>

#define HASH_STATE_BYTES 96u

struct hash_state {
    uint32_t version; /* of the library */
    uint32_t bytes;   /* of its state; the rest is 0 */
    uint8_t state[HASH_STATE_BYTES];
};

_Static_assert(sizeof(struct hash_state) == 104, "part of records and of session files");

/* One to be saved: of what XXH64_createState allocates XXH64_reset leaves some bytes as they are,
 * which would go into records and files. Freed by XXH64_freeState; NULL: out of memory. */
XXH64_state_t *hash_state_create(void);
void hash_state_save(struct hash_state *out, const XXH64_state_t *hash);
/* Can it be what hash_state_save made? Of another version's: nobody can tell, true. */
bool hash_state_is_sound(const struct hash_state *in);
/* False, and nothing changed: it is another version's, or not sound. */
bool hash_state_load(XXH64_state_t *hash, const struct hash_state *in);

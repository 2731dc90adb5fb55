/* base/hash_state.c - see hash_state.h. */
#define XXH_STATIC_LINKING_ONLY /* the size of the state */
#include "base/hash_state.h"

#include <string.h>

_Static_assert(sizeof(XXH64_state_t) <= HASH_STATE_BYTES, "a state fits");

void hash_state_save(struct hash_state *out, const XXH64_state_t *hash)
{
    *out = (struct hash_state){.version = XXH_versionNumber(), .bytes = sizeof *hash};
    memcpy(out->state, hash, sizeof *hash);
}

bool hash_state_load(XXH64_state_t *hash, const struct hash_state *in)
{
    if (in->version != XXH_versionNumber() || in->bytes != sizeof *hash)
        return false;
    memcpy(hash, in->state, sizeof *hash);
    return true;
}

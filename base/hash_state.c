/* base/hash_state.c - see hash_state.h. */
#define XXH_STATIC_LINKING_ONLY /* the size of the state */
#include "base/hash_state.h"

#include <string.h>

_Static_assert(sizeof(XXH64_state_t) <= HASH_STATE_BYTES, "a state fits");

XXH64_state_t *hash_state_create(void)
{
    XXH64_state_t *hash = XXH64_createState();
    if (!hash)
        return NULL;
    memset(hash, 0, sizeof *hash);
    XXH64_reset(hash, 0);
    return hash;
}

void hash_state_save(struct hash_state *out, const XXH64_state_t *hash)
{
    *out = (struct hash_state){.version = XXH_versionNumber(), .bytes = sizeof *hash};
    memcpy(out->state, hash, sizeof *hash);
}

static bool is_ours(const struct hash_state *in)
{
    return in->version == XXH_versionNumber() && in->bytes == sizeof(XXH64_state_t);
}

/* What has not filled a block yet lies in the state's buffer, memsize bytes of it: xxHash relies on
 * that, and would write past the buffer. */
bool hash_state_is_sound(const struct hash_state *in)
{
    XXH64_state_t hash;
    if (!is_ours(in))
        return true;
    memcpy(&hash, in->state, sizeof hash);
    return hash.memsize == hash.total_len % sizeof hash.mem64;
}

bool hash_state_load(XXH64_state_t *hash, const struct hash_state *in)
{
    if (!is_ours(in) || !hash_state_is_sound(in))
        return false;
    memcpy(hash, in->state, sizeof *hash);
    return true;
}

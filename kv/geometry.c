/*
 * kv/geometry.c - checks a KV geometry that came from a model file, a pool or a message.
 * Concurrency: pure functions. Failure: HILL_E_INVALID with the member in why.
 */
#include "kv/geometry.h"

static int check_member(const char *name, uint32_t value, uint32_t maximum, struct hill_why *why)
{
    if (value == 0 || value > maximum)
        return hill_fail(why, HILL_E_INVALID, "%s is %u, not 1..%u", name, value, maximum);
    return 0;
}

int kv_geometry_check(const struct kv_geometry *g, struct hill_why *why)
{
    int rc = check_member("number of layers", g->n_layers, KV_MAX_LAYERS, why);
    if (rc == 0)
        rc = check_member("number of heads", g->n_heads, KV_MAX_HEADS, why);
    if (rc == 0)
        rc = check_member("number of KV heads", g->n_kv_heads, KV_MAX_KV_HEADS, why);
    if (rc == 0)
        rc = check_member("head dimension", g->head_dim, KV_MAX_HEAD_DIM, why);
    if (rc != 0)
        return rc;
    if (g->n_heads % g->n_kv_heads != 0)
        return hill_fail(why, HILL_E_INVALID, "%u heads are no multiple of %u KV heads", g->n_heads,
                         g->n_kv_heads);
    if (g->n_heads * g->head_dim > KV_MAX_KEY_DIMS) /* and so are a key's */
        return hill_fail(why, HILL_E_INVALID, "%u heads of %u values exceed %u values a query",
                         g->n_heads, g->head_dim, KV_MAX_KEY_DIMS);
    if (kv_digest_bits(g) != 8 && kv_digest_bits(g) != 4)
        return hill_fail(why, HILL_E_INVALID, "digests have %u bits a value, not 8 or 4",
                         g->digest_bits);
    return 0;
}

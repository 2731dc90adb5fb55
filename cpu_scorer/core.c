/* cpu_scorer/core.c - see core.h. */
#include "cpu_scorer/core.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash_state.h"
#include "base/log.h"
#include "kv/plane.h"

static int create_sequences(struct core *c)
{
    c->sequences = calloc(c->config.n_sequences, sizeof *c->sequences);
    if (!c->sequences)
        return HILL_E_NOMEM;
    for (uint32_t i = 0; i < c->config.n_sequences; i++) {
        struct sequence *s = &c->sequences[i];
        s->index = i;
        s->layers = calloc(c->config.geometry.n_layers, sizeof *s->layers);
        s->hash = hash_state_create();
        s->hash_before = hash_state_create();
        if (!s->layers || !s->hash || !s->hash_before)
            return HILL_E_NOMEM;
    }
    return 0;
}

static int check_config(const struct scorer_config *c, const struct scorer_io *io,
                        struct hill_why *why)
{
    if (!c->ctx_tokens || !c->n_sequences || !c->gpu_slots || !c->score || !c->block_tokens)
        return hill_fail(why, HILL_E_INVALID,
                         "cannot set up scoring: context, sequences, GPU slots or block size is 0");
    if (c->csd && kv_plane_read_bytes(&c->geometry, c->policy) && !io->key_windows)
        return hill_fail(
            why, HILL_E_INVALID,
            "cannot set up scoring: there are no windows for what policy %s reads from "
            "the drive",
            kv_policy_name(c->policy));
    return 0;
}

/* The digests on their NUMA nodes, and threads that score them there. */
static int create_pool(struct core *c, struct hill_why *why)
{
    struct topology topology;
    topology_read(&topology);
    topology_place(&topology, c->tiers.hkm.digests,
                   (uint64_t)KV_HOT_BLOCK_TOKENS * kv_digest_bytes(&c->config.geometry),
                   c->tiers.hkm.n_blocks);
    int rc = score_pool_create(&c->pool, c->config.threads, c->config.score, &topology);
    return rc ? hill_fail(why, rc, "cannot start %u scoring threads: %s", c->config.threads,
                          hill_strerror(rc))
              : 0;
}

int core_create(struct core *c, const struct scorer_config *config, const struct scorer_io *io,
                const struct scorer_hooks *hooks, struct hill_why *why)
{
    int rc = check_config(config, io, why);
    if (rc)
        return rc;
    c->config = *config;
    c->config.rows = kv_rows_in_flight(config->rows, config->n_sequences, config->speculates);
    c->device.figures = config->csd_model;
    c->io = *io;
    c->hooks = *hooks;
    rc = tiers_create(&c->tiers, config, io, why);
    if (rc == 0 && (rc = create_sequences(c)) != 0)
        hill_fail(why, rc, "cannot set up scoring for %u sequences: %s", config->n_sequences,
                  hill_strerror(rc));
    return rc ? rc : create_pool(c, why);
}

void core_destroy(struct core *c)
{
    score_pool_destroy(c->pool); /* first: its threads read the hot pool */
    for (uint32_t i = 0; c->sequences && i < c->config.n_sequences; i++) {
        free(c->sequences[i].layers);
        XXH64_freeState(c->sequences[i].hash);
        XXH64_freeState(c->sequences[i].hash_before);
    }
    free(c->sequences);
    tiers_destroy(&c->tiers);
}

uint64_t core_private_bytes(const struct core *c)
{
    return tiers_private_bytes(&c->tiers) +
           (uint64_t)c->tiers.cold.n_lists * sizeof(struct layer_state);
}

bool core_accept(struct core *c, uint32_t type, const void *payload, uint32_t bytes)
{
    struct hill_why why = {""};
    const struct record_header *header = payload;
    int rc = record_check(type, payload, bytes, &c->config.geometry, c->config.n_sequences, &why);
    if (rc == 0 && header->epoch == c->config.epoch)
        return true;
    c->dropped_records++;
    if (rc)
        log_warn("a record was dropped: %s", why.text);
    else
        log_debug("a record of epoch %u was dropped in epoch %u", header->epoch, c->config.epoch);
    return false;
}

void core_fail(struct core *c, struct sequence *s, int code, const char *format, ...)
{
    char text[400];
    va_list args;
    if (s->status)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    s->status = code;
    log_warn("request %llu failed: %s (%s)", (unsigned long long)s->identity, text,
             hill_strerror(code));
    if (c->hooks.failure)
        c->hooks.failure(c->hooks.context, code, text, s->request_id);
}

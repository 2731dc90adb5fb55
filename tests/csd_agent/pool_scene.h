/*
 * tests/csd_agent/pool_scene.h - a cold pool, its model in arrays (fixture.h), and commands that
 * are carried out on both and compared. Who uses it: the tests of the pool without its rings.
 */
#pragma once

#include "tests/csd_agent/fixture.h"

#define STAGING_SLOTS 64u

struct pool_scene {
    struct cold_pool *pool;
    struct model m;
    void *arena_memory;
    struct shm_arena staging;
    uint64_t query_read; /* flash bytes of the last pool_scene_query */
};

/* The smallest stripe keeps the pool small; batches are small so that a query takes several. */
struct cold_pool_config pool_scene_config(const struct kv_geometry *g, uint32_t n_stripes);

/* Of such a pool without digests, whose keys are cast. */
struct cold_pool_config pool_scene_config_cast(const struct kv_geometry *g, uint32_t n_stripes);

void pool_scene_open(struct pool_scene *s, const struct cold_pool_config *config);
void pool_scene_close(struct pool_scene *s);

/* DEMOTE of n slots with new random data: the pool's status. */
int pool_scene_write(struct pool_scene *s, uint32_t first, uint32_t n, struct cold_cost *cost);
/* Back to written, of sequence 0, layer 0. */
void pool_scene_release(struct pool_scene *s, uint32_t slot);

/* A random query; every score is checked, and that a wrong number of them is refused. */
void pool_scene_query(struct pool_scene *s, uint32_t sequence, uint32_t layer);
/* The same of which the host scores a part. */
void pool_scene_query_part(struct pool_scene *s, uint32_t sequence, uint32_t layer);
/* All of sequence 0, layer 0: how many bytes of flash it reads. */
uint64_t pool_scene_query_reads(struct pool_scene *s);
/* The same: the pool's status. */
int pool_scene_query_status(struct pool_scene *s, struct hill_why *why);

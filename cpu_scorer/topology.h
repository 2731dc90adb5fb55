/*
 * cpu_scorer/topology.h - the machine's NUMA nodes as the scorer uses them: whose threads score
 * which blocks.
 *
 * What: the nodes that have memory and CPUs for this process; the scoring threads divided among
 * them; the digests of the hot pool in slabs, each on one node, the nodes taking turns, so that
 * any sequence's blocks lie on all of them. With one node there is one group and nothing is bound.
 * Who calls it: scoring.c and scorer.c; a test hands a topology of its own to scoring.c.
 * Concurrency: pure functions but for topology_read and topology_place, which are called before
 * threads start. Failure: none; where the kernel does not bind, memory stays where it was.
 */
#pragma once

#include <sched.h>
#include <stdint.h>

#define TOPOLOGY_NODES_MAX 16u /* of more, the others' CPUs and memory are used unbound */

struct topology {
    uint32_t n_nodes;
    int ids[TOPOLOGY_NODES_MAX]; /* libnuma's */
    cpu_set_t cpus[TOPOLOGY_NODES_MAX];
};

/* One node where the kernel knows of no other. */
void topology_read(struct topology *out);

/* The node (an index) whose group thread 0 .. n_threads - 1 belongs to. */
uint32_t topology_node_of_thread(const struct topology *t, uint32_t thread, uint32_t n_threads);

/* Blocks of a slab: whole ones, two MiB at least, so that huge pages can back it. */
uint32_t topology_slab_blocks(uint64_t block_bytes);
uint32_t topology_node_of_block(const struct topology *t, uint32_t slab_blocks, uint32_t block);

/* Put the slabs of a plane of n_blocks blocks on their nodes; pages that exist are moved. */
void topology_place(const struct topology *t, void *plane, uint64_t block_bytes, uint32_t n_blocks);

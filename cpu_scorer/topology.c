/* cpu_scorer/topology.c - see topology.h. */
#include "cpu_scorer/topology.h"

#include <numa.h>
#include <numaif.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

#define SLAB_BYTES (2u << 20)

static bool node_cpus(int node, const cpu_set_t *allowed, cpu_set_t *out)
{
    struct bitmask *mask = numa_allocate_cpumask();
    CPU_ZERO(out);
    if (numa_node_to_cpus(node, mask) == 0)
        for (unsigned cpu = 0; cpu < mask->size && cpu < CPU_SETSIZE; cpu++)
            if (numa_bitmask_isbitset(mask, cpu) && CPU_ISSET(cpu, allowed))
                CPU_SET(cpu, out);
    numa_free_cpumask(mask);
    return CPU_COUNT(out) > 0;
}

void topology_read(struct topology *out)
{
    cpu_set_t allowed;
    *out = (struct topology){.n_nodes = 1};
    if (numa_available() < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    uint32_t n = 0;
    for (int node = 0; node <= numa_max_node() && n < TOPOLOGY_NODES_MAX; node++) {
        if (!numa_bitmask_isbitset(numa_all_nodes_ptr, (unsigned)node) ||
            numa_node_size64(node, NULL) <= 0 || !node_cpus(node, &allowed, &out->cpus[n]))
            continue;
        out->ids[n++] = node;
    }
    out->n_nodes = n ? n : 1;
}

uint32_t topology_node_of_thread(const struct topology *t, uint32_t thread, uint32_t n_threads)
{
    return n_threads ? (uint32_t)((uint64_t)thread * t->n_nodes / n_threads) : 0;
}

uint32_t topology_slab_blocks(uint64_t block_bytes)
{
    return (uint32_t)((SLAB_BYTES + block_bytes - 1) / block_bytes);
}

uint32_t topology_node_of_block(const struct topology *t, uint32_t slab_blocks, uint32_t block)
{
    return block / slab_blocks % t->n_nodes;
}

void topology_place(const struct topology *t, void *plane, uint64_t block_bytes, uint32_t n_blocks)
{
    uint32_t slab_blocks = topology_slab_blocks(block_bytes), failed = 0, n = 0;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), base = (uintptr_t)plane;
    if (t->n_nodes < 2)
        return;
    struct bitmask *nodes = numa_allocate_nodemask();
    for (uint32_t first = 0; first < n_blocks; first += slab_blocks, n++) {
        uint32_t end = n_blocks - first < slab_blocks ? n_blocks : first + slab_blocks;
        /* a page that two slabs share goes with the first */
        uintptr_t from = (base + first * block_bytes + page - 1) / page * page;
        uintptr_t to = (base + end * block_bytes + page - 1) / page * page;
        if (end == n_blocks)
            to = (base + end * block_bytes) / page * page; /* what follows is not ours */
        numa_bitmask_clearall(nodes);
        numa_bitmask_setbit(nodes, (unsigned)t->ids[topology_node_of_block(t, slab_blocks, first)]);
        if (to > from && mbind((void *)from, to - from, MPOL_PREFERRED, nodes->maskp,
                               nodes->size + 1, MPOL_MF_MOVE) != 0)
            failed++;
    }
    numa_free_nodemask(nodes);
    log_debug("digests of the hot pool: %u slabs of %u blocks over %u nodes%s", n, slab_blocks,
              t->n_nodes, failed ? ", some of which the kernel did not place" : "");
}

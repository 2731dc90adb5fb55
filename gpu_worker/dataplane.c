/* gpu_worker/dataplane.c - see dataplane.h. */
#include "gpu_worker/dataplane.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define SLICE_NS (100 * 1000000ll) /* between looks at the peer's life and the mailbox */
/* Selecting from 16384 hot tokens takes about so long. A CPU that sleeps needs some 30 us to go on;
 * the scorer's helpers want this one meanwhile, and spinning lets them have it. */
#define SPIN_NS 200000ll

uint32_t dataplane_seen(const struct dataplane *plane)
{
    return shm_doorbell_read(plane->party.bell);
}

bool dataplane_sleep(const struct dataplane *plane, uint32_t seen, int64_t deadline_ns)
{
    int64_t slice = clock_now_ns() + SLICE_NS;
    return shm_doorbell_wait(plane->party.bell, seen, slice < deadline_ns ? slice : deadline_ns,
                             SPIN_NS) == 0;
}

static int call_waiting(const struct dataplane *plane, struct hill_why *why)
{
    return plane->waiting ? plane->waiting(plane->context, why) : 0;
}

int dataplane_attach(struct dataplane *plane, const struct epoch_settings *settings,
                     int (*waiting)(void *context, struct hill_why *why), void *context,
                     struct hill_why *why)
{
    *plane = (struct dataplane){.epoch = settings->epoch,
                                .append = &plane->party.ends[RING_APPEND],
                                .query = &plane->party.ends[RING_QUERY],
                                .selection = &plane->party.ends[RING_SELECTION],
                                .waiting = waiting,
                                .context = context};
    return party_attach(&plane->party, PARTY_GPU, settings, why);
}

int dataplane_open(struct dataplane *plane, int64_t deadline_ns, struct hill_why *why)
{
    const struct party_wait wait = {plane->waiting, plane->context, deadline_ns};
    return party_open(&plane->party, &wait, why);
}

void dataplane_detach(struct dataplane *plane)
{
    party_leave(&plane->party);
    memset(plane, 0, sizeof *plane);
}

/* Both rings, then one doorbell. */
static void show_all(struct dataplane *plane)
{
    bool appended = shm_ring_show(plane->append), asked = shm_ring_show(plane->query);
    if (appended || asked)
        shm_ring_tell(plane->query);
}

int dataplane_reserve(struct dataplane *plane, struct shm_ring_end *ring, uint32_t bytes,
                      void **payload, int64_t deadline_ns, struct hill_why *why)
{
    for (;;) {
        uint32_t seen = dataplane_seen(plane);
        int rc = shm_ring_reserve(ring, bytes, payload);
        if (rc == 0)
            return 0;
        if (rc != HILL_E_WOULD_BLOCK)
            return hill_fail(why, rc, "cannot write %u bytes to the scorer's ring: %s", bytes,
                             hill_strerror(rc));
        show_all(plane); /* room may come only after what was held back in the other ring */
        rc = call_waiting(plane, why);
        if (rc)
            return rc;
        if (clock_now_ns() >= deadline_ns)
            return hill_fail(why, HILL_E_TIMEOUT, "the scorer makes no room in its ring");
        if (!dataplane_sleep(plane, seen, deadline_ns))
            (void)shm_ring_peer_alive(ring); /* when it is dead the ring says so */
    }
}

int dataplane_push(struct dataplane *plane, struct shm_ring_end *ring, uint32_t type,
                   const void *record, uint32_t bytes, int64_t deadline_ns, struct hill_why *why)
{
    void *payload;
    int rc = dataplane_reserve(plane, ring, bytes, &payload, deadline_ns, why);
    if (rc)
        return rc;
    memcpy(payload, record, bytes);
    dataplane_publish(plane, ring, type, bytes);
    return 0;
}

void dataplane_publish(struct dataplane *plane, struct shm_ring_end *ring, uint32_t type,
                       uint32_t bytes)
{
    if (plane->holding)
        shm_ring_stage(ring, type, bytes);
    else
        shm_ring_publish(ring, type, bytes);
}

void dataplane_hold(struct dataplane *plane)
{
    plane->holding = true;
}

void dataplane_flush(struct dataplane *plane)
{
    plane->holding = false;
    show_all(plane);
}

int dataplane_next(struct dataplane *plane, uint32_t *type, const void **payload,
                   struct hill_why *why)
{
    const struct layout_input *in = &plane->party.layout;
    for (;;) {
        uint32_t bytes;
        int rc = shm_ring_peek(plane->selection, type, payload, &bytes);
        if (rc == HILL_E_WOULD_BLOCK)
            return rc;
        if (rc)
            return hill_fail(why, rc, "cannot read the selection ring: %s", hill_strerror(rc));
        rc = record_check(*type, *payload, bytes, &in->geometry, in->n_sequences, why);
        if (rc == 0 && ((const struct record_header *)*payload)->epoch == plane->epoch)
            return 0;
        if (rc)
            log_error("a record from the scorer is refused: %s", why ? why->text : "malformed");
        plane->dropped++;
        shm_ring_release(plane->selection);
        if (rc)
            return rc;
    }
}

int dataplane_check_staged(const struct dataplane *plane, const struct selected_upload *uploads,
                           uint32_t n, struct hill_why *why)
{
    /* acquire: what was read of the slots before must have been read before the generations are
     * looked at (pairs with the release in give) */
    atomic_thread_fence(memory_order_acquire);
    for (uint32_t i = 0; i < n; i++) {
        const struct selected_upload *u = &uploads[i];
        if (u->staging_slot >= plane->party.arena.slot_count)
            return hill_fail(why, HILL_E_PROTOCOL, "staging slot %u of %u", u->staging_slot,
                             plane->party.arena.slot_count);
        if (shm_arena_generation(&plane->party.arena, u->staging_slot) != u->generation)
            return hill_fail(why, HILL_E_PROTOCOL, "staging slot %u is not of generation %u",
                             u->staging_slot, u->generation);
    }
    return 0;
}

/*
 * shm/ring.c - see ring.h.
 *
 * Each end works on private copies of the indices and of the capacity; what it reads from shared
 * memory is checked before it is used, so that a peer gone wild can spoil records but not make
 * this end leave the ring.
 */
#include "shm/ring.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/process.h"

#define CAPACITY_MIN  64u
#define CAPACITY_MAX  (1u << 30)
#define MARK_RECORD   0x44434552u
#define MARK_FILLER   0x4c4c4946u
#define LIFE_CHECK_NS CLOCK_MS(100)
#define WAIT_SPIN_NS  20000 /* about what a wake-up costs */

/* In front of every payload; the producer writes it. */
struct record {
    uint32_t mark; /* MARK_RECORD or MARK_FILLER */
    uint32_t type; /* the user's */
    uint32_t payload_bytes;
    uint32_t index; /* the record's own free-running index: what is left from a former lap fails */
};

_Static_assert(sizeof(struct record) == SHM_RECORD_ALIGN, "payloads are aligned like records");

static uint32_t record_bytes(uint32_t payload_bytes)
{
    return (uint32_t)sizeof(struct record) +
           ((payload_bytes + SHM_RECORD_ALIGN - 1) & ~(SHM_RECORD_ALIGN - 1));
}

static uint32_t position(const struct shm_ring_end *end, uint32_t index)
{
    return index & (end->capacity - 1);
}

/* ---- life of a ring --------------------------------------------------------------------- */

static bool capacity_valid(uint32_t capacity)
{
    return capacity >= CAPACITY_MIN && capacity <= CAPACITY_MAX && !(capacity & (capacity - 1));
}

uint64_t shm_ring_bytes(uint32_t capacity)
{
    return (uint64_t)SHM_RING_HEADER_BYTES + capacity;
}

int shm_ring_init(void *memory, uint32_t capacity, uint32_t start)
{
    struct shm_ring_header *ring = memory;
    if (!capacity_valid(capacity) || (uintptr_t)memory % SHM_RECORD_ALIGN)
        return HILL_E_INVALID;
    start &= ~(SHM_RECORD_ALIGN - 1);
    memset(memory, 0, SHM_RING_HEADER_BYTES);
    ring->capacity = capacity;
    /* relaxed, both: the release of magic covers them */
    atomic_store_explicit(&ring->head, start, memory_order_relaxed);
    atomic_store_explicit(&ring->tail, start, memory_order_relaxed);
    /* release: pairs with the acquire in open */
    atomic_store_explicit(&ring->magic, SHM_RING_MAGIC, memory_order_release);
    return 0;
}

static struct shm_ring_holder *own_holder(const struct shm_ring_end *end)
{
    return end->producer ? &end->ring->producer : &end->ring->consumer;
}

static struct shm_ring_holder *peer_holder(const struct shm_ring_end *end)
{
    return end->producer ? &end->ring->consumer : &end->ring->producer;
}

/* true when the process that a holder names is open and runs, or is about to open (absent) */
static bool holder_alive(struct shm_ring_holder *holder)
{
    for (;;) {
        /* acquire: state pairs with announce and close, pid and start with announce */
        uint32_t state = atomic_load_explicit(&holder->state, memory_order_acquire);
        if (state != SHM_RING_OPEN)
            return state == SHM_RING_ABSENT;
        int32_t pid = atomic_load_explicit(&holder->pid, memory_order_acquire);
        uint64_t start = atomic_load_explicit(&holder->start, memory_order_acquire);
        if (process_alive(pid, start))
            return true;
        /* dead, unless a successor was announcing itself while we read */
        if (atomic_load_explicit(&holder->state, memory_order_acquire) == SHM_RING_OPEN &&
            atomic_load_explicit(&holder->pid, memory_order_acquire) == pid &&
            atomic_load_explicit(&holder->start, memory_order_acquire) == start)
            return false;
    }
}

/* Write this process into the holder; absent in between, so that no half identity is judged. */
static void announce(struct shm_ring_holder *holder)
{
    int32_t pid = (int32_t)getpid();
    uint64_t start = process_start_time(pid);
    /* release, all: they pair with the acquires in holder_alive, in this order */
    atomic_store_explicit(&holder->state, SHM_RING_ABSENT, memory_order_release);
    atomic_store_explicit(&holder->pid, pid, memory_order_release);
    atomic_store_explicit(&holder->start, start, memory_order_release);
    atomic_store_explicit(&holder->state, SHM_RING_OPEN, memory_order_release);
}

int shm_ring_open(struct shm_ring_end *end, void *memory, uint64_t space, bool producer,
                  struct shm_doorbell *own, struct shm_doorbell *peer)
{
    struct shm_ring_header *ring = memory;
    memset(end, 0, sizeof *end);
    if ((uintptr_t)memory % SHM_RECORD_ALIGN)
        return HILL_E_INVALID;
    /* acquire: pairs with the release in init */
    if (space < SHM_RING_HEADER_BYTES ||
        atomic_load_explicit(&ring->magic, memory_order_acquire) != SHM_RING_MAGIC)
        return HILL_E_DAMAGED;
    uint32_t capacity = ring->capacity;
    if (!capacity_valid(capacity) || shm_ring_bytes(capacity) > space)
        return HILL_E_DAMAGED;
    /* acquire: our index; a dead predecessor may have written it (flush, give_back) */
    uint32_t index =
        atomic_load_explicit(producer ? &ring->head : &ring->tail, memory_order_acquire);
    if (index % SHM_RECORD_ALIGN)
        return HILL_E_DAMAGED;
    struct shm_ring_holder *holder = producer ? &ring->producer : &ring->consumer;
    /* acquire: pairs with announce */
    if (atomic_load_explicit(&holder->state, memory_order_acquire) == SHM_RING_OPEN &&
        holder_alive(holder))
        return HILL_E_BUSY;
    *end = (struct shm_ring_end){.ring = ring,
                                 .data = (uint8_t *)memory + SHM_RING_HEADER_BYTES,
                                 .own = own,
                                 .peer = peer,
                                 .capacity = capacity,
                                 .local = index,
                                 .published = index,
                                 .next_life_check_ns = clock_now_ns() + LIFE_CHECK_NS,
                                 .producer = producer};
    /* nothing known of the peer yet: full to a producer, empty to a consumer, until it looks */
    end->cached = producer ? index - capacity : index;
    announce(holder);
    return 0;
}

static void ring_peer(struct shm_ring_end *end)
{
    if (end->peer)
        shm_doorbell_ring(end->peer);
}

/* Consumer: show the producer every byte before local as free. */
static void give_back(struct shm_ring_end *end)
{
    if (end->local == end->published)
        return;
    end->published = end->local;
    /* As a release: our reads of the records are done; pairs with the acquire in look_at_tail.
     * seq_cst, both: free, then look; pairs with want, then look, in want_room: either the
     * producer sees the bytes, or we see that it wants them. */
    atomic_store_explicit(&end->ring->tail, end->local, memory_order_seq_cst);
    if (!atomic_load_explicit(&end->ring->wanted, memory_order_seq_cst))
        return;
    /* relaxed: the ring that follows publishes it. A wish that this overwrites was made before that
     * ring, so that its producer looks again. */
    atomic_store_explicit(&end->ring->wanted, 0, memory_order_relaxed);
    ring_peer(end);
}

void shm_ring_close(struct shm_ring_end *end)
{
    if (!end->ring)
        return;
    if (end->producer)
        shm_ring_flush(end);
    else
        give_back(end);
    /* release: what we published is seen before the goodbye; pairs with peer_gone */
    atomic_store_explicit(&own_holder(end)->state, SHM_RING_CLOSED, memory_order_release);
    ring_peer(end);
    memset(end, 0, sizeof *end);
}

/* Closed, or seen dead before; no system call. */
static bool peer_gone(struct shm_ring_end *end)
{
    /* acquire: pairs with close; what the peer published before it is seen */
    if (!end->gone &&
        atomic_load_explicit(&peer_holder(end)->state, memory_order_acquire) == SHM_RING_CLOSED)
        end->gone = true;
    return end->gone;
}

bool shm_ring_peer_alive(struct shm_ring_end *end)
{
    if (!peer_gone(end) && !holder_alive(peer_holder(end)))
        end->gone = true;
    return !end->gone;
}

uint32_t shm_ring_payload_max(const struct shm_ring_end *end)
{
    return end->capacity / 2 - (uint32_t)sizeof(struct record);
}

static uint32_t tell_tap(const struct shm_ring_end *end, enum shm_ring_moment moment, uint32_t type,
                         const void *payload, uint32_t bytes)
{
    return end->tap->at(end->tap->context, moment, type, payload, bytes);
}

void shm_ring_decide(struct shm_ring_end *end)
{
    if (end->tap)
        tell_tap(end, SHM_RING_DECIDES, 0, NULL, 0);
}

/* ---- producer --------------------------------------------------------------------------- */

static int look_at_tail(struct shm_ring_end *end)
{
    /* As an acquire: pairs with give_back; the bytes are free when we write them. seq_cst: after
     * the store in want_room; elsewhere it costs the same. */
    uint32_t tail = atomic_load_explicit(&end->ring->tail, memory_order_seq_cst);
    /* never ahead of what is published, never more than a lap behind */
    if (end->local - tail > end->capacity || tail % SHM_RECORD_ALIGN ||
        end->published - tail > end->capacity)
        return HILL_E_DAMAGED;
    end->cached = tail;
    return 0;
}

static uint32_t free_bytes(const struct shm_ring_end *end)
{
    return end->capacity - (end->local - end->cached);
}

/* Is there room for a record of `total` bytes, and how many filler bytes come before it? */
static int find_room(struct shm_ring_end *end, uint32_t total, uint32_t *filler)
{
    uint32_t contiguous = end->capacity - position(end, end->local);
    *filler = total <= contiguous ? 0 : contiguous;
    if (*filler + total <= free_bytes(end))
        return 0;
    int rc = look_at_tail(end);
    if (rc)
        return rc;
    return *filler + total <= free_bytes(end) ? 0 : HILL_E_WOULD_BLOCK;
}

/* From now on a release rings our doorbell. The caller looks at tail once more afterwards, since
 * room may have come just before. A wish that still stands is not written again (the line would go
 * back and forth): the consumer that takes it back rings after that. */
static void want_room(struct shm_ring_end *end)
{
    /* seq_cst, both: pair with give_back, see there */
    if (!atomic_load_explicit(&end->ring->wanted, memory_order_seq_cst))
        atomic_store_explicit(&end->ring->wanted, 1, memory_order_seq_cst);
}

static int ask_for_room(struct shm_ring_end *end, uint32_t total, uint32_t *filler)
{
    want_room(end);
    return find_room(end, total, filler);
}

static uint32_t payload_room(const struct shm_ring_end *end)
{
    uint32_t space = free_bytes(end);
    uint32_t contiguous = end->capacity - position(end, end->local);
    uint32_t here = space < contiguous ? space : contiguous;
    uint32_t wrapped = space > contiguous ? space - contiguous : 0;
    uint32_t best = here > wrapped ? here : wrapped;
    uint32_t max = shm_ring_payload_max(end);
    if (best < sizeof(struct record))
        return 0;
    best -= (uint32_t)sizeof(struct record);
    return best < max ? best : max;
}

static uint32_t credits(struct shm_ring_end *end)
{
    if (look_at_tail(end))
        return 0;
    uint32_t best = payload_room(end);
    if (best == shm_ring_payload_max(end))
        return best;
    want_room(end); /* the caller may sleep until there is more */
    return look_at_tail(end) ? 0 : payload_room(end);
}

uint32_t shm_ring_credits(struct shm_ring_end *end)
{
    uint32_t bytes = credits(end);
    return end->tap ? tell_tap(end, SHM_RING_CREDITS, 0, NULL, bytes) : bytes;
}

static int ask_tap_for_room(struct shm_ring_end *end, uint32_t payload_bytes)
{
    uint32_t answer = tell_tap(end, SHM_RING_RESERVED, 0, NULL, payload_bytes);
    end->gone = end->gone || answer == SHM_RING_NOBODY;
    return end->gone ? HILL_E_PEER_GONE : answer ? 0 : HILL_E_WOULD_BLOCK;
}

int shm_ring_reserve(struct shm_ring_end *end, uint32_t payload_bytes, void **payload)
{
    end->reserved = 0;
    if (payload_bytes > shm_ring_payload_max(end))
        return HILL_E_INVALID;
    if (peer_gone(end)) {
        if (end->tap)
            tell_tap(end, SHM_RING_GONE, 0, NULL, payload_bytes);
        return HILL_E_PEER_GONE;
    }
    if (FAULT_FAILS(push)) {
        shm_ring_flush(end);
        if (end->own)
            shm_doorbell_ring(end->own); /* there is room as soon as its owner looks again */
        return HILL_E_WOULD_BLOCK;
    }
    uint32_t total = record_bytes(payload_bytes);
    int rc = find_room(end, total, &end->filler);
    if (rc == HILL_E_WOULD_BLOCK) {
        shm_ring_flush(end); /* the consumer could not free what it cannot see */
        rc = ask_for_room(end, total, &end->filler);
        if (rc == HILL_E_WOULD_BLOCK && end->tap &&
            tell_tap(end, SHM_RING_FULL, 0, NULL, payload_bytes))
            rc = find_room(end, total, &end->filler);
    }
    if (rc == 0 && end->tap)
        rc = ask_tap_for_room(end, payload_bytes);
    if (rc)
        return rc;
    end->reserved = total;
    *payload = end->data + position(end, end->local + end->filler) + sizeof(struct record);
    return 0;
}

static void write_header(struct shm_ring_end *end, uint32_t mark, uint32_t type, uint32_t bytes)
{
    struct record record = {mark, type, bytes, end->local};
    memcpy(end->data + position(end, end->local), &record, sizeof record);
}

void shm_ring_stage(struct shm_ring_end *end, uint32_t type, uint32_t payload_bytes)
{
    if (!end->reserved || payload_bytes > end->reserved - sizeof(struct record))
        abort(); /* a bug: the payload was written over what follows */
    if (end->tap)
        tell_tap(end, SHM_RING_PUBLISHED, type,
                 end->data + position(end, end->local + end->filler) + sizeof(struct record),
                 payload_bytes);
    if (end->filler) {
        write_header(end, MARK_FILLER, 0, end->filler - (uint32_t)sizeof(struct record));
        end->local += end->filler;
    }
    write_header(end, MARK_RECORD, type, payload_bytes);
    end->local += record_bytes(payload_bytes);
    end->reserved = 0;
}

bool shm_ring_show(struct shm_ring_end *end)
{
    if (end->local == end->published)
        return false;
    end->published = end->local;
    /* release: the records are complete when head is seen; pairs with look_at_head */
    atomic_store_explicit(&end->ring->head, end->local, memory_order_release);
    return true;
}

void shm_ring_tell(struct shm_ring_end *end)
{
    ring_peer(end);
}

void shm_ring_flush(struct shm_ring_end *end)
{
    if (shm_ring_show(end))
        shm_ring_tell(end);
}

void shm_ring_publish(struct shm_ring_end *end, uint32_t type, uint32_t payload_bytes)
{
    shm_ring_stage(end, type, payload_bytes);
    shm_ring_flush(end);
}

int shm_ring_push(struct shm_ring_end *end, uint32_t type, const void *payload,
                  uint32_t payload_bytes)
{
    void *room;
    int rc = shm_ring_reserve(end, payload_bytes, &room);
    if (rc)
        return rc;
    if (payload_bytes)
        memcpy(room, payload, payload_bytes);
    shm_ring_publish(end, type, payload_bytes);
    return 0;
}

/* ---- consumer --------------------------------------------------------------------------- */

/* 0 when there are bytes after local. */
static int look_at_head(struct shm_ring_end *end)
{
    /* before head is read: what a closing peer published last is still delivered */
    bool gone = peer_gone(end);
    /* acquire: pairs with flush; the records are complete */
    uint32_t head = atomic_load_explicit(&end->ring->head, memory_order_acquire);
    uint32_t held = end->local - end->published;
    if (head - end->local > end->capacity - held || head % SHM_RECORD_ALIGN)
        return HILL_E_DAMAGED;
    end->cached = head;
    if (head != end->local)
        return 0;
    return gone ? HILL_E_PEER_GONE : HILL_E_WOULD_BLOCK;
}

/* Check the header at local, go past a filler, and note the record as peeked. */
static int read_header(struct shm_ring_end *end)
{
    for (;;) {
        struct record record; /* a copy: it is checked and used once */
        uint32_t at = position(end, end->local);
        uint32_t contiguous = end->capacity - at;
        uint32_t available = end->cached - end->local;
        memcpy(&record, end->data + at, sizeof record);
        if (record.index != end->local)
            return HILL_E_DAMAGED;
        /* a filler ends the data exactly and never comes alone, so this repeats once at most */
        if (record.mark == MARK_FILLER && contiguous < available &&
            record.payload_bytes == contiguous - sizeof record) {
            end->local += contiguous;
            continue;
        }
        if (record.mark != MARK_RECORD || record.payload_bytes > shm_ring_payload_max(end))
            return HILL_E_DAMAGED;
        uint32_t total = record_bytes(record.payload_bytes);
        if (total > available || total > contiguous)
            return HILL_E_DAMAGED;
        end->reserved = total;
        end->type = record.type;
        end->payload_bytes = record.payload_bytes;
        return 0;
    }
}

static int look_for_record(struct shm_ring_end *end)
{
    int rc = end->local == end->cached ? look_at_head(end) : 0;
    if ((rc == HILL_E_WOULD_BLOCK || rc == HILL_E_PEER_GONE) && end->tap &&
        tell_tap(end, SHM_RING_EMPTY, 0, NULL, 0))
        rc = look_at_head(end);
    return rc;
}

/* Make the record at local the peeked one. */
static int find_record(struct shm_ring_end *end)
{
    if (end->reserved) {
        if (end->tap)
            tell_tap(end, SHM_RING_STILL, 0, NULL, 0);
        return 0;
    }
    int looked = look_for_record(end);
    if (looked)
        return looked;
    int rc = read_header(end);
    if (rc == 0 && end->tap)
        tell_tap(end, SHM_RING_PEEKED, end->type,
                 end->data + position(end, end->local) + sizeof(struct record), end->payload_bytes);
    return rc;
}

int shm_ring_peek(struct shm_ring_end *end, uint32_t *type, const void **payload,
                  uint32_t *payload_bytes)
{
    int rc = find_record(end);
    if (rc) {
        give_back(end); /* the producer may be waiting for what was skipped */
        return rc;
    }
    *type = end->type;
    *payload = end->data + position(end, end->local) + sizeof(struct record);
    *payload_bytes = end->payload_bytes;
    return 0;
}

bool shm_ring_peek_behind(const struct shm_ring_end *end, uint32_t *type, const void **payload,
                          uint32_t *payload_bytes)
{
    struct shm_ring_end behind = *end; /* what it finds is not the end's */
    behind.tap = NULL;
    behind.local += behind.reserved;
    behind.reserved = 0;
    if (!end->reserved || find_record(&behind) != 0)
        return false;
    *type = behind.type;
    *payload = behind.data + position(&behind, behind.local) + sizeof(struct record);
    *payload_bytes = behind.payload_bytes;
    return true;
}

void shm_ring_skip(struct shm_ring_end *end)
{
    if (!end->reserved)
        abort(); /* a bug: nothing was peeked */
    end->local += end->reserved;
    end->reserved = 0;
}

void shm_ring_release(struct shm_ring_end *end)
{
    shm_ring_skip(end);
    give_back(end);
}

/* ---- waiting ---------------------------------------------------------------------------- */

/* 0, HILL_E_WOULD_BLOCK, or why waiting is over */
static int ready(struct shm_ring_end *end, uint32_t payload_bytes)
{
    uint32_t filler;
    if (!end->producer) {
        int rc = find_record(end);
        if (rc)
            give_back(end);
        return rc;
    }
    if (peer_gone(end))
        return HILL_E_PEER_GONE;
    int rc = find_room(end, record_bytes(payload_bytes), &filler);
    return rc == HILL_E_WOULD_BLOCK ? ask_for_room(end, record_bytes(payload_bytes), &filler) : rc;
}

int shm_ring_wait(struct shm_ring_end *end, uint32_t payload_bytes, int64_t deadline_ns)
{
    if (!end->own || (end->producer && payload_bytes > shm_ring_payload_max(end)))
        return HILL_E_INVALID;
    if (end->producer)
        shm_ring_flush(end);
    for (;;) {
        uint32_t seen = shm_doorbell_read(end->own);
        int rc = ready(end, payload_bytes);
        if (rc != HILL_E_WOULD_BLOCK)
            return rc;
        int64_t now = clock_now_ns();
        if (now >= end->next_life_check_ns) {
            end->next_life_check_ns = now + LIFE_CHECK_NS;
            if (!shm_ring_peer_alive(end))
                continue; /* read out what it published, then say so */
        }
        if (now >= deadline_ns)
            return HILL_E_TIMEOUT;
        int64_t slice = end->next_life_check_ns;
        shm_doorbell_wait(end->own, seen, slice < deadline_ns ? slice : deadline_ns, WAIT_SPIN_NS);
    }
}

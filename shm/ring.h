/*
 * shm/ring.h - single-producer single-consumer ring of variable-size records in shared memory.
 *
 * What: a header and `capacity` data bytes (a power of two). Indices are free-running uint32_t byte
 * counts. A record is a 16-byte header and a payload, padded to 16 bytes, never split at the end of
 * the data (a filler record covers the rest). Credits: the free bytes; a push that does not fit is
 * HILL_E_WOULD_BLOCK and never blocks [I14]; waiting is a separate call (the doorbell).
 * Each end knows two doorbells: its own (it sleeps on it) and the peer's (it rings it). A producer
 * rings at each publish; a consumer gives bytes back silently unless the producer was refused room
 * since (`wanted`): most releases wake nobody, and a ring costs a needless wake-up of 10-20 us.
 * Memory order: the producer's store of `head` (release) pairs with the consumer's load (acquire):
 * the record is complete when it is seen. The consumer's store of `tail` (release) pairs with the
 * producer's load (acquire): the bytes are free when they are reused.
 * Misuse (publish without a reservation or of more than it, release without a peek) aborts.
 * Failure: an end that closed, or whose process died, makes the other end's calls return
 * HILL_E_PEER_GONE (the consumer first reads out what was published; a record reserved and
 * never published is never seen). A record header out of range is HILL_E_DAMAGED, never followed.
 * Ownership: payload pointers are valid until publish (producer) or release (consumer).
 * Who calls it: workers. Concurrency: one thread per end.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/doorbell.h"

#define SHM_RING_MAGIC        0x474e5248u
#define SHM_RING_HEADER_BYTES 192u
#define SHM_RECORD_ALIGN      16u

enum shm_ring_state { SHM_RING_ABSENT, SHM_RING_OPEN, SHM_RING_CLOSED };

/* Who holds an end; written by that end when it opens and closes. */
struct shm_ring_holder {
    _Atomic uint32_t state; /* enum shm_ring_state */
    _Atomic int32_t pid;
    _Atomic uint64_t start; /* start time, see base/process.h */
};

struct shm_ring_header {
    /* rarely written line (wanted: when the ring is full): both ends keep it in their caches */
    _Atomic uint32_t magic; /* shm_ring_init, last */
    uint32_t capacity;      /* shm_ring_init: bytes, a power of two, 64 .. 2^30 */
    struct shm_ring_holder producer;
    struct shm_ring_holder consumer;
    _Atomic uint32_t wanted; /* producer: 1, I look for room; consumer: 0, I rang for it */
    uint8_t pad0[20];
    _Atomic uint32_t head; /* producer: bytes published */
    uint8_t pad1[60];
    _Atomic uint32_t tail; /* consumer: bytes released */
    uint8_t pad2[60];
};

_Static_assert(sizeof(struct shm_ring_header) == SHM_RING_HEADER_BYTES, "ring header layout");
_Static_assert(offsetof(struct shm_ring_header, head) == 64, "head owns its cache line");
_Static_assert(offsetof(struct shm_ring_header, tail) == 128, "tail owns its cache line");

/* Watches one end, in its thread, and may decide what it finds: for recordings and replays of a
 * ring's traffic (recording/recording.h). Every answer that an end gives its caller is one of these
 * moments. */
enum shm_ring_moment {
    SHM_RING_PEEKED,    /* a record was seen for the first time; `bytes` of payload, of `type` */
    SHM_RING_STILL,     /* the record that was peeked is seen again */
    SHM_RING_EMPTY,     /* there is no record; answer 1 to have it look again, else 0 */
    SHM_RING_PUBLISHED, /* a record is about to be published or was staged */
    SHM_RING_RESERVED,  /* room for `bytes` is there; answer 0 to refuse it, SHM_RING_NOBODY to have
                           it find the consumer gone, else 1 */
    SHM_RING_FULL,      /* there is none; answer 1 to have it look again, else 0 */
    SHM_RING_GONE,      /* there is none any more: the consumer is gone */
    SHM_RING_CREDITS,   /* the credits are `bytes`; the answer is what the caller is told */
    SHM_RING_DECIDES,   /* no look at the ring: shm_ring_decide */
};
#define SHM_RING_NOBODY 2u

struct shm_ring_tap {
    void *context;
    uint32_t (*at)(void *context, enum shm_ring_moment moment, uint32_t type, const void *payload,
                   uint32_t bytes);
};

/* One end of a ring; private memory. */
struct shm_ring_end {
    struct shm_ring_header *ring; /* NULL when not open */
    uint8_t *data;
    struct shm_doorbell *own, *peer;
    uint32_t capacity;
    uint32_t local;     /* producer: after the last staged record; consumer: at the next record */
    uint32_t published; /* what our index in the ring says: head (producer) or tail (consumer) */
    uint32_t cached;    /* producer: last tail seen; consumer: last head seen */
    uint32_t reserved;  /* bytes of the reserved (producer) or peeked (consumer) record; 0: none */
    uint32_t filler;    /* producer: filler bytes before the reservation */
    uint32_t type, payload_bytes; /* consumer: of the peeked record, checked */
    int64_t next_life_check_ns;
    bool producer;
    bool gone;                      /* the peer was seen closed or dead */
    const struct shm_ring_tap *tap; /* NULL: none; the owner sets it after opening */
};

/* Bytes of memory a ring of that capacity takes (header and data). */
uint64_t shm_ring_bytes(uint32_t capacity);

/* Lay out a ring in zeroed or old memory that is 16-byte aligned. start: first index, rounded down
 * to the alignment (0; tests use UINT32_MAX - 3). HILL_E_INVALID when capacity is no power of two
 * or out of range. A ring of which an end was closed is laid out anew before it is used again. */
int shm_ring_init(void *memory, uint32_t capacity, uint32_t start);

/* Open an end; announces this process. `space` is the room at memory: a ring that does not fit is
 * HILL_E_DAMAGED. HILL_E_BUSY when a living process holds the end. A dead holder's place is taken
 * where its published index stands. Doorbells may be NULL (nobody sleeps there); shm_ring_wait
 * needs `own`. */
int shm_ring_open(struct shm_ring_end *end, void *memory, uint64_t space, bool producer,
                  struct shm_doorbell *own, struct shm_doorbell *peer);
/* Publish or give back what is staged or skipped, and say goodbye. Safe on a zeroed struct. */
void shm_ring_close(struct shm_ring_end *end);

/* Largest payload that ever fits (half the capacity, less the header). */
uint32_t shm_ring_payload_max(const struct shm_ring_end *end);

/* Producer: the largest payload that can be reserved right now (0 .. payload_max; 0 also when not
 * even an empty record fits). Below payload_max the next release rings, as after a refusal. */
uint32_t shm_ring_credits(struct shm_ring_end *end);

/* Producer: room for a record; *payload is 16-byte aligned. 0, HILL_E_WOULD_BLOCK,
 * HILL_E_PEER_GONE, HILL_E_INVALID (larger than payload_max), HILL_E_DAMAGED (the consumer's index
 * is out of range). A new reserve replaces an unpublished one. Staged records are flushed before
 * HILL_E_WOULD_BLOCK. */
int shm_ring_reserve(struct shm_ring_end *end, uint32_t payload_bytes, void **payload);

/* Producer: publish the reserved record with its type and real size (at most what was reserved),
 * after any staged ones, and ring the consumer's doorbell. */
void shm_ring_publish(struct shm_ring_end *end, uint32_t type, uint32_t payload_bytes);

/* Producer, batching: end the reserved record without showing it; flush (or publish) shows all
 * staged records with one store and one ring of the doorbell. */
void shm_ring_stage(struct shm_ring_end *end, uint32_t type, uint32_t payload_bytes);
void shm_ring_flush(struct shm_ring_end *end);
/* The same without the doorbell; true when there was something. The caller owes the consumer a
 * ring (shm_ring_tell): for several rings of one consumer that are to wake it once. */
bool shm_ring_show(struct shm_ring_end *end);
void shm_ring_tell(struct shm_ring_end *end);

/* Either end: what its owner does next depends on when, though no look at a ring tells so. Told to
 * the tap alone. */
void shm_ring_decide(struct shm_ring_end *end);

/* Producer: reserve, copy, publish. */
int shm_ring_push(struct shm_ring_end *end, uint32_t type, const void *payload,
                  uint32_t payload_bytes);

/* Consumer: the oldest record. 0, HILL_E_WOULD_BLOCK (empty), HILL_E_PEER_GONE (empty for ever),
 * HILL_E_DAMAGED. Peeking again returns the same record. */
int shm_ring_peek(struct shm_ring_end *end, uint32_t *type, const void **payload,
                  uint32_t *payload_bytes);

/* Consumer: the record behind the peeked one, for a look: nothing is taken, no tap is told, and it
 * may be there a moment later. Its payload is valid until it is released in its turn. */
bool shm_ring_peek_behind(const struct shm_ring_end *end, uint32_t *type, const void **payload,
                          uint32_t *payload_bytes);

/* Consumer: drop the peeked record; ring the producer's doorbell if it was refused room. */
void shm_ring_release(struct shm_ring_end *end);

/* Consumer, batching: go past the peeked record but keep its bytes; its payload stays valid until
 * the next release, or until a peek answers other than 0 (which gives skipped bytes back first). */
void shm_ring_skip(struct shm_ring_end *end);

/* Is the peer's process there? Costs a /proc read: for waits that passed a slice, not for every
 * record. Once it was seen closed or dead the end answers HILL_E_PEER_GONE. A peer not yet open
 * counts as there. */
bool shm_ring_peer_alive(struct shm_ring_end *end);

/* Consumer: sleep until a record is there (0), the peer is gone, or the deadline (HILL_E_TIMEOUT).
 * Producer: the same for payload_bytes of room; flushes first. HILL_E_DAMAGED and HILL_E_INVALID as
 * in peek and reserve. Checks the peer's life about every 100 ms. */
int shm_ring_wait(struct shm_ring_end *end, uint32_t payload_bytes, int64_t deadline_ns);

/*
 * shm/doorbell.h - one futex word per consumer process: "something arrived, look again".
 *
 * What: a process that reads several rings sleeps on one doorbell, which the producer of each of
 * those rings rings after publishing (and its consumers ring after releasing space that it lacked).
 * Pattern:
 *
 *     uint32_t seen = shm_doorbell_read(bell);   // before looking at the inputs
 *     if (nothing to do) shm_doorbell_wait(bell, seen, deadline);
 *
 * No wake-up is lost: ring() increments before it looks for sleepers, wait() announces itself
 * before it looks at the count (both seq_cst; they pair with each other). Waiting spins for a
 * while, offering its CPU to others after the first microsecond, then sleeps in the kernel; a while
 * in which another thread has the CPU does not count, unless that thread works on and on. Several
 * threads may wait on one doorbell. A doorbell works between processes (in a segment) and within
 * one (in private memory).
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct shm_doorbell {
    _Atomic uint32_t count;     /* any ringer */
    _Atomic uint32_t sleepers;  /* waiters */
    _Atomic uint32_t asleep_at; /* waiters: the count that the last one went to sleep at */
    uint8_t pad[52];
};

_Static_assert(sizeof(struct shm_doorbell) == 64, "a doorbell owns its cache line");

/* Fresh memory, or a restarted consumer's own doorbell while it is the only one to wait on it
 * (a waiter killed asleep stays counted, which costs each ring a system call until then). */
void shm_doorbell_init(struct shm_doorbell *bell);
/* Wake all waiters. Async-signal-safe. */
void shm_doorbell_ring(struct shm_doorbell *bell);
uint32_t shm_doorbell_read(const struct shm_doorbell *bell);
/* Does somebody sleep who has not been rung since? For who watches over the waiter: a guess, which
 * is right when nothing changes any more. */
bool shm_doorbell_asleep(const struct shm_doorbell *bell);

/* 0 when the count differs from seen, HILL_E_TIMEOUT at the deadline (monotonic ns). spin_ns: how
 * long to spin before sleeping, with the CPU to itself (0: sleep at once). May return 0 spuriously,
 * never late; returns 0 when a signal handler ran in its sleep (one that runs just before does not
 * end it: let it ring the bell). */
int shm_doorbell_wait(struct shm_doorbell *bell, uint32_t seen, int64_t deadline_ns,
                      int64_t spin_ns);

/*
 * shm/doorbell.c - see doorbell.h. A futex on the count; not private, it works between processes.
 */
#include "shm/doorbell.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/in_line.h"
#include "base/relax.h"

#define SPIN_LOOKS    16   /* between looks at the clock */
#define SPIN_ALONE_NS 1000 /* an answer from another CPU's spinner is there by then */

void shm_doorbell_init(struct shm_doorbell *bell)
{
    /* exchange, acq_rel: a ring that this overwrites still makes visible what it announced */
    atomic_exchange_explicit(&bell->count, 0, memory_order_acq_rel);
    /* relaxed: the caller is the only waiter */
    atomic_store_explicit(&bell->sleepers, 0, memory_order_relaxed);
}

void shm_doorbell_ring(struct shm_doorbell *bell)
{
    /* seq_cst, both: either this load sees the sleeper, or the sleeper's load of count (in
     * wait) sees this increment. As a release it pairs with the acquire in read. */
    atomic_fetch_add_explicit(&bell->count, 1, memory_order_seq_cst);
    int saved = errno; /* ring may run in a signal handler */
    if (atomic_load_explicit(&bell->sleepers, memory_order_seq_cst))
        syscall(SYS_futex, &bell->count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    errno = saved;
}

uint32_t shm_doorbell_read(const struct shm_doorbell *bell)
{
    /* acquire: pairs with the increment in ring; what was published before it is seen */
    return atomic_load_explicit(&bell->count, memory_order_acquire);
}

bool shm_doorbell_asleep(const struct shm_doorbell *bell)
{
    /* a guess; acquire: what the sleeper did before is there for who finds it asleep, and pairs
     * with its announcement. relaxed, the others: compared alone */
    return atomic_load_explicit(&bell->sleepers, memory_order_acquire) > 0 &&
           atomic_load_explicit(&bell->asleep_at, memory_order_relaxed) ==
               atomic_load_explicit(&bell->count, memory_order_relaxed);
}

/* True when the count changed before the time passed. After the first microseconds the CPU is
 * offered around between looks: the scheduler likes to put the one that is to ring us on our CPU,
 * and spinning there would only hold it up. */
static bool spin(const struct shm_doorbell *bell, uint32_t seen, int64_t spin_ns,
                 int64_t deadline_ns)
{
    struct in_line line = in_line(spin_ns);
    int64_t alone_until = line.now + SPIN_ALONE_NS;
    while (line.now < line.until && line.now < deadline_ns) {
        for (int i = 0; i < SPIN_LOOKS; i++) {
            if (shm_doorbell_read(bell) != seen)
                return true;
            cpu_relax();
        }
        line.now = clock_now_ns();
        if (line.now >= alone_until && !in_line_stand(&line))
            return false;
    }
    return false;
}

/* Sleep until the count differs, a wake-up or the deadline; false when a signal came. */
static bool sleep_once(struct shm_doorbell *bell, uint32_t seen, int64_t deadline_ns)
{
    struct timespec at = {.tv_sec = deadline_ns / 1000000000, .tv_nsec = deadline_ns % 1000000000};
    long rc = 0;
    /* relaxed: for watchers only, who look again */
    atomic_store_explicit(&bell->asleep_at, seen, memory_order_relaxed);
    /* seq_cst, both: announce, then look; pairs with increment, then look, in ring. The kernel
     * looks at the count once more when it puts us to sleep. */
    atomic_fetch_add_explicit(&bell->sleepers, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&bell->count, memory_order_seq_cst) == seen)
        rc = syscall(SYS_futex, &bell->count, FUTEX_WAIT_BITSET, seen,
                     deadline_ns == CLOCK_NEVER ? NULL : &at, NULL, FUTEX_BITSET_MATCH_ANY);
    bool interrupted = rc != 0 && errno == EINTR;
    /* relaxed: a ringer that still sees us only wakes nobody */
    atomic_fetch_sub_explicit(&bell->sleepers, 1, memory_order_relaxed);
    return !interrupted;
}

int shm_doorbell_wait(struct shm_doorbell *bell, uint32_t seen, int64_t deadline_ns,
                      int64_t spin_ns)
{
    if (shm_doorbell_read(bell) != seen)
        return 0;
    if (deadline_ns <= clock_now_ns())
        return HILL_E_TIMEOUT;
    if (spin(bell, seen, spin_ns, deadline_ns))
        return 0;
    for (;;) {
        if (shm_doorbell_read(bell) != seen)
            return 0;
        if (deadline_ns != CLOCK_NEVER && clock_now_ns() >= deadline_ns)
            return HILL_E_TIMEOUT;
        if (!sleep_once(bell, seen, deadline_ns))
            return 0; /* the caller looks at what its signal handler left */
    }
}

/*
 * tests/shm/test_doorbell.c - shm/doorbell between threads: no wake-up is lost, deadlines hold.
 * Between processes it is tested with the rings (test_ring_processes.c).
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/doorbell.h"

#define LOST_MS 20000 /* a wake-up that takes so long is lost */

/* Two threads hand a turn to each other; each sleeps on a bell of its own. */
struct table_tennis {
    struct shm_doorbell bells[2];
    _Atomic uint32_t turn;
    uint32_t rounds;
    int64_t spin_ns;
};

struct player {
    struct table_tennis *game;
    uint32_t side;
    int rc;
};

static void *play(void *argument)
{
    struct player *player = argument;
    struct table_tennis *game = player->game;
    for (uint32_t round = player->side; round < game->rounds; round += 2) {
        for (;;) {
            uint32_t seen = shm_doorbell_read(&game->bells[player->side]);
            /* relaxed: it is the doorbell that has to make the turn visible */
            if (atomic_load_explicit(&game->turn, memory_order_relaxed) == round)
                break;
            player->rc = shm_doorbell_wait(&game->bells[player->side], seen,
                                           clock_deadline_ms(LOST_MS), game->spin_ns);
            if (player->rc)
                return NULL;
        }
        atomic_store_explicit(&game->turn, round + 1, memory_order_relaxed);
        shm_doorbell_ring(&game->bells[!player->side]);
    }
    return NULL;
}

static void play_rounds(uint32_t rounds, int64_t spin_ns)
{
    static struct table_tennis game;
    memset(&game, 0, sizeof game);
    game.rounds = rounds;
    game.spin_ns = spin_ns;
    struct player players[2] = {{&game, 0, 0}, {&game, 1, 0}};
    pthread_t thread;
    shm_doorbell_init(&game.bells[0]);
    shm_doorbell_init(&game.bells[1]);
    assert_int_equal(pthread_create(&thread, NULL, play, &players[1]), 0);
    play(&players[0]);
    pthread_join(thread, NULL);
    assert_int_equal(players[0].rc, 0);
    assert_int_equal(players[1].rc, 0);
    assert_int_equal(game.turn, rounds);
    assert_int_equal(game.bells[0].sleepers, 0);
    assert_int_equal(game.bells[1].sleepers, 0);
}

static void no_wake_up_is_lost_asleep(void **state)
{
    (void)state;
    play_rounds(60000, 0);
}

static void no_wake_up_is_lost_spinning(void **state)
{
    (void)state;
    play_rounds(60000, 2000);
}

/* Many ringers, one sleeper: it sees all that was announced. */
struct crowd {
    struct shm_doorbell bell;
    _Atomic uint32_t announced;
};

#define RINGERS 3
#define RINGS   30000

static void *announce(void *argument)
{
    struct crowd *crowd = argument;
    for (int i = 0; i < RINGS; i++) {
        /* relaxed: the doorbell carries it */
        atomic_fetch_add_explicit(&crowd->announced, 1, memory_order_relaxed);
        shm_doorbell_ring(&crowd->bell);
    }
    return NULL;
}

static void several_ringers_share_a_bell(void **state)
{
    (void)state;
    static struct crowd crowd;
    pthread_t threads[RINGERS];
    int rc = 0;
    shm_doorbell_init(&crowd.bell);
    for (int i = 0; i < RINGERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, announce, &crowd), 0);
    while (!rc) {
        uint32_t seen = shm_doorbell_read(&crowd.bell);
        if (atomic_load_explicit(&crowd.announced, memory_order_relaxed) == RINGERS * RINGS)
            break;
        rc = shm_doorbell_wait(&crowd.bell, seen, clock_deadline_ms(LOST_MS), 0);
    }
    for (int i = 0; i < RINGERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(rc, 0);
    assert_int_equal(shm_doorbell_read(&crowd.bell), RINGERS * RINGS);
}

static struct shm_doorbell shared_bell;

static void *wait_once(void *argument)
{
    (void)argument;
    return (void *)(intptr_t)shm_doorbell_wait(&shared_bell, 0, clock_deadline_ms(LOST_MS), 0);
}

static void one_ring_wakes_all_waiters(void **state)
{
    (void)state;
    pthread_t threads[3];
    shm_doorbell_init(&shared_bell);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, wait_once, NULL), 0);
    while (atomic_load_explicit(&shared_bell.sleepers, memory_order_relaxed) < 3)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    shm_doorbell_ring(&shared_bell);
    for (int i = 0; i < 3; i++) {
        void *rc;
        pthread_join(threads[i], &rc);
        assert_int_equal((intptr_t)rc, 0);
    }
}

static void a_changed_count_returns_at_once(void **state)
{
    (void)state;
    struct shm_doorbell bell;
    shm_doorbell_init(&bell);
    uint32_t seen = shm_doorbell_read(&bell);
    shm_doorbell_ring(&bell);
    assert_int_equal(shm_doorbell_wait(&bell, seen, CLOCK_NEVER, 0), 0);
    assert_int_equal(shm_doorbell_wait(&bell, seen, 0, 0), 0);
}

static void the_deadline_holds(void **state)
{
    (void)state;
    struct shm_doorbell bell;
    shm_doorbell_init(&bell);
    for (int64_t spin_ns = 0; spin_ns <= CLOCK_MS(50); spin_ns += CLOCK_MS(25)) {
        int64_t start = clock_now_ns();
        assert_int_equal(shm_doorbell_wait(&bell, 0, start + CLOCK_MS(40), spin_ns),
                         HILL_E_TIMEOUT);
        int64_t took = clock_now_ns() - start;
        assert_true(took >= CLOCK_MS(40));
        assert_true(took < CLOCK_MS(5000));
    }
    assert_int_equal(shm_doorbell_wait(&bell, 0, 0, 0), HILL_E_TIMEOUT);
    assert_int_equal(shm_doorbell_wait(&bell, 0, clock_now_ns() - 1, CLOCK_MS(1)), HILL_E_TIMEOUT);
}

static void *sleep_once(void *bell)
{
    shm_doorbell_wait(bell, 0, clock_deadline_ms(LOST_MS), 0);
    return NULL;
}

static void who_sleeps_and_was_not_rung_is_seen(void **state)
{
    (void)state;
    struct shm_doorbell bell;
    pthread_t thread;
    shm_doorbell_init(&bell);
    assert_false(shm_doorbell_asleep(&bell));
    assert_int_equal(pthread_create(&thread, NULL, sleep_once, &bell), 0);
    int64_t deadline = clock_deadline_ms(LOST_MS);
    while (!shm_doorbell_asleep(&bell))
        assert_true(clock_now_ns() < deadline);
    shm_doorbell_ring(&bell);
    assert_false(shm_doorbell_asleep(&bell)); /* whether it has woken up or not */
    pthread_join(thread, NULL);
    assert_false(shm_doorbell_asleep(&bell));
}

static void on_alarm(int number)
{
    (void)number;
}

static void a_signal_ends_the_sleep(void **state)
{
    (void)state;
    struct shm_doorbell bell;
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}, old;
    struct itimerval timer = {.it_interval.tv_usec = 50000, .it_value.tv_usec = 50000};
    shm_doorbell_init(&bell);
    assert_int_equal(sigaction(SIGALRM, &action, &old), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &timer, NULL), 0);
    int rc = shm_doorbell_wait(&bell, 0, clock_deadline_ms(LOST_MS), 0);
    timer = (struct itimerval){0};
    setitimer(ITIMER_REAL, &timer, NULL);
    sigaction(SIGALRM, &old, NULL);
    assert_int_equal(rc, 0);
    assert_int_equal(shm_doorbell_read(&bell), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_wake_up_is_lost_asleep),
        cmocka_unit_test(no_wake_up_is_lost_spinning),
        cmocka_unit_test(several_ringers_share_a_bell),
        cmocka_unit_test(one_ring_wakes_all_waiters),
        cmocka_unit_test(a_changed_count_returns_at_once),
        cmocka_unit_test(the_deadline_holds),
        cmocka_unit_test(who_sleeps_and_was_not_rung_is_seen),
        cmocka_unit_test(a_signal_ends_the_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

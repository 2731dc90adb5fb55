/*
 * test_modelled_drive.c - modelled times against sums done by hand, and against a simulation that
 * knows no busy-until clocks: queues of jobs, moved on a nanosecond at a time. And the order in
 * which held records leave, against a sort.
 */
#include "tests/csd_agent/fixture.h"

#include "csd_agent/modelled_drive.h"
#include "csd_agent/held_output.h"

/* ---- by hand ---- */

/* bytes a nanosecond: flash 2, write 1, link 4, score 8, latency 1000 ns */
static struct modelled_drive plain(void)
{
    return (struct modelled_drive){.model.figures = {.on = true,
                                                     .flash = 2,
                                                     .write = 1,
                                                     .link = 4,
                                                     .gpu_link = 25,
                                                     .score = 8,
                                                     .latency_us = 1}};
}

static void test_a_fetch_takes_latency_and_the_slower_of_flash_and_link(void **state)
{
    struct modelled_drive m = plain();
    struct drive_command c;

    (void)state;
    drive_begin(&c, &m, 5000);
    assert_int_equal(c.done, 5000);
    drive_read(&m, &c, 8000); /* flash 4000 ns, link 2000 ns at the same time */
    assert_int_equal(c.done, 5000 + 1000 + 4000);
    m.model.figures.link = 1;
    drive_begin(&c, &m, 20000);
    drive_read(&m, &c, 8000);
    assert_int_equal(c.done, 20000 + 1000 + 8000);
    assert_int_equal(m.counters.flash_ns, 8000);
    assert_int_equal(m.counters.link_ns, 2000 + 8000);
}

static void test_a_query_takes_the_slower_of_flash_and_scoring_not_both(void **state)
{
    struct modelled_drive m = plain();
    struct drive_command c;
    int64_t first, last;

    (void)state;
    drive_begin(&c, &m, 0);
    /* two blocks: flash 500 ns each, scoring 1000 ns each, link 100 ns each */
    first = drive_score(&m, &c, (struct drive_digests){1000, 0}, 8000, 400);
    last = drive_score(&m, &c, (struct drive_digests){1000, 0}, 8000, 400);
    assert_int_equal(first, 1000 + 1000 + 100);
    assert_int_equal(last, 1000 + 2000 + 100);
    assert_int_equal(c.done, last);
    assert_int_equal(m.counters.flash_ns, 1000);
    assert_int_equal(m.counters.score_ns, 2000);
    assert_int_equal(m.counters.link_ns, 200);
    drive_begin(&c, &m, 100000);
    /* flash 3000 ns each, scoring 1000 ns each: it ends with its input */
    first = drive_score(&m, &c, (struct drive_digests){6000, 0}, 8000, 0);
    last = drive_score(&m, &c, (struct drive_digests){6000, 0}, 8000, 0);
    assert_int_equal(first, 100000 + 1000 + 3000);
    assert_int_equal(last, 100000 + 1000 + 6000);
}

static void test_digests_in_dram_cost_no_flash(void **state)
{
    struct modelled_drive m = plain();
    struct drive_command c;

    (void)state;
    m.model.figures.dram_read = 10;
    drive_begin(&c, &m, 0); /* DRAM 800 ns, scoring 100 ns */
    assert_int_equal(drive_score(&m, &c, (struct drive_digests){0, 8000}, 800, 0), 1000 + 800);
    assert_int_equal(m.counters.flash_ns, 0);
    assert_int_equal(m.counters.dram_ns, 800);
    drive_begin(&c, &m, 100000); /* flash 1000 ns, DRAM 200 ns at the same time */
    assert_int_equal(drive_score(&m, &c, (struct drive_digests){2000, 2000}, 80, 0),
                     100000 + 1000 + 1000);
}

static void test_a_demote_reads_borders_and_then_writes(void **state)
{
    struct modelled_drive m = plain();
    struct drive_command c;

    (void)state;
    drive_begin(&c, &m, 0);
    drive_write(&m, &c, 8000); /* link 2000, flash 8000 at the same time */
    assert_int_equal(c.done, 1000 + 8000);
    drive_begin(&c, &m, 50000);
    drive_read(&m, &c, 4000); /* flash 2000, link 1000 */
    drive_write(&m, &c, 8000);
    assert_int_equal(c.done, 50000 + 1000 + 2000 + 8000);
}

static void test_commands_share_the_flash_and_only_it(void **state)
{
    struct modelled_drive m = plain();
    struct drive_command write, query, fetch;

    (void)state;
    drive_begin(&write, &m, 0);
    drive_write(&m, &write, 10000); /* flash until 11000 */
    drive_begin(&query, &m, 2000);
    drive_score(&m, &query, (struct drive_digests){2000, 0}, 80000,
                0); /* flash until 12000, scorer until 21000 */
    assert_int_equal(query.done, 11000 + 10000);
    drive_begin(&fetch, &m, 3000);
    drive_read(&m, &fetch, 4000); /* after the query's flash, not after its scoring */
    assert_int_equal(fetch.done, 12000 + 2000);
    assert_int_equal(write.done, 11000);
}

static void test_late_ends_are_counted(void **state)
{
    struct modelled_drive m = plain();
    struct drive_command c;

    (void)state;
    drive_begin(&c, &m, 0);
    drive_end(&m, &c, 99999); /* did not touch the drive */
    assert_int_equal(m.counters.commands, 0);
    drive_read(&m, &c, 8000);
    drive_end(&m, &c, 5000);
    assert_int_equal(m.counters.commands, 1);
    assert_int_equal(m.counters.late, 0);
    drive_end(&m, &c, 5300);
    drive_end(&m, &c, 5100);
    assert_int_equal(m.counters.late, 2);
    assert_int_equal(m.counters.late_ns, 400);
    assert_int_equal(m.counters.late_max_ns, 300);
}

static void test_an_idle_device_forgets_nothing_and_owes_nothing(void **state)
{
    struct modelled_drive m = plain();
    struct drive_command c;

    (void)state;
    for (int64_t at = 0; at < 1000000; at += 100000) {
        drive_begin(&c, &m, at);
        drive_read(&m, &c, 2000);
        assert_int_equal(c.done, at + 1000 + 1000);
    }
}

/* ---- the simulation ---- */

enum { FLASH, DRAM, SCORER, UP, DOWN, RESOURCES };
#define MAX_JOBS     512
#define MAX_COMMANDS 48

struct job {
    int resource, command;
    int64_t earliest, ns;
    int input; /* must have started; ends no later than this job; -1: none */
    int other; /* the same */
    int after; /* must have ended; -1: none */
    int64_t started, ended;
};

struct simulation {
    struct job jobs[MAX_JOBS];
    int n, queue[RESOURCES][MAX_JOBS], length[RESOURCES], at[RESOURCES];
};

static int add_job(struct simulation *s, int resource, int command, int64_t earliest, int64_t ns,
                   int input, int after)
{
    s->jobs[s->n] = (struct job){resource, command, earliest, ns, input, -1, after, -1, -1};
    s->queue[resource][s->length[resource]++] = s->n;
    return s->n++;
}

/* What the head of a queue can do at time t; true: something changed. */
static bool look(struct simulation *s, int resource, int64_t t)
{
    if (s->at[resource] == s->length[resource])
        return false;
    struct job *j = &s->jobs[s->queue[resource][s->at[resource]]];
    if (j->started < 0) {
        bool can = t >= j->earliest && (j->input < 0 || s->jobs[j->input].started >= 0) &&
                   (j->other < 0 || s->jobs[j->other].started >= 0) &&
                   (j->after < 0 || s->jobs[j->after].ended >= 0);
        if (can)
            j->started = t;
        return can;
    }
    if (t < j->started + j->ns || (j->input >= 0 && s->jobs[j->input].ended < 0) ||
        (j->other >= 0 && s->jobs[j->other].ended < 0))
        return false;
    j->ended = t;
    s->at[resource]++;
    return true;
}

static void simulate(struct simulation *s)
{
    for (int64_t t = 0;; t++) {
        bool changed = true, left = false;
        while (changed) {
            changed = false;
            for (int r = 0; r < RESOURCES; r++)
                changed |= look(s, r, t);
        }
        for (int r = 0; r < RESOURCES; r++)
            left |= s->at[r] < s->length[r];
        if (!left)
            return;
    }
}

/* Whole nanoseconds, rounded up, of bytes at eighths of a byte a nanosecond. */
static int64_t whole_ns(uint64_t bytes, uint32_t eighths)
{
    return (int64_t)((bytes * 8 + eighths - 1) / eighths);
}

struct rates {
    uint32_t flash, write, link, score, dram; /* eighths of GB/s */
};

/* The same random command for both: the model's command, and jobs of the simulation. */
static void random_command(struct modelled_drive *m, struct drive_command *c, struct simulation *s,
                           const struct rates *r, int number, int64_t now)
{
    drive_begin(c, m, now);
    int64_t ready = now + (int64_t)(m->model.figures.latency_us * 1000);
    uint32_t what = random_below(4);
    int last = -1;
    if (what < 2) {
        for (uint32_t blocks = 1 + random_below(4); blocks > 0; blocks--) {
            uint64_t kv = 1 + random_below(900);
            struct drive_digests from = {1 + random_below(300), 1 + random_below(300)};
            uint64_t scores = random_below(4) ? random_below(200) : 0;
            uint32_t where = random_below(3); /* flash, DRAM, both */
            from.flash_bytes *= where != 1;
            from.dram_bytes *= where != 0;
            drive_score(m, c, from, kv, scores);
            int dram = -1, read = -1;
            if (where != 0)
                dram = add_job(s, DRAM, number, ready, whole_ns(from.dram_bytes, r->dram), -1, -1);
            if (where != 1)
                read =
                    add_job(s, FLASH, number, ready, whole_ns(from.flash_bytes, r->flash), -1, -1);
            int score = add_job(s, SCORER, number, ready, whole_ns(kv, r->score), read, -1);
            s->jobs[score].other = dram;
            if (scores)
                add_job(s, UP, number, ready, whole_ns(scores, r->link), -1, score);
        }
        return;
    }
    if (what == 2 || random_below(3) == 0) {
        uint64_t bytes = 1 + random_below(500);
        drive_read(m, c, bytes);
        int read = add_job(s, FLASH, number, ready, whole_ns(bytes, r->flash), -1, -1);
        last = add_job(s, UP, number, ready, whole_ns(bytes, r->link), read, -1);
    }
    if (what == 3) {
        uint64_t bytes = 1 + random_below(500);
        drive_write(m, c, bytes);
        int down = add_job(s, DOWN, number, ready, whole_ns(bytes, r->link), -1, last);
        add_job(s, FLASH, number, ready, whole_ns(bytes, r->write), down, -1);
    }
}

static void random_sequence(void)
{
    struct rates r = {1 + random_below(40), 1 + random_below(40), 1 + random_below(40),
                      1 + random_below(40), 1 + random_below(40)};
    struct modelled_drive m = {.model.figures = {.on = true,
                                                 .flash = r.flash / 8.0,
                                                 .write = r.write / 8.0,
                                                 .link = r.link / 8.0,
                                                 .gpu_link = 1,
                                                 .score = r.score / 8.0,
                                                 .dram_read = r.dram / 8.0,
                                                 .latency_us = random_below(3) * 0.125}};
    struct drive_command commands[MAX_COMMANDS];
    uint32_t n = 1 + random_below(MAX_COMMANDS);
    struct simulation *s = calloc(1, sizeof *s);
    uint64_t busy[RESOURCES] = {0};
    int64_t now = 0;

    assert_non_null(s);
    for (uint32_t i = 0; i < n; i++) {
        random_command(&m, &commands[i], s, &r, (int)i, now);
        now += random_below(random_below(2) ? 20 : 1500);
    }
    simulate(s);
    for (uint32_t i = 0; i < n; i++) {
        int64_t done = commands[i].start;
        for (int j = 0; j < s->n; j++)
            if (s->jobs[j].command == (int)i && s->jobs[j].ended > done)
                done = s->jobs[j].ended;
        assert_int_equal(commands[i].done, done);
    }
    for (int j = 0; j < s->n; j++)
        busy[s->jobs[j].resource] += (uint64_t)s->jobs[j].ns;
    assert_int_equal(m.counters.flash_ns, busy[FLASH]);
    assert_int_equal(m.counters.score_ns, busy[SCORER]);
    assert_int_equal(m.counters.link_ns, busy[UP] + busy[DOWN]);
    free(s);
}

static void test_random_sequences_take_what_a_simulation_says(void **state)
{
    (void)state;
    random_seed(71);
    for (int i = 0; i < 200; i++)
        random_sequence();
}

/* ---- held records ---- */

struct expected {
    int64_t due;
    uint32_t number, stream;
    bool gone;
};

static void test_held_records_leave_in_order_of_their_times(void **state)
{
    struct held_output held = {0};
    struct expected e[300];
    int64_t newest[HELD_STREAMS] = {0}, now = 0;
    uint32_t n = 0, left = 0;

    (void)state;
    random_seed(72);
    assert_int_equal(held_next_ns(&held), INT64_MAX);
    assert_int_equal(held_last_ns(&held), INT64_MIN);
    while (n < 300 || left > 0) {
        if (n < 300 && random_below(2)) {
            uint32_t stream = random_below(HELD_STREAMS);
            struct held_record *record = held_create(16);
            int64_t due = now + (int64_t)random_below(40);
            assert_non_null(record);
            memcpy(record->payload, &n, sizeof n);
            held_add(&held, (enum held_stream)stream, record, due);
            bool alone = true;
            for (uint32_t i = 0; i < n; i++)
                alone &= e[i].gone || e[i].stream != stream;
            newest[stream] = !alone && newest[stream] > due ? newest[stream] : due;
            e[n] = (struct expected){newest[stream], n, stream, false};
            n++;
            left++;
        }
        now += random_below(8);
        for (struct held_record *record; (record = held_take(&held, now));) {
            uint32_t number, best = UINT32_MAX;
            for (uint32_t i = 0; i < n; i++)
                if (!e[i].gone && e[i].due <= now && (best == UINT32_MAX || e[i].due < e[best].due))
                    best = i;
            memcpy(&number, record->payload, sizeof number);
            assert_int_equal(number, best);
            e[number].gone = true;
            left--;
            free(record);
        }
        int64_t last = INT64_MIN;
        for (uint32_t i = 0; i < n; i++) {
            assert_true(e[i].gone || e[i].due > now);
            if (!e[i].gone && e[i].due > last)
                last = e[i].due;
        }
        assert_int_equal(held_last_ns(&held), last);
    }
    assert_int_equal(held.bytes, 0);
    held_add(&held, HELD_QUERY, held_create(8), 5);
    assert_int_equal(held_last_ns(&held), 5);
    held_finish(&held);
    assert_null(held_take(&held, INT64_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_fetch_takes_latency_and_the_slower_of_flash_and_link),
        cmocka_unit_test(test_a_query_takes_the_slower_of_flash_and_scoring_not_both),
        cmocka_unit_test(test_digests_in_dram_cost_no_flash),
        cmocka_unit_test(test_a_demote_reads_borders_and_then_writes),
        cmocka_unit_test(test_commands_share_the_flash_and_only_it),
        cmocka_unit_test(test_late_ends_are_counted),
        cmocka_unit_test(test_an_idle_device_forgets_nothing_and_owes_nothing),
        cmocka_unit_test(test_random_sequences_take_what_a_simulation_says),
        cmocka_unit_test(test_held_records_leave_in_order_of_their_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

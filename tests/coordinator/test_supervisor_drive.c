/* Tests of coordinator/supervisor_drive.c: what a change of the drive waits for, and what ends it.
 * The supervisor and its sockets are real; of workers there are rows, a socket that listens as the
 * scorer, and a process where one is to end. Uses a folder below /tmp and segments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <zmq.h>

#include "base/clock.h"
#include "coordinator/supervisor.h"
#include "tests/proto/configure.h"

#define LIMIT_MS 20000
#define SECOND   (WORKER_AGENT + 1) /* the agent of the second drive */

static char folder_path[64];
static struct settings settings;
static struct run_folder folder;
static struct router router;
static struct supervisor s;
static void *context, *scorer, *client;
static bool busy;

static void epoch_ends(void *unused, bool counts)
{
    (void)unused, (void)counts;
}
static void ending(void *unused, int code, const char *text)
{
    (void)unused;
    fail_msg("the pipeline ends with %d: %s", code, text);
}
static void worker_came(void *unused, enum worker w)
{
    (void)unused, (void)w;
}
static void balance(void *unused, struct epoch_settings *now)
{
    (void)unused;
    now->beta = 0.25;
}
static bool is_busy(void *unused)
{
    (void)unused;
    return busy;
}
static bool is_reading(void *unused)
{
    (void)unused;
    return false;
}
static bool can_go_on(void *unused)
{
    (void)unused;
    return true;
}

static const struct supervisor_hooks hooks = {.epoch_ends = epoch_ends,
                                              .ending = ending,
                                              .worker_came = worker_came,
                                              .balance = balance,
                                              .is_busy = is_busy,
                                              .is_reading = is_reading,
                                              .can_go_on = can_go_on,
                                              .keeps_tiers = is_busy};

/* ---- clients, and the scorer ------------------------------------------------------------- */

static void *connect_to(const char *name, const char *identity)
{
    char address[128];
    int none = 0;
    void *socket = zmq_socket(context, ZMQ_DEALER);
    snprintf(address, sizeof address, "ipc://%s/%s", folder_path, name);
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_ROUTING_ID, identity, strlen(identity));
    assert_int_equal(zmq_connect(socket, address), 0);
    return socket;
}

/* Turns the coordinator's loop until a message is there. */
static Hill__Message *await(void *socket)
{
    int64_t deadline = clock_deadline_ms(LIMIT_MS);
    struct hill_why why;
    Hill__Message *message;
    while (proto_receive(socket, NULL, &message, &why)) {
        assert_true(clock_now_ns() < deadline);
        router_turn(&router);
        usleep(1000);
    }
    return message;
}

/* The answer to a change; what else comes is passed over, as by hillctl. */
static int answer_of(const char *text)
{
    for (;;) {
        Hill__Message *message = await(client);
        bool is_reply = message->body_case == HILL__MESSAGE__BODY_REPLY;
        int code = is_reply ? message->reply->code : 0;
        if (is_reply && !strstr(message->reply->text, text))
            fail_msg("'%s' is not in '%s'", text, message->reply->text);
        proto_free(message);
        if (is_reply)
            return code;
    }
}

static void take_until(enum drive_change change)
{
    int64_t deadline = clock_deadline_ms(LIMIT_MS);
    while (s.change != change && clock_now_ns() < deadline) {
        router_turn(&router);
        usleep(1000);
    }
    assert_int_equal(s.change, change);
}

static void ask_detach(const char *url)
{
    Hill__Detach body = HILL__DETACH__INIT;
    body.url = (char *)url;
    assert_int_equal(proto_send(client, NULL, &PROTO_MESSAGE(DETACH, detach, &body)), 0);
}

static void expect_drain(uint32_t drive)
{
    Hill__Message *message;
    while ((message = await(scorer))->body_case != HILL__MESSAGE__BODY_DRAIN)
        proto_free(message);
    assert_int_equal(message->drain->drive, drive);
    proto_free(message);
}

/* ---- workers ----------------------------------------------------------------------------- */

static void start(enum worker w)
{
    worker_table_started(&s.workers, w, (int32_t)w + 1, 1, clock_now_ns());
}

static void all_are_ready(void)
{
    for (enum worker w = 0; w < WORKER_COUNT; w++) {
        if (!s.workers.rows[w].wanted)
            continue;
        if (!worker_running(&s.workers.rows[w]))
            start(w);
        worker_table_configured(&s.workers, w, clock_now_ns());
        worker_table_ready_at(&s.workers, w, clock_now_ns());
        s.children[w].ready_epoch = s.epoch;
    }
    assert_true(supervisor_ready(&s));
}

/* A process stands for the agent, and is killed. */
static void die(enum worker w, int failure_code)
{
    struct worker_process *process = &s.children[w].process;
    process->pid = fork();
    if (process->pid == 0)
        for (;;)
            pause();
    process->fd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    assert_true(process->fd >= 0);
    worker_table_failure(&s.workers, w, failure_code, "of this test");
    kill(process->pid, SIGKILL);
    poll(&(struct pollfd){.fd = process->fd, .events = POLLIN}, 1, -1);
    supervisor_child_ended(&s, w);
    supervisor_tick(&s, clock_now_ns());
}

/* Its drive was there, and is away: the agent has died, and so has the one after it. */
static void drive_goes_away(enum worker w)
{
    die(w, 0);
    assert_true(s.workers.rows[w].wanted);
    start(w);
    die(w, HILL_E_IO);
}

/* ---- one pipeline a test ----------------------------------------------------------------- */

static void open_with(const char *const *urls, uint32_t n)
{
    const struct layout_input layout = {
        .geometry = {2, 4, 2, 32, 8}, .ctx_tokens = 128, .n_sequences = 2};
    struct hill_why why;
    settings = (struct settings){.epoch = make_settings(&layout, 0),
                                 .limits = {INT64_C(1000000000000), INT64_C(1000000000000)}};
    settings.epoch.hot_bytes = 1 << 20;
    settings.epoch.csd_attached = true;
    settings.epoch.csd_drives = n > 1 ? n : 0;
    snprintf(settings.csd_url, sizeof settings.csd_url, "%s", urls[0]);
    for (uint32_t d = 0; d < n; d++) {
        snprintf(settings.drives[d].url, sizeof settings.drives[d].url, "%s", urls[d]);
        settings.epoch.drives[d].attached = n > 1;
    }
    settings.epoch.csd_url = settings.csd_url;
    folder = (struct run_folder){.run_id = (uint64_t)getpid(), .lock_fd = -1};
    snprintf(folder.path, sizeof folder.path, "%s", folder_path);
    assert_int_equal(router_open(&router, folder_path, &s.workers, &why), 0);
    supervisor_open(&s, &settings, &folder, &router, &hooks);
    assert_int_equal(supervisor_begin(&s, &why), 0);
    context = zmq_ctx_new();
    scorer = connect_to("worker.sock", "scorer");
    client = connect_to("control.sock", "client");
    Hill__Hello hello = HILL__HELLO__INIT; /* for the socket's address; it is of no process */
    start(WORKER_SCORER);
    hello.role = HILL__ROLE__ROLE_CPU_SCORER;
    hello.pid = s.workers.rows[WORKER_SCORER].pid;
    hello.version = (char *)HILL_VERSION;
    hello.protocol_version = PROTO_VERSION;
    hello.records_version = PROTO_RECORDS_VERSION;
    assert_int_equal(proto_send(scorer, NULL, &PROTO_MESSAGE(HELLO, hello, &hello)), 0);
    proto_free(await(scorer)); /* Configure */
    all_are_ready();
}

static int setup(void **state)
{
    (void)state;
    busy = false;
    strcpy(folder_path, "/tmp/hill-drive-XXXXXX");
    return mkdtemp(folder_path) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[96];
    (void)state;
    zmq_close(scorer);
    zmq_close(client);
    zmq_ctx_term(context);
    supervisor_close(&s);
    router_close(&router);
    snprintf(command, sizeof command, "rm -rf %s", folder_path);
    return system(command);
}

static const char *const two[] = {"file:/1.pool", "file:/2.pool"};

/* Of two drives, while requests run, the second one is being detached. */
static void drain_the_second(void)
{
    open_with(two, 2);
    busy = true;
    ask_detach(two[1]);
    take_until(CHANGE_DETACH_WAITS);
    supervisor_settled(&s);
    assert_int_equal(s.change, CHANGE_DRAINS);
}

/* An entry that is damaged begins an epoch with all workers alive: the new scorer is asked anew. */
static void a_drain_is_asked_for_again_in_another_epoch(void **state)
{
    (void)state;
    drain_the_second();
    expect_drain(1);
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            supervisor_uncounted_epoch(&s, "an entry is damaged");
        else
            supervisor_new_epoch(&s, "the GPU worker lost a peer");
        all_are_ready();
        supervisor_settled(&s);
        expect_drain(1);
    }
}

/* What the client hears when all are ready; the drive is no place's any more. */
static void expect_let_go(enum worker w, const char *text, uint32_t epoch)
{
    assert_false(s.workers.rows[w].wanted);
    assert_int_equal(s.epoch, epoch + 1);
    all_are_ready();
    supervisor_settled(&s);
    assert_int_equal(answer_of(text), 0);
    assert_int_equal(s.change, CHANGE_NONE);
}

static void one_of_several_that_is_away_can_be_detached(void **state)
{
    (void)state;
    open_with(two, 2);
    drive_goes_away(SECOND);
    assert_true(s.workers.rows[SECOND].wanted); /* --csd-on-loss wait */
    uint32_t epoch = s.epoch;
    ask_detach(two[1]);
    take_until(CHANGE_DETACH);
    expect_let_go(SECOND, "detached: the drive was lost", epoch);
    assert_true(settings.epoch.drives[0].attached && !settings.epoch.drives[1].attached);
}

/* The first death may be an accident: the agent that comes then has the entries. */
static void one_that_goes_away_while_it_is_detached_is_let_go(void **state)
{
    (void)state;
    drain_the_second();
    die(SECOND, 0);
    assert_int_equal(s.change, CHANGE_DETACH_WAITS);
    assert_true(s.workers.rows[SECOND].wanted);
    start(SECOND);
    die(SECOND, HILL_E_PEER_GONE); /* which passes */
    assert_true(s.workers.rows[SECOND].wanted);
    uint32_t epoch = s.epoch;
    start(SECOND);
    die(SECOND, HILL_E_IO);
    expect_let_go(SECOND, "detached: the drive was lost", epoch);
}

/* Nor can an agent without accelerator reach that host: requests go on without what lies there. */
static void the_only_one_whose_host_is_away_can_be_detached(void **state)
{
    static const char *const remote[] = {"tcp://127.0.0.1:1"};
    (void)state;
    open_with(remote, 1);
    busy = true;
    drive_goes_away(WORKER_AGENT);
    assert_true(s.workers.rows[WORKER_AGENT].wanted);
    uint32_t epoch = s.epoch;
    ask_detach("");
    take_until(CHANGE_DETACH);
    expect_let_go(WORKER_AGENT, "is out of reach", epoch);
    assert_false(settings.epoch.csd_attached);
}

/* The only drive, while requests run, up to the scorer's answer. */
static void detach_and_drain(const char *url, bool over)
{
    Hill__Drained drained = HILL__DRAINED__INIT;
    open_with(&url, 1);
    busy = true;
    ask_detach("");
    take_until(CHANGE_DETACH_WAITS);
    supervisor_settled(&s);
    expect_drain(0);
    drained.left = over ? 0 : 1;
    drained.over = over;
    assert_int_equal(proto_send(scorer, NULL, &PROTO_MESSAGE(DRAINED, drained, &drained)), 0);
    take_until(CHANGE_DETACH);
    assert_false(s.workers.rows[WORKER_AGENT].wanted);
}

/* There was no room for another epoch's segments while processes had the old ones: all end. */
static void an_epoch_that_waits_begins_when_a_detached_agent_ends_last(void **state)
{
    (void)state;
    detach_and_drain(two[0], true);
    uint32_t epoch = s.epoch;
    s.epoch_delayed = true;
    die(WORKER_GPU, 0);
    die(WORKER_SCORER, 0);
    assert_int_equal(s.epoch, epoch);
    die(WORKER_AGENT, 0);
    assert_int_equal(s.epoch, epoch + 1);
    assert_false(s.epoch_delayed);
}

/* What does not fit M_0 stays on the drive. */
static void detach_with_a_rest(const char *url)
{
    detach_and_drain(url, false);
    die(WORKER_AGENT, 0);
    assert_true(s.workers.rows[WORKER_AGENT].wanted && settings.epoch.csd_plain);
}

/* As of an agent that cannot open its drive, which then ends. */
static void cannot_open(enum worker w, int code)
{
    Hill__Failure failure = HILL__FAILURE__INIT;
    start(w);
    failure.code = code;
    failure.text = (char *)"of this test";
    failure.fatal = true;
    supervisor_failed(&s, w, &failure);
    die(w, code);
}

static void a_rest_that_cannot_be_read_is_let_go(void **state)
{
    (void)state;
    detach_with_a_rest(two[0]);
    cannot_open(WORKER_AGENT, HILL_E_BUSY); /* another process has it, for now */
    assert_true(s.workers.rows[WORKER_AGENT].wanted && settings.epoch.csd_plain);
    uint32_t epoch = s.epoch;
    cannot_open(WORKER_AGENT, HILL_E_IO);
    assert_true(s.tiers_epoch < s.epoch); /* others keep what they have in DRAM */
    expect_let_go(WORKER_AGENT, "is out of reach (of this test)", epoch);
    assert_false(settings.epoch.csd_attached);
}

/* --csd-on-loss wait: nobody waits for a drive that has been detached. */
static void a_rest_whose_host_is_lost_later_is_let_go(void **state)
{
    (void)state;
    detach_with_a_rest("tcp://127.0.0.1:1");
    all_are_ready();
    supervisor_settled(&s);
    assert_int_equal(answer_of("stay until their requests end"), 0);
    die(WORKER_AGENT, 0);
    assert_true(s.workers.rows[WORKER_AGENT].wanted && settings.epoch.csd_plain);
    cannot_open(WORKER_AGENT, HILL_E_IO);
    assert_false(s.workers.rows[WORKER_AGENT].wanted || settings.epoch.csd_attached);
    all_are_ready();
}

static void a_rest_that_nobody_gets_is_let_go_in_the_end(void **state)
{
    (void)state;
    detach_with_a_rest(two[0]);
    for (unsigned i = 1; i < WORKER_TRIES; i++) {
        cannot_open(WORKER_AGENT, HILL_E_BUSY);
        assert_true(s.workers.rows[WORKER_AGENT].wanted);
    }
    uint32_t epoch = s.epoch;
    cannot_open(WORKER_AGENT, HILL_E_BUSY);
    expect_let_go(WORKER_AGENT, "is out of reach (of this test)", epoch);
}

/* --csd-on-loss wait */
static void a_drive_that_stays_away_is_waited_for(void **state)
{
    (void)state;
    open_with(two, 1);
    busy = true;
    drive_goes_away(WORKER_AGENT);
    for (unsigned i = 0; i < 2 * WORKER_TRIES; i++)
        cannot_open(WORKER_AGENT, HILL_E_IO);
    assert_true(s.workers.rows[WORKER_AGENT].wanted && settings.epoch.csd_attached);
}

static void the_only_one_that_is_lost_is_let_go(void **state)
{
    (void)state;
    open_with(two, 1);
    settings.options.csd_degrades = true;
    busy = true;
    die(WORKER_AGENT, 0);
    assert_true(s.workers.rows[WORKER_AGENT].wanted && settings.epoch.csd_plain);
    cannot_open(WORKER_AGENT, HILL_E_IO);
    assert_false(s.workers.rows[WORKER_AGENT].wanted || settings.epoch.csd_attached);
    all_are_ready();
}

/* Another drive's loss is what the option says. */
static void a_detach_of_another_drive_waits(void **state)
{
    (void)state;
    open_with(two, 2);
    drive_goes_away(SECOND);
    ask_detach(two[0]);
    take_until(CHANGE_DETACH_WAITS);
    start(SECOND);
    die(SECOND, HILL_E_IO);
    assert_int_equal(s.change, CHANGE_DETACH_WAITS);
    assert_true(s.workers.rows[SECOND].wanted && s.workers.rows[WORKER_AGENT].wanted);
}

/* hillctl was interrupted: a thread of ZeroMQ's hears of it. */
static void client_goes(const char *next)
{
    int64_t deadline = clock_deadline_ms(LIMIT_MS);
    Hill__Accepted waits = HILL__ACCEPTED__INIT;
    zmq_close(client);
    client = connect_to("control.sock", next);
    while (router_to_client(&router, &s.change_client,
                            &PROTO_MESSAGE(ACCEPTED, accepted, &waits)) != HILL_E_PEER_GONE) {
        assert_true(clock_now_ns() < deadline);
        usleep(1000);
    }
}

static void a_change_that_waits_ends_with_its_client(void **state)
{
    (void)state;
    open_with(two, 2);
    start(WORKER_GPU); /* which is not ready */
    ask_detach(two[1]);
    take_until(CHANGE_DETACH_WAITS);
    ask_detach(two[0]);
    assert_int_equal(answer_of("another attach or detach is under way"), HILL_E_BUSY);
    client_goes("second");
    ask_detach(two[0]);
    ask_detach(two[0]); /* the answer to this one shows that the first was taken */
    assert_int_equal(answer_of("another attach or detach is under way"), HILL_E_BUSY);
    assert_int_equal(s.change, CHANGE_DETACH_WAITS);
    assert_int_equal(s.change_drive, 0);
    client_goes("third");
    all_are_ready();
    supervisor_settled(&s);
    assert_int_equal(s.change, CHANGE_NONE);
    assert_true(settings.epoch.drives[0].attached && settings.epoch.drives[1].attached);
}

/* Nor is a detach done because its drive is away, when nobody waits for it. */
static void a_drive_that_is_away_stays_when_its_client_has_gone(void **state)
{
    (void)state;
    open_with(two, 2);
    die(SECOND, 0);
    start(SECOND); /* and looks for its drive */
    ask_detach(two[1]);
    take_until(CHANGE_DETACH_WAITS);
    client_goes("second");
    die(SECOND, HILL_E_IO);
    assert_int_equal(s.change, CHANGE_NONE);
    assert_true(s.workers.rows[SECOND].wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_drain_is_asked_for_again_in_another_epoch, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(one_of_several_that_is_away_can_be_detached, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(one_that_goes_away_while_it_is_detached_is_let_go, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(the_only_one_whose_host_is_away_can_be_detached, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(an_epoch_that_waits_begins_when_a_detached_agent_ends_last,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_rest_that_cannot_be_read_is_let_go, setup, teardown),
        cmocka_unit_test_setup_teardown(a_rest_whose_host_is_lost_later_is_let_go, setup, teardown),
        cmocka_unit_test_setup_teardown(a_rest_that_nobody_gets_is_let_go_in_the_end, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_drive_that_stays_away_is_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(the_only_one_that_is_lost_is_let_go, setup, teardown),
        cmocka_unit_test_setup_teardown(a_detach_of_another_drive_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(a_change_that_waits_ends_with_its_client, setup, teardown),
        cmocka_unit_test_setup_teardown(a_drive_that_is_away_stays_when_its_client_has_gone, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

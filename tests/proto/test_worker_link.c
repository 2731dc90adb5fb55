/* A worker's control link against a coordinator played by the test: Hello, mailbox, doorbell,
 * heartbeats, stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "base/clock.h"
#include "proto/worker_link.h"

struct stage {
    char dir[64];
    void *context, *control, *heartbeat;
};

static void *bind_router(struct stage *s, const char *file)
{
    char address[128];
    snprintf(address, sizeof address, "ipc://%s/%s", s->dir, file);
    void *socket = zmq_socket(s->context, ZMQ_ROUTER);
    assert_int_equal(zmq_bind(socket, address), 0);
    return socket;
}

static int setup(void **state)
{
    struct stage *s = calloc(1, sizeof *s);
    snprintf(s->dir, sizeof s->dir, "/tmp/hill-test-link-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    *state = s;
    return 0;
}

static void open_stage(struct stage *s)
{
    s->context = zmq_ctx_new();
    s->control = bind_router(s, "worker.sock");
    s->heartbeat = bind_router(s, "heartbeat.sock");
}

static int teardown(void **state)
{
    struct stage *s = *state;
    char path[128];
    zmq_close(s->control);
    zmq_close(s->heartbeat);
    zmq_ctx_term(s->context);
    snprintf(path, sizeof path, "%s/worker.sock", s->dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/heartbeat.sock", s->dir);
    unlink(path);
    rmdir(s->dir);
    free(s);
    return 0;
}

static Hill__Message *expect(void *socket, struct proto_address *from, Hill__Message__BodyCase body)
{
    int64_t deadline = clock_deadline_ms(60000);
    Hill__Message *message;
    while (clock_now_ns() < deadline) {
        zmq_pollitem_t item = {socket, 0, ZMQ_POLLIN, 0};
        zmq_poll(&item, 1, 100);
        if (proto_receive(socket, from, &message, NULL) == 0) {
            assert_int_equal(message->body_case, body);
            return message;
        }
    }
    fail_msg("no message within 10 s");
    return NULL;
}

/* Statistics that tell how many messages were answered. */
static void set_live(struct worker_link *link, uint64_t answered)
{
    Hill__SequenceStats stats = HILL__SEQUENCE_STATS__INIT;
    Hill__TierStats gpu = HILL__TIER_STATS__INIT, hot = gpu, cold = gpu;
    stats.gpu = &gpu;
    stats.hot = &hot;
    stats.cold = &cold;
    hot.tokens = answered;
    cold.hits = 3;
    Hill__SequenceStats other = stats, *list[] = {&stats, &other};
    other.request_id = 9;
    worker_link_set_live(link, list, 2);
    worker_link_set_live(link, NULL, 0); /* no change */
}

/* The worker: answers Attach by a Failure that repeats the url, and ends with Shutdown. Runs in a
 * child, as it blocks signals and watches its parent. */
static int worker(const char *dir)
{
    struct worker_link *link;
    uint64_t answered = 0;
    char *argv[] = {(char *)"w", (char *)"--run-dir", (char *)dir, NULL};
    if (worker_link_open(&link, 3, argv, HILL__ROLE__ROLE_CPU_SCORER, "hill-test-worker", "test") !=
        0)
        return 9;
    while (!worker_link_stopping(link)) {
        uint32_t seen = shm_doorbell_read(worker_link_doorbell(link));
        Hill__Message *message = worker_link_poll(link);
        if (!message) {
            if (!worker_link_stopping(link))
                shm_doorbell_wait(worker_link_doorbell(link), seen, clock_deadline_ms(5000), 0);
            continue;
        }
        worker_link_failure(link, HILL_E_IO, message->attach->url, false, 7);
        worker_link_work_done(link, 1);
        set_live(link, ++answered);
        proto_free(message);
    }
    worker_link_close(link);
    return 0;
}

static pid_t start(struct stage *s)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(worker(s->dir));
    open_stage(s);
    return pid;
}

static void send_attach(struct stage *s, const struct proto_address *to, const char *url)
{
    Hill__Attach attach = HILL__ATTACH__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    attach.url = (char *)url;
    message.body_case = HILL__MESSAGE__BODY_ATTACH;
    message.attach = &attach;
    assert_int_equal(proto_send(s->control, to, &message), 0);
}

static void says_hello_answers_and_ends(void **state)
{
    struct stage *s = *state;
    pid_t pid = start(s);
    struct proto_address from;
    Hill__Message *message = expect(s->control, &from, HILL__MESSAGE__BODY_HELLO);
    assert_int_equal(message->hello->pid, pid);
    assert_int_equal(message->hello->role, HILL__ROLE__ROLE_CPU_SCORER);
    proto_free(message);
    for (int i = 0; i < 50; i++) {
        char url[24];
        snprintf(url, sizeof url, "file:%d", i);
        send_attach(s, &from, url);
        message = expect(s->control, NULL, HILL__MESSAGE__BODY_FAILURE);
        assert_string_equal(message->failure->text, url);
        assert_int_equal(message->failure->request_id, 7);
        proto_free(message);
    }
    int64_t before = clock_now_ns();
    for (int i = 0; i < 3; i++)
        proto_free(expect(s->heartbeat, NULL, HILL__MESSAGE__BODY_HEARTBEAT));
    assert_true(clock_now_ns() - before < CLOCK_MS(5000));
    Hill__Shutdown shutdown = HILL__SHUTDOWN__INIT;
    Hill__Message end = HILL__MESSAGE__INIT;
    end.body_case = HILL__MESSAGE__BODY_SHUTDOWN;
    end.shutdown = &shutdown;
    assert_int_equal(proto_send(s->control, &from, &end), 0);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void heartbeats_carry_usage_and_the_latest_statistics(void **state)
{
    struct stage *s = *state;
    pid_t pid = start(s);
    struct proto_address from;
    proto_free(expect(s->control, &from, HILL__MESSAGE__BODY_HELLO));
    Hill__Message *message = expect(s->heartbeat, NULL, HILL__MESSAGE__BODY_HEARTBEAT);
    assert_null(message->heartbeat->live);
    assert_true(message->heartbeat->rss_bytes > 65536);
    proto_free(message);
    for (unsigned i = 0; i < 5; i++) {
        send_attach(s, &from, "file:x");
        proto_free(expect(s->control, NULL, HILL__MESSAGE__BODY_FAILURE));
    }
    message = expect(s->heartbeat, NULL, HILL__MESSAGE__BODY_HEARTBEAT);
    while (!message->heartbeat->live || message->heartbeat->live->hot->tokens != 5) {
        proto_free(message); /* an old one: they wait in the socket */
        message = expect(s->heartbeat, NULL, HILL__MESSAGE__BODY_HEARTBEAT);
    }
    assert_int_equal(message->heartbeat->live->cold->hits, 3);
    assert_int_equal(message->heartbeat->n_live_others, 1);
    assert_int_equal(message->heartbeat->live_others[0]->request_id, 9);
    assert_int_equal(message->heartbeat->live_others[0]->cold->hits, 3);
    assert_int_equal(message->heartbeat->work_done, 5);
    proto_free(message);
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
}

/* A worker whose data loop stands still until something comes down the pipe, and then sleeps; "r":
 * it was loading. */
static int standing_worker(const char *dir, int from)
{
    struct worker_link *link;
    char *argv[] = {(char *)"w", (char *)"--run-dir", (char *)dir, NULL}, byte;
    if (worker_link_open(&link, 3, argv, HILL__ROLE__ROLE_GPU_WORKER, "hill-test", "test") ||
        read(from, &byte, 1) != 1)
        return 9;
    if (byte == 'r')
        worker_link_ready(link, 1, "a device", 0);
    while (!worker_link_stopping(link)) {
        uint32_t seen = shm_doorbell_read(worker_link_doorbell(link));
        if (!worker_link_stopping(link))
            shm_doorbell_wait(worker_link_doorbell(link), seen, CLOCK_NEVER, 0);
    }
    worker_link_close(link);
    return 0;
}

static pid_t start_standing(struct stage *s, int gate[2])
{
    assert_int_equal(pipe(gate), 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(standing_worker(s->dir, gate[0]));
    open_stage(s);
    return pid;
}

/* The first heartbeat that says so. */
static void await_heartbeat(struct stage *s, uint32_t stuck_from, uint32_t stuck_to,
                            uint32_t longest_from)
{
    for (;;) {
        Hill__Message *message = expect(s->heartbeat, NULL, HILL__MESSAGE__BODY_HEARTBEAT);
        const Hill__Heartbeat *beat = message->heartbeat;
        bool found = beat->stuck_ms >= stuck_from && beat->stuck_ms <= stuck_to &&
                     beat->longest_ms >= longest_from;
        proto_free(message);
        if (found)
            return;
    }
}

static void heartbeats_say_that_the_data_loop_stands_still(void **state)
{
    struct stage *s = *state;
    struct proto_address from;
    int gate[2], status;
    pid_t pid = start_standing(s, gate);
    proto_free(expect(s->control, &from, HILL__MESSAGE__BODY_HELLO));
    send_attach(s, &from, "file:x"); /* any answer to Hello will do */
    await_heartbeat(s, 600, UINT32_MAX, 0);
    assert_int_equal(write(gate[1], "x", 1), 1);
    await_heartbeat(s, 0, 0, 600); /* it sleeps: it may do so for as long as it likes */
    for (int i = 0; i < 3; i++)
        await_heartbeat(s, 0, 0, 600);
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(gate[0]);
    close(gate[1]);
}

static void to_load_is_no_turn(void **state)
{
    enum { STOOD_MS = 4000 }; /* longer than the control thread is kept from its looks */
    struct stage *s = *state;
    struct proto_address from;
    int gate[2], status;
    pid_t pid = start_standing(s, gate);
    proto_free(expect(s->control, &from, HILL__MESSAGE__BODY_HELLO));
    send_attach(s, &from, "file:x");
    await_heartbeat(s, STOOD_MS, UINT32_MAX, 0);
    assert_int_equal(write(gate[1], "r", 1), 1);
    await_heartbeat(s, 0, 0, 0);
    for (int i = 0; i < 3; i++) {
        Hill__Message *message = expect(s->heartbeat, NULL, HILL__MESSAGE__BODY_HEARTBEAT);
        assert_true(message->heartbeat->longest_ms < STOOD_MS);
        proto_free(message);
    }
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(gate[0]);
    close(gate[1]);
}

static void sigterm_ends_it(void **state)
{
    struct stage *s = *state;
    pid_t pid = start(s);
    proto_free(expect(s->control, NULL, HILL__MESSAGE__BODY_HELLO));
    kill(pid, SIGTERM);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Its status; it is killed, and the test fails, when it lives on for 10 s. */
static int await_end(pid_t pid)
{
    int64_t deadline = clock_deadline_ms(10000);
    int status;
    for (;;) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status;
        if (clock_now_ns() > deadline)
            break;
        usleep(1000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    fail_msg("the worker did not end within 10 s");
    return status;
}

/* How a worker ends when who has started it is killed: a process between this one and the worker.
 */
static int status_of_orphan(struct stage *s, bool stands)
{
    struct proto_address from;
    int gate[2], ids[2];
    pid_t pid;
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    assert_int_equal(pipe(gate) | pipe(ids), 0);
    pid_t parent = fork();
    if (parent == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that has failed leaves nobody */
        pid = fork();
        if (pid == 0)
            _exit(standing_worker(s->dir, gate[0]));
        if (write(ids[1], &pid, sizeof pid) != (ssize_t)sizeof pid)
            _exit(9);
        for (;;)
            pause();
    }
    open_stage(s);
    assert_int_equal(read(ids[0], &pid, sizeof pid), sizeof pid);
    proto_free(expect(s->control, &from, HILL__MESSAGE__BODY_HELLO));
    send_attach(s, &from, "file:x");
    if (!stands)
        assert_int_equal(write(gate[1], "g", 1), 1);
    await_heartbeat(s, stands ? 600 : 0, UINT32_MAX, 0);
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    int status = await_end(pid);
    for (int i = 0; i < 2; i++) {
        close(gate[i]);
        close(ids[i]);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    return status;
}

static void without_its_coordinator_it_ends(void **state)
{
    int status = status_of_orphan(*state, false);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void without_its_coordinator_one_that_stands_still_kills_itself(void **state)
{
    int status = status_of_orphan(*state, true);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* What a worker in a child ends with; the coordinator's part is up to the caller. */
static pid_t start_alone(const char *dir, const char *hello_ms)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct worker_link *link;
        char *argv[] = {(char *)"w", (char *)"--run-dir", (char *)dir, NULL};
        setenv("HILL_TEST_HELLO_MS", hello_ms, 1);
        _exit(-worker_link_open(&link, 3, argv, HILL__ROLE__ROLE_CPU_SCORER, "hill-test-worker",
                                "test"));
    }
    return pid;
}

static int result_of(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return -WEXITSTATUS(status);
}

static void without_a_run_folder_it_fails_at_once(void **state)
{
    struct stage *s = *state;
    char dir[sizeof s->dir + 16];
    snprintf(dir, sizeof dir, "%s/nosuch", s->dir);
    assert_int_equal(result_of(start_alone(dir, "30000")), HILL_E_IO);
    open_stage(s); /* teardown closes it */
}

static void without_an_answer_it_gives_up(void **state)
{
    struct stage *s = *state;
    assert_int_equal(result_of(start_alone(s->dir, "100")), HILL_E_PEER_GONE);
    open_stage(s);
}

static void a_refusal_ends_it(void **state)
{
    struct stage *s = *state;
    pid_t pid = start_alone(s->dir, "30000");
    struct proto_address from;
    Hill__Reply reply = HILL__REPLY__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    open_stage(s);
    proto_free(expect(s->control, &from, HILL__MESSAGE__BODY_HELLO));
    reply.code = HILL_E_PROTOCOL;
    reply.text = (char *)"a stranger";
    message.body_case = HILL__MESSAGE__BODY_REPLY;
    message.reply = &reply;
    assert_int_equal(proto_send(s->control, &from, &message), 0);
    assert_int_equal(result_of(pid), HILL_E_PEER_GONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(says_hello_answers_and_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(heartbeats_carry_usage_and_the_latest_statistics, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(heartbeats_say_that_the_data_loop_stands_still, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(to_load_is_no_turn, setup, teardown),
        cmocka_unit_test_setup_teardown(sigterm_ends_it, setup, teardown),
        cmocka_unit_test_setup_teardown(without_its_coordinator_it_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(without_its_coordinator_one_that_stands_still_kills_itself,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(without_a_run_folder_it_fails_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(without_an_answer_it_gives_up, setup, teardown),
        cmocka_unit_test_setup_teardown(a_refusal_ends_it, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

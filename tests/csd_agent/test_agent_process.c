/*
 * test_agent_process.c - the agent's process from Hello to exit, with the test as coordinator and
 * scorer: Configure, Ready, a command, a new epoch, Shutdown; a pool that cannot be had; a drive
 * that is lost while it serves.
 */
#include "tests/csd_agent/fixture.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <zmq.h>

#include "base/clock.h"
#include "csd_agent/agent.h"
#include "proto/party.h"
#include "tests/shm/run_id.h"

static const struct layout_input shape = {{2, 4, 2, 16}, 1024, 1};

struct scene {
    void *context, *control, *heartbeat;
    struct proto_address agent;
    pid_t child;
    struct party scorer; /* that the test plays */
    uint32_t epoch;
};

/* In the child: what main.c does. */
static void child_main(void)
{
    char *argv[] = {(char *)"hill-csd-agent", (char *)"--run-dir", folder,
                    (char *)"--log-level",    (char *)"error",     NULL};
    struct worker_link *link;
    int status =
        worker_link_open(&link, 5, argv, HILL__ROLE__ROLE_CSD_AGENT, "hill-csd-agent", "test");

    if (status == 0) {
        status = agent_run(link, NULL);
        worker_link_close(link);
    }
    _exit(hill_exit_code(status));
}

static void *bind_socket(struct scene *s, const char *name)
{
    char address[128];
    void *socket = zmq_socket(s->context, ZMQ_ROUTER);

    snprintf(address, sizeof address, "ipc://%s/%s", folder, name);
    assert_int_equal(zmq_bind(socket, address), 0);
    return socket;
}

static Hill__Message *receive(struct scene *s, Hill__Message__BodyCase kind)
{
    int64_t deadline = clock_deadline_ms(120000); /* a device opens, kernels are built */
    Hill__Message *message;
    struct hill_why why = {""};

    while (clock_now_ns() < deadline) {
        int status = proto_receive(s->control, &s->agent, &message, &why);
        if (status == HILL_E_WOULD_BLOCK) {
            usleep(2000);
            continue;
        }
        assert_int_equal(status, 0);
        if (message->body_case == kind)
            return message;
        if (message->body_case == HILL__MESSAGE__BODY_FAILURE)
            print_message("failure: %s\n", message->failure->text);
        proto_free(message);
    }
    fail_msg("no message of kind %d", (int)kind);
    return NULL;
}

static void send_message(struct scene *s, Hill__Message *message)
{
    assert_int_equal(proto_send(s->control, &s->agent, message), 0);
}

static void scene_open(struct scene *s)
{
    memset(s, 0, sizeof *s);
    test_run_id(); /* forks, too */
    fflush(NULL);
    pid_t self = getpid();
    s->child = fork(); /* before any thread of zmq or OpenCL */
    if (s->child == 0) {
        test_die_with_parent(self);
        child_main();
    }
    s->context = zmq_ctx_new();
    s->control = bind_socket(s, "worker.sock");
    s->heartbeat = bind_socket(s, "heartbeat.sock");
    Hill__Message *hello = receive(s, HILL__MESSAGE__BODY_HELLO);
    assert_int_equal(hello->hello->role, HILL__ROLE__ROLE_CSD_AGENT);
    proto_free(hello);
}

/* The settings of an epoch in which the test is coordinator and scorer. */
static struct epoch_settings settings_of(uint32_t epoch, uint64_t cold_cap_bytes)
{
    /* at most two of a process: what scores in the first, and in the second */
    static const char *const devices[] = {"", FIRST_OPENCL_DEVICE};
    return (struct epoch_settings){
        .run_id = test_run_id(),
        .epoch = epoch,
        .plan = {.geometry = shape.geometry,
                 .n_embd = 64,
                 .n_ff = 64,
                 .n_vocab = 64,
                 .ctx_tokens = shape.ctx_tokens,
                 .batch_tokens = 64,
                 .n_sequences = shape.n_sequences,
                 .selection = {.alpha = 0.2, .sinks = 4, .window = 32}},
        .model_path = "model",
        .device = "the GPU worker's, and no agent's",
        .threads = 1,
        .hot_cap_bytes = 1 << 20,
        .gpu_kv_cap_bytes = 1 << 20,
        .gpu_slots = 64,
        .staging_slots = 16,
        .csd_attached = true,
        .csd_url = pool_url(),
        .csd_device = devices[epoch - 1],
        .cold_cap_bytes = cold_cap_bytes,
        .block_tokens = 256,
    };
}

static void make_segments(struct scene *s, uint32_t epoch)
{
    struct epoch_settings settings = settings_of(epoch, 1 << 20);
    s->epoch = epoch;
    assert_int_equal(epoch_create(&settings, NULL), 0);
    assert_int_equal(party_attach(&s->scorer, PARTY_SCORER, &settings, NULL), 0);
}

static void drop_segments(struct scene *s)
{
    epoch_unlink(test_run_id(), s->epoch);
    party_leave(&s->scorer);
}

/* model: of the drive; NULL: none. */
static void configure_modelled(struct scene *s, uint32_t epoch, uint64_t cold_cap_bytes,
                               Hill__CsdModel *model)
{
    struct epoch_settings settings = settings_of(epoch, cold_cap_bytes);
    struct epoch_wire wire;
    settings.csd_model = proto_csd_model(model);
    epoch_settings_to_wire(&wire, &settings);
    send_message(s, &wire.message);
}

static void configure(struct scene *s, uint32_t epoch, uint64_t cold_cap_bytes)
{
    configure_modelled(s, epoch, cold_cap_bytes, NULL);
}

static void expect_ready(struct scene *s, uint32_t epoch)
{
    Hill__Message *ready = receive(s, HILL__MESSAGE__BODY_READY);
    assert_int_equal(ready->ready->epoch, epoch);
    assert_true(strstr(ready->ready->device, "O_DIRECT") ||
                strstr(ready->ready->device, "page cache"));
    assert_int_equal(strstr(ready->ready->device, "the host's CPU") != NULL, epoch == 1);
    proto_free(ready);
}

/* The scorer's part: lay out late, then one command and its answer. */
static void serve_one_command(struct scene *s, uint32_t epoch)
{
    struct record_trim trim = {.header = {.epoch = epoch}, .tag = 42};
    struct shm_ring_end *completion = &s->scorer.ends[RING_COMPLETION];
    const void *payload;
    uint32_t type, size;

    usleep(100000); /* the agent waits for the layout */
    assert_int_equal(party_open(&s->scorer, NULL, NULL), 0);
    expect_ready(s, epoch);
    assert_int_equal(shm_ring_push(&s->scorer.ends[RING_COMMAND], RECORD_TRIM, &trim, sizeof trim),
                     0);
    assert_int_equal(shm_ring_wait(completion, 0, clock_deadline_ms(60000)), 0);
    assert_int_equal(shm_ring_peek(completion, &type, &payload, &size), 0);
    assert_int_equal(((const struct record_completion *)payload)->tag, 42);
    shm_ring_release(completion);
}

static void scene_close(struct scene *s, int exit_code)
{
    int status;

    assert_int_equal(waitpid(s->child, &status, 0), s->child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), exit_code);
    zmq_close(s->control);
    zmq_close(s->heartbeat);
    zmq_ctx_term(s->context);
    char path[128];
    snprintf(path, sizeof path, "%s/worker.sock", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/heartbeat.sock", folder);
    unlink(path);
}

static void test_serves_epoch_after_epoch_and_stops_in_order(void **state)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Shutdown shutdown = HILL__SHUTDOWN__INIT;
    struct scene s;

    (void)state;
    scene_open(&s);
    for (uint32_t epoch = 1; epoch <= 2; epoch++) {
        make_segments(&s, epoch);
        configure(&s, epoch, 8u << 20);
        serve_one_command(&s, epoch);
        drop_segments(&s);
    }
    message.body_case = HILL__MESSAGE__BODY_SHUTDOWN;
    message.shutdown = &shutdown;
    send_message(&s, &message);
    scene_close(&s, 0);
}

/* ---- under a device model ---- */

/* Have eight slots written; the completion. */
static struct record_completion demote(struct party *scorer, uint32_t epoch, uint32_t first,
                                       int status)
{
    struct shm_ring_end *completion = &scorer->ends[RING_COMPLETION];
    struct record_completion out;
    struct demote_parts parts;
    const void *payload;
    uint32_t type, size;

    record_demote_parts(&parts, &shape.geometry, first, 8);
    uint8_t *bytes = calloc(1, parts.total);
    assert_non_null(bytes);
    *(struct record_demote *)(void *)bytes = (struct record_demote){
        .header = {.epoch = epoch}, .tag = 7 + first, .first_slot = first, .n_slots = 8};
    assert_int_equal(
        shm_ring_push(&scorer->ends[RING_BACKGROUND], RECORD_DEMOTE, bytes, (uint32_t)parts.total),
        0);
    free(bytes);
    assert_int_equal(shm_ring_wait(completion, 0, clock_deadline_ms(20000)), 0);
    assert_int_equal(shm_ring_peek(completion, &type, &payload, &size), 0);
    assert_int_equal(size, sizeof out);
    memcpy(&out, payload, sizeof out);
    shm_ring_release(completion);
    assert_int_equal(out.tag, 7 + first);
    assert_int_equal(out.status, status);
    return out;
}

static void test_a_modelled_drive_takes_its_time_and_is_counted(void **state)
{
    struct csd_model slow = {.on = true,
                             .flash = 1,
                             .write = 0.125,
                             .link = 0.25,
                             .gpu_link = 1,
                             .score = 1,
                             .latency_us = 30000};
    Hill__Message message = HILL__MESSAGE__INIT, *counters;
    Hill__CsdModel model;
    struct record_completion c;
    struct scene s;
    uint64_t commands = 0;

    (void)state;
    scene_open(&s);
    make_segments(&s, 1);
    proto_set_csd_model(&model, &slow);
    configure_modelled(&s, 1, 8u << 20, &model);
    assert_int_equal(party_open(&s.scorer, NULL, NULL), 0);
    expect_ready(&s, 1);
    c = demote(&s.scorer, 1, 0, 0);
    assert_int_equal(c.flash_read_bytes, 0);
    assert_true(c.busy_ns >= 30000000 + c.flash_write_bytes * 8);
    while (commands == 0) { /* what it says may be of its directory alone */
        counters = receive(&s, HILL__MESSAGE__BODY_CSD_MODEL_COUNTERS);
        commands = counters->csd_model_counters->commands;
        assert_true(commands == 0 ||
                    counters->csd_model_counters->flash_ns >= c.flash_write_bytes * 8);
        assert_true(commands == 0 ||
                    counters->csd_model_counters->link_ns >= c.flash_write_bytes * 4);
        proto_free(counters);
    }
    assert_int_equal(commands, 1);
    message.body_case = HILL__MESSAGE__BODY_CSD_MODEL;
    message.csd_model = &model;
    model.latency_us = 60000; /* changed while it serves */
    send_message(&s, &message);
    for (uint32_t first = 8; c.busy_ns < 60000000; first += 8)
        c = demote(&s.scorer, 1, first, 0); /* it is told over another way: soon, not at once */
    Hill__Shutdown shutdown = HILL__SHUTDOWN__INIT;
    message.body_case = HILL__MESSAGE__BODY_SHUTDOWN;
    message.shutdown = &shutdown;
    send_message(&s, &message);
    scene_close(&s, 0);
    drop_segments(&s);
}

static void test_a_pool_without_space_is_a_fatal_failure(void **state)
{
    struct scene s;

    (void)state;
    scene_open(&s);
    make_segments(&s, 1);
    configure(&s, 1, 1000); /* not even a stripe per layer */
    Hill__Message *failure = receive(&s, HILL__MESSAGE__BODY_FAILURE);
    assert_int_equal(failure->failure->code, HILL_E_INVALID);
    assert_true(failure->failure->fatal);
    assert_true(strlen(failure->failure->text) > 0);
    proto_free(failure);
    drop_segments(&s);
    scene_close(&s, 100);
}

/* ---- a drive that fails ---- */

/* Does what the agent writes get through from now on? */
static void let_writes(const struct scene *s, bool through)
{
    const struct rlimit limit = {through ? RLIM_INFINITY : 0, RLIM_INFINITY};
    assert_int_equal(prlimit(s->child, RLIMIT_FSIZE, &limit, NULL), 0);
}

static void test_a_drive_that_only_fails_is_a_fatal_failure(void **state)
{
    struct scene s;

    (void)state;
    scene_open(&s);
    make_segments(&s, 1);
    configure(&s, 1, 8u << 20);
    assert_int_equal(party_open(&s.scorer, NULL, NULL), 0);
    expect_ready(&s, 1);
    let_writes(&s, false);
    for (uint32_t i = 0; i < 40; i++)
        demote(&s.scorer, 1, 0, HILL_E_NOSPACE);
    let_writes(&s, true);
    demote(&s.scorer, 1, 0, 0); /* it could be read: the agent has gone on */
    let_writes(&s, false);
    assert_int_equal(truncate(pool_path(), 0), 0);
    demote(&s.scorer, 1, 8, HILL_E_NOSPACE);
    Hill__Message *failure = receive(&s, HILL__MESSAGE__BODY_FAILURE);
    assert_int_equal(failure->failure->code, HILL_E_IO);
    assert_true(failure->failure->fatal);
    assert_non_null(strstr(failure->failure->text, pool_url()));
    proto_free(failure);
    drop_segments(&s);
    scene_close(&s, 111);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_serves_epoch_after_epoch_and_stops_in_order),
        TEST(test_a_modelled_drive_takes_its_time_and_is_counted),
        TEST(test_a_pool_without_space_is_a_fatal_failure),
        TEST(test_a_drive_that_only_fails_is_a_fatal_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_relay.c - commands that another process changes while they are relayed to a drive elsewhere,
 * which the test plays at the other end of a link: what goes out is what was checked, and what the
 * drive has read for it comes into the window that went out. And a listener, told what no relay
 * says: it refuses the peer, and serves the next one.
 */
#include "tests/csd_agent/fixture.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "csd_agent/listen.h"
#include "csd_agent/relay.h"
#include "kv/plane.h"
#include "proto/drive_link.h"
#include "proto/envelope.h"
#include "proto/records.h"
#include "tests/proto/configure.h"
#include "tests/shm/run_id.h"

#define LIMIT_MS 20000
#define COMMANDS 200u
#define WINDOW   1u
#define DATA     64u

static const struct layout_input layout = {{2, 4, 2, 32}, 256, 2};

struct keys_record {
    struct record_read_keys record;
    struct key_range ranges[LAYOUT_KEY_RANGES_MAX]; /* many: the check takes its time */
};

struct scene {
    struct epoch_settings settings;
    struct party scorer, agent;
    uint32_t *_Atomic *meddled; /* shared with the meddler: what it writes to, or NULL */
    pid_t meddler;
    char url[64], own_key[128], peer_key[128];
    struct drive_link *drive;
    struct relay *relay;
};

/* ---- who meddles ---- */

static void meddle(uint32_t *_Atomic *meddled, pid_t parent)
{
    test_die_with_parent(parent);
    for (;;) {
        volatile uint32_t *word = atomic_load(meddled);
        if (!word)
            continue;
        *word = UINT32_MAX;
        *word = WINDOW;
    }
}

static void start_meddler(struct scene *s)
{
    s->meddled =
        mmap(NULL, sizeof *s->meddled, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(s->meddled, MAP_FAILED);
    pid_t parent = getpid();
    s->meddler = fork();
    assert_true(s->meddler >= 0);
    if (s->meddler == 0)
        meddle(s->meddled, parent);
}

/* ---- the drive ---- */

static void make_keys(struct scene *s, struct drive_keys *drive)
{
    char path[128], peer[160];

    snprintf(path, sizeof path, "%s/drive", folder);
    assert_int_equal(drive_keys_write(path, NULL), 0);
    snprintf(s->own_key, sizeof s->own_key, "%s/host", folder);
    assert_int_equal(drive_keys_write(s->own_key, NULL), 0);
    snprintf(s->peer_key, sizeof s->peer_key, "%s/drive.pub", folder);
    snprintf(peer, sizeof peer, "%s.pub", s->own_key);
    assert_int_equal(drive_keys_read(drive, path, peer, NULL), 0);
}

static void remove_keys(void)
{
    static const char *const names[] = {"drive", "drive.pub", "host", "host.pub"};
    char path[128];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
}

static void listen_somewhere(struct scene *s)
{
    struct drive_keys keys;

    make_keys(s, &keys);
    for (unsigned i = 0, port = 21000 + (unsigned)getpid() % 9000; i < 50 && !s->drive;
         i++, port++) {
        snprintf(s->url, sizeof s->url, "tcp://127.0.0.1:%u", port);
        drive_link_listen(&s->drive, s->url, &keys, NULL);
    }
    assert_non_null(s->drive);
}

/* To be asked while the relay waits for it: Configure is answered by Ready. */
static int be_ready(void *context, struct hill_why *why)
{
    struct scene *s = context;
    struct drive_message *m = drive_link_poll(s->drive);
    Hill__Ready ready = HILL__READY__INIT;
    char device[] = "the test";

    (void)why;
    if (!m)
        return 0;
    assert_int_equal(m->frame.kind, DRIVE_CONTROL);
    free(m);
    ready.epoch = s->settings.epoch;
    ready.device = device;
    return drive_link_tell(s->drive, &PROTO_MESSAGE(READY, ready, &ready));
}

static void answer(struct scene *s, const struct drive_message *m)
{
    const struct record_commit *record = (const void *)m->payload; /* a tag is where it is */
    struct record_completion completion = {
        .header = record->header, .tag = record->tag, .command = m->frame.b};
    struct drive_frame frame = {.kind = DRIVE_RECORD, .a = RING_COMPLETION, .b = RECORD_COMPLETION};

    if (m->frame.b == RECORD_READ_KEYS) {
        uint8_t data[DATA];
        const struct drive_frame read = {.kind = DRIVE_DATA, .tag = record->tag};
        memset(data, (int)record->tag, sizeof data);
        assert_int_equal(drive_link_send(s->drive, &read, data, sizeof data), 0);
        completion.link_key_bytes = sizeof data;
    }
    assert_int_equal(drive_link_send(s->drive, &frame, &completion, sizeof completion), 0);
}

/* ---- the relay between both ---- */

static void turn(struct scene *s, uint64_t *done)
{
    struct hill_why why = {""};
    uint64_t came;
    bool own;

    if (relay_turn(s->relay, &came, &own, &why) < 0)
        fail_msg("the relay ended: %s", why.text);
    *done += came;
}

/* The next command at the drive, which is whole; answered. Returns its type. */
static uint32_t next_command(struct scene *s, uint64_t *done)
{
    struct drive_message *m;
    struct hill_why why = {""};

    for (int64_t end = clock_deadline_ms(LIMIT_MS); !(m = drive_link_poll(s->drive));) {
        assert_true(clock_now_ns() < end);
        turn(s, done);
    }
    uint32_t type = m->frame.b;
    assert_int_equal(m->frame.kind, DRIVE_RECORD);
    if (record_check(type, m->payload, m->bytes, &layout.geometry, layout.n_sequences, &why))
        fail_msg("a bad record went out: %s", why.text);
    answer(s, m);
    free(m);
    return type;
}

static void take_completions(struct scene *s, uint64_t n)
{
    struct shm_ring_end *end = &s->scorer.ends[RING_COMPLETION];
    const void *payload;
    uint32_t type, bytes;

    for (uint64_t i = 0; i < n; i++) {
        assert_int_equal(shm_ring_peek(end, &type, &payload, &bytes), 0);
        assert_int_equal(((const struct record_completion *)payload)->status, 0);
        shm_ring_release(end);
    }
    assert_int_equal(shm_ring_peek(end, &type, &payload, &bytes), HILL_E_WOULD_BLOCK);
}

/* A READ_KEYS under the meddler's hands, and a COMMIT behind it: did it go out? */
static bool relay_keys(struct scene *s, struct keys_record *keys, uint64_t tag)
{
    struct shm_ring_end *end = &s->scorer.ends[RING_COMMAND];
    struct {
        struct record_commit record;
        uint32_t slot;
    } commit = {.record = {.header = keys->record.header, .tag = 1u << 20, .n_slots = 1}};
    const uint8_t *window = s->agent.key_windows + WINDOW * s->agent.key_window_bytes;
    uint64_t done = 0, sent = 1;
    const void *payload;
    uint32_t type, bytes;

    keys->record.tag = tag;
    assert_int_equal(shm_ring_push(end, RECORD_READ_KEYS, keys, sizeof *keys), 0);
    assert_int_equal(shm_ring_push(end, RECORD_COMMIT, &commit, sizeof commit.record + 4), 0);
    assert_int_equal(shm_ring_peek(&s->agent.ends[RING_COMMAND], &type, &payload, &bytes), 0);
    atomic_store(s->meddled, &((struct record_read_keys *)(uintptr_t)payload)->window);
    turn(s, &done);
    while (next_command(s, &done) != RECORD_COMMIT)
        sent++;
    atomic_store(s->meddled, NULL);
    for (int64_t until = clock_deadline_ms(LIMIT_MS); done < sent; turn(s, &done))
        assert_true(clock_now_ns() < until);
    take_completions(s, sent);
    for (uint32_t i = 0; sent == 2 && i < DATA; i++)
        assert_int_equal(window[i], (uint8_t)tag);
    return sent == 2;
}

/* ---- tests ---- */

static void open_scene(struct scene *s)
{
    struct hill_why why = {""};

    *s = (struct scene){.settings = make_settings(&layout, 1)};
    s->settings.run_id = test_run_id();
    s->settings.plan.selection.policy = KV_POLICY_LEOAM;
    s->settings.hot_bytes = 1 << 16;
    s->settings.csd_attached = true;
    s->settings.cold_cap_bytes = 1 << 20;
    assert_int_equal(epoch_create(&s->settings, &why), 0);
    assert_int_equal(party_attach(&s->scorer, PARTY_SCORER, &s->settings, &why), 0);
    assert_int_equal(party_attach(&s->agent, PARTY_AGENT, &s->settings, &why), 0);
    assert_int_equal(party_open(&s->scorer, NULL, &why), 0);
    const struct party_wait now = {.deadline_ns = clock_deadline_ms(LIMIT_MS)};
    assert_int_equal(party_open(&s->agent, &now, &why), 0);
    assert_true(s->agent.key_windows && s->agent.key_window_bytes >= DATA);
    start_meddler(s); /* before there are threads */
    listen_somewhere(s);
    s->settings.csd_url = s->url;
    s->settings.csd_key = s->own_key;
    s->settings.csd_peer = s->peer_key;
    if (relay_open(&s->relay, &s->settings, NULL, &why))
        fail_msg("%s", why.text);
    remove_keys();
    relay_set_doorbell(s->relay, s->agent.bell);
    Hill__Configure configure = HILL__CONFIGURE__INIT;
    configure.epoch = s->settings.epoch;
    const struct party_wait wait = {.waiting = be_ready, .context = s};
    if (relay_begin(s->relay, &PROTO_MESSAGE(CONFIGURE, configure, &configure), &s->agent, &wait,
                    &why))
        fail_msg("%s", why.text);
}

static void close_scene(struct scene *s)
{
    kill(s->meddler, SIGKILL);
    waitpid(s->meddler, NULL, 0);
    relay_close(s->relay);
    drive_link_close(s->drive);
    party_leave(&s->agent);
    party_leave(&s->scorer);
    epoch_unlink(s->settings.run_id, s->settings.epoch);
    munmap((void *)s->meddled, sizeof *s->meddled);
}

static void test_what_was_checked_is_sent(void **state)
{
    struct scene s;
    struct keys_record *keys = calloc(1, sizeof *keys);
    uint32_t sent = 0;

    (void)state;
    open_scene(&s);
    keys->record = (struct record_read_keys){
        .header.epoch = 1, .window = WINDOW, .n_ranges = LAYOUT_KEY_RANGES_MAX};
    for (uint32_t i = 0; i < LAYOUT_KEY_RANGES_MAX; i++)
        keys->ranges[i].n_slots = 1;
    for (uint32_t i = 1; i <= COMMANDS; i++)
        sent += relay_keys(&s, keys, i);
    assert_true(sent > 0);
    free(keys);
    close_scene(&s);
}

/* ---- a listener in a process of its own ---- */

/* A link to it, or NULL: its port is another's. */
static struct drive_link *link_to(const struct scene *s, pid_t listener)
{
    struct drive_keys keys;
    struct drive_link *link;
    int64_t end = clock_deadline_ms(LIMIT_MS);

    assert_int_equal(drive_keys_read(&keys, s->own_key, s->peer_key, NULL), 0);
    assert_int_equal(drive_link_connect(&link, s->url, &keys, NULL), 0);
    while (!drive_link_is_up(link) && waitpid(listener, NULL, WNOHANG) == 0) {
        assert_true(clock_now_ns() < end);
        usleep(1000);
    }
    if (drive_link_is_up(link))
        return link;
    drive_link_close(link);
    return NULL;
}

static pid_t start_listener(const struct scene *s)
{
    char key[128], peer[160], pool[160];
    char *argv[] = {(char *)"hill-csd-agent",
                    (char *)"--listen",
                    (char *)s->url,
                    (char *)"--drive",
                    pool,
                    (char *)"--key",
                    key,
                    (char *)"--peer",
                    peer};
    pid_t parent = getpid();

    snprintf(key, sizeof key, "%s/drive", folder);
    snprintf(peer, sizeof peer, "%s.pub", s->own_key);
    snprintf(pool, sizeof pool, "file:%s/pool", folder);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        test_die_with_parent(parent);
        signal(SIGSEGV, SIG_DFL); /* cmocka's handler would go on with the tests */
        _exit(listen_main(sizeof argv / sizeof *argv, argv));
    }
    return child;
}

static void tell_configure(struct drive_link *link, bool csd_attached)
{
    struct epoch_settings settings = make_settings(&layout, 1);
    struct epoch_wire wire;

    settings.csd_attached = csd_attached;
    settings.csd_url = "tcp://there:1";
    settings.cold_cap_bytes = 4 << 20;
    epoch_settings_to_wire(&wire, &settings);
    assert_int_equal(drive_link_tell(link, &wire.message), 0);
}

static Hill__Message *next_message(struct drive_link *link)
{
    struct drive_message *m;
    Hill__Message *message;
    struct hill_why why = {""};

    for (int64_t end = clock_deadline_ms(LIMIT_MS); !(m = drive_link_poll(link)); usleep(1000))
        assert_true(clock_now_ns() < end);
    assert_int_equal(drive_control_read(m, &message, &why), 0);
    free(m);
    return message;
}

static void test_a_configure_without_a_drive_is_refused(void **state)
{
    struct scene s = {.drive = NULL};
    struct drive_keys keys;
    struct drive_link *link = NULL;
    struct hill_why why = {""};
    pid_t listener = 0;
    int status;

    (void)state;
    make_keys(&s, &keys);
    for (unsigned i = 0, port = 21000 + (unsigned)getpid() % 9000; i < 50 && !link; i++, port++) {
        snprintf(s.url, sizeof s.url, "tcp://127.0.0.1:%u", port);
        listener = start_listener(&s);
        link = link_to(&s, listener);
    }
    assert_non_null(link);
    tell_configure(link, false);
    Hill__Message *message = next_message(link);
    assert_int_equal(message->body_case, HILL__MESSAGE__BODY_FAILURE);
    assert_string_equal(message->failure->text, "a Configure without a drive");
    proto_free(message);
    for (int64_t end = clock_deadline_ms(LIMIT_MS); !drive_link_lost(link, &why); usleep(1000))
        assert_true(clock_now_ns() < end);
    assert_non_null(strstr(why.text, "refused: a Configure without a drive"));
    drive_link_close(link);
    link = link_to(&s, listener);
    assert_non_null(link);
    tell_configure(link, true);
    message = next_message(link);
    assert_int_equal(message->body_case, HILL__MESSAGE__BODY_READY);
    proto_free(message);
    drive_link_close(link);
    kill(listener, SIGTERM);
    assert_int_equal(waitpid(listener, &status, 0), listener);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    remove_keys();
}

/* It is dropped without an answer, so nothing may be kept for one. */
static void test_a_read_of_another_epoch_is_refused(void **state)
{
    struct epoch_settings settings = make_settings(&layout, 1);
    struct listener_epoch epoch = {.open = false};
    struct party agent;
    struct hill_why why = {""};
    struct record_read_keys *record;
    struct key_range *range;
    const uint32_t bytes = sizeof *record + sizeof *range;
    struct drive_message *m = aligned_alloc(16, (sizeof *m + bytes + 15) / 16 * 16);

    (void)state;
    assert_non_null(m);
    settings.csd_attached = true;
    settings.cold_cap_bytes = 1 << 20;
    assert_int_equal(listener_epoch_open(&epoch, &agent, &settings, &why), 0);
    *m = (struct drive_message){
        .frame = {.kind = DRIVE_RECORD, .a = RING_COMMAND, .b = RECORD_READ_KEYS}, .bytes = bytes};
    record = (void *)m->payload;
    range = (void *)(record + 1);
    *record = (struct record_read_keys){.header.epoch = 2, .n_ranges = 1};
    *range = (struct key_range){.n_slots = 16};
    assert_int_equal(listener_take_record(&epoch, m, &why), HILL_E_PROTOCOL);
    assert_null(epoch.reads);
    record->header.epoch = 1;
    assert_int_equal(listener_take_record(&epoch, m, &why), 0);
    assert_non_null(epoch.reads);
    free(m);
    party_leave(&agent);
    listener_epoch_close(&epoch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_configure_without_a_drive_is_refused, make_folder,
                                        remove_folder),
        cmocka_unit_test(test_a_read_of_another_epoch_is_refused),
        cmocka_unit_test_setup_teardown(test_what_was_checked_is_sent, make_folder, remove_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A link between two threads of one process over the loopback: greetings, messages in order, what
 * is refused, what is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "proto/drive_link.h"
#include "proto/envelope.h"

#define LIMIT_MS 20000

static char folder[] = "/tmp/hill-test-link-XXXXXX";
static struct drive_keys host, drive;
static struct drive_link *there;
static char url[64];

static char *in_folder(const char *name)
{
    static char path[4][128];
    static unsigned next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", folder, name);
    return out;
}

static void make_keys(struct drive_keys *a, struct drive_keys *b)
{
    struct hill_why why = {""};
    assert_int_equal(drive_keys_write(in_folder("a"), &why), 0);
    assert_int_equal(drive_keys_write(in_folder("b"), &why), 0);
    assert_int_equal(drive_keys_read(a, in_folder("a"), in_folder("b.pub"), &why), 0);
    assert_int_equal(drive_keys_read(b, in_folder("b"), in_folder("a.pub"), &why), 0);
    unlink(in_folder("a"));
    unlink(in_folder("b"));
    unlink(in_folder("a.pub"));
    unlink(in_folder("b.pub"));
}

static int setup(void **state)
{
    (void)state;
    struct hill_why why = {""};
    setenv("HILL_TEST_DRIVE_MS", "10000", 1);
    make_keys(&host, &drive);
    for (unsigned i = 0, port = 21000 + (unsigned)getpid() % 9000; i < 50 && !there; i++, port++) {
        snprintf(url, sizeof url, "tcp://127.0.0.1:%u", port);
        drive_link_listen(&there, url, &drive, &why);
    }
    assert_non_null(there);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    drive_link_close(there);
    there = NULL;
    return 0;
}

static void until_up(struct drive_link *l)
{
    for (int64_t end = clock_deadline_ms(LIMIT_MS); !drive_link_is_up(l); usleep(1000))
        assert_true(clock_now_ns() < end);
}

static int until_lost(struct drive_link *l, struct hill_why *why)
{
    int rc = 0;
    for (int64_t end = clock_deadline_ms(LIMIT_MS); !(rc = drive_link_lost(l, why)); usleep(1000))
        assert_true(clock_now_ns() < end);
    return rc;
}

static struct drive_message *next_of(struct drive_link *l)
{
    struct drive_message *m = NULL;
    for (int64_t end = clock_deadline_ms(LIMIT_MS); !(m = drive_link_poll(l)); usleep(500))
        assert_true(clock_now_ns() < end);
    return m;
}

static struct drive_link *connected(void)
{
    struct drive_link *here;
    struct hill_why why = {""};
    assert_int_equal(drive_link_connect(&here, url, &host, &why), 0);
    until_up(here);
    until_up(there);
    return here;
}

/* ---- tests ------------------------------------------------------------------------------- */

static void test_messages_come_whole_and_in_order(void **state)
{
    (void)state;
    struct drive_link *here = connected();
    uint8_t payload[5000];
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t bytes = i * 37 % sizeof payload;
        memset(payload, (int)i, bytes);
        const struct drive_frame frame = {.kind = DRIVE_RECORD, .a = i, .b = 2 * i, .tag = 3 * i};
        assert_int_equal(drive_link_send(i % 2 ? here : there, &frame, payload, bytes), 0);
    }
    for (uint32_t i = 0; i < 300; i++) {
        struct drive_message *m = next_of(i % 2 ? there : here);
        assert_int_equal(m->frame.a, i);
        assert_int_equal(m->frame.tag, 3 * i);
        assert_int_equal(m->bytes, i * 37 % sizeof payload);
        assert_int_equal((uintptr_t)m->payload % 16, 0);
        for (uint32_t j = 0; j < m->bytes; j++)
            assert_int_equal(m->payload[j], (uint8_t)i);
        free(m);
    }
    drive_link_close(here);
}

static void test_the_end_of_one_is_told_to_the_other(void **state)
{
    (void)state;
    struct hill_why why = {""};
    drive_link_close(connected());
    assert_int_equal(until_lost(there, &why), HILL_E_PEER_GONE);
    assert_non_null(strstr(why.text, "ended"));
    drive_link_forget(there, NULL);
    struct drive_link *here = connected(); /* and another one may come */
    drive_link_forget(there, "it must not");
    assert_int_equal(until_lost(here, &why), HILL_E_PEER_GONE);
    assert_non_null(strstr(why.text, "refused: it must not"));
    drive_link_close(here);
}

static void test_one_at_a_time(void **state)
{
    (void)state;
    struct hill_why why = {""};
    struct drive_link *first = connected(), *second;
    setenv("HILL_TEST_DRIVE_MS", "3000", 1); /* within which it is told */
    assert_int_equal(drive_link_connect(&second, url, &host, &why), 0);
    assert_int_equal(until_lost(second, &why), HILL_E_PEER_GONE);
    assert_non_null(strstr(why.text, "another agent"));
    assert_true(drive_link_is_up(first));
    drive_link_close(second);
    drive_link_close(first);
}

static void test_strangers_are_not_let_in(void **state)
{
    (void)state;
    struct drive_keys stranger, other;
    struct drive_link *l;
    struct hill_why why = {""};
    make_keys(&stranger, &other);
    memcpy(stranger.peers[0], drive.public_key, DRIVE_KEY_BYTES);
    setenv("HILL_TEST_DRIVE_MS", "400", 1);
    assert_int_equal(drive_link_connect(&l, url, &stranger, &why), 0);
    assert_int_equal(until_lost(l, &why), HILL_E_PEER_GONE);
    assert_non_null(strstr(why.text, "keys are others"));
    assert_false(drive_link_is_up(there));
    drive_link_close(l);
    memcpy(host.peers[0], other.public_key, DRIVE_KEY_BYTES); /* the drive is another one */
    assert_int_equal(drive_link_connect(&l, url, &host, &why), 0);
    assert_int_equal(until_lost(l, &why), HILL_E_PEER_GONE);
    drive_link_close(l);
}

/* A peer with right keys that says what it likes: one message of these parts; what it is
 * answered. */
static void say_raw(void *socket, const void *frame, size_t bytes, const void *payload, size_t more)
{
    zmq_send(socket, frame, bytes, payload ? ZMQ_SNDMORE : 0);
    if (payload)
        zmq_send(socket, payload, more, 0);
}

static void *raw_peer(void *context)
{
    void *s = zmq_socket(context, ZMQ_DEALER);
    int linger = 0, wait = LIMIT_MS, few = 2;
    zmq_setsockopt(s, ZMQ_RCVHWM, &few, sizeof few);
    zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(s, ZMQ_RCVTIMEO, &wait, sizeof wait);
    zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, host.peers[0], DRIVE_KEY_BYTES);
    zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, host.public_key, DRIVE_KEY_BYTES);
    zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, host.secret_key, DRIVE_KEY_BYTES);
    assert_int_equal(zmq_connect(s, url), 0);
    return s;
}

static void expect_refusal(void *socket, const char *text)
{
    struct drive_frame frame;
    char line[512] = "";
    do {
        assert_int_equal(zmq_recv(socket, &frame, sizeof frame, 0), sizeof frame);
        int n = frame.kind == DRIVE_PING ? 0 : zmq_recv(socket, line, sizeof line - 1, 0);
        line[n > 0 ? n : 0] = '\0';
    } while (frame.kind == DRIVE_PING || frame.kind == DRIVE_HELLO);
    assert_int_equal(frame.kind, DRIVE_REFUSED);
    assert_non_null(strstr(line, text));
}

static void test_old_versions_and_garbage_are_refused_by_name(void **state)
{
    (void)state;
    void *context = zmq_ctx_new(), *peer = raw_peer(context);
    struct drive_frame frame = {DRIVE_MAGIC, DRIVE_VERSION, DRIVE_HELLO, 0, 0, 0}, bad = frame;
    struct drive_hello hello;
    struct hill_why why = {""};
    drive_hello_fill(&hello);
    hello.records_version--;
    say_raw(peer, &frame, sizeof frame, &hello, sizeof hello);
    expect_refusal(peer, "install the same on both hosts");
    bad.version = DRIVE_VERSION + 1;
    say_raw(peer, &bad, sizeof bad, &hello, sizeof hello);
    expect_refusal(peer, "version 2 of the link");
    say_raw(peer, "garbage", 7, NULL, 0);
    expect_refusal(peer, "a frame of 7 bytes");
    assert_int_equal(drive_link_lost(there, &why), 0);
    hello.records_version++;
    say_raw(peer, &frame, sizeof frame, &hello, sizeof hello);
    until_up(there);
    say_raw(peer, "more garbage, of 24 bytes", 24, "x", 1);
    assert_int_equal(until_lost(there, &why), HILL_E_PROTOCOL);
    assert_non_null(strstr(why.text, "begins with"));
    zmq_close(peer);
    zmq_ctx_term(context);
}

/* The drive's link anew, with less patience. */
static void impatient(int ms)
{
    struct hill_why why = {""};
    char text[16];
    drive_link_close(there);
    snprintf(text, sizeof text, "%d", ms);
    setenv("HILL_TEST_DRIVE_MS", text, 1);
    assert_int_equal(drive_link_listen(&there, url, &drive, &why), 0);
}

/* A peer that has said HELLO, and then nothing; nor does it read. */
static void *greeted_peer(void *context)
{
    struct drive_frame frame = {DRIVE_MAGIC, DRIVE_VERSION, DRIVE_HELLO, 0, 0, 0};
    struct drive_hello hello;
    void *peer = raw_peer(context);
    drive_hello_fill(&hello);
    say_raw(peer, &frame, sizeof frame, &hello, sizeof hello);
    until_up(there);
    return peer;
}

static void test_silence_is_a_loss(void **state)
{
    (void)state;
    void *context = zmq_ctx_new();
    struct hill_why why = {""};
    impatient(3000);
    void *peer = greeted_peer(context);
    assert_int_equal(until_lost(there, &why), HILL_E_PEER_GONE);
    assert_non_null(strstr(why.text, "silent"));
    zmq_close(peer);
    zmq_ctx_term(context);
}

static void answer(void *router, const zmq_msg_t *to, enum drive_kind kind, const void *payload,
                   size_t bytes)
{
    const struct drive_frame frame = {DRIVE_MAGIC, DRIVE_VERSION, (uint16_t)kind, 0, 0, 0};
    zmq_send(router, zmq_msg_data((zmq_msg_t *)(uintptr_t)to), zmq_msg_size(to), ZMQ_SNDMORE);
    zmq_send(router, &frame, sizeof frame, payload ? ZMQ_SNDMORE : 0);
    if (payload)
        zmq_send(router, payload, bytes, 0);
}

/* A drive that has refused the agent is lost to it, whatever it says afterwards. */
static void test_a_lost_drive_does_not_come_up_again(void **state)
{
    (void)state;
    void *context = zmq_ctx_new(), *router = zmq_socket(context, ZMQ_ROUTER);
    struct drive_link *here;
    struct drive_hello hello;
    struct hill_why why = {""};
    zmq_msg_t from;
    int on = 1, none = 0;
    drive_link_close(there);
    there = NULL;
    zmq_setsockopt(router, ZMQ_CURVE_SERVER, &on, sizeof on);
    zmq_setsockopt(router, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(router, ZMQ_CURVE_SECRETKEY, drive.secret_key, DRIVE_KEY_BYTES);
    assert_int_equal(zmq_bind(router, url), 0);
    assert_int_equal(drive_link_connect(&here, url, &host, &why), 0);
    zmq_msg_init(&from);
    assert_true(zmq_msg_recv(&from, router, 0) > 0);
    drive_hello_fill(&hello);
    answer(router, &from, DRIVE_HELLO, &hello, sizeof hello);
    until_up(here);
    answer(router, &from, DRIVE_REFUSED, "no", 2);
    assert_int_equal(until_lost(here, &why), HILL_E_PEER_GONE);
    answer(router, &from, DRIVE_HELLO, &hello, sizeof hello);
    usleep(200 * 1000);
    assert_false(drive_link_is_up(here));
    assert_int_equal(drive_link_lost(here, &why), HILL_E_PEER_GONE);
    zmq_msg_close(&from);
    drive_link_close(here);
    zmq_close(router);
    zmq_ctx_term(context);
}

/* What is not read for want of room cannot be heard. */
static void test_a_full_queue_is_no_silence(void **state)
{
    (void)state;
    static uint8_t payload[1 << 20];
    const struct drive_frame data = {DRIVE_MAGIC, DRIVE_VERSION, DRIVE_DATA, 0, 0, 0};
    void *context = zmq_ctx_new();
    struct hill_why why = {""};
    impatient(3000);
    void *peer = greeted_peer(context);
    for (unsigned i = 0; i < DRIVE_QUEUE_BYTES / sizeof payload; i++)
        say_raw(peer, &data, sizeof data, payload, sizeof payload);
    usleep(4500 * 1000);
    assert_int_equal(drive_link_lost(there, &why), 0);
    for (unsigned i = 0; i < DRIVE_QUEUE_BYTES / sizeof payload; i++)
        free(next_of(there));
    assert_int_equal(until_lost(there, &why), HILL_E_PEER_GONE);
    zmq_close(peer);
    zmq_ctx_term(context);
}

/* Every half a second: the peer is not silent, however long a busy machine takes. */
static void keep_alive(void *peer)
{
    static int64_t said_ns;
    const struct drive_frame ping = {DRIVE_MAGIC, DRIVE_VERSION, DRIVE_PING, 0, 0, 0};
    if (clock_now_ns() - said_ns < CLOCK_MS(500))
        return;
    say_raw(peer, &ping, sizeof ping, NULL, 0);
    said_ns = clock_now_ns();
}

/* Data to a peer that reads nothing, until nothing moves any more. */
static void fill_queue(void *peer)
{
    static uint8_t payload[1 << 20];
    const struct drive_frame data = {.kind = DRIVE_DATA};
    int rc = 0;
    for (int64_t full = 0; !full || clock_now_ns() < full;) {
        keep_alive(peer);
        rc = drive_link_send(there, &data, payload, sizeof payload);
        full = rc ? full ? full : clock_deadline_ms(300) : 0;
        if (rc)
            usleep(1000);
    }
    assert_int_equal(rc, HILL_E_WOULD_BLOCK);
}

/* Who was told HILL_E_WOULD_BLOCK may sleep: the bell says when there is room again. */
static void test_room_rings_the_bell(void **state)
{
    (void)state;
    const struct drive_frame data = {.kind = DRIVE_DATA};
    void *context = zmq_ctx_new();
    char room[64];
    void *peer = greeted_peer(context);
    struct shm_doorbell *bell = drive_link_doorbell(there);
    fill_queue(peer);
    uint32_t seen = shm_doorbell_read(bell);
    for (int i = 0; i < 400 && shm_doorbell_read(bell) == seen; i++) {
        keep_alive(peer);
        assert_true(zmq_recv(peer, room, sizeof room, 0) >= 0);
    }
    assert_int_equal(shm_doorbell_wait(bell, seen, clock_deadline_ms(LIMIT_MS), 0), 0);
    assert_int_equal(drive_link_send(there, &data, room, sizeof room), 0);
    zmq_close(peer);
    zmq_ctx_term(context);
}

/* The next frame that is no PING; its payload is passed over. */
static struct drive_frame next_frame(void *peer)
{
    struct drive_frame frame;
    char rest[16];
    int more = 0;
    size_t size = sizeof more;
    do {
        keep_alive(peer);
        assert_int_equal(zmq_recv(peer, &frame, sizeof frame, 0), sizeof frame);
        zmq_getsockopt(peer, ZMQ_RCVMORE, &more, &size);
        if (more)
            assert_true(zmq_recv(peer, rest, sizeof rest, 0) >= 0);
    } while (frame.kind == DRIVE_PING);
    return frame;
}

/* A control message, which nobody would send again, goes when there is room. */
static void test_a_full_queue_takes_control_messages(void **state)
{
    (void)state;
    static char text[4096];
    Hill__Failure failure = HILL__FAILURE__INIT;
    void *context = zmq_ctx_new();
    struct hill_why why = {""};
    void *peer = greeted_peer(context);
    memset(text, 'x', sizeof text - 1);
    failure.code = HILL_E_IO;
    failure.text = text;
    fill_queue(peer);
    assert_int_equal(drive_link_tell(there, &PROTO_MESSAGE(FAILURE, failure, &failure)), 0);
    while (next_frame(peer).kind != DRIVE_CONTROL)
        ;
    fill_queue(peer);
    for (uint64_t told = 0; !drive_link_lost(there, &why); told += sizeof text) {
        assert_true(told < 2 * DRIVE_QUEUE_BYTES); /* what is queued has a bound */
        drive_link_tell(there, &PROTO_MESSAGE(FAILURE, failure, &failure));
    }
    assert_non_null(strstr(why.text, "control message"));
    zmq_close(peer);
    zmq_ctx_term(context);
}

/* A dead peer takes nothing: what is queued for it must not stand before the next one's HELLO. */
static void test_a_dead_peer_does_not_hold_up_the_next(void **state)
{
    (void)state;
    static uint8_t payload[1 << 20];
    const struct drive_frame data = {.kind = DRIVE_DATA};
    void *context = zmq_ctx_new();
    struct hill_why why = {""};
    int rc;
    impatient(3000);
    void *peer = greeted_peer(context);
    int64_t end = clock_deadline_ms(LIMIT_MS);
    for (uint64_t sent = 0; sent < 200u << 20 && clock_now_ns() < end;
         sent += rc ? 0 : sizeof payload)
        if ((rc = drive_link_send(there, &data, payload, sizeof payload)) == HILL_E_PEER_GONE)
            break;
        else if (rc)
            usleep(1000);
    assert_int_equal(until_lost(there, &why), HILL_E_PEER_GONE);
    drive_link_forget(there, "it is silent");
    setenv("HILL_TEST_DRIVE_MS", "10000", 1);
    drive_link_close(connected());
    zmq_close(peer);
    zmq_ctx_term(context);
}

static void test_addresses_and_keys_are_checked(void **state)
{
    (void)state;
    static const char *const wrong[] = {"tcp://",      "tcp://h",       "tcp://:1",
                                        "tcp://h:0",   "tcp://h:65536", "tcp://h:1x",
                                        "tcp://a b:1", "udp://h:1",     "tcp://h;x:1"};
    static const char *const right[] = {"tcp://h:1", "tcp://*:65535", "tcp://10.0.0.1:7733",
                                        "tcp://[::1]:7733"};
    struct hill_why why = {""};
    struct drive_keys keys;
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(drive_address_check(wrong[i], &why), HILL_E_INVALID);
    for (unsigned i = 0; i < sizeof right / sizeof *right; i++)
        assert_int_equal(drive_address_check(right[i], &why), 0);
    assert_int_equal(drive_keys_write(in_folder("k"), &why), 0);
    assert_int_equal(drive_keys_write(in_folder("k"), &why), HILL_E_BUSY);
    assert_int_equal(drive_keys_read(&keys, in_folder("k"), in_folder("k"), &why), 0);
    assert_int_equal(drive_keys_read(&keys, in_folder("k.pub"), in_folder("k.pub"), &why),
                     HILL_E_INVALID); /* it may be read by others */
    assert_int_equal(drive_keys_read(&keys, in_folder("k"), in_folder("k.pub"), &why), 0);
    chmod(in_folder("k.pub"), 0664);
    assert_int_equal(drive_keys_read(&keys, in_folder("k"), in_folder("k.pub"), &why),
                     HILL_E_INVALID); /* whoever may write it lets in whom he likes */
    assert_non_null(strstr(why.text, "may be written by others"));
    chmod(in_folder("k.pub"), 0600);
    if (chown(in_folder("k"), 4321, (gid_t)-1) == 0) { /* root runs this */
        assert_int_equal(drive_keys_read(&keys, in_folder("k"), in_folder("k.pub"), &why),
                         HILL_E_INVALID);
        assert_non_null(strstr(why.text, "another user"));
        assert_int_equal(chown(in_folder("k"), geteuid(), (gid_t)-1), 0);
    }
    assert_int_equal(drive_keys_read(&keys, in_folder("k.pub"), in_folder("k.pub"), &why),
                     HILL_E_INVALID); /* and is no pair */
    assert_int_equal(truncate(in_folder("k.pub"), 20), 0);
    assert_int_equal(drive_keys_read(&keys, in_folder("k"), in_folder("k.pub"), &why),
                     HILL_E_INVALID);
    assert_int_equal(drive_keys_read(&keys, in_folder("k"), in_folder("none"), &why), HILL_E_IO);
    unlink(in_folder("k"));
    unlink(in_folder("k.pub"));
}

/* Each drive has a pair of its own: which key is meant follows from the address. */
static void test_a_key_may_be_that_of_one_address(void **state)
{
    (void)state;
    static const char *const a = "tcp://h:1", *const b = "tcp://[::1]:2";
    struct hill_why why = {""};
    struct drive_keys one, other, keys;
    make_keys(&one, &other);
    assert_int_equal(drive_keys_write(in_folder("k"), &why), 0);
    FILE *file = fopen(in_folder("peers"), "we");
    assert_non_null(file);
    fprintf(file, "%s %s\n%s %s\n", a, one.public_key, b, other.public_key);
    fclose(file);
    assert_int_equal(drive_keys_read(&keys, in_folder("k"), in_folder("peers"), &why), 0);
    assert_int_equal(keys.n_peers, 2); /* who listens lets in both */
    assert_int_equal(drive_keys_choose(&keys, b, &why), 0);
    assert_int_equal(keys.n_peers, 1);
    assert_string_equal(keys.peers[0], other.public_key);
    assert_int_equal(drive_keys_read(&keys, in_folder("k"), in_folder("peers"), &why), 0);
    assert_int_equal(drive_keys_choose(&keys, "tcp://h:3", &why), HILL_E_INVALID);
    file = fopen(in_folder("peers"), "ae");
    assert_non_null(file);
    fprintf(file, "%s\n", host.public_key); /* that of all others */
    fclose(file);
    assert_int_equal(drive_keys_read(&keys, in_folder("k"), in_folder("peers"), &why), 0);
    assert_int_equal(drive_keys_choose(&keys, "tcp://h:3", &why), 0);
    assert_string_equal(keys.peers[0], host.public_key);
    file = fopen(in_folder("peers"), "ae");
    assert_non_null(file);
    fprintf(file, "%s\n%s %s\n", drive.public_key, a, other.public_key);
    fclose(file);
    assert_int_equal(drive_keys_read(&keys, in_folder("k"), in_folder("peers"), &why), 0);
    struct drive_keys copy = keys;
    assert_int_equal(drive_keys_choose(&copy, "tcp://h:3", &why), HILL_E_INVALID); /* two bare */
    assert_int_equal(drive_keys_choose(&copy, a, &why), HILL_E_INVALID); /* two for one address */
    assert_int_equal(drive_keys_choose(&copy, b, &why), 0);
    assert_string_equal(copy.peers[0], other.public_key);
    file = fopen(in_folder("peers"), "we");
    assert_non_null(file);
    fprintf(file, "file:x %s\n", one.public_key);
    fclose(file);
    assert_int_equal(drive_keys_read(&keys, in_folder("k"), in_folder("peers"), &why),
                     HILL_E_INVALID);
    unlink(in_folder("k"));
    unlink(in_folder("k.pub"));
    unlink(in_folder("peers"));
}

static bool has_ipv6(void)
{
    const struct sockaddr_in6 loopback = {.sin6_family = AF_INET6,
                                          .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool bound = fd >= 0 && bind(fd, (const void *)&loopback, sizeof loopback) == 0;
    if (fd >= 0)
        close(fd);
    return bound;
}

static void test_ipv6(void **state)
{
    (void)state;
    struct hill_why why = {""};
    if (!has_ipv6())
        skip();
    const char *port = strrchr(url, ':') + 1;
    char all[sizeof url], here[sizeof url], old[sizeof url];
    snprintf(old, sizeof old, "%s", url);
    snprintf(all, sizeof all, "tcp://[::]:%.5s", port);
    snprintf(here, sizeof here, "tcp://[::1]:%.5s", port);
    const char *const pairs[][2] = {{here, here}, {all, here}, {all, old}};
    for (unsigned i = 0; i < 3; i++) {
        drive_link_close(there);
        there = NULL;
        assert_int_equal(drive_link_listen(&there, pairs[i][0], &drive, &why), 0);
        snprintf(url, sizeof url, "%s", pairs[i][1]);
        drive_link_close(connected());
    }
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_messages_come_whole_and_in_order),
        T(test_the_end_of_one_is_told_to_the_other),
        T(test_one_at_a_time),
        T(test_strangers_are_not_let_in),
        T(test_old_versions_and_garbage_are_refused_by_name),
        T(test_silence_is_a_loss),
        T(test_a_lost_drive_does_not_come_up_again),
        T(test_a_full_queue_is_no_silence),
        T(test_room_rings_the_bell),
        T(test_a_full_queue_takes_control_messages),
        T(test_a_dead_peer_does_not_hold_up_the_next),
        T(test_ipv6),
        T(test_a_key_may_be_that_of_one_address),
        cmocka_unit_test(test_addresses_and_keys_are_checked),
    };
    if (!zmq_has("curve") || !mkdtemp(folder)) {
        printf("skipped: libzmq has no CurveZMQ\n");
        return 77;
    }
    int failed = cmocka_run_group_tests_name("drive link", tests, NULL, NULL);
    rmdir(folder);
    return failed;
}

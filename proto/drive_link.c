/*
 * proto/drive_link.c - see drive_link.h.
 *
 * The link's thread has the socket; queues, doorbell and phase are shared under a lock. A listening
 * link answers libzmq's question whose keys are let in (ZAP) in the same thread. Messages go out
 * with the address that they are for, so that a goodbye outlives the peer that it is said to.
 */
#include "proto/drive_link.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <zmq.h>

#include "base/clock.h"
#include "base/log.h"
#include "proto/envelope.h"

#define HIGH_WATER   64   /* messages in libzmq's own queues */
#define BLOCKED_MS   5    /* until a full queue of libzmq is tried again */
#define RETRY_MS     250  /* until a busy drive is asked again */
#define GOODBYE_MS   500  /* for what is queued at the end */
#define HANDSHAKE_MS 5000 /* of CurveZMQ */
/* TCP gives up a peer that takes nothing for so long. More than DRIVE_SILENT_MS: one that lives may
 * hold the other end back as long as the scorer may take no record (30 s). */
#define TAKES_MS    60000
#define KEEPALIVE_S 10 /* an idle connection of a dead host goes too */
#define BUSY        1u /* frame.a of a REFUSED that may pass */

enum phase { PHASE_WAITS, PHASE_GREETS, PHASE_UP, PHASE_LOST };

struct outgoing {
    struct outgoing *next;
    struct proto_address to; /* length 0: a connecting link has one peer */
    struct drive_frame frame;
    uint32_t bytes;
    uint8_t payload[];
};

struct drive_link {
    bool listens;
    char url[DRIVE_ADDRESS_BYTES];
    struct drive_keys keys;
    void *context, *socket, *zap; /* the thread's; zap: NULL where it connects */
    pthread_t thread;
    bool thread_started;
    int wake_fd;
    pthread_mutex_t lock; /* guards all below but the thread's own */
    struct shm_doorbell own_bell, *bell;
    enum phase phase;
    int lost;
    struct hill_why why;
    struct proto_address peer;
    struct drive_message *in, **in_last;
    struct outgoing *out, **out_last;
    uint64_t in_bytes, out_bytes;
    bool closing;
    /* the thread's own */
    int64_t heard_ns, said_ns, greeted_ns, retry_ns;
    int64_t hello_ms, silent_ms;
    bool blocked;
};

/* ---- queues (locked) --------------------------------------------------------------------- */

static int queue_out(struct drive_link *l, const struct proto_address *to,
                     const struct drive_frame *frame, const void *payload, uint32_t bytes)
{
    struct outgoing *o = malloc(sizeof *o + bytes);
    if (!o)
        return HILL_E_NOMEM;
    *o = (struct outgoing){.to = *to, .frame = *frame, .bytes = bytes};
    o->frame.magic = DRIVE_MAGIC;
    o->frame.version = DRIVE_VERSION;
    if (bytes)
        memcpy(o->payload, payload, bytes);
    *l->out_last = o;
    l->out_last = &o->next;
    l->out_bytes += sizeof *o + bytes;
    return 0;
}

static void drop_out(struct drive_link *l, struct outgoing **at)
{
    struct outgoing *o = *at;
    *at = o->next;
    if (!*at)
        l->out_last = at;
    l->out_bytes -= sizeof *o + o->bytes;
    free(o);
}

/* What is no use to a peer that is forgotten: all but what tells it why. */
static void clear_out(struct drive_link *l)
{
    struct outgoing **at = &l->out;
    while (*at)
        if ((*at)->frame.kind == DRIVE_RECORD || (*at)->frame.kind == DRIVE_DATA)
            drop_out(l, at);
        else
            at = &(*at)->next;
}

static struct drive_message *take_in(struct drive_link *l)
{
    struct drive_message *m = l->in;
    if (!m)
        return NULL;
    l->in = m->next;
    if (!l->in)
        l->in_last = &l->in;
    l->in_bytes -= sizeof *m + m->bytes;
    return m;
}

static void clear_in(struct drive_link *l)
{
    struct drive_message *m;
    while ((m = take_in(l)))
        free(m);
}

static void lose(struct drive_link *l, int code, const char *text)
{
    if (l->phase == PHASE_LOST || l->phase == PHASE_WAITS)
        return;
    l->phase = PHASE_LOST;
    l->lost = code;
    snprintf(l->why.text, sizeof l->why.text, "%.400s", text);
    shm_doorbell_ring(l->bell);
}

static void say(struct drive_link *l, enum drive_kind kind, const struct proto_address *to)
{
    const struct drive_frame frame = {.kind = (uint16_t)kind};
    struct drive_hello hello;
    drive_hello_fill(&hello);
    bool is_hello = kind == DRIVE_HELLO;
    queue_out(l, to, &frame, &hello, is_hello ? sizeof hello : 0); /* no memory: it is silence */
}

static void refuse(struct drive_link *l, const struct proto_address *to, uint32_t how,
                   const char *text)
{
    const struct drive_frame frame = {.kind = DRIVE_REFUSED, .a = how};
    if (l->out_bytes < DRIVE_QUEUE_BYTES) /* one that takes nothing is not told without end */
        queue_out(l, to, &frame, text, (uint32_t)strlen(text));
}

/* ---- what comes (locked) ----------------------------------------------------------------- */

static void take_hello(struct drive_link *l, const struct proto_address *from, const void *payload)
{
    struct drive_hello hello;
    struct hill_why why = {""};
    if (!l->listens && l->phase != PHASE_GREETS)
        return; /* of a drive that is lost, or has answered: it does not come up again */
    memcpy(&hello, payload, sizeof hello);
    int rc = drive_hello_check(&hello, &why);
    if (l->listens && l->phase != PHASE_WAITS) {
        refuse(l, from, BUSY, "another agent uses this drive");
    } else if (l->listens && rc) {
        log_warn("an agent was refused: %s", why.text);
        refuse(l, from, 0, why.text);
    } else if (rc) {
        lose(l, rc, why.text);
    } else {
        if (l->listens) {
            l->peer = *from;
            say(l, DRIVE_HELLO, from);
        }
        l->phase = PHASE_UP;
        l->heard_ns = l->said_ns = clock_now_ns();
        shm_doorbell_ring(l->bell);
    }
}

static void take_refusal(struct drive_link *l, const struct drive_frame *frame, const char *text,
                         uint32_t bytes)
{
    char line[400];
    if (l->phase == PHASE_GREETS && frame->a == BUSY) {
        l->retry_ns = clock_deadline_ms(RETRY_MS);
        return;
    }
    snprintf(line, sizeof line, "the drive has refused: %.*s", bytes < 300 ? (int)bytes : 300,
             text);
    for (char *c = line; *c; c++)
        *c = (unsigned char)*c < ' ' ? ' ' : *c;
    lose(l, HILL_E_PEER_GONE, line);
}

static void put_in(struct drive_link *l, const struct drive_frame *frame, const void *payload,
                   uint32_t bytes)
{
    struct drive_message *m =
        aligned_alloc(16, (sizeof *m + bytes + 15) / 16 * 16); /* free() takes it */
    if (!m) {
        lose(l, HILL_E_NOMEM, "no memory for a message");
        return;
    }
    m->next = NULL;
    m->frame = *frame;
    m->bytes = bytes;
    if (bytes)
        memcpy(m->payload, payload, bytes);
    *l->in_last = m;
    l->in_last = &m->next;
    l->in_bytes += sizeof *m + bytes;
    shm_doorbell_ring(l->bell);
}

static void take_frame(struct drive_link *l, const struct proto_address *from,
                       const struct drive_frame *frame, const void *payload, uint32_t bytes)
{
    if (frame->kind == DRIVE_HELLO)
        take_hello(l, from, payload);
    else if (l->listens && (l->phase != PHASE_UP || !proto_same_address(from, &l->peer)))
        return; /* of a peer that is forgotten */
    else if (frame->kind == DRIVE_REFUSED)
        take_refusal(l, frame, payload, bytes);
    else if (frame->kind == DRIVE_BYE)
        lose(l, HILL_E_PEER_GONE, "the other end has ended");
    else if (frame->kind != DRIVE_PING && l->phase == PHASE_UP)
        put_in(l, frame, payload, bytes);
}

/* Parts of one message; more than a link's have none. */
struct parts {
    zmq_msg_t at[3];
    int n;
};

static void take_parts(struct drive_link *l, struct parts *p)
{
    struct proto_address from = {.length = 0};
    struct hill_why why = {""};
    int first = l->listens ? 1 : 0;
    if (l->listens && p->n > 0 && zmq_msg_size(&p->at[0]) <= sizeof from.bytes) {
        from.length = zmq_msg_size(&p->at[0]);
        memcpy(from.bytes, zmq_msg_data(&p->at[0]), from.length);
    }
    bool ours = !l->listens || proto_same_address(&from, &l->peer);
    bool whole = p->n == first + 1 || p->n == first + 2;
    const void *payload = p->n == first + 2 ? zmq_msg_data(&p->at[first + 1]) : NULL;
    size_t bytes = payload ? zmq_msg_size(&p->at[first + 1]) : 0;
    int rc = whole ? drive_frame_check(zmq_msg_data(&p->at[first]), zmq_msg_size(&p->at[first]),
                                       bytes, &why)
                   : hill_fail(&why, HILL_E_PROTOCOL, "a message of %d parts", p->n);
    pthread_mutex_lock(&l->lock);
    if (ours)
        l->heard_ns = clock_now_ns();
    if (rc && l->listens) {
        log_warn("a peer was refused: %s", why.text);
        refuse(l, &from, 0, why.text);
    }
    if (rc && ours)
        lose(l, rc, why.text);
    if (!rc) {
        struct drive_frame frame;
        memcpy(&frame, zmq_msg_data(&p->at[first]), sizeof frame);
        take_frame(l, &from, &frame, payload, (uint32_t)bytes);
    }
    pthread_mutex_unlock(&l->lock);
}

/* One message; false: none is there. */
static bool receive(struct drive_link *l)
{
    struct parts p = {.n = 0};
    zmq_msg_t extra;
    int more = 1, total = 0;
    for (; more; total++) {
        zmq_msg_t *part = p.n < 3 ? &p.at[p.n] : &extra;
        zmq_msg_init(part);
        if (zmq_msg_recv(part, l->socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(part);
            break;
        }
        more = zmq_msg_more(part);
        if (p.n < 3)
            p.n++;
        else
            zmq_msg_close(&extra);
    }
    int held = p.n;
    if (total > 3)
        p.n = 0; /* no message of a link */
    if (total)
        take_parts(l, &p);
    for (int i = 0; i < held; i++)
        zmq_msg_close(&p.at[i]);
    return total > 0;
}

static bool has_room(struct drive_link *l)
{
    pthread_mutex_lock(&l->lock);
    bool room = l->in_bytes < DRIVE_QUEUE_BYTES;
    pthread_mutex_unlock(&l->lock);
    return room;
}

/* ---- what goes --------------------------------------------------------------------------- */

/* 0: sent; else errno. Parts after the first always go. */
static int put_on_socket(const struct drive_link *l, const struct outgoing *o)
{
    int more = o->bytes ? ZMQ_SNDMORE : 0;
    if (l->listens &&
        zmq_send(l->socket, o->to.bytes, o->to.length, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0)
        return errno;
    if (zmq_send(l->socket, &o->frame, sizeof o->frame, ZMQ_DONTWAIT | more) < 0)
        return errno;
    return more && zmq_send(l->socket, o->payload, o->bytes, ZMQ_DONTWAIT) < 0 ? errno : 0;
}

static void send_all(struct drive_link *l)
{
    pthread_mutex_lock(&l->lock);
    bool was_full = l->out_bytes >= DRIVE_QUEUE_BYTES;
    l->blocked = false;
    while (l->out && !l->blocked) {
        struct outgoing *o = l->out; /* this thread alone takes the first one, or forget drops it */
        int reason = put_on_socket(l, o);
        bool ours = !l->listens || proto_same_address(&o->to, &l->peer);
        /* one that is not the peer (any more) and takes nothing must not hold up the one that is */
        l->blocked = reason == EAGAIN && ours;
        if (reason && reason != EAGAIN && ours)
            lose(l, HILL_E_PEER_GONE, "the connection is gone");
        if (!reason && ours)
            l->said_ns = clock_now_ns();
        if (!l->blocked)
            drop_out(l, &l->out);
    }
    if (was_full && l->out_bytes < DRIVE_QUEUE_BYTES)
        shm_doorbell_ring(l->bell); /* there may be more to send */
    pthread_mutex_unlock(&l->lock);
}

/* ---- what time brings -------------------------------------------------------------------- */

static void look_at_clock(struct drive_link *l)
{
    int64_t now = clock_now_ns();
    char text[400];
    pthread_mutex_lock(&l->lock);
    if (l->in_bytes >= DRIVE_QUEUE_BYTES)
        l->heard_ns = now; /* nothing is read now: what it says is not heard */
    if (l->phase == PHASE_GREETS && now > l->greeted_ns + CLOCK_MS(l->hello_ms)) {
        snprintf(text, sizeof text,
                 l->retry_ns ? "%.200s has served another agent for %.1f s"
                             : "no drive has answered at %.200s for %.1f s: nobody listens there, "
                               "or its keys are others",
                 l->url, l->hello_ms / 1e3);
        lose(l, HILL_E_PEER_GONE, text);
    }
    if (l->phase == PHASE_GREETS && l->retry_ns && now >= l->retry_ns) {
        say(l, DRIVE_HELLO, &l->peer);
        l->retry_ns = INT64_MAX;
    }
    if (l->phase == PHASE_UP && now > l->heard_ns + CLOCK_MS(l->silent_ms)) {
        snprintf(text, sizeof text, "the other end has been silent for %.1f s", l->silent_ms / 1e3);
        lose(l, HILL_E_PEER_GONE, text);
    }
    if (l->phase == PHASE_UP && now > l->said_ns + CLOCK_MS(DRIVE_PING_MS) && !l->out)
        say(l, DRIVE_PING, &l->peer);
    pthread_mutex_unlock(&l->lock);
}

/* ---- whose keys are let in (RFC 27) ------------------------------------------------------ */

static bool knows(const struct drive_keys *keys, const uint8_t *key)
{
    char text[DRIVE_KEY_BYTES];
    if (!zmq_z85_encode(text, key, 32))
        return false;
    for (uint32_t i = 0; i < keys->n_peers; i++)
        if (strcmp(keys->peers[i], text) == 0)
            return true;
    return false;
}

static void answer_zap(struct drive_link *l)
{
    char id[256] = "";
    uint8_t key[32] = {0};
    int id_bytes = 0, key_bytes = 0, more = 1;
    for (int part = 0; more; part++) {
        zmq_msg_t m;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, l->zap, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&m);
            return;
        }
        int bytes = (int)zmq_msg_size(&m);
        if (part == 1 && bytes <= (int)sizeof id)
            memcpy(id, zmq_msg_data(&m), (size_t)(id_bytes = bytes));
        if (part == 6 && bytes == sizeof key)
            memcpy(key, zmq_msg_data(&m), (size_t)(key_bytes = bytes));
        more = zmq_msg_more(&m);
        zmq_msg_close(&m);
    }
    bool right = key_bytes == sizeof key && knows(&l->keys, key);
    if (!right)
        log_warn("an agent with another key was refused");
    zmq_send(l->zap, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(l->zap, id, (size_t)id_bytes, ZMQ_SNDMORE);
    zmq_send(l->zap, right ? "200" : "400", 3, ZMQ_SNDMORE);
    zmq_send(l->zap, right ? "OK" : "unknown key", right ? 2 : 11, ZMQ_SNDMORE);
    zmq_send(l->zap, "", 0, ZMQ_SNDMORE);
    zmq_send(l->zap, "", 0, 0);
}

/* ---- the thread -------------------------------------------------------------------------- */

static bool is_closing(struct drive_link *l, bool *idle)
{
    pthread_mutex_lock(&l->lock);
    bool closing = l->closing;
    *idle = !l->out;
    pthread_mutex_unlock(&l->lock);
    return closing;
}

static void *link_main(void *argument)
{
    struct drive_link *l = argument;
    int64_t give_up = 0;
    pthread_setname_np(pthread_self(), "drive link");
    for (;;) {
        bool idle, room = has_room(l);
        send_all(l);
        if (is_closing(l, &idle)) {
            give_up = give_up ? give_up : clock_deadline_ms(GOODBYE_MS);
            if (idle || clock_now_ns() >= give_up)
                return NULL;
        }
        zmq_pollitem_t items[] = {{NULL, l->wake_fd, ZMQ_POLLIN, 0},
                                  {l->socket, 0, room ? ZMQ_POLLIN : 0, 0},
                                  {l->zap, 0, ZMQ_POLLIN, 0}};
        zmq_poll(items, l->zap ? 3 : 2, l->blocked || !room ? BLOCKED_MS : DRIVE_PING_MS / 5);
        uint64_t ignored;
        if ((items[0].revents & ZMQ_POLLIN) && read(l->wake_fd, &ignored, sizeof ignored) < 0 &&
            errno != EAGAIN)
            log_warn("reading a link's eventfd failed: %s", strerror(errno));
        if (l->zap && (items[2].revents & ZMQ_POLLIN))
            answer_zap(l);
        for (int i = 0; i < HIGH_WATER && has_room(l) && receive(l); i++)
            ;
        look_at_clock(l);
    }
}

static void wake(struct drive_link *l)
{
    uint64_t one = 1;
    ssize_t ignored = write(l->wake_fd, &one, sizeof one); /* EAGAIN: it is awake anyway */
    (void)ignored;
}

/* HILL_TEST_DRIVE_MS: tests do not want to wait for seconds. */
static int64_t patience_ms(int64_t most)
{
    const char *text = getenv("HILL_TEST_DRIVE_MS");
    long value = text ? strtol(text, NULL, 10) : 0;
    return value > 0 && value < most ? value : most;
}

/* ---- life -------------------------------------------------------------------------------- */

static void set_int(void *socket, int option, int value)
{
    zmq_setsockopt(socket, option, &value, sizeof value);
}

static void set_options(struct drive_link *l)
{
    void *s = l->socket;
    int64_t most = DRIVE_PAYLOAD_MAX;
    /* of an address of IPv6 alone: names and * stay what they were where IPv6 leads nowhere */
    set_int(s, ZMQ_IPV6, strchr(l->url, '[') != NULL);
    set_int(s, ZMQ_LINGER, 0);
    set_int(s, ZMQ_SNDHWM, HIGH_WATER);
    set_int(s, ZMQ_RCVHWM, HIGH_WATER);
    set_int(s, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS);
    set_int(s, ZMQ_RECONNECT_IVL, 100);
    set_int(s, ZMQ_TCP_MAXRT, TAKES_MS);
    set_int(s, ZMQ_TCP_KEEPALIVE, 1);
    set_int(s, ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_S);
    set_int(s, ZMQ_TCP_KEEPALIVE_INTVL, KEEPALIVE_S);
    set_int(s, l->listens ? ZMQ_ROUTER_MANDATORY : ZMQ_IMMEDIATE, 1);
    zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &most, sizeof most);
    set_int(s, ZMQ_CURVE_SERVER, l->listens);
    zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, l->keys.secret_key, DRIVE_KEY_BYTES);
    zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, l->keys.public_key, DRIVE_KEY_BYTES);
    if (l->listens)
        zmq_setsockopt(s, ZMQ_ZAP_DOMAIN, "drive", 5);
    else
        zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, l->keys.peers[0], DRIVE_KEY_BYTES);
}

static int open_sockets(struct drive_link *l, struct hill_why *why)
{
    l->context = zmq_ctx_new();
    l->socket = l->context ? zmq_socket(l->context, l->listens ? ZMQ_ROUTER : ZMQ_DEALER) : NULL;
    if (l->listens && l->socket)
        l->zap = zmq_socket(l->context, ZMQ_REP);
    if (!l->socket || (l->listens && (!l->zap || zmq_bind(l->zap, "inproc://zeromq.zap.01"))))
        return hill_fail(why, HILL_E_NOMEM, "no socket for %.200s: %s", l->url,
                         zmq_strerror(errno));
    set_options(l);
    if (l->listens ? zmq_bind(l->socket, l->url) : zmq_connect(l->socket, l->url))
        return hill_fail(why, HILL_E_IO, "%s %.200s failed: %s",
                         l->listens ? "listening at" : "connecting to", l->url,
                         zmq_strerror(errno));
    return 0;
}

static int open_link(struct drive_link **out, bool listens, const char *url,
                     const struct drive_keys *keys, struct hill_why *why)
{
    struct drive_link *l = calloc(1, sizeof *l);
    *out = NULL;
    if (!l)
        return hill_fail(why, HILL_E_NOMEM, "no memory for a link");
    l->listens = listens;
    l->keys = *keys;
    l->in_last = &l->in;
    l->out_last = &l->out;
    l->bell = &l->own_bell;
    shm_doorbell_init(&l->own_bell);
    pthread_mutex_init(&l->lock, NULL);
    snprintf(l->url, sizeof l->url, "%s", url);
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->hello_ms = patience_ms(DRIVE_HELLO_MS);
    l->silent_ms = patience_ms(DRIVE_SILENT_MS);
    l->greeted_ns = l->heard_ns = l->said_ns = clock_now_ns();
    l->phase = listens ? PHASE_WAITS : PHASE_GREETS;
    int rc = drive_address_check(url, why);
    if (!rc)
        rc = open_sockets(l, why);
    if (!rc && !listens)
        say(l, DRIVE_HELLO, &l->peer);
    if (!rc && (l->wake_fd < 0 || pthread_create(&l->thread, NULL, link_main, l)))
        rc = hill_fail(why, HILL_E_NOMEM, "no thread for a link");
    l->thread_started = !rc;
    if (rc)
        drive_link_close(l);
    else
        *out = l;
    return rc;
}

int drive_link_connect(struct drive_link **out, const char *url, const struct drive_keys *keys,
                       struct hill_why *why)
{
    return open_link(out, false, url, keys, why);
}

int drive_link_listen(struct drive_link **out, const char *url, const struct drive_keys *keys,
                      struct hill_why *why)
{
    return open_link(out, true, url, keys, why);
}

void drive_link_close(struct drive_link *l)
{
    if (!l)
        return;
    if (l->thread_started) {
        pthread_mutex_lock(&l->lock);
        if (l->phase == PHASE_UP)
            say(l, DRIVE_BYE, &l->peer);
        l->closing = true;
        pthread_mutex_unlock(&l->lock);
        wake(l);
        pthread_join(l->thread, NULL);
    }
    if (l->socket) {
        set_int(l->socket, ZMQ_LINGER, GOODBYE_MS);
        zmq_close(l->socket);
    }
    if (l->zap)
        zmq_close(l->zap);
    if (l->context)
        zmq_ctx_term(l->context);
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    clear_in(l);
    while (l->out)
        drop_out(l, &l->out);
    pthread_mutex_destroy(&l->lock);
    explicit_bzero(&l->keys, sizeof l->keys);
    free(l);
}

/* ---- the caller's thread ----------------------------------------------------------------- */

void drive_link_set_doorbell(struct drive_link *l, struct shm_doorbell *bell)
{
    pthread_mutex_lock(&l->lock);
    l->bell = bell ? bell : &l->own_bell;
    shm_doorbell_ring(l->bell); /* nothing is missed */
    pthread_mutex_unlock(&l->lock);
}

struct shm_doorbell *drive_link_doorbell(struct drive_link *l)
{
    return l->bell; /* only this thread changes it */
}

/* Queue it while less than `most` bytes are queued. */
static int send_below(struct drive_link *l, uint64_t most, const struct drive_frame *frame,
                      const void *payload, uint32_t bytes)
{
    pthread_mutex_lock(&l->lock);
    int rc = l->phase != PHASE_UP   ? HILL_E_PEER_GONE
             : l->out_bytes >= most ? HILL_E_WOULD_BLOCK
                                    : queue_out(l, &l->peer, frame, payload, bytes);
    pthread_mutex_unlock(&l->lock);
    if (!rc)
        wake(l);
    return rc;
}

int drive_link_send(struct drive_link *l, const struct drive_frame *frame, const void *payload,
                    uint32_t bytes)
{
    return send_below(l, DRIVE_QUEUE_BYTES, frame, payload, bytes);
}

int drive_link_tell(struct drive_link *l, const Hill__Message *message)
{
    const struct drive_frame frame = {.kind = DRIVE_CONTROL};
    uint32_t bytes = 0;
    uint8_t *packed = drive_control_pack(message, &bytes);
    int rc = packed ? send_below(l, 2 * DRIVE_QUEUE_BYTES, &frame, packed, bytes) : HILL_E_NOMEM;
    free(packed);
    if (rc && rc != HILL_E_PEER_GONE) {
        pthread_mutex_lock(&l->lock);
        lose(l, HILL_E_PEER_GONE, "a control message cannot be queued: no memory, or no room");
        pthread_mutex_unlock(&l->lock);
    }
    return rc;
}

struct drive_message *drive_link_poll(struct drive_link *l)
{
    pthread_mutex_lock(&l->lock);
    bool was_full = l->in_bytes >= DRIVE_QUEUE_BYTES;
    struct drive_message *m = take_in(l);
    pthread_mutex_unlock(&l->lock);
    if (was_full)
        wake(l);
    return m;
}

bool drive_link_is_up(struct drive_link *l)
{
    pthread_mutex_lock(&l->lock);
    bool up = l->phase == PHASE_UP;
    pthread_mutex_unlock(&l->lock);
    return up;
}

int drive_link_lost(struct drive_link *l, struct hill_why *why)
{
    pthread_mutex_lock(&l->lock);
    int lost = l->phase == PHASE_LOST ? l->lost : 0;
    if (lost && why)
        *why = l->why;
    pthread_mutex_unlock(&l->lock);
    return lost;
}

void drive_link_forget(struct drive_link *l, const char *why)
{
    pthread_mutex_lock(&l->lock);
    clear_in(l);
    clear_out(l);
    if (l->peer.length && why)
        refuse(l, &l->peer, 0, why);
    else if (l->peer.length)
        say(l, DRIVE_BYE, &l->peer);
    l->peer.length = 0;
    l->phase = PHASE_WAITS;
    l->lost = 0;
    pthread_mutex_unlock(&l->lock);
    wake(l);
}

/* proto/worker_link.c - see worker_link.h. */
#include "proto/worker_link.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zmq.h>

#include "base/clock.h"
#include "base/log.h"
#include "proto/options_hill.h"
#include "base/process.h"
#include "proto/worker_confine.h"
#include "proto/worker_trace.h"

#define HEARTBEAT_MS    250 /* a fraction of the least --hang-ms */
#define CLOSE_LINGER_MS 1000
#define ORPHAN_MS       2000  /* nobody else would end a process that hangs */
#define HELLO_MS        30000 /* the coordinator answers within milliseconds, or it is not there */

/* A packed message on its way out, or a parsed one on its way in. */
struct item {
    struct item *next;
    Hill__Message *message;
};

struct queue {
    struct item *first, **last;
};

struct worker_link {
    const char *name;
    Hill__Role role;
    char run_dir[HILL_RUN_DIR_MAX + 1];
    void *context, *control, *heartbeat;
    pthread_t thread;
    bool thread_started;
    int wake_fd;          /* eventfd: something is queued to go out, or stop */
    int signal_fd;        /* SIGTERM */
    pthread_mutex_t lock; /* guards the queues and bell */
    struct queue in, out;
    Hill__Message *
        live; /* a heartbeat with the statistics that heartbeats carry; NULL: none; guarded by lock */
    struct shm_doorbell own_bell, *bell;
    _Atomic bool stopping, closing;
    _Atomic uint32_t looks; /* of the data loop at its mailbox or its end, and Ready */
    _Atomic bool loaded;    /* a turn ends with Ready */
    _Atomic uint64_t work;
    _Atomic uint32_t epoch;
    pid_t parent;
    /* of the control thread */
    int64_t orphan_ns; /* when the parent's death was noticed; 0: not yet */
    struct {
        uint32_t looks;
        int64_t since_ns,
            longest_ns; /* it stands still since; the longest that it did and went on, but to load */
    } loop;
    /* alone */
    void (*sent)(void *context, const Hill__Message *message); /* NULL: there is a coordinator */
    void *sent_context;
};

static void queue_init(struct queue *q)
{
    q->first = NULL;
    q->last = &q->first;
}

static void queue_put(struct queue *q, struct item *item)
{
    item->next = NULL;
    *q->last = item;
    q->last = &item->next;
}

static struct item *queue_take(struct queue *q)
{
    struct item *item = q->first;
    if (item) {
        q->first = item->next;
        if (!q->first)
            q->last = &q->first;
    }
    return item;
}

static void queue_clear(struct queue *q)
{
    struct item *item;
    while ((item = queue_take(q))) {
        proto_free(item->message);
        free(item);
    }
}

static void ring_bell(struct worker_link *link)
{
    pthread_mutex_lock(&link->lock);
    shm_doorbell_ring(link->bell);
    pthread_mutex_unlock(&link->lock);
}

static void stop(struct worker_link *link, const char *reason)
{
    /* single writer per value; the loop only needs to see it eventually, the bell orders it */
    if (!atomic_exchange_explicit(&link->stopping, true, memory_order_acq_rel))
        log_debug("stopping: %s", reason);
    ring_bell(link);
}

static void take_incoming(struct worker_link *link)
{
    for (;;) {
        Hill__Message *message;
        struct hill_why why;
        int code = proto_receive(link->control, NULL, &message, &why);
        if (code == HILL_E_WOULD_BLOCK)
            return;
        if (code == HILL_E_PROTOCOL) {
            log_warn("control %s", why.text);
            continue;
        }
        if (code != 0) {
            stop(link, "control socket failed");
            return;
        }
        if (message->body_case == HILL__MESSAGE__BODY_SHUTDOWN) {
            proto_free(message);
            stop(link, "coordinator asked for it");
            continue;
        }
        if (worker_trace_take(link, worker_link_send, link->role, message))
            continue;
        if (worker_link_give(link, message)) {
            stop(link, "out of memory");
            return;
        }
    }
}

static void send_outgoing(struct worker_link *link)
{
    for (;;) {
        pthread_mutex_lock(&link->lock);
        struct item *item = link->out.first;
        pthread_mutex_unlock(&link->lock);
        if (!item)
            return;
        int code = proto_send(link->control, NULL, item->message);
        if (code == HILL_E_WOULD_BLOCK)
            return; /* the coordinator is busy; tried again at the next turn */
        if (code != 0)
            log_warn("sending a control message failed: %s", hill_strerror(code));
        pthread_mutex_lock(&link->lock);
        queue_take(&link->out);
        pthread_mutex_unlock(&link->lock);
        proto_free(item->message);
        free(item);
    }
}

static bool has_outgoing(struct worker_link *link)
{
    pthread_mutex_lock(&link->lock);
    bool any = link->out.first != NULL;
    pthread_mutex_unlock(&link->lock);
    return any;
}

/* The data loop goes round, or sleeps on its doorbell, which nobody has rung since? */
static void watch_loop(struct worker_link *link, int64_t now_ns)
{
    pthread_mutex_lock(&link->lock);
    bool asleep = shm_doorbell_asleep(link->bell);
    pthread_mutex_unlock(&link->lock);
    /* relaxed: looked at again in a moment */
    uint32_t looks = atomic_load_explicit(&link->looks, memory_order_relaxed);
    if (looks == link->loop.looks && !asleep)
        return;
    int64_t stood = now_ns - link->loop.since_ns;
    /* relaxed: it comes before the look of its Ready, which is looked for again in a moment */
    bool loaded = atomic_exchange_explicit(&link->loaded, false, memory_order_relaxed);
    if (!loaded && stood > link->loop.longest_ns)
        link->loop.longest_ns = stood;
    link->loop.looks = looks;
    link->loop.since_ns = now_ns;
}

static void note_look(struct worker_link *link)
{
    /* relaxed: a sign of life, and one that is lost to another thread's is followed by more */
    uint32_t looks = atomic_load_explicit(&link->looks, memory_order_relaxed);
    atomic_store_explicit(&link->looks, looks + 1, memory_order_relaxed);
}

static void send_heartbeat(struct worker_link *link, int64_t now_ns)
{
    Hill__Heartbeat beat = HILL__HEARTBEAT__INIT;
    beat.role = link->role;
    beat.pid = getpid();
    /* relaxed: statistics */
    beat.epoch = atomic_load_explicit(&link->epoch, memory_order_relaxed);
    beat.work_done = atomic_load_explicit(&link->work, memory_order_relaxed);
    Hill__Message message = PROTO_MESSAGE(HEARTBEAT, heartbeat, &beat);
    watch_loop(link, now_ns);
    beat.stuck_ms = (uint32_t)((now_ns - link->loop.since_ns) / 1000000);
    beat.longest_ms = (uint32_t)(link->loop.longest_ns / 1000000);
    process_usage(&beat.cpu_ms, &beat.rss_bytes);
    pthread_mutex_lock(&link->lock); /* sending never blocks */
    if (link->live) {
        beat.live = link->live->heartbeat->live;
        beat.live_others = link->live->heartbeat->live_others;
        beat.n_live_others = link->live->heartbeat->n_live_others;
    }
    proto_send(link->heartbeat, NULL, &message); /* a lost heartbeat is what heartbeats are for */
    pthread_mutex_unlock(&link->lock);
}

static void check_signals(struct worker_link *link)
{
    struct signalfd_siginfo info;
    while (read(link->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo == SIGTERM)
            stop(link, "SIGTERM");
    if (getppid() == link->parent)
        return;
    stop(link, "the coordinator is gone");
    if (!link->orphan_ns)
        link->orphan_ns = clock_now_ns();
    if (clock_now_ns() - link->orphan_ns > CLOCK_MS(ORPHAN_MS)) {
        log_warn("the coordinator is gone and the data loop does not end: killing this process");
        raise(SIGKILL);
    }
}

static void *control_main(void *argument)
{
    struct worker_link *link = argument;
    pthread_setname_np(pthread_self(), "control");
    int64_t next_beat = clock_now_ns();
    link->loop.since_ns = next_beat;
    int64_t give_up = 0; /* set once closing: when to leave with unsent messages */
    for (;;) {
        int64_t now = clock_now_ns();
        if (now >= next_beat) {
            send_heartbeat(link, now);
            worker_trace_tick(now);
            next_beat = now + CLOCK_MS(HEARTBEAT_MS);
        }
        send_outgoing(link);
        /* acquire: pairs with the release in worker_link_close */
        if (atomic_load_explicit(&link->closing, memory_order_acquire)) {
            if (!give_up)
                give_up = now + CLOCK_MS(CLOSE_LINGER_MS);
            if (!has_outgoing(link) || now >= give_up)
                return NULL;
        }
        zmq_pollitem_t items[] = {
            {link->control, 0, ZMQ_POLLIN, 0},
            {NULL, link->wake_fd, ZMQ_POLLIN, 0},
            {NULL, link->signal_fd, ZMQ_POLLIN, 0},
        };
        int64_t wait_ms = (next_beat - now) / 1000000 + 1;
        if (wait_ms > 10 && has_outgoing(link))
            wait_ms = 10;
        zmq_poll(items, 3, wait_ms);
        if (items[1].revents & ZMQ_POLLIN) {
            uint64_t ignored;
            if (read(link->wake_fd, &ignored, sizeof ignored) < 0 && errno != EAGAIN)
                log_warn("reading the control thread's eventfd failed: %s", strerror(errno));
        }
        take_incoming(link);
        check_signals(link);
    }
}

static void *open_socket(struct worker_link *link, const char *file)
{
    char address[128];
    snprintf(address, sizeof address, "ipc://%s/%s", link->run_dir, file);
    void *socket = zmq_socket(link->context, ZMQ_DEALER);
    if (!socket)
        return NULL;
    int linger = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    if (zmq_connect(socket, address) != 0) {
        log_error("connecting to %s failed: %s", address, zmq_strerror(errno));
        zmq_close(socket);
        return NULL;
    }
    return socket;
}

/* 0 go on, 1 answered, negative wrong use. */
static int read_options(struct worker_link *link, int argc, char **argv, const char *summary)
{
    const struct option_table tables[] = {HILL_COMMON_TABLE};
    char run_dir[HILL_PATH_BYTES];
    struct options *options;
    struct hill_why why;
    const struct option_program program = {
        .name = link->name,
        .usage = "[--run-dir DIR] [--log-level LEVEL]",
        .summary = summary,
        .example = "hillinfer up -m model.gguf",
        .notes =
            "Started by hill-coordinator, which sends its configuration; `hillinfer up` "
            "starts them all.\nhill-replay runs a worker alone, from a recording of the rings.",
        .exit_codes = "  0    ended in order\n"
                      "  1    what it was given cannot be used (a damaged model, a foreign pool)\n"
                      "  100  wrong use or configuration\n"
                      "  111  the environment failed: worth a retry\n",
        .tables = tables,
        .n_tables = 1,
        .arguments_only = true,
    };
    hill_log_init(link->name, HILL_LOG_INFO);
    int rc = options_start(&options, &program, argc, argv);
    if (rc)
        return rc;
    hill_log_init(link->name, hill_log_option(options));
    rc = hill_run_dir(run_dir, options, &why);
    if (rc)
        options_misuse(&program, &why);
    else
        snprintf(link->run_dir, sizeof link->run_dir, "%.*s", HILL_RUN_DIR_MAX, run_dir);
    options_free(options);
    return rc;
}

static int set_signals(struct worker_link *link)
{
    link->parent = getppid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != link->parent)
        return HILL_E_PEER_GONE; /* died between the two calls */
    signal(SIGINT, SIG_IGN);     /* Ctrl-C reaches the whole group; the coordinator decides */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of write, with its line */
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* inherited by every later thread */
    link->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    link->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return link->signal_fd < 0 || link->wake_fd < 0 ? hill_from_errno(errno) : 0;
}

static int connect_and_start(struct worker_link *link)
{
    link->context = zmq_ctx_new();
    if (!link->context)
        return HILL_E_NOMEM;
    link->control = open_socket(link, "worker.sock");
    link->heartbeat = open_socket(link, "heartbeat.sock");
    if (!link->control || !link->heartbeat)
        return HILL_E_IO;
    Hill__Hello hello = HILL__HELLO__INIT;
    hello.role = link->role;
    hello.pid = getpid();
    hello.version = (char *)HILL_VERSION;
    hello.records_version = PROTO_RECORDS_VERSION;
    int code = worker_link_send(link, &PROTO_MESSAGE(HELLO, hello, &hello));
    if (code != 0)
        return code;
    if (pthread_create(&link->thread, NULL, control_main, link) != 0)
        return HILL_E_NOMEM;
    link->thread_started = true;
    return 0;
}

/* Sockets connect to what is not there yet and wait: without the folder that would be for ever. */
static int check_run_dir(const struct worker_link *link)
{
    struct stat status;
    int reason = stat(link->run_dir, &status) != 0 ? errno : S_ISDIR(status.st_mode) ? 0 : ENOTDIR;
    if (reason == 0)
        return 0;
    log_error("joining the pipeline in %s failed: %s", link->run_dir, strerror(reason));
    return HILL_E_IO;
}

/* HILL_TEST_HELLO_MS: tests do not want to wait half a minute. */
static int64_t hello_ms(void)
{
    const char *text = getenv("HILL_TEST_HELLO_MS");
    long value = text ? strtol(text, NULL, 10) : 0;
    return value > 0 && value < HELLO_MS ? value : HELLO_MS;
}

static Hill__Message *first_incoming(struct worker_link *link)
{
    pthread_mutex_lock(&link->lock);
    Hill__Message *message = link->in.first ? link->in.first->message : NULL;
    pthread_mutex_unlock(&link->lock);
    return message;
}

/* Until the coordinator answers Hello (the message stays in the mailbox) or the process is to stop.
 * The one that started this process answers at once; one that did not start it refuses. */
static int await_answer(struct worker_link *link)
{
    int64_t deadline = clock_deadline_ms(hello_ms());
    for (;;) {
        uint32_t seen = shm_doorbell_read(link->bell);
        const Hill__Message *message = first_incoming(link);
        if (message && message->body_case == HILL__MESSAGE__BODY_REPLY) {
            log_error("the coordinator in %s refused this process: %s", link->run_dir,
                      message->reply->text);
            return HILL_E_PEER_GONE;
        }
        if (message || worker_link_stopping(link))
            return 0;
        if (shm_doorbell_wait(link->bell, seen, deadline, 0) == HILL_E_TIMEOUT) {
            log_error("no coordinator has answered in %s for %lld s", link->run_dir,
                      (long long)(hello_ms() + 999) / 1000);
            return HILL_E_PEER_GONE;
        }
    }
}

static struct worker_link *make_link(Hill__Role role, const char *name)
{
    struct worker_link *link = calloc(1, sizeof *link);
    if (!link)
        return NULL;
    link->name = name;
    link->role = role;
    link->wake_fd = link->signal_fd = -1;
    queue_init(&link->in);
    queue_init(&link->out);
    pthread_mutex_init(&link->lock, NULL);
    shm_doorbell_init(&link->own_bell);
    link->bell = &link->own_bell;
    return link;
}

int worker_link_open_alone(struct worker_link **out, Hill__Role role, const char *name,
                           void (*sent)(void *context, const Hill__Message *message), void *context)
{
    *out = make_link(role, name);
    if (!*out)
        return HILL_E_NOMEM;
    (*out)->sent = sent;
    (*out)->sent_context = context;
    return 0;
}

int worker_link_give(struct worker_link *link, Hill__Message *message)
{
    struct item *item = malloc(sizeof *item);
    if (!item) {
        proto_free(message);
        return HILL_E_NOMEM;
    }
    item->message = message;
    pthread_mutex_lock(&link->lock);
    queue_put(&link->in, item);
    shm_doorbell_ring(link->bell);
    pthread_mutex_unlock(&link->lock);
    return 0;
}

void worker_link_stop(struct worker_link *link)
{
    stop(link, "the replay is over");
}

int worker_link_open(struct worker_link **out, int argc, char **argv, Hill__Role role,
                     const char *name, const char *summary)
{
    *out = NULL;
    struct worker_link *link = make_link(role, name);
    if (!link)
        return HILL_E_NOMEM;
    int code = read_options(link, argc, argv, summary);
    if (code == 0)
        code = check_run_dir(link);
    if (code == 0)
        code = set_signals(link);
    if (code == 0) {
        char text[HARDEN_TEXT_BYTES];
        worker_confine(role, text);
        log_debug("confined by: %s", text);
        code = connect_and_start(link);
        if (code != 0)
            log_error("joining the pipeline in %s failed: %s", link->run_dir, hill_strerror(code));
    }
    if (code == 0)
        code = await_answer(link);
    if (code != 0) {
        worker_link_close(link);
        return code;
    }
    *out = link;
    return 0;
}

void worker_link_set_doorbell(struct worker_link *link, struct shm_doorbell *bell)
{
    pthread_mutex_lock(&link->lock);
    link->bell = bell ? bell : &link->own_bell;
    shm_doorbell_ring(link->bell);
    pthread_mutex_unlock(&link->lock);
}

struct shm_doorbell *worker_link_doorbell(struct worker_link *link)
{
    return link->bell; /* only the data loop's thread changes it */
}

Hill__Message *worker_link_poll(struct worker_link *link)
{
    note_look(link);
    pthread_mutex_lock(&link->lock);
    struct item *item = queue_take(&link->in);
    pthread_mutex_unlock(&link->lock);
    if (!item)
        return NULL;
    Hill__Message *message = item->message;
    free(item);
    return message;
}

int worker_link_send(struct worker_link *link, const Hill__Message *message)
{
    if (link->sent) {
        link->sent(link->sent_context, message);
        return 0;
    }
    struct item *item = malloc(sizeof *item);
    if (item)
        item->message = proto_copy(message); /* the caller's may live on its stack */
    if (!item || !item->message) {
        free(item);
        return HILL_E_NOMEM;
    }
    pthread_mutex_lock(&link->lock);
    queue_put(&link->out, item);
    pthread_mutex_unlock(&link->lock);
    uint64_t one = 1;
    ssize_t ignored = write(link->wake_fd, &one, sizeof one); /* EAGAIN: it is awake anyway */
    (void)ignored;
    return 0;
}

void worker_link_ready(struct worker_link *link, uint32_t epoch, const char *device,
                       uint64_t resident_bytes)
{
    Hill__Ready ready = HILL__READY__INIT;
    ready.epoch = epoch;
    ready.device = (char *)(device ? device : "");
    ready.resident_bytes = resident_bytes;
    atomic_store_explicit(&link->loaded, true, memory_order_relaxed); /* see watch_loop */
    note_look(link);
    worker_link_send(link, &PROTO_MESSAGE(READY, ready, &ready));
}

void worker_link_failure(struct worker_link *link, int code, const char *text, bool fatal,
                         uint64_t request_id)
{
    Hill__Failure failure = HILL__FAILURE__INIT;
    failure.code = code;
    failure.text = (char *)(text ? text : "");
    failure.fatal = fatal;
    failure.request_id = request_id;
    worker_link_send(link, &PROTO_MESSAGE(FAILURE, failure, &failure));
}

bool worker_link_stopping(struct worker_link *link)
{
    note_look(link);
    /* acquire: pairs with the exchange in stop() */
    return atomic_load_explicit(&link->stopping, memory_order_acquire);
}

void worker_link_work_done(struct worker_link *link, uint64_t count)
{
    atomic_fetch_add_explicit(&link->work, count, memory_order_relaxed); /* statistics */
}

void worker_link_set_epoch(struct worker_link *link, uint32_t epoch)
{
    atomic_store_explicit(&link->epoch, epoch, memory_order_relaxed); /* statistics */
}

void worker_link_set_live(struct worker_link *link, Hill__SequenceStats *const *stats, size_t n)
{
    Hill__Heartbeat beat = HILL__HEARTBEAT__INIT;
    if (n == 0)
        return;
    beat.live = stats[0];
    beat.live_others = (Hill__SequenceStats **)(stats + 1);
    beat.n_live_others = n - 1;
    Hill__Message *copy = proto_copy(&PROTO_MESSAGE(HEARTBEAT, heartbeat, &beat));
    if (!copy)
        return; /* statistics: the next ones come in a moment */
    pthread_mutex_lock(&link->lock);
    Hill__Message *old = link->live;
    link->live = copy;
    pthread_mutex_unlock(&link->lock);
    proto_free(old);
}

void worker_link_close(struct worker_link *link)
{
    if (!link)
        return;
    if (link->thread_started) {
        /* release: what was sent before is in the queue; pairs with the acquire in control_main */
        atomic_store_explicit(&link->closing, true, memory_order_release);
        uint64_t one = 1;
        ssize_t ignored = write(link->wake_fd, &one, sizeof one);
        (void)ignored;
        pthread_join(link->thread, NULL);
    }
    int linger = 200; /* ms: let the io thread hand over what was sent last */
    if (link->control) {
        zmq_setsockopt(link->control, ZMQ_LINGER, &linger, sizeof linger);
        zmq_close(link->control);
    }
    if (link->heartbeat)
        zmq_close(link->heartbeat);
    if (link->context)
        zmq_ctx_term(link->context);
    if (link->wake_fd >= 0)
        close(link->wake_fd);
    if (link->signal_fd >= 0)
        close(link->signal_fd);
    queue_clear(&link->in);
    queue_clear(&link->out);
    proto_free(link->live);
    pthread_mutex_destroy(&link->lock);
    free(link);
}

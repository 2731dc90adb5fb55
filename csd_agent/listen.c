/* csd_agent/listen.c - see listen.h. */
#include "csd_agent/listen.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/harden.h"
#include "base/log.h"
#include "base/options.h"
#include "proto/options_hill.h"
#include "proto/records.h"

#define WAIT_MS 200

/* ---- an epoch's rings -------------------------------------------------------------------- */

/* A command whose answer has data. */
struct listener_read {
    struct listener_read *next;
    uint64_t tag;
    uint32_t type;
    _Alignas(16) uint8_t record[];
};

int listener_epoch_open(struct listener_epoch *e, struct party *agent,
                        const struct epoch_settings *s, struct hill_why *why)
{
    struct epoch_settings own = *s;
    own.hot_bytes = 0; /* that is the scorer's */
    int rc = party_attach_alone(&e->scorer, &own, why);
    if (!rc)
        rc = party_open(&e->scorer, NULL, why);
    if (!rc)
        rc = party_beside(agent, PARTY_AGENT, &e->scorer, why);
    e->open = !rc;
    e->epoch = s->epoch;
    if (rc)
        party_leave(&e->scorer);
    return rc;
}

void listener_epoch_close(struct listener_epoch *e)
{
    while (e->reads) {
        struct listener_read *read = e->reads;
        e->reads = read->next;
        free(read);
    }
    if (e->open)
        party_leave(&e->scorer);
    memset(e, 0, sizeof *e);
}

/* The agent's staging slots are the scorer's here, and have the generations of its slots. */
static int note_fetch(struct listener_epoch *e, const struct record_fetch *r, struct hill_why *why)
{
    const struct fetch_item *items = (const struct fetch_item *)(r + 1);
    struct shm_arena *staging = &e->scorer.arena;
    for (uint32_t i = 0; i < r->n_entries; i++) {
        if (items[i].staging_slot >= staging->slot_count)
            return hill_fail(why, HILL_E_PROTOCOL, "staging slot %u of %u", items[i].staging_slot,
                             staging->slot_count);
        shm_arena_follow(staging, items[i].staging_slot, items[i].generation);
    }
    return 0;
}

static int note_read(struct listener_epoch *e, uint32_t type, const struct drive_message *m,
                     struct hill_why *why)
{
    const struct party *p = &e->scorer;
    int rc =
        record_check(type, m->payload, m->bytes, &p->layout.geometry, p->layout.n_sequences, why);
    /* the agent drops it: no answer would free what is noted here */
    if (!rc && ((const struct record_header *)(const void *)m->payload)->epoch != e->epoch)
        rc = hill_fail(why, HILL_E_PROTOCOL, "a %s of another epoch", record_name(type));
    if (!rc && type == RECORD_FETCH)
        rc = note_fetch(e, (const void *)m->payload, why);
    struct listener_read *read = rc ? NULL : calloc(1, sizeof *read + m->bytes);
    if (!rc && !read)
        rc = hill_fail(why, HILL_E_NOMEM, "no memory for a command");
    if (rc)
        return rc;
    memcpy(read->record, m->payload, m->bytes);
    memcpy(&read->tag, m->payload + sizeof(struct record_header), sizeof read->tag);
    read->type = type;
    struct listener_read **last = &e->reads;
    while (*last)
        last = &(*last)->next;
    *last = read;
    return 0;
}

int listener_take_record(struct listener_epoch *e, const struct drive_message *m,
                         struct hill_why *why)
{
    uint32_t ring = m->frame.a, type = m->frame.b;
    if (!e->open || (ring != RING_COMMAND && ring != RING_BACKGROUND))
        return hill_fail(why, HILL_E_PROTOCOL, "a record for ring %u", ring);
    struct shm_ring_end *end = &e->scorer.ends[ring];
    if (m->bytes > shm_ring_payload_max(end))
        return hill_fail(why, HILL_E_PROTOCOL, "a record of %u bytes", m->bytes);
    int rc = type == RECORD_FETCH || type == RECORD_READ_KEYS ? note_read(e, type, m, why) : 0;
    if (!rc && (rc = shm_ring_push(end, type, m->payload, m->bytes)) != 0)
        hill_fail(why, rc = HILL_E_PROTOCOL, "more commands than there are credits");
    return rc;
}

/* ---- a session --------------------------------------------------------------------------- */

struct listener {
    struct drive_link *link;
    struct worker_link *worker; /* of the session */
    struct listener_epoch epoch;
    char url[DRIVE_ADDRESS_BYTES], drive[HILL_PATH_BYTES], device[HILL_PATH_BYTES];
    uint64_t cap_bytes; /* --cold-mb; 0: what the agent asks for */
    uint32_t threads;
    bool failed; /* the session is over, because of why */
    struct hill_why why;
};

static _Atomic bool ending; /* by a signal */

static void on_signal(int number)
{
    (void)number;
    /* relaxed: looked at several times a second */
    atomic_store_explicit(&ending, true, memory_order_relaxed);
}

static bool is_ending(void)
{
    return atomic_load_explicit(&ending, memory_order_relaxed); /* see on_signal */
}

static void fail_session(struct listener *l, const struct hill_why *why)
{
    if (!l->failed)
        l->why = *why;
    l->failed = true;
    worker_link_stop(l->worker);
}

static bool own_text(char **field, const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return false;
    if (*field && **field)
        free(*field);
    *field = copy;
    return true;
}

/* This host's drive and device, and nobody's files. */
static int adapt(struct listener *l, Hill__Configure *c, struct hill_why *why)
{
    if (!c->csd_attached) /* its epoch has no rings for an agent */
        return hill_fail(why, HILL_E_PROTOCOL, "a Configure without a drive");
    if (l->cap_bytes && c->cold_cap_bytes > l->cap_bytes)
        return hill_fail(why, HILL_E_NOSPACE,
                         "a cold pool of %.3f MiB is asked for, and --cold-mb of this drive is "
                         "%.3f",
                         (double)c->cold_cap_bytes / 1048576.0, (double)l->cap_bytes / 1048576.0);
    if (!own_text(&c->csd_url, l->drive) || !own_text(&c->csd_device, l->device) ||
        !own_text(&c->record_path, "") || !own_text(&c->trace_path, ""))
        return hill_fail(why, HILL_E_NOMEM, "no memory for the settings of an epoch");
    c->threads = l->threads;
    return 0;
}

static int take_control(struct listener *l, const struct drive_message *m, struct hill_why *why)
{
    Hill__Message *message;
    int rc = drive_control_read(m, &message, why);
    if (rc)
        return rc;
    bool configures = message->body_case == HILL__MESSAGE__BODY_CONFIGURE;
    if (configures)
        rc = adapt(l, message->configure, why);
    else if (message->body_case != HILL__MESSAGE__BODY_CSD_MODEL)
        rc = hill_fail(why, HILL_E_PROTOCOL, "a control message of kind %d",
                       (int)message->body_case);
    if (!rc)
        return worker_link_give(l->worker, message); /* which takes it */
    proto_free(message);
    if (configures) /* the agent there says so to its coordinator */
        worker_link_failure(l->worker, rc, why->text, true, 0);
    return rc;
}

static int take(struct listener *l, const struct drive_message *m, struct hill_why *why)
{
    if (m->frame.kind == DRIVE_CONTROL)
        return take_control(l, m, why);
    if (m->frame.kind == DRIVE_RECORD)
        return listener_take_record(&l->epoch, m, why);
    return hill_fail(why, HILL_E_PROTOCOL, "a message of kind %u", m->frame.kind);
}

/* Entries or keys of the answer, in pieces; false: the link takes no more now. */
static bool send_data(struct listener *l, const struct listener_read *read, uint64_t key_bytes)
{
    struct listener_epoch *e = &l->epoch;
    uint32_t entry = kv_entry_bytes(&e->scorer.layout.geometry);
    const struct record_fetch *fetch = (const void *)read->record;
    const struct fetch_item *items = (const struct fetch_item *)(fetch + 1);
    bool entries = read->type == RECORD_FETCH;
    uint64_t all = entries ? fetch->n_entries : key_bytes;
    uint32_t most = entries ? DRIVE_DATA_BYTES / entry + 1 : DRIVE_DATA_BYTES;
    uint8_t *piece = entries ? malloc((size_t)most * entry) : NULL;
    while (e->sent < all && (!entries || piece)) {
        uint32_t n = all - e->sent < most ? (uint32_t)(all - e->sent) : most;
        const uint8_t *from = piece;
        if (!entries)
            from = e->scorer.key_windows + e->sent +
                   (uint64_t)((const struct record_read_keys *)(const void *)read->record)->window *
                       e->scorer.key_window_bytes;
        for (uint32_t i = 0; entries && i < n; i++)
            memcpy(piece + (size_t)i * entry,
                   shm_arena_slot(&e->scorer.arena, items[e->sent + i].staging_slot), entry);
        const struct drive_frame frame = {
            .kind = DRIVE_DATA, .a = e->sent, .b = entries ? n : 0, .tag = read->tag};
        if (drive_link_send(l->link, &frame, from, entries ? n * entry : n))
            break;
        e->sent += n;
    }
    free(piece);
    return e->sent == all;
}

/* Before the answer to a command that reads. False: not all of it has gone. */
static bool send_what_was_read(struct listener *l, const struct record_completion *r)
{
    struct listener_read **at = &l->epoch.reads, *read;
    while (*at && ((*at)->tag != r->tag || (*at)->type != r->command))
        at = &(*at)->next;
    read = *at;
    if (!read)
        return true;
    if (!r->status && !send_data(l, read, r->link_key_bytes))
        return false;
    l->epoch.sent = 0;
    *at = read->next;
    free(read);
    return true;
}

/* Everything that is in an output ring, as far as the link takes it. */
static bool empty_ring(struct listener *l, enum layout_ring ring)
{
    struct shm_ring_end *end = &l->epoch.scorer.ends[ring];
    const void *payload;
    uint32_t type, bytes;
    bool moved = false;
    while (shm_ring_peek(end, &type, &payload, &bytes) == 0) {
        const struct drive_frame frame = {.kind = DRIVE_RECORD, .a = ring, .b = type};
        if (type == RECORD_COMPLETION && !send_what_was_read(l, payload))
            break;
        if (drive_link_send(l->link, &frame, payload, bytes))
            break;
        shm_ring_release(end);
        moved = true;
    }
    return moved;
}

/* Scores first: a query's were published before its completion. */
static bool empty_rings(struct listener *l)
{
    const void *payload;
    uint32_t type, bytes;
    if (!l->epoch.open)
        return false;
    bool moved = empty_ring(l, RING_SCORE);
    if (shm_ring_peek(&l->epoch.scorer.ends[RING_SCORE], &type, &payload, &bytes) == 0)
        return moved;
    return empty_ring(l, RING_COMPLETION) || moved;
}

static bool pump(void *context)
{
    struct listener *l = context;
    struct drive_message *m;
    struct hill_why why = {""};
    bool moved = empty_rings(l);
    while (!l->failed && (m = drive_link_poll(l->link))) {
        int rc = take(l, m, &why);
        free(m);
        if (rc)
            fail_session(l, &why);
        moved = true;
    }
    if (!l->failed && drive_link_lost(l->link, &why))
        fail_session(l, &why);
    if (is_ending())
        worker_link_stop(l->worker);
    return moved;
}

static int attach(void *context, struct party *party, const struct epoch_settings *s,
                  struct hill_why *why)
{
    struct listener *l = context;
    return listener_epoch_open(&l->epoch, party, s, why);
}

static void leave(void *context)
{
    listener_epoch_close(&((struct listener *)context)->epoch);
}

static void set_doorbell(void *context, struct shm_doorbell *bell)
{
    drive_link_set_doorbell(((struct listener *)context)->link, bell);
}

/* What the data plane says to its coordinator goes to the agent's. */
static void say(void *context, const Hill__Message *message)
{
    struct listener *l = context;
    drive_link_tell(l->link, message); /* a lost link is found elsewhere */
}

static int run_session(struct listener *l)
{
    const struct agent_host host = {l, attach, leave, pump, set_doorbell};
    int rc =
        worker_link_open_alone(&l->worker, HILL__ROLE__ROLE_CSD_AGENT, "hill-csd-agent", say, l);
    if (rc)
        return rc;
    l->failed = false;
    log_info("an agent has connected");
    drive_link_set_doorbell(l->link, worker_link_doorbell(l->worker));
    int code = agent_run(l->worker, &host);
    drive_link_set_doorbell(l->link, NULL);
    bool garbage = l->failed && drive_link_lost(l->link, NULL) == 0;
    if (l->failed)
        log_info("the agent is gone: %s", l->why.text);
    else if (code)
        log_warn("the agent was refused: %s", hill_strerror(code));
    worker_link_close(l->worker);
    drive_link_forget(l->link, garbage ? l->why.text : NULL);
    return 0;
}

/* ---- the process ------------------------------------------------------------------------- */

static const struct option_spec specs[] = {
    OPTION("listen", STRING, "tcp://ADDRESS:PORT",
           "serve agents that connect here; ADDRESS may be *, or one of IPv6: [::1], [::] (all)"),
    OPTION("drive", STRING, "file:PATH",
           "the drive: a file, which is made, or a block device; or xrt:PATH,xclbin=FILE"),
    OPTION("key", PATH, "FILE", "own key, of hillctl keygen"),
    OPTION("peer", PATH, "FILE", "public keys of the agents that are let in, a line each"),
    OPTION("csd-device", STRING, "NAME",
           "host: the CPU scores for a drive at file:, in one thread; else an OpenCL device does, "
           "named by its number or part of its name",
           .fallback = "host"),
    OPTION("threads", INTEGER, "N", "threads of an OpenCL device; 0: as many as there are CPUs",
           .max = EPOCH_THREADS_MAX, .fallback = "0"),
    OPTION("cold-mb", SIZE, "SIZE", "the largest cold pool that is given; 0: what is asked for",
           .max = 1e9, .fallback = "0"),
    OPTION("log-level", CHOICE, "LEVEL", "how much to say on stderr",
           .choices = "error|warn|info|debug", .fallback = "info"),
    OPTION("verbose", FLAG, NULL, "as --log-level debug", .letter = "v"),
};

bool listen_is_asked(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--listen", 8) == 0)
            return true;
    return false;
}

static const struct option_table tables[] = {
    {.title = "the drive", .specs = specs, .count = sizeof specs / sizeof *specs},
};

static const struct option_program program = {
    .name = "hill-csd-agent",
    .usage = "--listen tcp://ADDRESS:PORT --drive file:PATH --key FILE --peer FILE [OPTIONS]",
    .summary = "Serves a drive of this host to a pipeline on another one.",
    .example = "hill-csd-agent --listen 'tcp://*:7733' --drive file:/srv/cold.pool --key drive "
               "--peer host.pub",
    .notes = "There: hillinfer up --csd tcp://THIS-HOST:7733 --csd-key host --csd-peer drive.pub. "
             "Keys: hillctl keygen\nFILE on each host; the .pub files are exchanged.",
    .exit_codes = "  0    ended by SIGTERM or Ctrl-C\n"
                  "  100  wrong use or keys\n"
                  "  111  it cannot listen there\n",
    .tables = tables,
    .n_tables = sizeof tables / sizeof *tables,
    .arguments_only = true,
};

static int check_options(const struct options *o, struct hill_why *why)
{
    static const char *const needed[] = {"listen", "drive", "key", "peer"};
    for (unsigned i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!options_is_set(o, needed[i]))
            return hill_fail(why, HILL_E_INVALID, "--%s is missing", needed[i]);
    const char *drive = options_text(o, "drive");
    char file[HILL_PATH_BYTES];
    if (!hill_drive_file(drive, file) || strlen(drive) >= HILL_PATH_BYTES)
        return hill_fail(why, HILL_E_INVALID,
                         "--drive: '%.200s' is no file:PATH and no xrt:PATH,xclbin=FILE", drive);
    return drive_address_check(options_text(o, "listen"), why);
}

static void fill(struct listener *l, const struct options *o)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t threads = options_integer(o, "threads");
    snprintf(l->url, sizeof l->url, "%s", options_text(o, "listen"));
    snprintf(l->drive, sizeof l->drive, "%s", options_text(o, "drive"));
    snprintf(l->device, sizeof l->device, "%s", options_text(o, "csd-device"));
    l->cap_bytes = options_bytes(o, "cold-mb");
    if (!threads)
        threads = cpus < 1 ? 1 : cpus > EPOCH_THREADS_MAX ? EPOCH_THREADS_MAX : cpus;
    l->threads = (uint32_t)threads;
}

static int serve_agents(struct listener *l)
{
    int rc = 0;
    log_info("listening at %s, drive %s", l->url, l->drive);
    while (!rc && !is_ending()) {
        struct shm_doorbell *bell = drive_link_doorbell(l->link);
        uint32_t seen = shm_doorbell_read(bell);
        if (drive_link_is_up(l->link))
            rc = run_session(l);
        else if (drive_link_lost(l->link, NULL))
            drive_link_forget(l->link, NULL);
        else
            shm_doorbell_wait(bell, seen, clock_deadline_ms(WAIT_MS), 0);
    }
    return rc;
}

static int run(const struct options *o, struct hill_why *why)
{
    struct listener l = {.link = NULL};
    struct drive_keys keys;
    struct sigaction action = {.sa_handler = on_signal};
    hill_log_init("hill-csd-agent", hill_log_option(o));
    harden_process();
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    fill(&l, o);
    int rc = drive_keys_read(&keys, options_text(o, "key"), options_text(o, "peer"), why);
    if (!rc)
        rc = drive_link_listen(&l.link, l.url, &keys, why);
    explicit_bzero(&keys, sizeof keys);
    if (!rc && (rc = serve_agents(&l)) != 0)
        hill_fail(why, rc, "serving agents failed: %s", hill_strerror(rc));
    drive_link_close(l.link);
    return rc;
}

int listen_main(int argc, char **argv)
{
    return options_main(&program, argc, argv, check_options, run);
}

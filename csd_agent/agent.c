/*
 * csd_agent/agent.c - configuration and data loop; see agent.h.
 */
#include "csd_agent/agent.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/cldevice.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/options.h"
#include "csd_agent/relay.h"

#define LAYOUT_DEADLINE_MS 30000 /* for the scorer to lay out rings and arena */
#define IDLE_MS            500
#define REST_MS            20 /* without a command: the directory is written then, not between queries */
#define SPIN_NS            20000 /* a following command comes within some 10 us */
/* Counters of the device model go to the coordinator when they have changed: no sooner than this
 * after the last time, and when no command has come for as long. */
#define COUNTERS_NS    CLOCK_MS(5)
#define EXACT_SLACK_NS 1ul /* of timers, for modelled times; the kernel's default is 50 us */
/* What a sleeper needs to wake up, more or less. A drive would not be late by it: what is due
 * within so much is waited for awake, and the CPU offered to others meanwhile. */
#define AWAKE_NS 60000

struct agent {
    struct worker_link *link;
    const struct agent_host *host;  /* NULL: rings are shared memory */
    struct relay *relay;            /* to the drive's host; NULL: it is this one */
    Hill__Message *configure;       /* the one in force or being put in force */
    Hill__Message *newer;           /* arrived meanwhile, to be put in force next */
    Hill__Message *model;           /* the newest CsdModel since the newest Configure, or NULL */
    struct epoch_settings settings; /* its texts are the Configure's */
    struct party party;
    struct data_plane plane;
    bool serving;                /* rings are open */
    bool plain;                  /* the file alone: no drive is modelled */
    bool behind;                 /* a command may have changed the directory since it was written */
    int64_t rest_ns;             /* from then on the agent is at rest */
    struct modelled_drive drive; /* of the planes so far; figures: as they were said last */
    Hill__CsdModelCounters sent; /* as the coordinator knows them */
    int64_t sent_ns;
};

static bool stopping(void *context)
{
    struct agent *agent = context;
    if (agent->host)
        agent->host->pump(agent->host->context);
    return worker_link_stopping(agent->link);
}

static void set_doorbell(struct agent *agent, struct shm_doorbell *bell)
{
    worker_link_set_doorbell(agent->link, bell);
    if (agent->host)
        agent->host->set_doorbell(agent->host->context, worker_link_doorbell(agent->link));
    if (agent->relay)
        relay_set_doorbell(agent->relay, worker_link_doorbell(agent->link));
}

/* ---- test hook ---- */

/* HILL_TEST_WRONG_SCORE: the position whose scores are to be wrong, so that a test can see that
 * they matter. */
static uint32_t wrong_position(void)
{
    const char *text = getenv("HILL_TEST_WRONG_SCORE");
    char *end;

    if (!text || *text < '0' || *text > '9')
        return COLD_NO_POSITION;
    unsigned long value = strtoul(text, &end, 10);
    if (*end != '\0' || value >= KV_MAX_TOKENS)
        return COLD_NO_POSITION;
    log_warn("test hook HILL_TEST_WRONG_SCORE: position %lu scores 65535 in every layer", value);
    return (uint32_t)value;
}

/* ---- opening an epoch ---- */

static void close_plane(struct agent *agent)
{
    /* the doorbell lies in the segment that goes away */
    set_doorbell(agent, NULL);
    relay_end(agent->relay);
    if (agent->serving)
        agent->drive = agent->plane.drive;
    data_plane_close(&agent->plane);
    cold_pool_close(agent->plane.pool);
    memset(&agent->plane, 0, sizeof agent->plane);
    party_leave(&agent->party);
    if (agent->host)
        agent->host->leave(agent->host->context);
    agent->serving = false;
}

/* ---- the device model ---- */

/* The DRAM of the drive that is modelled, or what a file may have; a plain reader has none, and one
 * whose digests the host scores has no use for it. */
static void limit_dram(struct agent *agent)
{
    const struct csd_model *model = &agent->drive.model.figures;
    uint64_t bytes = model->on ? (uint64_t)model->dram : agent->settings.csd_dram_bytes;
    bool none = agent->plain || agent->settings.plan.selection.policy == KV_POLICY_HOST_DIGEST;
    if (agent->plane.pool) /* of a drive elsewhere: there */
        cold_pool_limit_dram(agent->plane.pool, none ? 0 : bytes);
}

/* For the commands that start from now on. message: NULL: none. */
static void take_model(struct agent *agent, const Hill__CsdModel *message)
{
    struct csd_model model = proto_csd_model(agent->plain ? NULL : message);
    char text[CSD_MODEL_TEXT];

    if (csd_model_same(&model, &agent->drive.model.figures))
        return;
    agent->drive.model.figures = model;
    if (agent->serving) {
        data_plane_set_model(&agent->plane, &model);
        limit_dram(agent);
    }
    if (model.on)
        prctl(PR_SET_TIMERSLACK, EXACT_SLACK_NS);
    log_info("device model %s%s", csd_model_print(text, &model),
             model.on ? ": times of the drive are modelled from now on" : "");
}

static void send_counters(struct agent *agent)
{
    Hill__Message message =
        PROTO_MESSAGE(CSD_MODEL_COUNTERS, csd_model_counters, &agent->plane.drive.counters);
    worker_link_send(agent->link, &message);
    agent->sent = agent->plane.drive.counters;
    agent->sent_ns = clock_now_ns();
}

/* Nothing is to be done at once: tell the counters when it is time; returns when it will be. */
static int64_t tell_counters(struct agent *agent)
{
    if (!agent->serving ||
        memcmp(&agent->sent, &agent->plane.drive.counters, sizeof agent->sent) == 0)
        return CLOCK_NEVER;
    if (clock_now_ns() < agent->sent_ns + COUNTERS_NS)
        return agent->sent_ns + COUNTERS_NS;
    send_counters(agent);
    return CLOCK_NEVER;
}

/* ---- mailbox ---- */

/* The newest Configure is kept; the model of the newest message holds, whatever came first. */
static void read_mailbox(struct agent *agent)
{
    Hill__Message *message;

    while ((message = worker_link_poll(agent->link))) {
        if (message->body_case == HILL__MESSAGE__BODY_CONFIGURE) {
            proto_free(agent->newer);
            agent->newer = message;
            proto_free(agent->model); /* Configure has one itself */
            agent->model = NULL;
            agent->plain = message->configure->csd_plain;
            take_model(agent, message->configure->csd_model);
            continue;
        }
        if (message->body_case == HILL__MESSAGE__BODY_CSD_MODEL) {
            if (agent->relay)
                relay_tell(agent->relay, message);
            take_model(agent, message->csd_model);
            proto_free(agent->model);
            agent->model = message;
            continue;
        }
        log_warn("ignored a control message of kind %d", (int)message->body_case);
        proto_free(message);
    }
}

/* Called while the scorer lays out the rings: a newer epoch or the end is not waited through. */
static int waiting(void *context, struct hill_why *why)
{
    struct agent *agent = context;
    read_mailbox(agent);
    bool leave = worker_link_stopping(agent->link) || agent->newer;
    return leave ? hill_fail(why, HILL_E_CANCELLED, "interrupted: the epoch ends") : 0;
}

int agent_open_pool(struct data_plane *plane, const struct epoch_settings *s, const char *url,
                    struct hill_why *why)
{
    struct layout_input layout = epoch_layout(s);
    struct cold_pool_config config = {
        .url = url,
        .options = {.device = s->csd_device,
                    .simd = epoch_simd_name(s->simd),
                    .create = true,
                    .on_host = s->csd_plain},
        .geometry = layout.geometry,
        .n_sequences = layout.n_sequences,
        .cap_bytes = s->cold_cap_bytes,
        .fingerprint = layout_fingerprint(&layout),
        .key_bytes = epoch_key_bytes(s),
        /* a pool that another drive of these has filled is not this one's */
        .stamp = {s->run_id, s->tiers_epoch + ((uint64_t)s->csd_drive << 32)},
        .keeps = s->tiers_epoch < s->epoch,
    };
    return cold_pool_open(&plane->pool, &config, why);
}

void agent_join(struct data_plane *plane, struct party *party, uint32_t epoch)
{
    plane->geometry = party->layout.geometry;
    plane->n_sequences = party->layout.n_sequences;
    plane->epoch = epoch;
    plane->command = &party->ends[RING_COMMAND];
    plane->background = &party->ends[RING_BACKGROUND];
    plane->score = &party->ends[RING_SCORE];
    plane->completion = &party->ends[RING_COMPLETION];
    plane->staging = &party->arena;
    plane->key_windows = party->key_windows;
    plane->key_window_bytes = party->key_window_bytes;
}

/* The drive's host opens the pool. */
static int open_relay(struct agent *agent, const struct party_wait *wait, struct hill_why *why)
{
    int status = agent->relay ? 0 : relay_open(&agent->relay, &agent->settings, agent->link, why);
    if (status != 0)
        return status;
    set_doorbell(agent, agent->party.bell);
    status = relay_begin(agent->relay, agent->configure, &agent->party, wait, why);
    /* one that came while there was no link, or before Configure went, has not counted there */
    if (status == 0 && agent->model)
        relay_tell(agent->relay, agent->model);
    /* gone is the drive, not the epoch's segments */
    return status == HILL_E_PEER_GONE || status == HILL_E_TIMEOUT ? HILL_E_IO : status;
}

static int open_plane(struct agent *agent, struct hill_why *why)
{
    const struct epoch_settings *s = &agent->settings;
    struct data_plane *plane = &agent->plane;
    const struct party_wait wait = {waiting, agent, clock_deadline_ms(LAYOUT_DEADLINE_MS)};
    int status = epoch_settings_read(&agent->settings, agent->configure->configure, why);

    if (status == 0 && s->cold_cap_bytes == 0)
        status = hill_fail(why, HILL_E_INVALID, "an agent needs a cold pool");
    if (status == 0)
        status = agent->host ? agent->host->attach(agent->host->context, &agent->party, s, why)
                             : party_attach(&agent->party, PARTY_AGENT, s, why);
    if (status != 0)
        return status;
    agent_join(plane, &agent->party, s->epoch);
    plane->wrong_position = wrong_position();
    plane->stopping = stopping;
    plane->stopping_context = agent;
    plane->drive = agent->drive;
    set_doorbell(agent, agent->party.bell);
    status = !agent->host && relay_serves(s->csd_url) ? open_relay(agent, &wait, why)
                                                      : agent_open_pool(plane, s, s->csd_url, why);
    return status == 0 && !agent->host ? party_open(&agent->party, &wait, why) : status;
}

static void say_ready(struct agent *agent)
{
    const struct epoch_settings *s = &agent->settings;
    char device[400];

    if (!agent->plane.pool) {
        uint64_t bytes;
        const char *there = relay_device(agent->relay, &bytes);
        snprintf(device, sizeof device, "%.150s: %.200s", s->csd_url, there);
        worker_link_ready(agent->link, s->epoch, device, bytes);
        return;
    }
    const struct pool_layout *layout = cold_pool_layout(agent->plane.pool);
    cold_pool_describe(agent->plane.pool, device, sizeof device);
    log_debug("serving epoch %u: %s on %s, %u stripes of %u slots", s->epoch, s->csd_url, device,
              layout->n_stripes, layout->stripe_slots);
    worker_link_ready(agent->link, s->epoch, device, layout->total_bytes);
}

/* Put agent->newer in force. 0 also when it was overtaken or the process is to stop. */
static int configure(struct agent *agent)
{
    struct hill_why why = {""};

    close_plane(agent);
    proto_free(agent->configure);
    agent->configure = agent->newer;
    agent->newer = NULL;
    const Hill__Configure *c = agent->configure->configure;
    cldevice_set_threads(c->threads);
    worker_link_set_epoch(agent->link, c->epoch);
    int status = open_plane(agent, &why);
    if (status == 0) {
        agent->serving = true;
        limit_dram(agent);
        say_ready(agent);
        return 0;
    }
    close_plane(agent);
    if (status == HILL_E_CANCELLED || status == HILL_E_PEER_GONE)
        return 0;              /* its segments are gone: a newer Configure is here or on its way */
    log_debug("%s", why.text); /* the coordinator says it */
    worker_link_failure(agent->link, status, why.text, true, 0);
    return status;
}

/* ---- loop ---- */

/* Commands and answers between the rings and the drive's host. */
static int serve_relay(struct agent *agent, bool *moved)
{
    struct hill_why why = {""};
    uint64_t done;
    bool own;
    int status = relay_turn(agent->relay, &done, &own, &why);

    worker_link_work_done(agent->link, done);
    *moved = status != 0;
    if (status >= 0)
        return 0;
    if (own) {
        log_debug("the rings are of no use any more (%s); waiting to be configured anew",
                  hill_strerror(status));
        close_plane(agent);
        return 0;
    }
    log_error("the drive %s is lost: %s", agent->settings.csd_url, why.text);
    return status;
}

/* A drive that was reset or pulled out answers at once, with an error: another agent opens it
 * anew, or says that it cannot be had. Asked in each turn: no more requests need to fail. */
static int check_drive(struct agent *agent)
{
    struct hill_why why = {""};
    char text[sizeof why.text];
    int status = cold_pool_lost(agent->plane.pool, &why);

    if (status == 0)
        return 0;
    snprintf(text, sizeof text, "the drive %.200s is lost: %.250s", agent->settings.csd_url,
             why.text);
    log_error("%s", text);
    worker_link_failure(agent->link, status, text, true, 0);
    return status;
}

/* One command, or a page of the directory when there was none for a while: a query that comes must
 * not find the drive busy with it. Negative: the drive is lost. */
static int serve(struct agent *agent, bool *moved)
{
    struct hill_why why = {""};
    uint64_t before = agent->plane.commands;
    int status = data_plane_turn(&agent->plane);

    worker_link_work_done(agent->link, agent->plane.commands - before);
    if (status > 0) {
        agent->behind = true;
        agent->rest_ns = clock_deadline_ms(REST_MS);
    } else if (status == 0 && agent->behind && clock_now_ns() >= agent->rest_ns) {
        status = data_plane_write_directory(&agent->plane, &why);
        agent->behind = status > 0 || agent->plane.gated;
    } else if (status < 0) {
        if (status == HILL_E_NOMEM)
            log_warn("no memory for a command; waiting to be configured anew");
        else if (status != HILL_E_CANCELLED)
            log_debug("the rings are of no use any more (%s); waiting to be configured anew",
                      hill_strerror(status));
        close_plane(agent);
        return 0;
    }
    if (status < 0) /* no entry depends on it: the next agent starts empty, or ADOPT names slots */
        log_warn("cannot write the cold pool's directory: %s", why.text);
    *moved |= status > 0;
    return check_drive(agent);
}

/* Sleep until the bell rings, something is due, or for a while. */
static void rest(struct agent *agent, struct shm_doorbell *bell, uint32_t seen)
{
    int64_t idle = clock_deadline_ms(IDLE_MS), until = tell_counters(agent);
    int64_t due = agent->serving ? data_plane_next_ns(&agent->plane) : CLOCK_NEVER;

    if (agent->serving && agent->behind && !agent->plane.gated && agent->rest_ns < until)
        until = agent->rest_ns; /* the directory; one that is gated is due with the flash */
    bool near = due != CLOCK_NEVER && due - clock_now_ns() <= AWAKE_NS;
    if (due < until)
        until = near ? due : due - AWAKE_NS;
    if (idle < until)
        until = idle;
    /* spinning is for the answer to an answer, none of which is out while some are held; and for
     * what is due at once */
    int64_t spin = near ? AWAKE_NS : due == CLOCK_NEVER ? SPIN_NS : 0;
    int status = shm_doorbell_wait(bell, seen, until, spin);
    if (status == HILL_E_TIMEOUT && until == idle && agent->serving)
        shm_ring_peer_alive(agent->plane.command); /* a dead scorer: the next peek says so */
}

int agent_run(struct worker_link *link, const struct agent_host *host)
{
    struct agent agent = {
        .link = link, .host = host, .drive.counters = HILL__CSD_MODEL_COUNTERS__INIT};
    agent.sent = agent.drive.counters;
    int status = 0;

    while (status == 0 && !worker_link_stopping(link)) {
        struct shm_doorbell *bell = worker_link_doorbell(link);
        uint32_t seen = shm_doorbell_read(bell);
        bool moved = host && host->pump(host->context);
        read_mailbox(&agent);
        if (agent.newer) {
            status = configure(&agent);
            continue;
        }
        if (agent.serving && agent.relay)
            status = serve_relay(&agent, &moved);
        else if (agent.serving)
            status = serve(&agent, &moved);
        if (moved || status != 0)
            continue;
        if (bell != worker_link_doorbell(link))
            continue; /* it went away with the segments */
        rest(&agent, bell, seen);
    }
    close_plane(&agent);
    relay_close(agent.relay);
    proto_free(agent.configure);
    proto_free(agent.newer);
    proto_free(agent.model);
    return status;
}

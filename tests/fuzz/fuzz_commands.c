/*
 * tests/fuzz/fuzz_commands.c - the CSD agent's data plane under a scorer that sends what it likes.
 *
 * What: the input is a list of records: a byte for ring and type, two for the payload's length, the
 * payload; the header's epoch is made right, and sequence and layer are brought near what exists.
 * Each record is carried out on a small real pool (a file, the OpenCL kernel), answers are read.
 * Afterwards both sequences are trimmed. Failure: sanitizer findings; abort() where a slot is
 * committed after its sequence was trimmed, or a command has not one completion. Who calls it:
 * libFuzzer (tests/fuzz/run). Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "csd_agent/commands.h"
#include "proto/records.h"

#define EPOCH         7u
#define SEQUENCES     2u
#define STAGING_SLOTS 32u
#define RING_BYTES    (1u << 20)
#define PAYLOAD_MAX   8192u

enum { COMMAND, BACKGROUND, SCORE, COMPLETION, RINGS };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct kv_geometry geometry = {2, 4, 2, 8};
static struct data_plane plane;
static struct shm_ring_end ends[RINGS], agent_ends[RINGS];
static struct shm_doorbell agent_bell, scorer_bell;
static struct shm_arena staging, agent_staging;

static bool always(void *context)
{
    (void)context;
    return true; /* an output ring that is full is not waited for: nobody would drain it */
}

static void open_pool(void)
{
    char url[64] = "file:/tmp/hill-fuzz-XXXXXX";
    struct hill_why why = {""};
    int fd = mkstemp(url + 5);
    struct cold_pool_config config = {.url = url,
                                      .options = {.create = true, .batch_bytes = 20000},
                                      .geometry = geometry,
                                      .n_sequences = SEQUENCES,
                                      .cap_bytes = 4u << 20,
                                      .fingerprint = 1};
    hill_log_init("fuzz", HILL_LOG_ERROR);
    if (fd < 0 || cold_pool_open(&plane.pool, &config, &why) != 0) {
        fprintf(stderr, "no pool: %s\n", why.text);
        abort();
    }
    close(fd);
    unlink(url + 5);
}

static void open_staging(void)
{
    uint32_t entry = kv_entry_bytes(&geometry);
    uint64_t bytes = shm_arena_bytes(STAGING_SLOTS, entry);
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!memory)
        abort();
    memset(memory, 0, bytes);
    if (shm_arena_init(memory, STAGING_SLOTS, entry) != 0 ||
        shm_arena_view(&agent_staging, memory, bytes) != 0 ||
        shm_arena_own(&staging, memory, bytes) != 0)
        abort();
}

static void open_rings(void)
{
    struct shm_ring_end **agents[RINGS] = {&plane.command, &plane.background, &plane.score,
                                           &plane.completion};
    shm_doorbell_init(&agent_bell);
    shm_doorbell_init(&scorer_bell);
    for (int r = 0; r < RINGS; r++) {
        uint64_t bytes = shm_ring_bytes(RING_BYTES);
        void *memory = aligned_alloc(64, bytes);
        bool produces = r >= SCORE;
        if (!memory || shm_ring_init(memory, RING_BYTES, 0) != 0 ||
            shm_ring_open(&agent_ends[r], memory, bytes, produces, &agent_bell, &scorer_bell) ||
            shm_ring_open(&ends[r], memory, bytes, !produces, &scorer_bell, &agent_bell))
            abort();
        *agents[r] = &agent_ends[r];
    }
}

static void open_scene(void)
{
    plane = (struct data_plane){.geometry = geometry,
                                .n_sequences = SEQUENCES,
                                .epoch = EPOCH,
                                .staging = &agent_staging,
                                .wrong_position = COLD_NO_POSITION,
                                .stopping = always};
    open_pool();
    open_staging();
    open_rings();
}

/* Everything that is there; returns how many records. */
static unsigned drain(struct shm_ring_end *end)
{
    const void *payload;
    uint32_t type, bytes;
    unsigned n = 0;
    struct hill_why why;
    while (shm_ring_peek(end, &type, &payload, &bytes) == 0) {
        if (record_check(type, payload, bytes, &geometry, SEQUENCES, &why) != 0)
            abort(); /* the scorer would refuse the agent's answer */
        shm_ring_release(end);
        n++;
    }
    return n;
}

/* One record, carried out; a command that may be answered is answered once. */
static void carry_out(int ring, uint32_t type, const void *record, uint32_t bytes)
{
    uint64_t before = plane.commands;
    if (shm_ring_push(&ends[ring], type, record, bytes) != 0)
        abort();
    while (data_plane_turn(&plane) > 0)
        ;
    if (plane.lost)
        abort(); /* no record may cost the rings */
    drain(&ends[SCORE]);
    if (drain(&ends[COMPLETION]) != plane.commands - before)
        abort();
}

static void trim_all(void)
{
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        struct record_trim trim = {.header = {.epoch = EPOCH, .sequence = s}, .tag = 1};
        carry_out(COMMAND, RECORD_TRIM, &trim, sizeof trim);
        for (uint32_t layer = 0; layer < geometry.n_layers; layer++)
            if (cold_pool_committed(plane.pool, s, layer) != 0)
                abort();
    }
}

/* Building a kernel takes longer than an input may. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    open_scene();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t types[] = {RECORD_AGENT_QUERY, RECORD_COMMIT, RECORD_RELEASE,
                                     RECORD_FETCH,       RECORD_TRIM,   RECORD_READ_KEYS,
                                     RECORD_DEMOTE,      RECORD_DEMOTE};
    static _Alignas(16) uint8_t payload[PAYLOAD_MAX];
    for (size_t at = 0; at + 3 <= size;) {
        uint8_t what = data[at];
        uint32_t bytes = (data[at + 1] | (uint32_t)data[at + 2] << 8) % (PAYLOAD_MAX + 1);
        at += 3;
        bytes = bytes < size - at ? bytes : (uint32_t)(size - at);
        memset(payload, 0, sizeof payload);
        memcpy(payload, data + at, bytes);
        at += bytes;
        struct record_header header;
        memcpy(&header, payload, sizeof header);
        header.epoch = what & 64 ? header.epoch : EPOCH;
        header.sequence %= SEQUENCES + 1;
        header.layer %= geometry.n_layers + 1;
        memcpy(payload, &header, sizeof header);
        /* at least the header, most often as long as the record says */
        carry_out(what & 32 ? BACKGROUND : COMMAND, types[what % 8], payload,
                  bytes < sizeof header ? (uint32_t)sizeof header : bytes);
    }
    trim_all();
    return 0;
}

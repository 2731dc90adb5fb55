/*
 * tests/fuzz/fuzz_drive.c - what a peer with a right key sends over the link to a drive.
 *
 * What: the input is a list of messages: ten bytes (what is wrong with the frame, kind, a, b, bytes
 * of the payload: 2), then the payload. Frames go through drive_frame_check; control messages are
 * read; records go into the rings of a listener's epoch, in private memory, and are taken out again
 * as the drive's data plane would. Failure: sanitizer findings; abort() where a record comes out
 * otherwise than it went in. Who calls it: libFuzzer (tests/fuzz/run). Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "csd_agent/listen.h"
#include "proto/records.h"

#define HEAD 10u

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct epoch_settings settings = {
    .run_id = 1,
    .epoch = 1,
    .plan = {.geometry = {2, 4, 2, 16},
             .n_embd = 64,
             .n_ff = 64,
             .n_vocab = 64,
             .ctx_tokens = 512,
             .batch_tokens = 64,
             .n_sequences = 2,
             .selection = {.alpha = 0.2, .sinks = 4, .window = 32}},
    .model_path = "",
    .threads = 1,
    .gpu_slots = 64,
    .staging_slots = 64,
    .csd_attached = true,
    .csd_url = "file:x",
    .cold_cap_bytes = 1 << 20,
    .block_tokens = 256,
};

static struct listener_epoch epoch;
static struct party agent;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct hill_why why = {""};
    (void)argc;
    (void)argv;
    hill_log_init("fuzz", HILL_LOG_ERROR);
    if (listener_epoch_open(&epoch, &agent, &settings, &why))
        abort();
    return 0;
}

static void take_out(const struct drive_message *m)
{
    struct shm_ring_end *end = &agent.ends[m->frame.a];
    const void *payload;
    uint32_t type, bytes;
    if (shm_ring_peek(end, &type, &payload, &bytes) || type != m->frame.b || bytes != m->bytes ||
        memcmp(payload, m->payload, bytes) != 0)
        abort();
    shm_ring_release(end);
}

static void take(struct drive_message *m)
{
    struct hill_why why = {""};
    Hill__Message *message;
    if (m->frame.kind == DRIVE_CONTROL && drive_control_read(m, &message, &why) == 0)
        proto_free(message);
    if (m->frame.kind == DRIVE_RECORD && listener_take_record(&epoch, m, &why) == 0)
        take_out(m);
    if (m->frame.kind == DRIVE_HELLO)
        drive_hello_check((const struct drive_hello *)m->payload, &why);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hill_why why = {""};
    while (size >= HEAD) {
        uint32_t bytes = (uint32_t)(data[8] | data[9] << 8);
        bytes = bytes < size - HEAD ? bytes : (uint32_t)(size - HEAD);
        struct drive_message *m = aligned_alloc(16, (sizeof *m + bytes + 15) / 16 * 16);
        if (!m)
            return 0;
        memset(m, 0, sizeof *m);
        m->bytes = bytes;
        m->frame = (struct drive_frame){.magic = DRIVE_MAGIC ^ (data[0] & 1u),
                                        .version = (uint16_t)(DRIVE_VERSION + (data[0] >> 7)),
                                        .kind = data[1],
                                        .a = data[2],
                                        .b = data[3]};
        memcpy(&m->frame.tag, data, sizeof m->frame.tag);
        memcpy(m->payload, data + HEAD, bytes);
        if (drive_frame_check(&m->frame, sizeof m->frame - (data[0] >> 1 & 1), bytes, &why) == 0)
            take(m);
        free(m);
        data += HEAD + bytes;
        size -= HEAD + bytes;
    }
    party_leave(&agent);
    listener_epoch_close(&epoch);
    if (listener_epoch_open(&epoch, &agent, &settings, &why))
        abort();
    return 0;
}

/*
 * tests/fuzz/make_seeds.c - writes the seed corpora of the fuzzers: small well-formed inputs.
 *
 * usage: make_seeds FOLDER     (writes FOLDER/TARGET/seed-NAME, a TARGET for each fuzzer)
 * What: mutation starts from inputs that reach past the first check. They are made at run time by
 * the writers of the tests and the libraries, so that a changed format needs no new files.
 * Who calls it: tests/fuzz/run. Failure: one line on stderr and status 1. Concurrency: none.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kv/score.h"
#include "pool/pool.h"
#include "pool/pool_disk.h"
#include "proto/envelope.h"
#include "tests/fuzz/file_seeds.h"
#include "tests/fuzz/pool_seed.h"
#include "tests/fuzz/record_types.h"
#include "tests/model/tiny_model.h"
#include "tests/pool/directory_write.h"

static const char *folder;

void seed_failed(const char *what)
{
    fprintf(stderr, "make_seeds: %s: %s\n", what, strerror(errno));
    exit(1);
}

void write_seed(const char *target, const char *name, const struct blob *seed)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, target);
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        seed_failed(path);
    snprintf(path, sizeof(path), "%s/%s/seed-%s", folder, target, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(seed->data, 1, seed->size, file) != seed->size || fclose(file) != 0)
        seed_failed(path);
}

/* ---- model ---------------------------------------------------------------------------------- */

static void write_model(const char *name, struct writer *w)
{
    struct blob file = writer_build(w);
    write_seed("model", name, &file);
    free(file.data);
    writer_free(w);
}

static void bpe_model(void)
{
    static const char *const more[] = {"th", "the", "<s>", "</s>"}, *const merges[] = {"t h",
                                                                                       "th e"};
    struct writer w = writer_new();
    key_text(&w, "general.architecture", "llama");
    tiny_counts(&w);
    byte_vocabulary(&w, "llama-bpe", more, 4, merges, 2);
    key_u32(&w, "tokenizer.ggml.bos_token_id", 258);
    write_model("bpe", &w);
}

/* A "llama" vocabulary with every kind of token, some bytes missing. */
static void spm_model(void)
{
    static const char *const texts[] = {"<unk>",        "<s>", "</s>", "<0x0A>",        "<0xFF>",
                                        "\xE2\x96\x81", "t",   "h",    "\xE2\x96\x81t", "<user>"};
    static const float scores[] = {0, 0, 0, 0, 0, -1, -2, -3, -0.5f, 0};
    static const int32_t types[] = {2, 3, 3, 6, 6, 1, 1, 1, 1, 4};
    struct writer w = writer_new();
    key_text(&w, "general.architecture", "llama");
    tiny_counts(&w);
    key_text(&w, "tokenizer.ggml.model", "llama");
    key_texts(&w, "tokenizer.ggml.tokens", texts, 10);
    key_array(&w, "tokenizer.ggml.scores", GGUF_F32, 10);
    put(&w.values, scores, sizeof(scores));
    key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 10);
    put(&w.values, types, sizeof(types));
    key_u32(&w, "tokenizer.ggml.unknown_token_id", 0);
    key_bool(&w, "tokenizer.ggml.add_space_prefix", 1);
    tensor(&w, "output_norm.weight", TINY_EMBD, 1, GGUF_TENSOR_F32, NULL, TINY_EMBD * 4);
    write_model("spm", &w);
}

static void whole_model(void)
{
    struct writer w = writer_new();
    key_text(&w, "general.architecture", "llama");
    tiny_counts(&w);
    tiny_vocabulary(&w);
    tiny_tensors(&w, NULL);
    write_model("whole", &w);
}

/* ---- envelope ------------------------------------------------------------------------------- */

static void write_message(const char *name, const Hill__Message *message)
{
    static const uint8_t frame[8] = {'H', 'I', 'L', 'L', PROTO_VERSION, 0, 0, 0};
    struct blob seed = {0};
    uint8_t body[1024];
    if (hill__message__get_packed_size(message) > sizeof(body))
        seed_failed("a message is too long");
    put(&seed, frame, 8);
    put(&seed, body, hill__message__pack(message, body));
    write_seed("envelope", name, &seed);
    free(seed.data);
}

static void hello_message(void)
{
    Hill__Hello hello = HILL__HELLO__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    hello.role = HILL__ROLE__ROLE_GPU_WORKER;
    hello.pid = 42;
    hello.version = (char *)"0.1.0";
    hello.records_version = PROTO_RECORDS_VERSION;
    message.body_case = HILL__MESSAGE__BODY_HELLO;
    message.hello = &hello;
    write_message("hello", &message);
}

static void generate_messages(void)
{
    uint32_t tokens[] = {1, 2, 300};
    Hill__Sampling sampling = HILL__SAMPLING__INIT;
    Hill__Selection selection = HILL__SELECTION__INIT;
    Hill__Generate generate = HILL__GENERATE__INIT;
    Hill__Prefill prefill = HILL__PREFILL__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    sampling.top_p = 1;
    sampling.repeat_penalty = 1;
    selection.alpha = 0.2;
    selection.sinks = 4;
    selection.window = 64;
    generate.prompt = (ProtobufCBinaryData){5, (uint8_t *)"hello"};
    generate.predict = 16;
    generate.sampling = &sampling;
    generate.selection = &selection;
    message.body_case = HILL__MESSAGE__BODY_GENERATE;
    message.generate = &generate;
    write_message("generate", &message);
    prefill.request_id = 7;
    prefill.n_tokens = 3;
    prefill.tokens = tokens;
    prefill.predict = 16;
    prefill.sampling = &sampling;
    prefill.selection = &selection;
    message.body_case = HILL__MESSAGE__BODY_PREFILL;
    message.prefill = &prefill;
    write_message("prefill", &message);
}

static void status_message(void)
{
    Hill__WorkerStatus worker = HILL__WORKER_STATUS__INIT, *workers[] = {&worker, &worker};
    Hill__StatusReply status = HILL__STATUS_REPLY__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    worker.role = HILL__ROLE__ROLE_CSD_AGENT;
    worker.state = (char *)"ready";
    worker.device = (char *)"a device";
    status.model = (char *)"model.gguf";
    status.n_workers = 2;
    status.workers = workers;
    message.body_case = HILL__MESSAGE__BODY_STATUS_REPLY;
    message.status_reply = &status;
    write_message("status", &message);
}

/* ---- records -------------------------------------------------------------------------------- */

/* A record of fuzz_types[kind] in geometry 0: its fixed part, then `more` zero bytes. */
static void write_record(uint8_t kind, const void *record, size_t bytes, size_t more)
{
    struct blob seed = {0};
    const uint8_t head[2] = {kind, 0};
    put(&seed, head, 2);
    put(&seed, record, bytes);
    while (more-- > 0)
        put(&seed, "", 1);
    write_seed("records", record_name(fuzz_types[kind]), &seed);
    free(seed.data);
}

static void record_of_kind(uint8_t kind)
{
    const struct kv_geometry *g = &fuzz_geometries[0];
    uint64_t entry = kv_entry_bytes(g);
    struct demote_parts parts;
    switch (fuzz_types[kind]) {
    case RECORD_SEQ_BEGIN:
        write_record(
            kind,
            &(struct record_seq_begin){
                .prompt_tokens = 8, .max_tokens = 9, .alpha = 0.5, .sinks = 1, .window = 2},
            sizeof(struct record_seq_begin), 0);
        break;
    case RECORD_APPEND:
        write_record(kind, &(struct record_append){.n_tokens = 2}, sizeof(struct record_append),
                     2 * entry);
        break;
    case RECORD_STEP_END:
        write_record(kind, &(struct record_step_end){.n_tokens = 2}, sizeof(struct record_step_end),
                     0);
        break;
    case RECORD_QUERY:
        write_record(kind, &(struct record_query){.n_heads = g->n_heads, .n_tokens = 2},
                     sizeof(struct record_query), g->n_heads * g->head_dim * sizeof(float));
        break;
    case RECORD_PROMPT:
        write_record(kind, &(struct record_prompt){.total_bytes = 3, .n_bytes = 2},
                     sizeof(struct record_prompt), 2);
        break;
    case RECORD_RESUME:
        write_record(kind, &(struct record_resume){.request_id = 1}, sizeof(struct record_resume),
                     0);
        break;
    case RECORD_READ:
        write_record(kind, &(struct record_read){.n_tokens = 2}, sizeof(struct record_read), 0);
        break;
    case RECORD_MASS:
        write_record(kind, &(struct record_mass){.n_tokens = 2}, sizeof(struct record_mass),
                     2 * sizeof(float));
        break;
    case RECORD_ENTRIES:
        write_record(kind, &(struct record_entries){.n_entries = 2}, sizeof(struct record_entries),
                     2 * sizeof(struct staged_entry));
        break;
    case RECORD_SELECTION:
        write_record(kind, &(struct record_selection){.n_selected = 1, .n_uploads = 1},
                     sizeof(struct record_selection),
                     sizeof(struct selected_item) + sizeof(struct selected_upload));
        break;
    case RECORD_COMMIT:
        write_record(kind, &(struct record_commit){.n_slots = 3}, sizeof(struct record_commit), 12);
        break;
    case RECORD_ADOPT: {
        struct {
            struct record_adopt record;
            struct adopt_item items[2];
        } r = {{.stripe = 1, .n_slots = 2}, {{256, 0, 9}, {260, 1, 8}}};
        write_record(kind, &r, sizeof r.record + sizeof r.items, 0);
        break;
    }
    case RECORD_RELEASE:
        write_record(kind, &(struct record_release){.n_slots = 3}, sizeof(struct record_release),
                     12);
        break;
    case RECORD_READ_KEYS: {
        struct {
            struct record_read_keys record;
            struct key_range ranges[2];
        } r = {{.n_ranges = 2}, {{0, 3}, {256, 4096}}};
        write_record(kind, &r, sizeof r, 0);
        break;
    }
    case RECORD_AGENT_QUERY:
        write_record(kind, &(struct record_agent_query){.block_tokens = 64, .n_host_words = 2},
                     sizeof(struct record_agent_query),
                     2 * sizeof(uint64_t) + kv_query_bytes(g, 0));
        break;
    case RECORD_FETCH:
        write_record(kind, &(struct record_fetch){.n_entries = 2}, sizeof(struct record_fetch),
                     2 * sizeof(struct fetch_item));
        break;
    case RECORD_DEMOTE:
        record_demote_parts(&parts, g, 14, 3);
        write_record(kind, &(struct record_demote){.first_slot = 14, .n_slots = 3},
                     sizeof(struct record_demote), parts.total - sizeof(struct record_demote));
        break;
    case RECORD_SCORE_BLOCK:
        write_record(
            kind, &(struct record_score_block){.n = 2, .version = SCORE_BLOCK_VERSION, .planes = 1},
            sizeof(struct record_score_block), 2 * sizeof(struct score_tuple));
        break;
    case RECORD_COMPLETION:
        write_record(kind, &(struct record_completion){.command = RECORD_FETCH},
                     sizeof(struct record_completion), 0);
        break;
    case RECORD_SEQ_READY:
        write_record(kind, &(struct record_seq_ready){.kept_tokens = 9, .n_damaged = 1},
                     sizeof(struct record_seq_ready), sizeof(struct damaged_entry));
        break;
    default: /* SEQ_END, SEQ_STATS, TRIM: 32 bytes of anything */
        write_record(kind, &(struct record_trim){.tag = 0}, sizeof(struct record_trim), 0);
    }
}

/* ---- pool ----------------------------------------------------------------------------------- */

/* The head of a pool with one claimed stripe: superblock and directory, cut before the digests. */
static void pool_seed(const char *name, const struct kv_geometry *g, uint8_t seal)
{
    struct pool_layout layout;
    struct pool_directory *d = NULL;
    struct hill_why why = {""};
    struct blob seed = {0};
    FILE *file = tmpfile(); /* not a memfd: its file system says that it has no free space */
    int fd = file != NULL ? fileno(file) : -1;
    if (fd < 0 ||
        pool_layout_with_keys(&layout, g, 0, pool_bytes_with_keys(g, 0, 1, 64), &why) != 0 ||
        pool_format(fd, &layout, FUZZ_POOL_FINGERPRINT, &why) != 0 ||
        pool_open(&d, fd, FUZZ_POOL_FINGERPRINT, &why) != 0)
        seed_failed(why.text);
    pool_stripe_claim(d, 0, 0, 0, 0);
    for (uint32_t slot = 0; slot < 70; slot++)
        pool_slot_set(d, slot, slot, slot * 77);
    if (pool_directory_write(d, &layout, fd, 0, &why) != 0)
        seed_failed(why.text);
    uint64_t units = (layout.total_bytes >> FUZZ_POOL_SIZE_SHIFT) + 1;
    uint8_t head[2] = {seal, (uint8_t)(units < 255 ? units : 255)};
    uint8_t *bytes = malloc(layout.digest_offset);
    if (bytes == NULL || pread(fd, bytes, layout.digest_offset, 0) != (ssize_t)layout.digest_offset)
        seed_failed("reading back a pool");
    put(&seed, head, 2);
    put(&seed, bytes, layout.digest_offset);
    write_seed("pool", name, &seed);
    free(bytes);
    free(seed.data);
    pool_close(d);
    fclose(file);
}

int main(int argc, char **argv)
{
    static const struct kv_geometry two_layers = {2, 4, 2, 64}, one_layer = {1, 1, 1, 256};
    if (argc != 2) {
        fprintf(stderr, "usage: make_seeds FOLDER\n");
        return 100;
    }
    folder = argv[1];
    file_seeds();
    bpe_model();
    spm_model();
    whole_model();
    hello_message();
    generate_messages();
    status_message();
    for (uint8_t kind = 0; kind < FUZZ_N_TYPES; kind++)
        record_of_kind(kind);
    pool_seed("whole", &two_layers, 0);
    pool_seed("sealed", &two_layers, FUZZ_POOL_SEAL_SUPERBLOCK | FUZZ_POOL_SEAL_RECORDS);
    pool_seed("small", &one_layer, FUZZ_POOL_SEAL_SUPERBLOCK | FUZZ_POOL_SEAL_RECORDS);
    return 0;
}

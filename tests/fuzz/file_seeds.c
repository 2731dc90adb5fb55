/*
 * tests/fuzz/file_seeds.c - seeds of files and texts: sessions, traces, recordings, token logs,
 * small files, configurations, conversations, texts; commands of the agent, and models of every
 * architecture and tensor type. Called by make_seeds.c; failure as there.
 */
#include "tests/fuzz/file_seeds.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/drives_record.h"
#include "coordinator/profile.h"
#include "coordinator/tiers_record.h"
#include "coordinator/token_log.h"
#include "model/arch.h"
#include "kv/score.h"
#include "model/blocks.h"
#include "placement/trace.h"
#include "proto/drive_link.h"
#include "proto/records.h"
#include "recording/recording.h"
#include "prefix/chunk_file.h"
#include "session/session.h"
#include "tests/fuzz/session_seed.h"
#include "tests/model/tiny_model.h"
#include "tests/proto/configure.h"

/* ---- models --------------------------------------------------------------------------------- */

enum { EMBD = 32, FF = 32, HEADS = 4, KV = 2, HEAD_DIM = 8 };

static void number(struct writer *w, const char *arch, const char *name, uint32_t value)
{
    char text[96];
    snprintf(text, sizeof text, "%s.%s", arch, name);
    key_u32(w, text, value);
}

/* A matrix of zeros. */
static void matrix(struct writer *w, const char *name, uint64_t width, uint64_t height,
                   uint32_t type)
{
    const struct block_format *f = block_format(type);
    if (width % f->items || height == 1)
        f = block_format(GGUF_TENSOR_F32);
    tensor(w, name, width, height, f->type, NULL, width / f->items * f->bytes * height);
}

static void layer_part(struct writer *w, enum arch_part part, uint32_t type)
{
    static const uint16_t shapes[ARCH_PART_COUNT][2] = {
        [ARCH_PART_Q] = {EMBD, HEADS * HEAD_DIM},
        [ARCH_PART_K] = {EMBD, KV * HEAD_DIM},
        [ARCH_PART_V] = {EMBD, KV * HEAD_DIM},
        [ARCH_PART_QKV] = {EMBD, (HEADS + 2 * KV) * HEAD_DIM},
        [ARCH_PART_Q_BIAS] = {HEADS * HEAD_DIM, 1},
        [ARCH_PART_K_BIAS] = {KV * HEAD_DIM, 1},
        [ARCH_PART_V_BIAS] = {KV * HEAD_DIM, 1},
        [ARCH_PART_Q_NORM] = {HEAD_DIM, 1},
        [ARCH_PART_K_NORM] = {HEAD_DIM, 1},
        [ARCH_PART_OUTPUT] = {HEADS * HEAD_DIM, EMBD},
        [ARCH_PART_GATE] = {EMBD, FF},
        [ARCH_PART_UP] = {EMBD, FF},
        [ARCH_PART_GATE_UP] = {EMBD, 2 * FF},
        [ARCH_PART_UP_BIAS] = {FF, 1},
        [ARCH_PART_DOWN] = {FF, EMBD},
    };
    char name[96];
    snprintf(name, sizeof name, "blk.0.%s", arch_part_name(part));
    if (shapes[part][0])
        matrix(w, name, shapes[part][0], shapes[part][1], type);
    else /* norms and biases */
        matrix(w, name, EMBD, 1, type);
}

static void arch_model(const char *name, uint32_t type)
{
    static const char *const counts[] = {"block_count",          "context_length",
                                         "embedding_length",     "feed_forward_length",
                                         "attention.head_count", "attention.head_count_kv",
                                         "attention.key_length", "attention.value_length"};
    static const uint32_t values[] = {1, 64, EMBD, FF, HEADS, KV, HEAD_DIM, HEAD_DIM};
    const struct model_arch *arch = arch_find((struct gguf_string){name, strlen(name)});
    struct writer w = writer_new();
    char seed[64];
    key_text(&w, "general.architecture", name);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        number(&w, name, counts[i], values[i]);
    number(&w, name, "attention.sliding_window", 16);
    tiny_vocabulary(&w);
    matrix(&w, "token_embd.weight", EMBD, TINY_VOCAB, type);
    tiny_f32(&w, "output_norm.weight", EMBD, 1);
    if (arch->norm == ARCH_NORM_LAYER)
        tiny_f32(&w, "output_norm.bias", EMBD, 1);
    for (enum arch_part part = 0; part < ARCH_PART_COUNT; part++)
        if (arch_requires(arch, part))
            layer_part(&w, part, type);
    /* of types whose blocks are too long for these matrices */
    matrix(&w, "a.block", block_format(type)->items, 2, type);
    snprintf(seed, sizeof seed, "%s-%s", name, block_format(type)->name);
    struct blob file = writer_build(&w);
    write_seed("model", seed, &file);
    free(file.data);
    writer_free(&w);
}

static void model_seeds(void)
{
    static const char *const archs[] = {"llama",  "qwen2", "qwen3",   "smollm3",
                                        "gemma3", "phi3",  "mistral3"};
    uint32_t n = 0;
    for (uint32_t type = 0; type < 64; type++)
        if (block_format(type))
            arch_model(archs[n++ % 7], type);
    arch_model("opt", GGUF_TENSOR_F16);
}

/* ---- files ---------------------------------------------------------------------------------- */

/* Two chunks, one behind the other; their checksums are made right by fuzz_chunks. */
static void chunks_seed(void)
{
    struct blob seed = {0};
    struct chunk_file_header h = {.magic = CHUNK_FILE_MAGIC,
                                  .version = CHUNK_FILE_VERSION,
                                  .header_bytes = sizeof h,
                                  .terms = {1000, 77, 2, 16, 50, 0}};
    const uint8_t all = 3;
    put(&seed, &all, 1);
    put(&seed, &h, sizeof h);
    for (uint32_t at = sizeof h; at < CHUNK_FILE_HEAD; at++)
        put(&seed, "", 1);
    for (uint32_t i = 0; i < 2; i++) {
        struct chunk_record r = {.stamp = 5 + i,
                                 .parent_stamp = i ? 5 : 0,
                                 .settings = 1,
                                 .owner = i ? 7 : 0,
                                 .cost = 1,
                                 .slot = i,
                                 .parent = i ? 0 : CHUNK_NONE,
                                 .first = i * CHUNK_TOKENS,
                                 .n = i ? 20 : CHUNK_TOKENS,
                                 .n_plain = i ? 9 : CHUNK_TOKENS,
                                 .uses = 1};
        put(&seed, &r, sizeof r);
    }
    write_seed("chunks", "two", &seed);
    free(seed.data);
}

static void session_seed(const char *name, uint16_t policy)
{
    struct kv_geometry g = {2, 2, 1, 4};
    struct session_header h = {.terms = {.n_layers = 2,
                                         .n_heads = 2,
                                         .n_kv_heads = 1,
                                         .head_dim = 4,
                                         .n_embd = 8,
                                         .n_vocab = 16,
                                         .policy = policy,
                                         .alpha = 0.2,
                                         .sinks = 1,
                                         .window = 2,
                                         .score_bits = 8},
                               .top_p = 1,
                               .repeat_penalty = 1,
                               .n_prompt = 3,
                               .n_tokens = 5,
                               .n_entries = 4,
                               .entry_bytes = kv_entry_bytes(&g),
                               .step = 2,
                               .first_append = 3,
                               .device = "cpu"};
    XXH64_state_t *hash = XXH64_createState();
    struct blob seed = {0};
    const uint8_t all = FUZZ_SESSION_HEADER | FUZZ_SESSION_TOKENS | FUZZ_SESSION_LAYERS;
    XXH64_reset(hash, 0);
    hash_state_save(&h.selection_hash, hash);
    hash_state_save(&h.logits_hash, hash);
    XXH64_freeState(hash);
    session_seal(&h);
    put(&seed, &all, 1);
    put(&seed, &h, sizeof h);
    for (uint64_t at = sizeof h; at < h.file_bytes; at++)
        put(&seed, "\1", 1); /* tokens, entries, and room for checksums */
    write_seed("session", name, &seed);
    free(seed.data);
}

/* What `path` holds now; the file is removed. */
static void put_file(struct blob *seed, const char *path)
{
    uint8_t buffer[4096];
    FILE *file = fopen(path, "rb");
    for (size_t n; file && (n = fread(buffer, 1, sizeof buffer, file)) > 0;)
        put(seed, buffer, n);
    if (!file || fclose(file) != 0)
        seed_failed(path);
    unlink(path);
}

/* The same behind a byte 0. */
static void file_seed(const char *target, const char *name, const char *path)
{
    struct blob seed = {0};
    put(&seed, "\3", 1);
    put_file(&seed, path);
    write_seed(target, name, &seed);
    free(seed.data);
}

/* A name in /tmp of this process: seeds of two fuzzers may be made at the same time. */
static void seed_path(char out[64], const char *what)
{
    snprintf(out, 64, "/tmp/hill-fuzz-%s-%d", what, (int)getpid());
    unlink(out);
}

static void trace_seed(void)
{
    const struct trace_settings settings = {.geometry = {2, 2, 1, 4}, .window = 4, .alpha = 0.5};
    const uint32_t words[] = {0, 2 | TRACE_COLD, 3 | TRACE_GPU};
    const uint16_t scores[] = {9, 8, 7, 6, 5};
    struct trace_query query = {.request = 1, .n_tokens = 5, .n_selected = 3, .words = words};
    struct trace_writer *w;
    struct hill_why why;
    char path[64];
    seed_path(path, "trace");
    if (trace_open(&w, path, &settings, &why) != 0 || trace_query(w, &query) != 0)
        seed_failed(path);
    query.scores = scores;
    query.layer = 1;
    if (trace_query(w, &query) != 0 || trace_close(w) != 0)
        seed_failed(path);
    file_seed("trace", "two", path);
}

static void recording_seed(void)
{
    const struct layout_input layout = {
        .geometry = {2, 4, 2, 16}, .ctx_tokens = 64, .n_sequences = 1};
    struct epoch_settings settings = make_settings(&layout, 1);
    char name[RECORDING_NAME_BYTES];
    struct recording *r;
    struct hill_why why;
    char path[64];
    seed_path(path, "recording");
    if (recording_create(&r, path, &settings, name, &why) != 0 || recording_close(r) != 0)
        seed_failed(path);
    file_seed("recording", "empty", name);
}

/* A request of three tokens that has run on a slot and has two of eight. */
static void token_log_seed(void)
{
    uint32_t prompt[] = {11, 12, 13};
    uint8_t terms[PROTO_SESSION_TERMS_BYTES] = {0};
    Hill__Sampling sampling = HILL__SAMPLING__INIT;
    Hill__Selection selection = HILL__SELECTION__INIT;
    Hill__Prefill prefill = HILL__PREFILL__INIT;
    Hill__RequestOrder order = HILL__REQUEST_ORDER__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    struct token_log *log;
    struct hill_why why;
    char path[64];
    sampling.top_p = sampling.repeat_penalty = 1;
    selection.alpha = 0.2;
    prefill.tokens = prompt;
    prefill.n_tokens = 3;
    prefill.predict = 8;
    prefill.sampling = &sampling;
    prefill.selection = &selection;
    order.request_id = order.key = 4;
    order.prefill = &prefill;
    order.terms = (ProtobufCBinaryData){sizeof terms, terms};
    message.body_case = HILL__MESSAGE__BODY_REQUEST_ORDER;
    message.request_order = &order;
    seed_path(path, "token_log");
    if (token_log_create(&log, path, FUZZ_LOG_RUN_ID, TOKEN_LOG_FLUSH_NEVER, &message, &why) ||
        token_log_start(log, 1, 1, &why))
        seed_failed(path);
    for (uint32_t i = 0; i < 2; i++) {
        const struct token_log_token token = {i, 100 + i, -0.5, 1000, {0}};
        if (token_log_append(log, &token, 0, &why))
            seed_failed(path);
    }
    token_log_close(log);
    file_seed("token_log", "two", path);
}

/* ---- what is changed in place, and small files ---------------------------------------------- */

/* Nothing and single words of what the harness lays out: see change() in fuzz_adoption.c and
 * fuzz_chunk_keys.c. */
static void edit_seeds(void)
{
    struct blob nothing = {0}, words = {0};
    put(&nothing, "\3\0", 2);
    put(&words, "\3\0\1\0\5\3\0\0\100\2\0\4\1\0\0\0\3\0\2\2\0\0\0", 23);
    write_seed("adoption", "nothing", &nothing);
    write_seed("adoption", "words", &words);
    write_seed("chunk_keys", "nothing", &nothing);
    write_seed("chunk_keys", "words", &words);
    free(nothing.data);
    free(words.data);
}

static void key_seed(const char *path)
{
    struct blob seed = {0};
    struct hill_why why;
    char beside[80];
    snprintf(beside, sizeof beside, "%s.pub", path);
    if (drive_keys_write(path, &why))
        seed_failed(path);
    put(&seed, "\2", 1);
    put_file(&seed, path);
    put(&seed, "", 1);
    put_file(&seed, beside);
    write_seed("small_files", "keys", &seed);
    free(seed.data);
}

static void drives_seed(void)
{
    static struct drives_record record = {
        .n = 2,
        .drives = {{DRIVE_NOTE_ATTACHED, 1 << 20, {.on = false}, "file:/tmp/a pool"},
                   {DRIVE_NOTE_NONE, 0, {.on = false}, ""}}};
    struct blob seed = {0};
    struct hill_why why;
    char path[64], name[80];
    seed_path(path, "folder");
    snprintf(name, sizeof name, "%s/drives", path);
    if (csd_model_parse(&record.drives[0].model, "flash=1", &why) || mkdir(path, 0700) ||
        drives_record_write(path, &record, &why))
        seed_failed(name);
    put(&seed, "\3", 1);
    put_file(&seed, name);
    drives_record_remove(path);
    rmdir(path);
    write_seed("small_files", "drives", &seed);
    free(seed.data);
}

static void small_file_seeds(void)
{
    const struct layout_input layout = {
        .geometry = {2, 4, 2, 16}, .ctx_tokens = 64, .n_sequences = 1};
    struct epoch_settings settings = make_settings(&layout, 1);
    const struct profile rates = {.rates = {4, 3, 2, 1}, .rounds = 9, .took_ms = 5};
    struct blob record = {0}, cache = {0};
    struct hill_why why;
    char path[64], name[80];
    settings.run_id = FUZZ_LOG_RUN_ID;
    settings.tiers_epoch = settings.epoch;
    seed_path(path, "record");
    snprintf(name, sizeof name, "%s/" TIERS_RECORD_NAME, path);
    if (mkdir(path, 0700) || tiers_record_write(path, &settings, 1, &why))
        seed_failed(path);
    put(&record, "\4", 1);
    put_file(&record, name);
    rmdir(path);
    write_seed("small_files", "record", &record);
    seed_path(path, "rates");
    if (profile_cache_store(path, "x", &rates, &why))
        seed_failed(path);
    put(&cache, "\1", 1);
    put_file(&cache, path);
    write_seed("small_files", "rates", &cache);
    seed_path(path, "key");
    key_seed(path);
    drives_seed();
    free(record.data);
    free(cache.data);
}

/* ---- texts ---------------------------------------------------------------------------------- */

static void text_seed(const char *target, const char *name, const void *text, size_t bytes)
{
    struct blob seed = {0};
    put(&seed, text, bytes);
    write_seed(target, name, &seed);
    free(seed.data);
}
#define TEXT_SEED(target, name, text) text_seed(target, name, text, sizeof(text) - 1)

static void text_seeds(void)
{
    TEXT_SEED("options", "arguments",
              "-m\0x.gguf\0-p\0hello\0--hot-mb\0"
              "64M\0--policy=h2o\0# a file\nalpha = 0.1\nctx-size = 4096\n");
    TEXT_SEED("options", "model",
              "csd-model = flash=2.9,write=1.0,link=3.2,gpu_link=25,score=44.5,dram=4G\nmodel = x\n"
              "beta = auto\nspeculate = verify\nsinks = 4\nwindow = 32\nplacement = bkp\n");
    TEXT_SEED("chat", "system", "\0\1Be short.\0Who are you?\0<think>x</think> Me.\0And?");
    TEXT_SEED("chat", "user", "\5\0<|im_end|> hello <s>");
    TEXT_SEED("tokenizer", "text",
              "\4\0The 12345 they'll  say\n\n\tna\xc3\xafve \xf0\x9f\x98\x80 \xff");
    TEXT_SEED("tokenizer", "pieces", "\7\215<s> the\0 thing\0</s>12");
    TEXT_SEED("ring", "consumer", "\2\0\0\100\0\40\0\0\0\0\300\0\1\0\0\0\0\304\0\10\0\0\0\1\2\3\1");
    TEXT_SEED("ring", "producer", "\3\1\3\5\4\7\5\1\3\20\2\0\0\200\0\20\0\0\0\3\5\1\0");
}

/* ---- commands ------------------------------------------------------------------------------- */

static void add_command(struct blob *to, uint8_t what, const void *record, uint64_t bytes)
{
    uint8_t head[3] = {what, (uint8_t)bytes, (uint8_t)(bytes >> 8)};
    put(to, head, 3);
    put(to, record, bytes);
}

/* Three slots go down, count, are scored, fetched and released. The numbers are fuzz_commands.c's:
 * ring 32 is background, the type's index is below 8. */
static void command_seed(void)
{
    const struct kv_geometry g = {2, 4, 2, 8};
    struct demote_parts parts;
    struct blob seed = {0};
    uint8_t demote[4096] = {0}, query[256] = {0};
    record_demote_parts(&parts, &g, 0, 3);
    *(struct record_demote *)(void *)demote = (struct record_demote){.tag = 1, .n_slots = 3};
    for (uint32_t i = 0; i < 3; i++)
        memcpy(demote + parts.positions + 4 * i, &i, 4);
    add_command(&seed, 32 + 6, demote, parts.total);
    struct {
        struct record_commit record;
        uint32_t slots[3];
    } commit = {{.tag = 2, .n_slots = 3}, {0, 1, 2}};
    add_command(&seed, 1, &commit, sizeof commit.record + sizeof commit.slots);
    *(struct record_agent_query *)(void *)query = (struct record_agent_query){
        .query_id = 3, .block_tokens = 64, .committed = 3, .expected = 3, .n_host_words = 1};
    add_command(&seed, 0, query, sizeof(struct record_agent_query) + 8 + kv_query_bytes(&g, 0));
    struct {
        struct record_fetch record;
        struct fetch_item items[2];
    } fetch = {{.tag = 4, .n_entries = 2}, {{0, 0, 0, 0}, {2, 2, 1, 0}}};
    add_command(&seed, 3, &fetch, sizeof fetch);
    add_command(&seed, 2, &commit, sizeof commit.record + sizeof commit.slots);
    write_seed("commands", "round", &seed);
    free(seed.data);
}

void file_seeds(void)
{
    model_seeds();
    session_seed("hillinfer", KV_POLICY_HILLINFER);
    session_seed("h2o", KV_POLICY_H2O);
    trace_seed();
    recording_seed();
    token_log_seed();
    edit_seeds();
    small_file_seeds();
    chunks_seed();
    text_seeds();
    command_seed();
}

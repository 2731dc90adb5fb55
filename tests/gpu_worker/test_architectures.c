/*
 * tests/gpu_worker/test_architectures.c - each architecture of the table against transformers: tiny
 * random-weight models and the logits that it gave, by prefill and by decode
 * (tests/oracle/random_architectures.py wrote both). The largest difference from the expected
 * logits is at most 1e-3 of the largest of them.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "tests/gpu_worker/engine_device.h"
#include "tests/model/gguf_writer.h"

#ifndef FIXTURES
#define FIXTURES "tests/gpu_worker/fixtures/"
#endif
#define MOST_TOKENS 512u

struct expected {
    uint32_t n_prompt, n_steps, n_vocab, ctx_tokens;
    uint32_t ids[MOST_TOKENS];
    float *logits; /* [n_steps + 1][n_vocab] */
};

static void read_expected(const char *name, struct expected *out)
{
    char path[256];
    snprintf(path, sizeof path, FIXTURES "%s.expected", name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s: tests run in the repository's root", path);
    assert_int_equal(fread(out, 4, 4, f), 4);
    uint32_t n = out->n_prompt + out->n_steps, values = (out->n_steps + 1) * out->n_vocab;
    assert_true(n <= MOST_TOKENS);
    assert_int_equal(fread(out->ids, 4, n, f), n);
    out->logits = calloc(values, sizeof *out->logits);
    assert_int_equal(fread(out->logits, 4, values, f), values);
    fclose(f);
}

/* The largest difference as a share of the largest expected value. */
static double difference(const struct expected *x, uint32_t step, const float *logits)
{
    const float *want = x->logits + (size_t)step * x->n_vocab;
    double highest = 0, worst = 0;
    for (uint32_t i = 0; i < x->n_vocab; i++) {
        highest = fmax(highest, fabs(want[i]));
        worst = fmax(worst, isfinite(logits[i]) ? fabs(logits[i] - want[i]) : INFINITY);
    }
    return worst / highest;
}

struct opened {
    struct gguf_file *file;
    struct model_hparams hp;
    struct engine *engine;
};

/* With o->file open. */
static void open_engine(struct opened *o, uint32_t ctx_tokens, bool own_memory)
{
    struct hill_why why = {0};
    struct cldevice d = device;
    d.shares_memory = device.shares_memory && !own_memory;
    RUN_CHECK(model_hparams_read(&o->hp, o->file, &why));
    RUN_CHECK(engine_create(&o->engine, &d, o->file, &o->hp, &why));
    RUN_CHECK(engine_set_context(o->engine, ctx_tokens, &why));
}

static void open_fixture(struct gguf_file **out, const char *name)
{
    struct hill_why why = {0};
    char path[256];
    snprintf(path, sizeof path, FIXTURES "%s.gguf", name);
    RUN_CHECK(gguf_open(out, path, &why));
}

static void open_model(struct opened *o, const char *name, uint32_t ctx_tokens, bool own_memory)
{
    open_fixture(&o->file, name);
    open_engine(o, ctx_tokens, own_memory);
}

static void close_model(struct opened *o)
{
    engine_destroy(o->engine);
    gguf_close(o->file);
}

/* Every row of the prompt by prefill, one length after the other; the rest by decode. */
static double compare_opened(const struct opened *o, const struct expected *x, const char *name,
                             uint32_t batch)
{
    struct engine_run run;
    assert_int_equal(o->hp.n_vocab, x->n_vocab);
    run_init(&run, o->engine, batch, MOST_TOKENS);
    double worst = 0;
    for (uint32_t s = 0; s <= x->n_steps; s++) {
        run_prefill(&run, x->ids, x->n_prompt + s);
        worst = fmax(worst, difference(x, s, run.logits));
    }
    double by_prefill = worst;
    run_prefill(&run, x->ids, x->n_prompt);
    for (uint32_t s = 1; s <= x->n_steps; s++) {
        run_step(&run, x->ids[x->n_prompt + s - 1]);
        worst = fmax(worst, difference(x, s, run.logits));
    }
    print_message("%s: %.1e by prefill, %.1e with decode\n", name, by_prefill, worst);
    run_finish(&run);
    return worst;
}

static double compare(const char *name, uint32_t batch, bool own_memory)
{
    struct expected x;
    struct opened o;
    read_expected(name, &x);
    /* one file, two contexts */
    open_model(&o, strcmp(name, "phi3_short") ? name : "phi3_long", x.ctx_tokens, own_memory);
    double worst = compare_opened(&o, &x, name, batch);
    close_model(&o);
    free(x.logits);
    return worst;
}

static void agrees(void **state)
{
    const char *name = *state;
    assert_true(compare(name, 512, false) < 1e-3);
    assert_true(compare(name, 24, false) < 1e-3);
}

static void agrees_with_memory_of_its_own(void **state)
{
    const char *name = *state;
    assert_true(compare(name, 512, true) < 1e-3);
}

/* ---- a fixture's file, written in another way --------------------------------------------- */

static const char *key_of(const char *arch, const char *name)
{
    static char text[96];
    snprintf(text, sizeof text, "%s.%s", arch, name);
    return text;
}

static void copy_metadata(struct writer *w, const struct model_hparams *hp, const char *arch)
{
    key_text(w, "general.architecture", arch);
    key_u32(w, key_of(arch, "block_count"), hp->n_layers);
    key_u32(w, key_of(arch, "context_length"), hp->n_ctx_train);
    key_u32(w, key_of(arch, "embedding_length"), hp->n_embd);
    key_u32(w, key_of(arch, "feed_forward_length"), hp->n_ff);
    key_u32(w, key_of(arch, "attention.head_count"), hp->n_heads);
    key_u32(w, key_of(arch, "attention.head_count_kv"), hp->n_kv_heads);
    key_u32(w, key_of(arch, "attention.key_length"), hp->head_dim);
    key_u32(w, key_of(arch, "attention.value_length"), hp->head_dim);
    key_f32(w, key_of(arch, "attention.layer_norm_rms_epsilon"), hp->norm_eps);
    key_f32(w, key_of(arch, "rope.freq_base"), hp->rope_base);
    if (!hp->rope_yarn)
        return;
    key_text(w, key_of(arch, "rope.scaling.type"), "yarn");
    key_f32(w, key_of(arch, "rope.scaling.factor"), hp->rope_scale);
    key_u32(w, key_of(arch, "rope.scaling.original_context_length"), hp->rope_original_tokens);
}

/* The layer's q, k and v, or their biases, as one. */
static void join_qkv(struct writer *w, const struct gguf_file *from, unsigned layer,
                     const char *kind)
{
    struct blob all = {0};
    uint64_t width = 0, rows = 0;
    char name[64];
    for (const char *part = "qkv"; *part; part++) {
        snprintf(name, sizeof name, "blk.%u.attn_%c.%s", layer, *part, kind);
        const struct gguf_tensor *t = gguf_tensor(from, name);
        assert_non_null(t);
        put(&all, t->data, t->bytes);
        width = t->n_dims == 1 ? width + t->dims[0] : t->dims[0];
        rows = t->n_dims == 1 ? 1 : rows + t->dims[1];
    }
    snprintf(name, sizeof name, "blk.%u.attn_qkv.%s", layer, kind);
    tensor(w, name, width, rows, GGUF_TENSOR_F32, all.data, all.size);
    free(all.data);
}

static void copy_tensors(struct writer *w, const struct gguf_file *from, bool joint)
{
    for (uint64_t i = 0; i < gguf_tensor_count(from); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(from, i);
        char name[64], part, kind[16];
        unsigned layer;
        snprintf(name, sizeof name, "%.*s", (int)t->name.length, t->name.data);
        bool of_qkv = sscanf(name, "blk.%u.attn_%c.%15s", &layer, &part, kind) == 3;
        if (!joint || !of_qkv)
            tensor(w, name, t->dims[0], t->dims[1], t->type, t->data, t->bytes);
        else if (part == 'q')
            join_qkv(w, from, layer, kind);
    }
}

/* multiplier: yarn_log_multiplier, below 0 not stated; joint: q, k and v are one tensor. */
static void open_rewritten(struct gguf_file **out, const char *name, const char *arch,
                           float multiplier, bool joint)
{
    struct gguf_file *from;
    struct model_hparams hp;
    struct hill_why why = {0};
    struct writer w = writer_new();
    open_fixture(&from, name);
    RUN_CHECK(model_hparams_read(&hp, from, &why));
    copy_metadata(&w, &hp, arch);
    if (multiplier >= 0)
        key_f32(&w, key_of(arch, "rope.scaling.yarn_log_multiplier"), multiplier);
    copy_tensors(&w, from, joint);
    RUN_CHECK(open_writer(out, &w, &why));
    gguf_close(from);
}

static double compare_rewritten(const char *name, const char *arch, float multiplier, bool joint)
{
    struct expected x;
    struct opened o;
    read_expected(name, &x);
    open_rewritten(&o.file, name, arch, multiplier, joint);
    open_engine(&o, x.ctx_tokens, false);
    double worst = compare_opened(&o, &x, name, 512);
    close_model(&o);
    free(x.logits);
    return worst;
}

/* Its logits are llama's; with another amplitude they are not. */
static void mistral3_is_llama_but_for_the_amplitude(void **state)
{
    (void)state;
    assert_true(compare_rewritten("llama_yarn", "mistral3", 0, false) < 1e-3);
    assert_true(compare_rewritten("llama_yarn", "mistral3", 1, false) > 1e-2);
}

static void queries_keys_and_values_may_be_one_tensor(void **state)
{
    (void)state;
    assert_true(compare_rewritten("llama_yarn", "llama", -1, true) < 1e-3);
    assert_true(compare_rewritten("qwen2", "qwen2", -1, true) < 1e-3); /* with a bias */
    assert_true(compare_rewritten("qwen3", "qwen3", -1, true) < 1e-3);
}

/* The comparison must be able to fail: with another context's factors it does. */
static void longrope_follows_the_context(void **state)
{
    struct expected x;
    struct opened o;
    struct engine_run run;
    (void)state;
    read_expected("phi3_long", &x);
    open_model(&o, "phi3_long", 64, false);
    run_init(&run, o.engine, 512, MOST_TOKENS);
    run_prefill(&run, x.ids, x.n_prompt);
    assert_true(difference(&x, 0, run.logits) > 1e-2);
    run_finish(&run);
    close_model(&o);
    free(x.logits);
}

static void a_position_that_was_not_learned_is_refused(void **state)
{
    struct opened o;
    struct engine_run run;
    struct hill_why why = {0};
    uint32_t tokens[97] = {0};
    (void)state;
    open_model(&o, "opt", 96, false);
    assert_int_equal(o.hp.n_ctx_max, 96);
    run_init(&run, o.engine, 512, MOST_TOKENS);
    RUN_CHECK(engine_prefill_begin(o.engine, 0, 97, &why));
    assert_int_equal(engine_prefill_tokens(o.engine, tokens, 97, &why), HILL_E_INVALID);
    assert_non_null(strstr(why.text, "position 96 of 96"));
    run_finish(&run);
    close_model(&o);
}

#define EACH(NAME)                                                                                 \
    {#NAME, agrees, NULL, NULL, (void *)(uintptr_t) #NAME},                                        \
    {                                                                                              \
#NAME ", memory of its own", agrees_with_memory_of_its_own, NULL, NULL,                    \
            (void *)(uintptr_t) #NAME                                                              \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(llama_yarn),
        EACH(llama_llama3),
        EACH(llama_linear),
        EACH(qwen2),
        EACH(qwen2_yarn),
        EACH(qwen3),
        EACH(smollm3),
        EACH(gemma3),
        EACH(phi3),
        EACH(phi3_short),
        EACH(phi3_long),
        EACH(opt),
        cmocka_unit_test(mistral3_is_llama_but_for_the_amplitude),
        cmocka_unit_test(queries_keys_and_values_may_be_one_tensor),
        cmocka_unit_test(longrope_follows_the_context),
        cmocka_unit_test(a_position_that_was_not_learned_is_refused),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}

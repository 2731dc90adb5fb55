/*
 * tests/model/test_hparams.c - model/hparams.h: the shape that is read, and models that cannot be
 * used.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "model/hparams.h"
#include "tests/model/tiny_model.h"

static int read_writer(struct writer *w, struct model_hparams *hp, struct hill_why *why)
{
    struct gguf_file *file;
    if (open_writer(&file, w, why))
        fail_msg("%s", why->text);
    why->text[0] = 0;
    int rc = model_hparams_read(hp, file, why);
    gguf_close(file);
    return rc;
}

static struct writer metadata(void)
{
    struct writer w = writer_new();
    key_text(&w, "general.architecture", "llama");
    tiny_counts(&w);
    return w;
}

static void refused(struct writer *w, int code, const char *word)
{
    struct model_hparams hp;
    struct hill_why why;
    assert_int_equal(read_writer(w, &hp, &why), code);
    if (!strstr(why.text, word))
        fail_msg("'%s' does not say '%s'", why.text, word);
}

static void shape_and_defaults_are_read(void **state)
{
    (void)state;
    struct model_hparams hp;
    struct hill_why why;
    struct writer w = metadata();
    tiny_vocabulary(&w);
    tiny_tensors(&w, NULL);
    if (read_writer(&w, &hp, &why))
        fail_msg("%s", why.text);
    assert_int_equal(hp.n_layers, 2);
    assert_int_equal(hp.n_embd, 8);
    assert_int_equal(hp.n_heads, 4);
    assert_int_equal(hp.n_kv_heads, 2);
    assert_int_equal(hp.head_dim, 2);
    assert_int_equal(hp.n_ff, 12);
    assert_int_equal(hp.n_vocab, TINY_VOCAB);
    assert_int_equal(hp.n_ctx_train, 64);
    assert_int_equal(hp.rope_dims, 2);
    assert_true(hp.rope_base == 10000 && hp.rope_scale == 1 && hp.norm_eps == 1e-5f);
}

static void stated_numbers_replace_defaults(void **state)
{
    (void)state;
    struct model_hparams hp;
    struct hill_why why;
    struct writer w = metadata();
    key_u32(&w, "llama.attention.key_length", 2);
    key_u32(&w, "llama.attention.value_length", 2);
    key_u32(&w, "llama.rope.dimension_count", 2);
    key_f32(&w, "llama.rope.freq_base", 1e15f);
    key_text(&w, "llama.rope.scaling.type", "linear");
    key_f32(&w, "llama.rope.scaling.factor", 4);
    key_f32(&w, "llama.attention.layer_norm_rms_epsilon", 1e-6f);
    tiny_tensors(&w, NULL);
    tiny_f32(&w, "output.weight", TINY_EMBD, TINY_VOCAB);
    tiny_f32(&w, "rope_freqs.weight", 1, 1);
    if (read_writer(&w, &hp, &why))
        fail_msg("%s", why.text);
    assert_true(hp.rope_base == 1e15f && hp.rope_scale == 4 && hp.norm_eps == 1e-6f);
}

/* The paper's 0.1 ln(s) + 1, once, times attn_factor: as llama.cpp has it. */
static void yarn_scales_attention_once(void **state)
{
    (void)state;
    struct model_hparams hp;
    struct hill_why why;
    struct writer w = metadata();
    key_text(&w, "llama.rope.scaling.type", "yarn");
    key_f32(&w, "llama.rope.scaling.factor", 8);
    key_f32(&w, "llama.rope.scaling.yarn_attn_factor", 1.2079f);
    key_f32(&w, "llama.rope.scaling.attn_factor", 0.5f);
    tiny_vocabulary(&w);
    tiny_tensors(&w, NULL);
    if (read_writer(&w, &hp, &why))
        fail_msg("%s", why.text);
    assert_true(hp.rope_yarn && fabsf(hp.rope_amplitude - 0.5f * 1.20794415f) < 1e-6f);
}

/* The tiny shape as mistral3, with YaRN's factor 8. */
static struct writer mistral3(void)
{
    struct writer w = writer_new();
    key_text(&w, "general.architecture", "mistral3");
    key_u32(&w, "mistral3.block_count", TINY_LAYERS);
    key_u32(&w, "mistral3.context_length", 512);
    key_u32(&w, "mistral3.embedding_length", TINY_EMBD);
    key_u32(&w, "mistral3.feed_forward_length", TINY_FF);
    key_u32(&w, "mistral3.attention.head_count", TINY_HEADS);
    key_u32(&w, "mistral3.attention.head_count_kv", TINY_KV);
    key_text(&w, "mistral3.rope.scaling.type", "yarn");
    key_f32(&w, "mistral3.rope.scaling.factor", 8);
    key_u32(&w, "mistral3.rope.scaling.original_context_length", 64);
    tiny_tensors(&w, NULL);
    return w;
}

static void mistral3_lessens_yarns_amplitude(void **state)
{
    static const struct {
        float multiplier, amplitude;
    } cases[] = {{-1, 1.20794415f}, {0, 1.20794415f}, {1, 1}, {0.5f, 1.20794415f / 1.10397208f}};
    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_hparams hp;
        struct hill_why why;
        struct writer w = mistral3();
        if (cases[i].multiplier >= 0) /* else not stated */
            key_f32(&w, "mistral3.rope.scaling.yarn_log_multiplier", cases[i].multiplier);
        if (read_writer(&w, &hp, &why))
            fail_msg("%s", why.text);
        assert_int_equal(hp.arch->rotary, ARCH_ROTARY_PAIRS);
        assert_true(hp.rope_yarn && hp.rope_scale == 8);
        assert_true(fabsf(hp.rope_amplitude - cases[i].amplitude) < 1e-6f);
        assert_int_equal(hp.n_ctx_max, 0);
    }
    struct writer w = mistral3();
    key_f32(&w, "mistral3.rope.scaling.yarn_log_multiplier", -0.5f);
    refused(&w, HILL_E_DAMAGED, "mistral3.rope.scaling.yarn_log_multiplier");
    w = metadata(); /* where llama.cpp has none it is not passed over */
    key_text(&w, "llama.rope.scaling.type", "yarn");
    key_f32(&w, "llama.rope.scaling.factor", 8);
    key_f32(&w, "llama.rope.scaling.yarn_log_multiplier", 1);
    tiny_tensors(&w, NULL);
    refused(&w, HILL_E_UNSUPPORTED, "llama.rope.scaling.yarn_log_multiplier");
}

/* Beyond the original context queries would be scaled. */
static void a_temperature_scale_bounds_the_context(void **state)
{
    (void)state;
    struct model_hparams hp;
    struct hill_why why;
    struct writer w = mistral3();
    key_f32(&w, "mistral3.attention.temperature_scale", 0);
    if (read_writer(&w, &hp, &why))
        fail_msg("%s", why.text);
    assert_int_equal(hp.n_ctx_max, 0);
    w = mistral3();
    key_f32(&w, "mistral3.attention.temperature_scale", 0.1f);
    if (read_writer(&w, &hp, &why))
        fail_msg("%s", why.text);
    assert_int_equal(hp.n_ctx_max, 64);
    w = writer_new(); /* of an unknown length */
    key_text(&w, "general.architecture", "mistral3");
    key_u32(&w, "mistral3.block_count", TINY_LAYERS);
    key_u32(&w, "mistral3.embedding_length", TINY_EMBD);
    key_u32(&w, "mistral3.feed_forward_length", TINY_FF);
    key_u32(&w, "mistral3.attention.head_count", TINY_HEADS);
    key_f32(&w, "mistral3.attention.temperature_scale", 0.1f);
    refused(&w, HILL_E_UNSUPPORTED, "mistral3.attention.temperature_scale");
}

static void each_missing_tensor_is_named(void **state)
{
    static const char *const names[] = {
        "token_embd.weight",     "output_norm.weight",       "blk.0.attn_norm.weight",
        "blk.1.ffn_norm.weight", "blk.0.attn_q.weight",      "blk.1.attn_k.weight",
        "blk.0.attn_v.weight",   "blk.1.attn_output.weight", "blk.0.ffn_gate.weight",
        "blk.1.ffn_up.weight",   "blk.1.ffn_down.weight"};
    (void)state;
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct writer w = metadata();
        tiny_tensors(&w, names[i]);
        refused(&w, HILL_E_DAMAGED, names[i]);
    }
}

/* One tensor in place of q, k and v. */
static struct writer joint_qkv(void)
{
    static const struct {
        const char *name;
        uint64_t width, height;
    } parts[] = {{"attn_norm", TINY_EMBD, 1}, {"ffn_norm", TINY_EMBD, 1},
                 {"attn_qkv", TINY_EMBD, 16}, {"attn_output", 8, TINY_EMBD},
                 {"ffn_gate", TINY_EMBD, 12}, {"ffn_up", TINY_EMBD, 12},
                 {"ffn_down", 12, TINY_EMBD}};
    struct writer w = metadata();
    tiny_f32(&w, "token_embd.weight", TINY_EMBD, TINY_VOCAB);
    tiny_f32(&w, "output_norm.weight", TINY_EMBD, 1);
    for (unsigned i = 0; i < TINY_LAYERS * (sizeof parts / sizeof parts[0]); i++) {
        unsigned part = i / TINY_LAYERS;
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s.weight", i % TINY_LAYERS, parts[part].name);
        tiny_f32(&w, name, parts[part].width, parts[part].height);
    }
    return w;
}

static void joint_qkv_displaces_its_parts(void **state)
{
    static const struct {
        const char *name;
        uint64_t width, height;
    } apart[] = {{"blk.0.attn_q.weight", TINY_EMBD, 8}, {"blk.0.attn_k.weight", TINY_EMBD, 4},
                 {"blk.1.attn_v.weight", TINY_EMBD, 4}, {"blk.0.attn_q.bias", 8, 1},
                 {"blk.1.attn_k.bias", 4, 1},           {"blk.0.attn_v.bias", 4, 1}};
    struct model_hparams hp;
    struct hill_why why;
    (void)state;
    struct writer w = joint_qkv();
    if (read_writer(&w, &hp, &why))
        fail_msg("%s", why.text);
    w = joint_qkv();
    tiny_f32(&w, "blk.0.attn_qkv.bias", 16, 1);
    if (read_writer(&w, &hp, &why))
        fail_msg("%s", why.text);
    w = joint_qkv();
    tiny_f32(&w, "blk.0.attn_qkv.bias", 15, 1);
    refused(&w, HILL_E_DAMAGED, "blk.0.attn_qkv.bias");
    for (unsigned i = 0; i < sizeof apart / sizeof apart[0]; i++) {
        w = joint_qkv();
        tiny_f32(&w, apart[i].name, apart[i].width, apart[i].height);
        refused(&w, HILL_E_UNSUPPORTED, apart[i].name);
    }
    w = metadata();
    tiny_tensors(&w, NULL);
    tiny_f32(&w, "blk.1.attn_qkv.bias", 16, 1);
    refused(&w, HILL_E_UNSUPPORTED, "blk.1.attn_qkv.bias");
}

static void misshapen_tensor_is_named(void **state)
{
    (void)state;
    struct writer w = metadata();
    tiny_tensors(&w, "blk.1.attn_k.weight");
    tiny_f32(&w, "blk.1.attn_k.weight", TINY_EMBD, 8);
    refused(&w, HILL_E_DAMAGED, "blk.1.attn_k.weight");
}

static void tensor_without_a_place_is_named(void **state)
{
    (void)state;
    struct writer w = metadata();
    tiny_tensors(&w, NULL);
    tiny_f32(&w, "blk.0.attn_q_norm.weight", 2, 1); /* qwen3 has one, llama has not */
    refused(&w, HILL_E_UNSUPPORTED, "blk.0.attn_q_norm.weight");
}

static void other_architecture_is_named(void **state)
{
    (void)state;
    struct writer w = writer_new();
    key_text(&w, "general.architecture", "mamba");
    refused(&w, HILL_E_UNSUPPORTED, "mamba");
    w = writer_new();
    refused(&w, HILL_E_DAMAGED, "general.architecture");
}

static void mixture_of_experts_is_named(void **state)
{
    (void)state;
    struct writer w = writer_new();
    key_text(&w, "general.architecture", "qwen3moe");
    key_u32(&w, "qwen3moe.expert_count", 128);
    refused(&w, HILL_E_UNSUPPORTED, "'qwen3moe' is a mixture of 128 experts");
}

static void part_of_a_split_model_is_named(void **state)
{
    (void)state;
    struct writer w = writer_new();
    key_u32(&w, "split.no", 1);
    key_u32(&w, "split.count", 3);
    refused(&w, HILL_E_UNSUPPORTED, "part 2 of 3 of a model; join them: llama-gguf-split --merge");
}

/* A file of the tiny shape under another architecture's name. */
static void key_of_qwen2(struct writer *w, const char *name, uint32_t value)
{
    char key[64];
    snprintf(key, sizeof key, "qwen2.%s", name);
    key_u32(w, key, value);
}

static void biases_have_a_place_in_qwen2_and_must_fit(void **state)
{
    (void)state;
    for (uint32_t size = 8; size <= 9; size++) {
        struct model_hparams hp;
        struct hill_why why;
        struct writer w = writer_new();
        key_text(&w, "general.architecture", "qwen2");
        key_of_qwen2(&w, "block_count", TINY_LAYERS);
        key_of_qwen2(&w, "embedding_length", TINY_EMBD);
        key_of_qwen2(&w, "feed_forward_length", TINY_FF);
        key_of_qwen2(&w, "attention.head_count", TINY_HEADS);
        key_of_qwen2(&w, "attention.head_count_kv", TINY_KV);
        tiny_tensors(&w, NULL);
        tiny_f32(&w, "blk.0.attn_q.bias", size, 1);
        if (size == 9) {
            refused(&w, HILL_E_DAMAGED, "blk.0.attn_q.bias");
        } else if (read_writer(&w, &hp, &why)) {
            fail_msg("%s", why.text);
        } else {
            assert_string_equal(hp.arch->name, "qwen2");
            assert_int_equal(hp.arch->rotary, ARCH_ROTARY_HALVES);
        }
    }
}

static void bad_counts_are_refused(void **state)
{
    static const struct {
        const char *key;
        uint32_t value;
        int code;
    } bad[] = {
        {"llama.rope.dimension_count", 4, HILL_E_DAMAGED}, /* more than a head has */
        {"llama.attention.value_length", 4, HILL_E_UNSUPPORTED},
        {"llama.attention.key_length", UINT32_MAX, HILL_E_DAMAGED},
        {"llama.expert_count", 8, HILL_E_UNSUPPORTED},
        {"llama.rope.freq_base", 0, HILL_E_DAMAGED},
    };
    (void)state;
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct writer w = metadata();
        key_u32(&w, bad[i].key, bad[i].value);
        tiny_tensors(&w, NULL);
        refused(&w, bad[i].code, "");
    }
    struct writer w = writer_new();
    key_text(&w, "general.architecture", "llama");
    key_u32(&w, "llama.block_count", 0);
    refused(&w, HILL_E_DAMAGED, "llama.block_count");
    w = metadata();
    key_text(&w, "llama.rope.scaling.type", "dynamic");
    tiny_tensors(&w, NULL);
    refused(&w, HILL_E_UNSUPPORTED, "dynamic");
}

static void vocabulary_must_fit_the_embedding(void **state)
{
    (void)state;
    struct writer w = metadata();
    byte_vocabulary(&w, NULL, NULL, 0, NULL, 0);
    tiny_tensors(&w, NULL);
    refused(&w, HILL_E_DAMAGED, "256 tokens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shape_and_defaults_are_read),
        cmocka_unit_test(stated_numbers_replace_defaults),
        cmocka_unit_test(yarn_scales_attention_once),
        cmocka_unit_test(mistral3_lessens_yarns_amplitude),
        cmocka_unit_test(a_temperature_scale_bounds_the_context),
        cmocka_unit_test(each_missing_tensor_is_named),
        cmocka_unit_test(joint_qkv_displaces_its_parts),
        cmocka_unit_test(misshapen_tensor_is_named),
        cmocka_unit_test(tensor_without_a_place_is_named),
        cmocka_unit_test(other_architecture_is_named),
        cmocka_unit_test(mixture_of_experts_is_named),
        cmocka_unit_test(part_of_a_split_model_is_named),
        cmocka_unit_test(biases_have_a_place_in_qwen2_and_must_fit),
        cmocka_unit_test(bad_counts_are_refused),
        cmocka_unit_test(vocabulary_must_fit_the_embedding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

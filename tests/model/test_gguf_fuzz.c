/*
 * tests/model/test_gguf_fuzz.c - thousands of damaged copies of a whole model: whatever a byte
 * says, the reader, the shape and the tokenizer answer with a code; the sanitizers watch.
 * HILL_TEST_SEED chooses, HILL_FUZZ_ROUNDS lengthens.
 */
#include "model/hparams.h"
#include "tests/model/tokenizer_checks.h"

/* Everything that reads from the file; touches every tensor byte. */
static void use(struct gguf_file *file)
{
    struct hill_why why = {""};
    struct model_hparams hp;
    struct tokenizer *t;
    volatile uint8_t sum = 0;
    for (uint64_t i = 0; i < gguf_tensor_count(file); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(file, i);
        for (uint64_t b = 0; b < tensor->bytes; b += 64)
            sum ^= ((const uint8_t *)tensor->data)[b];
        sum ^= ((const uint8_t *)tensor->data)[tensor->bytes - 1];
    }
    int rc = model_hparams_read(&hp, file, &why);
    assert_true(rc == 0 || why.text[0]);
    if (tokenizer_open(&t, file, &why))
        return;
    uint32_t *ids;
    uint64_t count;
    struct detokenizer stream;
    detokenizer_init(&stream, t, false);
    if (tokenizer_encode(t, "hello  12345 it's \xC3\xA9\xFF", 21, true, &ids, &count) == 0)
        for (uint64_t i = 0; i < count; i++) {
            char *out = malloc(detokenizer_room(&stream, ids[i]));
            detokenizer_push(&stream, ids[i], out);
            free(out);
        }
    free(ids);
    tokenizer_close(t);
}

static struct blob whole_model(bool spm)
{
    static const char *const more[] = {"he", "ll"}, *const merges[] = {"h e", "l l"};
    struct writer w = writer_new();
    key_text(&w, "general.architecture", "llama");
    tiny_counts(&w);
    if (spm) {
        key_text(&w, "tokenizer.ggml.model", "llama");
        key_array(&w, "tokenizer.ggml.tokens", 8, TINY_VOCAB);
        for (int i = 0; i < TINY_VOCAB; i++) {
            char text[8];
            snprintf(text, sizeof text, i < 256 ? "<0x%02X>" : "he%d", i);
            put_text(&w.values, text);
        }
        key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, TINY_VOCAB);
        for (int i = 0; i < TINY_VOCAB; i++)
            put_u32(&w.values, i < 256 ? 6 : 4);
    } else {
        byte_vocabulary(&w, "llama-bpe", more, 2, merges, 2);
    }
    key_u32(&w, "tokenizer.ggml.bos_token_id", 256);
    tiny_tensors(&w, NULL);
    struct blob b = writer_build(&w);
    writer_free(&w);
    return b;
}

/* Change 1 to 4 bytes, mostly before the tensor data; sometimes cut the end off. */
static size_t damage(uint64_t *random, uint8_t *copy, size_t size, size_t head)
{
    static const uint8_t extremes[] = {0, 1, 0x7F, 0x80, 0xFF};
    for (uint64_t n = 1 + next_random(random) % 4; n > 0; n--) {
        size_t at = next_random(random) % (next_random(random) % 8 ? head : size);
        copy[at] = next_random(random) % 2 ? (uint8_t)next_random(random)
                                           : extremes[next_random(random) % sizeof extremes];
    }
    return next_random(random) % 16 ? size : next_random(random) % size;
}

static void damaged_models_are_answered_with_a_code(void **state)
{
    uint64_t random = test_seed(), refused = 0;
    const char *text = getenv("HILL_FUZZ_ROUNDS");
    uint64_t rounds = text ? strtoull(text, NULL, 0) : 4000;
    (void)state;
    for (int spm = 0; spm < 2; spm++) {
        struct blob b = whole_model(spm);
        size_t head = b.size - 4 * (TINY_EMBD * TINY_VOCAB);
        uint8_t *copy = malloc(b.size);
        assert_non_null(copy);
        for (uint64_t i = 0; i < rounds / 2; i++) {
            struct gguf_file *file = NULL;
            struct hill_why why;
            memcpy(copy, b.data, b.size);
            size_t size = damage(&random, copy, b.size, head);
            int rc = open_bytes(&file, copy, size, &why);
            assert_true(rc <= 0 && (rc == 0) == (file != NULL) && (rc == 0 || why.text[0]));
            refused += rc != 0;
            if (file)
                use(file);
            gguf_close(file);
        }
        free(copy);
        free(b.data);
    }
    print_message("%llu of %llu refused\n", (unsigned long long)refused,
                  (unsigned long long)rounds);
    assert_true(refused > rounds / 10 && refused < rounds); /* else the damage misses its aim */
}

static void sound_model_is_read(void **state)
{
    (void)state;
    for (int spm = 0; spm < 2; spm++) {
        struct blob b = whole_model(spm);
        struct gguf_file *file;
        struct model_hparams hp;
        struct hill_why why;
        if (open_bytes(&file, b.data, b.size, &why) || model_hparams_read(&hp, file, &why))
            fail_msg("%s", why.text);
        use(file);
        gguf_close(file);
        free(b.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_model_is_read),
        cmocka_unit_test(damaged_models_are_answered_with_a_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

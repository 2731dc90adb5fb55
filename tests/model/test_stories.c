/*
 * tests/model/test_stories.c - a real model, stories260K: its shape, and the prompt ids of
 * expected.md. The folder is $HILL_MODELS or ../shared/models; where it is not there the test is
 * skipped (exit 77).
 */
#include "model/hparams.h"
#include "tests/model/tokenizer_checks.h"

static struct gguf_file *model;
static char folder[3000];

static void shape_is_read(void **state)
{
    struct model_hparams hp;
    struct hill_why why;
    (void)state;
    if (model_hparams_read(&hp, model, &why))
        fail_msg("%s", why.text);
    assert_int_equal(hp.n_layers, 5);
    assert_int_equal(hp.n_embd, 64);
    assert_int_equal(hp.n_heads, 8);
    assert_int_equal(hp.n_kv_heads, 4);
    assert_int_equal(hp.head_dim, 8);
    assert_int_equal(hp.n_ff, 172);
    assert_int_equal(hp.n_vocab, 512);
    assert_int_equal(hp.n_ctx_train, 128);
}

/* "prompt ids: `[1, 403]`" -> ids; returns how many. */
static int parse_ids(const char *line, int *ids, int most)
{
    int n = 0;
    for (const char *at = strchr(line, '['); at && *at != ']' && n < most - 1; n++) {
        char *end;
        ids[n] = (int)strtol(at + 1, &end, 10);
        at = end;
    }
    ids[n] = -1;
    return n;
}

static void prompt_ids_are_the_expected_ones(void **state)
{
    char path[3100], line[1024], prompt[1024] = "";
    struct hill_why why;
    struct tokenizer *t;
    int prompts = 0, ids[256];
    (void)state;
    if (tokenizer_open(&t, model, &why))
        fail_msg("%s", why.text);
    snprintf(path, sizeof path, "%s/expected.md", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "## ", 3) == 0)
            strcpy(prompt, line + 3);
        if (strncmp(line, "prompt ids:", 11) != 0)
            continue;
        assert_true(parse_ids(line, ids, 256) > 1);
        check_ids(t, prompt, true, ids);
        prompts++;
    }
    fclose(file);
    assert_int_equal(prompts, 2);
    tokenizer_close(t);
}

static void text_survives_the_way_there_and_back(void **state)
{
    const char *text = "Lily's mom said, \"caf\xC3\xA9 \xF0\x9F\x98\x80\"\n  two  spaces";
    struct hill_why why;
    struct tokenizer *t;
    struct detokenizer stream;
    uint32_t *ids;
    uint64_t count, used = 0;
    char out[4096];
    (void)state;
    assert_int_equal(tokenizer_open(&t, model, &why), 0);
    assert_int_equal(tokenizer_encode(t, text, strlen(text), true, &ids, &count), 0);
    detokenizer_init(&stream, t, false);
    for (uint64_t i = 0; i < count; i++)
        used += detokenizer_push(&stream, ids[i], out + used);
    assert_int_equal(used, strlen(text));
    assert_memory_equal(out, text, used);
    free(ids);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shape_is_read),
        cmocka_unit_test(prompt_ids_are_the_expected_ones),
        cmocka_unit_test(text_survives_the_way_there_and_back),
    };
    char path[3100];
    struct hill_why why;
    const char *given = getenv("HILL_MODELS");
    snprintf(folder, sizeof folder, "%s", given ? given : "../shared/models");
    snprintf(path, sizeof path, "%s/stories260K.gguf", folder);
    if (access(path, R_OK) != 0) {
        printf("skipped: no %s (set HILL_MODELS to its folder)\n", path);
        return 77;
    }
    if (gguf_open(&model, path, &why)) {
        printf("%s\n", why.text);
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gguf_close(model);
    return failed;
}

/*
 * tests/gpu_worker/test_stories.c - a trained model: the first 60 greedy tokens of two prompts are
 * those that another engine gave. Needs stories260K.gguf and expected.md in HILL_MODELS or
 * ../shared/models; else skipped (77).
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/tokenizer.h"
#include "tests/gpu_worker/engine_run.h"

#define PREDICT 60u

static char *expected; /* the whole of expected.md */
static struct gguf_file *file;
static struct tokenizer *tokenizer;
static struct cldevice device;
static struct engine *engine;

/* "prompt ids: `[1, 2]`" under the heading, and the text between the fences after it. */
static uint32_t read_case(const char *heading, uint32_t *ids, const char **text,
                          const char **text_end)
{
    const char *at = strstr(expected, heading);
    assert_non_null(at);
    at = strchr(at, '[');
    assert_non_null(at);
    uint32_t n = 0;
    for (const char *c = at; *c == '[' || *c == ','; c += 1 + strcspn(c + 1, ",]"))
        ids[n++] = (uint32_t)strtoul(c + 1, NULL, 10);
    *text = strstr(at, "```\n");
    assert_non_null(*text);
    *text += 4;
    *text_end = strstr(*text, "\n```");
    assert_non_null(*text_end);
    return n;
}

static void continue_prompt(const char *heading, uint32_t batch)
{
    uint32_t ids[64];
    const char *text, *text_end;
    uint32_t n = read_case(heading, ids, &text, &text_end);
    struct engine_run run;
    run_init(&run, engine, batch, 512);
    run_prefill(&run, ids, n);
    struct detokenizer stream;
    detokenizer_init(&stream, tokenizer, true);
    char out[4096];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < PREDICT; i++) {
        uint32_t token = run_greedy(&run);
        assert_true(bytes + detokenizer_room(&stream, token) <= sizeof out);
        bytes += detokenizer_push(&stream, token, out + bytes);
        if (i + 1 < PREDICT)
            run_step(&run, token);
    }
    run_finish(&run);
    assert_true(bytes > PREDICT && bytes <= (uint64_t)(text_end - text));
    if (memcmp(out, text, bytes) != 0)
        fail_msg("got  %.*s\nwant %.*s", (int)bytes, out, (int)bytes, text);
}

static void once_upon_a_time(void **state)
{
    (void)state;
    continue_prompt("## Once upon a time", 512);
}

static void one_day_tim_in_small_chunks(void **state)
{
    (void)state;
    continue_prompt("## One day", 4);
}

static char *read_whole(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    char *text = calloc(1, 1 << 20);
    size_t n = text ? fread(text, 1, (1 << 20) - 1, f) : 0;
    fclose(f);
    return n ? text : NULL;
}

int main(void)
{
    const char *folder = getenv("HILL_MODELS") ? getenv("HILL_MODELS") : "../shared/models";
    char path[4096];
    struct hill_why why = {0};
    struct model_hparams hp;
    snprintf(path, sizeof path, "%s/expected.md", folder);
    expected = read_whole(path);
    snprintf(path, sizeof path, "%s/stories260K.gguf", folder);
    if (!expected || gguf_open(&file, path, &why)) {
        printf("no stories260K.gguf and expected.md in %s (HILL_MODELS): skipped\n", folder);
        return 77;
    }
    cldevice_set_threads(2);
    RUN_CHECK(tokenizer_open(&tokenizer, file, &why));
    RUN_CHECK(model_hparams_read(&hp, file, &why));
    RUN_CHECK(cldevice_open(&device, getenv("HILL_DEVICE"), &why));
    RUN_CHECK(engine_create(&engine, &device, file, &hp, &why));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(once_upon_a_time),
        cmocka_unit_test(one_day_tim_in_small_chunks),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    engine_destroy(engine);
    cldevice_close(&device);
    tokenizer_close(tokenizer);
    gguf_close(file);
    free(expected);
    return rc;
}

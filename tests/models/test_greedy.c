/*
 * tests/models/test_greedy.c - real models: the greedy tokens after "The capital of France is" are
 * those that a forward pass in F32 on the dequantised weights gave (Qwen 0.5B and 1.5B, SmolLM2,
 * Gemma 3 270M), read as a prompt in chunks and continued by decode. A layer with a window is given
 * the entries of its window, as any selection. Files in $HILL_MODELS or ~/.cache/hillinfer/models;
 * skipped (77) where none is there.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <unistd.h>

#include "tests/gpu_worker/engine_device.h"

#define MOST 16u

struct greedy {
    const char *file;
    uint32_t n_prompt, prompt[MOST], n_next, next[MOST];
};

static const struct greedy models[] = {
    {"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
     5,
     {785, 6722, 315, 9625, 374},
     6,
     {12095, 13, 12095, 374, 7407, 304}},
    {"qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 5, {785, 6722, 315, 9625, 374}, 2, {12095, 13}},
    {"gemma-3-270m-q4_k_m.gguf",
     6,
     {2, 818, 5279, 529, 7001, 563},
     8,
     {506, 5279, 529, 506, 2891, 529, 7001, 236761}},
    {"SmolLM2-135M-Instruct.Q4_1.gguf",
     5,
     {504, 3575, 282, 4649, 314},
     8,
     {7042, 30, 198, 198, 504, 2988, 314, 42}},
};

enum { N_MODELS = sizeof models / sizeof models[0] };

static bool find_file(const struct greedy *m, char path[4096])
{
    const char *folder = getenv("HILL_MODELS"), *home = getenv("HOME");
    if (folder && *folder)
        snprintf(path, 4096, "%s/%s", folder, m->file);
    else
        snprintf(path, 4096, "%s/.cache/hillinfer/models/%s", home ? home : "", m->file);
    return access(path, R_OK) == 0;
}

static void continues(void **state)
{
    const struct greedy *m = *state;
    char path[4096];
    struct hill_why why = {0};
    struct gguf_file *file;
    struct model_hparams hp;
    struct engine *engine = NULL;
    struct engine_run run;
    if (!find_file(m, path)) {
        print_message("no %s: skipped\n", path);
        skip();
    }
    RUN_CHECK(gguf_open(&file, path, &why));
    RUN_CHECK(model_hparams_read(&hp, file, &why));
    RUN_CHECK(engine_create(&engine, &device, file, &hp, &why));
    run_init(&run, engine, 4, 2 * MOST);
    run_prefill(&run, m->prompt, m->n_prompt);
    for (uint32_t i = 0; i < m->n_next; i++) {
        assert_int_equal(run_greedy(&run), m->next[i]);
        if (i + 1 < m->n_next)
            run_step(&run, m->next[i]);
    }
    run_finish(&run);
    engine_destroy(engine);
    gguf_close(file);
}

int main(void)
{
    struct CMUnitTest tests[N_MODELS];
    char path[4096];
    bool any = false;
    for (int i = 0; i < N_MODELS; i++) {
        any = any || find_file(&models[i], path);
        tests[i] = (struct CMUnitTest){models[i].file, continues, NULL, NULL,
                                       (void *)(uintptr_t)&models[i]};
    }
    if (!any) {
        printf("no real model in $HILL_MODELS or the cache folder (make check-models): skipped\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, device_open, device_close);
}

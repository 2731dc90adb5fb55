/*
 * test_sampling_defaults.c - coordinator/sampling_defaults.h: what a model's file recommends, what
 * of it is passed over, and whose word counts.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "coordinator/sampling_defaults.h"
#include "proto/options_hill.h"
#include "tests/model/gguf_writer.h"

static Hill__Sampling read_writer(struct writer *w)
{
    Hill__Sampling sampling;
    struct gguf_file *file;
    struct hill_why why;
    if (open_writer(&file, w, &why))
        fail_msg("%s", why.text);
    sampling_defaults_read(&sampling, file);
    gguf_close(file);
    return sampling;
}

static void key_i32(struct writer *w, const char *name, int32_t v)
{
    key(w, name, GGUF_I32);
    put(&w->values, &v, sizeof v);
}

static void expect(const Hill__Sampling *s, float temperature, uint32_t top_k, float top_p,
                   float min_p, float repeat_penalty)
{
    assert_true(s->temperature == temperature && s->top_p == top_p && s->min_p == min_p);
    assert_true(s->repeat_penalty == repeat_penalty);
    assert_int_equal(s->top_k, top_k);
    assert_int_equal(s->unset, 0);
}

static void a_file_that_says_nothing_leaves_the_command_lines(void **state)
{
    (void)state;
    struct writer w = writer_new();
    const Hill__Sampling s = read_writer(&w);
    expect(&s, 0.8f, 40, 0.95f, 0.05f, 1);
}

static void every_recommendation_is_taken(void **state)
{
    (void)state;
    struct writer w = writer_new();
    key_f32(&w, "general.sampling.temp", 0.6f);
    key_i32(&w, "general.sampling.top_k", 20);
    key_f32(&w, "general.sampling.top_p", 0.9f);
    key_f32(&w, "general.sampling.min_p", 0);
    key_f32(&w, "general.sampling.penalty_repeat", 1.05f);
    Hill__Sampling s = read_writer(&w);
    expect(&s, 0.6f, 20, 0.9f, 0, 1.05f);
    w = writer_new();
    key_i32(&w, "general.sampling.top_k", -1); /* off, as 0 */
    key_f32(&w, "general.sampling.temp", 0);
    s = read_writer(&w);
    expect(&s, 0, 0, 0.95f, 0.05f, 1);
}

static void what_cannot_be_used_is_passed_over(void **state)
{
    (void)state;
    struct writer w = writer_new();
    key_f32(&w, "general.sampling.temp", -1);
    key_f32(&w, "general.sampling.top_k", 2.5f);
    key_f32(&w, "general.sampling.top_p", 1.5f);
    key_text(&w, "general.sampling.min_p", "0.1");
    key_f32(&w, "general.sampling.penalty_repeat", 0);
    key_i32(&w, "general.sampling.mirostat", 2);
    key_text(&w, "general.sampling.sequence", "temperature");
    Hill__Sampling s = read_writer(&w);
    expect(&s, 0.8f, 40, 0.95f, 0.05f, 1);
    w = writer_new();
    key_f32(&w, "general.sampling.temp", (float)NAN);
    key_f32(&w, "general.sampling.top_k", (float)INFINITY);
    key_f32(&w, "general.sampling.min_p", (float)INFINITY);
    const double nearly = 1e-60; /* 0 as a float */
    key(&w, "general.sampling.penalty_repeat", GGUF_F64);
    put(&w.values, &nearly, sizeof nearly);
    s = read_writer(&w);
    expect(&s, 0.8f, 40, 0.95f, 0.05f, 1);
}

static void only_what_was_left_open_is_filled(void **state)
{
    (void)state;
    Hill__Sampling defaults = HILL__SAMPLING__INIT, said = HILL__SAMPLING__INIT, s;
    defaults.temperature = 0.6f;
    defaults.top_k = 20;
    defaults.top_p = 0.9f;
    defaults.min_p = 0.25f;
    defaults.repeat_penalty = 1.5f;
    said.temperature = 2;
    said.top_k = 7;
    said.top_p = 0.5f;
    said.min_p = 0.125f;
    said.repeat_penalty = 3;
    said.seed = 11;
    s = said; /* a client that knows nothing of this leaves nothing open */
    sampling_fill(&s, &defaults);
    expect(&s, 2, 7, 0.5f, 0.125f, 3);
    s = said;
    s.unset = HILL_SAMPLING_ALL;
    sampling_fill(&s, &defaults);
    expect(&s, 0.6f, 20, 0.9f, 0.25f, 1.5f);
    assert_int_equal(s.seed, 11);
    s = said;
    s.unset = HILL_SAMPLING_TOP_K | HILL_SAMPLING_REPEAT_PENALTY;
    sampling_fill(&s, &defaults);
    expect(&s, 2, 20, 0.5f, 0.125f, 1.5f);
    s = said;
    s.unset = HILL_SAMPLING_TEMPERATURE | HILL_SAMPLING_TOP_P | HILL_SAMPLING_MIN_P;
    sampling_fill(&s, &defaults);
    expect(&s, 0.6f, 7, 0.9f, 0.25f, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_says_nothing_leaves_the_command_lines),
        cmocka_unit_test(every_recommendation_is_taken),
        cmocka_unit_test(what_cannot_be_used_is_passed_over),
        cmocka_unit_test(only_what_was_left_open_is_filled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

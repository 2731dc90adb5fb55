/* tests/mkmodel/test_command.c - the command line: defaults, ranges, one line for each mistake. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tools/mkmodel/command.h"

static enum option_question question;

/* Parse "hill-mkmodel" + line, split at blanks. */
static int parse(struct mkmodel_options *out, const char *line, struct hill_why *why)
{
    static char text[512];
    static char *argv[64];
    int argc = 0;
    snprintf(text, sizeof text, "hill-mkmodel %s", line);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    why->text[0] = '\0';
    return command_parse(out, argc, argv, &question, why);
}

static void defaults_are_the_wired_shape(void **state)
{
    (void)state;
    struct mkmodel_options options;
    struct hill_why why;
    assert_int_equal(parse(&options, "-o x.gguf", &why), 0);
    assert_string_equal(options.output, "x.gguf");
    assert_false(options.shape.random);
    assert_int_equal(options.shape.n_layers, 2);
    assert_int_equal(options.shape.n_kv_heads, 1);
    assert_int_equal(options.shape.head_dim, 256);
    assert_int_equal(options.shape.type, GGUF_TENSOR_F16);
    assert_true(options.shape.rope_base == 1e15);
}

static void random_changes_the_defaults_wherever_it_stands(void **state)
{
    (void)state;
    struct mkmodel_options first, last;
    struct hill_why why;
    assert_int_equal(parse(&first, "--random --width 96 -o x", &why), 0);
    assert_int_equal(parse(&last, "-o x --width 96 --random", &why), 0);
    assert_int_equal(first.shape.n_vocab, 512);
    assert_int_equal(first.shape.n_embd, 96);
    assert_memory_equal(&first.shape, &last.shape, sizeof first.shape);
}

static void every_value_is_taken(void **state)
{
    (void)state;
    struct mkmodel_options o;
    struct hill_why why;
    assert_int_equal(
        parse(&o,
              "-o x --random --layers 3 --heads 6 --kv-heads 3 --width 64 --head-dim 16 "
              "--ffn 96 --vocab 300 --type q8_0 --rope-base 500000 --ctx-size 2048 "
              "-s 4294967295 --tied",
              &why),
        0);
    assert_int_equal(o.shape.n_layers, 3);
    assert_int_equal(o.shape.n_heads, 6);
    assert_int_equal(o.shape.n_kv_heads, 3);
    assert_int_equal(o.shape.n_embd, 64);
    assert_int_equal(o.shape.head_dim, 16);
    assert_int_equal(o.shape.n_ff, 96);
    assert_int_equal(o.shape.n_vocab, 300);
    assert_int_equal(o.shape.type, GGUF_TENSOR_Q8_0);
    assert_true(o.shape.rope_base == 500000);
    assert_int_equal(o.shape.n_ctx, 2048);
    assert_true(o.shape.seed == UINT32_MAX);
    assert_true(o.shape.tied);
    assert_null(o.shape.metadata);
    assert_int_equal(parse(&o, "-o x --metadata a.b=0.5 --metadata c=7", &why), 0);
    assert_string_equal(o.shape.metadata, "a.b=0.5,c=7");
    struct shape_number number;
    const char *at = o.shape.metadata;
    assert_true(shape_next_number(&at, &number));
    assert_string_equal(number.key, "a.b");
    assert_true(number.real && number.value == 0.5);
    assert_true(shape_next_number(&at, &number));
    assert_string_equal(number.key, "c");
    assert_true(!number.real && number.value == 7);
    assert_false(shape_next_number(&at, &number));
}

static void tokens_of_a_name(void **state)
{
    (void)state;
    struct mkmodel_options o;
    struct hill_why why;
    char token[32];
    assert_int_equal(parse(&o, "-o x --random --tokens <a> --tokens <b>", &why), 0);
    assert_true(shape_token_text(&o.shape, SHAPE_MIN_VOCAB + 1, token));
    assert_string_equal(token, "<b>");
    assert_false(shape_token_text(&o.shape, SHAPE_MIN_VOCAB + 2, token));
    assert_false(shape_token_text(&o.shape, SHAPE_MIN_VOCAB - 1, token));
}

static void mistakes_are_refused_in_one_line_that_names_the_option(void **state)
{
    (void)state;
    static const struct {
        const char *line, *names;
    } cases[] = {
        {"", "-o"},
        {"-o x extra", "extra"},
        {"-o x --layers 0", "--layers"},
        {"-o x --layers 2k", "--layers"},
        {"-o x --layers -1", "--layers"},
        {"-o x --layers 99999999999999999999", "--layers"},
        {"-o x --width 1", "--width"},
        {"-o x --vocab 10", "--vocab"},
        {"-o x --type q4_2", "--type"},
        {"-o x --rope-base 0", "--rope-base"},
        {"-o x --rope-base nan", "--rope-base"},
        {"-o x --rope-base 1e39", "--rope-base"},
        {"-o x --seed one", "--seed"},
        {"-o x --metadata key", "--metadata"},
        {"-o x --tokens <a>", "--vocab 259"},
        {"-o x --random --tokens <a>,,<b>", "--tokens"},
        {"-o x --random --tokens <this_text_of_a_token_has_32_bytes>", "--tokens"},
        {"-o x --metadata =1", "--metadata"},
        {"-o x --metadata k=one", "--metadata"},
        {"-o x --metadata k=-1", "--metadata"},
        {"-o x --metadata k=1,,j=2", "--metadata"},
        {"-o x --seed 18446744073709551616", "--seed"},
        {"-o x --nonsense", "--nonsense"},
        {"-o x -q", "-q"},
        {"-o", "-o"},
        {"-o x --layers", "--layers"},
        {"-o x --tied=maybe", "--tied"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mkmodel_options options;
        struct hill_why why;
        assert_int_equal(parse(&options, cases[i].line, &why), HILL_E_INVALID);
        assert_non_null(strstr(why.text, cases[i].names));
        assert_null(strchr(why.text, '\n'));
    }
}

static void help_wins_over_missing_options(void **state)
{
    (void)state;
    struct mkmodel_options options;
    struct hill_why why;
    assert_int_equal(parse(&options, "--random --help --nonsense", &why), 0);
    assert_int_equal(question, OPTIONS_HELP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_the_wired_shape),
        cmocka_unit_test(random_changes_the_defaults_wherever_it_stands),
        cmocka_unit_test(every_value_is_taken),
        cmocka_unit_test(tokens_of_a_name),
        cmocka_unit_test(mistakes_are_refused_in_one_line_that_names_the_option),
        cmocka_unit_test(help_wins_over_missing_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

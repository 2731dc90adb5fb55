/*
 * tests/model/test_gguf.c - model/gguf.h: what is read, and one clear refusal for each kind of
 * damage.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/model/gguf_writer.h"

/* A file with every kind of value and of tensor. */
static struct writer sample(void)
{
    static const char *const words[] = {"alpha", "", "gamma"};
    static const float numbers[6] = {1, -2, 3.5f, 4, 5, 6};
    uint8_t q8[34] = {0x00, 0x38, 2, 0xFE}; /* scale 0.5, then 2, -2, 0... */
    uint16_t halves[4] = {0x3C00, 0xC000, 0x0001, 0x7C00}, brains[2] = {0x3F80, 0xC040};
    struct writer w = writer_new();
    key_text(&w, "general.architecture", "llama");
    key_u32(&w, "a.u32", 4294967295u);
    key(&w, "a.i8", GGUF_I8);
    put(&w.values, "\xFF", 1);
    key(&w, "a.u64", GGUF_U64);
    put_u64(&w.values, UINT64_MAX);
    key_f32(&w, "a.f32", 0.25f);
    key_bool(&w, "a.bool", 1);
    key_texts(&w, "a.words", words, 3);
    tensor(&w, "f32", 3, 2, 0, numbers, sizeof numbers);
    tensor(&w, "q8", 32, 1, 8, q8, sizeof q8);
    tensor(&w, "f16", 4, 1, 1, halves, sizeof halves);
    tensor(&w, "bf16", 2, 1, 30, brains, sizeof brains);
    return w;
}

static void refused(struct writer *w, int code, const char *word)
{
    struct gguf_file *file = NULL;
    struct hill_why why;
    assert_int_equal(open_writer(&file, w, &why), code);
    assert_null(file);
    if (!strstr(why.text, word))
        fail_msg("'%s' does not say '%s'", why.text, word);
    assert_null(strchr(why.text, '\n'));
}

static struct gguf_file *opened(struct writer *w)
{
    struct gguf_file *file = NULL;
    struct hill_why why;
    if (open_writer(&file, w, &why))
        fail_msg("%s", why.text);
    return file;
}

static void values_are_read_with_their_types(void **state)
{
    (void)state;
    struct writer w = sample();
    struct gguf_file *file = opened(&w);
    uint64_t u;
    double f;
    bool b;
    struct gguf_string s;
    assert_true(gguf_get_u64(file, "a.u32", &u) && u == 4294967295u);
    assert_true(gguf_get_u64(file, "a.u64", &u) && u == UINT64_MAX);
    assert_false(gguf_get_u64(file, "a.i8", &u)); /* -1 */
    assert_true(gguf_get_f64(file, "a.i8", &f) && f == -1);
    assert_true(gguf_get_f64(file, "a.f32", &f) && f == 0.25);
    assert_true(gguf_get_bool(file, "a.bool", &b) && b);
    assert_false(gguf_get_bool(file, "a.u32", &b));
    assert_true(gguf_get_string(file, "general.architecture", &s));
    assert_int_equal(s.length, 5);
    assert_memory_equal(s.data, "llama", 5);
    assert_false(gguf_get_string(file, "a.words", &s));
    assert_false(gguf_get_u64(file, "absent", &u));
    gguf_close(file);
}

static void string_arrays_are_walked_to_their_end(void **state)
{
    (void)state;
    struct writer w = sample();
    struct gguf_file *file = opened(&w);
    const struct gguf_value *words = gguf_find(file, "a.words");
    const uint8_t *cursor = words->data;
    uint64_t index = 0;
    struct gguf_string s;
    assert_true(gguf_next_string(words, &cursor, &index, &s) && s.length == 5);
    assert_true(gguf_next_string(words, &cursor, &index, &s) && s.length == 0);
    assert_true(gguf_next_string(words, &cursor, &index, &s) && s.length == 5);
    assert_memory_equal(s.data, "gamma", 5);
    assert_false(gguf_next_string(words, &cursor, &index, &s));
    const struct gguf_value *scalar = gguf_find(file, "a.u32");
    index = 0;
    cursor = scalar->data;
    assert_false(gguf_next_string(scalar, &cursor, &index, &s));
    gguf_close(file);
}

static void tensor_rows_convert_to_f32(void **state)
{
    (void)state;
    struct writer w = sample();
    struct gguf_file *file = opened(&w);
    float out[32];
    assert_int_equal(gguf_tensor_count(file), 4);
    assert_null(gguf_tensor(file, "absent"));
    assert_int_equal(gguf_tensor_rows_f32(gguf_tensor(file, "f32"), 1, 1, out), 0);
    assert_true(out[0] == 4 && out[2] == 6);
    assert_int_equal(gguf_tensor_rows_f32(gguf_tensor(file, "f32"), 1, 2, out), HILL_E_INVALID);
    assert_int_equal(gguf_tensor_rows_f32(gguf_tensor(file, "q8"), 0, 1, out), 0);
    assert_true(out[0] == 1 && out[1] == -1 && out[31] == 0);
    assert_int_equal(gguf_tensor_rows_f32(gguf_tensor(file, "f16"), 0, 1, out), 0);
    assert_true(out[0] == 1 && out[1] == -2 && out[2] == 0x1p-24f && out[3] == __builtin_inff());
    assert_int_equal(gguf_tensor_rows_f32(gguf_tensor(file, "bf16"), 0, 1, out), 0);
    assert_true(out[0] == 1 && out[1] == -3);
    gguf_close(file);
}

static void version_2_is_read(void **state)
{
    (void)state;
    struct writer w = sample();
    w.version = 2;
    gguf_close(opened(&w));
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    struct writer w = sample();
    struct blob b = writer_build(&w);
    for (size_t size = 0; size < b.size; size++) {
        struct gguf_file *file = NULL;
        struct hill_why why;
        int rc = open_bytes(&file, b.data, size, &why);
        if (rc != HILL_E_DAMAGED || file || !why.text[0])
            fail_msg("%zu of %zu bytes: code %d, '%s'", size, b.size, rc, why.text);
    }
    free(b.data);
    writer_free(&w);
}

static void wrong_magic_is_refused(void **state)
{
    (void)state;
    struct gguf_file *file = NULL;
    struct hill_why why;
    assert_int_equal(open_bytes(&file, "ggml....................", 24, &why), HILL_E_DAMAGED);
    assert_non_null(strstr(why.text, "GGUF"));
}

static void other_versions_are_named(void **state)
{
    (void)state;
    struct writer w = sample();
    w.version = 1;
    refused(&w, HILL_E_UNSUPPORTED, "version 1");
    w = sample();
    w.version = 4;
    refused(&w, HILL_E_UNSUPPORTED, "version 4");
    w = sample();
    w.version = 3u << 24;
    refused(&w, HILL_E_UNSUPPORTED, "big endian");
}

static void absurd_counts_are_refused(void **state)
{
    (void)state;
    struct writer w = sample();
    w.n_values = UINT64_MAX;
    refused(&w, HILL_E_DAMAGED, "18446744073709551615 metadata keys");
    w = sample();
    w.n_tensors = UINT64_MAX;
    refused(&w, HILL_E_DAMAGED, "18446744073709551615 tensors");
    w = sample();
    key_array(&w, "b.array", GGUF_U64, UINT64_MAX / 8 + 2); /* times 8 wraps to 8 */
    refused(&w, HILL_E_DAMAGED, "b.array");
    w = sample();
    key_array(&w, "b.words", GGUF_STRING, UINT64_MAX);
    refused(&w, HILL_E_DAMAGED, "b.words");
    w = sample();
    key(&w, "b.text", GGUF_STRING);
    put_u64(&w.values, UINT64_MAX - 8);
    refused(&w, HILL_E_DAMAGED, "b.text");
}

static void odd_values_are_refused(void **state)
{
    (void)state;
    struct writer w = sample();
    key(&w, "b.type", 13);
    refused(&w, HILL_E_DAMAGED, "b.type");
    w = sample();
    key_array(&w, "b.nested", GGUF_ARRAY, 0);
    refused(&w, HILL_E_UNSUPPORTED, "b.nested");
    w = sample();
    key_bool(&w, "b.bool", 2);
    refused(&w, HILL_E_DAMAGED, "b.bool");
    w = sample();
    key_u32(&w, "general.alignment", 24);
    refused(&w, HILL_E_DAMAGED, "alignment");
    w = sample();
    key_u32(&w, "bad\nname", 1);
    key_u32(&w, "bad\nname", 1);
    refused(&w, HILL_E_DAMAGED, "bad?name");
}

static void names_that_stand_twice_are_refused(void **state)
{
    (void)state;
    const uint64_t dims[1] = {1};
    struct writer w = sample();
    key_u32(&w, "a.u32", 1);
    refused(&w, HILL_E_DAMAGED, "a.u32");
    w = sample();
    tensor_entry(&w, "q8", 1, dims, 0, 0);
    refused(&w, HILL_E_DAMAGED, "q8");
}

static void tensor_of_unread_type_is_named(void **state)
{
    (void)state;
    struct writer w = sample();
    tensor(&w, "blk.0.attn_q.weight", 256, 1, 16, NULL, 66);
    refused(&w, HILL_E_UNSUPPORTED, "IQ2_XXS");
    w = sample();
    tensor(&w, "x", 32, 1, 4711, NULL, 18);
    refused(&w, HILL_E_UNSUPPORTED, "4711");
}

static void impossible_tensors_are_refused(void **state)
{
    static const struct {
        uint32_t n_dims;
        uint64_t dims[5];
        uint32_t type;
        uint64_t offset;
    } bad[] = {
        {5, {1, 1, 1, 1, 1}, 0, 0}, /* too many dimensions */
        {2, {0, 4}, 0, 0},          /* empty */
        {2, {UINT64_MAX, 2}, 0, 0}, /* items overflow */
        {2, {UINT64_C(1) << 32, UINT64_C(1) << 32}, 0, 0},
        {1, {UINT64_MAX}, 0, 0},        /* bytes overflow */
        {1, {UINT64_C(1) << 62}, 0, 0}, /* bytes wrap to 0 */
        {1, {33}, 8, 0},                /* half a block */
        {1, {1}, 0, 1},                 /* unaligned */
        {1, {1}, 0, UINT64_MAX - 31},   /* offset + bytes overflow */
        {1, {1}, 0, UINT64_C(1) << 40}, /* outside */
        {1, {1 << 20}, 0, 0},           /* longer than the file */
    };
    (void)state;
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct writer w = sample();
        tensor_entry(&w, "culprit", bad[i].n_dims, bad[i].dims, bad[i].type, bad[i].offset);
        refused(&w, HILL_E_DAMAGED, "culprit");
    }
}

static void stated_alignment_is_used(void **state)
{
    (void)state;
    static const float seven = 7;
    struct writer w = writer_new();
    w.alignment = 128;
    key_u32(&w, "general.alignment", 128);
    tensor(&w, "a", 1, 1, 0, &seven, 4);
    tensor(&w, "b", 1, 1, 0, &seven, 4);
    struct gguf_file *file = opened(&w);
    float out;
    assert_int_equal((uintptr_t)gguf_tensor(file, "b")->data % 128, 0);
    assert_int_equal(gguf_tensor_rows_f32(gguf_tensor(file, "b"), 0, 1, &out), 0);
    assert_true(out == 7);
    gguf_close(file);
}

static void missing_file_and_folder_are_refused(void **state)
{
    (void)state;
    struct gguf_file *file = NULL;
    struct hill_why why;
    assert_int_equal(gguf_open(&file, "/nonexistent/model.gguf", &why), HILL_E_IO);
    assert_non_null(strstr(why.text, "/nonexistent/model.gguf"));
    assert_int_equal(gguf_open(&file, "/tmp", &why), HILL_E_DAMAGED);
    assert_null(file);
    gguf_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read_with_their_types),
        cmocka_unit_test(string_arrays_are_walked_to_their_end),
        cmocka_unit_test(tensor_rows_convert_to_f32),
        cmocka_unit_test(version_2_is_read),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(wrong_magic_is_refused),
        cmocka_unit_test(other_versions_are_named),
        cmocka_unit_test(absurd_counts_are_refused),
        cmocka_unit_test(odd_values_are_refused),
        cmocka_unit_test(names_that_stand_twice_are_refused),
        cmocka_unit_test(tensor_of_unread_type_is_named),
        cmocka_unit_test(impossible_tensors_are_refused),
        cmocka_unit_test(stated_alignment_is_used),
        cmocka_unit_test(missing_file_and_folder_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/mkmodel/test_build.c - the file as written: metadata, directory, data, determinism, full
 * disks. */
#include "tests/mkmodel/small_gguf.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/mkmodel/build.h"

static char folder[] = "/tmp/hill-test-build-XXXXXX";
static char path[64], other[64];

static int make_folder(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/a.gguf", folder);
    snprintf(other, sizeof other, "%s/b.gguf", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    unlink(other);
    return rmdir(folder); /* fails when anything else was left behind */
}

static struct mkmodel_shape small_random(void)
{
    struct mkmodel_shape shape = shape_default(true);
    shape.n_layers = 3;
    shape.n_heads = 6;
    shape.n_kv_heads = 3;
    shape.n_embd = 64;
    shape.head_dim = 32;
    shape.n_ff = 96;
    shape.n_vocab = 300;
    return shape;
}

static void build(const struct mkmodel_shape *shape, const char *target)
{
    uint64_t bytes;
    struct hill_why why = {.text = ""};
    struct stat status;
    assert_int_equal(build_model(shape, target, NULL, &bytes, &why), 0);
    assert_int_equal(stat(target, &status), 0);
    assert_int_equal(status.st_size, bytes);
}

static unsigned files_in_folder(void)
{
    unsigned count = 0;
    DIR *handle = opendir(folder);
    for (struct dirent *entry; (entry = readdir(handle));)
        count += entry->d_name[0] != '.';
    closedir(handle);
    return count;
}

static bool same_files(const char *a, const char *b)
{
    struct small_gguf first, second;
    small_open(&first, a);
    small_open(&second, b);
    const bool same =
        first.size == second.size && memcmp(first.bytes, second.bytes, first.size) == 0;
    small_close(&first);
    small_close(&second);
    return same;
}

static void metadata_states_the_shape(void **state)
{
    (void)state;
    const struct mkmodel_shape shape = small_random();
    struct small_gguf g;
    build(&shape, path);
    small_open(&g, path);
    assert_int_equal(small_u32(&g, "llama.block_count"), 3);
    assert_int_equal(small_u32(&g, "llama.embedding_length"), 64);
    assert_int_equal(small_u32(&g, "llama.feed_forward_length"), 96);
    assert_int_equal(small_u32(&g, "llama.attention.head_count"), 6);
    assert_int_equal(small_u32(&g, "llama.attention.head_count_kv"), 3);
    assert_int_equal(small_u32(&g, "llama.attention.key_length"), 32);
    assert_int_equal(small_u32(&g, "llama.attention.value_length"), 32);
    assert_int_equal(small_u32(&g, "llama.rope.dimension_count"), 32);
    assert_int_equal(small_u32(&g, "llama.context_length"), 131072);
    assert_int_equal(small_u32(&g, "llama.vocab_size"), 300);
    assert_float_equal(small_f32(&g, "llama.rope.freq_base"), 10000, 0);
    assert_float_equal(small_f32(&g, "llama.attention.layer_norm_rms_epsilon"), 1e-5f, 0);
    small_close(&g);
}

/* Every byte once, printable ones as themselves, space as U+0120, newline as U+010A (the GPT-2
 * map). */
static void vocabulary_is_the_bytes_bos_eos_and_one_merge(void **state)
{
    (void)state;
    const struct mkmodel_shape shape = shape_default(false);
    struct small_gguf g;
    char texts[259][64];
    build(&shape, path);
    small_open(&g, path);
    const unsigned tokens = small_find(&g, "tokenizer.ggml.tokens");
    assert_int_equal(g.values[tokens].count, 259);
    g.at = g.values[tokens].at;
    for (int i = 0; i < 259; i++) {
        small_text(&g, texts[i]);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(texts[i], texts[j]);
    }
    assert_string_equal(texts['A'], "A");
    assert_string_equal(texts['~'], "~");
    assert_string_equal(texts[' '], "\u0120");
    assert_string_equal(texts['\n'], "\u010a");
    assert_string_equal(texts[0x7f], "\u0121");
    assert_string_equal(texts[0xad], "\u0143");
    assert_string_equal(texts[0xff], "\u00ff");
    assert_string_equal(texts[258], "\u0100\u0100");
    const unsigned types = small_find(&g, "tokenizer.ggml.token_type");
    assert_int_equal(g.values[types].count, 259);
    g.at = g.values[types].at;
    for (int i = 0; i < 259; i++)
        assert_int_equal(small_number(&g, 4), i == 256 || i == 257 ? 3 : 1);
    assert_int_equal(small_u32(&g, "tokenizer.ggml.bos_token_id"), 256);
    assert_int_equal(small_u32(&g, "tokenizer.ggml.eos_token_id"), 257);
    assert_int_equal(g.bytes[g.values[small_find(&g, "tokenizer.ggml.add_bos_token")].at], 1);
    assert_int_equal(g.values[small_find(&g, "tokenizer.ggml.merges")].count, 1);
    small_close(&g);
}

static void check_tensor(const struct small_gguf *g, const char *name, uint64_t length,
                         uint64_t rows, uint32_t type)
{
    const struct small_tensor *t = small_tensor(g, name);
    if (!t)
        fail_msg("no tensor %s", name);
    assert_int_equal(t->dims[0], length);
    assert_int_equal(t->dims[1], rows);
    assert_int_equal(t->type, type);
}

static void tensors_have_the_shapes_of_the_architecture(void **state)
{
    (void)state;
    static const enum gguf_tensor_type types[] = {GGUF_TENSOR_F32, GGUF_TENSOR_F16,
                                                  GGUF_TENSOR_BF16, GGUF_TENSOR_Q8_0};
    for (unsigned i = 0; i < 4; i++) {
        struct mkmodel_shape shape = small_random();
        struct small_gguf g;
        shape.type = types[i];
        build(&shape, path);
        small_open(&g, path);
        assert_int_equal(g.n_tensors, 3 + 9 * 3);
        check_tensor(&g, "token_embd.weight", 64, 300, types[i]);
        check_tensor(&g, "output.weight", 64, 300, types[i]);
        check_tensor(&g, "output_norm.weight", 64, 1, 0);
        check_tensor(&g, "blk.2.attn_norm.weight", 64, 1, 0);
        check_tensor(&g, "blk.2.attn_q.weight", 64, 192, types[i]);
        check_tensor(&g, "blk.2.attn_k.weight", 64, 96, types[i]);
        check_tensor(&g, "blk.2.attn_v.weight", 64, 96, types[i]);
        check_tensor(&g, "blk.2.attn_output.weight", 192, 64, types[i]);
        check_tensor(&g, "blk.2.ffn_norm.weight", 64, 1, 0);
        check_tensor(&g, "blk.2.ffn_gate.weight", 64, 96, types[i]);
        check_tensor(&g, "blk.2.ffn_up.weight", 64, 96, types[i]);
        check_tensor(&g, "blk.2.ffn_down.weight", 96, 64, types[i]);
        small_close(&g);
    }
}

/* Tensors lie one behind the other, aligned, and the file ends where the last one's padding does.
 */
static void data_is_packed_aligned_and_complete(void **state)
{
    (void)state;
    struct mkmodel_shape shape = small_random();
    struct small_gguf g;
    shape.n_embd = 33; /* odd row sizes, so that padding is needed */
    build(&shape, path);
    small_open(&g, path);
    uint64_t expected = 0;
    for (uint64_t i = 0; i < g.n_tensors; i++) {
        assert_int_equal(g.tensors[i].offset, expected);
        expected += (small_tensor_bytes(&g.tensors[i]) + 31) / 32 * 32;
    }
    assert_int_equal(g.size, g.data + expected);
    small_close(&g);
}

static void tied_models_have_no_output_matrix(void **state)
{
    (void)state;
    struct mkmodel_shape shape = small_random();
    struct small_gguf g;
    shape.tied = true;
    build(&shape, path);
    small_open(&g, path);
    assert_null(small_tensor(&g, "output.weight"));
    assert_int_equal(g.n_tensors, 2 + 9 * 3);
    small_close(&g);
}

static void random_weights_have_the_deviation_intended(void **state)
{
    (void)state;
    const struct mkmodel_shape shape = small_random();
    struct small_gguf g;
    build(&shape, path);
    small_open(&g, path);
    float *v = small_load(&g, "blk.1.attn_v.weight"), *k = small_load(&g, "blk.1.attn_k.weight");
    double sum = 0, squares = 0, product = 0;
    const int count = 64 * 96;
    for (int i = 0; i < count; i++) {
        sum += v[i];
        squares += (double)v[i] * v[i];
        product += (double)v[i] * k[i];
    }
    /* N(0, 1/64): five standard errors of the mean and of the variance; other tensors are
     * independent */
    assert_true(fabs(sum / count) < 5 * 0.125 / sqrt(count));
    assert_true(fabs(squares / count * 64 - 1) < 5 * sqrt(2.0 / count));
    assert_true(fabs(product / count) < 5 * 1.5 / 64 / sqrt(count));
    free(v);
    free(k);
    small_close(&g);
}

static void the_same_seed_gives_the_same_bytes_and_another_does_not(void **state)
{
    (void)state;
    struct mkmodel_shape shape = small_random();
    build(&shape, path);
    build(&shape, other);
    assert_true(same_files(path, other));
    shape.seed++;
    build(&shape, other);
    assert_false(same_files(path, other));
    unlink(other);
}

static void impossible_shapes_are_refused_before_the_file_is_touched(void **state)
{
    (void)state;
    struct mkmodel_shape cases[10];
    const char *names[10] = {"--kv-heads", "--head-dim", "--ffn",      "--width",     "--head-dim",
                             "--layers",   "--heads",    "--head-dim", "--rope-base", "--vocab"};
    for (int i = 0; i < 5; i++)
        cases[i] = small_random();
    for (int i = 5; i < 10; i++)
        cases[i] = shape_default(false);
    cases[0].n_kv_heads = 4;
    cases[1].head_dim = 31;
    cases[2].type = cases[3].type = cases[4].type = GGUF_TENSOR_Q8_0;
    cases[2].n_ff = 100;
    cases[3].n_embd = 65;
    cases[4].head_dim = 2;
    cases[5].n_layers = 1;
    cases[6].n_heads = 4;
    cases[7].head_dim = 128;
    cases[8].rope_base = 10000;
    cases[9].n_vocab = 300;
    unlink(path);
    for (int i = 0; i < 10; i++) {
        uint64_t bytes;
        struct hill_why why = {.text = ""};
        assert_int_equal(build_model(&cases[i], path, NULL, &bytes, &why), HILL_E_INVALID);
        assert_non_null(strstr(why.text, names[i]));
        assert_int_equal(access(path, F_OK), -1);
    }
    assert_int_equal(files_in_folder(), 0);
}

static void a_full_disk_is_reported_and_the_old_file_stays(void **state)
{
    (void)state;
    struct mkmodel_shape shape = small_random();
    struct rlimit before, tight;
    struct hill_why why = {.text = ""};
    uint64_t bytes;
    build(&shape, path);
    build(&shape, other);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    tight = before;
    tight.rlim_cur = 50000; /* write then fails as on a full disk: EFBIG */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    shape.seed++;
    const int code = build_model(&shape, path, NULL, &bytes, &why);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(code, HILL_E_NOSPACE);
    assert_non_null(strstr(why.text, path));
    assert_int_equal(files_in_folder(), 2);
    assert_true(same_files(path, other));
    unlink(other);
}

static void a_device_is_written_in_place_and_not_replaced(void **state)
{
    (void)state;
    const struct mkmodel_shape shape = small_random();
    struct hill_why why = {.text = ""};
    struct stat status;
    uint64_t bytes;
    assert_int_equal(build_model(&shape, "/dev/full", NULL, &bytes, &why), HILL_E_NOSPACE);
    assert_int_equal(stat("/dev/full", &status), 0);
    assert_true(S_ISCHR(status.st_mode));
}

static void a_missing_folder_is_reported(void **state)
{
    (void)state;
    const struct mkmodel_shape shape = small_random();
    struct hill_why why = {.text = ""};
    uint64_t bytes;
    const int code = build_model(&shape, "/nonexistent/folder/x.gguf", NULL, &bytes, &why);
    assert_int_equal(hill_exit_code(code), 111);
    assert_non_null(strstr(why.text, "/nonexistent/folder/x.gguf"));
}

static void an_interrupted_build_leaves_nothing(void **state)
{
    (void)state;
    const struct mkmodel_shape shape = small_random();
    const volatile sig_atomic_t stop = 1;
    struct hill_why why = {.text = ""};
    uint64_t bytes;
    unlink(path);
    assert_int_equal(build_model(&shape, path, &stop, &bytes, &why), HILL_E_CANCELLED);
    assert_int_equal(files_in_folder(), 0);
}

static void the_file_has_the_permissions_of_a_plain_open(void **state)
{
    (void)state;
    const struct mkmodel_shape shape = small_random();
    struct stat status;
    const mode_t before = umask(027);
    unlink(path);
    build(&shape, path);
    umask(before);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0640);
}

static void a_symbolic_link_stays_and_its_target_is_replaced(void **state)
{
    (void)state;
    const struct mkmodel_shape shape = small_random();
    struct stat status;
    unlink(other);
    build(&shape, path);
    assert_int_equal(symlink(path, other), 0);
    build(&shape, other);
    assert_int_equal(lstat(other, &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    assert_int_equal(files_in_folder(), 2);
    unlink(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_states_the_shape),
        cmocka_unit_test(vocabulary_is_the_bytes_bos_eos_and_one_merge),
        cmocka_unit_test(tensors_have_the_shapes_of_the_architecture),
        cmocka_unit_test(data_is_packed_aligned_and_complete),
        cmocka_unit_test(tied_models_have_no_output_matrix),
        cmocka_unit_test(random_weights_have_the_deviation_intended),
        cmocka_unit_test(the_same_seed_gives_the_same_bytes_and_another_does_not),
        cmocka_unit_test(impossible_shapes_are_refused_before_the_file_is_touched),
        cmocka_unit_test(a_full_disk_is_reported_and_the_old_file_stays),
        cmocka_unit_test(a_device_is_written_in_place_and_not_replaced),
        cmocka_unit_test(a_missing_folder_is_reported),
        cmocka_unit_test(an_interrupted_build_leaves_nothing),
        cmocka_unit_test(the_file_has_the_permissions_of_a_plain_open),
        cmocka_unit_test(a_symbolic_link_stays_and_its_target_is_replaced),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

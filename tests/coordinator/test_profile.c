/* Tests of coordinator/profile.[ch]: the cache of measured rates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/profile.h"

static char folder[] = "/tmp/hill-profile-XXXXXX", path[64];

static const struct profile one = {.rates = {20e9, 3.2e9, 10e9, 2.5e9},
                                   .spread = {0.01, 0.02, 0.3, 0},
                                   .rounds = 9,
                                   .hot_tokens = 4000,
                                   .cold_tokens = 2000,
                                   .fetch_tokens = 401,
                                   .took_ms = 512.25};

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/profile.json", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder); /* nothing else is left in it */
}

static void write_file(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_what_was_stored_is_found(void **state)
{
    (void)state;
    struct profile found, other = one;
    other.rates.f_s = 1;
    other.digests = -1;
    unlink(path);
    assert_int_equal(profile_cache_find(&found, path, "a", NULL), HILL_E_WOULD_BLOCK);
    assert_int_equal(profile_cache_store(path, "a", &one, NULL), 0);
    assert_int_equal(profile_cache_store(path, "b; \"quoted\"", &other, NULL), 0);
    assert_int_equal(profile_cache_find(&found, path, "a", NULL), 0);
    assert_true(found.cached);
    assert_true(found.rates.f_c == 20e9 && found.rates.f_s == 3.2e9 && found.rates.B_c == 10e9 &&
                found.rates.B_s == 2.5e9);
    assert_true(found.spread.f_c == 0.01 && found.spread.f_s == 0.02 && found.spread.B_c == 0.3 &&
                found.spread.B_s == 0);
    assert_true(found.rounds == 9 && found.hot_tokens == 4000 && found.cold_tokens == 2000 &&
                found.fetch_tokens == 401 && found.took_ms == 512.25);
    assert_int_equal(profile_cache_find(&found, path, "b; \"quoted\"", NULL), 0);
    assert_true(found.rates.f_s == 1 && found.digests == -1);
    other.digests = 1;
    assert_int_equal(profile_cache_store(path, "b", &other, NULL), 0);
    assert_int_equal(profile_cache_find(&found, path, "b", NULL), 0);
    assert_int_equal(found.digests, 1);
    assert_int_equal(profile_cache_find(&found, path, "a", NULL), 0);
    assert_int_equal(found.digests, 0);
    assert_int_equal(profile_cache_find(&found, path, "c", NULL), HILL_E_WOULD_BLOCK);
}

static void test_a_damaged_file_is_named_and_written_anew(void **state)
{
    static const char *const damaged[] = {
        "",
        "{",
        "[]",
        "{\"version\":1}",
        "{\"version\":2,\"profiles\":{}}",
        "{\"version\":1,\"profiles\":[]}",
        "{\"version\":1,\"profiles\":{\"a\":7}}",
        "{\"version\":1,\"profiles\":{\"a\":{\"rates\":{\"f_c\":-1}}}}"};
    (void)state;
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        struct profile found;
        struct hill_why why = {""};
        write_file(damaged[i]);
        assert_int_equal(profile_cache_find(&found, path, "a", &why), HILL_E_DAMAGED);
        assert_non_null(strstr(why.text, path));
        assert_int_equal(profile_cache_store(path, "a", &one, NULL), 0);
        assert_int_equal(profile_cache_find(&found, path, "a", NULL), 0);
    }
}

/* Each field of a sound entry out of range, one at a time. */
static void test_a_rate_out_of_range_is_damage(void **state)
{
    static const char *const bad[][2] = {
        {"20000000000.0", "-1.0"},           {"3200000000.0", "0.0"},
        {"10000000000.0", "\"x\""},          {"0.3", "-0.3"},
        {"\"rounds\": 9", "\"rounds\": -9"}, {"512.25", "null"}};
    (void)state;
    char text[4096];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct profile found;
        unlink(path);
        assert_int_equal(profile_cache_store(path, "a", &one, NULL), 0);
        FILE *file = fopen(path, "r");
        size_t n = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[n] = '\0';
        char *at = strstr(text, bad[i][0]);
        if (!at)
            fail_msg("%s is not in %s", bad[i][0], text);
        char changed[5000];
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, bad[i][1],
                 at + strlen(bad[i][0]));
        write_file(changed);
        assert_int_equal(profile_cache_find(&found, path, "a", NULL), HILL_E_DAMAGED);
    }
}

static void test_a_profile_without_sense_is_not_kept(void **state)
{
    (void)state;
    struct profile bad = one;
    bad.rates.B_s = INFINITY;
    unlink(path);
    assert_int_equal(profile_cache_store(path, "a", &bad, NULL), HILL_E_INVALID);
    assert_int_equal(access(path, F_OK), -1);
}

static void test_the_file_does_not_grow_for_ever(void **state)
{
    (void)state;
    struct profile found;
    uint32_t there = 0;
    char name[16];
    unlink(path);
    for (unsigned i = 0; i < PROFILE_ENTRIES_MAX + 10; i++) {
        snprintf(name, sizeof name, "%u", i);
        assert_int_equal(profile_cache_store(path, name, &one, NULL), 0);
        assert_int_equal(profile_cache_find(&found, path, name, NULL), 0);
    }
    for (unsigned i = 0; i < PROFILE_ENTRIES_MAX + 10; i++) {
        snprintf(name, sizeof name, "%u", i);
        there += profile_cache_find(&found, path, name, NULL) == 0;
    }
    assert_int_equal(there, PROFILE_ENTRIES_MAX);
}

static void test_the_fingerprint_tells_drives_and_models_apart(void **state)
{
    static struct settings s;
    static char a[PROFILE_FINGERPRINT_BYTES], b[PROFILE_FINGERPRINT_BYTES];
    (void)state;
    s.epoch.plan.geometry = (struct kv_geometry){4, 4, 2, 32};
    s.epoch.plan.ctx_tokens = 4096;
    snprintf(s.csd_url, sizeof s.csd_url, "file:/one");
    profile_fingerprint(a, &s, "some CPU");
    profile_fingerprint(b, &s, "some CPU");
    assert_string_equal(a, b);
    profile_fingerprint(b, &s, "other CPU");
    assert_string_not_equal(a, b);
    s.epoch.plan.geometry.head_dim = 64;
    profile_fingerprint(b, &s, "some CPU");
    assert_string_not_equal(a, b);
    s.epoch.plan.geometry.head_dim = 32;
    snprintf(s.csd_url, sizeof s.csd_url, "file:/two");
    profile_fingerprint(b, &s, "some CPU");
    assert_string_not_equal(a, b);
    snprintf(s.csd_url, sizeof s.csd_url, "file:/one");
    s.epoch.csd_model = (struct csd_model)CSD_MODEL_SMARTSSD;
    profile_fingerprint(b, &s, "some CPU");
    assert_string_not_equal(a, b);
    s.epoch.csd_model.on = false;
    s.epoch.threads = 3;
    profile_fingerprint(b, &s, "some CPU");
    assert_string_not_equal(a, b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_stored_is_found),
        cmocka_unit_test(test_a_damaged_file_is_named_and_written_anew),
        cmocka_unit_test(test_a_rate_out_of_range_is_damage),
        cmocka_unit_test(test_a_profile_without_sense_is_not_kept),
        cmocka_unit_test(test_the_file_does_not_grow_for_ever),
        cmocka_unit_test(test_the_fingerprint_tells_drives_and_models_apart),
    };
    return cmocka_run_group_tests_name("profile", tests, set_up, tear_down);
}

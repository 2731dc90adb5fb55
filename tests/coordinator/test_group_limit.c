/* Tests of coordinator/group_limit.[ch]: numbers by hand, and a device that is made up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "coordinator/group_limit.h"

#define MIB (UINT64_C(1) << 20)

static unsigned n_asked;

static bool answer(const void *context)
{
    n_asked++;
    return *(const bool *)context;
}

/* 100 MiB of weights, 50 hot, 30 for the GPU's KV; its code, and how often the device was asked. */
static int check(uint64_t room, uint64_t held, bool own, unsigned asked, struct hill_why *why)
{
    const struct group_limit limit = {.weights = 100 * MIB,
                                      .hot = 50 * MIB,
                                      .gpu_kv = 30 * MIB,
                                      .room = room,
                                      .held = held,
                                      .group = "/sys/fs/cgroup/app",
                                      .own_memory = answer,
                                      .context = &own};
    n_asked = 0;
    int code = group_limit_check(&limit, why);
    assert_int_equal(n_asked, asked);
    return code;
}

static void test_what_fits_asks_nobody(void **state)
{
    (void)state;
    struct hill_why why = {""};
    assert_int_equal(check(180 * MIB, 0, false, 0, &why), 0);
    assert_int_equal(check(UINT64_MAX, 0, false, 0, &why), 0);
    assert_int_equal(check(UINT64_MAX, 7 * MIB, false, 0, &why), 0);
}

static void test_a_device_in_the_hosts_memory_counts(void **state)
{
    (void)state;
    struct hill_why why = {""};
    assert_int_equal(check(180 * MIB - 1, 0, false, 1, &why), HILL_E_NOMEM);
    assert_string_equal(why.text, "weights of 100 MiB, --gpu-kv-mb 30 and --hot-mb 50 do not fit "
                                  "into the 180 MiB that the memory limit of /sys/fs/cgroup/app "
                                  "leaves");
}

static void test_a_device_with_memory_of_its_own_does_not(void **state)
{
    (void)state;
    struct hill_why why = {""};
    assert_int_equal(check(179 * MIB, 0, true, 1, &why), 0);
    assert_int_equal(check(50 * MIB, 0, true, 1, &why), 0);
}

static void test_hot_alone_over_the_room_asks_nobody(void **state)
{
    (void)state;
    struct hill_why why = {""};
    for (int own = 0; own < 2; own++) {
        assert_int_equal(check(49 * MIB, 0, own, 0, &why), HILL_E_NOMEM);
        assert_string_equal(why.text, "--hot-mb 50 does not fit into the 49 MiB that the memory "
                                      "limit of /sys/fs/cgroup/app leaves");
    }
}

static void test_what_a_killed_pipeline_holds_is_free(void **state)
{
    (void)state;
    struct hill_why why = {""};
    assert_int_equal(check(130 * MIB, 50 * MIB, false, 0, &why), 0);
    assert_int_equal(check(129 * MIB, 50 * MIB, false, 1, &why), HILL_E_NOMEM);
    assert_non_null(strstr(why.text, "the 179 MiB"));
    assert_int_equal(check(0, 50 * MIB, true, 1, &why), 0);
}

static void test_caches_count_where_they_are(void **state)
{
    (void)state;
    struct hill_why why = {""};
    for (int own = 0; own < 2; own++) {
        bool has_own = own;
        struct group_limit limit = {.weights = 100 * MIB,
                                    .hot = 50 * MIB,
                                    .gpu_kv = 30 * MIB,
                                    .prefix_cache = 4 * MIB,
                                    .prefix_gpu_cache = 6 * MIB,
                                    .room = 190 * MIB,
                                    .group = "g",
                                    .own_memory = answer,
                                    .context = &has_own};
        assert_int_equal(group_limit_check(&limit, &why), 0);
        limit.room--;
        assert_int_equal(group_limit_check(&limit, &why), own ? 0 : HILL_E_NOMEM);
        limit.room = 54 * MIB;
        assert_int_equal(group_limit_check(&limit, &why), own ? 0 : HILL_E_NOMEM);
        if (!own)
            assert_string_equal(why.text, "weights of 100 MiB, --gpu-kv-mb 30, "
                                          "--prefix-gpu-cache-mb 6 and --hot-mb 50 and "
                                          "--prefix-cache-mb 4 do not fit into the 54 MiB that the "
                                          "memory limit of g leaves");
        limit.room--;
        assert_int_equal(group_limit_check(&limit, &why), HILL_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_fits_asks_nobody),
        cmocka_unit_test(test_a_device_in_the_hosts_memory_counts),
        cmocka_unit_test(test_a_device_with_memory_of_its_own_does_not),
        cmocka_unit_test(test_hot_alone_over_the_room_asks_nobody),
        cmocka_unit_test(test_what_a_killed_pipeline_holds_is_free),
        cmocka_unit_test(test_caches_count_where_they_are),
    };
    return cmocka_run_group_tests_name("group_limit", tests, NULL, NULL);
}

/* Tests of base/memory_room.[ch] over folders that look like /proc and /sys/fs/cgroup. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory_room.h"

#define MIB 1048576ull

static char root[64];

static void put(const char *path, const char *text)
{
    char whole[256];
    snprintf(whole, sizeof whole, "%s/%s", root, path);
    for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        assert_true(mkdir(whole, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/hill-test-room-XXXXXX");
    if (!mkdtemp(root))
        return 1;
    put("proc/meminfo", "MemTotal:  2097152 kB\nMemFree: 1 kB\nMemAvailable:   1048576 kB\n");
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void expect_room(uint64_t bytes, uint64_t group_bytes, const char *group)
{
    struct memory_room room;
    char whole[256] = "";
    memory_room_read(&room, root);
    if (group)
        snprintf(whole, sizeof whole, "%s/sys/fs/cgroup%s", root, group);
    assert_int_equal(room.bytes, bytes);
    assert_int_equal(room.group_bytes, group_bytes);
    assert_string_equal(room.group, whole);
}

static void test_without_groups_the_machine_counts(void **state)
{
    (void)state;
    expect_room(1024 * MIB, UINT64_MAX, NULL);
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/memory.max", "max\n");
    put("sys/fs/cgroup/memory.current", "5\n");
    expect_room(1024 * MIB, UINT64_MAX, NULL);
}

static void test_the_tightest_group_of_version_2_counts(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/user/app\n");
    put("sys/fs/cgroup/user/app/memory.max", "1073741824\n");
    put("sys/fs/cgroup/user/app/memory.current", "0\n");
    put("sys/fs/cgroup/user/memory.max", "536870912\n");
    put("sys/fs/cgroup/user/memory.current", "104857600\n");
    put("sys/fs/cgroup/user/memory.stat",
        "anon 1\ninactive_file 31457280\nactive_file 20971520\nactive_file_other 1\n");
    expect_room(462 * MIB, 462 * MIB, "/user");
    put("sys/fs/cgroup/user/memory.current", "9999999999\n"); /* beyond it */
    put("sys/fs/cgroup/user/memory.stat", "");
    expect_room(0, 0, "/user");
}

static void test_version_1_beside_version_2(void **state)
{
    (void)state;
    put("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/a\n0::/b\n");
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "209715200\n");
    put("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "104857600\n");
    put("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 9\ntotal_inactive_file 52428800\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
    expect_room(150 * MIB, 150 * MIB, "/memory/a");
    put("sys/fs/cgroup/unified/b/memory.max", "104857600\n");
    put("sys/fs/cgroup/unified/b/memory.current", "0\n");
    expect_room(100 * MIB, 100 * MIB, "/unified/b");
}

/* As in a container: the group's name is the host's. */
static void test_a_group_that_is_not_there_is_at_the_mount(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/docker/4711\n");
    put("sys/fs/cgroup/memory.max", "209715200\n");
    put("sys/fs/cgroup/memory.current", "0\n");
    expect_room(200 * MIB, 200 * MIB, "");
}

#define T(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_without_groups_the_machine_counts),
        T(test_the_tightest_group_of_version_2_counts),
        T(test_version_1_beside_version_2),
        T(test_a_group_that_is_not_there_is_at_the_mount),
    };
    return cmocka_run_group_tests_name("memory_room", tests, NULL, NULL);
}

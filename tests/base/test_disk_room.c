/* Tests of base/disk_room.[ch]. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/statvfs.h>

#include "base/disk_room.h"

/* Others may write meanwhile: a gigabyte, or half of what is free. */
static void test_what_the_file_system_says(void **unused)
{
    (void)unused;
    struct statvfs info;
    assert_int_equal(statvfs("/", &info), 0);
    uint64_t room = disk_room("/"), all = (uint64_t)info.f_bavail * info.f_frsize;
    uint64_t others = all / 2 < 1u << 30 ? all / 2 : 1u << 30;
    assert_in_range(room, all - others, all + others);
}

static void test_what_is_not_there_cannot_be_asked(void **unused)
{
    (void)unused;
    assert_true(disk_room("/there/is/no/such/folder") == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_the_file_system_says),
        cmocka_unit_test(test_what_is_not_there_cannot_be_asked),
    };
    return cmocka_run_group_tests_name("disk_room", tests, NULL, NULL);
}

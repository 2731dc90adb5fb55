/* Tests of base/disk_room.[ch]. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/statvfs.h>

#include "base/disk_room.h"

/* Others may write meanwhile, so the bound is what the file system holds at all. */
static void test_no_more_than_the_file_system_holds(void **unused)
{
    (void)unused;
    struct statvfs info;
    assert_int_equal(statvfs("/", &info), 0);
    assert_true(disk_room("/") <= (uint64_t)info.f_blocks * info.f_frsize);
}

static void test_what_is_not_there_cannot_be_asked(void **unused)
{
    (void)unused;
    assert_true(disk_room("/there/is/no/such/folder") == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_more_than_the_file_system_holds),
        cmocka_unit_test(test_what_is_not_there_cannot_be_asked),
    };
    return cmocka_run_group_tests_name("disk_room", tests, NULL, NULL);
}

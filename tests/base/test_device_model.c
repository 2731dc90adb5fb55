/* Tests of base/device_model.[ch]: one queue a resource, stages of one transfer at the same time,
 * and what is not modelled. Random sequences of a drive's commands: tests/csd_agent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/device_model.h"

/* bytes a nanosecond */
static struct device_model plain(void)
{
    return (struct device_model){
        .figures = {
            .on = true, .flash = 2, .write = 1, .link = 4, .gpu_link = 8, .score = 16, .cpu = 0.5}};
}

static void takes_what_its_bytes_take(void **state)
{
    static const int64_t ns[DEVICE_RESOURCES] = {
        [DEVICE_FLASH_READ] = 400, [DEVICE_FLASH_WRITE] = 800, [DEVICE_SCORE] = 50,
        [DEVICE_LINK_UP] = 200,    [DEVICE_LINK_DOWN] = 200,   [DEVICE_GPU_LINK] = 100,
        [DEVICE_CPU] = 1600};
    (void)state;
    for (int i = 0; i < DEVICE_RESOURCES; i++) {
        struct device_model m = plain();
        struct device_span span = device_charge(&m, (enum device_resource)i, 800, device_at(7000));
        assert_int_equal(span.start, 7000);
        assert_int_equal(span.due, 7000 + ns[i]);
        span = device_charge(&m, (enum device_resource)i, 1, device_at(9000));
        assert_int_equal(span.due, 9000 + (ns[i] + 799) / 800); /* a nanosecond begun is taken */
    }
}

static void a_queue_is_served_in_order(void **state)
{
    struct device_model m = plain();
    (void)state;
    device_charge(&m, DEVICE_GPU_LINK, 8000, device_at(100));
    struct device_span span = device_charge(&m, DEVICE_GPU_LINK, 80, device_at(300));
    assert_int_equal(span.start, 1100);
    assert_int_equal(span.due, 1110);
    span = device_charge(&m, DEVICE_GPU_LINK, 80, device_at(5000)); /* it owes nothing by then */
    assert_int_equal(span.start, 5000);
    assert_int_equal(m.busy_ns[DEVICE_GPU_LINK], 1000 + 10 + 10);
}

static void flash_is_one_queue_and_the_rest_are_their_own(void **state)
{
    struct device_model m = plain();
    (void)state;
    for (int i = 0; i < DEVICE_RESOURCES; i++) {
        struct device_span span = device_charge(&m, (enum device_resource)i, 16000, device_at(0));
        assert_int_equal(span.start, i == DEVICE_FLASH_WRITE ? 8000 : 0);
    }
    assert_int_equal(m.busy_ns[DEVICE_FLASH_READ], 8000 + 16000);
}

static void a_stage_flows_and_never_ends_before_its_input(void **state)
{
    struct device_model m = plain();
    (void)state;
    struct device_span flash = device_charge(&m, DEVICE_FLASH_READ, 8000, device_at(100));
    struct device_span up = device_charge(&m, DEVICE_LINK_UP, 8000, flash); /* 2000 ns of 4000 */
    assert_int_equal(up.start, 100);
    assert_int_equal(up.due, 4100);
    m.figures.link = 1;
    up = device_charge(&m, DEVICE_LINK_UP, 8000, flash);
    assert_int_equal(up.start, 4100);
    assert_int_equal(up.due, 4100 + 8000);
    assert_int_equal(m.busy_ns[DEVICE_LINK_UP], 2000 + 8000); /* waiting is not busy */
}

static void what_is_not_modelled_takes_no_time(void **state)
{
    struct device_model off = {0}, m = plain();
    (void)state;
    for (int i = 0; i < DEVICE_RESOURCES; i++)
        assert_int_equal(device_charge(&off, (enum device_resource)i, 1000, device_at(5)).due, 5);
    m.figures.cpu = 0;
    struct device_span in = {3, 9}, out = device_charge(&m, DEVICE_CPU, 1000, in);
    assert_true(out.start == 3 && out.due == 9);
    assert_int_equal(m.free_at[DEVICE_CPU], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_what_its_bytes_take),
        cmocka_unit_test(a_queue_is_served_in_order),
        cmocka_unit_test(flash_is_one_queue_and_the_rest_are_their_own),
        cmocka_unit_test(a_stage_flows_and_never_ends_before_its_input),
        cmocka_unit_test(what_is_not_modelled_takes_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

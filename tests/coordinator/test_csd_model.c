/* Tests of coordinator/service_csd_model.c: the sum of the counters of several agents. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "coordinator/service.h"

static void tell_of(struct service *sv, uint32_t drive, uint64_t commands, uint64_t late_max_ns)
{
    Hill__CsdModelCounters counters = HILL__CSD_MODEL_COUNTERS__INIT;
    counters.commands = commands;
    counters.flash_ns = 10 * commands;
    counters.late_max_ns = late_max_ns;
    Hill__Message message = HILL__MESSAGE__INIT;
    message.body_case = HILL__MESSAGE__BODY_CSD_MODEL_COUNTERS;
    message.csd_model_counters = &counters;
    struct arrival arrival = {.message = &message, .worker = WORKER_AGENT + drive};
    csd_model_take_counters(sv, &arrival);
}

static void tell(struct service *sv, uint64_t commands, uint64_t late_max_ns)
{
    tell_of(sv, 0, commands, late_max_ns);
}

static void test_agents_of_several_drives_are_added(void **state)
{
    static struct service sv;
    (void)state;
    tell_of(&sv, 0, 5, 1);
    tell_of(&sv, 2, 7, 3);
    tell_of(&sv, 0, 6, 1);
    csd_model_new_agent(&sv, 2);
    tell_of(&sv, 2, 1, 2);
    assert_int_equal(csd_model_used(&sv).commands, 14);
    assert_int_equal(csd_model_used(&sv).late_max_ns, 3);
}

static void test_an_agent_tells_its_own_sum(void **state)
{
    static struct service sv;
    (void)state;
    csd_model_new_agent(&sv, 0);
    tell(&sv, 5, 1);
    tell(&sv, 9, 2);
    assert_int_equal(csd_model_used(&sv).commands, 9);
    assert_int_equal(csd_model_used(&sv).flash_ns, 90);
}

/* Also where the new one has done more than the old one before it is heard of first. */
static void test_what_a_former_agent_did_stays_counted(void **state)
{
    static struct service sv;
    (void)state;
    csd_model_new_agent(&sv, 0);
    tell(&sv, 9, 70);
    csd_model_new_agent(&sv, 0);
    assert_int_equal(csd_model_used(&sv).commands, 9);
    tell(&sv, 20, 30);
    assert_int_equal(csd_model_used(&sv).commands, 29);
    csd_model_new_agent(&sv, 0);
    tell(&sv, 1, 3);
    assert_int_equal(csd_model_used(&sv).commands, 30);
    assert_int_equal(csd_model_used(&sv).late_max_ns, 70);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agents_of_several_drives_are_added),
        cmocka_unit_test(test_an_agent_tells_its_own_sum),
        cmocka_unit_test(test_what_a_former_agent_did_stays_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

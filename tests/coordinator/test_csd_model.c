/* Tests of coordinator/serve_csd_model.c: the sum of the counters of several agents. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "coordinator/pipeline_internal.h"

static void tell(struct pipeline *p, uint64_t commands, uint64_t late_max_ns)
{
    Hill__CsdModelCounters counters = HILL__CSD_MODEL_COUNTERS__INIT;
    counters.commands = commands;
    counters.flash_ns = 10 * commands;
    counters.late_max_ns = late_max_ns;
    csd_model_take_counters(p, &counters);
}

static void test_an_agent_tells_its_own_sum(void **state)
{
    static struct pipeline p;
    (void)state;
    csd_model_new_agent(&p);
    tell(&p, 5, 1);
    tell(&p, 9, 2);
    assert_int_equal(csd_model_used(&p).commands, 9);
    assert_int_equal(csd_model_used(&p).flash_ns, 90);
}

/* Also where the new one has done more than the old one before it is heard of first. */
static void test_what_a_former_agent_did_stays_counted(void **state)
{
    static struct pipeline p;
    (void)state;
    csd_model_new_agent(&p);
    tell(&p, 9, 70);
    csd_model_new_agent(&p);
    assert_int_equal(csd_model_used(&p).commands, 9);
    tell(&p, 20, 30);
    assert_int_equal(csd_model_used(&p).commands, 29);
    csd_model_new_agent(&p);
    tell(&p, 1, 3);
    assert_int_equal(csd_model_used(&p).commands, 30);
    assert_int_equal(csd_model_used(&p).late_max_ns, 70);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_agent_tells_its_own_sum),
        cmocka_unit_test(test_what_a_former_agent_did_stays_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

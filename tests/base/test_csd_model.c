/* Tests of base/csd_model.[ch]: what a device model's text says, what is refused, and that nothing
 * changes then. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/csd_model.h"

static struct csd_model parsed(struct csd_model from, const char *text)
{
    struct hill_why why = {""};
    if (csd_model_parse(&from, text, &why) != 0)
        fail_msg("%s: %s", text, why.text);
    return from;
}

static void test_every_key_is_read(void **state)
{
    struct csd_model m = parsed((struct csd_model){0},
                                "flash=1.5,write=0.5,link=2,gpu_link=12,score=4.25,latency_us=100");
    (void)state;
    assert_true(m.on);
    assert_true(m.flash == 1.5 && m.write == 0.5 && m.link == 2 && m.gpu_link == 12);
    assert_true(m.score == 4.25 && m.latency_us == 100);
}

static void test_a_modelled_cpu_is_there_when_it_is_named(void **state)
{
    struct csd_model m = parsed((struct csd_model){0}, "flash=1.5");
    char text[CSD_MODEL_TEXT];
    (void)state;
    assert_true(m.cpu == 0);
    assert_null(strstr(csd_model_print(text, &m), "cpu"));
    m = parsed(m, "cpu=0.5");
    assert_true(m.cpu == 0.5 && m.flash == 1.5);
    assert_non_null(strstr(csd_model_print(text, &m), ",cpu=0.5"));
    assert_true(parsed(m, "link=2").cpu == 0.5);
    assert_true(parsed(m, "cpu=0").cpu == 0);
}

static void test_what_is_not_named_is_a_smartssd_s_or_stays(void **state)
{
    struct csd_model m = parsed((struct csd_model){0}, "flash=1.0");
    (void)state;
    assert_true(m.on && m.flash == 1.0 && m.write == 1.0 && m.link == 3.2 && m.gpu_link == 25);
    assert_true(m.score == 44.5 && m.latency_us == 42);
    assert_true(m.dram == 4.0 * (1u << 30) && m.dram_read == 13.7);
    assert_true(parsed(m, "dram=0").dram == 0);
    assert_true(parsed(m, "dram=512").dram == 512.0 * (1 << 20));
    assert_true(parsed(m, "dram=1.5G,dram_read=2").dram == 1.5 * (1u << 30));
    m = parsed(m, "link=7,latency_us=0");
    assert_true(m.flash == 1.0 && m.link == 7 && m.latency_us == 0 && m.score == 44.5);
    m = parsed(m, "off");
    assert_false(m.on);
    m = parsed(m, "write=2");
    assert_true(m.flash == 2.9); /* nothing is kept of what was switched off */
}

static void test_bad_text_is_refused_by_the_key_and_changes_nothing(void **state)
{
    static const struct {
        const char *text, *said;
    } bad[] = {
        {"", "key=value"},
        {"on", "'on'"},
        {"flash", "'flash'"},
        {"flsh=2", "flsh"},
        {"flash=", "flash"},
        {"flash=2x", "flash"},
        {"flash=2,", "key=value"},
        {",flash=2", "key=value"},
        {"flash=2,flash=3", "twice"},
        {"flash=0", "flash"},
        {"flash=-1", "flash"},
        {"write=nan", "write"},
        {"score=inf", "score"},
        {"link=1e9", "link"},
        {"gpu_link=0.0001", "gpu_link"},
        {"latency_us=-1", "latency_us"},
        {"latency_us=2000000", "latency_us"},
        {"flash=2 ,write=1", "flash"},
        {"cpu=-1", "cpu"},
        {"dram=-1", "dram"},
        {"dram=4X", "dram"},
        {"dram=2T", "dram"},
        {"dram_read=-2", "dram_read"},
        {"cpu=0.0001", "cpu"},
        {"off,flash=2", "'off'"},
        {"flash=2,off", "'off'"},
        {"flash=1,write=a very long value that is longer than any number could reasonably be",
         "key=value"},
    };
    struct csd_model before = parsed((struct csd_model){0}, "flash=1.25,latency_us=7");

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct csd_model m = before;
        struct hill_why why = {""};
        assert_int_equal(csd_model_parse(&m, bad[i].text, &why), HILL_E_INVALID);
        if (!strstr(why.text, bad[i].said))
            fail_msg("'%s' is refused with '%s'", bad[i].text, why.text);
        assert_null(strchr(why.text, '\n'));
        assert_true(csd_model_same(&m, &before));
    }
}

static void test_what_is_printed_reads_back(void **state)
{
    struct csd_model m = parsed((struct csd_model){0}, "flash=0.123456789,score=99999.5,dram=0.3"),
                     again;
    char text[CSD_MODEL_TEXT];

    (void)state;
    again = parsed((struct csd_model){0}, csd_model_print(text, &m));
    assert_true(again.flash == m.flash && again.dram == m.dram && again.score == m.score &&
                csd_model_same(&m, &again));
    assert_string_equal(csd_model_print(text, &(struct csd_model){0}), "off");
    m = parsed(m, "dram_read=0");
    assert_non_null(strstr(csd_model_print(text, &m), ",dram_read=0,"));
    assert_false(csd_model_same(&m, &again));
    again = parsed((struct csd_model){0}, text);
    assert_true(again.dram_read == 0 && csd_model_same(&m, &again));
    again.link += 0.25;
    assert_false(csd_model_same(&m, &again));
}

static void test_check_refuses_what_is_no_number(void **state)
{
    struct csd_model m = CSD_MODEL_SMARTSSD;
    (void)state;
    assert_int_equal(csd_model_check(&m, NULL), 0);
    m.score = NAN;
    assert_int_equal(csd_model_check(&m, NULL), HILL_E_INVALID);
    m.on = false;
    assert_int_equal(csd_model_check(&m, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key_is_read),
        cmocka_unit_test(test_a_modelled_cpu_is_there_when_it_is_named),
        cmocka_unit_test(test_what_is_not_named_is_a_smartssd_s_or_stays),
        cmocka_unit_test(test_bad_text_is_refused_by_the_key_and_changes_nothing),
        cmocka_unit_test(test_what_is_printed_reads_back),
        cmocka_unit_test(test_check_refuses_what_is_no_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

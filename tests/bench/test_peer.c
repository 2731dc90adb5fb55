/*
 * tests/bench/test_peer.c - played programs of other engines: their versions, which flags are tried
 * and which win, and how they are asked for a decode deep in a text.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/bench/played_program.h"
#include "tools/bench/peer.h"
#include "tools/bench/run_pipeline.h"

static char folder[64] = "/tmp/hill-peer-XXXXXX";

/* a: -fa and -rtr, of which -fa 1 -rtr 0 is fastest; b: the same folder with flags of its own. */
static int play(void **unused)
{
    char dirs[256];
    (void)unused;
    if (!mkdtemp(folder))
        return -1;
    put_program(folder, "llama-bench",
                "#!/bin/sh\n"
                "case \"$*\" in\n"
                "*--help*) echo '  -fa, --flash-attn <0|1>'; echo '  -rtr, --repack'; exit 1 ;;\n"
                "*'-fa 0 -rtr 0') s=10.5 ;; *'-fa 0 -rtr 1') s=20 ;;\n"
                "*'-fa 1 -rtr 0') s=40.25 ;; *'-fa 1 -rtr 1') s=30 ;; *) s=7 ;;\n"
                "esac\n"
                "echo loading; printf '[ { \"avg_ns\": 5, \"avg_ts\": %s } ]\\n' $s\n");
    put_program(folder, "llama-cli",
                "#!/bin/sh\n"
                "case \"$*\" in *--help*) echo '-no-cnv'; exit 0 ;; esac\n"
                "case \"$*\" in *--version*) echo 'loading' >&2; echo 'version: 12 (abc)' >&2\n"
                "echo 'built with cc'; exit 0 ;; esac\n"
                "echo \"$*\" >\"$(dirname \"$0\")/asked\"\n"
                "echo 'prompt eval time =   900.00 ms /   512 tokens'\n"
                "echo '       eval time =  2000.00 ms /    64 runs   ( 31 ms per token)'\n");
    snprintf(dirs, sizeof dirs, "%s:%s -fa 0", folder, folder);
    setenv("PEER_DIR", dirs, 1);
    setenv("PEER_NAMES", "one", 1);
    return 0;
}

static int clean(void **unused)
{
    (void)unused;
    free(capture("rm -rf %s", folder));
    return 0;
}

static void test_peers_have_names_that_are_no_paths(void **unused)
{
    (void)unused;
    assert_int_equal(peer_count(), 2);
    assert_string_equal(peer_name(0), "one");
    assert_string_equal(peer_name(1), "peer 2");
}

static void test_a_version_is_the_line_that_a_program_says(void **unused)
{
    (void)unused;
    assert_string_equal(peer_version(0), "version: 12 (abc)");
    free(capture("mv %s/llama-cli %s/gone", folder, folder));
    assert_string_equal(peer_version(1), "version: unknown");
    free(capture("mv %s/gone %s/llama-cli", folder, folder));
}

static void test_each_set_of_flags_is_tried_and_the_fastest_wins(void **unused)
{
    char flags[PEER_FLAGS_MAX][128];
    double speeds[PEER_FLAGS_MAX];
    (void)unused;
    assert_int_equal(peer_flags(0, flags), 4);
    assert_string_equal(flags[0], "-fa 0 -rtr 0");
    assert_string_equal(flags[3], "-fa 1 -rtr 1");
    assert_int_equal(peer_best_flags(0, "m", "-p 8 -n 0", 3, speeds), 2);
    assert_true(speeds[0] == 10.5 && speeds[2] == 40.25);
}

static void test_the_first_peer_on_the_figures_model_has_its_fastest_flags(void **unused)
{
    char flags[128];
    (void)unused;
    peer_first_flags("-p 8 -n 0", 1, flags);
    assert_string_equal(flags, "-fa 1 -rtr 0");
    assert_true(peer_first_bench("-p 8 -n 0", flags) == 40.25);
}

static void test_given_flags_are_the_only_ones(void **unused)
{
    char flags[PEER_FLAGS_MAX][128];
    (void)unused;
    assert_int_equal(peer_flags(1, flags), 1);
    assert_string_equal(flags[0], "-fa 0");
}

static void test_a_deep_decode_keeps_its_state_and_counts_decoding_alone(void **unused)
{
    (void)unused;
    double speed =
        peer_decode_of(0, "the model", "-fa 1 -rtr 1", "text.txt", "kept state", 1000, 64);
    assert_true(speed == 32);
    char *asked = capture("cat %s/asked", folder);
    assert_non_null(asked);
    assert_non_null(strstr(asked, "-m the model -t 2 -c 1256 -f text.txt -n 65 -no-cnv"));
    assert_non_null(strstr(asked, "--prompt-cache kept state -fa 1 -rtr\n")); /* no value there */
    assert_null(strstr(asked, "--perf")); /* its help has none */
    free(asked);
    peer_decode_of(0, "m", "-fa 0 -rtr 0", "text.txt", "s", 1000, 64);
    asked = capture("cat %s/asked", folder);
    assert_null(strstr(asked, "-rtr"));
    free(asked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peers_have_names_that_are_no_paths),
        cmocka_unit_test(test_a_version_is_the_line_that_a_program_says),
        cmocka_unit_test(test_each_set_of_flags_is_tried_and_the_fastest_wins),
        cmocka_unit_test(test_the_first_peer_on_the_figures_model_has_its_fastest_flags),
        cmocka_unit_test(test_given_flags_are_the_only_ones),
        cmocka_unit_test(test_a_deep_decode_keeps_its_state_and_counts_decoding_alone),
    };
    return cmocka_run_group_tests(tests, play, clean);
}

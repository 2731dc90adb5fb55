/*
 * tests/bench/test_run_pipeline.c - which folders a figure may have for its pipelines, and how they
 * are started.
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
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/played_program.h"
#include "tools/bench/run_pipeline.h"

/* What a process that prepares a folder in `parent` says; its exit code. */
static int prepare(const char *parent, char *said, size_t space)
{
    int ends[2], status;
    size_t used = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        pipeline_prepare_folder(&(struct bench_options){.figure = "x", .folder = parent});
        exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], said + used, space - used - 1)) > 0;)
        used += (size_t)n;
    said[used] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_a_folder_whose_name_the_shell_would_split_is_refused(void **unused)
{
    static const char *const names[] = {"a b", "a'b", "a;b", "a$b", "a\nb"};
    char folder[] = "/tmp/hill-run-pipeline-XXXXXX", path[64], said[512];
    (void)unused;
    assert_non_null(mkdtemp(folder));
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        assert_int_equal(mkdir(path, 0700), 0);
        assert_int_equal(prepare(path, said, sizeof said), 1);
        assert_non_null(strstr(said, path));
        assert_int_equal(rmdir(path), 0); /* nothing was made in it */
    }
    assert_int_equal(rmdir(folder), 0);
}

static void test_a_model_may_have_a_space_in_its_path(void **unused)
{
    char folder[] = "/tmp/hill-run-pipeline-XXXXXX", was[4096], said[64] = "";
    (void)unused;
    assert_non_null(getcwd(was, sizeof was));
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(mkdir("scripts", 0700), 0);
    put_program("scripts", "hillinfer", "#!/bin/sh\n[ \"$1\" != up ] || echo \"$4\" >said\n");
    assert_true(pipeline_try_start("/my models/a.gguf", ""));
    pipeline_stop();
    FILE *f = fopen("said", "r");
    assert_non_null(f);
    assert_non_null(fgets(said, sizeof said, f));
    fclose(f);
    assert_string_equal(said, "/my models/a.gguf\n");
    assert_int_equal(unlink("said") || unlink("scripts/hillinfer") || rmdir("scripts"), 0);
    assert_int_equal(chdir(was) || rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_folder_whose_name_the_shell_would_split_is_refused),
        cmocka_unit_test(test_a_model_may_have_a_space_in_its_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tests of coordinator/run_folder.[ch]: mode, lock, what a killed pipeline left, removal. Uses a
 * folder below /tmp. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"
#include "coordinator/run_folder.h"
#include "shm/segment.h"

static char path[64];
static struct run_folder folder;
static struct hill_why why;

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/hill-run-%d", (int)getpid());
    folder.lock_fd = -1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    run_folder_close(&folder);
    rmdir(path);
    unlink(path);
    return 0;
}

static void put_file(const char *name, const char *text)
{
    char file_path[128];
    snprintf(file_path, sizeof file_path, "%s/%s", path, name);
    FILE *file = fopen(file_path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static bool exists(const char *name)
{
    char file_path[128];
    snprintf(file_path, sizeof file_path, "%s/%s", path, name);
    return access(file_path, F_OK) == 0;
}

static void test_created_closed_to_others_and_removed(void **state)
{
    (void)state;
    struct stat info;
    assert_int_equal(run_folder_open(&folder, path, &why), 0);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    assert_true(exists("lock"));
    run_folder_close(&folder);
    assert_int_equal(access(path, F_OK), -1);
}

static void test_second_pipeline_is_refused(void **state)
{
    (void)state;
    struct run_folder second;
    assert_int_equal(run_folder_open(&folder, path, &why), 0);
    assert_int_equal(run_folder_open(&second, path, &why), HILL_E_BUSY);
    assert_int_equal(hill_exit_code(HILL_E_BUSY), 100);
    run_folder_close(&second); /* must not remove what is the first one's */
    assert_true(exists("lock"));
}

static void test_folder_open_to_others_is_refused_and_kept(void **state)
{
    (void)state;
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(chmod(path, 0750), 0);
    assert_int_equal(run_folder_open(&folder, path, &why), HILL_E_INVALID);
    assert_int_equal(access(path, F_OK), 0);
}

static void test_link_is_refused(void **state)
{
    (void)state;
    assert_int_equal(symlink("/tmp", path), 0);
    assert_int_equal(run_folder_open(&folder, path, &why), HILL_E_INVALID);
}

static void test_foreign_file_keeps_the_folder(void **state)
{
    (void)state;
    assert_int_equal(run_folder_open(&folder, path, &why), 0);
    put_file("notes", "x");
    run_folder_close(&folder);
    assert_true(exists("notes"));
    assert_false(exists("lock"));
    char name[128];
    snprintf(name, sizeof name, "%s/notes", path);
    unlink(name);
}

static void test_leftovers_of_a_killed_pipeline_are_removed(void **state)
{
    (void)state;
    assert_int_equal(mkdir(path, 0700), 0);
    put_file("worker.sock", "");
    pid_t hangs = fork();
    if (hangs == 0) {
        signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    char line[128];
    snprintf(line, sizeof line, "garbage\n%d %llu gpu_worker\n", (int)hangs,
             (unsigned long long)process_start_time(hangs));
    put_file("pids", line);
    assert_int_equal(run_folder_open(&folder, path, &why), 0);
    int status;
    assert_int_equal(waitpid(hangs, &status, 0), hangs);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_false(exists("worker.sock"));
    assert_false(exists("pids"));
}

static void test_a_recycled_pid_is_left_alone(void **state)
{
    (void)state;
    assert_int_equal(mkdir(path, 0700), 0);
    char line[128];
    snprintf(line, sizeof line, "%d 1 gpu_worker\n",
             (int)getpid()); /* our pid, another start time */
    put_file("pids", line);
    assert_int_equal(run_folder_open(&folder, path, &why), 0); /* we live */
}

static void test_segments_of_a_dead_creator_are_removed(void **state)
{
    (void)state;
    char name[SHM_NAME_BYTES];
    assert_int_equal(run_folder_open(&folder, path, &why), 0);
    shm_segment_name(name, folder.run_id, 3, "hot");
    pid_t creator = fork();
    if (creator == 0) {
        struct shm_segment segment = {0};
        _exit(shm_segment_create(&segment, name, 4096, 1, 3, NULL) ? 1 : 0);
    }
    int status;
    waitpid(creator, &status, 0);
    assert_int_equal(status, 0);
    run_folder_close(&folder);
    assert_int_equal(run_folder_open(&folder, path, &why), 0);
    struct shm_segment segment = {0};
    assert_int_equal(shm_segment_attach(&segment, name, 1, 3, &why), HILL_E_PEER_GONE);
}

/* A killed pipeline's hot and prompt segment, as its record names them; and whose they are then. */
static void test_what_the_record_names_is_left(void **state)
{
    (void)state;
    static const char *const whats[] = {"rings", "hot", "prompt"};
    struct shm_segment segment = {0};
    struct epoch_settings s = {.epoch = 4, .tiers_epoch = 3, .hot_cap_bytes = 9};
    char name[3][SHM_NAME_BYTES];
    assert_int_equal(run_folder_open(&folder, path, &why), 0);
    s.run_id = folder.run_id;
    pid_t creator = fork();
    for (int i = 0; i < 3; i++)
        shm_segment_name(name[i], folder.run_id, 3, whats[i]);
    if (creator == 0) {
        for (int i = 0; i < 3; i++)
            if (shm_segment_create(&segment, name[i], 4096, 1, 3, NULL))
                _exit(1);
        _exit(tiers_record_write(path, &s, 0, NULL) ? 1 : 0);
    }
    int status;
    waitpid(creator, &status, 0);
    assert_int_equal(status, 0);
    close(folder.lock_fd); /* as a kill leaves it */
    assert_int_equal(run_folder_open(&folder, path, &why), 0);
    assert_int_equal(folder.left.tiers_epoch, 3);
    assert_int_equal(folder.left.epoch, 4);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(shm_segment_attach(&segment, name[i], 1, 3, &why),
                         i == 0 ? HILL_E_PEER_GONE : 0);
        shm_segment_detach(&segment);
    }
    run_folder_close(&folder); /* nobody took them over */
    for (int i = 0; i < 3; i++)
        assert_int_equal(shm_segment_attach(&segment, name[i], 1, 3, &why), HILL_E_PEER_GONE);
}

static void test_pids_name_who_runs(void **state)
{
    (void)state;
    struct worker_table table;
    worker_table_init(&table, 1, &(struct worker_limits){1, 1});
    assert_int_equal(run_folder_open(&folder, path, &why), 0);
    worker_table_started(&table, WORKER_GPU, 1234, 5678, 0);
    assert_int_equal(run_folder_write_pids(&folder, &table), 0);
    char name[128], line[128] = "";
    snprintf(name, sizeof name, "%s/pids", path);
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    assert_string_equal(line, "1234 5678 gpu_worker\n");
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
}

static void test_progress_is_noted_in_the_lock(void **state)
{
    (void)state;
    char name[128], text[64] = "", expected[64];
    assert_int_equal(run_folder_open(&folder, path, &why), 0);
    run_folder_note_progress(&folder);
    snprintf(name, sizeof name, "%s/lock", path);
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    snprintf(expected, sizeof expected, "%d\nprogress\n", (int)getpid());
    assert_string_equal(text, expected);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_created_closed_to_others_and_removed),
        T(test_second_pipeline_is_refused),
        T(test_folder_open_to_others_is_refused_and_kept),
        T(test_link_is_refused),
        T(test_foreign_file_keeps_the_folder),
        T(test_leftovers_of_a_killed_pipeline_are_removed),
        T(test_a_recycled_pid_is_left_alone),
        T(test_segments_of_a_dead_creator_are_removed),
        T(test_what_the_record_names_is_left),
        T(test_pids_name_who_runs),
        T(test_progress_is_noted_in_the_lock),
    };
    return cmocka_run_group_tests_name("run_folder", tests, NULL, NULL);
}

/* Tests of coordinator/notify.[ch] against sockets that a service manager would have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "coordinator/notify.h"

static char folder[] = "/tmp/hill-test-notify-XXXXXX", path[64], got[256];
static int manager;
static struct notify notify;

/* Bind where name says, as a manager does, and tell the environment. */
static void listen_at(const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    memcpy(at.sun_path, name, strlen(name));
    if (*name == '@')
        at.sun_path[0] = '\0';
    else
        length++;
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(manager, (struct sockaddr *)&at, length), 0);
    setenv("NOTIFY_SOCKET", name, 1);
}

/* The next datagram, or "" when there is none. */
static const char *heard(void)
{
    ssize_t n = recv(manager, got, sizeof got - 1, 0);
    got[n > 0 ? n : 0] = '\0';
    return got;
}

static int setup(void **state)
{
    (void)state;
    manager = -1;
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    notify_close(&notify);
    if (manager >= 0)
        close(manager);
    unlink(path);
    return 0;
}

static void test_a_socket_by_path_hears_each_text(void **state)
{
    (void)state;
    listen_at(path);
    notify_open(&notify, 0);
    notify_send(&notify, "READY=1\nSTATUS=ready");
    notify_send(&notify, "STOPPING=1");
    assert_string_equal(heard(), "READY=1\nSTATUS=ready");
    assert_string_equal(heard(), "STOPPING=1");
    assert_string_equal(heard(), "");
}

static void test_an_abstract_socket_hears_too(void **state)
{
    (void)state;
    char name[64];
    snprintf(name, sizeof name, "@hill-test-notify-%d", (int)getpid());
    listen_at(name);
    notify_open(&notify, 0);
    notify_send(&notify, "READY=1");
    assert_string_equal(heard(), "READY=1");
}

static void test_the_workers_inherit_nothing(void **state)
{
    (void)state;
    listen_at(path);
    setenv("WATCHDOG_USEC", "1000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    notify_open(&notify, 0);
    assert_null(getenv("NOTIFY_SOCKET"));
    assert_null(getenv("WATCHDOG_USEC"));
    assert_null(getenv("WATCHDOG_PID"));
}

static void test_the_watchdog_is_fed_twice_in_its_time(void **state)
{
    (void)state;
    char pid[16];
    listen_at(path);
    setenv("WATCHDOG_USEC", "3000000", 1);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    notify_open(&notify, 1000);
    notify_tick(&notify, 1000);
    assert_string_equal(heard(), "WATCHDOG=1");
    assert_true(notify.next_ns == 1000 + CLOCK_MS(1500));
    notify_tick(&notify, notify.next_ns - 1);
    assert_string_equal(heard(), "");
    notify_tick(&notify, notify.next_ns);
    assert_string_equal(heard(), "WATCHDOG=1");
}

static void test_another_process_s_watchdog_is_left_alone(void **state)
{
    (void)state;
    listen_at(path);
    setenv("WATCHDOG_USEC", "3000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    notify_open(&notify, 0);
    assert_true(notify.next_ns == CLOCK_NEVER);
    notify_tick(&notify, CLOCK_NEVER - 1);
    assert_string_equal(heard(), "");
}

static void test_a_watchdog_of_nonsense_is_none(void **state)
{
    (void)state;
    static const char *const values[] = {"", "0", "-5", "soon", "99999999999999999999"};
    for (unsigned i = 0; i < sizeof values / sizeof *values; i++) {
        listen_at(path);
        setenv("WATCHDOG_USEC", values[i], 1);
        notify_open(&notify, 0);
        assert_true(notify.next_ns == CLOCK_NEVER);
        teardown(NULL);
    }
    manager = -1;
}

static void test_without_a_manager_nothing_is_sent(void **state)
{
    (void)state;
    char longer[200] = "/";
    const char *const names[] = {NULL, "", "relative", "@", "/", longer};
    memset(longer + 1, 'x', sizeof longer - 2);
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i])
            setenv("NOTIFY_SOCKET", names[i], 1);
        notify_open(&notify, 0);
        assert_int_equal(notify.fd, -1);
        notify_send(&notify, "READY=1");
    }
}

static void test_a_manager_that_is_gone_does_no_harm(void **state)
{
    (void)state;
    listen_at(path);
    notify_open(&notify, 0);
    close(manager);
    manager = -1;
    notify_send(&notify, "READY=1");
}

/* Every second, never waiting, until nobody reads. */
static void test_who_watches_hears_the_pid_every_second(void **state)
{
    (void)state;
    int ends[2];
    char wanted[64];
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    snprintf(wanted, sizeof wanted, "%ld\n%ld\n", (long)getpid(), (long)getpid());
    notify_open(&notify, 0);
    notify_alive(&notify, ends[1], 500);
    assert_true(notify_next_ns(&notify) == 500);
    notify_tick(&notify, 499);
    assert_int_equal(read(ends[0], got, sizeof got), -1);
    notify_tick(&notify, 500);
    assert_true(notify_next_ns(&notify) == 500 + CLOCK_MS(1000));
    notify_tick(&notify, 499 + CLOCK_MS(1000)); /* not yet */
    notify_tick(&notify, notify_next_ns(&notify));
    ssize_t n = read(ends[0], got, sizeof got - 1);
    got[n > 0 ? n : 0] = '\0';
    assert_string_equal(got, wanted);
    while (write(ends[1], wanted, sizeof wanted) > 0)
        ;
    notify_tick(&notify, notify_next_ns(&notify)); /* a full pipe */
    assert_int_equal(notify.alive_fd, ends[1]);
    close(ends[0]);
    notify_tick(&notify, notify_next_ns(&notify));
    assert_int_equal(notify.alive_fd, -1);
    assert_true(notify_next_ns(&notify) == CLOCK_NEVER);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_socket_by_path_hears_each_text),
        T(test_an_abstract_socket_hears_too),
        T(test_the_workers_inherit_nothing),
        T(test_the_watchdog_is_fed_twice_in_its_time),
        T(test_another_process_s_watchdog_is_left_alone),
        T(test_a_watchdog_of_nonsense_is_none),
        T(test_without_a_manager_nothing_is_sent),
        T(test_a_manager_that_is_gone_does_no_harm),
        T(test_who_watches_hears_the_pid_every_second),
    };
    signal(SIGPIPE, SIG_IGN); /* as main.c */
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/socket", folder);
    int failed = cmocka_run_group_tests_name("notify", tests, NULL, NULL);
    rmdir(folder);
    return failed;
}

/*
 * test_render.c - conversations that the helper process renders: so many at once, further ones wait
 * for these, in their order, up to a bound, and who is stopped waits no longer. What is rendered is
 * test_chat_helper's; without python3-jinja2 all of them fail alike.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "gateway/render.h"

enum { ALL = RENDER_THREADS_MAX + RENDER_WAITING_MAX };

static const struct chat_message hello = {.role = CHAT_USER, .text = "hello", .bytes = 5};
static Hill__ModelInfo model;
static int event_fd;

static int setup(void **state)
{
    static uint8_t template[] = "{{ messages[0].content }} in a template that is not built in";
    (void)state;
    hill__model_info__init(&model);
    model.chat_template = (ProtobufCBinaryData){sizeof template - 1, template};
    event_fd = eventfd(0, EFD_CLOEXEC);
    return event_fd < 0;
}

static int teardown(void **state)
{
    (void)state;
    return close(event_fd);
}

static struct render *start(void)
{
    struct render *r =
        render_start(&PROTO_MESSAGE(MODEL_INFO, model_info, &model), false, &hello, 1, event_fd);
    assert_non_null(r);
    return r;
}

static void wait_until_done(struct render *r)
{
    struct pollfd told = {event_fd, POLLIN, 0};
    eventfd_t n;
    while (!render_is_done(r)) {
        assert_int_equal(poll(&told, 1, 60000), 1);
        assert_int_equal(eventfd_read(event_fd, &n), 0);
    }
}

static void test_further_ones_wait(void **state)
{
    (void)state;
    struct render *r[RENDER_THREADS_MAX + 2];
    unsigned n = sizeof r / sizeof *r;
    for (unsigned i = 0; i < n; i++)
        r[i] = start();
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(r[i]->threaded, i < RENDER_THREADS_MAX);
        assert_int_equal(r[i]->waits, i >= RENDER_THREADS_MAX);
    }
    assert_false(render_is_done(r[n - 1]));
    wait_until_done(r[1]);
    assert_true(r[n - 2]->threaded && r[n - 1]->waits);
    for (unsigned i = 0; i < n; i++) {
        wait_until_done(r[i]);
        assert_int_equal(r[i]->code, r[1]->code);
        assert_true(r[i]->code == 0 || r[i]->code == HILL_E_UNSUPPORTED);
    }
    for (unsigned i = 0; i < n; i++)
        render_finish(r[i]);
}

static void test_the_queue_has_a_bound(void **state)
{
    (void)state;
    struct render *r[ALL], *more;
    for (unsigned i = 0; i < ALL; i++)
        r[i] = start();
    more = start();
    assert_true(render_is_done(more));
    assert_int_equal(more->code, HILL_E_BUSY);
    render_finish(more);
    /* one that is stopped makes room, and is not begun */
    render_stop(r[ALL / 2]);
    assert_true(render_is_done(r[ALL / 2]));
    assert_int_equal(r[ALL / 2]->code, HILL_E_CANCELLED);
    more = start();
    assert_true(more->waits);
    render_finish(more);
    /* the ones that wait are stopped first, as when the gateway ends: none of them begins */
    for (unsigned i = 0; i < ALL; i++)
        render_stop(r[i]);
    for (unsigned i = 0; i < ALL; i++) {
        wait_until_done(r[i]);
        assert_true(i < RENDER_THREADS_MAX || r[i]->code == HILL_E_CANCELLED);
        render_finish(r[i]);
    }
    more = start();
    assert_true(more->threaded);
    render_finish(more);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_further_ones_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_queue_has_a_bound, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

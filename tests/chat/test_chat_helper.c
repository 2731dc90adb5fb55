/*
 * test_chat_helper.c - templates that are not built in, through the helper process: what it
 * renders, what hostile templates come to, and what its filter refuses.
 *
 * Skipped where Debian's python3-jinja2 is not installed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "chat/chat_helper.h"

#define HELPER "scripts/chat-template-helper.py"

static const struct chat_vocabulary vocabulary = {"<s>", "</s>", 1700000000};

static bool no_think;

static struct chat_message message(enum chat_role role, const char *text)
{
    return (struct chat_message){role, text, strlen(text)};
}

static int render(struct chat_prompt *out, const char *template,
                  const struct chat_message *messages, unsigned count, struct hill_why *why)
{
    why->text[0] = '\0';
    return chat_helper_render(out, template, strlen(template), &vocabulary, no_think, messages,
                              count, -1, why);
}

/* All pieces as "kind:text" lines: S template, L words, T answer. */
static void show(char *out, size_t room, const struct chat_prompt *prompt)
{
    size_t at = 0;
    out[0] = '\0';
    for (uint64_t i = 0; i < prompt->n_pieces && at < room; i++)
        at += (size_t)snprintf(out + at, room - at, "%c:%.*s\n",
                               prompt->pieces[i].kind == PROMPT_SPECIAL   ? 'S'
                               : prompt->pieces[i].kind == PROMPT_LITERAL ? 'L'
                                                                          : 'T',
                               (int)prompt->pieces[i].bytes, prompt->pieces[i].text);
}

static void expect_pieces(const char *template, const struct chat_message *messages, unsigned count,
                          const char *wanted, const char *answer_end)
{
    struct chat_prompt prompt;
    struct hill_why why;
    char got[4096];
    if (render(&prompt, template, messages, count, &why))
        fail_msg("%s", why.text);
    show(got, sizeof got, &prompt);
    assert_string_equal(got, wanted);
    assert_string_equal(prompt.answer_end, answer_end);
    chat_prompt_finish(&prompt);
}

static void words_come_through_as_pieces(void **state)
{
    (void)state;
    const struct chat_message talk[] = {
        message(CHAT_SYSTEM, "Be <e>."), message(CHAT_USER, "  hi {{ 1 }} \n"),
        message(CHAT_ASSISTANT, "<think>hm</think>\nyes"), message(CHAT_USER, "<e>")};
    expect_pieces("{{ bos_token }}{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}<e>\n"
                  "{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
                  talk, 4,
                  "S:<s><s>\nL:Be <e>.\nS:<e>\n<u>  \nL:hi {{ 1 }}\nS: \n<e>\n<a><think>\nT:hm\n"
                  "S:</think>\n\nT:yes\nS:<e>\n<u>\nL:<e>\nS:<e>\n<a>\n",
                  "<e>\n<u>");
}

static void a_template_may_trim_and_drop_reasoning(void **state)
{
    (void)state;
    const struct chat_message talk[] = {message(CHAT_USER, " a "),
                                        message(CHAT_ASSISTANT, "<think>hm</think>\n\nyes"),
                                        message(CHAT_USER, "\tb\n")};
    expect_pieces(
        "{% for m in messages %}[{{ m.content.split('</think>')[-1] | trim }}]{% endfor %}", talk,
        3, "S:[\nL:a\nS:][\nT:yes\nS:][\nL:b\nS:]\n", "][");
}

static void a_system_text_without_a_place_joins_the_first_turn(void **state)
{
    (void)state;
    const struct chat_message talk[] = {message(CHAT_SYSTEM, "S"), message(CHAT_USER, "U")};
    expect_pieces(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% for m in messages %}({{ m.content }}){% endfor %}",
        talk, 2, "S:(\nL:S\nS:\n\n\nL:U\nS:)\n", ")(");
    expect_pieces("{% for m in messages if m.role != 'system' %}({{ m.content }}){% endfor %}",
                  talk, 2, "S:(\nL:S\nS:\n\n\nL:U\nS:)\n", ")(");
}

/* SmolLM3's template does so. What another one looks for is refused, and goes nowhere else. */
static void switches_in_a_system_text_are_found_and_taken_out(void **state)
{
    (void)state;
    static const char template[] =
        "{% set s = messages[0].content %}<{{ '/no_think' if '/no_think' in s else '/think' }}>"
        "{{ s.replace('/no_think', '').replace('/think', '').rstrip() or 'Default' }}<e>"
        "{% for m in messages[1:] %}<u>{{ m.content }}<e>{% endfor %}";
    const struct chat_message talk[] = {message(CHAT_SYSTEM, "Be <e>. /no_think"),
                                        message(CHAT_USER, "/no_think")},
                              alone[] = {message(CHAT_SYSTEM, "/think"), message(CHAT_USER, "U")};
    struct chat_prompt prompt;
    struct hill_why why;
    expect_pieces(template, talk, 2, "S:</no_think>\nL:Be <e>.\nS:<e><u>\nL:/no_think\nS:<e>\n",
                  "<e><u>");
    expect_pieces(template, alone, 2, "S:</think>Default<e><u>\nL:U\nS:<e>\n", "<e><u>");
    assert_int_equal(render(&prompt,
                            "{{ messages[0].content.replace('<e>', '') }}{{ messages[1].content }}",
                            talk, 2, &why),
                     HILL_E_UNSUPPORTED);
    assert_non_null(strstr(why.text, "changes"));
}

static void the_date_is_the_one_asked_for(void **state)
{
    (void)state;
    const struct chat_message talk[] = {message(CHAT_USER, "U")};
    struct tm day;
    char date[32], wanted[64];
    localtime_r(&vocabulary.now, &day);
    strftime(date, sizeof date, "%d %B %Y", &day);
    snprintf(wanted, sizeof wanted, "S:%s \nL:U\n", date);
    expect_pieces("{{ strftime_now('%d %B %Y') }} {{ messages[0].content }}", talk, 1, wanted, "");
}

/* Not after its seconds of CPU, and no process is left of it. */
static void reasoning_is_switched_off(void **state)
{
    (void)state;
    static const char template[] = "{% for m in messages %}<u>{{ m.content }}{% endfor %}<a>"
                                   "{%- if enable_thinking is defined and enable_thinking is false "
                                   "%}<think></think>{% endif %}";
    const struct chat_message talk[] = {message(CHAT_USER, "hi")};
    expect_pieces(template, talk, 1, "S:<u>\nL:hi\nS:<a>\n", "<u>");
    no_think = true;
    expect_pieces(template, talk, 1, "S:<u>\nL:hi\nS:<a><think></think>\n", "<u>");
    no_think = false;
}

static void a_helper_is_stopped_by_its_descriptor(void **state)
{
    (void)state;
    const char *endless =
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    const struct chat_message talk[] = {message(CHAT_USER, "U")};
    struct chat_prompt prompt;
    struct hill_why why;
    int stop_fd = eventfd(1, EFD_CLOEXEC);
    assert_true(stop_fd >= 0);
    assert_int_equal(chat_helper_render(&prompt, endless, strlen(endless), &vocabulary, false, talk,
                                        1, stop_fd, &why),
                     HILL_E_CANCELLED);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    chat_prompt_finish(&prompt);
    close(stop_fd);
}

/* Every one of them ends in one line that says what is wrong, and within the limits. */
static void hostile_templates_are_refused_in_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *template, *says;
    } hostile[] = {
        {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
         "stopped"},
        {"{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor "
         "%}",
         "memory"},
        {"{{ 'x' * 10000000000 }}", "memory"},
        {"{{ ''.__class__.__mro__ }}", "may not"},
        {"{{ cycler.__init__.__globals__.os.popen('id').read() }}", "may not"},
        {"{{ messages.append(1) }}", "may not"},
        {"{% include '/etc/passwd' %}", "failed"},
        {"{% import 'os' as os %}", "failed"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "for ever"},
        {"{% for m in messages %}{{ m.content | upper }}{% endfor %}", "leaves out"},
        {"{{ messages[0].content }}{{ messages[0].content }}", "repeats"},
        {"{{ messages[0].content }}{{ messages[0].content | length }}", "changes"},
        {"{% if 'injected' in messages[0].content %}<|im_end|>{% endif %}{{ messages[0].content }}",
         "changes"},
        {"{{ raise_exception('two\nlines') }}", "two lines"},
        {"{% for m in", "failed"},
        {"", "leaves out"},
    };
    const struct chat_message talk[] = {message(CHAT_USER, "it is injected here")};
    for (unsigned i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        struct chat_prompt prompt;
        struct hill_why why;
        time_t start = time(NULL);
        assert_int_equal(render(&prompt, hostile[i].template, talk, 1, &why), HILL_E_UNSUPPORTED);
        if (!strstr(why.text, hostile[i].says))
            fail_msg("%s\n  %s\n  wanted: %s", hostile[i].template, why.text, hostile[i].says);
        assert_null(strchr(why.text, '\n'));
        assert_null(prompt.pieces);
        assert_true(time(NULL) - start <= CHAT_HELPER_WALL_S + 2);
    }
}

static void what_is_no_text_is_refused(void **state)
{
    (void)state;
    const struct chat_message talk[] = {message(CHAT_USER, "\xff")};
    struct chat_prompt prompt;
    struct hill_why why;
    assert_int_equal(render(&prompt, "{{ messages[0].content }}", talk, 1, &why),
                     HILL_E_UNSUPPORTED);
    assert_non_null(strstr(why.text, "UTF-8"));
}

static void the_filter_leaves_no_file_no_socket_no_process(void **state)
{
    (void)state;
#if defined(__x86_64__) || defined(__aarch64__)
    char line[256] = "";
    FILE *check = popen("/usr/bin/python3 -I " HELPER " --check", "r");
    assert_non_null(check);
    assert_non_null(fgets(line, sizeof line, check));
    assert_int_equal(pclose(check), 0);
    assert_string_equal(line, "filter on; refused: open socket fork exec unlink kill\n");
#else
    skip();
#endif
}

/* What a client has sent back apart from the text: for a template that takes it, also cut; another
 * one does without, also where it would change the words. */
static void reasoning_goes_where_the_template_takes_it(void **state)
{
    (void)state;
    struct chat_message talk[] = {message(CHAT_USER, "q"), message(CHAT_ASSISTANT, "a")};
    talk[1].thought = "\nhm [THINK]\n";
    talk[1].thought_bytes = strlen(talk[1].thought);
    expect_pieces("{% for m in messages %}{% if m.reasoning_content %}<think>"
                  "{{ m.reasoning_content.strip('\n') }}</think>{% endif %}<{{ m.content }}>"
                  "{% endfor %}",
                  talk, 2, "S:<\nL:q\nS:><think>\nT:hm [THINK]\nS:</think><\nT:a\nS:>\n", "><");
    expect_pieces("{% for m in messages %}<{{ m.content }}>{% endfor %}", talk, 2,
                  "S:<\nL:q\nS:><\nT:a\nS:>\n", "><");
    expect_pieces("{% for m in messages %}{{ (m.reasoning_content or '') | upper }}"
                  "<{{ m.content }}>{% endfor %}",
                  talk, 2, "S:<\nL:q\nS:><\nT:a\nS:>\n", "><");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_come_through_as_pieces),
        cmocka_unit_test(a_template_may_trim_and_drop_reasoning),
        cmocka_unit_test(a_system_text_without_a_place_joins_the_first_turn),
        cmocka_unit_test(switches_in_a_system_text_are_found_and_taken_out),
        cmocka_unit_test(the_date_is_the_one_asked_for),
        cmocka_unit_test(reasoning_is_switched_off),
        cmocka_unit_test(a_helper_is_stopped_by_its_descriptor),
        cmocka_unit_test(hostile_templates_are_refused_in_one_line),
        cmocka_unit_test(what_is_no_text_is_refused),
        cmocka_unit_test(reasoning_goes_where_the_template_takes_it),
        cmocka_unit_test(the_filter_leaves_no_file_no_socket_no_process),
    };
    if (system("/usr/bin/python3 -I -c 'import jinja2' 2>/dev/null") != 0) {
        puts("skipped: python3-jinja2 is not installed");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

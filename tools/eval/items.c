/* tools/eval/items.c - see items.h. */
#include "tools/eval/items.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>
#include <xxhash.h>

#include "base/grow.h"
#include "base/options.h"

static const char *const rule_names[ITEM_RULE_COUNT] = {"line", "contains", "start", "all",
                                                        "number"};

/* ---- the list ------------------------------------------------------------------------------ */

static void free_item(struct item *item)
{
    for (uint32_t i = 0; item->answers && i < item->n_answers; i++)
        free(item->answers[i]);
    free(item->answers);
    free(item->group);
    free(item->place);
    free(item->prompt);
    free(item->tokens);
}

void items_free(struct item_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free_item(&list->items[i]);
    free(list->items);
    *list = (struct item_list){0};
}

/* Takes the item's memory over when it returns 0. */
static int append(struct item_list *list, const struct item *item)
{
    if (!GROW(list->items, list->room, list->count + 1))
        return HILL_E_NOMEM;
    list->items[list->count++] = *item;
    return 0;
}

static uint32_t count_of_group(const struct item_list *list, const char *group)
{
    uint32_t n = 0;
    for (size_t i = 0; i < list->count; i++)
        n += !list->items[i].is_text && list->items[i].choice == 0 &&
             strcmp(list->items[i].group, group) == 0;
    return n;
}

static void hash_text(XXH64_state_t *state, const void *text, uint64_t bytes)
{
    XXH64_update(state, &bytes, sizeof bytes); /* so that no two lists of texts run together */
    XXH64_update(state, text, bytes);
}

static int hash_item(struct item *item)
{
    XXH64_state_t *state = XXH64_createState();
    if (!state)
        return HILL_E_NOMEM;
    uint32_t numbers[] = {item->is_text, item->rule, item->predict, item->n_scored};
    uint32_t more[] = {item->is_choice, item->is_chat, item->context_bytes};
    XXH64_reset(state, 0);
    hash_text(state, numbers, sizeof numbers);
    if (item->is_choice || item->is_chat) /* other items keep the keys that result files hold */
        hash_text(state, more, sizeof more);
    hash_text(state, item->group, strlen(item->group));
    hash_text(state, item->prompt, item->prompt_bytes);
    for (uint32_t i = 0; i < item->n_answers; i++)
        hash_text(state, item->answers[i], strlen(item->answers[i]));
    item->hash = XXH64_digest(state);
    XXH64_freeState(state);
    return 0;
}

/* ---- task files ---------------------------------------------------------------------------- */

/* Names go into a markdown table and onto a terminal. */
static bool name_ok(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("-_.+", name[i]))
            return false;
    return n > 0 && n <= ITEM_NAME_MAX;
}

static const char *read_answers(struct item *item, const json_t *answers)
{
    size_t n = json_array_size(answers);
    if (!json_is_array(answers) || n == 0 || n > ITEM_ANSWERS_MAX)
        return "\"answers\" is not a list of 1 to 64 texts";
    item->answers = calloc(n, sizeof *item->answers);
    if (!item->answers)
        return "out of memory";
    for (size_t i = 0; i < n; i++) {
        const char *answer = json_string_value(json_array_get(answers, i));
        if (!answer || !*answer)
            return "\"answers\" holds something that is not a text, or an empty one";
        item->answers[i] = strdup(answer);
        item->n_answers = (uint32_t)i + 1;
        if (!item->answers[i])
            return "out of memory";
    }
    return NULL;
}

static const char *read_rule(struct item *item, const json_t *match)
{
    const char *name = match ? json_string_value(match) : rule_names[ITEM_LINE];
    for (unsigned i = 0; name && i < ITEM_RULE_COUNT; i++)
        if (strcmp(name, rule_names[i]) == 0) {
            item->rule = (enum item_rule)i;
            return NULL;
        }
    return "\"match\" is none of line, contains, start, all, number";
}

static const char *read_predict(struct item *item, const json_t *predict)
{
    json_int_t n = json_integer_value(predict);
    if (predict && (!json_is_integer(predict) || n < 1 || n > (json_int_t)ITEM_PREDICT_MAX))
        return "\"predict\" is not a whole number from 1 to 4096";
    item->predict = (uint32_t)n;
    return NULL;
}

static const char *read_question(struct item *item, const json_t *object)
{
    const json_t *chat = json_object_get(object, "chat");
    if (chat && !json_is_boolean(chat))
        return "\"chat\" is neither true nor false";
    item->is_chat = json_is_true(chat);
    const char *wrong = read_predict(item, json_object_get(object, "predict"));
    if (!wrong)
        wrong = read_rule(item, json_object_get(object, "match"));
    return wrong ? wrong : read_answers(item, json_object_get(object, "answers"));
}

/* What all the choices of a question have in common. */
static const char *read_choices(struct item *item, const json_t *object)
{
    static const char *const others[] = {"answers", "match", "predict", "chat"};
    const json_t *choices = json_object_get(object, "choices"),
                 *gold = json_object_get(object, "gold");
    size_t n = json_array_size(choices);
    if (n < 2 || n > ITEM_ANSWERS_MAX)
        return "\"choices\" is not a list of 2 to 64 texts";
    for (size_t i = 0; i < n; i++)
        if (json_string_length(json_array_get(choices, i)) == 0)
            return "\"choices\" holds something that is not a text, or an empty one";
    if (!json_is_integer(gold) || json_integer_value(gold) < 0 ||
        json_integer_value(gold) >= (json_int_t)n)
        return "\"gold\" is not the index of a choice";
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (json_object_get(object, others[i]))
            return "a multiple choice has no \"answers\", \"match\", \"predict\" or \"chat\"";
    if (isspace((unsigned char)item->prompt[item->prompt_bytes - 1]))
        return "a multiple choice's prompt ends in white space (a space is put after it)";
    item->is_choice = true;
    item->n_choices = (uint32_t)n;
    item->gold = (uint32_t)json_integer_value(gold);
    item->context_bytes = (uint32_t)item->prompt_bytes;
    return NULL;
}

/* NULL, or what is wrong with the object. */
static const char *read_object(struct item *item, const json_t *object)
{
    const char *task = json_string_value(json_object_get(object, "task"));
    const json_t *prompt = json_object_get(object, "prompt");
    if (!json_is_object(object))
        return "it is not a JSON object";
    if (!task || !name_ok(task))
        return "\"task\" is not a name of 1 to 64 letters, digits, - _ . +";
    if (!json_is_string(prompt) || json_string_length(prompt) == 0)
        return "\"prompt\" is not a text, or empty";
    if (json_string_length(prompt) > ITEM_PROMPT_MAX)
        return "the prompt is longer than 60 MiB";
    item->group = strdup(task);
    item->prompt = strdup(json_string_value(prompt));
    item->prompt_bytes = json_string_length(prompt);
    if (!item->group || !item->prompt)
        return "out of memory";
    return json_object_get(object, "choices") ? read_choices(item, object)
                                              : read_question(item, object);
}

/* NULL, or what is wrong. */
static const char *append_question(struct item_list *list, struct item *item, const char *path,
                                   unsigned number)
{
    if (asprintf(&item->place, "%s:%u", path, number) < 0) {
        item->place = NULL;
        return "out of memory";
    }
    return hash_item(item) || append(list, item) ? "out of memory" : NULL;
}

/* An item for each choice of a question; the question stays the caller's. */
static const char *append_choices(struct item_list *list, const struct item *question,
                                  const json_t *choices, const char *path, unsigned number)
{
    for (uint32_t i = 0; i < question->n_choices; i++) {
        const char *choice = json_string_value(json_array_get(choices, i));
        struct item item = *question;
        item.choice = i;
        item.choice_bytes = (uint32_t)strlen(choice);
        item.prompt = item.place = NULL;
        item.group = strdup(question->group);
        int n = asprintf(&item.prompt, "%s %s", question->prompt, choice);
        item.prompt_bytes = n > 0 ? (size_t)n : 0;
        bool room =
            item.group && n > 0 && asprintf(&item.place, "%s:%u choice %u", path, number, i) > 0;
        if (!room || hash_item(&item) || append(list, &item)) {
            free_item(&item);
            return "out of memory";
        }
    }
    return NULL;
}

static int read_line(struct item_list *list, const char *path, unsigned number, const char *line,
                     size_t bytes, uint32_t limit, struct hill_why *why)
{
    struct item item = {0};
    json_error_t error;
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);
    const char *wrong = object ? read_object(&item, object) : error.text;
    int code = 0;
    bool wanted = !wrong && (!limit || count_of_group(list, item.group) < limit),
         taken = wanted && !item.is_choice;
    if (wanted)
        wrong = taken
                    ? append_question(list, &item, path, number)
                    : append_choices(list, &item, json_object_get(object, "choices"), path, number);
    if (wrong)
        code = hill_fail(why, HILL_E_DAMAGED, "%s:%u is no task: %.200s", path, number, wrong);
    if (wrong || !taken)
        free_item(&item);
    json_decref(object);
    return code;
}

static bool is_blank(const char *line)
{
    return line[strspn(line, " \t\r\n")] == '\0';
}

int items_read_tasks(struct item_list *list, const char *path, uint32_t limit, struct hill_why *why)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t got;
    int code = 0;
    size_t before = list->count;
    if (!file)
        return hill_fail(why, options_from_errno(errno), "reading the task file %s failed: %s",
                         path, strerror(errno));
    errno = 0;
    for (unsigned number = 1; code == 0 && (got = getline(&line, &room, file)) >= 0; number++)
        if (memchr(line, '\0', (size_t)got) || !is_blank(line))
            code = read_line(list, path, number, line, (size_t)got, limit, why);
    if (code == 0 && ferror(file))
        code = hill_fail(why, options_from_errno(errno), "reading the task file %s failed: %s",
                         path, strerror(errno));
    if (code == 0 && list->count == before && !limit)
        code = hill_fail(why, HILL_E_DAMAGED, "the task file %s holds no task", path);
    free(line);
    fclose(file);
    return code;
}

/* ---- texts --------------------------------------------------------------------------------- */

static int load_text(const char *path, char **text, size_t *bytes, struct hill_why *why)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    int code = 0, err = 0;
    *text = NULL;
    if (!file || fstat(fileno(file), &info) != 0)
        code = options_from_errno(err = errno);
    else if (!S_ISREG(info.st_mode) || info.st_size > (off_t)1 << 30)
        code =
            hill_fail(why, HILL_E_DAMAGED, "the text %s is no regular file of at most 1 GiB", path);
    else if (!(*text = malloc((size_t)info.st_size + 1)))
        code = HILL_E_NOMEM;
    else
        *bytes = fread(*text, 1, (size_t)info.st_size, file);
    if (file && code == 0 && ferror(file))
        code = hill_from_errno(err = errno);
    if (file)
        fclose(file);
    if (code && code != HILL_E_DAMAGED)
        hill_fail(why, code, "reading the text %s failed: %s", path,
                  err ? strerror(err) : hill_strerror(code));
    return code;
}

static bool within_character(char byte)
{
    return ((uint8_t)byte & 0xc0) == 0x80;
}

static int append_piece(struct item_list *list, const char *path, const char *text, size_t first,
                        size_t end, const struct item_text_order *order)
{
    const char *slash = strrchr(path, '/');
    struct item item = {.is_text = true,
                        .group = strdup(slash ? slash + 1 : path),
                        .prompt = strndup(text + first, end - first),
                        .prompt_bytes = end - first,
                        .n_scored = order->n_scored};
    bool whole = item.group && item.prompt && strlen(item.prompt) == item.prompt_bytes &&
                 asprintf(&item.place, "%s:byte %zu", path, first) >= 0;
    if (whole && !hash_item(&item) && !append(list, &item))
        return 0;
    free_item(&item);
    return HILL_E_NOMEM;
}

int items_read_text(struct item_list *list, const char *path, const struct item_text_order *order,
                    struct hill_why *why)
{
    char *text;
    size_t bytes = 0;
    int code = load_text(path, &text, &bytes, why);
    if (code == 0 && memchr(text, '\0', bytes))
        code = hill_fail(why, HILL_E_DAMAGED, "the text %s holds a NUL byte: it is no text", path);
    if (code == 0 && bytes < order->piece_bytes)
        code = hill_fail(why, HILL_E_DAMAGED, "the text %s has %zu bytes, a piece takes %u", path,
                         bytes, order->piece_bytes);
    uint64_t fit = code ? 0 : bytes / order->piece_bytes,
             n = fit < order->n_pieces ? fit : order->n_pieces;
    for (uint64_t i = 0; code == 0 && i < n; i++) {
        size_t first = n > 1 ? (size_t)(i * (bytes - order->piece_bytes) / (n - 1)) : 0,
               end = first + order->piece_bytes;
        while (first < end && within_character(text[first]))
            first++;
        while (end > first && end < bytes && within_character(text[end]))
            end--;
        if (append_piece(list, path, text, first, end, order))
            code = hill_fail(why, HILL_E_NOMEM, "out of memory for the text %s", path);
    }
    free(text);
    return code;
}

/* ---- tokens -------------------------------------------------------------------------------- */

static int count_answers(struct item *item, const struct subject *subject, struct hill_why *why)
{
    uint32_t longest = 0, sum = 0;
    for (uint32_t i = 0; i < item->n_answers; i++) {
        uint32_t n = 0;
        int code =
            subject_count(subject, item->answers[i], strlen(item->answers[i]), false, &n, why);
        if (code)
            return code;
        longest = n > longest ? n : longest;
        sum += n + 2; /* with a separator */
    }
    bool every = item->rule == ITEM_LINE || item->rule == ITEM_ALL;
    item->predict = (every ? sum : longest) + ITEM_SPARE_TOKENS;
    return 0;
}

/* The first forced token's logits come from the prefill, which attends to everything: one token is
 * asked for beside the n_scored that count. */
static int place_scored(struct item *item, struct hill_why *why)
{
    if (item->n_tokens < item->n_scored + 2)
        return hill_fail(why, HILL_E_INVALID, "%u tokens cannot have %u scored ones",
                         item->n_tokens, item->n_scored);
    item->score_from = item->n_tokens - item->n_scored - 1;
    return 0;
}

static int measure_choice(struct item *item, const struct subject *subject, struct hill_why *why)
{
    uint32_t n_context = 0;
    int code = subject_count(subject, item->prompt, item->context_bytes, true, &n_context, why);
    if (code)
        return code;
    if (item->n_tokens <= n_context)
        return hill_fail(why, HILL_E_INVALID, "the choice adds no token to the prompt's %u",
                         n_context);
    item->n_scored = item->n_tokens - n_context;
    return 0;
}

static int measure(struct item *item, const struct subject *subject, struct hill_why *why)
{
    int code = (item->is_chat ? subject_chat : subject_encode)(
        subject, item->prompt, item->prompt_bytes, &item->tokens, &item->n_tokens, why);
    if (code == 0 && !item_is_scored(item) && !item->predict)
        code = count_answers(item, subject, why);
    if (code == 0 && item->is_choice)
        code = measure_choice(item, subject, why);
    if (code == 0 && item_is_scored(item))
        code = place_scored(item, why);
    if (code == 0)
        item->prompt_hash = XXH64(item->tokens, item_prompt_tokens(item) * sizeof *item->tokens, 0);
    return code;
}

static uint32_t tokens_of(const struct item *item)
{
    return item->n_tokens + (item_is_scored(item) ? 0 : item->predict);
}

int items_measure(struct item_list *list, const struct subject *subject, uint32_t *most,
                  struct hill_why *why)
{
    *most = 0;
    for (size_t i = 0; i < list->count; i++) {
        struct item *item = &list->items[i];
        struct hill_why inner = {{0}};
        int code = measure(item, subject, &inner);
        if (code)
            return hill_fail(why, code, "%s: %.300s", item->place, inner.text);
        *most = tokens_of(item) > *most ? tokens_of(item) : *most;
    }
    return 0;
}

/* Of a question (all its choices) that begins there. */
static uint32_t longest_of(const struct item *first, uint32_t count)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < count; i++)
        longest = tokens_of(&first[i]) > longest ? tokens_of(&first[i]) : longest;
    return longest;
}

static void say_left_out(const char *group, uint32_t count, uint32_t most)
{
    if (count)
        fprintf(stderr, "hill-eval: %s: %u left out, longer than %u tokens\n", group, count, most);
}

int items_fit(struct item_list *list, uint32_t most, uint32_t *longest, struct hill_why *why)
{
    char group[ITEM_NAME_MAX + 1] = "";
    size_t kept = 0;
    uint32_t left_out = 0, count;
    *longest = 0;
    for (size_t i = 0; i < list->count; i += count) {
        struct item *first = &list->items[i];
        count = first->is_choice ? first->n_choices : 1;
        uint32_t tokens = longest_of(first, count);
        if (strncmp(group, first->group, ITEM_NAME_MAX) != 0) {
            say_left_out(group, left_out, most);
            snprintf(group, sizeof group, "%s", first->group);
            left_out = 0;
        }
        if (tokens <= most) {
            memmove(&list->items[kept], first, count * sizeof *first);
            kept += count;
            *longest = tokens > *longest ? tokens : *longest;
            continue;
        }
        left_out++;
        for (uint32_t c = 0; c < count; c++)
            free_item(&first[c]);
    }
    say_left_out(group, left_out, most);
    list->count = kept;
    return kept ? 0
                : hill_fail(why, HILL_E_INVALID,
                            "nothing is left to ask: everything is longer than %u tokens", most);
}

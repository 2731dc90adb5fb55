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

static const char *const rule_names[ITEM_RULE_COUNT] = {"line", "contains", "start", "all"};

const char *item_rule_name(enum item_rule rule)
{
    return (unsigned)rule < ITEM_RULE_COUNT ? rule_names[rule] : "?";
}

/* ---- the list ------------------------------------------------------------------------------ */

static void free_item(struct item *item)
{
    for (uint32_t i = 0; item->answers && i < item->n_answers; i++)
        free(item->answers[i]);
    free(item->answers);
    free(item->group);
    free(item->place);
    free(item->prompt);
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
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 64;
        struct item *larger = realloc(list->items, room * sizeof *larger);
        if (!larger)
            return HILL_E_NOMEM;
        list->items = larger;
        list->room = room;
    }
    list->items[list->count++] = *item;
    return 0;
}

static uint32_t count_of_group(const struct item_list *list, const char *group)
{
    uint32_t n = 0;
    for (size_t i = 0; i < list->count; i++)
        n += !list->items[i].is_text && strcmp(list->items[i].group, group) == 0;
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
    XXH64_reset(state, 0);
    hash_text(state, numbers, sizeof numbers);
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
    return "\"match\" is none of line, contains, start, all";
}

/* NULL, or what is wrong with the object. */
static const char *read_object(struct item *item, const json_t *object)
{
    const char *task = json_string_value(json_object_get(object, "task"));
    const json_t *prompt = json_object_get(object, "prompt"),
                 *predict = json_object_get(object, "predict");
    if (!json_is_object(object))
        return "it is not a JSON object";
    if (!task || !name_ok(task))
        return "\"task\" is not a name of 1 to 64 letters, digits, - _ . +";
    if (!json_is_string(prompt) || json_string_length(prompt) == 0)
        return "\"prompt\" is not a text, or empty";
    if (json_string_length(prompt) > ITEM_PROMPT_MAX)
        return "the prompt is longer than 60 MiB";
    if (predict) {
        json_int_t n = json_integer_value(predict);
        if (!json_is_integer(predict) || n < 1 || n > (json_int_t)ITEM_PREDICT_MAX)
            return "\"predict\" is not a whole number from 1 to 4096";
        item->predict = (uint32_t)n;
    }
    item->group = strdup(task);
    item->prompt = strdup(json_string_value(prompt));
    item->prompt_bytes = json_string_length(prompt);
    if (!item->group || !item->prompt)
        return "out of memory";
    const char *wrong = read_rule(item, json_object_get(object, "match"));
    return wrong ? wrong : read_answers(item, json_object_get(object, "answers"));
}

static int read_line(struct item_list *list, const char *path, unsigned number, const char *line,
                     size_t bytes, uint32_t limit, struct hill_why *why)
{
    struct item item = {0};
    json_error_t error;
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);
    const char *wrong = object ? read_object(&item, object) : error.text;
    int code = 0;
    if (!wrong && (asprintf(&item.place, "%s:%u", path, number) < 0 || hash_item(&item)))
        wrong = "out of memory";
    bool wanted = !wrong && (!limit || count_of_group(list, item.group) < limit);
    if (wanted && append(list, &item))
        wrong = "out of memory";
    if (wrong)
        code = hill_fail(why, HILL_E_DAMAGED, "%s:%u is no task: %.200s", path, number, wrong);
    if (wrong || !wanted)
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
        return hill_fail(why, hill_from_errno(errno), "reading the task file %s failed: %s", path,
                         strerror(errno));
    errno = 0;
    for (unsigned number = 1; code == 0 && (got = getline(&line, &room, file)) >= 0; number++)
        if (memchr(line, '\0', (size_t)got) || !is_blank(line))
            code = read_line(list, path, number, line, (size_t)got, limit, why);
    if (code == 0 && ferror(file))
        code =
            hill_fail(why, HILL_E_IO, "reading the task file %s failed: %s", path, strerror(errno));
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
    int code = 0;
    *text = NULL;
    if (!file || fstat(fileno(file), &info) != 0)
        code = hill_from_errno(errno);
    else if (!S_ISREG(info.st_mode) || info.st_size > (off_t)1 << 30)
        code =
            hill_fail(why, HILL_E_DAMAGED, "the text %s is no regular file of at most 1 GiB", path);
    else if (!(*text = malloc((size_t)info.st_size + 1)))
        code = HILL_E_NOMEM;
    else
        *bytes = fread(*text, 1, (size_t)info.st_size, file);
    if (file && code == 0 && ferror(file))
        code = HILL_E_IO;
    if (file)
        fclose(file);
    if (code && code != HILL_E_DAMAGED)
        hill_fail(why, code, "reading the text %s failed: %s", path, hill_strerror(code));
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

static int measure(struct item *item, const struct subject *subject, struct hill_why *why)
{
    int code = subject_count(subject, item->prompt, item->prompt_bytes, true, &item->n_tokens, why);
    if (code == 0 && !item->is_text && !item->predict)
        code = count_answers(item, subject, why);
    if (code || !item->is_text)
        return code;
    /* the first forced token's logits come from the prefill, which attends to everything: it is
     * asked for beside the n_scored that count */
    if (item->n_tokens < item->n_scored + 2)
        return hill_fail(why, HILL_E_INVALID, "a piece of %u tokens cannot have %u scored ones",
                         item->n_tokens, item->n_scored);
    item->score_from = item->n_tokens - item->n_scored - 1;
    return 0;
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
        uint32_t total = item->n_tokens + (item->is_text ? 0 : item->predict);
        *most = total > *most ? total : *most;
    }
    return 0;
}

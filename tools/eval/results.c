/* tools/eval/results.c - see results.h. */
#include "tools/eval/results.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <jansson.h>
#include <xxhash.h>

#include "base/grow.h"
#include "base/json_text.h"
#include "base/options.h"
#include "tools/eval/grade.h"

#define KEY_VERSION "hill-eval 1"

struct results {
    char *path;
    int fd;
    struct result *all; /* [count]; the first n_sorted are in the order of their keys */
    size_t count, room, n_sorted;
};

/* ---- in memory ----------------------------------------------------------------------------- */

static int remember(struct results *r, const struct result *result)
{
    if (!GROW(r->all, r->room, r->count + 1))
        return HILL_E_NOMEM;
    r->all[r->count++] = *result;
    return 0;
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = ((const struct result *)a)->key, y = ((const struct result *)b)->key;
    return x < y ? -1 : x > y;
}

const struct result *results_find(struct results *r, uint64_t key)
{
    struct result wanted = {.key = key};
    if (r->n_sorted != r->count) {
        qsort(r->all, r->count, sizeof *r->all, by_key);
        r->n_sorted = r->count;
    }
    return r->count ? bsearch(&wanted, r->all, r->count, sizeof *r->all, by_key) : NULL;
}

size_t results_count(const struct results *r)
{
    return r->count;
}

uint64_t results_key(const struct subject *subject, const struct job *job)
{
    char text[512];
    int n = snprintf(text, sizeof text, KEY_VERSION " %016" PRIx64 " %016" PRIx64 " %s",
                     subject->fingerprint, job->item->hash, job->setting->text);
    return XXH64(text, (size_t)n, 0);
}

/* ---- reading ------------------------------------------------------------------------------- */

static bool read_u32(const json_t *object, const char *name, uint32_t *out)
{
    const json_t *value = json_object_get(object, name);
    json_int_t n = json_integer_value(value);
    *out = (uint32_t)n;
    return json_is_integer(value) && n >= 0 && n <= UINT32_MAX;
}

/* NULL, or what is wrong. */
static const char *read_result(struct result *out, const json_t *object)
{
    const char *key = json_string_value(json_object_get(object, "key"));
    const json_t *right = json_object_get(object, "right"),
                 *logprob = json_object_get(object, "logprob");
    char *end = NULL;
    const char *commit = json_string_value(json_object_get(object, "commit"));
    *out = (struct result){0};
    snprintf(out->commit, sizeof out->commit, "%s", commit ? commit : "");
    if (!key || strlen(key) != 16 || strspn(key, "0123456789abcdef") != 16)
        return "its \"key\" is not 16 hexadecimal digits";
    out->key = strtoull(key, &end, 16);
    if (!read_u32(object, "selected", &out->selected))
        return "its \"selected\" is no count";
    out->right = json_is_true(right);
    if (json_is_boolean(right))
        return NULL;
    if (!json_is_number(logprob) || !isfinite(json_number_value(logprob)) ||
        json_number_value(logprob) > 0 || !read_u32(object, "scored", &out->n_scored) ||
        out->n_scored == 0)
        return "it has neither \"right\" nor \"logprob\" and \"scored\"";
    out->logprob = json_number_value(logprob);
    return NULL;
}

static int take_line(struct results *r, const char *line, size_t bytes, unsigned number,
                     struct hill_why *why)
{
    struct result result;
    json_error_t error;
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    const char *wrong = object ? read_result(&result, object) : error.text;
    json_decref(object);
    if (wrong)
        return hill_fail(why, HILL_E_DAMAGED,
                         "%s:%u is no result: %.200s; take the line out, or name another file",
                         r->path, number, wrong);
    return remember(r, &result) ? hill_fail(why, HILL_E_NOMEM, "out of memory for %s", r->path) : 0;
}

/* Read all lines; *whole is where the last whole one ends. */
static int read_lines(struct results *r, off_t *whole, struct hill_why *why)
{
    int copy = dup(r->fd);
    FILE *file = copy >= 0 ? fdopen(copy, "r") : NULL;
    char *line = NULL;
    size_t room = 0;
    ssize_t got;
    int code = 0;
    *whole = 0;
    if (!file) {
        code = hill_fail(why, hill_from_errno(errno), "reading %s failed: %s", r->path,
                         strerror(errno));
        if (copy >= 0)
            close(copy);
        return code;
    }
    for (unsigned number = 1; code == 0 && (got = getline(&line, &room, file)) >= 0; number++) {
        if (line[got - 1] != '\n')
            break; /* its writer was killed */
        code = take_line(r, line, (size_t)got, number, why);
        *whole += got;
    }
    if (code == 0 && ferror(file))
        code = hill_fail(why, HILL_E_IO, "reading %s failed", r->path);
    free(line);
    fclose(file);
    return code;
}

int results_open(struct results **out, const char *path, struct hill_why *why)
{
    struct results *r = calloc(1, sizeof *r);
    off_t whole;
    int code = 0;
    *out = NULL;
    if (!r || !(r->path = strdup(path))) {
        free(r);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for %s", path);
    }
    r->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (r->fd < 0)
        code = hill_fail(why, hill_from_errno(errno), "opening the results file %s failed: %s",
                         path, strerror(errno));
    else if (flock(r->fd, LOCK_EX | LOCK_NB) != 0)
        code = hill_fail(why, HILL_E_BUSY, "another run writes to the results file %s", path);
    if (code == 0)
        code = read_lines(r, &whole, why);
    if (code == 0 && (ftruncate(r->fd, whole) != 0 || lseek(r->fd, whole, SEEK_SET) != whole))
        code = hill_fail(why, hill_from_errno(errno), "writing to %s failed: %s", path,
                         strerror(errno));
    if (code) {
        results_close(r);
        return code;
    }
    *out = r;
    return 0;
}

void results_close(struct results *r)
{
    if (!r)
        return;
    if (r->fd >= 0)
        close(r->fd);
    free(r->path);
    free(r->all);
    free(r);
}

/* ---- writing ------------------------------------------------------------------------------- */

static void describe_setting(json_t *line, const struct setting *s)
{
    json_object_set_new(line, "setting", json_string(s->text));
    json_object_set_new(line, "policy", json_string(s->name));
    json_object_set_new(line, "amount", json_string(s->amount));
}

static json_t *make_line(uint64_t key, const struct job *job, const struct answer *answer,
                         struct result *result)
{
    char key_text[17];
    json_t *line = json_object();
    snprintf(key_text, sizeof key_text, "%016" PRIx64, key);
    *result = (struct result){.key = key,
                              .selected = answer->selected,
                              .logprob = answer->logprob < 0 ? answer->logprob : 0,
                              .n_scored = answer->n_scored};
    snprintf(result->commit, sizeof result->commit, "%s", options_commit());
    json_object_set_new(line, "key", json_string(key_text));
    json_object_set_new(line, job->item->is_text ? "text" : "task",
                        json_text(job->item->group, strlen(job->item->group)));
    json_object_set_new(line, "item", json_text(job->item->place, strlen(job->item->place)));
    describe_setting(line, job->setting);
    if (job->item->is_choice) {
        json_object_set_new(line, "choice", json_integer(job->item->choice));
        json_object_set_new(line, "gold", json_boolean(job->item->choice == job->item->gold));
        json_object_set_new(line, "bytes", json_integer(job->item->choice_bytes));
    }
    if (item_is_scored(job->item)) {
        json_object_set_new(line, "logprob", json_real(result->logprob));
        json_object_set_new(line, "scored", json_integer(answer->n_scored));
    } else {
        result->right =
            grade_answer(job->item, answer->text ? answer->text : "", answer->text_bytes);
        json_object_set_new(line, "right", json_boolean(result->right));
        json_object_set_new(line, "answer",
                            json_text(answer->text ? answer->text : "", answer->text_bytes));
    }
    json_object_set_new(line, "selected", json_integer(answer->selected));
    json_object_set_new(line, "prompt_tokens", json_integer(answer->prompt_tokens));
    json_object_set_new(line, "predicted_tokens", json_integer(answer->n_tokens));
    json_object_set_new(line, "prompt_ms", json_real(answer->prompt_ms));
    json_object_set_new(line, "restored", json_boolean(answer->restored));
    json_object_set_new(line, "predicted_ms", json_real(answer->predicted_ms));
    if (result->commit[0])
        json_object_set_new(line, "commit", json_string(result->commit));
    return line;
}

static int write_all(struct results *r, const char *text, size_t bytes, struct hill_why *why)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t put = write(r->fd, text + done, bytes - done);
        if (put < 0 && errno != EINTR)
            return hill_fail(why, hill_from_errno(errno), "writing to %s failed: %s", r->path,
                             strerror(errno));
        done += put > 0 ? (size_t)put : 0;
    }
    if (fdatasync(r->fd) != 0 && errno != EINVAL) /* EINVAL: a file that cannot be synced */
        return hill_fail(why, hill_from_errno(errno), "writing to %s failed: %s", r->path,
                         strerror(errno));
    return 0;
}

int results_add(struct results *r, uint64_t key, const struct job *job, const struct answer *answer,
                struct hill_why *why)
{
    struct result result;
    json_t *line = make_line(key, job, answer, &result);
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(12));
    size_t bytes = text ? strlen(text) : 0;
    int code = HILL_E_NOMEM;
    if (text) {
        text[bytes] = '\n'; /* in the place of the NUL: one write holds the line's end too */
        code = write_all(r, text, bytes + 1, why);
    } else {
        hill_fail(why, code, "out of memory for a result");
    }
    free(text);
    json_decref(line);
    if (code == 0 && remember(r, &result))
        code = hill_fail(why, HILL_E_NOMEM, "out of memory for a result");
    return code;
}

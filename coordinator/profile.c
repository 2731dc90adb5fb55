/* coordinator/profile.c - see profile.h. */
#include "coordinator/profile.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kv/score.h"

#define CACHE_VERSION 1

static const char *const rate_names[] = {"f_c", "f_s", "B_c", "B_s"};
enum { N_RATES = sizeof rate_names / sizeof rate_names[0] };

static double *rate_of(struct balance_rates *rates, unsigned i)
{
    double *const all[N_RATES] = {&rates->f_c, &rates->f_s, &rates->B_c, &rates->B_s};
    return all[i];
}

/* Are all rates numbers above 0, and the spreads none below it? */
static bool is_sound(const struct profile *profile)
{
    struct profile copy = *profile;
    for (unsigned i = 0; i < N_RATES; i++) {
        double rate = *rate_of(&copy.rates, i), spread = *rate_of(&copy.spread, i);
        if (!isfinite(rate) || rate <= 0 || !isfinite(spread) || spread < 0)
            return false;
    }
    return isfinite(copy.took_ms) && copy.took_ms >= 0;
}

/* ---- fingerprint ------------------------------------------------------------------------- */

void profile_cpu_name(char *out, uint32_t bytes)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(out, bytes, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (!value || (strncmp(line, "model name", 10) && strncmp(line, "CPU part", 8)))
            continue;
        value += strspn(value, ": \t");
        value[strcspn(value, "\n")] = '\0';
        snprintf(out, bytes, "%s", value);
        break;
    }
    if (file)
        fclose(file);
}

void profile_fingerprint(char out[PROFILE_FINGERPRINT_BYTES], const struct settings *s,
                         const char *cpu)
{
    const struct kv_geometry *g = &s->epoch.plan.geometry;
    char model[CSD_MODEL_TEXT];
    snprintf(out, PROFILE_FINGERPRINT_BYTES,
             "%.200s; %ld CPUs; version " HILL_VERSION
             "; %u layers, %u heads, %u KV heads of %u; %s, INT%u%s; "
             "context %u; %u threads, %.32s; blocks of %u; %.4200s; model %s",
             cpu, sysconf(_SC_NPROCESSORS_ONLN), g->n_layers, g->n_heads, g->n_kv_heads,
             g->head_dim, kv_importance_name(s->epoch.plan.selection.importance), kv_digest_bits(g),
             s->epoch.csd_cast ? " cast" : "", s->epoch.plan.ctx_tokens, s->epoch.threads,
             epoch_simd_name(s->epoch.simd), s->epoch.block_tokens, s->csd_url,
             csd_model_print(model, &s->epoch.csd_model));
    for (uint32_t d = 1; d < s->epoch.csd_drives; d++) {
        size_t used = strlen(out);
        snprintf(out + used, PROFILE_FINGERPRINT_BYTES - used, "; %s",
                 csd_model_print(model, &s->drives[d].model));
    }
}

/* ---- the file ---------------------------------------------------------------------------- */

static int read_rates(struct balance_rates *out, json_t *from)
{
    for (unsigned i = 0; i < N_RATES; i++) {
        json_t *number = json_object_get(from, rate_names[i]);
        if (!json_is_number(number))
            return HILL_E_DAMAGED;
        *rate_of(out, i) = json_number_value(number);
    }
    return 0;
}

static int read_count(uint32_t *out, json_t *from, const char *name)
{
    json_t *number = json_object_get(from, name);
    json_int_t value = json_integer_value(number);
    if (!json_is_integer(number) || value < 0 || value > UINT32_MAX)
        return HILL_E_DAMAGED;
    *out = (uint32_t)value;
    return 0;
}

static int read_entry(struct profile *out, json_t *from)
{
    json_t *took = json_object_get(from, "took_ms");
    json_t *digests = json_object_get(from, "digests_pay"); /* missing: nobody knows yet */
    *out = (struct profile){.cached = true,
                            .took_ms = json_number_value(took),
                            .digests = json_is_true(digests) - json_is_false(digests)};
    if (!json_is_number(took) || read_rates(&out->rates, json_object_get(from, "rates")) ||
        read_rates(&out->spread, json_object_get(from, "spread")) ||
        read_count(&out->rounds, from, "rounds") ||
        read_count(&out->hot_tokens, from, "hot_tokens") ||
        read_count(&out->cold_tokens, from, "cold_tokens") ||
        read_count(&out->fetch_tokens, from, "fetch_tokens"))
        return HILL_E_DAMAGED;
    return is_sound(out) ? 0 : HILL_E_DAMAGED;
}

/* The whole file: *root is owned by the caller. HILL_E_WOULD_BLOCK: there is no file. */
static int load(json_t **root, const char *path, struct hill_why *why)
{
    json_error_t error;
    if (access(path, F_OK))
        return HILL_E_WOULD_BLOCK;
    *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!*root)
        return hill_fail(why, HILL_E_DAMAGED, "%.200s, line %d: %.160s", path, error.line,
                         error.text);
    const char *field =
        !json_is_integer(json_object_get(*root, "version")) ||
                json_integer_value(json_object_get(*root, "version")) != CACHE_VERSION
            ? "version"
        : !json_is_object(json_object_get(*root, "profiles")) ? "profiles"
                                                              : NULL;
    if (!field)
        return 0;
    json_decref(*root);
    *root = NULL;
    return hill_fail(why, HILL_E_DAMAGED, "%.200s: field %s is not as it should be", path, field);
}

int profile_cache_find(struct profile *out, const char *path, const char *fingerprint,
                       struct hill_why *why)
{
    json_t *root = NULL;
    int code = load(&root, path, why);
    if (code)
        return code;
    json_t *entry = json_object_get(json_object_get(root, "profiles"), fingerprint);
    code = !entry ? HILL_E_WOULD_BLOCK : read_entry(out, entry);
    if (code == HILL_E_DAMAGED)
        hill_fail(why, code,
                  "%.200s: the profile of this machine and drive has a field out of range", path);
    json_decref(root);
    return code;
}

static json_t *rates_json(const struct balance_rates *rates)
{
    struct balance_rates copy = *rates;
    json_t *object = json_object();
    for (unsigned i = 0; i < N_RATES; i++)
        json_object_set_new(object, rate_names[i], json_real(*rate_of(&copy, i)));
    return object;
}

static json_t *entry_json(const struct profile *profile)
{
    json_t *digests = profile->digests ? json_boolean(profile->digests > 0) : NULL;
    return json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:f, s:o*}", "rates",
                     rates_json(&profile->rates), "spread", rates_json(&profile->spread), "rounds",
                     (json_int_t)profile->rounds, "hot_tokens", (json_int_t)profile->hot_tokens,
                     "cold_tokens", (json_int_t)profile->cold_tokens, "fetch_tokens",
                     (json_int_t)profile->fetch_tokens, "took_ms", profile->took_ms, "digests_pay",
                     digests);
}

/* Written beside the old one and put in its place. */
static int replace(const json_t *root, const char *path, struct hill_why *why)
{
    char next[HILL_PATH_BYTES + 64];
    snprintf(next, sizeof next, "%.*s.new", HILL_PATH_BYTES, path);
    errno = 0;
    if (json_dump_file(root, next, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) == 0 &&
        rename(next, path) == 0)
        return 0;
    int code = errno ? hill_from_errno(errno) : HILL_E_IO;
    unlink(next);
    return hill_fail(why, code, "writing %.200s failed: %s", path, hill_strerror(code));
}

int profile_cache_store(const char *path, const char *fingerprint, const struct profile *profile,
                        struct hill_why *why)
{
    json_t *root = NULL;
    const char *name;
    json_t *entry;
    if (!is_sound(profile))
        return hill_fail(why, HILL_E_INVALID, "a profile with a rate out of range is not kept");
    if (load(&root, path, NULL)) /* none, or a damaged one that was reported when it was read */
        root = json_pack("{s:i, s:{}}", "version", CACHE_VERSION, "profiles");
    json_t *profiles = json_object_get(root, "profiles");
    void *at;
    json_object_foreach_safe(profiles, at, name, entry)
    {
        if (json_object_size(profiles) >= PROFILE_ENTRIES_MAX && strcmp(name, fingerprint) != 0)
            json_object_del(profiles, name);
    }
    json_object_set_new(profiles, fingerprint, entry_json(profile));
    int code = replace(root, path, why);
    json_decref(root);
    return code;
}

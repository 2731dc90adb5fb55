/* base/csd_model.c - see csd_model.h. */
#include "base/csd_model.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/options.h"

static const struct key {
    const char *name, *unit;
    size_t offset; /* of its double in struct csd_model */
    double min, max;
    bool optional; /* may be 0; not printed, then, where that is the default */
} keys[] = {
    {"flash", "GB/s", offsetof(struct csd_model, flash), CSD_MODEL_RATE_MIN, CSD_MODEL_RATE_MAX,
     false},
    {"write", "GB/s", offsetof(struct csd_model, write), CSD_MODEL_RATE_MIN, CSD_MODEL_RATE_MAX,
     false},
    {"link", "GB/s", offsetof(struct csd_model, link), CSD_MODEL_RATE_MIN, CSD_MODEL_RATE_MAX,
     false},
    {"gpu_link", "GB/s", offsetof(struct csd_model, gpu_link), CSD_MODEL_RATE_MIN,
     CSD_MODEL_RATE_MAX, false},
    {"score", "GB/s", offsetof(struct csd_model, score), CSD_MODEL_RATE_MIN, CSD_MODEL_RATE_MAX,
     false},
    {"dram", "bytes", offsetof(struct csd_model, dram), 0, CSD_MODEL_DRAM_MAX, false},
    {"dram_read", "GB/s", offsetof(struct csd_model, dram_read), CSD_MODEL_RATE_MIN,
     CSD_MODEL_RATE_MAX, true},
    {"latency_us", "us", offsetof(struct csd_model, latency_us), 0, CSD_MODEL_LATENCY_US_MAX,
     false},
    {"cpu", "GB/s", offsetof(struct csd_model, cpu), CSD_MODEL_RATE_MIN, CSD_MODEL_RATE_MAX, true},
};

#define N_KEYS (sizeof keys / sizeof keys[0])

/* A size: 4G, 512M, plain MiB. */
static bool is_size(const struct key *key)
{
    return strcmp(key->unit, "bytes") == 0;
}

static double *figure(struct csd_model *model, const struct key *key)
{
    return (double *)(void *)((char *)model + key->offset);
}

static int read_value(double *out, const struct key *key, const char *value, struct hill_why *why)
{
    uint64_t bytes;

    if (is_size(key) && options_read_size(value, &bytes) == 0)
        *out = (double)bytes;
    else if (is_size(key) || options_read_real(value, out) != 0)
        return hill_fail(why, HILL_E_INVALID, "%s '%s' is not a %s", key->name, value,
                         is_size(key) ? "size" : "number");
    return 0;
}

/* One "key=value" of `length` characters. */
static int read_pair(struct csd_model *model, const char *text, size_t length, bool seen[N_KEYS],
                     struct hill_why *why)
{
    char pair[64], *value;
    size_t k = 0;

    if (length >= sizeof pair)
        return hill_fail(why, HILL_E_INVALID, "'%.40s...' is no key=value", text);
    memcpy(pair, text, length);
    pair[length] = '\0';
    value = strchr(pair, '=');
    if (!value)
        return hill_fail(why, HILL_E_INVALID, "'%s' is no key=value (or off)", pair);
    *value++ = '\0';
    while (k < N_KEYS && strcmp(keys[k].name, pair) != 0)
        k++;
    if (k == N_KEYS)
        return hill_fail(why, HILL_E_INVALID,
                         "unknown key '%s' (flash, write, link, gpu_link, score, dram, "
                         "dram_read, latency_us, cpu)",
                         pair);
    if (seen[k])
        return hill_fail(why, HILL_E_INVALID, "%s is given twice", pair);
    seen[k] = true;
    return read_value(figure(model, &keys[k]), &keys[k], value, why);
}

int csd_model_parse(struct csd_model *model, const char *text, struct hill_why *why)
{
    struct csd_model changed = CSD_MODEL_SMARTSSD;
    bool seen[N_KEYS] = {false};
    int status = 0;

    if (strcmp(text, "off") == 0) {
        *model = (struct csd_model){.on = false};
        return 0;
    }
    if (model->on)
        changed = *model;
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        status = read_pair(&changed, at, length, seen, why);
        at += length;
        if (status != 0 || *at == '\0')
            break;
    }
    if (status == 0)
        status = csd_model_check(&changed, why);
    if (status == 0)
        *model = changed;
    return status;
}

int csd_model_check(const struct csd_model *model, struct hill_why *why)
{
    struct csd_model copy = *model;

    for (size_t k = 0; model->on && k < N_KEYS; k++) {
        double value = *figure(&copy, &keys[k]);
        if (keys[k].optional && value == 0)
            continue;
        if (!(value >= keys[k].min && value <= keys[k].max)) /* not a number is neither */
            return hill_fail(why, HILL_E_INVALID, "%s=%g is out of range (%g .. %g %s)",
                             keys[k].name, value, keys[k].min, keys[k].max, keys[k].unit);
    }
    return 0;
}

bool csd_model_same(const struct csd_model *a, const struct csd_model *b)
{
    char x[CSD_MODEL_TEXT], y[CSD_MODEL_TEXT];

    return strcmp(csd_model_print(x, a), csd_model_print(y, b)) == 0;
}

static size_t print_value(char *out, size_t room, const struct key *key, double value)
{
    bool whole = is_size(key) && value >= 0x1p30 && fmod(value, 0x1p30) == 0;

    return (size_t)snprintf(out, room,
                            whole          ? "%.17gG"
                            : is_size(key) ? "%.17g"
                                           : "%.9g",
                            whole          ? value / 0x1p30
                            : is_size(key) ? value / 0x1p20
                                           : value);
}

const char *csd_model_print(char out[CSD_MODEL_TEXT], const struct csd_model *model)
{
    struct csd_model copy = *model, unsaid = CSD_MODEL_SMARTSSD;
    size_t used = 0;

    if (!model->on) {
        snprintf(out, CSD_MODEL_TEXT, "off");
        return out;
    }
    for (size_t k = 0; k < N_KEYS; k++) {
        double value = *figure(&copy, &keys[k]);
        if (keys[k].optional && value == 0 && *figure(&unsaid, &keys[k]) == 0)
            continue;
        used += (size_t)snprintf(out + used, CSD_MODEL_TEXT - used, "%s%s=", k ? "," : "",
                                 keys[k].name);
        used += print_value(out + used, CSD_MODEL_TEXT - used, &keys[k], value);
    }
    return out;
}

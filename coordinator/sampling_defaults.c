/* coordinator/sampling_defaults.c - see sampling_defaults.h. */
#include "coordinator/sampling_defaults.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "proto/options_hill.h"

/* A recommendation of the file, and the option that says the same. */
static const struct field {
    const char *key, *option;
    enum hill_sampling_field field;
} fields[] = {
    {"general.sampling.temp", "temp", HILL_SAMPLING_TEMPERATURE},
    {"general.sampling.top_k", "top-k", HILL_SAMPLING_TOP_K},
    {"general.sampling.top_p", "top-p", HILL_SAMPLING_TOP_P},
    {"general.sampling.min_p", "min-p", HILL_SAMPLING_MIN_P},
    {"general.sampling.penalty_repeat", "repeat-penalty", HILL_SAMPLING_REPEAT_PENALTY},
};

/* Steps that the sampler has not, with the value that asks for nothing. */
static const struct {
    const char *key;
    double neutral;
} others[] = {
    {"general.sampling.sequence", NAN}, /* a text: always asks for something */
    {"general.sampling.penalty_last_n", 64},
    {"general.sampling.xtc_probability", 0},
    {"general.sampling.mirostat", 0},
};

static const struct option_spec *range_of(const char *option)
{
    for (unsigned i = 0; i < hill_request_count; i++)
        if (strcmp(hill_request_specs[i].name, option) == 0)
            return &hill_request_specs[i];
    abort(); /* a mistake in this file */
}

static void set(Hill__Sampling *sampling, enum hill_sampling_field field, double value)
{
    switch (field) {
    case HILL_SAMPLING_TEMPERATURE:
        sampling->temperature = (float)value;
        break;
    case HILL_SAMPLING_TOP_K:
        sampling->top_k = (uint32_t)value;
        break;
    case HILL_SAMPLING_TOP_P:
        sampling->top_p = (float)value;
        break;
    case HILL_SAMPLING_MIN_P:
        sampling->min_p = (float)value;
        break;
    default:
        sampling->repeat_penalty = (float)value;
    }
}

/* The file's value under the key; false: it has none that can be used. */
static bool read_field(double *value, const struct field *f, const struct gguf_file *model)
{
    const struct option_spec *range = range_of(f->option);
    bool whole = range->type == OPTION_INTEGER;
    if (!gguf_find(model, f->key))
        return false;
    bool number = gguf_get_f64(model, f->key, value) && !(whole && *value != floor(*value));
    if (number && !whole)
        *value = (double)(float)*value; /* as it is used: a number near 0 may become 0 */
    if (number && whole && *value < 0)
        *value = 0; /* llama.cpp's top_k: off, too */
    if (number && *value >= range->min && *value <= range->max &&
        !(range->min_open && *value <= range->min))
        return true;
    log_warn("the model's %s is not a %s %s %.12g and at most %.12g; passed over", f->key,
             whole ? "whole number" : "number", range->min_open ? "above" : "of at least",
             range->min, range->max);
    return false;
}

static void warn_of_others(const struct gguf_file *model)
{
    for (unsigned i = 0; i < sizeof others / sizeof others[0]; i++) {
        double value = NAN;
        gguf_get_f64(model, others[i].key, &value);
        if (gguf_find(model, others[i].key) && !(value == others[i].neutral))
            log_warn("the model's %s asks for what the sampler has not; passed over",
                     others[i].key);
    }
}

void sampling_defaults_read(Hill__Sampling *out, const struct gguf_file *model)
{
    unsigned found = 0;
    hill__sampling__init(out);
    for (unsigned i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        double value = strtod(range_of(fields[i].option)->fallback, NULL);
        double of_model;
        if (read_field(&of_model, &fields[i], model)) {
            value = of_model;
            found++;
        }
        set(out, fields[i].field, value);
    }
    warn_of_others(model);
    if (found)
        log_info("sampling by the model's file, where a request leaves it open: --temp %g --top-k "
                 "%u --top-p %g --min-p %g --repeat-penalty %g",
                 (double)out->temperature, out->top_k, (double)out->top_p, (double)out->min_p,
                 (double)out->repeat_penalty);
}

void sampling_fill(Hill__Sampling *sampling, const Hill__Sampling *defaults)
{
    if (sampling->unset & HILL_SAMPLING_TEMPERATURE)
        sampling->temperature = defaults->temperature;
    if (sampling->unset & HILL_SAMPLING_TOP_K)
        sampling->top_k = defaults->top_k;
    if (sampling->unset & HILL_SAMPLING_TOP_P)
        sampling->top_p = defaults->top_p;
    if (sampling->unset & HILL_SAMPLING_MIN_P)
        sampling->min_p = defaults->min_p;
    if (sampling->unset & HILL_SAMPLING_REPEAT_PENALTY)
        sampling->repeat_penalty = defaults->repeat_penalty;
    sampling->unset = 0;
}

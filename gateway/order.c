/* gateway/order.c - see order.h. */
#include "gateway/order.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "gateway/json_bounds.h"
#include "gateway/order_fields.h"
#include "gateway/tools.h"
#include "kv/select.h"
#include "proto/options_hill.h"

/* ---- values --------------------------------------------------------------------------------- */

static int wrong_type(struct api_error *error, const char *name, const char *wanted)
{
    return api_refuse(error, 400, "wrong_type", name, "%s has to be %s", name, wanted);
}

/* The range that the command line has for the same thing. */
static const struct option_spec *range_of(const char *option)
{
    for (unsigned i = 0; i < hill_request_count; i++)
        if (strcmp(hill_request_specs[i].name, option) == 0)
            return &hill_request_specs[i];
    for (unsigned i = 0; i < hill_pipeline_count; i++)
        if (strcmp(hill_pipeline_specs[i].name, option) == 0)
            return &hill_pipeline_specs[i];
    abort(); /* a mistake in this file */
}

static int read_number(double *out, const json_t *value, const char *name, const char *option,
                       struct api_error *error)
{
    const struct option_spec *range = range_of(option);
    bool whole = range->type == OPTION_INTEGER;
    double number = json_number_value(value);
    if (!json_is_number(value) || !isfinite(number) || (whole && number != floor(number)))
        return wrong_type(error, name, whole ? "a whole number" : "a number");
    if (number < range->min || number > range->max || (range->min_open && number <= range->min))
        return api_refuse(error, 400, "out_of_range", name,
                          "%s is %.12g, not within %.12g to %.12g", name, number, range->min,
                          range->max);
    *out = number;
    return 0;
}

static int read_bool(bool *out, const json_t *value, const char *name, struct api_error *error)
{
    *out = json_is_true(value);
    return json_is_boolean(value) ? 0 : wrong_type(error, name, "true or false");
}

static int read_ids(struct order *order, const json_t *list, const char *name,
                    struct api_error *error)
{
    size_t n = json_array_size(list);
    order->ids = malloc((n + 1) * sizeof *order->ids);
    if (!order->ids)
        return api_refuse(error, 500, NULL, NULL, "out of memory for %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id >= UINT32_MAX)
            return api_refuse(error, 400, "wrong_type", name, "%s[%zu] is no token id", name, i);
        order->ids[i] = (uint32_t)id;
    }
    order->n_ids = n;
    return 0;
}

/* ---- fields ---------------------------------------------------------------------------------- */

static int take_prompt(struct order *order, const json_t *value, const char *name,
                       struct api_error *error)
{
    bool ids = json_is_integer(json_array_get(value, 0));
    if (!ids && json_array_size(value) > 1)
        return api_refuse(error, 400, "not_served", name,
                          "%s is a list of several: one prompt a request is served", name);
    if (!ids && json_array_size(value) == 1) {
        value = json_array_get(value, 0);
        ids = json_is_integer(json_array_get(value, 0));
    }
    if (ids)
        return read_ids(order, value, name, error);
    if (!json_is_string(value))
        return wrong_type(error, name, "a text or a list of token ids");
    order->prompt = json_string_value(value);
    order->prompt_bytes = json_string_length(value);
    return 0;
}

/* llama-server's: a name need not be said. */
static int take_extra(struct order *order, const json_t *list, struct api_error *error)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n > FILL_FILES_MAX)
        return api_refuse(error, 400, "wrong_type", "input_extra",
                          "input_extra has to be a list of at most %u texts", FILL_FILES_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *chunk = json_array_get(list, i), *name = json_object_get(chunk, "filename");
        bool named = name && !json_is_null(name);
        if (!json_is_string(json_object_get(chunk, "text")) || (named && !json_is_string(name)))
            return api_refuse(error, 400, "wrong_type", "input_extra",
                              "input_extra[%zu] is no object with a text and a filename", i);
    }
    order->extra = list;
    return 0;
}

static int take_stop(struct order *order, const json_t *value, struct api_error *error)
{
    size_t n = json_is_string(value) ? 1 : json_array_size(value);
    if (!json_is_string(value) && !json_is_array(value))
        return wrong_type(error, "stop", "a text or a list of texts");
    if (n > STOP_STRINGS_MAX)
        return api_refuse(error, 400, "out_of_range", "stop", "stop has %zu texts, at most %u go",
                          n, STOP_STRINGS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_array(value) ? json_array_get(value, i) : value;
        size_t bytes = json_string_length(text);
        if (!json_is_string(text) || bytes > STOP_STRING_BYTES_MAX)
            return api_refuse(error, 400, "out_of_range", "stop",
                              "stop has to be texts of at most %u bytes", STOP_STRING_BYTES_MAX);
        if (bytes)
            order->stops[order->n_stops++] = (struct stop_string){json_string_value(text), bytes};
    }
    return 0;
}

static int take_stream_options(struct order *order, const json_t *value, struct api_error *error)
{
    const char *name;
    json_t *option;
    if (!json_is_object(value))
        return wrong_type(error, "stream_options", "an object");
    json_object_foreach((json_t *)value, name, option)
    {
        if (strcmp(name, "include_usage") == 0) {
            if (!json_is_null(option) &&
                read_bool(&order->include_usage, option, "stream_options.include_usage", error))
                return -1;
        } else if (strcmp(name, "include_obfuscation") != 0) {
            return api_refuse(error, 400, "unknown_field", "stream_options",
                              "stream_options.%.40s is not known here", name);
        }
    }
    return 0;
}

/* llama-server's: of a template's variables the one that the renderer can set. true is what a
 * template has without it. */
static int take_template_kwargs(struct order *order, const json_t *value, struct api_error *error)
{
    const char *name;
    json_t *variable;
    bool thinks = true;
    if (!json_is_object(value))
        return wrong_type(error, "chat_template_kwargs", "an object");
    json_object_foreach((json_t *)value, name, variable)
    {
        if (strcmp(name, "enable_thinking") != 0)
            return api_refuse(error, 400, "not_served", "chat_template_kwargs",
                              "chat_template_kwargs.%.40s: of a template's variables "
                              "enable_thinking alone can be set",
                              name);
        if (!json_is_null(variable) &&
            read_bool(&thinks, variable, "chat_template_kwargs.enable_thinking", error))
            return -1;
    }
    order->no_think |= !thinks;
    return 0;
}

/* OpenAI's; a template knows reasoning or none. */
static int take_effort(struct order *order, const json_t *value, struct api_error *error)
{
    const char *effort = json_string_value(value);
    if (!effort)
        return wrong_type(error, "reasoning_effort", "a text");
    order->no_think |= strcmp(effort, "none") == 0 || strcmp(effort, "minimal") == 0;
    return 0;
}

/* llama-server's; without effect where an answer is no chat's. */
static int take_reasoning(struct order *order, const json_t *value, struct api_error *error)
{
    const char *format = json_string_value(value);
    if (!format)
        return wrong_type(error, "reasoning_format", "a text");
    order->split_reasoning = strcmp(format, "auto") == 0 || strcmp(format, "deepseek") == 0;
    return order->split_reasoning || strcmp(format, "none") == 0
               ? 0
               : api_refuse(error, 400, "out_of_range", "reasoning_format",
                            "reasoning_format is %.40s, not none, auto or deepseek", format);
}

/* OpenAI's, and llama-server's with a schema beside the type. */
static int take_response_format(struct order *order, const json_t *value, struct api_error *error)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    const json_t *schema = json_object_get(value, "schema");
    if (!json_is_object(value) || !type)
        return wrong_type(error, "response_format", "an object with a type");
    bool any = !schema || json_is_null(schema) ||
               (json_is_object(schema) && json_object_size(schema) == 0);
    if (strcmp(type, "json_schema") == 0 || (strcmp(type, "json_object") == 0 && !any))
        return api_refuse(error, 400, "not_served", "response_format",
                          "response_format: answers are held to JSON, but to no schema of it");
    order->json = strcmp(type, "json_object") == 0;
    return order->json || strcmp(type, "text") == 0
               ? 0
               : api_refuse(error, 400, "out_of_range", "response_format",
                            "response_format.type is %.40s, not text or json_object", type);
}

static int take_policy(struct order *order, const json_t *value, struct api_error *error)
{
    const char *name = json_string_value(value);
    if (!name || kv_policy_parse(name, &order->policy))
        return api_refuse(error, 400, "out_of_range", "policy", "policy is none of %s",
                          range_of("policy")->choices);
    order->has_policy = true;
    return 0;
}

static int take_predict(struct order *order, const json_t *value, const char *name,
                        struct api_error *error)
{
    double number = range_of("predict")->max; /* more is cut to what the context allows anyway */
    if (!(json_number_value(value) > number) && read_number(&number, value, name, "predict", error))
        return -1;
    order->prompt_only = number == 0;
    order->predict = number < 0    ? HILL_PREDICT_UNTIL_CONTEXT
                     : number == 0 ? 1 /* the pipeline makes one at least */
                                   : (uint32_t)number;
    return 0;
}

/* true of a chat; of a completion how many alternatives: 0, for there are none. */
static int take_logprobs(struct order *order, const json_t *value, struct api_error *error)
{
    if (json_is_false(value))
        return 0;
    if (order->kind == ORDER_CHAT && !json_is_true(value))
        return wrong_type(error, "logprobs", "true or false");
    if (order->kind == ORDER_COMPLETION && !json_is_integer(value))
        return wrong_type(error, "logprobs", "a whole number");
    if (json_integer_value(value) != 0)
        return api_refuse(error, 400, "not_served", "logprobs",
                          "logprobs: the pipeline tells of the chosen token alone (0), of no "
                          "alternatives");
    order->logprobs = true;
    return 0;
}

static int take_seed(struct order *order, const json_t *value, struct api_error *error)
{
    double number = json_number_value(value);
    bool whole = json_is_integer(value) ||
                 (json_is_real(value) && number == floor(number) && fabs(number) < 0x1p63);
    if (!whole)
        return wrong_type(error, "seed", "a whole number");
    int64_t seed = json_is_integer(value) ? json_integer_value(value) : (int64_t)number;
    /* as on the command line: 0 is a seed, too (proto/options_hill.c) */
    order->seed = seed == -1 ? 0 : seed == 0 ? UINT64_C(1) << 32 : (uint64_t)seed;
    return 0;
}

static int take_top_k(struct order *order, const json_t *value, struct api_error *error)
{
    double number = 0;
    bool off = json_is_integer(value) && json_integer_value(value) < 0; /* llama.cpp's -1 */
    int failed = off ? 0 : read_number(&number, value, "top_k", "top-k", error);
    order->top_k = (uint32_t)number;
    return failed;
}

static int take_selection(struct order *order, const json_t *value, enum field_id id,
                          struct api_error *error)
{
    double number = 0;
    bool alpha = id == FIELD_ALPHA;
    if (read_number(&number, value, alpha ? "alpha" : "budget", alpha ? "alpha" : "budget", error))
        return -1;
    order->has_alpha |= alpha;
    order->has_budget |= !alpha;
    if (alpha)
        order->alpha = number;
    else
        order->budget = (uint32_t)number;
    return order->has_alpha && order->has_budget
               ? api_refuse(error, 400, "excluded", "budget", "alpha and budget exclude each other")
               : 0;
}

static int take_field(struct order *o, const struct order_field *field, const json_t *value,
                      struct api_error *error)
{
    void *at = (char *)o + field->at;
    switch (field->id) {
    case FIELD_MESSAGES:
        return order_read_messages(o, value, error);
    case FIELD_TOOLS:
        return tools_take(o, value, error);
    case FIELD_TOOL_CHOICE:
        return tools_take_choice(o, value, error);
    case FIELD_PROMPT:
        return take_prompt(o, value, field->name, error);
    case FIELD_BEFORE:
    case FIELD_AFTER:
        *(field->id == FIELD_BEFORE ? &o->before : &o->after) = value;
        return json_is_string(value) ? 0 : wrong_type(error, field->name, "a text");
    case FIELD_EXTRA:
        return take_extra(o, value, error);
    case FIELD_TOKENS:
        return json_is_array(value) ? read_ids(o, value, "tokens", error)
                                    : wrong_type(error, "tokens", "a list of token ids");
    case FIELD_STOP:
        return take_stop(o, value, error);
    case FIELD_STREAM_OPTIONS:
        return take_stream_options(o, value, error);
    case FIELD_RESPONSE_FORMAT:
        return take_response_format(o, value, error);
    case FIELD_TEMPLATE_KWARGS:
        return take_template_kwargs(o, value, error);
    case FIELD_EFFORT:
        return take_effort(o, value, error);
    case FIELD_REASONING:
        return take_reasoning(o, value, error);
    case FIELD_PREDICT:
        return take_predict(o, value, field->name, error);
    case FIELD_LOGPROBS:
        return take_logprobs(o, value, error);
    case FIELD_SEED:
        return take_seed(o, value, error);
    case FIELD_TOP_K:
        return take_top_k(o, value, error);
    case FIELD_ALPHA:
    case FIELD_BUDGET:
        return take_selection(o, value, field->id, error);
    case FIELD_POLICY:
        return take_policy(o, value, error);
    case FIELD_FLAG:
        return read_bool((bool *)at, value, field->name, error);
    case FIELD_NUMBER:
        return read_number((double *)at, value, field->name, field->option, error);
    case FIELD_MODEL:
        return json_is_string(value) ? 0 : wrong_type(error, "model", "a text");
    default:
        return 0;
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* What a request that says nothing gets, by order->kind. */
static void order_defaults(struct order *order)
{
    order->temperature = strtod(range_of("temp")->fallback, NULL);
    order->top_p = strtod(range_of("top-p")->fallback, NULL);
    order->min_p = strtod(range_of("min-p")->fallback, NULL);
    order->repeat_penalty = strtod(range_of("repeat-penalty")->fallback, NULL);
    order->top_k = (uint32_t)strtoul(range_of("top-k")->fallback, NULL, 10);
    order->parse_special = order->kind == ORDER_TOKENIZE; /* llama-server's */
    order->predict = HILL_PREDICT_UNTIL_CONTEXT;
    order->cache_prompt = true;
    order->split_reasoning = true;
}

static int read_fields(struct order *order, struct api_error *error)
{
    const char *name, *predict = NULL;
    json_t *value;
    json_object_foreach(order->root, name, value)
    {
        const struct order_field *field = order_field_find(name, order->kind);
        if (!field)
            return api_refuse(error, 400, "unknown_field", name, "there is no field %.60s here",
                              name);
        if (json_is_null(value))
            continue;
        if (field->id == FIELD_REFUSED && !order_field_is_neutral(field, value))
            return api_refuse(error, 400, "not_served", name, "%s: %s", name, field->why);
        if (field->id == FIELD_PREDICT && predict)
            return api_refuse(error, 400, "excluded", name, "%s and %s exclude each other", predict,
                              name);
        if (field->id == FIELD_PREDICT)
            predict = name;
        if (take_field(order, field, value, error))
            return -1;
    }
    return 0;
}

/* A conversation that ends with the assistant's text: the answer goes on from there. */
static int take_begun(struct order *order, struct api_error *error)
{
    unsigned last = order->n_messages - 1;
    if (!last || order->messages[last].role != CHAT_ASSISTANT || order->calls[last] || order->tools)
        return 0;
    if (order->json)
        return api_refuse(error, 400, "excluded", "response_format",
                          "response_format: not together with an answer that has begun");
    order->begun = order->messages[last].text;
    order->begun_bytes = order->messages[last].bytes;
    order->n_messages = last;
    return 0;
}

static int check_whole(struct order *order, struct api_error *error)
{
    bool generates = order->kind == ORDER_CHAT || order->kind == ORDER_COMPLETION;
    if (order->kind == ORDER_CHAT && !order->n_messages)
        return api_refuse(error, 400, "missing_field", "messages", "messages is missing");
    if (order->kind == ORDER_COMPLETION && !order->prompt_bytes && !order->n_ids)
        return api_refuse(error, 400, "missing_field", "prompt", "prompt is missing or empty");
    if (order->kind == ORDER_INFILL && (!order->before || !order->after))
        return api_refuse(error, 400, "missing_field",
                          order->before ? "input_suffix" : "input_prefix",
                          "input_prefix or input_suffix is missing");
    if (order->kind == ORDER_INFILL && order->n_ids)
        return api_refuse(error, 400, "wrong_type", "prompt", "prompt has to be a text");
    if (order->kind == ORDER_TOKENIZE && !order->prompt)
        return api_refuse(error, 400, "missing_field", "content", "content is missing");
    if (order->kind == ORDER_DETOKENIZE && !order->ids)
        return api_refuse(error, 400, "missing_field", "tokens", "tokens is missing");
    if (generates && order->include_usage && !order->stream)
        return api_refuse(error, 400, "excluded", "stream_options",
                          "stream_options goes with stream alone");
    if (order->kind != ORDER_CHAT)
        return 0;
    return tools_check(order, error) || take_begun(order, error) ? -1 : 0;
}

static uint32_t left_open(const json_t *root)
{
    static const struct {
        const char *name;
        enum hill_sampling_field field;
    } fields[] = {{"temperature", HILL_SAMPLING_TEMPERATURE},
                  {"top_k", HILL_SAMPLING_TOP_K},
                  {"top_p", HILL_SAMPLING_TOP_P},
                  {"min_p", HILL_SAMPLING_MIN_P},
                  {"repeat_penalty", HILL_SAMPLING_REPEAT_PENALTY}};
    uint32_t unset = 0;
    for (unsigned i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const json_t *value = json_object_get(root, fields[i].name);
        if (!value || json_is_null(value))
            unset |= fields[i].field;
    }
    return unset;
}

int order_read(struct order *order, enum order_kind kind, const char *body, size_t bytes,
               struct api_error *error)
{
    *order = (struct order){.kind = kind};
    order_defaults(order);
    order->root = json_bounded_object(body, bytes, error);
    if (!order->root || read_fields(order, error))
        return -1;
    order->unset = left_open(order->root);
    return check_whole(order, error);
}

static void drop_body(struct order *order)
{
    json_decref(order->root);
    free(order->messages);
    free(order->texts);
    free(order->calls);
    for (size_t i = 0; i < order->n_told; i++)
        free(order->told[i]);
    free(order->told);
    free(order->ids);
    order->root = NULL;
    order->messages = NULL;
    order->texts = NULL;
    order->calls = NULL;
    order->tools = order->before = order->after = order->extra = NULL;
    order->tool_name = order->prompt = order->begun = NULL;
    order->begun_bytes = 0;
    order->told = NULL;
    order->ids = NULL;
    order->prompt_bytes = order->n_ids = order->n_told = order->n_messages = 0;
}

int order_forget_body(struct order *order)
{
    size_t used = 0;
    char *kept = malloc((size_t)STOP_STRINGS_MAX * STOP_STRING_BYTES_MAX);
    if (!kept)
        return HILL_E_NOMEM;
    for (unsigned i = 0; i < order->n_stops; i++) {
        memcpy(kept + used, order->stops[i].text, order->stops[i].bytes);
        order->stops[i].text = kept + used;
        used += order->stops[i].bytes;
    }
    free(order->stop_texts);
    order->stop_texts = kept;
    drop_body(order);
    return 0;
}

void order_finish(struct order *order)
{
    drop_body(order);
    free(order->stop_texts);
    *order = (struct order){0};
}

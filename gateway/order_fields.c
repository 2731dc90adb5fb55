/* gateway/order_fields.c - see order_fields.h. */
#include "gateway/order_fields.h"

#include <stddef.h>
#include <string.h>

#define GENERATES (ORDER_CHAT | ORDER_COMPLETION)
#define ALL       (GENERATES | ORDER_INFILL)
#define TOOLS     "the form before tools is not served: use tools"
#define SAMPLER   "the sampler has no such step"
#define GRAMMAR   "answers are held to no grammar or schema (see response_format)"
#define LOGPROBS  "the pipeline tells of the chosen token alone, of no alternatives"
#define TEXT_ONLY "the model reads and writes text alone"
#define UNTIMED   "an answer has no limit of time"

#define AT(member) offsetof(struct order, member)

static const struct order_field fields[] = {
    /* taken */
    {"model", ALL, FIELD_MODEL, NULL, NULL},
    {"messages", ORDER_CHAT, FIELD_MESSAGES, NULL, NULL},
    {"tools", ORDER_CHAT, FIELD_TOOLS, NULL, NULL},
    {"tool_choice", ORDER_CHAT, FIELD_TOOL_CHOICE, NULL, NULL},
    {"chat_template_kwargs", ORDER_CHAT, FIELD_TEMPLATE_KWARGS, NULL, NULL},
    {"reasoning_effort", ORDER_CHAT, FIELD_EFFORT, NULL, NULL},
    {"reasoning_format", ALL, FIELD_REASONING, NULL, NULL},
    {"prompt", ORDER_COMPLETION | ORDER_INFILL, FIELD_PROMPT, NULL, NULL},
    {"input_prefix", ORDER_INFILL, FIELD_BEFORE, NULL, NULL},
    {"input_suffix", ORDER_INFILL, FIELD_AFTER, NULL, NULL},
    {"input_extra", ORDER_INFILL, FIELD_EXTRA, NULL, NULL},
    {"t_max_prompt_ms", ORDER_INFILL, FIELD_IGNORED, NULL, NULL},
    {"t_max_predict_ms", ORDER_INFILL, FIELD_IGNORED, NULL, NULL},
    {"content", ORDER_TOKENIZE, FIELD_PROMPT, NULL, NULL},
    {"tokens", ORDER_DETOKENIZE, FIELD_TOKENS, NULL, NULL},
    {"stop", ALL, FIELD_STOP, NULL, NULL},
    {"stream", ALL, FIELD_FLAG, .at = AT(stream)},
    {"stream_options", GENERATES, FIELD_STREAM_OPTIONS, NULL, NULL},
    {"max_tokens", ALL, FIELD_PREDICT, NULL, NULL},
    {"max_completion_tokens", ORDER_CHAT, FIELD_PREDICT, NULL, NULL},
    {"n_predict", ALL, FIELD_PREDICT, NULL, NULL},
    {"seed", ALL, FIELD_SEED, NULL, NULL},
    {"temperature", ALL, FIELD_NUMBER, .at = AT(temperature), .option = "temp"},
    {"top_k", ALL, FIELD_TOP_K, NULL, NULL},
    {"top_p", ALL, FIELD_NUMBER, .at = AT(top_p), .option = "top-p"},
    {"min_p", ALL, FIELD_NUMBER, .at = AT(min_p), .option = "min-p"},
    {"repeat_penalty", ALL, FIELD_NUMBER, .at = AT(repeat_penalty), .option = "repeat-penalty"},
    {"ignore_eos", ALL, FIELD_FLAG, .at = AT(ignore_eos)},
    {"cache_prompt", ALL, FIELD_FLAG, .at = AT(cache_prompt)},
    {"logprobs", GENERATES, FIELD_LOGPROBS, NULL, NULL},
    {"response_format", GENERATES, FIELD_RESPONSE_FORMAT, NULL, NULL},
    {"return_progress", GENERATES, FIELD_FLAG, .at = AT(progress)},
    {"return_selection", GENERATES, FIELD_FLAG, .at = AT(selection)},
    {"return_timeline", GENERATES, FIELD_FLAG, .at = AT(timeline)},
    {"alpha", ALL, FIELD_ALPHA, NULL, NULL},
    {"budget", ALL, FIELD_BUDGET, NULL, NULL},
    {"policy", ALL, FIELD_POLICY, NULL, NULL},
    {"add_special", ORDER_TOKENIZE, FIELD_FLAG, .at = AT(add_special)},
    {"parse_special", ORDER_TOKENIZE | ORDER_COMPLETION, FIELD_FLAG, .at = AT(parse_special)},
    {"with_pieces", ORDER_TOKENIZE, FIELD_FLAG, .at = AT(with_pieces)},
    /* for the books of whoever runs a service, or hints that change no answer */
    {"user", ALL, FIELD_IGNORED, NULL, NULL},
    {"metadata", GENERATES, FIELD_IGNORED, NULL, NULL},
    {"store", GENERATES, FIELD_IGNORED, NULL, NULL},
    {"service_tier", GENERATES, FIELD_IGNORED, NULL, NULL},
    {"safety_identifier", GENERATES, FIELD_IGNORED, NULL, NULL},
    {"prompt_cache_key", GENERATES, FIELD_IGNORED, NULL, NULL},
    {"prompt_cache_retention", GENERATES, FIELD_IGNORED, NULL, NULL},
    {"verbosity", GENERATES, FIELD_IGNORED, NULL, NULL},
    {"prediction", ORDER_CHAT, FIELD_IGNORED, NULL, NULL},
    {"id_slot", ALL, FIELD_IGNORED, NULL, NULL},
    {"slot_id", GENERATES, FIELD_IGNORED, NULL, NULL},
    {"timings_per_token", GENERATES, FIELD_IGNORED, NULL, NULL},
    {"samplers", ALL, FIELD_IGNORED, NULL, NULL},
    {"response_fields", ALL, FIELD_IGNORED, NULL, NULL},
    {"n_indent", ALL, FIELD_IGNORED, NULL, NULL},
    {"parallel_tool_calls", ORDER_CHAT, FIELD_IGNORED, NULL, NULL},
    /* of the sampler's steps that are not served: what turns one on is refused below */
    {"dynatemp_exponent", ALL, FIELD_IGNORED, NULL, NULL},
    {"dry_base", ALL, FIELD_IGNORED, NULL, NULL},
    {"dry_allowed_length", ALL, FIELD_IGNORED, NULL, NULL},
    {"dry_penalty_last_n", ALL, FIELD_IGNORED, NULL, NULL},
    {"dry_sequence_breakers", ALL, FIELD_IGNORED, NULL, NULL},
    {"xtc_threshold", ALL, FIELD_IGNORED, NULL, NULL},
    {"mirostat_tau", ALL, FIELD_IGNORED, NULL, NULL},
    {"mirostat_eta", ALL, FIELD_IGNORED, NULL, NULL},
    /* refused, unless they ask for nothing */
    {"n", ALL, FIELD_REFUSED, "[1]", "one answer a request is served"},
    {"best_of", ORDER_COMPLETION, FIELD_REFUSED, "[1]", "one answer a request is served"},
    {"echo", ORDER_COMPLETION, FIELD_REFUSED, "[false]", "the prompt is not sent back"},
    {"suffix", ORDER_COMPLETION, FIELD_REFUSED, "[\"\"]", "use /infill"},
    {"top_logprobs", ORDER_CHAT, FIELD_REFUSED, "[0]", LOGPROBS},
    {"n_probs", ALL, FIELD_REFUSED, "[0]", LOGPROBS},
    {"presence_penalty", ALL, FIELD_REFUSED, "[0]", SAMPLER " (see repeat_penalty)"},
    {"frequency_penalty", ALL, FIELD_REFUSED, "[0]", SAMPLER " (see repeat_penalty)"},
    {"logit_bias", ALL, FIELD_REFUSED, "[{}, []]", SAMPLER},
    {"typical_p", ALL, FIELD_REFUSED, "[1]", SAMPLER},
    {"mirostat", ALL, FIELD_REFUSED, "[0]", SAMPLER},
    {"dynatemp_range", ALL, FIELD_REFUSED, "[0]", SAMPLER},
    {"dry_multiplier", ALL, FIELD_REFUSED, "[0]", SAMPLER},
    {"xtc_probability", ALL, FIELD_REFUSED, "[0]", SAMPLER},
    {"top_n_sigma", ALL, FIELD_REFUSED, "[-1, 0]", SAMPLER},
    {"min_keep", ALL, FIELD_REFUSED, "[0]", SAMPLER},
    {"t_max_prompt_ms", GENERATES, FIELD_REFUSED, "[0, -1]", UNTIMED},
    {"t_max_predict_ms", GENERATES, FIELD_REFUSED, "[0, -1]", UNTIMED},
    {"repeat_last_n", ALL, FIELD_REFUSED, "[64]", "the penalty looks at 64 tokens"},
    {"n_keep", ALL, FIELD_REFUSED, "[0, -1]", "a context that is full ends the answer"},
    {"grammar", ALL, FIELD_REFUSED, "[\"\"]", GRAMMAR},
    {"json_schema", ALL, FIELD_REFUSED, "[{}]", GRAMMAR},
    {"functions", ORDER_CHAT, FIELD_REFUSED, "[[]]", TOOLS},
    {"function_call", ORDER_CHAT, FIELD_REFUSED, "[\"none\", \"auto\"]", TOOLS},
    {"modalities", ORDER_CHAT, FIELD_REFUSED, "[[\"text\"]]", TEXT_ONLY},
    {"audio", ORDER_CHAT, FIELD_REFUSED, "[]", TEXT_ONLY},
    {"image_data", GENERATES, FIELD_REFUSED, "[[]]", TEXT_ONLY},
    {"web_search_options", ORDER_CHAT, FIELD_REFUSED, "[]", "nothing is searched for"},
    {"add_generation_prompt", ORDER_CHAT, FIELD_REFUSED, "[true]", "an answer always begins anew"},
    {"lora", ALL, FIELD_REFUSED, "[[]]", "adapters are not served"},
};

const struct order_field *order_field_find(const char *name, enum order_kind kind)
{
    for (unsigned i = 0; i < sizeof fields / sizeof *fields; i++)
        if ((fields[i].kinds & kind) && strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

bool order_field_is_neutral(const struct order_field *field, const json_t *value)
{
    json_t *list = json_loads(field->neutral, 0, NULL);
    bool found = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *neutral = json_array_get(list, i);
        found |= json_is_number(value) && json_is_number(neutral)
                     ? json_number_value(value) == json_number_value(neutral)
                     : json_equal(value, neutral);
    }
    json_decref(list);
    return found;
}

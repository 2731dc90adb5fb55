/*
 * model/chat_template.c - templates recognised, conversations rendered; see chat_template.h.
 */
#include "model/chat_template.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/grow.h"
#include "model/chat_formats.h"

/* ---- recognition ------------------------------------------------------------------------- */

/* XXH64 with seed 0 of a template's text as Jinja reads it; 0: out of memory. */
static uint64_t hash_of(const char *text, uint64_t bytes)
{
    char *copy = malloc(bytes + 1);
    uint64_t kept = 0;
    if (!copy)
        return 0;
    for (uint64_t i = 0; i < bytes; i++) {
        bool of_pair = text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n';
        if (!of_pair)
            copy[kept++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (kept && copy[kept - 1] == '\n')
        kept--;
    uint64_t hash = XXH64(copy, kept, 0);
    free(copy);
    return hash;
}

/* llama.cpp's names of formats that it has built in, which files give in place of a template, and
 * what it renders for them. BOS is the vocabulary's affair there. */
static const struct {
    const char *name;
    struct chat_format format;
} by_name[] = {
    {"chatml",
     {"chatml-named", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n",
      "<|im_end|>\n<|im_start|>user\n", "<|im_start|>system\n",
      .system_next = "<|im_end|>\n<|im_start|>system\n"}},
    {"gemma",
     {"gemma-named", "<start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n",
      "<end_of_turn>\n<start_of_turn>user\n", "<start_of_turn>user\n", .system_end = "\n\n",
      .strip_system = CHAT_STRIP_BOTH, .strip_user = CHAT_STRIP_BOTH,
      .strip_answer = CHAT_STRIP_BOTH}},
    {"llama2",
     {"llama2-named", "[INST] ", " [/INST]", "</s>[INST] ", "[INST] ", .system_end = "\n"}},
    {"llama2-sys",
     {"llama2-named", "[INST] ", " [/INST]", "</s>[INST] ", "[INST] <<SYS>>\n",
      .system_end = "\n<</SYS>>\n\n"}},
    {"llama2-sys-bos",
     {"llama2-named", "[INST] ", " [/INST]", "</s><s>[INST] ", "[INST] <<SYS>>\n",
      .system_end = "\n<</SYS>>\n\n"}},
    {"llama3",
     {"llama3-named", "<|start_header_id|>user<|end_header_id|>\n\n",
      "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
      "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n",
      "<|start_header_id|>system<|end_header_id|>\n\n",
      .system_next = "<|eot_id|><|start_header_id|>system<|end_header_id|>\n\n",
      .strip_system = CHAT_STRIP_BOTH, .strip_user = CHAT_STRIP_BOTH,
      .strip_answer = CHAT_STRIP_BOTH}},
    {"mistral-v1",
     {"mistral-named", " [INST] ", " [/INST] ", "</s> [INST] ", " [INST] ", .tail = " [/INST]",
      .system_end = "\n\n"}},
    {"mistral-v3",
     {"mistral-named", "[INST] ", "[/INST] ", "</s>[INST] ", "[INST] ", .tail = "[/INST]",
      .system_end = "\n\n", .strip_answer = CHAT_STRIP_BOTH}},
    {"mistral-v3-tekken",
     {"mistral-named", "[INST]", "[/INST]", "</s>[INST]", "[INST]", .system_end = "\n\n"}},
    {"mistral-v7",
     {"mistral-named", "[INST] ", "[/INST] ", "</s>[INST] ", "[SYSTEM_PROMPT] ", .tail = "[/INST]",
      .system_end = "[/SYSTEM_PROMPT][INST] "}},
    {"mistral-v7-tekken",
     {"mistral-named", "[INST]", "[/INST]", "</s>[INST]", "[SYSTEM_PROMPT]",
      .system_end = "[/SYSTEM_PROMPT][INST]"}},
    {"phi3",
     {"phi3-named", "<|user|>\n", "<|end|>\n<|assistant|>\n", "<|end|>\n<|user|>\n", "<|system|>\n",
      .system_next = "<|end|>\n<|system|>\n"}},
    {"phi4",
     {"phi4-named", "<|im_start|>user<|im_sep|>", "<|im_end|><|im_start|>assistant<|im_sep|>",
      "<|im_end|><|im_start|>user<|im_sep|>", "<|im_start|>system<|im_sep|>",
      .system_next = "<|im_end|><|im_start|>system<|im_sep|>"}},
    {"zephyr",
     {"zephyr-named", "<|user|>\n", "<|endoftext|>\n<|assistant|>\n", "<|endoftext|>\n<|user|>\n",
      "<|system|>\n", .system_next = "<|endoftext|>\n<|system|>\n"}},
};

/* A name in a file may have a newline behind it. */
static uint64_t name_bytes(const char *text, uint64_t bytes)
{
    while (bytes && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r'))
        bytes--;
    return bytes;
}

static const struct chat_format *find_name(const char *text, uint64_t bytes)
{
    bytes = name_bytes(text, bytes);
    for (unsigned i = 0; i < sizeof by_name / sizeof by_name[0]; i++)
        if (bytes == strlen(by_name[i].name) && memcmp(text, by_name[i].name, bytes) == 0)
            return &by_name[i].format;
    return NULL;
}

uint64_t chat_template_name(const char *text, uint64_t bytes)
{
    return bytes && memchr(text, '{', bytes) ? 0 : name_bytes(text, bytes);
}

const struct chat_format *chat_format_find(const char *text, uint64_t bytes)
{
    uint64_t hash = hash_of(text, bytes);
    unsigned low = 0, high = chat_known_count;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if (chat_known[middle].hash == hash)
            return &chat_formats[chat_known[middle].format];
        if (chat_known[middle].hash < hash)
            low = middle + 1;
        else
            high = middle;
    }
    return find_name(text, bytes);
}

const char *chat_format_name(const struct chat_format *format)
{
    return format->name;
}

enum chat_tools chat_format_tools(const struct chat_format *format)
{
    if (format && strncmp(format->name, "chatml-", 7) == 0 && format->system_head &&
        format->place == CHAT_SYSTEM_FIRST && strstr(format->next, "<|im_start|>user"))
        return CHAT_TOOLS_TAGS;
    if (format && strncmp(format->name, "llama3-", 7) == 0 && strstr(format->next, ">user<"))
        return CHAT_TOOLS_JSON;
    return CHAT_TOOLS_NONE;
}

const char *chat_format_system(const struct chat_format *format, uint64_t *bytes)
{
    uint64_t head = format->system_head ? strlen(format->system_head) : 0;
    const char *end = format->system_end ? format->system_end : format->next, *found;
    if (!head || !format->head || strncmp(format->head, format->system_head, head) != 0)
        return NULL;
    found = strstr(format->head + head, end);
    if (!found)
        return NULL;
    *bytes = (uint64_t)(found - format->head) - head;
    return format->head + head;
}

/* ---- white space ------------------------------------------------------------------------- */

/* Bytes of the character of white space at the start of a text; 0: none there. The characters are
 * those of Unicode's White_Space and U+001C to U+001F, as in Python. */
static unsigned space_at(const uint8_t *t, uint64_t left)
{
    if (left >= 1 &&
        (t[0] == ' ' || (t[0] >= 0x09 && t[0] <= 0x0d) || (t[0] >= 0x1c && t[0] <= 0x1f)))
        return 1;
    if (left >= 2 && t[0] == 0xc2 && (t[1] == 0x85 || t[1] == 0xa0))
        return 2;
    if (left < 3)
        return 0;
    unsigned character = (t[0] & 0x0fu) << 12 | (t[1] & 0x3fu) << 6 | (t[2] & 0x3fu);
    if ((t[0] & 0xf0) != 0xe0 || (t[1] & 0xc0) != 0x80 || (t[2] & 0xc0) != 0x80)
        return 0;
    bool space = character == 0x1680 || (character >= 0x2000 && character <= 0x200a) ||
                 character == 0x2028 || character == 0x2029 || character == 0x202f ||
                 character == 0x205f || character == 0x3000;
    return space ? 3 : 0;
}

uint64_t chat_space_left(const char *text, uint64_t bytes)
{
    uint64_t at = 0;
    unsigned length;
    while ((length = space_at((const uint8_t *)text + at, bytes - at)) > 0)
        at += length;
    return at;
}

/* Bytes of the character of white space at the end of a text; 0: none there. */
static unsigned space_before(const uint8_t *end, uint64_t left)
{
    for (unsigned length = 1; length <= 3 && length <= left; length++)
        if (space_at(end - length, length) == length)
            return length;
    return 0;
}

uint64_t chat_space_right(const char *text, uint64_t bytes)
{
    uint64_t end = bytes;
    unsigned length;
    while ((length = space_before((const uint8_t *)text + end, end)) > 0)
        end -= length;
    return bytes - end;
}

/* ---- pieces ------------------------------------------------------------------------------ */

struct builder {
    struct chat_prompt *out;
    const struct chat_vocabulary *vocabulary;
    char dates[3][40]; /* marks 3 to 5 */
    uint64_t bytes, room, piece_room;
    bool failed; /* out of memory */
};

static void add_bytes(struct builder *b, const char *text, uint64_t bytes, enum prompt_kind kind)
{
    struct chat_prompt *out = b->out;
    if (b->failed || !bytes)
        return;
    b->failed = !GROW(out->texts, b->room, b->bytes + bytes);
    if (b->failed)
        return;
    memcpy(out->texts + b->bytes, text, bytes);
    b->bytes += bytes;
    if (out->n_pieces && out->pieces[out->n_pieces - 1].kind == kind) {
        out->pieces[out->n_pieces - 1].bytes += bytes;
        return;
    }
    b->failed = !GROW(out->pieces, b->piece_room, out->n_pieces + 1);
    if (!b->failed)
        out->pieces[out->n_pieces++] = (struct prompt_piece){NULL, bytes, kind};
}

/* A text of the format, its marks replaced. */
static void add_own(struct builder *b, const char *text)
{
    const char *texts[] = {b->vocabulary->bos, b->vocabulary->eos, b->dates[0], b->dates[1],
                           b->dates[2]};
    for (; text && *text; text++) {
        uint64_t plain = strcspn(text, "\1\2\3\4\5");
        add_bytes(b, text, plain, PROMPT_SPECIAL);
        text += plain;
        if (!*text)
            return;
        const char *other = texts[*text - 1];
        add_bytes(b, other, strlen(other), PROMPT_SPECIAL);
    }
}

/* A text of the format by itself, malloc'ed; NULL: out of memory. */
static char *own_text(const struct builder *like, const char *text)
{
    struct chat_prompt alone = {0};
    struct builder b = *like;
    b.out = &alone;
    b.bytes = b.room = b.piece_room = 0;
    add_own(&b, text);
    char *copy = b.failed ? NULL : strndup(alone.texts ? alone.texts : "", b.bytes);
    chat_prompt_finish(&alone);
    return copy;
}

static void add_content(struct builder *b, const char *text, uint64_t bytes, unsigned strip,
                        enum prompt_kind kind)
{
    uint64_t left = strip & CHAT_STRIP_LEFT ? chat_space_left(text, bytes) : 0;
    text += left;
    bytes -= left;
    if (strip & CHAT_STRIP_RIGHT)
        bytes -= chat_space_right(text, bytes);
    add_bytes(b, text, bytes, kind);
}

/* What follows the last `mark` of a text up to `end`; the text where there is none. */
static const char *after_last(const char *text, const char *end, const char *mark)
{
    for (const char *found; (found = memmem(text, (size_t)(end - text), mark, strlen(mark)));)
        text = found + strlen(mark);
    return text;
}

/* Reasoning, as Qwen3's template has it; nothing where there is none. */
static void add_thought(struct builder *b, const char *text, const char *end)
{
    while (end > text && end[-1] == '\n')
        end--;
    while (text < end && *text == '\n')
        text++;
    if (text == end)
        return;
    add_own(b, "<think>\n");
    add_bytes(b, text, (uint64_t)(end - text), PROMPT_TEXT);
    add_own(b, "\n</think>\n\n");
}

/* in_round: no user's text comes after it. */
static void add_answer(struct builder *b, const struct chat_format *format,
                       const struct chat_message *m, bool in_round)
{
    static const char mark[] = "</think>";
    const bool round = format->thought == CHAT_THOUGHT_ROUND, apart = round && m->thought_bytes;
    const char *text = m->text, *end = m->text + m->bytes,
               *found = format->thought == CHAT_THOUGHT_KEPT || apart
                            ? NULL
                            : memmem(text, m->bytes, mark, sizeof mark - 1);
    if (apart && in_round)
        add_thought(b, m->thought, m->thought + m->thought_bytes);
    else if (found && round && in_round)
        add_thought(b, after_last(text, found, "<think>"), found);
    if (found)
        text = after_last(text, end, mark);
    while ((found || (apart && in_round)) && format->thought != CHAT_THOUGHT_CUT && text < end &&
           *text == '\n')
        text++;
    add_content(b, text, (uint64_t)(end - text), format->strip_answer, PROMPT_TEXT);
    if (m->added && text < end)
        add_own(b, "\n");
    if (m->added)
        add_bytes(b, m->added, m->added_bytes, PROMPT_TEXT);
}

static const char *system_end(const struct chat_format *format)
{
    return format->system_end ? format->system_end : format->next;
}

static void add_words(struct builder *b, const struct chat_message *m, unsigned strip)
{
    if (m->before)
        add_bytes(b, m->before, m->before_bytes, PROMPT_TEXT);
    add_content(b, m->text, m->bytes, m->role == CHAT_TOOL ? 0 : strip, PROMPT_LITERAL);
    if (m->added)
        add_bytes(b, m->added, m->added_bytes, PROMPT_TEXT);
}

/* A system text that stands with a user's. */
static void add_joined(struct builder *b, const struct chat_format *format,
                       const struct chat_message *system)
{
    bool none = format->place == CHAT_SYSTEM_NONE;
    add_words(b, system, none ? format->strip_user & CHAT_STRIP_LEFT : format->strip_system);
    if (none)
        add_bytes(b, "\n\n", 2, PROMPT_LITERAL);
    else
        add_own(b, system_end(format));
}

/* The user's text that joined a system text lost no white space at its start. */
static unsigned strip_user(const struct chat_format *format, bool joined)
{
    return joined ? format->strip_user & ~(unsigned)CHAT_STRIP_LEFT : format->strip_user;
}

/* What comes before a user's text; before a tool's in Llama 3: another header. */
static void add_next(struct builder *b, const char *next, bool of_tool)
{
    static const char user[] = ">user<";
    const char *found = of_tool ? strstr(next, user) : NULL;
    if (!found) {
        add_own(b, next);
        return;
    }
    add_bytes(b, next, (uint64_t)(found - next), PROMPT_SPECIAL);
    add_bytes(b, ">ipython<", 9, PROMPT_SPECIAL);
    add_own(b, found + sizeof user - 1);
}

/* What comes between a message and the one before it. */
static void add_between(struct builder *b, const struct chat_format *format, enum chat_role before,
                        enum chat_role role)
{
    if (role == CHAT_ASSISTANT)
        add_own(b, format->answer);
    else if (role == CHAT_SYSTEM)
        add_own(b, format->system_next);
    else if (role == CHAT_TOOL && before == CHAT_TOOL)
        add_own(b, "\n");
    else
        add_next(b, before == CHAT_SYSTEM ? system_end(format) : format->next, role == CHAT_TOOL);
}

/* Llama 3.1 and later: tools are told of before the date. */
static void add_head(struct builder *b, const char *text, bool tools)
{
    static const char header[] = "<|end_header_id|>\n\n", date[] = "Cutting Knowledge Date: ";
    const char *found = tools && text ? strstr(text, header) : NULL,
               *after = found ? found + sizeof header - 1 : NULL;
    if (!found || strncmp(after, date, sizeof date - 1) != 0) {
        add_own(b, text);
        return;
    }
    char *before = strndup(text, (size_t)(after - text));
    b->failed |= !before;
    add_own(b, before);
    free(before);
    add_own(b, "Environment: ipython\n");
    add_own(b, after);
}

/* Qwen3's template takes a user's text that looks like a tool's answer for one. */
static bool is_tools(const struct chat_message *m)
{
    static const char begin[] = "<tool_response>", end[] = "</tool_response>";
    return m->role == CHAT_TOOL ||
           (m->bytes >= sizeof end - 1 && memcmp(m->text, begin, sizeof begin - 1) == 0 &&
            memcmp(m->text + m->bytes - (sizeof end - 1), end, sizeof end - 1) == 0);
}

/* Of the last user's text. */
static unsigned last_user(const struct chat_message *messages, unsigned count)
{
    for (unsigned i = count; i-- > 0;)
        if (messages[i].role == CHAT_USER && !is_tools(&messages[i]))
            return i;
    return count;
}

static void add_all(struct builder *b, const struct chat_format *format,
                    const struct chat_message *messages, unsigned count)
{
    bool system = messages->role == CHAT_SYSTEM, opens = format->place == CHAT_SYSTEM_FIRST;
    unsigned first = system && !opens ? 1 : 0, user = last_user(messages, count);
    add_head(b, system && opens ? format->system_head : format->head, messages->tools);
    for (unsigned i = first; i < count; i++) {
        const struct chat_message *m = &messages[i];
        bool joined = first && i == (format->place == CHAT_SYSTEM_LAST ? count - 1 : first);
        if (i > first)
            add_between(b, format, messages[i - 1].role, m->role);
        if (joined)
            add_joined(b, format, messages);
        if (m->role == CHAT_ASSISTANT)
            add_answer(b, format, m, i > user);
        else if (m->role == CHAT_SYSTEM)
            add_words(b, m, format->strip_system);
        else
            add_words(b, m, strip_user(format, joined && format->place == CHAT_SYSTEM_NONE));
    }
    add_own(b, format->tail ? format->tail : format->answer);
}

/* ---- all --------------------------------------------------------------------------------- */

static bool in_turn(enum chat_role before, enum chat_role role)
{
    bool after_answer = before == CHAT_ASSISTANT;
    return role == CHAT_USER        ? after_answer || before == CHAT_SYSTEM
           : role == CHAT_ASSISTANT ? before == CHAT_USER || before == CHAT_TOOL
                                    : role == CHAT_TOOL && (after_answer || before == CHAT_TOOL);
}

int chat_check(const struct chat_format *format, const struct chat_message *messages,
               unsigned count, struct hill_why *why)
{
    bool any_order = format && format->system_next, user = false;
    unsigned first = count && messages[0].role == CHAT_SYSTEM;
    for (unsigned i = 0; i < count; i++)
        user |= messages[i].role == CHAT_USER;
    if (!user)
        return hill_fail(why, HILL_E_INVALID, "the conversation has no user's text");
    for (unsigned i = first; i < count; i++) {
        enum chat_role before = i > first ? messages[i - 1].role : CHAT_SYSTEM;
        if (any_order ? i == 0 && messages[i].role != CHAT_USER
                      : !in_turn(before, messages[i].role))
            return hill_fail(
                why, HILL_E_INVALID,
                "message %u of the conversation is out of turn: it is [system] user %s", i + 1,
                any_order ? "..." : "(assistant user)*");
    }
    if (messages[count - 1].role == CHAT_ASSISTANT)
        return hill_fail(why, HILL_E_INVALID, "the conversation does not end with a user's text");
    return 0;
}

static int dates_of(struct builder *b)
{
    static const char *const forms[3] = {"%d %b %Y", "%B %d, %Y", "%Y-%m-%d"};
    struct tm parts;
    if (!localtime_r(&b->vocabulary->now, &parts))
        return HILL_E_INVALID;
    for (unsigned i = 0; i < 3; i++)
        if (!strftime(b->dates[i], sizeof b->dates[i], forms[i], &parts))
            return HILL_E_INVALID;
    return 0;
}

int chat_render(struct chat_prompt *out, const struct chat_format *format,
                const struct chat_vocabulary *vocabulary, const struct chat_message *messages,
                unsigned count, struct hill_why *why)
{
    struct builder b = {.out = out, .vocabulary = vocabulary};
    *out = (struct chat_prompt){0};
    int code = chat_check(format, messages, count, why);
    if (code == 0 && dates_of(&b))
        code = hill_fail(why, HILL_E_INVALID, "the clock tells no date");
    if (code)
        return code;
    add_all(&b, format, messages, count);
    out->answer_end = own_text(&b, format->next);
    if (b.failed || !out->answer_end) {
        chat_prompt_finish(out);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a conversation of %u messages",
                         count);
    }
    const char *text = out->texts; /* where it lies at last */
    for (uint64_t i = 0; i < out->n_pieces; text += out->pieces[i++].bytes)
        out->pieces[i].text = text;
    return 0;
}

void chat_prompt_finish(struct chat_prompt *prompt)
{
    free(prompt->pieces);
    free(prompt->answer_end);
    free(prompt->texts);
    *prompt = (struct chat_prompt){0};
}

/*
 * model/chat_formats.h - what chat templates render, as tables (chat_formats.c).
 *
 * What: a conversation is [system] user (assistant user)*. What a template puts between its
 * contents does not depend on where in the conversation that is, for all templates known here, so
 * a format is a handful of texts: head U answer A next U answer A next U tail, where the first text
 * is system_head S system_end instead of head when there is a system text S. Where a format has
 * system_next, its templates render messages in any order, by what they are: system_next before a
 * later S, answer before each A, next before each U, but system_end where U follows S. In these
 * texts the byte 1 stands for the text of BOS, 2 for that of EOS, 3 to 5 for today's date
 * (chat_template.c).
 * Who calls it: model/chat_template.c alone, and its tests. Concurrency: constants.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum chat_system_place {
    CHAT_SYSTEM_FIRST, /* before the first user's text */
    CHAT_SYSTEM_LAST,  /* before the last user's text, and system_end after it (Mistral v3) */
    CHAT_SYSTEM_NONE,  /* the template has no place for one (Gemma 1 and 2) */
};

enum chat_strip { CHAT_STRIP_LEFT = 1, CHAT_STRIP_RIGHT = 2, CHAT_STRIP_BOTH = 3 };

/* What the template does with a model's reasoning in an earlier answer that has "</think>". */
enum chat_thought {
    CHAT_THOUGHT_KEPT,
    CHAT_THOUGHT_CUT,       /* what follows the last "</think>" stays */
    CHAT_THOUGHT_CUT_LINES, /* and newlines after it go, too */
    CHAT_THOUGHT_ROUND,     /* as that, but reasoning stays in answers after the last user's text */
};

struct chat_format {
    const char *name;
    const char *head, *answer, *next, *system_head; /* NULL: nothing */
    const char *tail, *system_end;                  /* NULL: as answer, as next */
    const char *system_next; /* NULL: a system text is the first, users and answers take turns */
    enum chat_system_place place;
    unsigned strip_system, strip_user, strip_answer; /* enum chat_strip: white space goes */
    enum chat_thought thought;
};

struct chat_known {
    uint64_t hash;   /* of a template's text (chat_template.c) */
    unsigned format; /* index */
};

extern const struct chat_format chat_formats[];
extern const unsigned chat_format_count;
extern const struct chat_known chat_known[]; /* sorted by hash */
extern const unsigned chat_known_count;

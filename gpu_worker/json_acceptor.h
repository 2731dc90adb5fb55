/*
 * gpu_worker/json_acceptor.h - may these bytes begin a JSON object? A pushdown automaton over
 * bytes.
 *
 * What: takes the texts of RFC 8259 whose value is an object and that any parser reads: UTF-8, no
 * NUL, surrogates in pairs, at most JSON_DEPTH_MAX levels, 16 digits before and 16 behind the
 * point, an exponent of two. White space between two marks is bounded, so that an answer goes on.
 * Nothing follows the object. From every state that is not complete some byte leads on, and a
 * shortest way leads to the end. Pure: a state is a value, and copying it is trying. Who calls it:
 * json_answer.c. Concurrency: none of its own. Failure: none.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define JSON_DEPTH_MAX       32u /* the gateway takes as many (gateway/json_bounds.h) */
#define JSON_WHITE_SPACE_MAX 40u /* in a row: a line of the deepest level, indented a little */
#define JSON_DIGITS_MAX      16u

struct json_acceptor {
    uint32_t objects;  /* bit of each open level: it is an object, not an array */
    uint16_t code;     /* of an escape so far */
    uint8_t place;     /* enum json_place (json_acceptor.c) */
    uint8_t depth;     /* open levels */
    uint8_t count;     /* bytes so far of white space, digits, hex digits or a word */
    uint8_t low, high; /* within a character: what the next byte may be */
    uint8_t left;      /* and how many follow */
    uint8_t word;      /* true, false or null */
    bool key;          /* the string is one */
    bool paired;       /* the escape is the second half of a character */
};

void json_acceptor_init(struct json_acceptor *json);
/* false: no JSON goes on so, and the state is not to be used any more. */
bool json_acceptor_take(struct json_acceptor *json, uint8_t byte);
bool json_acceptor_is_complete(const struct json_acceptor *json);

/*
 * base/utf8.h - the little of UTF-8 that is needed here.
 * Concurrency: stateless. Failure: invalid input is an answer (0, false), never an error.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define UTF8_REPLACEMENT       "\xEF\xBF\xBD" /* U+FFFD */
#define UTF8_REPLACEMENT_BYTES 3

/* Bytes that a lead byte announces: 1..4; 0 for a byte that starts no character. */
uint32_t utf8_announced(uint8_t lead);

/* May byte stand at index (1..3) of a character whose bytes so far are head[0..index-1]? Refuses
 * overlong forms, surrogates and code points above U+10FFFF at the second byte, where they show. */
bool utf8_continues(const uint8_t *head, uint32_t index, uint8_t byte);

/* Bytes of the valid character at text, 0 when there is none. */
uint32_t utf8_char_bytes(const uint8_t *text, uint64_t length);

/* Code point of a character that utf8_char_bytes found to be valid. */
uint32_t utf8_code_point(const uint8_t *text, uint32_t bytes);

/* Write a code point below U+0800; returns 1 or 2. */
uint32_t utf8_write_short(uint32_t code_point, uint8_t out[2]);

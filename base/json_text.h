/*
 * base/json_text.h - any bytes as a JSON string, for reports.
 *
 * What: each byte that is no UTF-8 becomes U+FFFD. Jansson's own functions refuse such a text, and
 * the whole object with it; a path may hold any bytes, and a message that was cut to its room may
 * end within a character. Who calls it: writers of JSON, for what comes from outside. Failure:
 * NULL, out of memory. Concurrency: any thread.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

json_t *json_text(const char *text, size_t bytes);

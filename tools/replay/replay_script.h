/*
 * tools/replay/replay_script.h - a recording of the rings, told as the lives of its requests.
 *
 * What: for each SEQ_BEGIN the prompt behind it, what the GPU worker published for it in each of
 * its two rings, the scorer's answers, and every KV entry that was appended, by layer and position.
 * Events of other requests lie in between in the file: in which order they came to lie is the
 * business of threads, and may be another one in a replay. Who calls it: the GPU worker's replay.
 * Failure: HILL_E_DAMAGED with the event's number, HILL_E_NOMEM. Payloads stay in the mapped file.
 */
#pragma once

#include "recording/recording.h"
#include "proto/records.h"

enum script_ring { SCRIPT_APPEND, SCRIPT_QUERY, SCRIPT_RINGS };

/* A record that the GPU worker published; answer: of a QUERY, kind 0: there was none. */
struct script_line {
    struct recording_event record, answer;
};

struct script_request {
    uint64_t request_id, begun; /* begun: number of its SEQ_BEGIN */
    uint32_t sequence, max_tokens;
    uint8_t *prompt; /* a packed Prefill message */
    uint32_t prompt_bytes;
    struct script_line *lines[SCRIPT_RINGS];
    uint32_t n_lines[SCRIPT_RINGS], room[SCRIPT_RINGS];
    struct recording_event ready; /* kind 0: the recording ends before */
    bool natural;                 /* it ended by itself: a stop token, or its length */
    const uint8_t **entries;      /* [n_layers][max_tokens], NULL: not appended */
};

struct script {
    struct script_request *requests; /* in the order of their SEQ_BEGINs */
    uint32_t n_requests, room, n_layers;
};

int script_read(struct script *script, struct recording_file *file, struct hill_why *why);
void script_free(struct script *script);

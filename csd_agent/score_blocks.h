/*
 * csd_agent/score_blocks.h - AGENT_QUERY: a layer's digests are scored, and the scores leave in
 * Score Blocks of at most block_tokens slots as they come.
 *
 * Who calls it: commands.c. Under a device model each block is charged its part of what was read
 * and leaves when the modelled drive has its scores on the host. Failure: as a command's; fewer or
 * more slots than the scorer expected: HILL_E_PROTOCOL with both numbers.
 */
#pragma once

#include "csd_agent/commands.h"
#include "proto/records.h"

/* payload: a checked struct record_agent_query. */
int score_blocks_run(struct data_plane *plane, const void *payload,
                     struct record_completion *completion, struct cold_cost *cost,
                     struct hill_why *why);

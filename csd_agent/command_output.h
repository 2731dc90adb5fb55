/*
 * csd_agent/command_output.h - what the agent's commands send: at once, or held until the modelled
 * drive would have it.
 *
 * What: room in the two output rings, waited for with a deadline (commands.h says why), and records
 * that are held (held_output.h) under a device model. Who calls it: the agent's commands and Score
 * Blocks. Failure: a negative code, which is plane->lost from then on: the rings are of no use any
 * more.
 */
#pragma once

#include "csd_agent/commands.h"
#include "proto/records.h"

/* Nothing is held and nothing has to be: records go straight to their rings. */
bool output_direct(const struct data_plane *plane);
/* Room for a record in an output ring, however long that takes within the deadline. */
int output_reserve(struct data_plane *plane, struct shm_ring_end *end, uint32_t bytes,
                   void **payload);

/* A record to be held; waits for those before it when they are too many. NULL: plane->lost. */
struct held_record *output_hold_room(struct data_plane *plane, uint32_t bytes);
/* Send what is due. A completion's busy time ends now. */
int output_send_due(struct data_plane *plane);

/* A completion, when the modelled drive is done; at once without one. */
int output_answer(struct data_plane *plane, enum held_stream stream,
                  const struct record_completion *completion, const struct drive_command *device);

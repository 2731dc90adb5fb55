/*
 * csd_agent/relay.h - the agent's part where the drive is on another host: `--csd tcp://HOST:PORT`.
 *
 * What: this process has the rings and the staging arena of the epoch, the drive's has everything
 * else (listen.h). A relay carries the one to the other over a link (proto/drive_link.h, which
 * drawings and credits are in): commands go out in the order of the rings [I18]; Score Blocks and
 * completions come back into theirs; what a FETCH or READ_KEYS has read comes before its completion
 * and is written into staging slots whose generation is still the command's [I10], or into the
 * command's window [I13]. Nothing is kept here beyond what the drive has not completed. What comes
 * is checked before it is used: frames, records, counts against the command that they answer.
 * Who calls it: agent.c. Concurrency: the data loop. Failure: negative codes with a line; the agent
 * ends then, and is a lost drive to the coordinator (--csd-on-loss).
 */
#pragma once

#include "proto/party.h"
#include "proto/worker_link.h"

struct relay;

bool relay_serves(const char *url); /* tcp: */

/* Connect, with the keys that the settings name; the drive answers later. */
int relay_open(struct relay **out, const struct epoch_settings *s, struct worker_link *worker,
               struct hill_why *why);
void relay_close(struct relay *r); /* NULL allowed */

/* The doorbell that is rung when something has come. */
void relay_set_doorbell(struct relay *r, struct shm_doorbell *bell);

/* Send Configure and wait until the drive is ready for this epoch; wait: as of party_open, asked
 * meanwhile. What it answers to: its failure, with its words. */
int relay_begin(struct relay *r, const Hill__Message *configure, struct party *party,
                const struct party_wait *wait, struct hill_why *why);
/* The epoch is over: party is not used any more. */
void relay_end(struct relay *r);

/* What the drive says that it runs on, and its pool's bytes. */
const char *relay_device(const struct relay *r, uint64_t *resident_bytes);
/* A control message for the drive. */
void relay_tell(struct relay *r, const Hill__Message *message);

/* Carry what can be carried: 1, also after some ms without room in a ring; 0 when nothing could.
 * *done: completions that came. Negative: the drive is lost, or the rings are of no use any more
 * (*own: that). */
int relay_turn(struct relay *r, uint64_t *done, bool *own, struct hill_why *why);

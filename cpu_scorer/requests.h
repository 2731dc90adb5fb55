/*
 * cpu_scorer/requests.h - sequences begin, with everything set aside that they need, and end.
 *
 * What: SEQ_BEGIN sets aside what the request needs (admission.h), or is refused. What waits for
 * the drive does not hold up the append ring [I16]: a SEQ_END whose sequence has demotions under
 * way, and a SEQ_BEGIN whose slot or room is still being cleared up, are kept with their sequence
 * and answered later. A SEQ_END takes a kept SEQ_BEGIN back: every one has its answer [I17]. No
 * stripe is reused before the agent has trimmed [I3]. Who calls it: the data thread's loop and
 * intake, and the measurement of both sides. Failure: the answer carries the status.
 */
#pragma once

#include "cpu_scorer/demotion.h"

struct requests {
    struct core *core;
    struct agent *agent;
    struct demotions *demotions;
    struct evaluator *evaluator;
};

/* Fills in the struct and takes the completions of TRIM; cannot fail. */
void requests_init(struct requests *rs, struct core *core, struct agent *agent,
                   struct demotions *demotions, struct evaluator *evaluator);

/* Records of the append ring. 1: done, or kept; 0: no credits for the answer now. */
int requests_take_begin(struct requests *rs, const struct record_seq_begin *r);
int requests_take_end(struct requests *rs, const struct record_seq_end *r);
/* A SEQ_BEGIN that makes no sense is answered all the same, where it says whose it is. */
int requests_refuse_begin(struct requests *rs, const void *payload, uint32_t bytes);

/* Sequences that end, and those that wait for their slots or room. 1, 0. */
int requests_pump(struct requests *rs);
/* Everything that the sequence holds near goes back; what it has in the cold pool follows. */
void requests_close(struct requests *rs, struct sequence *s);

/* What ended requests have left and nobody has asked for goes. */
void requests_forget_resting(struct requests *rs);
/* What earlier epochs have left and nobody has asked for goes; was there any? */
bool requests_forget_dormant(struct requests *rs);

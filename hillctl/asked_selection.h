/*
 * hillctl/asked_selection.h - a request's own selection: the pipeline's, but for what the command
 * line names.
 *
 * What: a table of the pipeline's options of that kind without defaults, and the Selection that
 * they make of the one the pipeline was started with. Environment and --config do not count:
 * what they say is meant for the pipeline. --alpha and --budget turn --exact-below off, as they do
 * for a pipeline. Who calls it: hillctl's generate and chat. Failure: HILL_E_INVALID for options
 * that exclude each other, and what asking the coordinator says. Concurrency: none.
 */
#pragma once

#include <stdbool.h>

#include "base/options.h"
#include "proto/client.h"
#include "proto/hill.pb-c.h"

#define ASKED_SELECTION_SPECS 8u

/* [ASKED_SELECTION_SPECS] */
const struct option_spec *asked_selection_specs(void);

/* Does the command line name any, and none that excludes another? */
int asked_selection_check(const struct options *options, bool *any, struct hill_why *why);
/* Asks the coordinator for the pipeline's selection. */
int asked_selection_make(const struct options *options, struct client *client, Hill__Selection *out,
                         struct hill_why *why);

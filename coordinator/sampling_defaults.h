/*
 * coordinator/sampling_defaults.h - how a request is sampled where its client left it open: as the
 * model's file recommends (metadata general.sampling.*, the keys that llama.cpp reads), else as the
 * command line's defaults say.
 *
 * Who calls it: settings.c, service_intake.c. Failure: none; a value in the file that is no number
 * or out of range, and a key that asks for what the sampler has not, is passed over with one
 * warning. Concurrency: stateless.
 */
#pragma once

#include "model/gguf.h"
#include "proto/envelope.h"

/* All of the five fields that can be left open. */
void sampling_defaults_read(Hill__Sampling *out, const struct gguf_file *model);
/* The fields that sampling->unset names become those of defaults; none is open any more. */
void sampling_fill(Hill__Sampling *sampling, const Hill__Sampling *defaults);

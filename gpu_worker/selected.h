/*
 * gpu_worker/selected.h - a prompt over the important tokens of a stored prefix: only these are
 * loaded before its first token (--prefix-attention select; IMPRESS).
 *
 * What: for each layer the keys of its probe heads come from the store (prefix/chunk_keys.h), the
 * prompt's own queries say which runs of tokens they attend to, these runs' entries are loaded, and
 * the prompt attends to them and to itself. Keys of the next layers are read while a layer
 * computes, and a part of the next one's runs (selected_internal.h). Nothing goes to the scorer
 * meanwhile, and nothing but that token comes of it: behind it the store's chunks are read whole
 * and appended, and the prompt's own tokens are computed again over all of them. So the request
 * decodes over the entries of a prompt that was read whole, and leaves these to others. (Where the
 * other tokens stay away from decode, too: away.h.) Taken for plain, full chunks with keys, of
 * which the tiers have half at most, before a rest of one prefill chunk; else, and when something
 * read is damaged, all is read before anything is computed (stored.h). Who calls it: requests and
 * the schedule. Concurrency: the data loop's thread; reads are made by span_reader.h's. Failure: of
 * the store: as above; of device, scorer and rings, and of a disk that answers no read for 60 s:
 * the request ends. Later ones read all from such a disk.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct request;

/* r->stored has a hit. Is it one for this? No is said again later. */
bool selected_suits(const struct request *r);
/* Such a hit is cut to what is taken. Returns the tokens of that which no layer takes. */
uint32_t selected_cut(struct request *r);
/* The hit is cut to what is taken, which is r->n_past: the prefill is to begin. Without memory or
 * threads for that: all is read, as for damage. */
int selected_begin(struct request *r, struct hill_why *why);
/* Towards the next unit: 1 it moved on, 0 it waits for the disk or the device, or an error.
 * HILL_E_DAMAGED: what is stored cannot be taken so; the request begins again without. */
int selected_pump(struct request *r, struct hill_why *why);
/* Nothing of it counts: the scorer is told so by another SEQ_BEGIN (away.h). */
int selected_begin_again(struct request *r);
/* The unit is computed: its entries are not kept, but where they follow the chosen ones (away.h).
 */
int selected_pass_unit(struct request *r, struct hill_why *why);
/* After the first token: some of the store's chunks to the scorer; then, in REQUEST_RESTORED, what
 * follows them is computed: the prompt's own tokens, and more behind a chunk that has gone. */
int selected_fill(struct request *r, struct hill_why *why);
void selected_drop(struct request *r); /* of a request without, too */

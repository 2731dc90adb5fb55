/*
 * gpu_worker/engine.h - a transformer's forward pass on one OpenCL device, with attention over KV
 * entries that others select.
 *
 * What: weights, activations and the GPU's KV memory. The prompt is taken layer by layer in chunks;
 * after each (layer, chunk) unit its KV entries can be read. A decode step goes layer by layer:
 * queries and new entries out, selected entries in, attend. Who selects is not known here: step.c
 * speaks to the scorer, tests select by hand. A step has rows: tokens of as many sequences, for
 * which the weights are read once. Order of calls: create, configure, then any number of
 *     prompt: [prefill_within,] prefill_begin, [prefill_weigh, prefill_whole,] prefill_tokens*, {
 *             [prefill_past* of a layer,] prefill_enqueue(u), prefill_read(u) } for all units in
 *             order, prefill_logits
 *     prompt over some past tokens: [prefill_within,] prefill_begin, prefill_select,
 *             prefill_tokens*, { prefill_keys, [prefill_probe,] [prefill_guess, prefill_probe,]
 *             prefill_past*, prefill_enqueue, prefill_read } for each layer in order,
 *             prefill_logits
 *     step:   step_begin, { { step_query, step_guess, step_upload*, step_attend } for each row,
 *             step_run } for each layer in order, step_logits for each row
 * One prompt and one step at a time; steps may be run between the calls of
 * a prompt. Either is abandoned by beginning the next one. Exactness: F32, F16 and BF16 weights
 * are computed in F32 (exact conversions, in registers); quantised ones from their codes, times
 * activations rounded to int8 in blocks of 32 with an F32 scale (product.cl); sums are F32. The
 * order of every sum depends on shapes and list length only, never on slot numbers, chunk rows, the
 * other rows of a step or timing: the same input gives the same bits on one device.
 * Failure: HILL_E_NODEV (the device refused something; the engine is of no further use),
 * HILL_E_NOMEM, HILL_E_UNSUPPORTED (a shape the kernels cannot take), HILL_E_INVALID (call out of
 * order or out of range). why names it. Who calls it: the rest of this folder, a benchmark and
 * tests. Concurrency: one thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cldevice.h"
#include "model/gguf.h"
#include "model/hparams.h"

struct engine;

/* Load the weights of file (which must stay open while the engine lives: token embeddings are read
 * from it). The device stays the caller's. */
int engine_create(struct engine **out, const struct cldevice *device, const struct gguf_file *file,
                  const struct model_hparams *hparams, struct hill_why *why);
void engine_destroy(struct engine *engine); /* NULL allowed */

#define ENGINE_SEQUENCES_MAX 64u

/* Prefill chunk in tokens, entries of a sequence's slot table per layer, and sequences (at most
 * ENGINE_SEQUENCES_MAX); contents of the slot tables are lost. */
int engine_configure(struct engine *engine, uint32_t batch_tokens, uint32_t gpu_slots,
                     uint32_t n_sequences, struct hill_why *why);

/* The context of a sequence: of a model whose rotation depends on it (model/hparams.h), what is
 * computed from now on. At first the context the model was trained for. */
int engine_set_context(struct engine *engine, uint32_t ctx_tokens, struct hill_why *why);

/* Where uploads come from: count slots, stride bytes apart (a multiple of 64, entries at the start
 * of each), which stay there until another call; NULL: nothing. Waits until the device has let go
 * of the old ones. */
int engine_attach_staging(struct engine *engine, const void *slots, uint64_t stride, uint32_t count,
                          struct hill_why *why);

/* Memory in which the attention reads entries where they lie: `bytes` at a page boundary, which
 * stay there until another call; NULL: none. Waits until the device has let go of the old one.
 * HILL_E_UNSUPPORTED: this device cannot, or not so much of it, or not this head size. */
int engine_attach_hot(struct engine *engine, const void *memory, uint64_t bytes,
                      struct hill_why *why);
/* The entries lie one after the other from offset on, a multiple of 64. HILL_E_PROTOCOL: not within
 * the memory, or they lay elsewhere a moment ago. */
int engine_place_hot(struct engine *engine, uint64_t offset, uint32_t n_entries,
                     struct hill_why *why);
uint32_t engine_hot_entries(const struct engine *engine);

const struct model_hparams *engine_hparams(const struct engine *engine); /* for tests */
uint64_t engine_weight_bytes(const struct engine *engine);
/* Bytes of weights that the decode steps launched so far have read: each matrix once a launch,
 * whatever the number of rows. Only grows. */
uint64_t engine_weights_read(const struct engine *engine);
/* Before engine_create: has_groups is which of the two sets of kernels the engine takes, that of
 * work groups or that of register tiles. HILL_TEST_WORK_GROUPS=1 asks for work groups, of a CPU
 * too, which is then taken for a device with memory of its own; 0 asks for register tiles, of a GPU
 * too. Work groups are behind the device's name from then on. */
void engine_choose_kernels(struct cldevice *device);
/* A hash of the kernels' source: with others the same tokens may have other entries. */
uint64_t engine_kernels(void);
/* KV and activation bytes that are allocated now, and those that a prompt of n_tokens after n_past
 * takes in all. */
uint64_t engine_kv_bytes(const struct engine *engine);
uint64_t engine_kv_bytes_needed(const struct engine *engine, uint32_t n_past, uint32_t n_tokens);

/* Slots on the device for runs of so many neighbours' entries, at most ENGINE_PAST_TOKENS, between
 * prompts; what was in others is lost. 0: none. Counts in engine_kv_bytes, not in what a prompt
 * needs. Waits. HILL_E_NOMEM: none. */
int engine_keep_runs(struct engine *engine, uint32_t n_slots, uint32_t run_tokens,
                     struct hill_why *why);
/* A run's entries into a slot, when the device has read what was there; out of it. Both wait. */
int engine_write_run(struct engine *engine, uint32_t slot, const void *entries,
                     struct hill_why *why);
int engine_read_run(struct engine *engine, uint32_t slot, void *entries, struct hill_why *why);

/* ---- prefill ---- */

struct engine_unit {
    uint32_t layer, first, count; /* positions first .. first + count - 1 of one layer */
};

/* A prompt of n_tokens at positions n_past ..; the entries of the positions before are given for
 * each layer (engine_prefill_past). The result has the bits of one prompt of all of them. */
int engine_prefill_begin(struct engine *engine, uint32_t n_past, uint32_t n_tokens,
                         struct hill_why *why);
/* Before prefill_begin. Buffers grow and stay for the next prompt. If what earlier prompts have
 * left and what this one takes may together exceed cap, the old buffers are released first; the
 * caller has checked that this prompt alone fits. more: bytes that this prompt takes beside
 * engine_kv_bytes_needed. cap 0: no cap. */
int engine_prefill_within(struct engine *engine, uint32_t n_past, uint32_t n_tokens, uint64_t more,
                          uint64_t cap, struct hill_why *why);

/* Memory that outlives the process, page-aligned, which stays there until another call; NULL: none.
 * Waits until the device has let go of the old one. in_place: a device that shares the host's
 * memory computes in it, else units are copied there. */
int engine_attach_prompt(struct engine *engine, void *memory, uint64_t bytes, bool in_place,
                         struct hill_why *why);
/* Of it, for a prompt of so many tokens. */
uint64_t engine_prompt_bytes(const struct engine *engine, uint32_t n_tokens);
/* What is there of the prompt of this name, which says its tokens and whose they are. false:
 * nothing that could go on. */
struct engine_prompt {
    uint32_t units;  /* are whole */
    bool begun;      /* the one after them is not, and is computed again */
    uint32_t oldest; /* entries of the units from here on are there */
    bool damaged;    /* something was there that is not what was noted, found or not */
};
bool engine_prompt_find(const struct engine *engine, uint64_t name, uint32_t n_tokens,
                        struct engine_prompt *out);
/* engine_prefill_begin of a prompt without a past that is kept there (NULL: it is not); goes_on:
 * from the first unit that is not whole, and entries are read from first_unit on, at least
 * `oldest`. The tokens are given in any case. */
struct engine_keep {
    uint64_t name;
    bool goes_on;
    uint32_t first_unit;
};
int engine_prefill_begin_kept(struct engine *engine, uint32_t n_tokens,
                              const struct engine_keep *keep, struct hill_why *why);
/* Units that are queued, with those of an earlier process. */
uint32_t engine_prefill_queued(const struct engine *engine);
/* When a unit's entries were read: it is kept, where the device does not do that. Waits. */
int engine_prefill_save(struct engine *engine, uint32_t unit, struct hill_why *why);
/* The entries of the unit are not wanted; waits for them. */
int engine_prefill_pass(struct engine *engine, uint32_t unit, struct hill_why *why);

#define ENGINE_PAST_TOKENS 256u
/* The first of them that is needed: 0, or in a layer with a window one that the prompt's first
 * token sees. */
uint32_t engine_past_from(const struct engine *engine, uint32_t layer);
/* Entries [count][entry bytes] of the past tokens first .. first + count - 1 of a layer: from that
 * one on in order, at most ENGINE_PAST_TOKENS, after the units of the layers before are queued and
 * before the layer's own. 1: they are taken; 0: not now, the device still has those before them; or
 * an error. */
int engine_prefill_past(struct engine *engine, uint32_t layer, uint32_t first, uint32_t count,
                        const void *entries, struct hill_why *why);
/* The same of whole runs (engine_keep_runs), the i-th of which is in the device's slot slots[i], or
 * where that is ENGINE_NO_SLOT, at its place in entries. */
#define ENGINE_NO_SLOT UINT32_MAX
int engine_prefill_past_runs(struct engine *engine, uint32_t layer, uint32_t first, uint32_t count,
                             const void *entries, const uint32_t *slots, struct hill_why *why);
/* Right after engine_prefill_begin of a prompt of one chunk after n_past tokens: it attends to some
 * of these alone, in each layer to others. It has other bits then, unless they are all. */
int engine_prefill_select(struct engine *engine, struct hill_why *why);
/* The next layer's queries and keys; it will attend to n_selected past tokens, which are given
 * as engine_prefill_past says with `first` counted among them, in order. In a layer with a window
 * they are the newest ones, from engine_past_from on. Does not wait. */
int engine_prefill_keys(struct engine *engine, uint32_t layer, uint32_t n_selected,
                        struct hill_why *why);
/* After these: the queries of `layer`, the one behind the layer whose queries are queued, are
 * guessed, as what its weights make of the input of the layer before it (InfiniGen): those of the
 * prompt's last tokens, which look at much the same as all do, for less. Does not wait. */
#define ENGINE_GUESS_TOKENS 36u
int engine_prefill_guess(struct engine *engine, uint32_t layer, struct hill_why *why);
/* After either: what these queries attend to in some KV heads of their layer: sums [n_past] of each
 * past token's softmax weights over queries and heads, the softmax over the past alone. keys
 * [n_past][n_kv_heads][head_dim], FP16, of the heads kv_heads [n_kv_heads]; NULL: the same heads
 * and keys that the layer's guess was probed with last. n_past: a multiple of ENGINE_PROBE_TOKENS.
 * Waits. */
#define ENGINE_PROBE_TOKENS 64u
int engine_prefill_probe(struct engine *engine, const uint16_t *kv_heads, uint32_t n_kv_heads,
                         const void *keys, float *sums, struct hill_why *why);
/* The bytes that this takes beside engine_kv_bytes_needed, for a prompt of n_tokens. */
uint64_t engine_probe_bytes_needed(const struct engine *engine, uint32_t n_past, uint32_t n_tokens,
                                   uint32_t n_kv_heads);
/* Right after engine_prefill_begin without a past: what the prompt's queries attend to is summed
 * too, a layer at a time. Costs about half as much as attention does again, and the last layer's
 * attention. */
int engine_prefill_weigh(struct engine *engine, struct hill_why *why);
/* The bytes that this takes beside engine_kv_bytes_needed. */
uint64_t engine_mass_bytes_needed(const struct engine *engine, uint32_t n_prompt);
/* mass [count] of tokens first .. first + count - 1 of a layer: the softmax weights that all
 * queries of the prompt give them, summed over queries and heads, in an order that does not depend
 * on chunks. When the entries of the layer's last unit have been read, and before the unit after
 * the next one is queued. Waits. */
int engine_prefill_mass(struct engine *engine, uint32_t layer, uint32_t first, uint32_t count,
                        float *mass, struct hill_why *why);
/* Right after engine_prefill_begin: engine_prefill_logits_of will be asked for any token, so the
 * last layer is computed for all of them. */
void engine_prefill_whole(struct engine *engine);
/* The prompt's next tokens (ids below n_vocab), in as many calls as the caller likes: a long prompt
 * takes a while. Units can be queued when all are there. */
int engine_prefill_tokens(struct engine *engine, const uint32_t *tokens, uint32_t count,
                          struct hill_why *why);
uint32_t engine_prefill_units(const struct engine *engine); /* of the current prompt */
struct engine_unit engine_prefill_unit(const struct engine *engine, uint32_t unit);

/* Queue a unit's kernels; does not wait. Units in order; unit u only after u - 2 was read. */
int engine_prefill_enqueue(struct engine *engine, uint32_t unit, struct hill_why *why);
/* Are the unit's entries computed? 1, 0, or an error. */
int engine_prefill_done(struct engine *engine, uint32_t unit, struct hill_why *why);
/* Is all computed that was queued? 1, 0, or an error. A step begun before waits for it. */
int engine_prefill_settled(struct engine *engine, struct hill_why *why);
/* Entries [count][entry bytes] of the unit's tokens from `first` (counted within the unit); waits
 * for them. The unit counts as read once its last entry was. */
int engine_prefill_read(struct engine *engine, uint32_t unit, uint32_t first, uint32_t count,
                        void *entries, struct hill_why *why);
/* logits [n_vocab] of the prompt's last token; after all units. Waits. */
int engine_prefill_logits(struct engine *engine, float *logits, struct hill_why *why);
/* The same of another of the prompt's tokens, after engine_prefill_whole. */
int engine_prefill_logits_of(struct engine *engine, uint32_t token, float *logits,
                             struct hill_why *why);

/* ---- decode ---- */

struct engine_row {
    uint32_t sequence, token, position;
};

/* Rows of different sequences, at most as many as were configured; by their index from here on. */
int engine_step_begin(struct engine *engine, uint32_t n_rows, const struct engine_row *rows,
                      struct hill_why *why);
/* q [n_heads][head_dim] after rotary embedding (NULL: not wanted), entry [entry bytes] of the row's
 * token; waits. */
int engine_step_query(struct engine *engine, uint32_t layer, uint32_t row, float *q, void *entry,
                      struct hill_why *why);
/* From layer `first` (at least 1) on queries are guessed too, one layer ahead: what a layer's
 * weights make of the input of the layer before it, since attention and FFN change that little
 * (InfiniGen). 0, as at first: none. Between steps. */
int engine_guess_from(struct engine *engine, uint32_t first, struct hill_why *why);
bool engine_guesses(const struct engine *engine, uint32_t layer);
/* The guessed q [n_heads][head_dim] of `layer`, when engine_step_query of the row in layer - 1 has
 * returned, until engine_step_run of layer - 1. */
int engine_step_guess(struct engine *engine, uint32_t layer, uint32_t row, float *q,
                      struct hill_why *why);
/* Copy entries from staging into the layer's slots of the row's sequence: done when the layer's
 * attention is, and staging must not change before the next engine_step_query or engine_step_logits
 * returned. */
struct engine_upload {
    uint32_t staging_slot, gpu_slot;
};
int engine_step_upload(struct engine *engine, uint32_t layer, uint32_t row, uint32_t count,
                       const struct engine_upload *uploads, struct hill_why *why);
/* The row will attend to slots[0 .. n_slots-1] of its sequence in that order, then to the token
 * itself. A slot with ENGINE_HOT is a hot entry, which must not change before the next
 * engine_step_query or engine_step_logits returned. With no slots a row whose request has failed
 * goes along without harm. */
#define ENGINE_HOT 0x40000000u /* | index of the entry */
int engine_step_attend(struct engine *engine, uint32_t layer, uint32_t row, uint32_t n_slots,
                       const uint32_t *slots, struct hill_why *why);
/* When each row has its list: attention, output projection and FFN, and the next layer's queries or
 * the logits, for all rows. Does not wait. */
int engine_step_run(struct engine *engine, uint32_t layer, struct hill_why *why);
/* Where a device shares the host's memory lists may also be given before the first query is asked
 * for, of any layer, without uploads. When every row has one in every layer, the whole step is run
 * at once: nothing is waited for before engine_step_logits, and the rows' entries are there after
 * it. */
bool engine_steps_ahead(const struct engine *engine);
int engine_step_run_all(struct engine *engine, struct hill_why *why);
/* entry [entry bytes] of the row's token in a layer, after engine_step_run_all and
 * engine_step_logits. */
int engine_step_entry(struct engine *engine, uint32_t layer, uint32_t row, void *entry,
                      struct hill_why *why);
/* logits [n_vocab] of a row (NULL: none are wanted yet); after all layers. Waits. */
int engine_step_logits(struct engine *engine, uint32_t row, float *logits, struct hill_why *why);

/* Wait until the device is idle. */
int engine_finish(struct engine *engine, struct hill_why *why);

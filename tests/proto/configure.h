/*
 * tests/proto/configure.h - a small Configure that fits a layout, for tests of recordings, which
 * begin with one. Pure; c keeps a pointer to s.
 */
#ifndef HILL_TESTS_PROTO_CONFIGURE_H
#define HILL_TESTS_PROTO_CONFIGURE_H

#include "proto/hill.pb-c.h"
#include "proto/layout.h"

static inline void fill_configure(Hill__Configure *c, Hill__Selection *s,
                                  const struct layout_input *layout, uint32_t epoch)
{
    hill__configure__init(c);
    hill__selection__init(s);
    s->alpha = 0.2;
    c->selection = s;
    c->run_id = 1;
    c->epoch = epoch;
    c->model_path = (char *)"model.gguf";
    c->n_layers = layout->geometry.n_layers;
    c->n_heads = layout->geometry.n_heads;
    c->n_kv_heads = layout->geometry.n_kv_heads;
    c->head_dim = layout->geometry.head_dim;
    c->ctx_tokens = layout->ctx_tokens;
    c->n_sequences = layout->n_sequences;
    c->batch_tokens = 8;
    c->threads = 1;
    c->block_tokens = 16;
    c->gpu_slots = c->staging_slots = 64;
    c->n_embd = c->n_ff = 64;
    c->n_vocab = 32;
}

#endif

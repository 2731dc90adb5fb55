/*
 * cpu_scorer/answer.h - what a query has selected, where each entry is, and how it gets to the GPU.
 *
 * What: an answer is one array of items in position order. Each item's location is looked up once;
 * nothing flips between that and the answer. What the GPU lacks takes a GPU slot and a staging slot
 * (an upload) [I12]; hot entries are read in place where the GPU worker can. Gathering brings what
 * is not in staging yet: cold entries by FETCH, hot ones by copies.
 * Who calls it: queries, their holding, and moves. Failure: codes; a FETCH that fails says so in
 * `status`; a staging slot that a lost agent may still write to is not given back in this epoch.
 */
#pragma once

#include "cpu_scorer/agent_port.h"

enum answer_flags {
    ANSWER_UPLOAD = 1,   /* the GPU lacks the entry: it lies, or will lie, in `staging` */
    ANSWER_IN_PLACE = 2, /* it is read where it lies; gpu_slot is SELECTED_HOT | hot slot */
    ANSWER_BRING = 4,    /* it is still to be brought to `staging` */
};

struct answer_item {
    uint32_t position;
    uint32_t location; /* word (hkm.h) */
    uint32_t gpu_slot;
    uint32_t staging;
    uint32_t flags; /* enum answer_flags */
};

struct answer {
    struct core *core;
    struct agent *agent;
    struct answer_item *items; /* [gpu_slots], ascending by position */
    uint32_t *positions;       /* [gpu_slots] the selection; afterwards, scratch */
    uint32_t *slots;           /* [gpu_slots] scratch */
    struct copy_item *copies;  /* [gpu_slots] */
    uint32_t n_items, n_uploads, n_in_place;
    uint32_t n_cold; /* of the uploads: cold entries */
    /* gathering */
    uint32_t n_fetches, n_copies; /* to be brought */
    struct answer_drive {
        uint32_t n_fetches, sent; /* entries */
        uint32_t next;            /* item */
        uint32_t open;            /* commands */
        uint64_t tags[2];         /* of the commands: first, last; 0: none */
        uint32_t together;        /* entries of its command, other rows' among them; 0: its own */
        int64_t sent_ns, done_ns; /* its first command went, its newest answer came */
    } drives[LAYOUT_DRIVES_MAX];
    uint32_t n_fetched;    /* entries */
    uint32_t fetches_open; /* commands */
    bool pushed, copied;   /* all commands are out; the copies are made */
    bool reads;            /* a READ's: what it takes is no part of a step */
    int status;            /* of a fetch */
};

int answer_create(struct answer *a, struct core *core, struct agent *agent);
void answer_destroy(struct answer *a);
uint64_t answer_private_bytes(const struct scorer_config *c);

/* Nothing yet. */
void answer_begin(struct answer *a);
/* Items for positions[0 .. n-1]: what is where. 0, or HILL_E_ENTRY: one is in no tier. */
int answer_locate(struct answer *a, const struct sequence *s, uint32_t layer, uint32_t n);
/* GPU slots for all that is not read in place. 0, or HILL_E_NOSPACE. */
int answer_give_places(struct answer *a, const struct sequence *s, uint32_t layer);
/* Which the GPU lacks and cannot read in place: ANSWER_BRING; its table stays as it is. */
void answer_find_lacking(struct answer *a, const struct sequence *s, uint32_t layer);

/* All items that are to be brought are known: n_fetches, n_copies. */
void answer_plan(struct answer *a);
/* They have staging slots. */
void answer_list_copies(struct answer *a);
/* Bring them: 1 done, 0 not yet, negative: failed, or the agent lost. */
int answer_gather(struct answer *a, struct sequence *s, const struct record_header *header);
/* The first part of it: 1: all commands are out; 0: no room now. */
int answer_push_fetches(struct answer *a, const struct record_header *header);
/* All that it lacks of a drive, into a FETCH of `together` entries with this tag: the items. */
void answer_join_fetch(struct answer *a, uint32_t drive, struct fetch_item *items, uint64_t tag,
                       uint32_t together);
/* A completion of a FETCH. One of several rows that has failed is asked for again, alone. */
void answer_take_fetch(struct answer *a, struct sequence *s, uint32_t layer,
                       const struct record_completion *r);

/* The staged entry of a position that came from the drive, or NULL. */
const void *answer_staged(const struct answer *a, uint32_t position);

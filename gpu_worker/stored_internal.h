/* gpu_worker/stored_internal.h - what stored.c and stored_leave.c share. See stored.h. */
#pragma once

#include "gpu_worker/request.h"
#include "prefix/drive_store.h"

struct stored {
    uint64_t settings, owner;
    uint8_t *room; /* of one slot when taken from, of `group` when left */
    /* taken */
    struct drive_chunk *chunks; /* [hit.n_chunks] */
    struct chunk_hit hit;
    uint32_t next; /* chunk */
    bool read;     /* that one, into room: next_n tokens, which took next_cost us to compute */
    uint32_t next_n;
    double next_cost;
    int64_t due; /* when a modelled drive has it */
    int64_t begun_ns;
    /* left */
    struct drive_chunk parent; /* the chunk before `first`; stamp 0: none */
    uint32_t first, n_entries; /* position of the next chunk; entries that there are */
    uint32_t group, in_group;  /* chunks that are read together: at most, and these; 0: none yet */
    uint32_t layer, token;     /* of the group: what is read next */
    uint32_t n_tokens;         /* of the group */
    uint32_t put;              /* chunks of it that are written */
    uint32_t read_id, asked;   /* the READ under way: entries, 0: none */
    int64_t asked_ns;
    bool handed_over;      /* all that is left was given to the writer */
    uint64_t given;        /* jobs that it had then */
    int64_t wait_until_ns; /* for the writer; 0: it has not been waited for */
    bool waits;            /* for the writer, in this turn */
    int rc;                /* why entries cannot be had */
    struct hill_why why;
};

/* What a drive reads for these bytes of a file: whole pages. */
uint64_t stored_pages(uint64_t at, uint64_t bytes);
/* When a modelled drive has read so much more; without one: now. */
int64_t stored_charge(struct worker *w, uint64_t bytes);

/* With what is the same for both. NULL: no memory. */
struct stored *stored_make(const struct request *r);

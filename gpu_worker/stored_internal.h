/* gpu_worker/stored_internal.h - what stored.c and stored_leave.c share. See stored.h. */
#ifndef HILL_GPU_WORKER_STORED_INTERNAL_H
#define HILL_GPU_WORKER_STORED_INTERNAL_H

#include "gpu_worker/request.h"
#include "prefix/drive_store.h"

struct stored {
    uint64_t settings, owner;
    uint8_t *room; /* of one slot when taken from, of `group` when left */
    /* taken */
    struct drive_chunk *chunks; /* [hit.n_chunks] */
    struct chunk_hit hit;
    uint32_t next; /* chunk */
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

/* With what is the same for both. NULL: no memory. */
struct stored *stored_make(const struct request *r);

#endif

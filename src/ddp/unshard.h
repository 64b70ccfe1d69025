/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters that are divided among the ranks between two uses (zero 3); see unshard.c. */
#ifndef LS_DDP_UNSHARD_H
#define LS_DDP_UNSHARD_H

#include <lockstep/comm.h>

#include "tensor/fill.h"

struct ls__ddp;

enum { LS__UNSHARD_FORWARD, LS__UNSHARD_BACKWARD, LS__UNSHARD_WAYS };

typedef struct ls__unshard_param {
    ls__keeper keeper;
    struct ls__ddp *ddp;
    int index;
    /* In the first forward pass that read it, and backward, the parameters that had been read
     * before … */
    int first[LS__UNSHARD_WAYS]; /* … its first read; -1: it was not read */
    int last[LS__UNSHARD_WAYS];  /* … and its last one, itself included */
    int pass[LS__UNSHARD_WAYS];  /* … the number of that pass */
} ls__unshard_param;

typedef struct ls__unshard_bucket {
    ls_work *work;               /* its gathering, not waited for yet */
    char *block;                 /* where it is gathered; NULL: in its own memory */
    ls__storage *lent;           /* … of the device's pool; NULL: the reducer's */
    bool whole;                  /* all of its elements are on this rank */
    bool read;                   /* in the pass under way */
    bool reached;                /* the backward under way reaches all of its parameters */
    bool seen;                   /* … or were in this step, whose ranks compare them */
    int place[LS__UNSHARD_WAYS]; /* in the order of first reads */
    int last[LS__UNSHARD_WAYS];  /* the last read is before the first one of the place after this */
} ls__unshard_bucket;

/* Zero: elements are not divided. */
typedef struct ls__unshard {
    ls__unshard_param *params;   /* [param_count]; NULL: zero is not 3 */
    ls__unshard_bucket *buckets; /* [count]; NULL: everything is whole, and reads are noted */
    int count;
    int *order[LS__UNSHARD_WAYS]; /* [count] the bucket at each place */
    size_t bytes;                 /* of the tables of buckets */
    ls_group *group;              /* gathers; borrowed from the reducer */
    ls__pool *on;                 /* the device in whose memory they are; NULL: the program's */
    int read[LS__UNSHARD_WAYS];   /* parameters that were read, while reads are noted … */
    int passes;                   /* … in so many passes */
    bool inside;                  /* a forward or a backward is under way: */
    int way;
    bool ends;       /* a backward that synchronises: elements go after their last read */
    int at;          /* the furthest place that was read, or is now */
    uint32_t within; /* ls__self.crossings at the last read */
    int round;       /* gatherings of all buckets in this step; Note [Rounds] */
    int started;     /* places of the round that were begun */
    bool pinned;     /* whole until ls_ddp_release, or a step of the optimizer */
} ls__unshard;

/* Watches the reads of parameters. LS_ERR_UNSUPPORTED for one that is part of a larger tensor. */
ls_status ls__unshard_open(struct ls__ddp *d);
/* The layout is final: from now on elements are divided. Collective. */
ls_status ls__unshard_begin(struct ls__ddp *d);
/* Around a forward pass; false: it is part of another pass, and has no end. */
bool ls__unshard_forward_begin(struct ls__ddp *d);
ls_status ls__unshard_forward_end(struct ls__ddp *d);
/* Around a backward; `ends`: it synchronises. */
void ls__unshard_backward_begin(struct ls__ddp *d, bool ends);
/* In a step whose ranks compare parameters: makes the wrapper's hashes those of what this rank has
 * gathered. False: it has not seen all of them. */
bool ls__unshard_look(struct ls__ddp *d);
ls_status ls__unshard_backward_end(struct ls__ddp *d);
/* The pass has failed, and the group with it. */
void ls__unshard_abort(struct ls__ddp *d);
/* This rank's elements were changed: those of other ranks are old. */
void ls__unshard_changed(struct ls__ddp *d);
/* Everything becomes whole, until it is unpinned or changed. Collective. */
ls_status ls__unshard_pin(struct ls__ddp *d);
ls_status ls__unshard_unpin(struct ls__ddp *d);
/* Ends the gathering. Elements of other ranks are undefined from then on. */
void ls__unshard_close(struct ls__ddp *d);
/* Frees the tables, also after the runtime has ended. */
void ls__unshard_drop(struct ls__ddp *d);

#endif

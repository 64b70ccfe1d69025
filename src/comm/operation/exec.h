/* SPDX-License-Identifier: Apache-2.0 */
/* One operation being run: its program, bound to buffers, and how far each lane has come. */
#ifndef LS_COMM_OPERATION_EXEC_H
#define LS_COMM_OPERATION_EXEC_H

#include "comm/core/group.h"

/* A data step yields to other groups after it has read and written this much: some 0.2 ms. */
#define LS__PIECE_BYTES ((size_t)4 << 20)
#define LS__TURN_BYTES ((int64_t)1 << 20) /* a group yields after operations of this many */
/* Of MESSAGES programs: small, so that what was received is reduced while it is in the cache, but
 * with chunks that are worth a message. Bounds the scratch. */
#define LS__MESSAGE_SLICE_BYTES ((size_t)1 << 20)
#define LS__MESSAGE_CHUNK_BYTES ((size_t)64 << 10)
#define LS__MESSAGE_SLICE_MAX ((size_t)4 << 20)
#define LS__RUNS_MAX LS__CHANNELS_MAX /* also room for the STAGE slots */

typedef enum ls__result {
    LS__BLOCKED, /* nothing could be done */
    LS__MOVED,   /* something was, more is to do */
    LS__COMPLETE
} ls__result;

typedef struct ls__lane {
    int step;      /* steps before this one (an index within the lane) are complete */
    int64_t moved; /* elements of the current one; FENCE: 1 + members seen; SEND, RECV: bytes */
} ls__lane;

/* A program over one slice of the operation. */
typedef struct ls__run {
    bool active;
    int slot;        /* its index in exec->run, and of its part of the scratch */
    uint64_t number; /* of all runs of the group, from 1 */
    const ls__program *program;
    int64_t start, count; /* the slice, in elements (of each block, where there are blocks) */
    int64_t quantum;      /* elements of a full chunk */
    uint64_t slice;       /* STAGED: its number in the group, from 1 */
    ls__lane lane[LS__PROGRAM_LANES_MAX];
} ls__run;

typedef enum ls__exec_state {
    LS__EXEC_IDLE,
    LS__EXEC_MEET, /* fence 0 of the operation: until all have announced it */
    LS__EXEC_RUN,
    LS__EXEC_FAILED /* it cannot go on here: until the group has failed, which another rank may be
                       telling */
} ls__exec_state;

struct ls__exec {
    ls__exec_state state;
    ls_work *work;    /* first of the group's queue */
    int met;          /* members that have announced it, counted from member 0 */
    bool divide_last; /* the program reduces in several steps: divide at the end */
    uint64_t refused; /* the operation whose operator has failed; 0: none */
    bool begun;       /* the first slice: an operation of no elements has one, too */
    int64_t next;     /* start of the first slice not begun */
    int64_t slice;    /* elements of a full slice */
    int runs;         /* how many of `run` the operation uses: slices at the same time */
    uint64_t run_number;
    ls__run run[LS__RUNS_MAX];
    unsigned char **input, **output, **stage; /* [size] of each member, in our address space */
    void **dst;                               /* [size] */
    const void **src;                         /* [size] */
    unsigned char *scratch;                   /* [runs] of scratch_each bytes */
    size_t scratch_bytes, scratch_each;
    size_t scratch_element; /* bytes; Note [Wide programs] */
};

_Static_assert(LS__RUNS_MAX >= LS__SLICE_SLOTS, "a run for each slot");

/* The STAGE slot that a slice of the operation in progress takes: Note [Slices]. */
static inline int ls__stage_slot(const ls__exec *exec, uint64_t slice)
{
    return (int)(slice % (uint64_t)exec->runs);
}

/* Whether a step of another lane must be complete first. */
static inline bool ls__step_waits(const ls__run *run, const ls__step *step)
{
    return step->wait_lane >= 0 && run->lane[step->wait_lane].step <= step->wait_step;
}

/* Bytes of a copied result from which it goes past the caches: Note [Past the caches]. */
int64_t ls__past_caches(const ls__env *env);
/* exec_step.c: a bounded piece of the lane's current step. */
ls__result ls__step_run(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane);

/* exec_reduce.c: ls__reduce for the operation. false: the user's operator failed, and so does the
 * group; what is at `dst` must not be used. */
bool ls__exec_reduce(ls_group *group, const ls_work *work, const ls__reduce_args *args);

/* chunks.c: cutting an operation into slices and chunks. */

/* Where a ref lies and how many elements it has in this run. */
unsigned char *ls__ref_at(const ls__exec *exec, const ls__run *run, ls__ref ref, int64_t *count);
/* Bytes of an element where the ref lies. */
static inline size_t ls__ref_element(const ls__exec *exec, ls__ref ref)
{
    return ref.buffer == LS__BUFFER_SCRATCH ? exec->scratch_element : exec->work->element;
}
/* Elements of a full chunk in a slice of `count`. */
int64_t ls__chunk_quantum(const ls_work *work, const ls__program *program, int64_t count);

/* How many slices run at the same time. */
int ls__slices_at_once(const ls_work *work, const ls__program *program);
int64_t ls__slice_of(const ls_work *work, const ls__program *program);
/* Memory for all slices that run at the same time; false: there is none. */
bool ls__scratch_make(ls_group *group, const ls__program *program, int64_t quantum);

/* bind.c */

void ls__run_init(ls__run *run, const ls__program *program, uint64_t slice);
/* Where everybody's buffers are, as this process sees them. */
void ls__exec_bind(const ls_group *group, ls__exec *exec);

#endif

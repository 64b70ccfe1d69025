/* SPDX-License-Identifier: Apache-2.0 */
/* The interpreter's state, shared by check.c (threads, slices), check_step.c (effects of steps) and
 * check_result.c (expected results). */
#ifndef LS_COMM_PROGRAM_CHECK_RUN_H
#define LS_COMM_PROGRAM_CHECK_RUN_H

#include "base/compiler.h"
#include "comm/program/check.h"

#define LS__CHECK_SLICES_MAX 3 /* a STAGE slot is used again in the third slice */

typedef struct ls__check_message ls__check_message;
struct ls__check_message {
    ls__value value;
    bool wide;       /* elements of the accumulation dtype */
    uint32_t *clock; /* of the sender */
    ls__check_message *next;
};

typedef struct ls__check_stream { /* from one rank to another on one lane */
    ls__check_message *first, *last;
    int count;
} ls__check_stream;

typedef struct ls__check_thread { /* a lane of a rank */
    int rank, lane, index;
    int next, count; /* steps of the lane */
    bool offered;    /* the next step began and cannot end yet (a fence; a send at capacity 0) */
    bool published;  /* fence 0 is known to be passed */
    uint32_t *clock;
} ls__check_thread;

typedef struct ls__check_rank {
    int slice;
    int fences_reached;
    uint32_t start_clock[LS__CHECK_SLICES_MAX]; /* of lane 0; 0: not begun */
    bool *awaited;                              /* [steps]: another lane waits for this step */
    uint32_t **done_clock;                      /* [steps]: the clock after an awaited step */
} ls__check_rank;

typedef struct ls__check_fence {
    int arrived;
    bool *reached; /* [size] */
    uint32_t *clock;
} ls__check_fence;

typedef struct ls__checker {
    ls__program *const *programs;
    int size, capacity, root;
    bool in_place, wide; /* in_place: where a program fits both */
    ls__operation operation;
    ls__memory memory;
    int chunks, lanes, slices, fences, threads, cells_per_rank;
    ls__arena arena;
    ls__values values;
    ls__memory_model model;
    ls__check_thread *thread; /* [size * lanes] */
    ls__check_rank *rank;     /* [size] */
    ls__cell *cells;          /* [size * cells_per_rank] */
    ls__check_stream *streams;
    ls__check_fence *fence; /* [slices * fences] */
    ls__check_message *spare_message;
    ls__value *agreed; /* [slices * chunks]: the value with which every rank must end; 0: unknown */
    ls_status status;
} ls__checker;

/* Both set the error and return false. fail_at names the thread's step. */
bool ls__check_fail(ls__checker *c, const char *format, ...) LS__PRINTF(2, 3);
bool ls__check_fail_at(ls__checker *c, const ls__check_thread *t, const char *format, ...)
    LS__PRINTF(3, 4);

ls__cell *ls__check_cell(ls__checker *c, ls__ref ref, int slice);
bool ls__check_ref_exists(const ls__checker *c, ls__ref ref);
void ls__check_join(const ls__checker *c, uint32_t *into, const uint32_t *from);
uint32_t *ls__check_clock_copy(ls__checker *c, const uint32_t *clock);

/* Runs the thread's next step; false when it cannot run yet, or failed. */
bool ls__check_run_step(ls__checker *c, ls__check_thread *t);
/* Runs all programs to their ends. */
void ls__check_run(ls__checker *c);
/* Whether the outputs of rank r, at the end of its slice, are what the operation promises. */
void ls__check_result(ls__checker *c, int r);

static inline bool ls__check_in_place(const ls__checker *c, int rank)
{
    return c->in_place ? c->programs[rank]->fits[1] : !c->programs[rank]->fits[0];
}

static inline const ls__step *ls__check_step(const ls__checker *c, const ls__check_thread *t)
{
    const ls__program *p = c->programs[t->rank];
    return &p->steps[p->lane_start[t->lane] + t->next];
}

static inline ls__check_stream *ls__check_stream_of(const ls__checker *c, int from, int to,
                                                    int lane)
{
    return &c->streams[((size_t)from * (size_t)c->size + (size_t)to) * (size_t)c->lanes +
                       (size_t)lane];
}

#endif

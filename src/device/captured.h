/* SPDX-License-Identifier: Apache-2.0 */
/* A captured step (lockstep/captured.h), as the operations in it see it.
 *
 * Note [Captured steps]
 * A device that can capture records the kernels that a thread starts instead of running them, and
 * starts all of them again by one call: a replay. What differs from one replay to the next lies in
 * slots of the device's memory, which one copy fills before it:
 *
 *     numbers   a learning rate with the step's corrections; the stream of a dropout. Kernels read
 *               the slot in place of their argument. `renew` gives the number of a replay, and does
 *               what else the operation does on the host: it counts a step, a draw, or begins
 *               the context of a micro-batch.
 *     results   what kernels have found out and the program must hear: an index outside of its
 *               table, the gradients' norm. They are read with the losses, and `take` says it.
 *
 * The second run of a step is watched: it counts slots, and an operation that waits for the device
 * or reads its memory there says so (ls__captured_refuse). The step is then never captured.
 *
 * Who exchanges between ranks in the step joins it (ls__captured_join). From the next run on the
 * ranks agree before each run what it is, and a check that fails on one rank holds for all. */
#ifndef LS_DEVICE_CAPTURED_H
#define LS_DEVICE_CAPTURED_H

#include <lockstep/random.h>

#include "base/runtime.h"
#include "device/device.h"

#define LS__CAPTURED_SLOT 32 /* bytes */

typedef struct ls__captured_number ls__captured_number;
struct ls__captured_number {
    /* Writes the number of the next replay. On failure nothing is started. */
    ls_status (*renew)(const ls__captured_number *number, void *slot);
    void (*undo)(const ls__captured_number *number); /* what renew counted; NULL: nothing */
    void *of;
    int64_t which;
    /* Whether the next run may be a replay; NULL: it may. */
    bool (*fits)(const ls__captured_number *number);
    int checks; /* results that were asked for before it */
};

typedef struct ls__captured_result ls__captured_result;
struct ls__captured_result {
    /* The slot of a check begins with an int64_t, which is below 0 when all is well: else the step
     * of no optimizer that follows is made. NULL: nobody needs to know it. */
    ls_status (*take)(const ls__captured_result *result, const void *slot);
    void (*drop)(void *of); /* when the step is forgotten; NULL: nothing to do */
    void *of;
    int64_t which;
    bool is_gate;
};

/* What a run of a step is. */
typedef enum ls__captured_act {
    LS__CAPTURED_PLAIN, /* made as any program's */
    LS__CAPTURED_WATCH,
    LS__CAPTURED_RECORD,
    LS__CAPTURED_REPLAY
} ls__captured_act;

typedef struct ls__captured_vote {
    ls__captured_act act;
    int refuses;       /* 0: this rank can record it; after a vote: the first that cannot, from 1 */
    uint64_t step;     /* the number that it got when it was joined */
    uint64_t recorded; /* number of the recording; 0: none; after a vote UINT64_MAX: they differ */
    /* After a vote: why this rank can only make this run plainly; NULL: nothing to say. */
    const char *held;
} ls__captured_vote;

/* The ranks of a step, as ls_ddp_new has them (ddp/captured.c). All but `share` are collective or
 * local calls outside of the step. */
typedef struct ls__captured_ranks ls__captured_ranks;
struct ls__captured_ranks {
    uint64_t steps; /* that were joined */
    /* A run begins. In: what this rank wants; out: what all do. */
    ls_status (*vote)(ls__captured_ranks *ranks, ls__captured_vote *vote);
    /* The step was recorded, or not. *failed: the first rank on which it was not, from 1; 0: on
     * none. An error where what was recorded differs. */
    ls_status (*recorded)(ls__captured_ranks *ranks, bool well, int *failed);
    /* A replay was given to the device. */
    ls_status (*replayed)(ls__captured_ranks *ranks, uint64_t step, uint64_t recorded);
    /* What the device has done counts, unless this is an error. */
    ls_status (*status)(const ls__captured_ranks *ranks);
    /* This rank cannot go on with what the ranks have agreed on. */
    void (*abort)(ls__captured_ranks *ranks, ls_status status, const char *message);
    /* In the step: *worst becomes the largest of all ranks'. */
    ls_status (*share)(ls__captured_ranks *ranks, int64_t *worst);
    int (*rank)(const ls__captured_ranks *ranks); /* in the world */
};

typedef struct ls__captured_gradient ls__captured_gradient; /* tensor/gradients.h */

typedef struct ls__captured {
    const ls__device *device;
    ls__captured_ranks *ranks; /* NULL: nobody has joined */
    uint64_t step;             /* its number among those of `ranks` */
    uint64_t noticed;          /* exchanges of this run that `ranks` has made */
    uint64_t contexts;         /* of steps, which this run has begun so that replays begin them */
    const ls_step_context *context; /* the last of them; NULL: none */
    ls_step_context begun;          /* what it was */
    bool draws_before;              /* a run has drawn numbers before its first context */
    uint32_t run;                   /* the number of the run under way in this process */
    const void *adds_up; /* the wrapper whose gradients it has added up and not averaged */
    bool records;        /* else it watches */
    void *blocks;        /* where memory comes from while it records (tensor/storage.c) */
    char why[256];       /* it cannot be captured; "": nothing speaks against it */
    ls__captured_number *numbers;
    ls__captured_result *results;
    int number_count, result_count; /* so far in this run */
    int number_room, result_room;
    ls__captured_gradient *gradients; /* [gradient_room] that the recorded run has met */
    int gradient_count, gradient_room;
    bool gated;   /* the checks so far decide whether the step is made */
    char *memory; /* the device's: slots of numbers, then of results */
    char *values; /* [number_room] slots, on the host: of the next replay */
} ls__captured;

/* Whether this thread's kernels are being recorded. */
static inline bool ls__captured_records(void)
{
    return ls__self.captured != NULL && ls__self.captured->records;
}

/* A number of the step that is under way, with its value in the run that records it. Returns its
 * slot; NULL: the argument holds. */
const void *ls__captured_number_add(const ls__captured_number *number, const void *value,
                                    size_t bytes);
/* Room for a result of the step that is under way; takes result->of, if it records. Returns its
 * slot, which is the device's; NULL: it does not record. */
void *ls__captured_result_add(const ls__captured_result *result);
/* From here on kernels of optimizers look whether the step is to be made: all checks so far are
 * well, and so is the norm of gradients, if one is asked for. slot: int64_t -1, the norm as
 * float64, the factor as float32. args gives the norm's part. NULL: it does not record. */
void *ls__captured_gate(const ls__captured_result *result, ls__step_gate args);
/* For the run under way, of whatever kind: ranks exchange in it, so they agree on it. */
void ls__captured_join(ls__captured_ranks *ranks);
/* The step under way does what cannot be recorded: `what` names it. The first one stays. */
void ls__captured_refuse(const char *what);
/* For a read that the step makes in another way when it is recorded: until resumed, none is
 * watched. */
ls__captured *ls__captured_pause(void);
void ls__captured_resume(ls__captured *paused);

/* Around the program's function, in runs of whatever kind, one within the other. */
ls__captured *ls__captured_begin(ls__captured *captured);
void ls__captured_end(ls__captured *outer);
/* The run under way, of whatever kind, begins this context, or draws random numbers. */
void ls__captured_context(const ls_step_context *context);
void ls__captured_drew(void);
/* Begins a run of the step on this thread that is watched or recorded; ends it. */
void ls__captured_enter(ls__captured *captured, bool records);
void ls__captured_leave(void);
/* Room for what the last run has counted. LS_ERR_MEMORY. */
ls_status ls__captured_make_room(ls__captured *captured);
/* Whether the next run may be a replay. */
bool ls__captured_fits(const ls__captured *captured);
/* The numbers of the next replay, in captured->values. What was counted is undone on failure. */
ls_status ls__captured_renew(ls__captured *captured);
/* What was counted after this check; -1: all of it. */
void ls__captured_undo(const ls__captured *captured, int check);
/* The first result, of slots on the host, that somebody must hear of. *check: the one that has held
 * back what follows, which is the same on all ranks. */
ls_status ls__captured_take(const ls__captured *captured, const char *slots, int *check);
void ls__captured_forget(ls__captured *captured);

#endif

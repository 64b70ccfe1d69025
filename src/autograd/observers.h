/* SPDX-License-Identifier: Apache-2.0 */
/* Observers of backward passes, for the layers above.
 *
 * An observer (DistributedDataParallel's reducer) owns some parameters: leaves whose `observer` and
 * `observer_index` are set. ls_backward, before it computes anything, counts the accumulations
 * every parameter will receive and calls begin once per observer that this thread has armed or the
 * pass reaches (ls_backward_from: reaches), with the bitmap of its parameters that will be reached;
 * ready once per reached parameter, when its count is complete and its gradient is in place; end
 * after the last node, whose status ls_backward returns. If the pass fails after begin, abort is
 * called instead of end. Of a backward in two parts (parts.c) only the second calls an observer.
 */
#ifndef LS_AUTOGRAD_OBSERVERS_H
#define LS_AUTOGRAD_OBSERVERS_H

#include <lockstep/autograd.h>

#include "autograd/walk.h"
#include "base/list.h"
#include "tensor/graph.h"

typedef struct ls__observer ls__observer;

typedef struct ls__backward_info {
    const uint8_t *used; /* [param_count] */
    bool weighted;
    double weight;
} ls__backward_info;

struct ls__observer {
    ls__list link; /* in the runtime's list; ls__observer_add / _remove */
    int param_count;
    /* Written by `usable`. local: steps use gradients of this rank alone; agrees: its ranks make
     * the same steps, Note [Agreement]. */
    bool local, agrees;
    struct ls_group *group; /* its ranks compare their settings in each synchronised backward */
    bool elsewhere;         /* steps are made on servers: those of this rank's loop do nothing */
    /* The thread whose forward went through its module: begin is due in that thread's next pass
     * even if nothing is reached. NULL: none. Sync: relaxed; another thread only compares it. */
    _Atomic(const void *) armed;
    ls_status (*begin)(ls__observer *self, const ls__backward_info *info);
    ls_status (*ready)(ls__observer *self, int index);
    ls_status (*end)(ls__observer *self);
    void (*abort)(ls__observer *self, ls_status status, const char *message);
    /* Whether an optimizer may use the gradients now: LS_OK, or LS_ERR_STATE in words when they
     * were accumulated but never synchronised or the last synchronisation failed. NULL: always. */
    ls_status (*usable)(ls__observer *self);
    /* Returns where a pass marks, before begin, the rows of a table that it will reach. NULL,
     * returned or instead of the function: nowhere. */
    ls__rows *(*rows)(ls__observer *self, int index);
    /* Before the gradient of a parameter that has none is written, which may have another place
     * from then on (ls__param_place_grad). May be NULL. */
    ls_status (*writes)(ls__observer *self, int index);
    /* Called after an optimizer step with its duration. May be NULL. */
    void (*stepped)(ls__observer *self, uint64_t ns);
    /* Averages, and what an optimizer keeps for them, are divided among the ranks of this group:
     * the elements of a parameter that `owned` gives are this rank's. NULL: every rank has all. */
    struct ls_group *owners;
    /* Whether this rank of `owners` is among those that divide a parameter. NULL: all are. */
    bool (*divides)(ls__observer *self, int index, int world_rank);
    void (*owned)(ls__observer *self, int index, int64_t *from, int64_t *count);
    /* With `owners`: an optimizer has changed this rank's elements of a parameter; and it has done
     * so with all of its parameters, whose other elements the other ranks then give. */
    void (*updated)(ls__observer *self, int index);
    ls_status (*share)(ls__observer *self);
};

ls_status ls__observer_add(ls__observer *observer);
/* The one that was added after `observer` (NULL: the first); NULL: it was the last. */
ls__observer *ls__observer_after(const ls__observer *observer);
void ls__observer_remove(ls__observer *observer);

/* ---- during a pass, called by the engine ----------------------------------------------------- */

ls_status ls__observers_reached(ls__autograd_pass *pass, ls__leaf *leaf); /* while planning */
/* After planning, for observers that ask which rows of tables the pass will reach. */
void ls__observers_mark_rows(const ls__autograd_pass *pass, const ls__autograd_walk *walk);
ls_status ls__observers_begin(ls__autograd_pass *pass);
ls_status ls__observers_ready(const ls__leaf *leaf);
ls_status ls__observers_end(ls__autograd_pass *pass);
/* Tells every observer that takes part, or was armed, the error of this thread. */
void ls__observers_abort(ls__autograd_pass *pass, ls_status status);
void ls__observers_drop(ls__autograd_pass *pass);

#endif

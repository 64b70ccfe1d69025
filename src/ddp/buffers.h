/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of a replicated module: the tensors that forward passes change beside the parameters
 * (running statistics of batch norm). Every rank gets one rank's, rank 0's as a rule. See
 * buffers.c. */
#ifndef LS_DDP_BUFFERS_H
#define LS_DDP_BUFFERS_H

#include <lockstep/comm.h>
#include <lockstep/nn.h>

#include "base/env.h"

typedef struct ls__buffers {
    const ls__env *env;
    ls_group *group; /* borrowed */
    ls_tensor **list;
    int count; /* 0: there is nothing to do */
    size_t list_bytes;
    char *flat; /* [bytes] all of them in a row, registered */
    int root;   /* whose values the others get */
    size_t bytes;
    ls_work *work; /* under way */
} ls__buffers;

/* All zero is a valid, empty state. Lists the buffers below `module`; collective in that all ranks
 * do it. Frees nothing when it fails: fini does. */
ls_status ls__buffers_init(ls__buffers *b, const ls__env *env, ls_module *module, ls_group *group);
void ls__buffers_fini(ls__buffers *b);
void ls__buffers_drop(ls__buffers *b); /* the table only, after the runtime has ended */

/* Packs this rank's values; they must not be on their way. */
ls_status ls__buffers_note(ls__buffers *b);
/* Gives the buffers the values that were noted last. */
ls_status ls__buffers_take_back(ls__buffers *b);

/* Begins to broadcast those of `root`; they must not change until finish, which waits and puts them
 * in place. A finish without a start does nothing. */
ls_status ls__buffers_start(ls__buffers *b, int root);
ls_status ls__buffers_finish(ls__buffers *b);

#endif

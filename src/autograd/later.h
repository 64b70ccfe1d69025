/* SPDX-License-Identifier: Apache-2.0 */
/* What a backward pass in two parts has put off (parts.c): a list, in the order in which it will
 * run. */
#ifndef LS_AUTOGRAD_LATER_H
#define LS_AUTOGRAD_LATER_H

#include <lockstep/autograd.h>

#include "tensor/graph.h"

typedef struct ls__put_off { /* one of: */
    ls__tensor_node *node;   /* what its edges still want of its gradient … */
    ls__edge edge;           /* … or, node NULL, a contribution that is computed; holds a leaf */
    ls__storage *grad;       /* NULL: none; that of a node which does not lead is in the node */
} ls__put_off;

typedef struct ls__later { /* in a storage, which a scope owns between the parts */
    ls__storage *self, *memory;
    int64_t count, room;
    ls_scope *first, *last; /* of recomputed segments, linked by parent */
    bool weighted, taken;   /* taken: no scope has it */
    double weight;
    const char *file; /* of the input part */
    int line;
    ls__tensor_node *input[LS_CALL_TENSORS_MAX]; /* leaves that are marked, with references */
    int inputs;
} ls__later;

static inline ls__put_off *ls__later_items(const ls__later *later)
{
    return later->memory != NULL ? later->memory->data : NULL;
}

/* An empty list. NULL with the error set. */
ls__later *ls__later_new(ls__tensors *tensors, bool weighted, double weight);
void ls__later_free(ls__later *later); /* NULL is allowed */
/* Takes the references of `item`, also when it fails. */
ls_status ls__later_put(ls__tensors *tensors, ls__later *later, const ls__put_off *item);
/* Takes the innermost scope, which has nodes of the list, from this thread's stack. */
void ls__later_hold(ls__later *later, ls_scope *scope);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Walks through a graph; see walk.c. */
#ifndef LS_AUTOGRAD_WALK_H
#define LS_AUTOGRAD_WALK_H

#include "tensor/graph.h"

typedef struct ls__autograd_pile { /* a growing array of nodes, in cached memory */
    ls__storage *memory;
    ls__tensor_node **at;
    int64_t count, room;
} ls__autograd_pile;

typedef enum ls__autograd_count { /* of the accumulations that leaves will receive */
                                  LS__COUNT_NOT,
                                  LS__COUNT_ANEW,
                                  LS__COUNT_ON, /* on top of what was counted */
} ls__autograd_count;

typedef struct ls__autograd_walk {
    const char *name; /* of the public call */
    ls__tensors *tensors;
    uint64_t number; /* marks the nodes it meets; no other walk has it */
    uint64_t border; /* nodes made up to here are outside; 0: only leaves are */
    ls__autograd_count count;
    ls__autograd_pile order;   /* the operations inside, latest first */
    ls__autograd_pile outside; /* leaves and older nodes, each once */
    ls__autograd_pile heap;
} ls__autograd_walk;

/* Makes room for one more element of `bytes` behind `count`, in cached memory that replaces
 * *memory. */
ls_status ls__pile_grow(ls__tensors *tensors, ls__storage **memory, int64_t count, int64_t *room,
                        size_t bytes);

/* Walks begin at the roots that were added. */
ls_status ls__walk_add(ls__autograd_walk *walk, ls__tensor_node *root);
ls_status ls__walk_run(ls__autograd_walk *walk);
void ls__walk_fini(ls__autograd_walk *walk);

#endif

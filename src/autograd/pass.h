/* SPDX-License-Identifier: Apache-2.0 */
/* The state of autograd in one runtime, and of one backward pass: roots.c checks its arguments,
 * walk.c plans it, engine.c runs it, accumulate.c adds gradients up, observers.c notifies the
 * layers above. */
#ifndef LS_AUTOGRAD_PASS_H
#define LS_AUTOGRAD_PASS_H

#include "autograd/later.h"
#include "autograd/observers.h"
#include "autograd/walk.h"

typedef struct ls__autograd { /* of one runtime */
    ls__list observers;
    _Atomic uint64_t passes; /* Sync: atomic; threads may run passes of their own at once */
} ls__autograd;

ls__autograd *ls__autograd_get(const char *what);     /* NULL with the error set */
uint64_t ls__autograd_number(ls__autograd *autograd); /* of a new pass or walk */

typedef struct ls__autograd_watch { /* an observer's part in this pass */
    ls__observer *observer;
    ls__storage *used; /* uint8_t [param_count] */
    bool begun;
} ls__autograd_watch;

typedef struct ls__autograd_root { /* a tensor at which a pass begins */
    ls__edge edge;                 /* where its gradient goes */
    ls__pool *on;                  /* the tensor's */
    const ls__record *dy;          /* that gradient, as it was given; NULL: the weight */
    ls__storage *grad;             /* a copy, until it is added */
    double share;                  /* of the weight, that this rank gives (tensor/placement.h) */
} ls__autograd_root;

#define LS__OBSERVERS_MAX 64 /* in one pass; a pipeline stage has one per replica group */

struct ls__autograd_pass {
    const char *name; /* of the public call */
    ls__tensors *tensors;
    ls__autograd *autograd;
    uint64_t number;
    bool weighted;
    double weight;
    ls__part part;
    bool retains;     /* another pass will go through the graph */
    ls__later *later; /* in parts: what is put off */
    bool divides;     /* every leaf must have an observer, which divides by the weights */
    bool lit;         /* of weight 0, but other ranks' losses gave gradients */
    bool cut; /* other passes go through the rest of the graph: only what is reached takes part */
    ls__autograd_root root[LS_CALL_TENSORS_MAX]; /* where the pass begins */
    int roots;
    ls__storage *one; /* their gradient in a pass of weight 1, never written to; NULL: not needed */
    ls__autograd_pile order; /* every reached operation, latest first */
    ls__storage *freed;      /* the text of tensors that were freed on the way; NULL: none */
    ls__autograd_watch watch[LS__OBSERVERS_MAX];
    int watched;
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks: what all kinds of them have in common, and those of gradients; see hooks.c. */
#ifndef LS_AUTOGRAD_HOOKS_H
#define LS_AUTOGRAD_HOOKS_H

#include <lockstep/autograd.h>

#include "tensor/graph.h"

struct ls_hook {                   /* the first member of each kind */
    void (*remove)(ls_hook *self); /* takes it off its owner and frees it */
};

/* The gradient of a leaf, or of an operation's output, is final: its hooks look at it. */
ls_status ls__grad_hooks_run(ls__tensor_node *node);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers: stacks of their own within one thread of the system, switched by hand. */
#ifndef LS_SIM_FIBER_H
#define LS_SIM_FIBER_H

#include <stddef.h>

typedef struct ls__fiber_context {
    void *sp; /* where it stopped */
    /* Of sanitizers. */
    void *stack;
    size_t bytes;
    void *fake;
} ls__fiber_context;

/* A context that will call fn(arg), which must not return, on the stack given. */
void ls__fiber_prepare(ls__fiber_context *context, void *stack, size_t bytes, void (*fn)(void *arg),
                       void *arg);
/* Stops here, in `from`, and goes on in `to`. `last`: `from` will not be gone on with. */
void ls__fiber_switch(ls__fiber_context *from, ls__fiber_context *to, int last);

#endif

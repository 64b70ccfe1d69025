/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of leaves in a captured step (device/captured.h).
 *
 * A replay writes, adds to and reads gradients where those of the recorded run lay, whether they
 * are there or not. So the recorded run notes of each leaf whether its gradient was there when it
 * was first met, and where; and the same at its end. A run that finds another gradient, or none, is
 * made as without a capture; one that finds it in other memory copies it. After a replay the
 * program finds gradients as after the recorded run, and may step an optimizer on them. */
#ifndef LS_TENSOR_GRADIENTS_H
#define LS_TENSOR_GRADIENTS_H

#include "device/captured.h"
#include "tensor/graph.h"

/* How the step meets the gradient of a leaf. */
typedef enum ls__gradient_use {
    LS__GRADIENT_USED,  /* it is read, added to, or written as the first one */
    LS__GRADIENT_ZEROED /* it becomes absent, whatever it was */
} ls__gradient_use;

void ls__captured_met(ls__leaf *leaf, ls__gradient_use use);

/* Before anything happens to the gradient. */
static inline void ls__captured_meet(ls__leaf *leaf, ls__gradient_use use)
{
    if (__builtin_expect(ls__self.captured != NULL, 0)) {
        ls__captured_met(leaf, use);
    }
}

/* The recorded run has ended. */
void ls__captured_gradients_left(ls__captured *captured);
/* Whether the gradients are there that a replay needs, and no others. */
bool ls__captured_gradients_fit(const ls__captured *captured);
/* Before a replay that they fit, and after it. */
void ls__captured_gradients_enter(const ls__captured *captured);
void ls__captured_gradients_leave(const ls__captured *captured);
void ls__captured_gradients_forget(ls__captured *captured);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Metering operations: where the time of a step goes, operation by operation.
 *
 * A meter belongs to the thread that set it (ls__self.meter) and is called at the end of every
 * operation of the forward pass (op.c) and of every node of the backward pass (engine.c), with the
 * time it took itself: operations inside it, as in a part that is recomputed, were reported before.
 * Without a meter an operation looks at one pointer.
 */
#ifndef LS_TENSOR_METER_H
#define LS_TENSOR_METER_H

#include <stdint.h>

#include "base/env.h"

typedef struct ls__meter ls__meter;
struct ls__call;
struct ls__record;
struct ls__tensor_node;

struct ls__meter {
    /* An operation made `out`. Its inputs may be float32 copies (op.h, Note [bfloat16]). */
    void (*forward)(ls__meter *meter, const struct ls__call *call, const struct ls__record *out,
                    uint64_t ns);
    /* A node was walked; its saved operands are still there. */
    void (*backward)(ls__meter *meter, const struct ls__tensor_node *node, uint64_t ns);
    const ls__env *env; /* the clock's */
    uint64_t inner_ns;  /* of operations that ended, inside those that have not */
};

typedef struct ls__metered { /* one operation that has begun */
    uint64_t began_ns, inner_ns;
} ls__metered;

static inline ls__metered ls__meter_enter(const ls__meter *meter)
{
    return (ls__metered){meter->env->now_ns(meter->env), meter->inner_ns};
}

/* Nanoseconds of the operation itself. */
static inline uint64_t ls__meter_leave(ls__meter *meter, const ls__metered *op)
{
    const uint64_t all = meter->env->now_ns(meter->env) - op->began_ns;
    const uint64_t inner = meter->inner_ns - op->inner_ns;
    meter->inner_ns = op->inner_ns + all;
    return all - inner;
}

#endif

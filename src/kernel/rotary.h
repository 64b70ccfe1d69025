/* SPDX-License-Identifier: Apache-2.0 */
/* The frequencies of rotary positions, for all devices. */
#ifndef LS_KERNEL_ROTARY_H
#define LS_KERNEL_ROTARY_H

#include <math.h>

#include "kernel/kernels.h"

#define LS__TWO_PI 6.283185307179586

/* Radians a position of the pair (d, d + dim / 2). Scaled as Llama 3.1 has it: a pair that turns
 * less than `low` times within the positions of training turns `factor` times slower, one that
 * turns more than `high` times as before, and those between change from one to the other. */
static inline double ls__rotary_frequency(const ls__rotary *r, int64_t d)
{
    const double frequency = pow(r->base, -2.0 * (double)d / (double)r->dim);
    const ls__rotary_scaling *s = &r->scaling;
    const double turns = (double)s->positions * frequency / LS__TWO_PI;
    if (!(s->factor > 1.0) || (s->positions > 0 && turns > s->high)) {
        return frequency;
    }
    if (s->positions == 0 || turns < s->low) {
        return frequency / s->factor;
    }
    const double kept = (turns - s->low) / (s->high - s->low);
    return (1.0 - kept) * frequency / s->factor + kept * frequency;
}

#endif

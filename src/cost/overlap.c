/* SPDX-License-Identifier: Apache-2.0 */
/* Overlap by three numbers (overlap.h). */
#include "cost/overlap.h"

#include <math.h>

ls__overlap ls__overlap_of(ls__overlap_row naive, ls__overlap_row flat, int gradients, double bytes)
{
    const double calls = naive.communication - flat.communication;
    const double latency = gradients > 1 ? fmax(0.0, calls) / (gradients - 1) : 0.0;
    return (ls__overlap){
        .compute = (naive.step - naive.communication + flat.step - flat.communication) / 2.0,
        .latency = latency,
        .byte = fmax(0.0, flat.communication - latency) / bytes,
        .bytes = bytes};
}

double ls__overlap_traffic(int n, double memory)
{
    return (7.0 * (n - 1) / n + 2.0) / memory;
}

double ls__overlap_step(const ls__overlap *o, double calls, double last)
{
    return o->compute + calls * o->latency + last * o->byte + o->bytes * o->traffic;
}

double ls__overlap_bucket(double latency, double byte, double bytes)
{
    return byte > 0.0 ? sqrt(bytes * latency / byte) : INFINITY;
}

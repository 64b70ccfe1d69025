/* SPDX-License-Identifier: Apache-2.0 */
/* The arrows of a trace: from the launch of a bucket to its all-reduce, from a send to its receive.
 * A format viewer pairs them by a number, so only pairs are written, each with a number of its
 * own. */
#include <stdlib.h>

#include "trace/internal.h"

/* Ends of one flow stand together, its tail first. */
static int by_flow(const void *a, const void *b)
{
    const ls__trace_tip *x = a, *y = b;
    if (x->flow != y->flow) {
        return x->flow < y->flow ? -1 : 1;
    }
    return (int)x->in - (int)y->in;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* An arrow leaves at the begin of its first span. It arrives within the second one, and not before
 * it has left: a receive may wait for long before the message is sent. */
static void write_pair(ls__trace_out *out, int64_t number, const ls__trace_tip *from,
                       const ls__trace_tip *to)
{
    const char *name = from->kind == LS__TRACE_BUCKET ? "launch" : "message";
    const uint64_t arrives = larger(from->begin_ns, to->begin_ns);
    ls__trace_out_event(out,
                        json_pack("{s:s, s:s, s:s, s:I, s:i, s:i, s:f}", "ph", "s", "name", name,
                                  "cat", "flow", "id", (json_int_t)number, "pid", from->rank, "tid",
                                  from->track, "ts", ls__trace_us(from->begin_ns)));
    ls__trace_out_event(out, json_pack("{s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:f}", "ph", "f", "bp",
                                       "e", "name", name, "cat", "flow", "id", (json_int_t)number,
                                       "pid", to->rank, "tid", to->track, "ts",
                                       ls__trace_us(arrives < to->end_ns ? arrives : to->end_ns)));
}

void ls__trace_write_flows(ls__trace_out *out, ls__trace_tips *ends)
{
    int64_t number = 0;
    if (ends->count > 0) {
        qsort(ends->at, (size_t)ends->count, sizeof *ends->at, by_flow);
    }
    for (int64_t i = 1; i < ends->count; i++) {
        const ls__trace_tip *from = &ends->at[i - 1], *to = &ends->at[i];
        if (from->flow == to->flow && !from->in && to->in) {
            write_pair(out, ++number, from, to);
        }
    }
}

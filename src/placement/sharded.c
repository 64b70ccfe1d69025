/* SPDX-License-Identifier: Apache-2.0 */
/* See sharded.h. */
#include "placement/sharded.h"

#include <stdio.h>

#include "tensor/fill.h"
#include "tensor/placement.h"

static const char *placed(const ls__record *record, int axis)
{
    return ls_placement_name(ls__placement_public(ls__place_of(record, axis)));
}

static void refuse(ls__call *call, int i, int axis, const char *text, const char *instead)
{
    char subject[160];
    (void)ls__call_fail(call, LS_ERR_PLACEMENT, "on axis %s %s is %s; %s%s",
                        ls__axes_of(call->tensors)->axis[axis].name,
                        ls__place_subject(call->in[i], i + 1, subject, sizeof subject),
                        placed(call->in[i], axis), text, instead);
}

static void check_placed(ls__call *call, int axis, int dim, const char *instead)
{
    const int other = ls__place_of(call->in[1], axis);
    if (ls__place_of(call->in[0], axis) != LS__PLACED_SHARDED + dim) {
        char text[96];
        (void)snprintf(text, sizeof text, "give this rank's part of it, sharded(%d); ", dim);
        refuse(call, 0, axis, text, instead);
    } else if (other >= LS__PLACED_PARTIAL) {
        refuse(call, 1, axis, "every rank needs the whole of it, the same",
               ": ls_redistribute to LS_REPLICATED");
    }
}

/* A parameter that knows of which tensor it is a part: of one that the ranks share evenly. */
static void check_even(ls__call *call, const ls__axis_in_force *axis, int dim)
{
    const ls__record *in = call->in[0];
    const int64_t n = axis->size, own = dim < in->ndim ? in->dim[dim] : 0;
    const int64_t whole = dim < in->ndim ? ls__fill_whole(in).dim[dim] : 0;
    if (whole != own && whole != n * own) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "argument 1 %s is a part of %lld rows, which the %d ranks of axis %s "
                            "do not share evenly; pad them to %lld",
                            ls__record_print(in).text, (long long)whole, axis->size, axis->name,
                            (long long)((whole + n - 1) / n * n));
    }
}

ls__axis_in_force *ls__sharded_begin(ls__call *call, const char *axis, int dim, int place,
                                     const char *instead)
{
    ls__axes_in_force *axes;
    const int a = ls__axis_find(axis, call->name, &axes);
    if (a < 0) {
        call->failed = ls__call_refused();
        return NULL;
    }
    if (axes->axis[a].size > 1) {
        check_placed(call, a, dim, instead);
    }
    if (call->failed == NULL) {
        check_even(call, &axes->axis[a], dim);
    }
    call->across = a + 1;
    call->across_place = place;
    return call->failed == NULL ? &axes->axis[a] : NULL;
}

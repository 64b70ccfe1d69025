/* NaN and infinity in one rank's gradient.
 *
 * A backward that meets one passes it on to all gradients behind it, nearly always to all elements
 * of each, so a few elements at both ends of a gradient show it: two cache lines of each parameter.
 * With LOCKSTEP_CHECK=strict all elements are looked at. */
#include "reduce/nonfinite.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "comm/api/collective.h"
#include "comm/comm.h"
#include "comm/group/group.h"

#define ENDS 16 /* elements at each end: a cache line of float32 */

/* IEEE 754: all bits of the exponent are set in NaN and infinity, and in no number. */
static bool is_finite(const char *at, ls_dtype dtype)
{
    uint64_t wide;
    uint32_t single;
    uint16_t half;
    switch (dtype) {
    case LS_FLOAT64:
        memcpy(&wide, at, sizeof wide);
        return (wide & 0x7ff0000000000000u) != 0x7ff0000000000000u;
    case LS_FLOAT32:
        memcpy(&single, at, sizeof single);
        return (single & 0x7f800000u) != 0x7f800000u;
    case LS_FLOAT16:
        memcpy(&half, at, sizeof half);
        return (half & 0x7c00u) != 0x7c00u;
    default:
        LS_ASSERT(dtype == LS_BFLOAT16);
        memcpy(&half, at, sizeof half);
        return (half & 0x7f80u) != 0x7f80u;
    }
}

/* The first element in [from, to) that is not finite; -1: all are. */
static int64_t find(const char *gradient, ls_dtype dtype, int64_t from, int64_t to)
{
    const size_t bytes = ls_dtype_size(dtype);
    for (int64_t i = from; i < to; i++) {
        if (!is_finite(gradient + (size_t)i * bytes, dtype)) {
            return i;
        }
    }
    return -1;
}

/* Both ends, or everything. */
static int64_t look(const ls__reduce_param *param, const char *gradient, bool all)
{
    const int64_t count = param->count;
    if (all || count <= 2 * ENDS) {
        return find(gradient, param->dtype, 0, count);
    }
    const int64_t at = find(gradient, param->dtype, 0, ENDS);
    return at >= 0 ? at : find(gradient, param->dtype, count - ENDS, count);
}

static void report(ls_reducer *r, const ls__reduce_param *param, int64_t at)
{
    char text[LS__MESSAGE_MAX];
    (void)snprintf(
        text, sizeof text,
        "reducer \"%s\": the gradient of %.200s is not finite on rank %d (element %lld "
        "of %lld) before it is averaged, in synchronised backward %llu; the average will "
        "not be finite on any rank: look for a division by zero or a logarithm of 0, or "
        "lower the learning rate",
        r->name, param->name, r->rank, (long long)at, (long long)param->count,
        (unsigned long long)r->stats.reductions);
    LS__WARN("%s", text);
    ls__group_record_failure(r->group, LS_ERR_INVALID, text);
}

void ls__nonfinite_look(ls_reducer *r, const ls__reduce_bucket *bucket)
{
    const bool all = r->group->comm->strict;
    for (int i = 0; i < bucket->count && !r->nonfinite_reported; i++) {
        const ls__reduce_param *param = &r->params[r->plan.order[bucket->first + i]];
        const int64_t at = param->local ? look(param, bucket->memory + param->offset, all) : -1;
        if (at >= 0) {
            r->nonfinite_reported = true;
            report(r, param, at);
        }
    }
}

/* NaN and infinity in one rank's gradient.
 *
 * Reading all gradients once more would cost memory traffic, so only three lines of each are read. In
 * the gradient of a product, dW[i][j] = sum of dy[s][i] x[s][j], an element of dy that is not finite
 * reaches all of row i and one of x all of column j (embeddings and convolutions alike), so the first
 * row and the first column show it, and of a vector both ends. An element that is alone, because it
 * overflowed, is found with LOCKSTEP_CHECK=strict, which reads everything. */
#include "reduce/nonfinite.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/log.h"
#include "comm/api/collective.h"
#include "comm/comm.h"
#include "comm/group/group.h"

#define ENDS 16    /* elements at each end: a cache line of float32 */
#define BLOCK 4096 /* elements between two looks at what was found */

/* IEEE 754: all bits of the exponent are set in NaN and infinity, and in no number. Adding the lowest of
 * them then carries into the place of the sign. */
#define HOLDS_NONFINITE(name, type, exponent, lowest)                                              \
    static bool name##_holds_nonfinite(const void *at, int64_t count)                              \
    {                                                                                              \
        const type *x = at;                                                                        \
        type found = 0;                                                                            \
        for (int64_t i = 0; i < count; i++) {                                                      \
            found |= (type)((x[i] & (exponent)) + (lowest));                                       \
        }                                                                                          \
        return (found >> (8 * sizeof found - 1)) != 0;                                             \
    }
HOLDS_NONFINITE(float64, uint64_t, 0x7ff0000000000000u, 0x0010000000000000u)
HOLDS_NONFINITE(float32, uint32_t, 0x7f800000u, 0x00800000u)
HOLDS_NONFINITE(float16, uint16_t, 0x7c00u, 0x0400u)
HOLDS_NONFINITE(bfloat16, uint16_t, 0x7f80u, 0x0080u)

static bool holds_nonfinite(const char *at, ls_dtype dtype, int64_t count)
{
    switch (dtype) {
    case LS_FLOAT64:
        return float64_holds_nonfinite(at, count);
    case LS_FLOAT32:
        return float32_holds_nonfinite(at, count);
    case LS_FLOAT16:
        return float16_holds_nonfinite(at, count);
    default:
        LS_ASSERT(dtype == LS_BFLOAT16);
        return bfloat16_holds_nonfinite(at, count);
    }
}

/* The first element in [from, to) that is not finite; -1: all are. Block by block, and within the block
 * that holds one element by element. */
static int64_t find(const char *gradient, ls_dtype dtype, int64_t from, int64_t to)
{
    const size_t bytes = ls_dtype_size(dtype);
    for (int64_t step = BLOCK; from < to;) {
        const int64_t count = to - from < step ? to - from : step;
        if (!holds_nonfinite(gradient + (size_t)from * bytes, dtype, count)) {
            from += count;
        } else if (count == 1) {
            return from;
        } else {
            step = 1;
        }
    }
    return -1;
}

/* The first dimension of a shape such as "[64,10]"; 1 if there is only one, or none is known. */
static int64_t rows_of(const ls__reduce_param *param)
{
    if (param->shape == NULL || param->shape[0] != '[') {
        return 1;
    }
    char *end = NULL;
    const long long rows = strtoll(param->shape + 1, &end, 10);
    return rows > 0 && *end == ',' && param->count % rows == 0 ? rows : 1;
}

/* The first row, the first column and the last elements, or everything. */
static int64_t look(const ls__reduce_param *param, const char *gradient, bool all)
{
    const int64_t count = param->count, rows = rows_of(param), columns = count / rows;
    if (all || count <= 2 * ENDS) {
        return find(gradient, param->key.dtype, 0, count);
    }
    const int64_t first = rows > 1 && columns > ENDS ? columns : ENDS;
    int64_t at = find(gradient, param->key.dtype, 0, first);
    for (int64_t row = 1; at < 0 && row < rows; row++) {
        at = find(gradient, param->key.dtype, row * columns, row * columns + 1);
    }
    return at >= 0 ? at : find(gradient, param->key.dtype, count - ENDS, count);
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
    const char *memory = r->plan.regions[bucket->region].memory;
    for (int i = 0; i < bucket->count && !r->nonfinite_reported; i++) {
        const ls__reduce_param *param = &r->params[r->plan.order[bucket->first + i]];
        const int64_t at = param->local ? look(param, memory + param->offset, all) : -1;
        if (at >= 0) {
            r->nonfinite_reported = true;
            report(r, param, at);
        }
    }
}

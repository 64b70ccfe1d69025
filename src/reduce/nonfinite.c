/* SPDX-License-Identifier: Apache-2.0 */
/* NaN and infinity in one rank's gradient.
 *
 * Reading all gradients once more would cost memory traffic, so only three lines of each are read.
 * In the gradient of a product, dW[i][j] = sum of dy[s][i] x[s][j], an element of dy that is not
 * finite reaches all of row i and one of x all of column j (embeddings and convolutions alike), so
 * the first row and the first column show it, and of a vector both ends. An element that is alone,
 * because it overflowed, is found with LOCKSTEP_CHECK=strict, which reads everything. */
#include "reduce/internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/nonfinite.h"
#include "comm/core/cause.h"
#include "comm/core/comm.h"
#include "comm/core/group.h"
#include "reduce/bucket.h"
#include "reduce/domain.h"

#define ENDS 16 /* elements at each end: a cache line of float32 */

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

/* Elements [from, to) of a line of the gradient [begin, end), as far as they are looked at. */
static int64_t look_at(const ls__reduce_param *param, const char *gradient, int64_t begin,
                       int64_t end, int64_t from, int64_t to)
{
    from = from > begin ? from : begin;
    to = to < end ? to : end;
    return from < to ? ls__nonfinite_find(gradient, param->key.dtype, from, to) : -1;
}

/* Of elements [begin, end): the first row, the first column and the last elements, or everything. A
 * part of a gradient that lacks the first row has its own first elements looked at. */
static int64_t look(const ls__reduce_param *param, const char *gradient, bool all, int64_t begin,
                    int64_t end)
{
    const int64_t count = param->count, rows = rows_of(param), columns = count / rows;
    if (all || end - begin <= 2 * ENDS) {
        return look_at(param, gradient, begin, end, begin, end);
    }
    const int64_t first = rows > 1 && columns > ENDS ? columns : begin + ENDS;
    int64_t at = look_at(param, gradient, begin, end, begin, first);
    for (int64_t row = 1; at < 0 && row < rows; row++) {
        at = look_at(param, gradient, begin, end, row * columns, row * columns + 1);
    }
    return at >= 0 ? at : look_at(param, gradient, begin, end, end - ENDS, end);
}

/* The first parameter of the bucket whose memory holds what is not finite, and the element; NULL:
 * none does. */
static const ls__reduce_param *find(const ls_reducer *r, const ls__reduce_bucket *bucket, bool mine,
                                    int64_t *at)
{
    const bool all = r->group->comm->strict;
    const char *averages = r->plan.regions[bucket->region].memory;
    for (int i = 0; i < bucket->count; i++) {
        const ls__reduce_param *param = &r->params[r->plan.order[bucket->first + i]];
        int64_t begin = 0, end = param->count;
        if (!mine && r->scattered) {
            ls__bucket_own_elements(r, param, &begin, &end);
        }
        const bool there = mine ? param->local : param->used;
        const char *gradient = mine ? ls__bucket_gradient(r, param) : averages + param->offset;
        *at = there ? look(param, gradient, all, begin, end) : -1;
        if (*at >= 0) {
            return param;
        }
    }
    return NULL;
}

void ls__nonfinite_look(ls_reducer *r, const ls__reduce_bucket *bucket)
{
    char text[LS__MESSAGE_MAX];
    int64_t at = -1;
    const bool reported = atomic_load_explicit(&r->nonfinite_reported, memory_order_relaxed);
    const ls__reduce_param *param = reported ? NULL : find(r, bucket, true, &at);
    if (param == NULL) {
        return;
    }
    (void)snprintf(
        text, sizeof text,
        "reducer \"%s\": the gradient of %.200s is not finite on rank %d (element %lld "
        "of %lld) before it is averaged, in synchronised backward %llu; the average will "
        "not be finite on any rank: look for a division by zero or a logarithm of 0, or "
        "lower the learning rate",
        r->name, param->name, ls__reducer_rank(r, r->rank), (long long)at, (long long)param->count,
        (unsigned long long)r->stats.reductions);
    /* Sync: read by ls__nonfinite_look_again, on the thread of backward, after the launch. */
    atomic_store_explicit(&r->nonfinite_reported, true, memory_order_relaxed);
    LS__WARN("%s", text);
    ls__group_record_gradient(r->group, text);
}

void ls__nonfinite_look_again(ls_reducer *r, const ls__reduce_bucket *bucket)
{
    int64_t at = -1;
    const int domain = r->plan.regions[bucket->region].key.domain;
    const bool reported = atomic_load_explicit(&r->nonfinite_reported, memory_order_relaxed);
    const ls__reduce_param *param = reported || (r->domains[domain].rank != 0 && !r->scattered)
                                        ? NULL
                                        : find(r, bucket, false, &at);
    if (param != NULL) {
        atomic_store_explicit(&r->nonfinite_reported, true, memory_order_relaxed);
        LS__WARN("reducer \"%s\": the averaged gradient of %.200s is not finite (element %lld of "
                 "%lld) in synchronised backward %llu, and that of rank %d was finite before: "
                 "another rank reports its own, or the sum over the ranks overflowed",
                 r->name, param->name, (long long)at, (long long)param->count,
                 (unsigned long long)r->stats.reductions, ls__reducer_rank(r, r->rank));
    }
}

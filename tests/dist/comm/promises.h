/* SPDX-License-Identifier: Apache-2.0 */
/* Every function, dtype and operator of a backend beside the native one: what it promises gives the
 * native results, what it does not is refused. */
#ifndef TEST_PROMISES_H
#define TEST_PROMISES_H

#include <string.h>

#include <lockstep/comm.h>

#include "comm/core/group.h"
#include "job/operation.h"
#include "kernel/reduce/reduce.h"
#include "test.h"

enum { PROMISES_RANKS_MAX = 4, ROOM = 4096 };

typedef union values {
    float f[ROOM];
    double d[ROOM];
    int32_t i[ROOM];
    int64_t l[ROOM];
    unsigned char bytes[ROOM * 8];
} values;

/* Small whole numbers: any order of adding gives the same sum. */
static void fill(values *v, ls_dtype dtype, int64_t count, int seed)
{
    memset(v, 0x11, sizeof *v);
    for (int64_t k = 0; k < count; k++) {
        const int x = (int)((k * 7 + seed * 3) % 5) - 1;
        switch (dtype) {
        case LS_FLOAT32:
            v->f[k] = (float)x;
            break;
        case LS_FLOAT64:
            v->d[k] = x;
            break;
        case LS_INT32:
            v->i[k] = x;
            break;
        case LS_INT64:
            v->l[k] = x;
            break;
        default:
            memset(v->bytes + (size_t)k * ls_dtype_size(dtype), x == 0 ? 0 : 1,
                   ls_dtype_size(dtype));
        }
    }
}

typedef struct operation {
    ls__operation kind;
    ls_dtype dtype;
    ls_reduce_op op;
    int64_t count;
    bool in_place;
} operation;

/* Block r has count + r elements, with a gap behind each. */
static void blocks(int64_t count, int64_t *counts, int64_t *offsets, int size)
{
    int64_t end = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = count + r;
        offsets[r] = end;
        end += counts[r] + 1;
    }
}

/* The block that rank a has for rank b, both ways. */
static void square(int64_t count, int64_t *to, int64_t *from, int64_t *offsets, int rank, int size)
{
    int64_t end = 0;
    for (int r = 0; r < size; r++) {
        to[r] = count + rank + 2 * r;
        from[r] = count + r + 2 * rank;
        offsets[r] = end;
        end += count + 3 * size;
    }
}

static ls_status call_v(ls_group *g, const operation *o, const void *in, void *out)
{
    const int size = ls_group_size(g), me = ls_group_rank(g), root = size - 1;
    int64_t counts[PROMISES_RANKS_MAX], offsets[PROMISES_RANKS_MAX], from[PROMISES_RANKS_MAX];
    blocks(o->count, counts, offsets, size);
    switch (o->kind) {
    case LS__OP_ALL_TO_ALL_V:
        square(o->count, counts, from, offsets, me, size);
        return ls_all_to_all_v(g, in, counts, offsets, out, from, offsets, o->dtype, NULL, NULL);
    case LS__OP_ALL_GATHER_V:
        return ls_all_gather_v(g, in, counts[me], out, counts, offsets, o->dtype, NULL, NULL);
    case LS__OP_REDUCE_SCATTER_V:
        return ls_reduce_scatter_v(g, in, counts, offsets, out, o->dtype, o->op, NULL, NULL);
    case LS__OP_GATHER_V:
        return ls_gather_v(g, in, counts[me], out, counts, offsets, o->dtype, root, NULL, NULL);
    default:
        return ls_scatter_v(g, in, counts, offsets, out, counts[me], o->dtype, root, NULL, NULL);
    }
}

static ls_status call(ls_group *g, const operation *o, void *in, void *out)
{
    const int root = ls_group_size(g) - 1;
    switch (o->kind) {
    case LS__OP_ALL_REDUCE:
        return ls_all_reduce(g, o->in_place ? out : in, out, o->count, o->dtype, o->op, NULL, NULL);
    case LS__OP_REDUCE_SCATTER:
        return ls_reduce_scatter(g, in, out, o->count, o->dtype, o->op, NULL, NULL);
    case LS__OP_ALL_GATHER:
        return ls_all_gather(g, in, out, o->count, o->dtype, NULL, NULL);
    case LS__OP_BROADCAST:
        return ls_broadcast(g, out, o->count, o->dtype, root, NULL, NULL);
    case LS__OP_REDUCE:
        return ls_reduce(g, in, out, o->count, o->dtype, o->op, root, NULL, NULL);
    case LS__OP_GATHER:
        return ls_gather(g, in, out, o->count, o->dtype, root, NULL, NULL);
    case LS__OP_SCATTER:
        return ls_scatter(g, in, out, o->count, o->dtype, root, NULL, NULL);
    case LS__OP_ALL_TO_ALL:
        return ls_all_to_all(g, o->in_place ? out : in, out, o->count, o->dtype, NULL, NULL);
    case LS__OP_SCAN:
        return ls_scan(g, in, out, o->count, o->dtype, o->op, NULL, NULL);
    case LS__OP_EXSCAN:
        return ls_exscan(g, in, out, o->count, o->dtype, o->op, NULL, NULL);
    default:
        return call_v(g, o, in, out);
    }
}

/* Whether the backend says that it carries the operation. */
static bool promised(const ls_group *g, const operation *o)
{
    const ls_reduce_op op = o->op == LS_AVG ? LS_SUM : o->op;
    const bool reduces = ls__operation_reduces(o->kind);
    const bool device = (g->can->memory & LS_BACKEND_HOST) == 0;
    if (device && ((o->op == LS_AVG && ls__reduce_widens(o->dtype)) ||
                   (o->kind == LS__OP_ALL_TO_ALL && o->in_place))) {
        return false;
    }
    return (g->can->operations >> o->kind & 1) != 0 &&
           (!reduces ||
            ((g->can->dtypes >> o->dtype & 1) != 0 && (g->can->reduce_ops >> op & 1) != 0));
}

/* On both groups; a promise is kept, and what is not promised is refused. */
static int compare(ls_group *native, ls_group *other, const operation *o)
{
    static values in, want, got;
    fill(&in, o->dtype, ROOM / 2, ls_rank());
    fill(&want, o->dtype, ROOM / 2, ls_rank() + 10);
    got = want;
    CHECK_OK(call(native, o, &in, &want));
    const ls_status status = call(other, o, &in, &got);
    if (!promised(other, o)) {
        CHECK_INT(status, LS_ERR_UNSUPPORTED);
        return 0;
    }
    if (status != LS_OK || memcmp(&want, &got, sizeof want) != 0) {
        test_fail(__FILE__, __LINE__, "%s of %s, %s, %lld elements: %s",
                  ls__operation_name(o->kind), ls_dtype_name(o->dtype), ls_reduce_op_name(o->op),
                  (long long)o->count, status == LS_OK ? "other values" : ls_error_message());
    }
    return 1;
}

/* Every function, dtype and operator of the table that `lockstep info --backends` prints. */
static void every_promise_is_kept(ls_group *native, ls_group *other)
{
    static const int64_t counts[] = {0, 1, 37};
    int kept = 0;
    for (ls__operation k = 0; k < LS__OP_COUNT; k++) {
        for (ls_dtype d = 0; d < LS_DTYPE_COUNT && k != LS__OP_BARRIER && !ls__operation_is_p2p(k);
             d++) {
            const ls_reduce_op ops = ls__operation_reduces(k) ? LS_PREMUL_SUM : 1;
            for (ls_reduce_op op = 0; op < ops; op++) {
                operation o = {.kind = k, .dtype = d, .op = op};
                if (ls__operation_reduces(k) &&
                    (!ls__reduce_supported(d, op) || (op == LS_AVG && ls__operation_scans(k)))) {
                    continue;
                }
                for (int c = 0; c < 3; c++) {
                    o.count = counts[c];
                    o.in_place = c == 2;
                    kept += compare(native, other, &o);
                }
            }
        }
    }
    CHECK(kept > 500);
}

#endif

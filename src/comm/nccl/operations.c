/* SPDX-License-Identifier: Apache-2.0 */
/* An operation in calls of NCCL. What NCCL has no function for is made of sends and receives, or of
 * broadcasts or reductions of the blocks, in one group call. */
#include "comm/nccl/plugin.h"

#include <string.h>

#include "base/half.h"

static ls__nccl_type type_of(ls_dtype dtype)
{
    switch (dtype) {
    case LS_FLOAT32:
        return LS__NCCL_FLOAT32;
    case LS_FLOAT64:
        return LS__NCCL_FLOAT64;
    case LS_FLOAT16:
        return LS__NCCL_FLOAT16;
    case LS_BFLOAT16:
        return LS__NCCL_BFLOAT16;
    case LS_UINT8:
        return LS__NCCL_UINT8;
    case LS_INT32:
        return LS__NCCL_INT32;
    case LS_UINT32:
        return LS__NCCL_UINT32;
    case LS_INT64:
        return LS__NCCL_INT64;
    case LS_UINT64:
        return LS__NCCL_UINT64;
    default:
        return LS__NCCL_INT8;
    }
}

/* One operation on its way into the stream. */
typedef struct launch {
    ls__nccl_group *g;
    const ls_backend_operation *o;
    ls__nccl_comm comm;
    char *error;
} launch;

/* Notes in which call the driver is, for reports. */
#define CALL(l, name, call)                                                                        \
    (atomic_store_explicit(&(l)->g->calling, name, memory_order_relaxed), (call))

/* Waits until the last call has done what was asked. */
static ls_status settle(const launch *l, int result)
{
    return ls__nccl_settle(l->g, result, atomic_load_explicit(&l->g->calling, memory_order_relaxed),
                           l->error);
}

/* ---- operators ----------------------------------------------------------------------------- */

static void put_scalar(double value, ls_dtype dtype, unsigned char out[8])
{
    const float f = (float)value;
    const uint16_t half = dtype == LS_FLOAT16 ? ls__float16_round(f) : ls__bfloat16_round(f);
    const int64_t whole = (int64_t)value;
    switch (dtype) {
    case LS_FLOAT32:
        memcpy(out, &f, sizeof f);
        break;
    case LS_FLOAT64:
        memcpy(out, &value, sizeof value);
        break;
    case LS_FLOAT16:
    case LS_BFLOAT16:
        memcpy(out, &half, sizeof half);
        break;
    default: /* two's complement, the least byte first */
        memcpy(out, &whole, sizeof whole);
    }
}

/* *made: one that must be destroyed. A sum that is divided multiplies each input by the inverse, or
 * is ncclAvg where the divisor is the number of ranks. */
static ls_status operator_of(const launch *l, int *op, bool *made)
{
    const ls_backend_operation *o = l->o;
    unsigned char scalar[8] = {0};
    *made = o->op == LS_PREMUL_SUM || (o->divisor != 0 && o->divisor != (double)l->g->ranks);
    *op = o->divisor != 0       ? LS__NCCL_AVG
          : o->op == LS_SUM     ? LS__NCCL_SUM
          : o->op == LS_PRODUCT ? LS__NCCL_PROD
          : o->op == LS_MIN     ? LS__NCCL_MIN
                                : LS__NCCL_MAX;
    if (!*made) {
        return LS_OK;
    }
    put_scalar(o->op == LS_PREMUL_SUM ? o->factor : 1 / o->divisor, o->dtype, scalar);
    return settle(
        l, CALL(l, "ncclRedOpCreatePreMulSum",
                ls__nccl.op_create(op, scalar, type_of(o->dtype), LS__NCCL_SCALAR_HOST, l->comm)));
}

/* ---- blocks -------------------------------------------------------------------------------- */

static unsigned char *block(const launch *l, int side, int r, size_t *count)
{
    const ls_backend_operation *o = l->o;
    unsigned char *base = side == 0 ? (unsigned char *)(uintptr_t)o->input : o->output;
    const bool scatters = o->kind == LS_BACKEND_SCATTER || o->kind == LS_BACKEND_SCATTER_V;
    const bool gathers = o->kind == LS_BACKEND_GATHER || o->kind == LS_BACKEND_GATHER_V ||
                         o->kind == LS_BACKEND_ALL_GATHER_V;
    const bool whole = side == 0 ? gathers : scatters; /* this side is one block */
    if (o->counts[side] != NULL) {
        *count = (size_t)o->counts[side][r];
        return base + (size_t)o->offsets[side][r] * o->element;
    }
    *count = (size_t)o->count;
    return whole ? base : base + (size_t)r * *count * o->element;
}

static bool is_all(ls_backend_kind kind)
{
    return kind == LS_BACKEND_ALL_TO_ALL || kind == LS_BACKEND_ALL_TO_ALL_V;
}

static bool is_gather(ls_backend_kind kind)
{
    return kind == LS_BACKEND_GATHER || kind == LS_BACKEND_GATHER_V;
}

/* Whether this rank sends (receives) a block to (from) rank r. */
static bool sends(const launch *l, int r)
{
    return is_all(l->o->kind) || (is_gather(l->o->kind) ? r : l->g->rank) == l->o->root;
}

static bool receives(const launch *l, int r)
{
    return is_all(l->o->kind) || (is_gather(l->o->kind) ? l->g->rank : r) == l->o->root;
}

/* This rank's block for itself. */
static ls_status copy_own(const launch *l)
{
    size_t count = 0, out = 0;
    const int me = l->g->rank;
    if (!sends(l, me) || !receives(l, me)) {
        return LS_OK;
    }
    const unsigned char *from = block(l, 0, me, &count);
    unsigned char *to = block(l, 1, me, &out);
    return from == to || count == 0
               ? LS_OK
               : ls__cuda_check(ls__cuda.copy((ls__cuda_pointer)to, (ls__cuda_pointer)from,
                                              count * l->o->element, l->g->stream),
                                "cuMemcpyDtoDAsync", l->error);
}

static int exchange_with(const launch *l, int r)
{
    size_t count = 0;
    int result = LS__NCCL_OK;
    if (r == l->g->rank) {
        return LS__NCCL_OK;
    }
    if (sends(l, r)) {
        const void *from = block(l, 0, r, &count);
        result = count == 0 ? LS__NCCL_OK
                            : CALL(l, "ncclSend",
                                   ls__nccl.send(from, count * l->o->element, LS__NCCL_INT8, r,
                                                 l->comm, l->g->stream));
    }
    if (receives(l, r) && (result == LS__NCCL_OK || result == LS__NCCL_IN_PROGRESS)) {
        void *to = block(l, 1, r, &count);
        result = count == 0 ? LS__NCCL_OK
                            : CALL(l, "ncclRecv",
                                   ls__nccl.recv(to, count * l->o->element, LS__NCCL_INT8, r,
                                                 l->comm, l->g->stream));
    }
    return result;
}

/* Block r of all_gather_v is broadcast by rank r, that of reduce_scatter_v reduced on it. */
static int move_block(const launch *l, int r, int op)
{
    const ls_backend_operation *o = l->o;
    const bool gathers = o->kind == LS_BACKEND_ALL_GATHER_V;
    size_t count = 0;
    void *at = block(l, gathers ? 1 : 0, r, &count);
    if (count == 0) {
        return LS__NCCL_OK;
    }
    if (gathers) {
        const void *from = r == l->g->rank ? o->input : at;
        return CALL(l, "ncclBroadcast",
                    ls__nccl.broadcast(from, at, count * o->element, LS__NCCL_INT8, r, l->comm,
                                       l->g->stream));
    }
    return CALL(
        l, "ncclReduce",
        ls__nccl.reduce(at, o->output, count, type_of(o->dtype), op, r, l->comm, l->g->stream));
}

static ls_status in_group(const launch *l, int op)
{
    const bool by_blocks =
        l->o->kind == LS_BACKEND_ALL_GATHER_V || l->o->kind == LS_BACKEND_REDUCE_SCATTER_V;
    int result = CALL(l, "ncclGroupStart", ls__nccl.group_start());
    for (int r = 0; r < l->g->ranks && (result == LS__NCCL_OK || result == LS__NCCL_IN_PROGRESS);
         r++) {
        result = by_blocks ? move_block(l, r, op) : exchange_with(l, r);
    }
    const int end = CALL(l, "ncclGroupEnd", ls__nccl.group_end());
    const bool sound = result == LS__NCCL_OK || result == LS__NCCL_IN_PROGRESS;
    return settle(l, sound ? end : result);
}

/* ---- the operation ------------------------------------------------------------------------- */

static ls_status single(const launch *l, int op)
{
    const ls_backend_operation *o = l->o;
    const void *in = o->input != NULL ? o->input : o->output;
    void *out = o->output != NULL ? o->output : (void *)(uintptr_t)o->input;
    const size_t count = (size_t)o->count, bytes = count * o->element;
    const ls__nccl_type type = type_of(o->dtype);
    ls__cuda_stream stream = l->g->stream;
    switch (o->kind) {
    case LS_BACKEND_ALL_REDUCE:
        return settle(l, CALL(l, "ncclAllReduce",
                              ls__nccl.all_reduce(in, out, count, type, op, l->comm, stream)));
    case LS_BACKEND_REDUCE_SCATTER:
        return settle(l, CALL(l, "ncclReduceScatter",
                              ls__nccl.reduce_scatter(in, out, count, type, op, l->comm, stream)));
    case LS_BACKEND_REDUCE:
        return settle(l, CALL(l, "ncclReduce",
                              ls__nccl.reduce(in, out, count, type, op, o->root, l->comm, stream)));
    case LS_BACKEND_ALL_GATHER:
        return settle(l, CALL(l, "ncclAllGather",
                              ls__nccl.all_gather(in, out, bytes, LS__NCCL_INT8, l->comm, stream)));
    case LS_BACKEND_SEND:
        return settle(l, CALL(l, "ncclSend",
                              ls__nccl.send(in, bytes, LS__NCCL_INT8, o->root, l->comm, stream)));
    case LS_BACKEND_RECV:
        return settle(l, CALL(l, "ncclRecv",
                              ls__nccl.recv(out, bytes, LS__NCCL_INT8, o->root, l->comm, stream)));
    default:
        return settle(
            l, CALL(l, "ncclBroadcast",
                    ls__nccl.broadcast(in, out, bytes, LS__NCCL_INT8, o->root, l->comm, stream)));
    }
}

static bool is_single(ls_backend_kind kind)
{
    return kind == LS_BACKEND_ALL_REDUCE || kind == LS_BACKEND_REDUCE_SCATTER ||
           kind == LS_BACKEND_REDUCE || kind == LS_BACKEND_ALL_GATHER ||
           kind == LS_BACKEND_BROADCAST || kind == LS_BACKEND_SEND || kind == LS_BACKEND_RECV;
}

static bool reduces(ls_backend_kind kind)
{
    return kind == LS_BACKEND_ALL_REDUCE || kind == LS_BACKEND_REDUCE_SCATTER ||
           kind == LS_BACKEND_REDUCE || kind == LS_BACKEND_REDUCE_SCATTER_V;
}

ls_status ls__nccl_launch(ls__nccl_group *g, const ls_backend_operation *o, char *error)
{
    const launch l = {g, o, atomic_load_explicit(&g->comm, memory_order_relaxed), error};
    int op = LS__NCCL_SUM;
    bool made = false;
    ls_status status = reduces(o->kind) ? operator_of(&l, &op, &made) : LS_OK;
    if (status != LS_OK) {
        return status;
    }
    if (is_single(o->kind)) {
        status = single(&l, op);
    } else {
        status = reduces(o->kind) || o->kind == LS_BACKEND_ALL_GATHER_V ? LS_OK : copy_own(&l);
        status = status != LS_OK ? status : in_group(&l, op);
    }
    if (made && status == LS_OK) { /* the calls that use it have returned */
        status = settle(&l, CALL(&l, "ncclRedOpDestroy", ls__nccl.op_destroy(op, l.comm)));
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Autocast's switch, and the operands of bfloat16 kernels; see half.h. A product of bfloat16
 * matrices sums in float32 and rounds each result once. Its operands are either bfloat16 tensors
 * or, under ls_set_autocast, float32 tensors rounded for the product alone: those copies are
 * outside the graph, so that the gradient of a float32 parameter is never rounded. */
#include "tensor/half.h"

#include "base/assert.h"

/* A state of the calling thread; returns the one before, for the caller to restore. */
bool ls_set_autocast(bool enabled)
{
    bool before = ls__self.autocast;
    ls__self.autocast = enabled;
    return before;
}

/* A type that is neither refuses both ways: the checks for float32 name it. */
bool ls__call_is_half(const ls__call *call)
{
    bool all = true;
    for (int i = 0; i < call->count; i++) {
        const ls__record *in = call->in[i];
        if (in != NULL && in->dtype != LS_BFLOAT16) {
            all = false;
        }
        if (in != NULL && in->dtype != LS_BFLOAT16 && in->dtype != LS_FLOAT32) {
            return false;
        }
    }
    return all || ls__self.autocast;
}

/* The casts belong to the call as widened inputs do, and are freed with it. */
bool ls__call_autocast(ls__call *call)
{
    for (int i = 0; i < call->count; i++) {
        if (call->in[i] != NULL && call->in[i]->dtype == LS_FLOAT32 && ls__self.autocast) {
            call->widened[i] = ls__call_cast(call, call->in[i], LS_BFLOAT16);
            if (call->widened[i] == NULL) {
                return false;
            }
            call->in[i] = call->widened[i];
        }
    }
    return true;
}

/* Input i as `dtype`: the memory itself where it has that type, else a copy in fresh memory; the
 * caller drops it. The copy is outside the graph, so the rule writes the gradient in the type of
 * the tensor itself. */
static ls__dense converted(ls__call *call, int i, ls_dtype dtype)
{
    ls__dense own = ls__call_dense(call, i);
    if (call->failed != NULL || call->in[i] == NULL || call->in[i]->dtype == dtype) {
        return own;
    }
    int64_t numel = call->in[i]->numel;
    ls__dense copy = ls__call_memory(call, (size_t)numel * ls_dtype_size(dtype));
    if (copy.storage != NULL) {
        ls__cast_gradient(call->on, copy.data, dtype, own.data, numel, 0.0f);
    }
    ls__dense_drop(&own);
    return copy;
}

/* Argument i as bfloat16: the memory itself where it has that type, a copy otherwise. */
ls__dense ls__call_half(ls__call *call, int i)
{
    return converted(call, i, LS_BFLOAT16);
}

/* Argument i as float32: the memory itself where it has that type, a copy otherwise. */
ls__dense ls__call_full(ls__call *call, int i)
{
    return converted(call, i, LS_FLOAT32);
}

/* Supplies the kernel's workspace and its store of plans; blocks come from the cache of storage, so
 * the workspace costs no system call. */
ls_status ls__gemm_half(ls__pool *on, ls__gemm_bf16 *g)
{
    LS_ASSERT(g->batch >= 1);
    g->plans = on->tensors->plans;
    size_t bytes = on->k->gemm_bf16_workspace(g);
    ls__storage *work = bytes > 0 ? ls__storage_new(on, bytes) : NULL;
    if (bytes > 0 && work == NULL) {
        return ls__self.status;
    }
    g->workspace = work != NULL ? work->data : NULL;
    on->k->gemm_bf16(g, on->stream);
    ls__storage_unref(work);
    return LS_OK;
}

/* Into a bfloat16 gradient only after the sum is complete: adding up rounded numbers loses most of
 * them. */
ls_status ls__sum_rows_half(ls__tensor_rule *r, const ls__gradient *to, const void *x, int64_t rows,
                            int64_t n)
{
    LS_ASSERT(to->data != NULL);
    if (to->dtype == LS_FLOAT32) {
        r->k->sum_rows_bf16(to->data, x, rows, n, to->beta, r->stream);
        return LS_OK;
    }
    ls__storage *sum = ls__storage_new(r->on, (size_t)n * sizeof(float));
    if (sum == NULL) {
        return ls__self.status;
    }
    r->k->sum_rows_bf16(sum->data, x, rows, n, 0.0f, r->stream);
    ls__cast_gradient(r->on, to->data, LS_BFLOAT16, sum->data, n, to->beta);
    ls__storage_unref(sum);
    return LS_OK;
}

void ls__fill_zero(ls__pool *on, void *data, ls_dtype dtype, int64_t numel)
{
    on->k->zero(data, (size_t)numel * ls_dtype_size(dtype), on->stream);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Elements in order along a dimension. The kernel finds their places in rows; the values are then
 * picked by ls_gather_dim, which brings the gradient. All types have an order: false is below true,
 * and NaN above infinity. */
#include <lockstep/ops.h>

#include "tensor/op.h"

#define ALL INT64_MIN      /* for k: as many as there are */
#define ROW_MAX UINT32_MAX /* the kernel's: a place has 32 bits */

/* Positions within a row are 32 bits in the kernel's keys. False with call->failed set. */
static bool takes_k(ls__call *call, int64_t k, int dim)
{
    const ls__record *in = call->in[0];
    if (k >= 0 && k <= in->dim[dim] && in->dim[dim] <= ROW_MAX) {
        return true;
    }
    (void)ls__call_fail(call, LS_ERR_INVALID,
                        "the first %lld along dimension %d of %s; give 0 to %lld, and at most %lld "
                        "elements",
                        (long long)k, dim, ls__record_print(in).text, (long long)in->dim[dim],
                        (long long)ROW_MAX);
    return false;
}

/* Exchanges two dimensions of a record, its strides with them. */
static void exchange(ls__record *record, int a, int b)
{
    const int64_t dim = record->dim[a], stride = record->stride[a];
    record->dim[a] = record->dim[b];
    record->stride[a] = record->stride[b];
    record->dim[b] = dim;
    record->stride[b] = stride;
}

/* Places of the first k along dimension `at`, int64, shaped as the input but for that dimension. */
static ls_tensor *places(ls__call *call, int64_t k, int at, bool largest)
{
    const int last = call->in[0]->ndim - 1;
    call->seen[0] = *call->in[0];
    call->in[0] = &call->seen[0];
    exchange(&call->seen[0], at, last);
    ls_shape shape = ls__record_shape(call->in[0]);
    const int64_t n = shape.dim[last], rows = ls__shape_product(call->in[0], 0, last);
    shape.dim[last] = k;
    ls__dense x = ls__call_dense(call, 0);
    ls__record *out = ls__call_output(call, shape, LS_INT64);
    if (out != NULL && out->numel > 0) {
        call->k->top((int64_t *)(void *)ls__record_data(out), x.data, (ls_dtype)call->in[0]->dtype,
                     rows, n, k, largest, call->stream);
    }
    ls__dense_drop(&x);
    call->follows = LS__ROWS(1u << last, NOT);
    ls_tensor *t = ls__call_finish(call, out);
    return at == last ? t : ls_contiguous(ls_transpose(t, at, last));
}

/* Both results may be NULL. */
static ls_status order(const char *name, ls_tensor *a, int64_t k, int dim, bool largest,
                       ls_tensor **values, ls_tensor **indices)
{
    ls__call call;
    int at;
    bool fits = ls__call_begin(&call, name, 1, &a) && ls__call_dim(&call, dim, &at);
    if (fits) {
        k = k == ALL ? call.in[0]->dim[at] : k;
        fits = takes_k(&call, k, at);
    }
    ls_tensor *found = fits ? places(&call, k, at, largest) : call.failed;
    if (values != NULL) {
        *values = ls_tensor_status(found) < 0 ? found : ls_gather_dim(a, at, found);
    }
    if (indices != NULL) {
        *indices = found;
    }
    return ls_tensor_status(found);
}

/* Stable: equal elements keep their order. */
ls_tensor *ls_sort(ls_tensor *a, int dim, bool descending, ls_tensor **indices)
{
    ls_tensor *values;
    (void)order("sort", a, ALL, dim, descending, &values, indices);
    return values;
}

ls_tensor *ls_argsort(ls_tensor *a, int dim, bool descending)
{
    ls_tensor *indices;
    (void)order("argsort", a, ALL, dim, descending, NULL, &indices);
    return indices;
}

/* Sorted, the first being the largest or the least; of equal elements the first one wins. */
ls_tensor *ls_topk(ls_tensor *a, int64_t k, int dim, bool largest, ls_tensor **indices)
{
    ls_tensor *values;
    (void)order("topk", a, k, dim, largest, &values, indices);
    return values;
}

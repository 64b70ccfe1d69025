/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing elements: by a condition, and by an index along one dimension.
 *
 *   where    out = c ? a : b, the three broadcast by strides
 *   pick     to[i] = from[i'], i' = i with i'[dim] = index[i]
 *   put_add  to[i'] += from[i], in order of i
 */
#include <string.h>

#include "kernel/ref/ref.h"

/* out = c ? a : b; the operand that is not chosen plays no part. */
void ls__ref_where(float *out, const uint8_t *c, ls__strided c_strides, const float *a,
                   ls__strided a_strides, const float *b, ls__strided b_strides, int ndim,
                   const int64_t *shape, ls_stream *stream)
{
    (void)stream;
    int64_t count = ls__ref_count(ndim, shape);
    int64_t at[LS__KERNEL_DIMS_MAX] = {0};
    for (int64_t i = 0; i < count; i++) {
        bool chosen = c[ls__ref_offset(at, c_strides, ndim)] != 0;
        out[i] = chosen ? a[ls__ref_offset(at, a_strides, ndim)]
                        : b[ls__ref_offset(at, b_strides, ndim)];
        ls__ref_next(at, ndim, shape);
    }
}

/* Offset of i' = i with i'[dim] = index[i]. */
static int64_t chosen(const ls__pick *p, const int64_t *at, int64_t i, ls__strided strides)
{
    int64_t there[LS__KERNEL_DIMS_MAX] = {0};
    for (int d = 0; d < p->ndim; d++) {
        there[d] = d == p->dim ? ls__ref_index(p->index, p->index_bytes, i) : at[d];
    }
    return ls__ref_offset(there, strides, p->ndim);
}

/* to[i] = from with the index in place of the position along p->dim. */
void ls__ref_pick(const ls__pick *p, ls_stream *stream)
{
    (void)stream;
    int64_t count = ls__ref_count(p->ndim, p->shape);
    int64_t at[LS__KERNEL_DIMS_MAX] = {0};
    for (int64_t i = 0; i < count; i++) {
        const size_t to = (size_t)ls__ref_offset(at, p->to_strides, p->ndim);
        const size_t from = (size_t)chosen(p, at, i, p->from_strides);
        memcpy((char *)p->to + to * p->bytes, (const char *)p->from + from * p->bytes, p->bytes);
        ls__ref_next(at, p->ndim, p->shape);
    }
}

/* In order of i, so that sums of elements that fall together are reproducible. */
void ls__ref_put_add(const ls__pick *p, ls_stream *stream)
{
    (void)stream;
    int64_t count = ls__ref_count(p->ndim, p->shape);
    int64_t at[LS__KERNEL_DIMS_MAX] = {0};
    for (int64_t i = 0; i < count; i++) {
        ((float *)p->to)[chosen(p, at, i, p->to_strides)] +=
            ((const float *)p->from)[ls__ref_offset(at, p->from_strides, p->ndim)];
        ls__ref_next(at, p->ndim, p->shape);
    }
}

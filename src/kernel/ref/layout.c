/* SPDX-License-Identifier: Apache-2.0 */
/* Moving elements: strided to contiguous and back, and rows picked by an index. Nothing is
 * computed but where scatter accumulates and embedding_backward adds rows; both add in row-major
 * order of the contiguous side, so elements that are added to one place have one order. */
#include <string.h>

#include "kernel/ref/halves.h"
#include "kernel/ref/ref.h"

/* Element by element in row-major order of the shape. */
void ls__ref_gather(void *out, const void *in, ls__strided in_strides, int ndim,
                    const int64_t *shape, size_t bytes, ls_stream *stream)
{
    (void)stream;
    int64_t count = ls__ref_count(ndim, shape);
    int64_t at[LS__KERNEL_DIMS_MAX] = {0};
    for (int64_t i = 0; i < count; i++) {
        int64_t from = ls__ref_offset(at, in_strides, ndim);
        memcpy((char *)out + i * (int64_t)bytes, (const char *)in + from * (int64_t)bytes, bytes);
        ls__ref_next(at, ndim, shape);
    }
}

/* The other way round; elements that fall together add up in this order. */
void ls__ref_scatter(void *out, ls__strided out_strides, const void *in, int ndim,
                     const int64_t *shape, size_t bytes, float beta, ls_stream *stream)
{
    (void)stream;
    int64_t count = ls__ref_count(ndim, shape);
    int64_t at[LS__KERNEL_DIMS_MAX] = {0};
    for (int64_t i = 0; i < count; i++) {
        int64_t to = ls__ref_offset(at, out_strides, ndim);
        if (beta != 0.0f && bytes == sizeof(ls__bfloat16)) {
            ls__ref_axpby_bf16((ls__bfloat16 *)out + to, (const ls__bfloat16 *)in + i, 1, 1.0f,
                               1.0f, NULL);
        } else if (beta != 0.0f) { /* float32 */
            ((float *)out)[to] = beta * ((float *)out)[to] + ((const float *)in)[i];
        } else {
            memcpy((char *)out + to * (int64_t)bytes, (const char *)in + i * (int64_t)bytes, bytes);
        }
        ls__ref_next(at, ndim, shape);
    }
}

/* out[i] = weight[index[i]]; indices were checked by the caller. */
void ls__ref_embedding(float *out, const float *weight, const ls__lookup *at, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < at->count; i++) {
        const int64_t row = ls__ref_index(at->index, at->index_bytes, i) - at->first;
        for (int64_t j = 0; j < at->dim; j++) {
            out[i * at->dim + j] = row >= 0 && row < at->vocab ? weight[row * at->dim + j] : 0.0f;
        }
    }
}

/* Adds to dweight, in the order of i; the caller has cleared it or adds on purpose. */
void ls__ref_embedding_backward(float *dweight, const float *dy, const ls__lookup *at,
                                ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < at->count; i++) {
        const int64_t row = ls__ref_index(at->index, at->index_bytes, i) - at->first;
        for (int64_t j = 0; row >= 0 && row < at->vocab && j < at->dim; j++) {
            dweight[row * at->dim + j] += dy[i * at->dim + j];
        }
    }
}

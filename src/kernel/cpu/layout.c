/* SPDX-License-Identifier: Apache-2.0 */
/* Moving elements: strided to contiguous and back, and rows picked by an index. Strides are
 * merged first (walk.h), so that most calls move a few long rows. embedding_backward has one
 * owner for each range of rows of the table, so rows named twice are added in order of the
 * index. */
#include <string.h>

#include "base/half.h"
#include "kernel/cpu/walk.h"

static const ls__strided no_strides; /* of the operand a walk does not use */

/* out[i*so] = in[i*si] for `count` elements of one type; strides 1 are constants where inlined. */
#define COPY_ROW(type)                                                                             \
    LS__INLINE void copy_##type(void *out, int64_t so, const void *in, int64_t si, int64_t count)  \
    {                                                                                              \
        type *to = out;                                                                            \
        const type *from = in;                                                                     \
        _Pragma("omp simd") for (int64_t i = 0; i < count; i++)                                    \
        {                                                                                          \
            to[i * so] = from[i * si];                                                             \
        }                                                                                          \
    }
COPY_ROW(uint8_t)
COPY_ROW(uint16_t)
COPY_ROW(uint32_t)
COPY_ROW(uint64_t)

/* A row of elements of `bytes`; their type does not matter to a copy. */
static void copy_strided(void *out, int64_t so, const void *in, int64_t si, int64_t count,
                         size_t bytes)
{
    switch (bytes) {
    case 1:
        copy_uint8_t(out, so, in, si, count);
        break;
    case 2:
        copy_uint16_t(out, so, in, si, count);
        break;
    case 4:
        copy_uint32_t(out, so, in, si, count);
        break;
    default:
        copy_uint64_t(out, so, in, si, count);
        break;
    }
}

/* memcpy for rows as they lie, a loop by element size for the others. */
static void copy_row(void *out, int64_t so, const void *in, int64_t si, int64_t count, size_t bytes)
{
    if (so == 1 && si == 1 && bytes == 4) {
        copy_uint32_t(out, 1, in, 1, count); /* rows are often short: no call */
    } else if (so == 1 && si == 1) {
        memcpy(out, in, (size_t)count * bytes);
    } else {
        copy_strided(out, so, in, si, count, bytes);
    }
}

/* Only the output has a stride: the input of scatter is contiguous. */
static void add_row(float *out, int64_t so, const float *in, int64_t count, float beta)
{
    if (so == 1) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            out[i] = beta * out[i] + in[i];
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            out[i * so] = beta * out[i * so] + in[i];
        }
    }
}

/* Each sum is rounded once. Rows of bfloat16 gradients are added at most a few times. */
static void add_half_row(ls__bfloat16 *out, int64_t so, const ls__bfloat16 *in, int64_t count)
{
    if (so == 1) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            out[i] = ls__bfloat16_round(ls__bfloat16_widen(out[i]) + ls__bfloat16_widen(in[i]));
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            ls__bfloat16 *to = &out[i * so];
            *to = ls__bfloat16_round(ls__bfloat16_widen(*to) + ls__bfloat16_widen(in[i]));
        }
    }
}

/* out is contiguous; `bytes` is the size of an element, whose type does not matter. */
void LS__K(gather)(void *out, const void *in, ls__strided in_strides, int ndim,
                   const int64_t *shape, size_t bytes, ls_stream *stream)
{
    (void)stream;
    ls__kernel_walk w = ls__walk_of(ndim, shape, in_strides, no_strides);
    int64_t si = w.a.stride[w.ndim - 1], step = (int64_t)bytes;
    LS__PARALLEL_FOR(w.rows * w.width >= LS__PARALLEL_MIN, int64_t i = 0, i < w.rows, i++, {
        int64_t at, unused;
        ls__walk_row(&w, i, &at, &unused);
        copy_row((char *)out + i * w.width * step, 1, (const char *)in + at * step, si, w.width,
                 bytes);
    })
}

/* The inverse of gather. With a beta, elements are float32 or, where they have two bytes, bfloat16;
 * callers add no other type. Elements of out must not overlap. */
void LS__K(scatter)(void *out, ls__strided out_strides, const void *in, int ndim,
                    const int64_t *shape, size_t bytes, float beta, ls_stream *stream)
{
    (void)stream;
    ls__kernel_walk w = ls__walk_of(ndim, shape, out_strides, no_strides);
    int64_t so = w.a.stride[w.ndim - 1], step = (int64_t)bytes;
    LS__PARALLEL_FOR(w.rows * w.width >= LS__PARALLEL_MIN, int64_t i = 0, i < w.rows, i++, {
        int64_t at, unused;
        ls__walk_row(&w, i, &at, &unused);
        const char *from = (const char *)in + i * w.width * step;
        if (beta != 0.0f && bytes == sizeof(ls__bfloat16)) {
            add_half_row((ls__bfloat16 *)out + at, so, (const ls__bfloat16 *)(const void *)from,
                         w.width);
        } else if (beta != 0.0f) {
            add_row((float *)out + at, so, (const float *)in + i * w.width, w.width, beta);
        } else {
            copy_row((char *)out + at * step, so, from, 1, w.width, bytes);
        }
    })
}

/* The row of the table that is meant, from the first one that is here. Indices are int32 or int64
 * as the user gave them. */
LS__INLINE int64_t row_at(const ls__lookup *at, int64_t i)
{
    return (at->index_bytes == 4 ? ((const int32_t *)at->index)[i]
                                 : ((const int64_t *)at->index)[i]) -
           at->first;
}

/* Indices were checked by the caller: all are below the vocabulary. */
void LS__K(embedding)(float *out, const float *weight, const ls__lookup *at, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(at->count * at->dim >= LS__PARALLEL_MIN, int64_t i = 0, i < at->count, i++, {
        const int64_t row = row_at(at, i);
        if (row >= 0 && row < at->vocab) {
            copy_uint32_t(out + i * at->dim, 1, weight + row * at->dim, 1, at->dim);
        } else {
            memset(out + i * at->dim, 0, (size_t)at->dim * sizeof *out);
        }
    })
}

/* Each thread owns a range of the table and reads every index: a row's sum is in order of i
 * whatever the number of threads. */
void LS__K(embedding_backward)(float *dweight, const float *dy, const ls__lookup *at,
                               ls_stream *stream)
{
    (void)stream;
    const int64_t vocab = at->vocab, dim = at->dim;
    int64_t owners = at->count * dim >= LS__PARALLEL_MIN ? ls__threads_own() : 1;
    LS__PARALLEL_FOR(owners > 1, int64_t owner = 0, owner < owners, owner++, {
        int64_t first = vocab * owner / owners, end = vocab * (owner + 1) / owners;
        for (int64_t i = 0; i < at->count; i++) {
            int64_t row = row_at(at, i);
            if (row >= first && row < end) {
                add_row(dweight + row * dim, 1, dy + i * dim, dim, 1.0f);
            }
        }
    })
}

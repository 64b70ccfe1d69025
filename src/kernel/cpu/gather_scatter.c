/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing elements: by a condition, and by an index along one dimension; formulas in
 * ref/gather_scatter.c. put_add has one owner for each slice of the first dimension, so elements
 * that fall together are added in order of the index for any number of threads. */
#include "base/assert.h"
#include "kernel/cpu/isa.h"

/* Both operands are read, so that the choice is a blend and not a branch. */
LS__INLINE void where_row(float *out, const uint8_t *c, int64_t sc, const float *a, int64_t sa,
                          const float *b, int64_t sb, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float x = a[i * sa], y = b[i * sb]; /* both read: no branch */
        out[i] = c[i * sc] != 0 ? x : y;
    }
}

/* Offset of row `row` of shape[ndim-1]. */
LS__INLINE int64_t row_offset(int64_t row, int ndim, const int64_t *shape, const ls__strided *s)
{
    int64_t at = 0;
    for (int d = ndim - 2; d >= 0; d--) {
        at += row % shape[d] * s->stride[d];
        row /= shape[d];
    }
    return at;
}

/* All dimensions but the last; 1 for a scalar. */
static int64_t rows_of(int ndim, const int64_t *shape)
{
    int64_t rows = 1;
    for (int d = 0; d < ndim - 1; d++) {
        rows *= shape[d];
    }
    return rows;
}

/* out is contiguous. The unchosen operand is read, but its NaN does not spread. */
void LS__K(where)(float *out, const uint8_t *c, ls__strided c_strides, const float *a,
                  ls__strided a_strides, const float *b, ls__strided b_strides, int ndim,
                  const int64_t *shape, ls_stream *stream)
{
    (void)stream;
    int64_t rows = rows_of(ndim, shape), n = ndim > 0 ? shape[ndim - 1] : 1;
    int64_t sc = ndim > 0 ? c_strides.stride[ndim - 1] : 0;
    int64_t sa = ndim > 0 ? a_strides.stride[ndim - 1] : 0;
    int64_t sb = ndim > 0 ? b_strides.stride[ndim - 1] : 0;
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++, {
        const uint8_t *ci = c + row_offset(i, ndim, shape, &c_strides);
        const float *ai = a + row_offset(i, ndim, shape, &a_strides);
        const float *bi = b + row_offset(i, ndim, shape, &b_strides);
        if (sc == 1 && sa == 1 && sb == 1) {
            where_row(out + i * n, ci, 1, ai, 1, bi, 1, n);
        } else if (sc == 1 && sa == 1 && sb == 0) {
            where_row(out + i * n, ci, 1, ai, 1, bi, 0, n);
        } else if (sc == 1 && sa == 0 && sb == 1) {
            where_row(out + i * n, ci, 1, ai, 0, bi, 1, n);
        } else {
            where_row(out + i * n, ci, sc, ai, sa, bi, sb, n);
        }
    })
}

/* Indices are int32 or int64 as the user gave them; a copy to one type would cost more than this
 * branch. */
LS__INLINE int64_t index_at(const void *index, size_t index_bytes, int64_t i)
{
    return index_bytes == 4 ? ((const int32_t *)index)[i] : ((const int64_t *)index)[i];
}

typedef struct row_strides { /* along a row: the indexed side, and the other */
    int64_t step, by_index, other;
} row_strides;

/* Along the last dimension the index replaces the position, so the step there is 0. */
static row_strides strides_of(const ls__pick *p, const ls__strided *indexed,
                              const ls__strided *plain)
{
    int last = p->ndim - 1;
    return (row_strides){.step = p->dim == last ? 0 : indexed->stride[last],
                         .by_index = indexed->stride[p->dim],
                         .other = plain->stride[last]};
}

/* The indexed side with stride 0 along `dim`: where a row starts but for its index. */
static ls__strided without_dim(const ls__pick *p, const ls__strided *indexed)
{
    ls__strided out = *indexed;
    out.stride[p->dim] = 0;
    return out;
}

/* to[j * s->other] = from[index of j], n elements of one size. */
#define PICK_ROW(type)                                                                             \
    LS__INLINE void pick_##type(const ls__pick *p, const row_strides *s, int64_t at_to,            \
                                int64_t at_from, int64_t first, int64_t n)                         \
    {                                                                                              \
        const type *from = (const type *)p->from + at_from;                                        \
        type *to = (type *)p->to + at_to;                                                          \
        for (int64_t j = 0; j < n; j++) {                                                          \
            const int64_t index = index_at(p->index, p->index_bytes, first + j);                   \
            to[j * s->other] = from[j * s->step + index * s->by_index];                            \
        }                                                                                          \
    }
PICK_ROW(uint8_t)
PICK_ROW(uint16_t)
PICK_ROW(uint32_t)
PICK_ROW(uint64_t)

/* By the size of an element alone: its type does not matter to a copy. */
static void pick_row(const ls__pick *p, const row_strides *s, int64_t at_to, int64_t at_from,
                     int64_t first, int64_t n)
{
    switch (p->bytes) {
    case 1:
        pick_uint8_t(p, s, at_to, at_from, first, n);
        break;
    case 2:
        pick_uint16_t(p, s, at_to, at_from, first, n);
        break;
    case 4:
        pick_uint32_t(p, s, at_to, at_from, first, n);
        break;
    default:
        LS_ASSERT(p->bytes == 8);
        pick_uint64_t(p, s, at_to, at_from, first, n);
        break;
    }
}

/* Indices were checked by the caller: none is outside the dimension. */
void LS__K(pick)(const ls__pick *p, ls_stream *stream)
{
    (void)stream;
    int64_t rows = rows_of(p->ndim, p->shape), n = p->shape[p->ndim - 1];
    ls__strided indexed = without_dim(p, &p->from_strides);
    row_strides s = strides_of(p, &p->from_strides, &p->to_strides);
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++, {
        pick_row(p, &s, row_offset(i, p->ndim, p->shape, &p->to_strides),
                 row_offset(i, p->ndim, p->shape, &indexed), i * n, n);
    })
}

/* One thread's rows: those of a slice of the first dimension, in order. */
static void put_rows(const ls__pick *p, const ls__strided *indexed, const row_strides *s,
                     int64_t first, int64_t end)
{
    int64_t n = p->shape[p->ndim - 1];
    for (int64_t i = first; i < end; i++) {
        float *to = (float *)p->to + row_offset(i, p->ndim, p->shape, indexed);
        const float *from =
            (const float *)p->from + row_offset(i, p->ndim, p->shape, &p->from_strides);
        for (int64_t j = 0; j < n; j++) {
            int64_t index = index_at(p->index, p->index_bytes, i * n + j);
            to[j * s->step + index * s->by_index] += from[j * s->other];
        }
    }
}

/* Slices of the first dimension meet nowhere, unless it is the one that is indexed. */
void LS__K(put_add)(const ls__pick *p, ls_stream *stream)
{
    (void)stream;
    int64_t rows = rows_of(p->ndim, p->shape), n = p->shape[p->ndim - 1];
    int64_t slices = p->dim > 0 ? p->shape[0] : 1;
    ls__strided indexed = without_dim(p, &p->to_strides);
    row_strides s = strides_of(p, &p->to_strides, &p->from_strides);
    LS__PARALLEL_FOR(slices > 1 && rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < slices, i++,
                     { put_rows(p, &indexed, &s, rows * i / slices, rows * (i + 1) / slices); })
}

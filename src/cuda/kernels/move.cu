/* SPDX-License-Identifier: Apache-2.0 */
/* Moving elements: strided to contiguous and back, and chosen by an index. Where elements fall
 * together, one thread adds them in the order of kernel/ref. */
#include "common.cuh"

static __device__ __inline__ void copy_element(void *to, int64_t at, const void *from, int64_t i,
                                               size_t bytes)
{
    switch (bytes) {
    case 1:
        ((uint8_t *)to)[at] = ((const uint8_t *)from)[i];
        break;
    case 2:
        ((uint16_t *)to)[at] = ((const uint16_t *)from)[i];
        break;
    case 4:
        ((uint32_t *)to)[at] = ((const uint32_t *)from)[i];
        break;
    default:
        ((uint64_t *)to)[at] = ((const uint64_t *)from)[i];
    }
}

static __device__ __inline__ int64_t product(int ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int d = 0; d < ndim; d++) {
        count *= shape[d];
    }
    return count;
}

KERNEL(gather)
{
    EACH(i, product(k.ndim, k.shape))
    {
        copy_element(k.out, i, k.in, offset_of(i, k.in_strides, k.ndim, k.shape), k.bytes);
    }
}

/* Dimensions of stride 0, along which elements fall together, are walked by one thread. */
KERNEL(scatter)
{
    int64_t kept[LS__KERNEL_DIMS_MAX], walked[LS__KERNEL_DIMS_MAX];
    ls__strided to = {}, from = {}, on = {}; /* of kept dimensions in out and in, of walked ones */
    int kept_dims = 0, walked_dims = 0;
    int64_t stride = product(k.ndim, k.shape);
    for (int d = 0; d < k.ndim; d++) {
        stride /= k.shape[d];
        if (k.out_strides.stride[d] != 0) {
            kept[kept_dims] = k.shape[d];
            to.stride[kept_dims] = k.out_strides.stride[d];
            from.stride[kept_dims++] = stride;
        } else {
            walked[walked_dims] = k.shape[d];
            on.stride[walked_dims++] = stride;
        }
    }
    EACH(i, product(kept_dims, kept))
    {
        const int64_t at = offset_of(i, to, kept_dims, kept);
        const int64_t first = offset_of(i, from, kept_dims, kept);
        for (int64_t j = 0; j < product(walked_dims, walked); j++) {
            const int64_t in = first + offset_of(j, on, walked_dims, walked);
            if (k.beta == 0.0f) {
                copy_element(k.out, at, k.in, in, k.bytes);
            } else if (k.bytes == sizeof(ls__bfloat16)) {
                store((ls__bfloat16 *)k.out, at, get((const ls__bfloat16 *)k.in, in), k.beta);
            } else {
                store((float *)k.out, at, ((const float *)k.in)[in], k.beta);
            }
        }
    }
}

/* The offset with the index in place of the coordinate along the dimension. */
static __device__ __inline__ int64_t chosen(const ls__pick &p, int64_t *at, int64_t i,
                                            const ls__strided &s)
{
    int64_t there = 0;
    for (int d = 0; d < p.ndim; d++) {
        there += (d == p.dim ? index_at(p.index, p.index_bytes, i) : at[d]) * s.stride[d];
    }
    return there;
}

KERNEL(pick)
{
    const ls__pick &p = k.args;
    EACH(i, product(p.ndim, k.shape))
    {
        int64_t at[LS__KERNEL_DIMS_MAX];
        coordinates(i, p.ndim, k.shape, at);
        copy_element(p.to, offset_of(i, p.to_strides, p.ndim, k.shape), p.from,
                     chosen(p, at, i, p.from_strides), p.bytes);
    }
}

/* A thread for each line along the dimension: only elements of a line fall together. */
KERNEL(put_add)
{
    const ls__pick &p = k.args;
    int64_t inner = 1;
    for (int d = p.dim + 1; d < p.ndim; d++) {
        inner *= k.shape[d];
    }
    const int64_t length = k.shape[p.dim];
    EACH(line, product(p.ndim, k.shape) / length)
    {
        for (int64_t j = 0; j < length; j++) {
            const int64_t i = (line / inner * length + j) * inner + line % inner;
            int64_t at[LS__KERNEL_DIMS_MAX];
            coordinates(i, p.ndim, k.shape, at);
            ((float *)p.to)[chosen(p, at, i, p.to_strides)] +=
                ((const float *)p.from)[offset_of(i, p.from_strides, p.ndim, k.shape)];
        }
    }
}

/* ---- tables ----------------------------------------------------------------------------------- */

KERNEL(embedding)
{
    const ls__lookup &t = k.at;
    EACH(i, t.count * t.dim)
    {
        const int64_t row = index_at(t.index, t.index_bytes, i / t.dim) - t.first;
        k.out[i] = row >= 0 && row < t.vocab ? k.weight[row * t.dim + i % t.dim] : 0.0f;
    }
}

/* A block for each index; that of the first of equal indices adds the rows of all, in order. */
KERNEL(embedding_backward)
{
    const ls__lookup &t = k.at;
    ROWS(first, t.count)
    {
        const int64_t index = index_at(t.index, t.index_bytes, first), row = index - t.first;
        int before = 0;
        WITHIN(i, first)
        {
            before |= index_at(t.index, t.index_bytes, i) == index;
        }
        before = combine(before, larger());
        if (before == 0 && row >= 0 && row < t.vocab) {
            for (int64_t i = first; i < t.count; i++) {
                if (index_at(t.index, t.index_bytes, i) == index) {
                    WITHIN(j, t.dim)
                    {
                        k.dweight[row * t.dim + j] += k.dy[i * t.dim + j];
                    }
                }
            }
        }
    }
}

/* ---- comparisons of any type ------------------------------------------------------------------ */

/* -1, 0 or 1; 2: one of the two is NaN. */
template <class T> static __device__ __inline__ int order(T a, T b)
{
    return a < b ? -1 : a == b ? 0 : a > b ? 1 : 2;
}

static __device__ int order_at(ls_dtype dtype, const void *x, int64_t i, const void *y, int64_t j)
{
#define ORDER(of, type)                                                                            \
    case of:                                                                                       \
        return order(((const type *)x)[i], ((const type *)y)[j]);
    switch (dtype) {
        ORDER(LS_FLOAT32, float)
        ORDER(LS_FLOAT64, double)
        ORDER(LS_INT8, int8_t)
        ORDER(LS_UINT8, uint8_t)
        ORDER(LS_INT16, int16_t)
        ORDER(LS_UINT16, uint16_t)
        ORDER(LS_INT32, int32_t)
        ORDER(LS_UINT32, uint32_t)
        ORDER(LS_INT64, int64_t)
        ORDER(LS_UINT64, uint64_t)
    case LS_BOOL:
        return order(((const uint8_t *)x)[i] != 0, ((const uint8_t *)y)[j] != 0);
    case LS_BFLOAT16:
        return order(get((const ls__bfloat16 *)x, i), get((const ls__bfloat16 *)y, j));
    case LS_FLOAT16:
        return order(ls__float16_widen(((const uint16_t *)x)[i]),
                     ls__float16_widen(((const uint16_t *)y)[j]));
    default:
        return 0;
    }
#undef ORDER
}

/* Whether it is not zero; NaN is not. */
static __device__ bool is_set(ls_dtype dtype, const void *x, int64_t i)
{
    const uint64_t zero = 0;
    return order_at(dtype, x, i, &zero, 0) != 0;
}

KERNEL(compare)
{
    const ls__comparison &c = k.args;
    EACH(i, product(c.ndim, k.shape))
    {
        const int64_t a = offset_of(i, c.a_strides, c.ndim, k.shape);
        const int64_t b = offset_of(i, c.b_strides, c.ndim, k.shape);
        bool holds = false;
        if (c.op == LS__COMPARE_AND) {
            holds = is_set(c.dtype, c.a, a) && is_set(c.dtype, c.b, b);
        } else if (c.op == LS__COMPARE_OR) {
            holds = is_set(c.dtype, c.a, a) || is_set(c.dtype, c.b, b);
        } else {
            const int found = order_at(c.dtype, c.a, a, c.b, b);
            holds = c.op == LS__COMPARE_EQ   ? found == 0
                    : c.op == LS__COMPARE_NE ? found != 0
                    : c.op == LS__COMPARE_LT ? found == -1
                                             : found == -1 || found == 0;
        }
        c.out[i] = holds;
    }
}

/* Whether element i stands before j, which came first; NaN is the largest. */
static __device__ bool stands_before(ls_dtype dtype, const void *x, int64_t i, int64_t j,
                                     bool largest)
{
    const int found = order_at(dtype, x, i, x, j);
    if (found != 2) {
        return found == (largest ? 1 : -1);
    }
    const bool i_is_nan = order_at(dtype, x, i, x, i) == 2,
               j_is_nan = order_at(dtype, x, j, x, j) == 2;
    return largest ? i_is_nan && !j_is_nan : !i_is_nan && j_is_nan;
}

/* By insertion, a thread for each row: for small k. */
KERNEL(top)
{
    EACH(row, k.rows)
    {
        int64_t *found = k.index + row * k.k;
        const int64_t first = row * k.n;
        for (int64_t i = 0; i < k.n; i++) {
            int64_t at = i < k.k ? i : k.k;
            for (;
                 at > 0 && stands_before(k.dtype, k.x, first + i, first + found[at - 1], k.largest);
                 at--) {
                if (at < k.k) {
                    found[at] = found[at - 1];
                }
            }
            if (at < k.k) {
                found[at] = i;
            }
        }
    }
}

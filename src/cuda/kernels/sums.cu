/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over rows, columns, chosen dimensions or everything; and the first element that is not as it
 * must be. A sum over everything is made of one partial sum for each block, in float64. */
#include "common.cuh"

template <class K> static __device__ __inline__ void sum_columns(const K &k)
{
    ROWS(tile, (k.n + LS__CUDA_TILE - 1) / LS__CUDA_TILE)
    {
        const int64_t column = tile_column(tile);
        float sum = 0.0f;
        for (int64_t r = tile_line(); column < k.n && r < k.rows; r += LINES) {
            sum += get(k.x, r * k.n + column);
        }
        sum = sum_of_lines(sum);
        if (tile_line() == 0 && column < k.n) {
            store(k.out, column, sum, k.beta);
        }
    }
}

KERNEL(sum_rows)
{
    sum_columns(k);
}

KERNEL(sum_rows_bf16)
{
    sum_columns(k);
}

KERNEL(sum_cols)
{
    ROWS(r, k.rows)
    {
        float sum = 0.0f;
        WITHIN(j, k.n)
        {
            sum += k.x[r * k.n + j];
        }
        sum = sum_of(sum);
        if (threadIdx.x == 0) {
            store(k.out, r, sum, k.beta);
        }
    }
}

/* Element j of the sum of output i. */
static __device__ __inline__ float term(const cuda_sum_dims_args &k, int64_t i, int64_t j)
{
    int64_t at = 0;
    for (int d = k.ndim - 1; d >= k.kept; d--) {
        at += j % k.shape[d] * k.strides.stride[d];
        j /= k.shape[d];
    }
    for (int d = k.kept - 1; d >= 0; d--) {
        at += i % k.shape[d] * k.strides.stride[d];
        i /= k.shape[d];
    }
    return k.x[at];
}

KERNEL(sum_dims)
{
    ROWS(i, k.outputs)
    {
        float sum = 0.0f;
        WITHIN(j, k.terms)
        {
            sum += term(k, i, j);
        }
        sum = sum_of(sum);
        if (threadIdx.x == 0) {
            store(k.out, i, sum, k.beta);
        }
    }
}

/* Fewer terms than a block has threads. */
KERNEL(sum_dims_few)
{
    EACH(i, k.outputs)
    {
        float sum = 0.0f;
        for (int64_t j = 0; j < k.terms; j++) {
            sum += term(k, i, j);
        }
        store(k.out, i, sum, k.beta);
    }
}

/* ---- everything ------------------------------------------------------------------------------- */

KERNEL(sum_part)
{
    const ls__real x = real_of(k.x, k.half);
    double sum = 0.0;
    EACH(i, k.count)
    {
        const double value = (double)get(x, i);
        sum += k.squares ? value * value : value;
    }
    sum = sum_of(sum);
    if (threadIdx.x == 0) {
        k.partial[blockIdx.x] = sum;
    }
}

KERNEL(sum_end)
{
    double sum = 0.0;
    WITHIN(i, k.count)
    {
        sum += k.partial[i];
    }
    sum = sum_of(sum);
    if (threadIdx.x == 0) {
        if (k.out_sum != NULL) {
            *k.out_sum = sum;
        }
        if (k.out != NULL) {
            *k.out = (float)(sum / (k.over != NULL ? *k.over : k.divisor));
        }
    }
}

/* ---- the first of its kind ---------------------------------------------------------------------- */

static __device__ bool is_finite(ls_dtype dtype, const void *x, int64_t i)
{
    switch (dtype) {
    case LS_FLOAT64:
        return isfinite(((const double *)x)[i]);
    case LS_FLOAT32:
        return isfinite(((const float *)x)[i]);
    case LS_FLOAT16:
        return (((const uint16_t *)x)[i] & 0x7c00) != 0x7c00;
    case LS_BFLOAT16:
        return (((const uint16_t *)x)[i] & 0x7f80) != 0x7f80;
    default:
        return true;
    }
}

static __device__ bool is_index(const ls__index_check &c, int64_t i)
{
    const int64_t at = index_at(c.index, c.index_bytes, i);
    return (at >= 0 && at < c.n) || (c.may_ignore && at == c.ignore);
}

KERNEL(first_part)
{
    int64_t first = INT64_MAX;
    EACH(i, k.to - k.from)
    {
        const int64_t at = k.from + i;
        if (!(k.checks_index ? is_index(k.check, at) : is_finite(k.dtype, k.x, at))) {
            first = at < first ? at : first;
        }
    }
    first = combine(first, smaller());
    if (threadIdx.x == 0) {
        k.partial[blockIdx.x] = first;
    }
}

KERNEL(first_end)
{
    int64_t first = INT64_MAX;
    WITHIN(i, k.count)
    {
        first = k.partial[i] < first ? k.partial[i] : first;
    }
    first = combine(first, smaller());
    if (threadIdx.x == 0) {
        k.first[0] = first == INT64_MAX ? -1 : first;
        if (k.checks_index && first != INT64_MAX) {
            k.first[1] = index_at(k.check.index, k.check.index_bytes, first);
        }
    }
}

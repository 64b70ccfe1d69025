/* SPDX-License-Identifier: Apache-2.0 */
/* Functions over the last dimension, a block for each row: softmax, norms, variance, extremes; and
 * their gradients. Rows are read from memory once for each pass, which the caches of a block serve. */
#include "common.cuh"

/* ---- softmax ---------------------------------------------------------------------------------- */

template <class K> static __device__ __inline__ void softmax_rows(const K &k)
{
    ROWS(r, k.rows)
    {
        float max = -INFINITY, sum = 0.0f;
        WITHIN(j, k.n)
        {
            max = fmaxf(max, get(k.x, r * k.n + j));
        }
        max = combine(max, larger());
        WITHIN(j, k.n)
        {
            sum += expf(get(k.x, r * k.n + j) - max);
        }
        sum = sum_of(sum);
        const float log_sum = logf(sum);
        WITHIN(j, k.n)
        {
            const float shifted = get(k.x, r * k.n + j) - max;
            put(k.out, r * k.n + j, k.log ? shifted - log_sum : expf(shifted) / sum);
        }
    }
}

KERNEL(softmax)
{
    softmax_rows(k);
}

KERNEL(softmax_bf16)
{
    softmax_rows(k);
}

template <class K> static __device__ __inline__ void softmax_gradient(const K &k)
{
    ROWS(r, k.rows)
    {
        float sum = 0.0f;
        WITHIN(j, k.n)
        {
            const int64_t at = r * k.n + j;
            sum += get(k.dy, at) * (k.log ? 1.0f : get(k.y, at));
        }
        sum = sum_of(sum);
        WITHIN(j, k.n)
        {
            const int64_t at = r * k.n + j;
            const float g = get(k.dy, at), y = get(k.y, at);
            store(k.dx, at, k.log ? g - expf(y) * sum : y * (g - sum), k.beta);
        }
    }
}

KERNEL(softmax_backward)
{
    softmax_gradient(k);
}

KERNEL(softmax_backward_bf16)
{
    softmax_gradient(k);
}

/* ---- norms ------------------------------------------------------------------------------------ */

/* Of rows whose mean is large beside their deviation, float32 would leave nothing: float64. */
template <class T> static __device__ __inline__ double mean_of(T x, int64_t first, int64_t n)
{
    double sum = 0.0;
    WITHIN(j, n)
    {
        sum += (double)get(x, first + j);
    }
    return sum_of(sum) / (double)n;
}

template <class T>
static __device__ __inline__ double squares_of(T x, int64_t first, int64_t n, double mean)
{
    double sum = 0.0;
    WITHIN(j, n)
    {
        const double d = (double)get(x, first + j) - mean;
        sum += d * d;
    }
    return sum_of(sum);
}

template <class K> static __device__ __inline__ void layer_norm_rows(const K &k)
{
    ROWS(r, k.rows)
    {
        const double mean = mean_of(k.x, r * k.n, k.n);
        const double variance = squares_of(k.x, r * k.n, k.n, mean) / (double)k.n;
        const float rstd = (float)(1.0 / sqrt(variance + (double)k.eps));
        WITHIN(j, k.n)
        {
            const float h = (float)((double)get(k.x, r * k.n + j) - mean) * rstd;
            const float scaled = k.w != NULL ? h * k.w[j] : h;
            put(k.y, r * k.n + j, k.b != NULL ? scaled + k.b[j] : scaled);
        }
        if (threadIdx.x == 0) {
            k.mean[r] = (float)mean;
            k.rstd[r] = rstd;
        }
    }
}

KERNEL(layer_norm)
{
    layer_norm_rows(k);
}

KERNEL(layer_norm_bf16)
{
    layer_norm_rows(k);
}

template <class K> static __device__ __inline__ void rms_norm_rows(const K &k)
{
    ROWS(r, k.rows)
    {
        const double square = squares_of(k.x, r * k.n, k.n, 0.0) / (double)k.n;
        const float rstd = (float)(1.0 / sqrt(square + (double)k.eps));
        WITHIN(j, k.n)
        {
            const float h = get(k.x, r * k.n + j) * rstd;
            put(k.y, r * k.n + j, k.w != NULL ? h * k.w[j] : h);
        }
        if (threadIdx.x == 0) {
            k.rstd[r] = rstd;
        }
    }
}

KERNEL(rms_norm)
{
    rms_norm_rows(k);
}

KERNEL(rms_norm_bf16)
{
    rms_norm_rows(k);
}

/* What the mean of a row lost when it was rounded to float32. */
template <class T>
static __device__ __inline__ float rest_of(T x, int64_t first, int64_t n, float mean)
{
    float sum = 0.0f;
    WITHIN(j, n)
    {
        sum += get(x, first + j) - mean;
    }
    return sum_of(sum) / (float)n;
}

/* With g = dy w and h = (x - mean) rstd: dx = rstd (g - mean(g) - h mean(g h)), of rms norm without
 * means. Notes what the means lost, for norm_weights. */
KERNEL(norm_gradient)
{
    const ls__real x = real_of(k.x, k.half), dy = real_of(k.dy, k.half), dx = real_of(k.dx, k.half);
    ROWS(r, k.rows)
    {
        const float mean = k.mean != NULL ? k.mean[r] : 0.0f, rstd = k.rstd[r];
        const float rest = k.mean != NULL ? rest_of(x, r * k.n, k.n, mean) : 0.0f;
        float sum_g = 0.0f, sum_gh = 0.0f;
        if (threadIdx.x == 0 && k.rest != NULL) {
            k.rest[r] = rest;
        }
        WITHIN(j, k.dx != NULL ? k.n : 0)
        {
            const float h = (get(x, r * k.n + j) - mean - rest) * rstd;
            const float g = get(dy, r * k.n + j) * (k.w != NULL ? k.w[j] : 1.0f);
            sum_g += g;
            sum_gh += g * h;
        }
        const float mean_g = k.mean != NULL ? sum_of(sum_g) / (float)k.n : 0.0f;
        const float mean_gh = sum_of(sum_gh) / (float)k.n;
        WITHIN(j, k.dx != NULL ? k.n : 0)
        {
            const float h = (get(x, r * k.n + j) - mean - rest) * rstd;
            const float g = get(dy, r * k.n + j) * (k.w != NULL ? k.w[j] : 1.0f);
            store(dx, r * k.n + j, rstd * (g - mean_g - h * mean_gh), k.beta);
        }
    }
}

/* dw = sum dy h and db = sum dy over the rows. */
KERNEL(norm_weights)
{
    const ls__real x = real_of(k.x, k.half), dy = real_of(k.dy, k.half);
    ROWS(tile, (k.n + LS__CUDA_TILE - 1) / LS__CUDA_TILE)
    {
        const int64_t column = tile_column(tile);
        float dw = 0.0f, db = 0.0f;
        for (int64_t r = tile_line(); column < k.n && r < k.rows; r += LINES) {
            const float g = get(dy, r * k.n + column);
            const float d = get(x, r * k.n + column) - (k.mean != NULL ? k.mean[r] : 0.0f);
            dw += g * (k.rest != NULL ? d - k.rest[r] : d) * k.rstd[r];
            db += g;
        }
        dw = sum_of_lines(dw);
        db = sum_of_lines(db);
        if (tile_line() == 0 && column < k.n) {
            if (k.dw != NULL) {
                store(k.dw, column, dw, k.beta);
            }
            if (k.db != NULL) {
                store(k.db, column, db, k.beta);
            }
        }
    }
}

KERNEL(variance)
{
    ROWS(r, k.rows)
    {
        const double mean = mean_of(k.x, r * k.n, k.n);
        const double squares = squares_of(k.x, r * k.n, k.n, mean);
        if (threadIdx.x == 0) {
            k.out[r] = (float)(squares / k.divisor);
            k.mean[r] = (float)mean;
        }
    }
}

KERNEL(variance_backward)
{
    ROWS(r, k.rows)
    {
        const float rest = rest_of(k.x, r * k.n, k.n, k.mean[r]);
        const float factor = (float)(2.0 * (double)k.dy[r] / k.divisor);
        WITHIN(j, k.n)
        {
            const int64_t at = r * k.n + j;
            store(k.dx, at, factor * (k.x[at] - k.mean[r] - rest), k.beta);
        }
    }
}

/* ---- along the middle of [outer,n,inner] ------------------------------------------------------ */

KERNEL(cumsum)
{
    EACH(i, k.outer * k.inner)
    {
        const int64_t first = i / k.inner * k.n * k.inner + i % k.inner;
        double sum = 0.0;
        for (int64_t j = 0; j < k.n; j++) {
            const int64_t at = first + (k.reverse ? k.n - 1 - j : j) * k.inner;
            sum += (double)k.x[at];
            store(k.out, at, (float)sum, k.beta);
        }
    }
}

struct place { /* an element, and where it stands */
    float value;
    int64_t at; /* -1: none */
};

struct more_extreme { /* the first NaN, or the first of the largest or least */
    bool least;
    __device__ place operator()(place a, place b) const
    {
        if (a.at < 0 || b.at < 0) {
            return a.at < 0 ? b : a;
        }
        const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
        if (a_is_nan || b_is_nan) {
            return a_is_nan && (!b_is_nan || a.at < b.at) ? a : b;
        }
        if (a.value == b.value) {
            return a.at < b.at ? a : b;
        }
        return (a.value < b.value) == least ? a : b;
    }
};

KERNEL(extreme)
{
    const more_extreme better = {k.least};
    ROWS(i, k.outer * k.inner)
    {
        const float *from = k.x + i / k.inner * k.n * k.inner + i % k.inner;
        place best = {0.0f, -1};
        WITHIN(j, k.n)
        {
            const place here = {from[j * k.inner], j};
            best = better(best, here);
        }
        best = combine(best, better);
        if (threadIdx.x == 0) {
            k.index[i] = best.at;
            if (k.out != NULL) {
                k.out[i] = best.value;
            }
        }
    }
}

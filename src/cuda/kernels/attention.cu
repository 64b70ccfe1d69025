/* SPDX-License-Identifier: Apache-2.0 */
/* Scaled dot-product attention without a matrix of scores (Dao et al. 2022, algorithm 1); formulas
 * and names are those of kernel/ref/attention.c. A block has a tile of queries, or in the gradient
 * of keys and values a tile of keys, and walks the tiles of the others in order:
 *
 *     thread (i, l) of TILE x TILE:  one score of each pair of tiles, row i and column l;
 *                                    elements l, l + TILE, … of row i of what the block computes
 *
 * The gradients are two walks, so that each element is the sum of one thread: nothing is added
 * atomically. Heads have up to 128 elements, in the wide form, whose tiles are half as large, 256. */
#include "philox.cuh"

typedef struct head { /* one (batch, head) */
    ls__real q, k, v, o, d_o, dq;
    int64_t at_q, at_k, at_v, at_o, row, weight; /* row: of lse and delta; weight: of dropout */
    const float *mask;
} head;

static __device__ head head_of(const ls__attention &a, int64_t index)
{
    const int64_t b = index / a.heads, h = index % a.heads, g = h / (a.heads / a.kv_heads);
    head out;
    out.q = real_of(a.q, a.half), out.k = real_of(a.k, a.half), out.v = real_of(a.v, a.half);
    out.o = real_of(a.o, a.half), out.d_o = real_of(a.d_o, a.half), out.dq = real_of(a.dq, a.half);
    out.at_q = b * a.q_b + h * a.q_h, out.at_o = b * a.o_b + h * a.o_h;
    out.at_k = b * a.k_b + g * a.k_h, out.at_v = b * a.v_b + g * a.v_h;
    out.row = index * a.time;
    out.weight = b * a.w_b + h * a.w_h;
    out.mask = a.mask != NULL ? a.mask + b * a.m_b + h * a.m_h : NULL;
    return out;
}

/* Keys that a query may see. */
static __device__ __inline__ int64_t columns(const ls__attention &a, int64_t row)
{
    return a.causal ? row + 1 + a.keys - a.time : a.keys;
}

/* Dropout's factor of weight (i,j). */
static __device__ float kept(const ls__attention &a, const head &h, int64_t i, int64_t j)
{
    if (a.dropout <= 0.0) {
        return 1.0f;
    }
    ls__drop drop = {};
    drop.p = a.dropout, drop.seed = a.seed, drop.stream_id = a.stream_id, drop.varies = a.varies;
    drop.first = a.first + (uint64_t)(h.weight + i * a.w_t + j);
    return is_kept(drop, 0) ? (float)(1.0 / (1.0 - a.dropout)) : 0.0f;
}

/* Row `row` of a tile, by the threads of its line; zeros behind the last. */
template <int TILE, int D>
static __device__ __inline__ void load(float (*tile)[D + 1], ls__real x, int64_t at, int64_t stride,
                                       int64_t row, int64_t rows, int64_t dim)
{
    const int i = threadIdx.x / TILE;
    for (int64_t d = threadIdx.x % TILE; d < dim; d += TILE) {
        tile[i][d] = row < rows ? get(x, at + row * stride + d) : 0.0f;
    }
}

static __device__ __inline__ float dot(const float *x, const float *y, int64_t n)
{
    float sum = 0.0f;
    for (int64_t d = 0; d < n; d++) {
        sum += x[d] * y[d];
    }
    return sum;
}

static __device__ __inline__ float score(const ls__attention &a, const head &h, float product,
                                         int64_t i, int64_t j)
{
    return a.scale * product + (h.mask != NULL ? h.mask[i * a.m_t + j] : 0.0f);
}

/* ---- forward ---------------------------------------------------------------------------------- */

template <int TILE, int D> static __device__ __inline__ void forward(const cuda_attention_args &k)
{
    __shared__ float q[TILE][D + 1], key[TILE][D + 1];
    __shared__ float s[TILE][TILE + 1], p[TILE][TILE + 1], w[TILE][TILE + 1];
    const ls__attention &a = k.of;
    const int i = threadIdx.x / TILE, l = threadIdx.x % TILE;
    const int64_t tiles = (a.time + TILE - 1) / TILE;
    ROWS(block, a.batch * a.heads * tiles)
    {
        const head h = head_of(a, block / tiles);
        const int64_t row = block % tiles * TILE + i, top = block % tiles * TILE + TILE - 1;
        const int64_t seen = row < a.time ? columns(a, row) : 0;
        const int64_t last = columns(a, top < a.time ? top : a.time - 1);
        float acc[D / TILE] = {0.0f}, max = -INFINITY, sum = 0.0f;
        load<TILE, D>(q, h.q, h.at_q, a.q_t, row, a.time, a.dim);
        for (int64_t first = 0; first < last; first += TILE) {
            __syncthreads(); /* the tile before has been used */
            load<TILE, D>(key, h.k, h.at_k, a.k_t, first + i, a.keys, a.dim);
            __syncthreads();
            const int64_t column = first + l;
            const bool sees = column < seen;
            s[i][l] = sees ? score(a, h, dot(q[i], key[l], a.dim), row, column) : -INFINITY;
            __syncthreads();
            float next = max;
            for (int t = 0; t < TILE; t++) {
                next = fmaxf(next, s[i][t]);
            }
            const float shift = next == -INFINITY ? 0.0f : next;
            const float rescale = max == -INFINITY ? 0.0f : expf(max - shift);
            p[i][l] = sees ? expf(s[i][l] - shift) : 0.0f;
            w[i][l] = sees ? p[i][l] * kept(a, h, row, column) : 0.0f;
            __syncthreads();
            max = next;
            sum *= rescale;
            for (int t = 0; t < TILE; t++) {
                sum += p[i][t];
            }
#pragma unroll
            for (int e = 0; e < D / TILE; e++) {
                const int64_t d = l + e * TILE;
                acc[e] *= rescale;
                for (int t = 0; t < TILE && d < a.dim; t++) {
                    if (w[i][t] != 0.0f) {
                        acc[e] += w[i][t] * get(h.v, h.at_v + (first + t) * a.v_t + d);
                    }
                }
            }
        }
#pragma unroll
        for (int e = 0; e < D / TILE; e++) {
            const int64_t d = l + e * TILE;
            if (row < a.time && d < a.dim) {
                put(h.o, h.at_o + row * a.o_t + d, sum == 0.0f ? 0.0f : acc[e] / sum);
            }
        }
        if (row < a.time && l == 0) {
            a.lse[h.row + row] = sum == 0.0f ? INFINITY : max + logf(sum);
        }
        __syncthreads();
    }
}

KERNEL(attention_forward)
{
    forward<16, 128>(k);
}

KERNEL(attention_forward_wide)
{
    forward<8, 256>(k);
}

/* ---- backward --------------------------------------------------------------------------------- */

/* rowsum(do o) */
KERNEL(attention_delta)
{
    const ls__attention &a = k.of;
    EACH(i, a.batch * a.heads * a.time)
    {
        const head h = head_of(a, i / a.time);
        const int64_t at = h.at_o + i % a.time * a.o_t;
        float sum = 0.0f;
        for (int64_t d = 0; d < a.dim; d++) {
            sum += get(h.o, at + d) * get(h.d_o, at + d);
        }
        k.delta[i] = sum;
    }
}

/* dq = scale dS k */
template <int TILE, int D> static __device__ __inline__ void queries(const cuda_attention_args &k)
{
    __shared__ float q[TILE][D + 1], d_o[TILE][D + 1], key[TILE][D + 1], v[TILE][D + 1];
    __shared__ float ds[TILE][TILE + 1];
    const ls__attention &a = k.of;
    const int i = threadIdx.x / TILE, l = threadIdx.x % TILE;
    const int64_t tiles = (a.time + TILE - 1) / TILE;
    ROWS(block, a.batch * a.heads * tiles)
    {
        const head h = head_of(a, block / tiles);
        const int64_t row = block % tiles * TILE + i, top = block % tiles * TILE + TILE - 1;
        const bool live = row < a.time;
        const int64_t seen = live ? columns(a, row) : 0;
        const int64_t last = columns(a, top < a.time ? top : a.time - 1);
        const float lse = live ? a.lse[h.row + row] : INFINITY;
        const float delta = live ? k.delta[h.row + row] : 0.0f;
        float acc[D / TILE] = {0.0f};
        load<TILE, D>(q, h.q, h.at_q, a.q_t, row, a.time, a.dim);
        load<TILE, D>(d_o, h.d_o, h.at_o, a.o_t, row, a.time, a.dim);
        for (int64_t first = 0; first < last; first += TILE) {
            __syncthreads();
            load<TILE, D>(key, h.k, h.at_k, a.k_t, first + i, a.keys, a.dim);
            load<TILE, D>(v, h.v, h.at_v, a.v_t, first + i, a.keys, a.dim);
            __syncthreads();
            const int64_t column = first + l;
            ds[i][l] = 0.0f;
            if (column < seen) {
                const float p = expf(score(a, h, dot(q[i], key[l], a.dim), row, column) - lse);
                const float dp = dot(d_o[i], v[l], a.dim) * kept(a, h, row, column);
                ds[i][l] = a.scale * p * (dp - delta);
            }
            __syncthreads();
#pragma unroll
            for (int e = 0; e < D / TILE; e++) {
                const int64_t d = l + e * TILE;
                for (int t = 0; t < TILE && d < a.dim; t++) {
                    acc[e] += ds[i][t] != 0.0f ? ds[i][t] * key[t][d] : 0.0f;
                }
            }
        }
#pragma unroll
        for (int e = 0; e < D / TILE; e++) {
            const int64_t d = l + e * TILE;
            if (live && d < a.dim) {
                put(h.dq, h.at_q + row * a.q_t + d, acc[e]);
            }
        }
        __syncthreads();
    }
}

KERNEL(attention_queries)
{
    queries<16, 128>(k);
}

KERNEL(attention_queries_wide)
{
    queries<8, 256>(k);
}

/* dk = scale dS^T q and dv = P'^T do, over all heads that share the keys. */
template <int TILE, int D> static __device__ __inline__ void keys(const cuda_attention_args &k)
{
    __shared__ float q[TILE][D + 1], d_o[TILE][D + 1], key[TILE][D + 1], v[TILE][D + 1];
    __shared__ float ds[TILE][TILE + 1], w[TILE][TILE + 1];
    const ls__attention &a = k.of;
    const int i = threadIdx.x / TILE, l = threadIdx.x % TILE;
    const int64_t tiles = (a.keys + TILE - 1) / TILE, group = a.heads / a.kv_heads;
    ROWS(block, a.batch * a.kv_heads * tiles)
    {
        const int64_t b = block / tiles / a.kv_heads, g = block / tiles % a.kv_heads;
        const int64_t column = block % tiles * TILE + i, begin = block % tiles * TILE;
        float dk[D / TILE] = {0.0f}, dv[D / TILE] = {0.0f};
        head h = head_of(a, b * a.heads + g * group);
        load<TILE, D>(key, h.k, h.at_k, a.k_t, column, a.keys, a.dim);
        load<TILE, D>(v, h.v, h.at_v, a.v_t, column, a.keys, a.dim);
        /* the first query that sees any of these keys */
        const int64_t early = a.causal ? begin - (a.keys - a.time) : 0;
        for (int64_t n = 0; n < group; n++) {
            h = head_of(a, b * a.heads + g * group + n);
            for (int64_t first = early > 0 ? early / TILE * TILE : 0; first < a.time;
                 first += TILE) {
                __syncthreads();
                load<TILE, D>(q, h.q, h.at_q, a.q_t, first + i, a.time, a.dim);
                load<TILE, D>(d_o, h.d_o, h.at_o, a.o_t, first + i, a.time, a.dim);
                __syncthreads();
                const int64_t row = first + l;
                ds[i][l] = w[i][l] = 0.0f;
                if (row < a.time && column < a.keys && column < columns(a, row)) {
                    const float lse = a.lse[h.row + row], keep = kept(a, h, row, column);
                    const float p = expf(score(a, h, dot(q[l], key[i], a.dim), row, column) - lse);
                    const float dp = dot(d_o[l], v[i], a.dim) * keep;
                    w[i][l] = p * keep;
                    ds[i][l] = a.scale * p * (dp - k.delta[h.row + row]);
                }
                __syncthreads();
#pragma unroll
                for (int e = 0; e < D / TILE; e++) {
                    const int64_t d = l + e * TILE;
                    for (int t = 0; t < TILE && d < a.dim; t++) {
                        dk[e] += ds[i][t] != 0.0f ? ds[i][t] * q[t][d] : 0.0f;
                        dv[e] += w[i][t] != 0.0f ? w[i][t] * d_o[t][d] : 0.0f;
                    }
                }
            }
        }
#pragma unroll
        for (int e = 0; e < D / TILE; e++) {
            const int64_t d = l + e * TILE;
            if (column < a.keys && d < a.dim) {
                put(real_of(a.dk, a.half), h.at_k + column * a.k_t + d, dk[e]);
                put(real_of(a.dv, a.half), h.at_v + column * a.v_t + d, dv[e]);
            }
        }
        __syncthreads();
    }
}

KERNEL(attention_keys)
{
    keys<16, 128>(k);
}

KERNEL(attention_keys_wide)
{
    keys<8, 256>(k);
}

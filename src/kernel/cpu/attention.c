/* Causal attention by tiles of 32 queries; formulas in ref/attention.c.
 *
 *            keys ->                        A tile's scores [32, nk] fit the second-level cache, so
 *          +----+----+----+----+            the softmax sees a whole row at once; keys to the right
 *  queries |####|    |    |    |  tile 0    of the tile (blank) are never touched. K is transposed
 *          |####|####|    |    |  tile 1    once a head, so that both matrix products of a tile run
 *          |####|####|####|    |  tile 2    on rows as they lie. Backward recomputes P from lse.
 *
 * Heads are shared among threads; a head's arithmetic does not depend on who computes it. Threads
 * own a slot of the workspace each, SLOTS at most.
 */
#include <string.h>

#include "base/compiler.h"
#include "kernel/cpu/vmath.h"

#define TILE 32 /* queries; also what row strides of the workspace are rounded up to */
#define SLOTS 16
#define PARALLEL_MIN_WORK (1 << 18) /* score elements times dim */

typedef struct head { /* one (batch, head) and a slot of the workspace */
    const float *q, *k, *v, *d_o;
    float *o, *lse, *dq, *dk, *dv;
    int64_t stride;              /* of rows of the following: time rounded up */
    float *keys, *values;        /* [dim,stride]: scale k^T and v^T, zero beyond time */
    float *scores, *score_grads; /* [TILE,stride] */
} head;

static int64_t row_stride(const ls__attention *a)
{
    return (a->time + TILE - 1) / TILE * TILE;
}

static int64_t slot_floats(const ls__attention *a, bool backward)
{
    return row_stride(a) * (a->dim + TILE) * (backward ? 2 : 1);
}

size_t LS__K(attention_workspace)(const ls__attention *a, bool backward)
{
    int64_t slots = ls__min(SLOTS, a->batch * a->heads);
    return (size_t)slots * (size_t)slot_floats(a, backward) * sizeof(float);
}

static head head_of(const ls__attention *a, int64_t index, bool backward)
{
    int64_t b = index / a->heads, h = index % a->heads;
    int64_t at_q = b * a->q_b + h * a->q_h, at_k = b * a->k_b + h * a->k_h;
    int64_t at_v = b * a->v_b + h * a->v_h, at_o = b * a->o_b + h * a->o_h;
    head out = {.q = a->q + at_q, .k = a->k + at_k, .v = a->v + at_v, .o = a->o + at_o};
    out.lse = a->lse + index * a->time;
    out.stride = row_stride(a);
    out.keys = (float *)a->workspace + ls__thread_index() * slot_floats(a, backward);
    out.scores = out.keys + a->dim * out.stride;
    if (backward) {
        out.d_o = a->d_o + at_o;
        out.dq = a->dq + at_q;
        out.dk = a->dk + at_k;
        out.dv = a->dv + at_v;
        out.values = out.scores + TILE * out.stride;
        out.score_grads = out.values + a->dim * out.stride;
    }
    return out;
}

/* out[dim,stride] = factor x^T, zero beyond time. Blocks of lines, so that each line read is used
 * while it is near. */
static void transpose(float *restrict out, const float *x, int64_t x_t, const ls__attention *a,
                      int64_t stride, float factor)
{
    for (int64_t t0 = 0; t0 < a->time; t0 += LS__LANES) {
        int64_t count = ls__min(LS__LANES, a->time - t0);
        for (int64_t d = 0; d < a->dim; d++) {
            const float *from = x + t0 * x_t + d;
            float *to = out + d * stride + t0;
            for (int64_t t = 0; t < count; t++) {
                to[t] = factor * from[t * x_t];
            }
        }
    }
    for (int64_t d = 0; d < a->dim; d++) {
        memset(out + d * stride + a->time, 0, (size_t)(stride - a->time) * sizeof(float));
    }
}

/* The matrix product on this thread: C[m,n] = op(A) B + beta C. */
static void product(bool trans_a, int64_t m, int64_t n, int64_t k, const float *x, int64_t x_row,
                    const float *y, int64_t y_row, float *out, int64_t out_row, float beta)
{
    ls__gemm g = {.trans_a = trans_a, .m = m, .n = n, .k = k, .beta = beta};
    g.a = x;
    g.lda = x_row;
    g.b = y;
    g.ldb = y_row;
    g.c = out;
    g.ldc = out_row;
    LS__K(gemm_builtin)(&g);
}

/* Keys a tile that starts at query `first` may see, rounded up: columns beyond hold zero scores. */
static int64_t keys_of(const ls__attention *a, const head *h, int64_t first)
{
    return a->causal ? ls__min(h->stride, first + TILE) : h->stride;
}

static int64_t keys_of_row(const ls__attention *a, int64_t row)
{
    return a->causal ? row + 1 : a->time;
}

/* Rows end anywhere, vectors do not: [n, end of the vector) gets `value`, the rest up to width 0.
 * Returns the rounded end; the row's loops then need no scalar remainder. */
LS__INLINE int64_t pad_row(float *row, int64_t n, int64_t width, float value)
{
    int64_t end = (n + LS__LANES - 1) / LS__LANES * LS__LANES;
    for (int64_t j = n; j < end; j++) {
        row[j] = value;
    }
    for (int64_t j = end; j < width; j += LS__LANES) {
        ls__store(row + j, (ls__vec){0.0f});
    }
    return end;
}

/* row = exp(row - max) for the first n, 0 for the rest; returns max and sum. */
static float exp_row(float *row, int64_t n, int64_t width, float *out_max)
{
    int64_t end = pad_row(row, n, width, -INFINITY);
    float max = ls__row_max(row, end), sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < end; j++) {
        row[j] = ls__exp(row[j] - max);
        sum += row[j];
    }
    *out_max = max;
    return sum;
}

static void forward_tile(const ls__attention *a, const head *h, int64_t first)
{
    int64_t rows = ls__min(TILE, a->time - first), nk = keys_of(a, h, first);
    float scale[TILE];
    product(false, rows, nk, a->dim, h->q + first * a->q_t, a->q_t, h->keys, h->stride, h->scores,
            h->stride, 0.0f);
    for (int64_t i = 0; i < rows; i++) {
        float max;
        float sum = exp_row(h->scores + i * h->stride, keys_of_row(a, first + i), nk, &max);
        h->lse[first + i] = max + logf(sum);
        scale[i] = 1.0f / sum;
    }
    product(false, rows, a->dim, ls__min(nk, a->time), h->scores, h->stride, h->v, a->v_t,
            h->o + first * a->o_t, a->o_t, 0.0f);
    for (int64_t i = 0; i < rows; i++) {
        float *o = h->o + (first + i) * a->o_t;
#pragma omp simd
        for (int64_t d = 0; d < a->dim; d++) {
            o[d] *= scale[i];
        }
    }
}

static bool is_parallel(const ls__attention *a)
{
    return a->batch * a->heads * a->time * a->time * a->dim >= PARALLEL_MIN_WORK;
}

static int team_of(const ls__attention *a)
{
    int64_t most = ls__min(SLOTS, a->batch * a->heads);
    return is_parallel(a) ? (int)ls__min(most, ls__threads_own()) : 1;
}

void LS__K(attention)(const ls__attention *a, ls_stream *stream)
{
    (void)stream;
    int64_t heads = a->batch * a->heads;
    if (heads <= 0 || a->time <= 0) {
        return;
    }
    LS__UNUSED int team = team_of(a);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < heads; i++) {
        head h = head_of(a, i, false);
        transpose(h.keys, h.k, a->k_t, a, h.stride, a->scale);
        for (int64_t first = 0; first < a->time; first += TILE) {
            forward_tile(a, &h, first);
        }
    }
}

/* Scores become P, score gradients become scale dS, by rows. */
static void gradient_row(const ls__attention *a, const head *h, int64_t first, int64_t i,
                         int64_t nk)
{
    const float *o = h->o + (first + i) * a->o_t, *d_o = h->d_o + (first + i) * a->o_t;
    float *p = h->scores + i * h->stride, *ds = h->score_grads + i * h->stride;
    float lse = h->lse[first + i], delta = 0.0f, scale = a->scale;
#pragma omp simd reduction(+ : delta)
    for (int64_t d = 0; d < a->dim; d++) {
        delta += o[d] * d_o[d];
    }
    int64_t end = pad_row(p, keys_of_row(a, first + i), nk, -INFINITY);
    pad_row(ds, keys_of_row(a, first + i), nk, delta);
#pragma omp simd
    for (int64_t j = 0; j < end; j++) {
        p[j] = ls__exp(p[j] - lse);
        ds[j] = scale * p[j] * (ds[j] - delta);
    }
}

static void backward_tile(const ls__attention *a, const head *h, int64_t first)
{
    int64_t rows = ls__min(TILE, a->time - first), nk = keys_of(a, h, first);
    const float *q = h->q + first * a->q_t, *d_o = h->d_o + first * a->o_t;
    product(false, rows, nk, a->dim, q, a->q_t, h->keys, h->stride, h->scores, h->stride, 0.0f);
    product(false, rows, nk, a->dim, d_o, a->o_t, h->values, h->stride, h->score_grads, h->stride,
            0.0f);
    for (int64_t i = 0; i < rows; i++) {
        gradient_row(a, h, first, i, nk);
    }
    int64_t keys = ls__min(nk, a->time);
    product(true, keys, a->dim, rows, h->scores, h->stride, d_o, a->o_t, h->dv, a->v_t, 1.0f);
    product(true, keys, a->dim, rows, h->score_grads, h->stride, q, a->q_t, h->dk, a->k_t, 1.0f);
    product(false, rows, a->dim, keys, h->score_grads, h->stride, h->k, a->k_t,
            h->dq + first * a->q_t, a->q_t, 0.0f);
}

static void clear_rows(float *x, int64_t stride, const ls__attention *a)
{
    for (int64_t t = 0; t < a->time; t++) {
        for (int64_t d = 0; d < a->dim; d++) {
            x[t * stride + d] = 0.0f;
        }
    }
}

void LS__K(attention_backward)(const ls__attention *a, ls_stream *stream)
{
    (void)stream;
    int64_t heads = a->batch * a->heads;
    if (heads <= 0 || a->time <= 0) {
        return;
    }
    LS__UNUSED int team = team_of(a);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < heads; i++) {
        head h = head_of(a, i, true);
        transpose(h.keys, h.k, a->k_t, a, h.stride, a->scale);
        transpose(h.values, h.v, a->v_t, a, h.stride, 1.0f);
        clear_rows(h.dk, a->k_t, a);
        clear_rows(h.dv, a->v_t, a);
        for (int64_t first = 0; first < a->time; first += TILE) {
            backward_tile(a, &h, first);
        }
    }
}

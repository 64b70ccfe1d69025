/* SPDX-License-Identifier: Apache-2.0 */
/* Scaled dot-product attention of one head at a time (Vaswani et al. 2017, section 3.2.1); several
 * heads may share keys and values (Ainslie et al. 2023):
 *
 *   S = scale q k^T + mask, -infinity where causal and j > i + S - T;  P = softmax(S) by row
 *   P' = dropout(P);  o = P' v;  lse_i = log sum_j exp(S_ij), so that P = exp(S - lse) in backward
 *   dv = P'^T do;  dP = dropout(do v^T);  dS = P (dP - rowsum(do o));  dq = scale dS k;
 *   dk = scale dS^T q
 *
 * A row that sees no key has P = 0, hence o = 0.
 */
#include <math.h>

#include "base/half.h"
#include "kernel/ref/ref.h"

typedef struct head { /* one (batch, head): [T,D] and [S,D] with row strides */
    int64_t index;    /* b H + h */
    const float *q, *k, *v, *d_o, *mask;
    float *o, *lse, *dq, *dk, *dv;
} head;

/* Query heads share key heads in groups of heads / kv_heads. */
static head head_of(const ls__attention *a, int64_t b, int64_t h)
{
    int64_t g = h / (a->heads / a->kv_heads);
    int64_t at_q = b * a->q_b + h * a->q_h, at_k = b * a->k_b + g * a->k_h;
    int64_t at_v = b * a->v_b + g * a->v_h, at_o = b * a->o_b + h * a->o_h;
    head out = {.q = a->q + at_q, .k = a->k + at_k, .v = a->v + at_v, .o = a->o + at_o};
    out.index = b * a->heads + h;
    out.lse = a->lse + out.index * a->time;
    out.mask = a->mask != NULL ? a->mask + b * a->m_b + h * a->m_h : NULL;
    if (a->d_o != NULL) {
        out.d_o = a->d_o + at_o;
        out.dq = a->dq + at_q;
        out.dk = a->dk + at_k;
        out.dv = a->dv + at_v;
    }
    return out;
}

/* The sum of x[i] y[i] in float64, in the order of i. */
static double dot(const float *x, const float *y, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i] * (double)y[i];
    }
    return sum;
}

/* Keys that a query may see; with more keys than queries the causal edge ends at the last key. */
static int64_t columns(const ls__attention *a, int64_t row)
{
    return a->causal ? row + 1 + a->keys - a->time : a->keys;
}

/* scale q · k plus the mask, before the softmax. */
static double score(const ls__attention *a, const head *h, int64_t i, int64_t j)
{
    double s = (double)a->scale * dot(h->q + i * a->q_t, h->k + j * a->k_t, a->dim);
    return s + (h->mask != NULL ? (double)h->mask[i * a->m_t + j] : 0.0);
}

/* Dropout's factor of weight (i,j). */
static double kept(const ls__attention *a, const head *h, int64_t i, int64_t j)
{
    float one = 1.0f;
    if (a->dropout > 0.0) {
        const int64_t row =
            h->index / a->heads * a->w_b + h->index % a->heads * a->w_h + i * a->w_t;
        const ls__drop drop = {.p = a->dropout,
                               .seed = a->seed,
                               .stream_id = a->stream_id,
                               .first = a->first + (uint64_t)(row + j)};
        ls__ref_dropout(&one, &one, 1, &drop, 0.0f, NULL);
    }
    return (double)one;
}

/* p[j] = P of row i, dropped; needs S float64. */
static void forward_row(const ls__attention *a, const head *h, int64_t i, double *p)
{
    int64_t n = columns(a, i);
    double max = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < n; j++) {
        p[j] = score(a, h, i, j);
        max = p[j] > max ? p[j] : max;
    }
    max = max == -INFINITY ? 0.0 : max;
    for (int64_t j = 0; j < n; j++) {
        p[j] = exp(p[j] - max);
        sum += p[j];
    }
    for (int64_t j = 0; j < n; j++) {
        p[j] = sum == 0.0 ? 0.0 : p[j] / sum * kept(a, h, i, j);
    }
    for (int64_t d = 0; d < a->dim; d++) {
        double o = 0.0;
        for (int64_t j = 0; j < n; j++) {
            o += p[j] * (double)h->v[j * a->v_t + d];
        }
        h->o[i * a->o_t + d] = (float)o;
    }
    h->lse[i] = sum == 0.0 ? INFINITY : (float)(max + log(sum));
}

/* Of bfloat16: q, k, v … once more in workspace, as float32 and row-major. */
enum { Q, O, D_O, DQ, K, V, DK, DV, PARTS };

/* Elements of one dense float32 operand of the bfloat16 form. */
static int64_t part_numel(const ls__attention *a, int part)
{
    return a->batch * a->dim * (part < K ? a->heads * a->time : a->kv_heads * a->keys);
}

/* Memory for the float32 loops. */
static size_t loop_bytes(const ls__attention *a, bool backward)
{
    size_t time = (size_t)a->time, keys = (size_t)a->keys;
    size_t group = a->kv_heads > 0 ? (size_t)(a->heads / a->kv_heads) : 1;
    return (backward ? 2 * group * time * keys : keys) * sizeof(double);
}

/* The same attention on dense float32 operands, which lie in the workspace behind the loops' own
 * memory. */
static ls__attention widened(const ls__attention *a, float *part[PARTS])
{
    ls__attention w = *a;
    float *at = (float *)a->workspace + loop_bytes(a, a->d_o != NULL) / sizeof(float);
    for (int i = 0; i < PARTS; at += part_numel(a, i), i++) {
        part[i] = at;
    }
    w.half = false;
    w.q = part[Q], w.k = part[K], w.v = part[V], w.o = part[O], w.dq = part[DQ];
    w.d_o = a->d_o != NULL ? part[D_O] : NULL, w.dk = part[DK], w.dv = part[DV];
    w.q_t = w.k_t = w.v_t = w.o_t = a->dim;
    w.q_h = w.o_h = a->time * a->dim, w.q_b = w.o_b = a->heads * w.q_h;
    w.k_h = w.v_h = a->keys * a->dim, w.k_b = w.v_b = a->kv_heads * w.k_h;
    return w;
}

/* Widens a strided bfloat16 operand into the dense float32 `wide`, or with `narrow` rounds back. */
static void convert(const ls__attention *a, int part, const void *half, int64_t s_b, int64_t s_h,
                    int64_t s_t, float *wide, bool narrow)
{
    int64_t heads = part < K ? a->heads : a->kv_heads, time = part < K ? a->time : a->keys;
    for (int64_t i = 0; i < part_numel(a, part); i++) {
        int64_t d = i % a->dim, t = i / a->dim % time, h = i / a->dim / time % heads;
        int64_t at = i / a->dim / time / heads * s_b + h * s_h + t * s_t + d;
        ls__bfloat16 *of = (ls__bfloat16 *)(uintptr_t)half + at;
        if (narrow) {
            *of = ls__bfloat16_round(wide[i]);
        } else {
            wide[i] = ls__bfloat16_widen(*of);
        }
    }
}

/* Widens, runs the float32 form forward or backward, and rounds each output once. */
static void run_half(const ls__attention *a, ls_stream *stream)
{
    float *part[PARTS];
    ls__attention w = widened(a, part);
    convert(a, Q, a->q, a->q_b, a->q_h, a->q_t, part[Q], false);
    convert(a, K, a->k, a->k_b, a->k_h, a->k_t, part[K], false);
    convert(a, V, a->v, a->v_b, a->v_h, a->v_t, part[V], false);
    if (a->d_o == NULL) {
        ls__ref_attention(&w, stream);
        convert(a, O, a->o, a->o_b, a->o_h, a->o_t, part[O], true);
        return;
    }
    convert(a, O, a->o, a->o_b, a->o_h, a->o_t, part[O], false);
    convert(a, D_O, a->d_o, a->o_b, a->o_h, a->o_t, part[D_O], false);
    ls__ref_attention_backward(&w, stream);
    convert(a, DQ, a->dq, a->q_b, a->q_h, a->q_t, part[DQ], true);
    convert(a, DK, a->dk, a->k_b, a->k_h, a->k_t, part[DK], true);
    convert(a, DV, a->dv, a->v_b, a->v_h, a->v_t, part[DV], true);
}

/* O = softmax(scale Q K^T + mask) V, head by head, and lse = log of the softmax's denominator. */
void ls__ref_attention(const ls__attention *a, ls_stream *stream)
{
    if (a->half) {
        run_half(a, stream);
        return;
    }
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < a->heads; h++) {
            head one = head_of(a, b, h);
            for (int64_t i = 0; i < a->time; i++) {
                forward_row(a, &one, i, a->workspace);
            }
        }
    }
}

/* p[i,j] = P dropped and ds[i,j] = scale dS, zero where masked. */
static void backward_scores(const ls__attention *a, const head *h, double *p, double *ds)
{
    int64_t keys = a->keys;
    for (int64_t i = 0; i < a->time; i++) {
        const float *d_o = h->d_o + i * a->o_t;
        double delta = dot(d_o, h->o + i * a->o_t, a->dim);
        for (int64_t j = 0; j < keys; j++) {
            p[i * keys + j] = ds[i * keys + j] = 0.0;
            if (j < columns(a, i)) {
                double weight = exp(score(a, h, i, j) - (double)h->lse[i]);
                double keep = kept(a, h, i, j);
                double dp = dot(d_o, h->v + j * a->v_t, a->dim) * keep;
                p[i * keys + j] = weight * keep;
                ds[i * keys + j] = (double)a->scale * weight * (dp - delta);
            }
        }
    }
}

/* dQ = dS K; the scale is in dS already. */
static void backward_queries(const ls__attention *a, const head *h, const double *ds)
{
    for (int64_t i = 0; i < a->time; i++) {
        for (int64_t d = 0; d < a->dim; d++) {
            double dq = 0.0;
            for (int64_t j = 0; j < a->keys; j++) {
                dq += ds[i * a->keys + j] * (double)h->k[j * a->k_t + d];
            }
            h->dq[i * a->q_t + d] = (float)dq;
        }
    }
}

/* dk and dv of key j, element d, from one head. */
static void add_key(const ls__attention *a, const head *h, const double *p, const double *ds,
                    int64_t j, int64_t d, double *dk, double *dv)
{
    for (int64_t i = 0; i < a->time; i++) {
        *dk += ds[i * a->keys + j] * (double)h->q[i * a->q_t + d];
        *dv += p[i * a->keys + j] * (double)h->d_o[i * a->o_t + d];
    }
}

/* All heads that share keys and values, `h` the first of them. */
static void backward_group(const ls__attention *a, int64_t b, int64_t h)
{
    int64_t group = a->heads / a->kv_heads, size = a->time * a->keys;
    double *p = a->workspace, *ds = p + group * size;
    head first = head_of(a, b, h);
    for (int64_t g = 0; g < group; g++) {
        head one = head_of(a, b, h + g);
        backward_scores(a, &one, p + g * size, ds + g * size);
        backward_queries(a, &one, ds + g * size);
    }
    for (int64_t at = 0; at < a->keys * a->dim; at++) {
        int64_t j = at / a->dim, d = at % a->dim;
        double dk = 0.0, dv = 0.0;
        for (int64_t g = 0; g < group; g++) {
            head one = head_of(a, b, h + g);
            add_key(a, &one, p + g * size, ds + g * size, j, d, &dk, &dv);
        }
        first.dk[j * a->k_t + d] = (float)dk;
        first.dv[j * a->v_t + d] = (float)dv;
    }
}

/* dV = P^T dO, dS = P (dP - delta), dQ = dS K, dK = dS^T Q; dk and dv are sums over the group. */
void ls__ref_attention_backward(const ls__attention *a, ls_stream *stream)
{
    if (a->half) {
        run_half(a, stream);
        return;
    }
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < a->heads; h += a->heads / a->kv_heads) {
            backward_group(a, b, h);
        }
    }
}

/* Bytes: the loops' float64 rows and, for bfloat16, the widened operands. */
size_t ls__ref_attention_workspace(const ls__attention *a, bool backward)
{
    int64_t halves = 0;
    for (int i = 0; a->half && i < PARTS; i++) {
        halves += part_numel(a, i);
    }
    return loop_bytes(a, backward) + (size_t)halves * sizeof(float);
}

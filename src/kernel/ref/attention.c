/* Scaled dot-product attention of one head at a time (Vaswani et al. 2017, section 3.2.1):
 *
 *   S = scale q k^T, masked where causal and j > i;  P = softmax(S) by row;  o = P v
 *   lse_i = log sum_j exp(S_ij), from which backward recomputes P = exp(S - lse)
 *   dv = P^T do;  dP = do v^T;  dS = P (dP - rowsum(do o));  dq = scale dS k;  dk = scale dS^T q
 */
#include <math.h>

#include "kernel/ref/ref.h"

typedef struct head { /* one (batch, head): [T,D] with row strides */
    const float *q, *k, *v, *d_o;
    float *o, *lse, *dq, *dk, *dv;
} head;

static head head_of(const ls__attention *a, int64_t b, int64_t h)
{
    int64_t at_q = b * a->q_b + h * a->q_h, at_k = b * a->k_b + h * a->k_h;
    int64_t at_v = b * a->v_b + h * a->v_h, at_o = b * a->o_b + h * a->o_h;
    head out = {.q = a->q + at_q, .k = a->k + at_k, .v = a->v + at_v, .o = a->o + at_o};
    out.lse = a->lse + (b * a->heads + h) * a->time;
    if (a->d_o != NULL) {
        out.d_o = a->d_o + at_o;
        out.dq = a->dq + at_q;
        out.dk = a->dk + at_k;
        out.dv = a->dv + at_v;
    }
    return out;
}

static double dot(const float *x, const float *y, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i] * (double)y[i];
    }
    return sum;
}

static int64_t columns(const ls__attention *a, int64_t row)
{
    return a->causal ? row + 1 : a->time;
}

/* p[j] = P of row i; needs T float64. */
static void forward_row(const ls__attention *a, const head *h, int64_t i, double *p)
{
    int64_t n = columns(a, i);
    double max = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < n; j++) {
        p[j] = (double)a->scale * dot(h->q + i * a->q_t, h->k + j * a->k_t, a->dim);
        max = p[j] > max ? p[j] : max;
    }
    for (int64_t j = 0; j < n; j++) {
        p[j] = exp(p[j] - max);
        sum += p[j];
    }
    for (int64_t d = 0; d < a->dim; d++) {
        double o = 0.0;
        for (int64_t j = 0; j < n; j++) {
            o += p[j] / sum * (double)h->v[j * a->v_t + d];
        }
        h->o[i * a->o_t + d] = (float)o;
    }
    h->lse[i] = (float)(max + log(sum));
}

void ls__ref_attention(const ls__attention *a, ls_stream *stream)
{
    (void)stream;
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < a->heads; h++) {
            head one = head_of(a, b, h);
            for (int64_t i = 0; i < a->time; i++) {
                forward_row(a, &one, i, a->workspace);
            }
        }
    }
}

/* p[i,j] = P and ds[i,j] = scale dS, zero where masked. */
static void backward_scores(const ls__attention *a, const head *h, double *p, double *ds)
{
    int64_t time = a->time;
    for (int64_t i = 0; i < time; i++) {
        const float *d_o = h->d_o + i * a->o_t;
        double delta = dot(d_o, h->o + i * a->o_t, a->dim);
        for (int64_t j = 0; j < time; j++) {
            p[i * time + j] = ds[i * time + j] = 0.0;
            if (j < columns(a, i)) {
                double s = (double)a->scale * dot(h->q + i * a->q_t, h->k + j * a->k_t, a->dim);
                double dp = dot(d_o, h->v + j * a->v_t, a->dim);
                p[i * time + j] = exp(s - (double)h->lse[i]);
                ds[i * time + j] = (double)a->scale * p[i * time + j] * (dp - delta);
            }
        }
    }
}

static void backward_head(const ls__attention *a, const head *h, double *p, double *ds)
{
    int64_t time = a->time;
    backward_scores(a, h, p, ds);
    for (int64_t i = 0; i < time; i++) {
        for (int64_t d = 0; d < a->dim; d++) {
            double dq = 0.0, dk = 0.0, dv = 0.0;
            for (int64_t j = 0; j < time; j++) {
                dq += ds[i * time + j] * (double)h->k[j * a->k_t + d];
                dk += ds[j * time + i] * (double)h->q[j * a->q_t + d];
                dv += p[j * time + i] * (double)h->d_o[j * a->o_t + d];
            }
            h->dq[i * a->q_t + d] = (float)dq;
            h->dk[i * a->k_t + d] = (float)dk;
            h->dv[i * a->v_t + d] = (float)dv;
        }
    }
}

void ls__ref_attention_backward(const ls__attention *a, ls_stream *stream)
{
    (void)stream;
    double *p = a->workspace, *ds = p + a->time * a->time;
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < a->heads; h++) {
            head one = head_of(a, b, h);
            backward_head(a, &one, p, ds);
        }
    }
}

size_t ls__ref_attention_workspace(const ls__attention *a, bool backward)
{
    size_t time = (size_t)a->time;
    return (backward ? 2 * time * time : time) * sizeof(double);
}

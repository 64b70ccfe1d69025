/* SPDX-License-Identifier: Apache-2.0 */
/* The plain twins of kernels for bfloat16: each element or row is widened, goes through the float32
 * twin, and is rounded once. */
#include "kernel/ref/halves.h"
#include "base/assert.h"
#include "base/half.h"
#include "kernel/ref/ref.h"

/* An operand of either type as float32. */
static float read_real(ls__real x, int64_t i)
{
    return x.half ? ls__bfloat16_widen(((const ls__bfloat16 *)x.at)[i]) : ((const float *)x.at)[i];
}

/* Rounded to nearest even where the result is bfloat16. */
static void write_real(ls__real x, int64_t i, float value)
{
    if (x.half) {
        ((ls__bfloat16 *)x.at)[i] = ls__bfloat16_round(value);
    } else {
        ((float *)x.at)[i] = value;
    }
}

/* All of this file: widen, call the float32 twin, round once. */
void ls__ref_unary_bf16(ls__unary op, ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count,
                        ls_stream *stream)
{
    for (int64_t i = 0; i < count; i++) {
        float x = ls__bfloat16_widen(a[i]), y;
        ls__ref_unary(op, &y, &x, 1, stream);
        out[i] = ls__bfloat16_round(y);
    }
}

/* The float32 twin on widened elements; each result is rounded once. */
void ls__ref_unary_backward_bf16(ls__unary op, ls__bfloat16 *dx, const ls__bfloat16 *dy,
                                 const ls__bfloat16 *x, const ls__bfloat16 *y, int64_t count,
                                 float beta, ls_stream *stream)
{
    for (int64_t i = 0; i < count; i++) {
        float g = ls__bfloat16_widen(dy[i]), out = beta != 0.0f ? ls__bfloat16_widen(dx[i]) : 0.0f;
        float at_x = x != NULL ? ls__bfloat16_widen(x[i]) : 0.0f;
        float at_y = y != NULL ? ls__bfloat16_widen(y[i]) : 0.0f;
        ls__ref_unary_backward(op, &out, &g, &at_x, &at_y, 1, beta, stream);
        dx[i] = ls__bfloat16_round(out);
    }
}

/* The float32 twin, element by element; either operand may be float32. */
void ls__ref_binary_bf16(ls__binary op, ls__real out, ls__real a, ls__real b, int64_t count,
                         ls_stream *stream)
{
    const int64_t one = 1;
    const ls__strided stride = {{1}};
    for (int64_t i = 0; i < count; i++) {
        float x = read_real(a, i), y = read_real(b, i), z;
        ls__ref_binary(op, &z, &x, stride, &y, stride, 1, &one, stream);
        write_real(out, i, z);
    }
}

/* A beta of 0 does not read out. */
void ls__ref_axpby_bf16(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count, float alpha,
                        float beta, ls_stream *stream)
{
    for (int64_t i = 0; i < count; i++) {
        float x = ls__bfloat16_widen(a[i]), y = beta != 0.0f ? ls__bfloat16_widen(out[i]) : 0.0f;
        ls__ref_axpby(&y, &x, 1, alpha, beta, stream);
        out[i] = ls__bfloat16_round(y);
    }
}

/* The sum is float64 and out is float32: no rounding to bfloat16. */
void ls__ref_sum_rows_bf16(float *out, const ls__bfloat16 *x, int64_t rows, int64_t n, float beta,
                           ls_stream *stream)
{
    (void)stream;
    for (int64_t j = 0; j < n; j++) {
        double sum = 0.0;
        for (int64_t i = 0; i < rows; i++) {
            sum += (double)ls__bfloat16_widen(x[i * n + j]);
        }
        ls__ref_store(&out[j], sum, beta);
    }
}

/* dz first, then its column sums db, which are of the rounded dz. */
void ls__ref_activation_backward(const ls__activation_grad *g, ls_stream *stream)
{
    int64_t count = g->rows * g->n;
    if (g->half) {
        ls__ref_unary_backward_bf16(g->op, g->dz, g->dy, g->x, g->y, count, 0.0f, stream);
    } else {
        ls__ref_unary_backward(g->op, g->dz, g->dy, g->x, g->y, count, 0.0f, stream);
    }
    if (g->db != NULL && g->half) {
        ls__ref_sum_rows_bf16(g->db, g->dz, g->rows, g->n, g->beta, stream);
    } else if (g->db != NULL) {
        ls__ref_sum_rows(g->db, g->dz, g->rows, g->n, g->beta, stream);
    }
}

/* Nothing: db is summed after dz, from memory. */
size_t ls__ref_activation_backward_workspace(const ls__activation_grad *g)
{
    (void)g;
    return 0;
}

/* Row by row through the float32 twin; rows are at most LS__HALF_LOGITS_MAX long. */
void ls__ref_cross_entropy_bf16(ls__bfloat16 *dlogits, const ls__bfloat16 *logits,
                                const ls__cross_entropy *args, ls_stream *stream)
{
    float row[LS__HALF_LOGITS_MAX], loss;
    int64_t count = 0, n = args->n;
    double sum = 0.0;
    LS_ASSERT(n <= LS__HALF_LOGITS_MAX);
    for (int64_t i = 0; i < args->rows; i++) {
        count += ls__ref_index(args->target, args->index_bytes, i) != args->ignore;
    }
    for (int64_t i = 0; i < args->rows; i++) {
        int64_t target = ls__ref_index(args->target, args->index_bytes, i);
        bool counts = target != args->ignore;
        for (int64_t j = 0; j < n; j++) {
            row[j] = ls__bfloat16_widen(logits[i * n + j]);
        }
        ls__cross_entropy one = *args;
        one.target = &target, one.index_bytes = sizeof target, one.rows = 1;
        one.logits = row, one.dlogits = row, one.loss = &loss;
        ls__ref_cross_entropy(&one, stream);
        sum += counts ? (double)loss : 0.0;
        for (int64_t j = 0; dlogits != NULL && j < n; j++) {
            double d = counts ? (double)row[j] / (double)count : 0.0;
            dlogits[i * n + j] = ls__bfloat16_round((float)d);
        }
    }
    *args->loss = (float)(sum / (double)count);
}

/* The float32 twin keeps or drops by position, so both types drop the same elements. */
void ls__ref_dropout_bf16(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count,
                          const ls__drop *drop, float beta, ls_stream *stream)
{
    for (int64_t i = 0; i < count; i++) {
        float x = ls__bfloat16_widen(a[i]), y = beta != 0.0f ? ls__bfloat16_widen(out[i]) : 0.0f;
        ls__drop one = *drop;
        one.run = 0;
        one.first = ls__ref_drop_number(drop, i);
        ls__ref_dropout(&y, &x, 1, &one, beta, stream);
        out[i] = ls__bfloat16_round(y);
    }
}

/* n bfloat16 elements as float32. */
static void widen_row(float *out, const ls__bfloat16 *x, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        out[j] = ls__bfloat16_widen(x[j]);
    }
}

/* The inverse, rounded to nearest even. */
static void narrow_row(ls__bfloat16 *out, const float *x, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        out[j] = ls__bfloat16_round(x[j]);
    }
}

/* Rows are at most LS__HALF_ROW_MAX long, which callers check. */
void ls__ref_softmax_bf16(ls__bfloat16 *out, const ls__bfloat16 *x, int64_t rows, int64_t n,
                          bool log, ls_stream *stream)
{
    float row[LS__HALF_ROW_MAX], y[LS__HALF_ROW_MAX];
    LS_ASSERT(n <= LS__HALF_ROW_MAX);
    for (int64_t i = 0; i < rows; i++) {
        widen_row(row, x + i * n, n);
        ls__ref_softmax(y, row, 1, n, log, stream);
        narrow_row(out + i * n, y, n);
    }
}

/* A gradient that is added to is widened first and rounded once. */
void ls__ref_softmax_backward_bf16(ls__bfloat16 *dx, const ls__bfloat16 *dy, const ls__bfloat16 *y,
                                   int64_t rows, int64_t n, bool log, float beta, ls_stream *stream)
{
    float wide_dx[LS__HALF_ROW_MAX], wide_dy[LS__HALF_ROW_MAX], wide_y[LS__HALF_ROW_MAX];
    LS_ASSERT(n <= LS__HALF_ROW_MAX);
    for (int64_t i = 0; i < rows; i++) {
        if (beta != 0.0f) {
            widen_row(wide_dx, dx + i * n, n);
        }
        widen_row(wide_dy, dy + i * n, n);
        widen_row(wide_y, y + i * n, n);
        ls__ref_softmax_backward(wide_dx, wide_dy, wide_y, 1, n, log, beta, stream);
        narrow_row(dx + i * n, wide_dx, n);
    }
}

/* mean and rstd stay float32: backward needs their digits. */
void ls__ref_layer_norm_bf16(ls__bfloat16 *y, float *mean, float *rstd, const ls__bfloat16 *x,
                             const float *w, const float *b, int64_t rows, int64_t n, float eps,
                             ls_stream *stream)
{
    float wide_y[LS__HALF_ROW_MAX], wide_x[LS__HALF_ROW_MAX];
    LS_ASSERT(n <= LS__HALF_ROW_MAX);
    for (int64_t i = 0; i < rows; i++) {
        widen_row(wide_x, x + i * n, n);
        ls__ref_layer_norm(wide_y, mean + i, rstd + i, wide_x, w, b, 1, n, eps, stream);
        narrow_row(y + i * n, wide_y, n);
    }
}

/* dw and db are float32 sums over rows; only dx is rounded. The first row takes the caller's beta,
 * the others add. */
void ls__ref_layer_norm_backward_bf16(ls__bfloat16 *dx, float beta_x, float *dw, float *db,
                                      float beta_w, const ls__bfloat16 *dy, const ls__bfloat16 *x,
                                      const float *mean, const float *rstd, const float *w,
                                      int64_t rows, int64_t n, void *workspace, ls_stream *stream)
{
    float wide_dx[LS__HALF_ROW_MAX], wide_dy[LS__HALF_ROW_MAX], wide_x[LS__HALF_ROW_MAX];
    LS_ASSERT(n > 0 && n <= LS__HALF_ROW_MAX);
    for (int64_t i = 0; i < rows; i++) {
        float *to = dx != NULL ? wide_dx : NULL;
        if (dx != NULL && beta_x != 0.0f) {
            widen_row(wide_dx, dx + i * n, n);
        }
        widen_row(wide_dy, dy + i * n, n);
        widen_row(wide_x, x + i * n, n);
        ls__ref_layer_norm_backward(to, beta_x, dw, db, i == 0 ? beta_w : 1.0f, wide_dy, wide_x,
                                    mean + i, rstd + i, w, 1, n, workspace, stream);
        if (dx != NULL) {
            narrow_row(dx + i * n, wide_dx, n);
        }
    }
}

/* rstd stays float32, as in layer norm. */
void ls__ref_rms_norm_bf16(ls__bfloat16 *y, float *rstd, const ls__bfloat16 *x, const float *w,
                           int64_t rows, int64_t n, float eps, ls_stream *stream)
{
    float wide_y[LS__HALF_ROW_MAX], wide_x[LS__HALF_ROW_MAX];
    LS_ASSERT(n <= LS__HALF_ROW_MAX);
    for (int64_t i = 0; i < rows; i++) {
        widen_row(wide_x, x + i * n, n);
        ls__ref_rms_norm(wide_y, rstd + i, wide_x, w, 1, n, eps, stream);
        narrow_row(y + i * n, wide_y, n);
    }
}

/* As layer norm's: dw is a float32 sum over rows. */
void ls__ref_rms_norm_backward_bf16(ls__bfloat16 *dx, float beta_x, float *dw, float beta_w,
                                    const ls__bfloat16 *dy, const ls__bfloat16 *x,
                                    const float *rstd, const float *w, int64_t rows, int64_t n,
                                    void *workspace, ls_stream *stream)
{
    float wide_dx[LS__HALF_ROW_MAX], wide_dy[LS__HALF_ROW_MAX], wide_x[LS__HALF_ROW_MAX];
    LS_ASSERT(n > 0 && n <= LS__HALF_ROW_MAX);
    for (int64_t i = 0; i < rows; i++) {
        if (dx != NULL && beta_x != 0.0f) {
            widen_row(wide_dx, dx + i * n, n);
        }
        widen_row(wide_dy, dy + i * n, n);
        widen_row(wide_x, x + i * n, n);
        ls__ref_rms_norm_backward(dx != NULL ? wide_dx : NULL, beta_x, dw, i == 0 ? beta_w : 1.0f,
                                  wide_dy, wide_x, rstd + i, w, 1, n, workspace, stream);
        if (dx != NULL) {
            narrow_row(dx + i * n, wide_dx, n);
        }
    }
}

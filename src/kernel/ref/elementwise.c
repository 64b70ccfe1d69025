/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one or two elements at a time, with libm in float64 and one rounding at the end.
 *
 *   gelu        x Phi(x), Phi the normal distribution (Hendrycks & Gimpel 2016), or its tanh form
 *   silu        x s(x), s the logistic function
 *   huber       x^2/2 where |x| <= p, else p (|x| - p/2)
 *   share       b's part in the gradient of max(a, b); 1/2 where both are equal
 *
 * A derivative is written in x or in y = f(x), whichever kernels.h says (unary_backward). */
#include <math.h>

#include "kernel/ref/halves.h"
#include "kernel/ref/ref.h"

#define SQRT_HALF 0.70710678118654752440
#define SQRT_TWO_OVER_PI 0.79788456080286535588
#define ONE_OVER_SQRT_TWO_PI 0.39894228040143267794
#define GELU_CUBIC 0.044715 /* Hendrycks & Gimpel 2016, section 2 */

/* tanh(sqrt(2/pi) (x + 0.044715 x^3)): Hendrycks & Gimpel 2016, section 2. */
static double gelu_tanh_inner(double x)
{
    return tanh(SQRT_TWO_OVER_PI * (x + GELU_CUBIC * x * x * x));
}

/* f(x); float64 throughout, rounded once by the caller. NaN stays NaN in all of them. */
static double unary(ls__unary op, double x)
{
    switch (op) {
    case LS__UNARY_NEG:
        return -x;
    case LS__UNARY_EXP:
        return exp(x);
    case LS__UNARY_LOG:
        return log(x);
    case LS__UNARY_SQRT:
        return sqrt(x);
    case LS__UNARY_TANH:
        return tanh(x);
    case LS__UNARY_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case LS__UNARY_RELU:
        return x < 0.0 ? 0.0 : x; /* keeps NaN */
    case LS__UNARY_GELU_ERF:
        return 0.5 * x * (1.0 + erf(x * SQRT_HALF));
    case LS__UNARY_GELU_TANH:
        return 0.5 * x * (1.0 + gelu_tanh_inner(x));
    case LS__UNARY_ABS:
        return fabs(x);
    case LS__UNARY_SILU:
        return x / (1.0 + exp(-x));
    case LS__UNARY_SIN:
        return sin(x);
    case LS__UNARY_COS:
        return cos(x);
    case LS__UNARY_XLOGX:
        return x == 0.0 ? 0.0 : x * log(x);
    case LS__UNARY_COUNT:
        break;
    }
    return 0.0;
}

/* op'(x); exp, sqrt, tanh and sigmoid read y = op(x) only, the others x only. */
static double derivative(ls__unary op, double x, double y)
{
    switch (op) {
    case LS__UNARY_NEG:
        return -1.0;
    case LS__UNARY_EXP:
        return y;
    case LS__UNARY_LOG:
        return 1.0 / x;
    case LS__UNARY_SQRT:
        return 0.5 / y;
    case LS__UNARY_TANH:
        return 1.0 - y * y;
    case LS__UNARY_SIGMOID:
        return y * (1.0 - y);
    case LS__UNARY_RELU:
        return x <= 0.0 ? 0.0 : 1.0;
    case LS__UNARY_GELU_ERF:
        return 0.5 * (1.0 + erf(x * SQRT_HALF)) + x * ONE_OVER_SQRT_TWO_PI * exp(-0.5 * x * x);
    case LS__UNARY_GELU_TANH: {
        double t = gelu_tanh_inner(x);
        double inner = SQRT_TWO_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * x * x);
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner;
    }
    case LS__UNARY_ABS:
        return (double)((x > 0.0) - (x < 0.0));
    case LS__UNARY_SILU: {
        double sigmoid = 1.0 / (1.0 + exp(-x));
        return sigmoid * (1.0 + x * (1.0 - sigmoid));
    }
    case LS__UNARY_SIN:
        return cos(x);
    case LS__UNARY_COS:
        return -sin(x);
    case LS__UNARY_XLOGX:
        return log(x) + 1.0;
    case LS__UNARY_COUNT:
        break;
    }
    return 0.0;
}

/* out[i] = f(a[i]), rounded once; out may be a. */
void ls__ref_unary(ls__unary op, float *out, const float *a, int64_t count, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < count; i++) {
        out[i] = (float)unary(op, (double)a[i]);
    }
}

/* x or y may be NULL where the derivative does not read it. */
void ls__ref_unary_backward(ls__unary op, float *dx, const float *dy, const float *x,
                            const float *y, int64_t count, float beta, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < count; i++) {
        double xi = x != NULL ? (double)x[i] : 0.0, yi = y != NULL ? (double)y[i] : 0.0;
        ls__ref_store(&dx[i], (double)dy[i] * derivative(op, xi, yi), beta);
    }
}

/* f(x; p, q) with arg = {p, q}; NaN stays NaN. */
static double map(ls__map op, const double *arg, double x)
{
    const double above = x < arg[0] ? arg[0] : x; /* written so that NaN stays */
    switch (op) {
    case LS__MAP_POW:
        return pow(x, arg[0]);
    case LS__MAP_CLAMP:
        return above > arg[1] ? arg[1] : above;
    case LS__MAP_HUBER:
        return fabs(x) > arg[0] ? arg[0] * (fabs(x) - 0.5 * arg[0]) : 0.5 * x * x;
    case LS__MAP_LEAKY:
        return x > 0.0 ? x : arg[0] * x;
    case LS__MAP_COUNT:
        break;
    }
    return 0.0;
}

/* At the limits of a clamp the gradient passes; beyond Huber's delta it is delta with the sign of
 * x. */
static double map_derivative(ls__map op, const double *arg, double x)
{
    const double slope = x < -arg[0] ? -arg[0] : x; /* of Huber's loss; NaN stays */
    switch (op) {
    case LS__MAP_POW:
        return arg[0] == 0.0 ? 0.0 : arg[0] * pow(x, arg[0] - 1.0);
    case LS__MAP_CLAMP:
        return x >= arg[0] && x <= arg[1] ? 1.0 : 0.0;
    case LS__MAP_HUBER:
        return slope > arg[0] ? arg[0] : slope;
    case LS__MAP_LEAKY:
        return x > 0.0 ? 1.0 : arg[0];
    case LS__MAP_COUNT:
        break;
    }
    return 0.0;
}

/* out[i] = f(a[i]; p, q), rounded once. */
void ls__ref_map(ls__map op, const double *arg, float *out, const float *a, int64_t count,
                 ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < count; i++) {
        out[i] = (float)map(op, arg, (double)a[i]);
    }
}

/* dx = dy f'(x) + beta dx. */
void ls__ref_map_backward(ls__map op, const double *arg, float *dx, const float *dy, const float *x,
                          int64_t count, float beta, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < count; i++) {
        ls__ref_store(&dx[i], (double)dy[i] * map_derivative(op, arg, (double)x[i]), beta);
    }
}

/* NaN wins in extremes, as it does in PyTorch. */
static double binary(ls__binary op, double a, double b)
{
    switch (op) {
    case LS__BINARY_ADD:
        return a + b;
    case LS__BINARY_SUB:
        return a - b;
    case LS__BINARY_MUL:
        return a * b;
    case LS__BINARY_DIV:
        return a / b;
    case LS__BINARY_MAX:
        return a != a || a > b ? a : b;
    case LS__BINARY_MIN:
        return a != a || a < b ? a : b;
    case LS__BINARY_SHARE:
        return a < b ? 0.0 : a == b ? 0.5 : 1.0;
    case LS__BINARY_COUNT:
        break;
    }
    return 0.0;
}

/* out is contiguous; strides of 0 broadcast. */
void ls__ref_binary(ls__binary op, float *out, const float *a, ls__strided a_strides,
                    const float *b, ls__strided b_strides, int ndim, const int64_t *shape,
                    ls_stream *stream)
{
    (void)stream;
    int64_t count = ls__ref_count(ndim, shape);
    int64_t at[LS__KERNEL_DIMS_MAX] = {0};
    for (int64_t i = 0; i < count; i++) {
        double left = (double)a[ls__ref_offset(at, a_strides, ndim)];
        double right = (double)b[ls__ref_offset(at, b_strides, ndim)];
        out[i] = (float)binary(op, left, right);
        ls__ref_next(at, ndim, shape);
    }
}

/* out = alpha a + beta out; a beta of 0 does not read out. */
void ls__ref_axpby(float *out, const float *a, int64_t count, float alpha, float beta,
                   ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < count; i++) {
        ls__ref_store(&out[i], (double)alpha * (double)a[i], beta);
    }
}

/* out = a + value, in float32. */
void ls__ref_add_scalar(float *out, const float *a, int64_t count, float value, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < count; i++) {
        out[i] = a[i] + value;
    }
}

/* Every element becomes `value`. */
void ls__ref_fill(float *out, int64_t count, float value, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < count; i++) {
        out[i] = value;
    }
}

/* The number is read when the kernel runs, not when it is called. */
static float value_of(ls__factor f)
{
    return (float)(f.times * (double)*f.at / f.over);
}

void ls__ref_axpby_by(float *out, const float *a, int64_t count, ls__factor alpha, float beta,
                      ls_stream *stream)
{
    ls__ref_axpby(out, a, count, value_of(alpha), beta, stream);
}

void ls__ref_axpby_bf16_by(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count,
                           ls__factor alpha, float beta, ls_stream *stream)
{
    ls__ref_axpby_bf16(out, a, count, value_of(alpha), beta, stream);
}

void ls__ref_fill_by(float *out, int64_t count, ls__factor value, ls_stream *stream)
{
    ls__ref_fill(out, count, value_of(value), stream);
}

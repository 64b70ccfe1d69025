/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table: compute over raw pointers and sizes. One table per device; ref/ is the plain
 * twin that every fast kernel is tested against, cpu/ the fast one.
 *
 * Contract of every entry: float32 unless said, row-major contiguous unless strides are given; the
 * caller passes output and workspace; nothing allocates (but a plan, for a shape not seen before),
 * blocks, or reads a global; `stream` is
 * NULL (host) in this release. Outputs may not overlap inputs unless said. `beta` is 0 (overwrite)
 * or 1 (accumulate into the output). Results do not depend on the number of threads.
 */
#ifndef LS_KERNEL_KERNELS_H
#define LS_KERNEL_KERNELS_H

#include <lockstep/types.h>

#include "base/env.h"

typedef uint16_t ls__bfloat16; /* the upper half of a float32 */

typedef struct ls__real { /* numbers of one of two types */
    void *at;             /* not written where the entry only reads */
    bool half;            /* bfloat16, else float32 */
} ls__real;

typedef struct ls__factor { /* (float)(times * *at / over), of a number that a kernel has written */
    const float *at;
    double times, over;
} ls__factor;

/* Plans, made once for each shape of a convolution or product and kept; a table per runtime, for
 * any number of threads. NULL without memory. Ends before `env` does. */
typedef struct ls__plans ls__plans;
ls__plans *ls__plans_new(const ls__env *env);
void ls__plans_free(ls__plans *plans); /* NULL is allowed */

typedef enum ls__unary {
    LS__UNARY_NEG,
    LS__UNARY_EXP,
    LS__UNARY_LOG,
    LS__UNARY_SQRT,
    LS__UNARY_TANH,
    LS__UNARY_SIGMOID,
    LS__UNARY_RELU,
    LS__UNARY_GELU_ERF,
    LS__UNARY_GELU_TANH,
    LS__UNARY_ABS,
    LS__UNARY_SILU,
    LS__UNARY_SIN,
    LS__UNARY_COS,
    LS__UNARY_XLOGX, /* x log x, 0 at 0 */
    LS__UNARY_COUNT
} ls__unary;

/* The function applied to a product once its sums are complete. */
typedef struct ls__activation {
    bool on;
    ls__unary op; /* of the elements of C, in their type */
    void *out;    /* as C lies; NULL: it takes the place of C */
} ls__activation;

typedef struct ls__gemm { /* C[m,n] = op(A)[m,k] op(B)[k,n] + beta C, row-major; ld = row stride */
    bool trans_a, trans_b;
    int64_t m, n, k;
    const float *a;
    int64_t lda;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    float beta;
    const float *bias; /* [n], added to every row; NULL: none. Not in a batch, nor is: */
    ls__activation then;
} ls__gemm;

typedef struct ls__gemm_bf16 { /* C = op(A) op(B) + bias + beta C for each matrix of a batch */
    bool trans_a, trans_b;
    int64_t m, n, k;
    const ls__bfloat16 *a;
    int64_t lda;
    const ls__bfloat16 *b;
    int64_t ldb;
    void *c; /* summed in float32, rounded once */
    int64_t ldc;
    bool half;         /* C is bfloat16, else float32 */
    const float *bias; /* [n], added to every row; NULL: none */
    float beta;
    ls__activation then;                         /* with batch 1 */
    int64_t batch, stride_a, stride_b, stride_c; /* matrix i at a + i*stride_a ...; batch >= 1 */
    ls__plans *plans;                            /* NULL: nothing is kept */
    void *workspace; /* gemm_bf16_workspace bytes, for these plans; aligned to 64 */
} ls__gemm_bf16;

typedef struct ls__linear_rounded { /* y[m,n] = f(x[m,k] w[n,k]^T + bias), w of few bits; dense */
    int64_t m, n, k;
    const float *x;
    const void *w;      /* bfloat16; with scale: int8 */
    const float *scale; /* [n]: w[j,p] stands for scale[j] w[j,p]; NULL: w is bfloat16 */
    const float *bias;  /* [n]; NULL: none */
    bool activates;     /* else f is none */
    ls__unary op;       /* f */
    float *y;
} ls__linear_rounded;

typedef struct ls__attention { /* q, o [B,H,T,D]; k, v [B,G,S,D], head h reads those of h G/H */
    int64_t batch, heads, kv_heads, time, keys, dim; /* B, H, G, T, S, D */
    /* element (b,h,t,d) of X lies at x + b*X_b + h*X_h + t*X_t + d */
    const float *q, *k, *v;
    int64_t q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t;
    float *o; /* forward out, backward in */
    int64_t o_b, o_h, o_t;
    float *lse;  /* [B,H,T] log-sum-exp: forward out, backward in; infinite for a row of no keys */
    bool half;   /* q, k, v, o, d_o, dq, dk, dv point to bfloat16; float32 inside, rounded once */
    bool causal; /* query t sees keys 0 … t + S - T */
    float scale;
    const float *mask; /* added to the scores; NULL: none. Element (b,h,t,s) at b*m_b + … + s */
    int64_t m_b, m_h, m_t;
    /* weight (b,h,t,s) is dropped as `dropout` below drops element b*w_b + h*w_h + t*w_t + s */
    double dropout;
    uint64_t seed, stream_id, first;
    const uint64_t *varies; /* as in ls__drop */
    int64_t w_b, w_h, w_t;
    void *workspace; /* ls__kernels.attention_workspace bytes, forward too; aligned to 64 */
    /* backward; d_o NULL: forward */
    const float *d_o;    /* strides of o */
    float *dq, *dk, *dv; /* strides of q, k, v; beta 0 */
} ls__attention;

/* ---- images: x [N,H,W,C] --------------------------------------------------------------------- */

typedef struct ls__image { /* strides in elements */
    int64_t n, c, h, w;
} ls__image;

static inline ls__image ls__image_strides(int64_t channels, int64_t height, int64_t width)
{
    return (ls__image){height * width * channels, 1, width * channels, channels};
}

typedef struct ls__conv2d { /* x [N,H,W,in], w [out,in/groups,kh,kw], y [N,H',W',out] */
    int64_t batch, in, height, width, groups;
    int64_t out, out_height, out_width;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
} ls__conv2d;

typedef enum ls__conv2d_pass {
    LS__CONV2D_FORWARD,    /* out = y from x, w, b; beta 0 */
    LS__CONV2D_BACKWARD_X, /* out = dx from dy, w */
    LS__CONV2D_BACKWARD_W, /* out = dw from dy, x */
} ls__conv2d_pass;

typedef struct ls__conv2d_data {
    const void *x, *w, *dy; /* operands that the pass does not read may be NULL */
    const float *b;         /* [out]; NULL: none */
    bool relu;              /* forward: of the result; it keeps NaN */
    void *out;
    bool half;     /* x, w, dy are bfloat16; sums are float32 */
    bool half_out; /* out is bfloat16, rounded once; needs `half` */
    float beta;
    ls__plans *plans; /* NULL: nothing is kept */
    void *workspace;  /* conv2d_workspace bytes, aligned to 64 */
} ls__conv2d_data;

typedef struct ls__pool2d { /* x [N,H,W,C] -> y [N,H',W',C] */
    bool half;              /* x, y, dx, dy point to bfloat16 */
    int64_t batch, channels, height, width, out_height, out_width;
    int64_t kernel[2], stride[2], padding[2];
    bool adaptive;          /* output i covers [floor(i H/H'), ceil((i+1) H/H')); no kernel */
    bool count_include_pad; /* averages divide by the window, not by its part within x */
} ls__pool2d;

/* Positions [from,end) that output i covers along axis 0 (height) or 1, and beyond the edges too
 * their number with the padding: the divisor of an average. */
typedef struct ls__window {
    int64_t from, end, padded;
} ls__window;

static inline ls__window ls__pool2d_window(const ls__pool2d *p, int axis, int64_t i)
{
    int64_t size = axis == 0 ? p->height : p->width;
    int64_t outs = axis == 0 ? p->out_height : p->out_width;
    ls__window w;
    if (p->adaptive) {
        w.from = i * size / outs;
        w.end = ((i + 1) * size + outs - 1) / outs;
        w.padded = w.end - w.from;
        return w;
    }
    int64_t from = i * p->stride[axis] - p->padding[axis], end = from + p->kernel[axis];
    int64_t limit = size + p->padding[axis];
    w.padded = (end < limit ? end : limit) - from;
    w.from = from > 0 ? from : 0;
    w.end = end < size ? end : size;
    return w;
}

/* The inputs of output i along an axis: (1 - weight) x[from] + weight x[next]. */
typedef struct ls__tap {
    int64_t from, next;
    float weight;
} ls__tap;

typedef struct ls__upsample2d { /* x [N,H,W,C] -> y [N,H',W',C] */
    int64_t batch, channels, height, width, out_height, out_width;
    const ls__tap *rows, *columns; /* [H'], [W'] */
} ls__upsample2d;

typedef struct ls__batch_norm { /* x [N,pixels,C] */
    bool half;                  /* operands of x's shape point to bfloat16 */
    int64_t batch, channels, pixels;
    const float *x, *mean, *rstd; /* mean, rstd [C] */
    const float *w, *b;           /* [C]; NULL: 1, 0 */
    const float *residual;        /* forward: as x, added; NULL: none */
    bool relu;                    /* of all that; it keeps NaN */
    float *y;                     /* forward out */
    void *workspace; /* batch_norm_workspace bytes, aligned to 64; for statistics, too */
    /* backward */
    const float *dy;
    const float *out;   /* with relu: y */
    bool training;      /* mean and rstd came from x, so dx sees them move */
    const double *sums; /* [2,C] of dy and of dy (x - mean) rstd over the `count` elements a
                           channel, here and elsewhere, that mean and rstd are of; NULL: all are
                           here. With sums only dx is written */
    int64_t count;
    float *dx, *dw, *db, *dresidual; /* each NULL where not wanted */
    float beta_x, beta_w, beta_b, beta_residual;
} ls__batch_norm;

/* dz = dy op'(z), and db[n] = its sum over the rows + beta db; see ls__kernels.unary_backward and
 * sum_rows, one after the other. */
typedef struct ls__activation_grad {
    ls__unary op;
    bool half; /* dz, dy, x and y are bfloat16 */
    void *dz;  /* [rows,n]; may be dy */
    const void *dy, *x, *y;
    int64_t rows, n;
    float *db; /* NULL: not wanted */
    float beta;
    void *workspace; /* activation_backward_workspace bytes, by all but it; aligned to 64 */
} ls__activation_grad;

/* Functions of an element and two numbers p and q. */
typedef enum ls__map {
    LS__MAP_POW,   /* x^p */
    LS__MAP_CLAMP, /* min(max(x, p), q) */
    LS__MAP_HUBER, /* x^2/2 where |x| <= p, else p (|x| - p/2) */
    LS__MAP_LEAKY, /* x where x > 0, else p x */
    LS__MAP_COUNT
} ls__map;

typedef enum ls__binary {
    LS__BINARY_ADD,
    LS__BINARY_SUB,
    LS__BINARY_MUL,
    LS__BINARY_DIV,
    LS__BINARY_MAX,   /* NaN where one is */
    LS__BINARY_MIN,   /* likewise */
    LS__BINARY_SHARE, /* of a in the gradient of the larger: 0 where a < b, 1/2 where equal, else
                         1 */
    LS__BINARY_COUNT
} ls__binary;

typedef enum ls__compare {
    LS__COMPARE_EQ,
    LS__COMPARE_NE,
    LS__COMPARE_LT,
    LS__COMPARE_LE,
    LS__COMPARE_AND, /* of "not zero" */
    LS__COMPARE_OR,
    LS__COMPARE_COUNT
} ls__compare;

#define LS__KERNEL_DIMS_MAX 8
typedef struct ls__strided { /* an elementwise operand: strides in elements, 0 where it broadcasts
                              */
    int64_t stride[LS__KERNEL_DIMS_MAX];
} ls__strided;

typedef struct ls__comparison { /* out = op(a, b), contiguous over shape[ndim]; a and b broadcast */
    ls__compare op;
    ls_dtype dtype; /* of a and b; no 16-bit float */
    const void *a, *b;
    ls__strided a_strides, b_strides;
    int ndim;
    const int64_t *shape;
    uint8_t *out; /* 0 or 1 */
} ls__comparison;

typedef struct ls__pick { /* elements along one dimension, chosen by an index of its own shape */
    int ndim, dim;        /* ndim >= 1 */
    const int64_t *shape; /* of the index */
    const void *index;    /* row-major, index_bytes 4 or 8 (signed), validated already */
    size_t index_bytes;
    const void *from;
    void *to;
    size_t bytes; /* of an element: pick copies any type; put_add adds float32 */
    ls__strided from_strides, to_strides;
} ls__pick;

typedef struct ls__index_check { /* before a kernel follows indices */
    int64_t *first;              /* out: the number of the first outside [0,n), and its value; -1 */
    const void *index;           /* index_bytes 4 or 8 (signed) */
    size_t index_bytes;
    int64_t count, n;
    bool may_ignore; /* `ignore` is allowed, too */
    int64_t ignore;
} ls__index_check;

typedef struct ls__rotary_scaling { /* see rotary.h */
    double factor;                  /* up to 1: none */
    double low, high;
    int64_t positions; /* 0: all pairs turn slower */
} ls__rotary_scaling;

typedef struct ls__rotary { /* x and y [B,H,T,D]; see ref/rotary.c */
    int64_t batch, heads, time, dim;
    const float *x;
    int64_t x_b, x_h, x_t; /* strides; that of the last dimension is 1 */
    float *y;              /* row-major */
    int64_t first;         /* position of t = 0 */
    double base;
    ls__rotary_scaling scaling;
    bool back; /* turns the other way: the gradient */
    float beta;
    void *workspace; /* rotary_workspace bytes */
} ls__rotary;

#define LS__HALF_ROW_MAX 8192     /* a row of softmax or a norm of bfloat16, widened on the stack */
#define LS__HALF_LOGITS_MAX 65536 /* a row is widened on the stack: 256 KiB */

typedef struct ls__cross_entropy { /* of logits [rows,n] against class indices */
    float *loss;                   /* out: the mean over the rows that count; NaN for none */
    float *dlogits;                /* NULL: not wanted; may be logits */
    const float *logits;
    const void *target; /* index_bytes 4 or 8; in [0,n) or `ignore` */
    size_t index_bytes;
    int64_t rows, n;
    double smoothing, z_loss;
    int64_t ignore;      /* rows with this target count for nothing */
    const float *weight; /* [n] of each class: the mean is over those of the targets. NULL: 1 */
} ls__cross_entropy;

/* The same of a part of the classes, in passes between which `max` and `sums` are combined over the
 * parts; see ref/vocab_loss.c. */
typedef struct ls__vocab_loss {
    ls__real logits;    /* [rows,n]: classes [first, first + n) of `classes` */
    const void *target; /* index_bytes 4 or 8; in [0,classes) or `ignore` */
    size_t index_bytes;
    int64_t rows, n, first, classes;
    double smoothing, z_loss;
    int64_t ignore;
    float *max;  /* [rows] */
    float *sums; /* [2,rows], with smoothing [3,rows] */
} ls__vocab_loss;

typedef struct
    ls__lookup {       /* rows of a table, of which [first, first + vocab) are here, by index */
    const void *index; /* index_bytes 4 or 8 (signed), validated already */
    size_t index_bytes;
    int64_t count, dim, first, vocab;
} ls__lookup;

/* Which elements are dropped, each with probability p. With e its number, an element is kept when
 * its 32-bit word w (word e%4 of Philox block e/4) satisfies w >= p*2^32; block b has counter (b
 * low, b high, stream low, stream high) and key (seed low, seed high). Element i of a call has
 * number first + i, or, of a tensor that is part of a larger one, first + i/run*stride + i%run. */
typedef struct ls__drop {
    double p;
    uint64_t seed, stream_id, first;
    int64_t run; /* 0: first + i */
    uint64_t stride;
    const uint64_t *varies; /* of a captured step (device/captured.h): in place of stream_id */
} ls__drop;

#define LS__STEP_STATE_MAX 3

/* What changes from one step of an optimizer to the next. */
typedef struct ls__step_numbers {
    double lr;
    float correction[2]; /* of adamw: 1 - beta1^step, 1 - beta2^step */
    int64_t step;        /* from 1 */
} ls__step_numbers;

/* What an optimizer step updates: a parameter, or a range of one. A bfloat16 parameter has a
 * float32 master copy, which takes the steps; the parameter becomes its rounded value. Where the
 * master copy does not round to the parameter (before the first step, or because something else has
 * written the parameter), the step begins from the parameter. */
typedef struct ls__step_part {
    int64_t count;
    float *param;          /* or its master copy */
    ls__bfloat16 *rounded; /* the parameter that `param` is the master copy of; NULL: none */
    ls__real grad;
    /* adamw: exp_avg, exp_avg_sq. sgd: momentum_buffer; NULL without momentum. rmsprop: square_avg,
     * grad_avg if centered, momentum_buffer with momentum. */
    float *state[LS__STEP_STATE_MAX];
    double lr, weight_decay;
    int64_t step;                   /* from 1 */
    const ls__step_numbers *varies; /* of a captured step: in place of lr and step */
} ls__step_part;

/* Of a captured step: whether optimizers make it, and what gradients are multiplied with before.
 * slot: int64_t -1; float64 norm = sqrt(the sum of squares, in order); float32 factor =
 * max_norm / (norm + eps) where that is below 1, else 1, and NaN, for which no step is made, when
 * the norm is not finite or one of the checks does not begin with an int64_t below 0. */
#define LS__STEP_GATE_FACTOR 4 /* floats before it */
typedef struct ls__step_gate {
    void *slot;
    const double *squares;
    int64_t count;
    double max_norm, eps;
    const void *checks; /* every check_bytes */
    int64_t check_count, check_bytes;
} ls__step_gate;

/* All parts in one call: their elements together are shared evenly among the threads. */
typedef struct ls__adamw_args {
    const ls__step_part *parts;
    int64_t part_count;
    double beta1, beta2, eps;
    bool decoupled; /* AdamW; false: Adam (decay added to the gradient) */
} ls__adamw_args;

typedef struct ls__sgd_args {
    const ls__step_part *parts; /* step 1: momentum_buffer = grad */
    int64_t part_count;
    double momentum, dampening;
    bool nesterov;
} ls__sgd_args;

typedef struct ls__rmsprop_args {
    const ls__step_part *parts;
    int64_t part_count;
    double alpha, eps, momentum;
    bool centered;
} ls__rmsprop_args;

typedef struct ls__kernels {
    const char *name;

    void (*gemm)(const ls__gemm *g, ls_stream *stream);
    /* batch of equal shape: matrix i at a + i*stride_a … */
    void (*gemm_batch)(const ls__gemm *g, int64_t batch, int64_t stride_a, int64_t stride_b,
                       int64_t stride_c, ls_stream *stream);
    void (*gemm_bf16)(const ls__gemm_bf16 *g, ls_stream *stream);
    size_t (*gemm_bf16_workspace)(const ls__gemm_bf16 *g);
    /* sums over k are float32, of w as it is; scale, bias and f follow */
    void (*linear_rounded)(const ls__linear_rounded *args, ls_stream *stream);
    /* y[rows,n] += bias[n] */
    void (*add_rows)(float *y, const float *bias, int64_t rows, int64_t n, ls_stream *stream);
    /* out[n] = sum over rows of x[rows,n] + beta out; rows in order of a fixed tree */
    void (*sum_rows)(float *out, const float *x, int64_t rows, int64_t n, float beta,
                     ls_stream *stream);
    /* out[rows] = sum over n of x[rows,n] */
    void (*sum_cols)(float *out, const float *x, int64_t rows, int64_t n, float beta,
                     ls_stream *stream);
    /* *out = the sum of x / divisor; float64 accumulation in fixed order, rounded once */
    void (*sum)(float *out, const float *x, int64_t count, double divisor, ls_stream *stream);
    /* *out = the mean of x^2, likewise */
    void (*mean_squares)(float *out, const float *x, int64_t count, ls_stream *stream);
    void (*sum_squares)(double *out, const float *x, int64_t count, ls_stream *stream);
    void (*sum_squares_bf16)(double *out, const ls__bfloat16 *x, int64_t count, ls_stream *stream);

    /* out = op(a), same layout, out may be a */
    void (*unary)(ls__unary op, float *out, const float *a, int64_t count, ls_stream *stream);
    /* dx = dy * op'(x) + beta dx, dx may be dy. exp, sqrt, tanh and sigmoid read y = op(x) only,
     * the others x only; the one not read may be NULL. */
    void (*unary_backward)(ls__unary op, float *dx, const float *dy, const float *x, const float *y,
                           int64_t count, float beta, ls_stream *stream);
    void (*activation_backward)(const ls__activation_grad *g, ls_stream *stream);
    size_t (*activation_backward_workspace)(const ls__activation_grad *g);
    /* the same for functions with two numbers; `arg` is {p, q} */
    void (*map)(ls__map op, const double *arg, float *out, const float *a, int64_t count,
                ls_stream *stream);
    void (*map_backward)(ls__map op, const double *arg, float *dx, const float *dy, const float *x,
                         int64_t count, float beta, ls_stream *stream);
    /* out = c ? a : b, out contiguous over shape[ndim], the others strided; c bytes, 0 is false */
    void (*where)(float *out, const uint8_t *c, ls__strided c_strides, const float *a,
                  ls__strided a_strides, const float *b, ls__strided b_strides, int ndim,
                  const int64_t *shape, ls_stream *stream);
    void (*compare)(const ls__comparison *args, ls_stream *stream);
    /* out contiguous over shape[ndim]; a and b strided (broadcast: stride 0); out may be a
     * contiguous a or b */
    void (*binary)(ls__binary op, float *out, const float *a, ls__strided a_strides, const float *b,
                   ls__strided b_strides, int ndim, const int64_t *shape, ls_stream *stream);
    /* out = alpha*a + beta*out, any beta; 0 does not read out */
    void (*axpby)(float *out, const float *a, int64_t count, float alpha, float beta,
                  ls_stream *stream);
    void (*add_scalar)(float *out, const float *a, int64_t count, float value, ls_stream *stream);
    void (*fill)(float *out, int64_t count, float value, ls_stream *stream);
    /* the same with a number in memory, which may be written after the call */
    void (*axpby_by)(float *out, const float *a, int64_t count, ls__factor alpha, float beta,
                     ls_stream *stream);
    void (*axpby_bf16_by)(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count, ls__factor alpha,
                          float beta, ls_stream *stream);
    void (*fill_by)(float *out, int64_t count, ls__factor value, ls_stream *stream);
    /* Elements of any type, which do not overlap; all bits clear. */
    void (*copy)(void *out, const void *in, size_t bytes, ls_stream *stream);
    void (*zero)(void *out, size_t bytes, ls_stream *stream);
    void (*increment)(int64_t *number, ls_stream *stream);
    /* *first = the first element of x in [from,to) that is not finite; -1: all are */
    void (*nonfinite)(int64_t *first, const void *x, ls_dtype dtype, int64_t from, int64_t to,
                      ls_stream *stream);
    void (*outside)(const ls__index_check *check, ls_stream *stream);
    /* strided gather/scatter of elements of `bytes` 1, 2, 4, 8: contiguous out <- strided in, and
     * back (when beta is 1 accumulate: float32, or bfloat16 where bytes is 2) */
    void (*gather)(void *out, const void *in, ls__strided in_strides, int ndim,
                   const int64_t *shape, size_t bytes, ls_stream *stream);
    void (*scatter)(void *out, ls__strided out_strides, const void *in, int ndim,
                    const int64_t *shape, size_t bytes, float beta, ls_stream *stream);
    /* out = in + beta out, each element rounded once */
    void (*bfloat16_widen)(float *out, const ls__bfloat16 *in, int64_t count, float beta,
                           ls_stream *stream);
    void (*bfloat16_narrow)(ls__bfloat16 *out, const float *in, int64_t count, float beta,
                            ls_stream *stream);
    /* out = the sum of x over the dims where keep[d] is 0; x contiguous [shape], out contiguous */
    void (*sum_dims)(float *out, const float *x, int ndim, const int64_t *shape,
                     const uint8_t *keep, float beta, ls_stream *stream);
    /* As their namesakes without _bf16: widened by blocks, float32 inside, each result rounded
     * once. */
    void (*unary_bf16)(ls__unary op, ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count,
                       ls_stream *stream);
    void (*unary_backward_bf16)(ls__unary op, ls__bfloat16 *dx, const ls__bfloat16 *dy,
                                const ls__bfloat16 *x, const ls__bfloat16 *y, int64_t count,
                                float beta, ls_stream *stream);
    /* out[i] = op(a[i], b[i]), each of either type; out may be an a or b of its type */
    void (*binary_bf16)(ls__binary op, ls__real out, ls__real a, ls__real b, int64_t count,
                        ls_stream *stream);
    void (*axpby_bf16)(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count, float alpha,
                       float beta, ls_stream *stream);
    void (*sum_rows_bf16)(float *out, const ls__bfloat16 *x, int64_t rows, int64_t n, float beta,
                          ls_stream *stream);
    /* to[i] = from[i'] for all i of the index, i' = i with i'[dim] = index[i] */
    void (*pick)(const ls__pick *args, ls_stream *stream);
    /* to[i'] += from[i], in order of i */
    void (*put_add)(const ls__pick *args, ls_stream *stream);

    /* Along the middle of [outer,n,inner]. cumsum: reverse sums from the end; float64 inside. */
    void (*cumsum)(float *out, const float *x, int64_t outer, int64_t n, int64_t inner,
                   bool reverse, float beta, ls_stream *stream);
    /* the largest (or least) and the place of the first such; NaN is one. out may be NULL; n >= 1
     */
    void (*extreme)(float *out, int64_t *index, const float *x, int64_t outer, int64_t n,
                    int64_t inner, bool least, ls_stream *stream);
    /* index[rows,k]: where the k largest (or least) of each row of x[rows,n], of any type, stand,
     * in order, of equals the first first; NaN is the largest. 0 <= k <= n < 2^32 */
    void (*top)(int64_t *index, const void *x, ls_dtype dtype, int64_t rows, int64_t n, int64_t k,
                bool largest, ls_stream *stream);
    /* out[rows] = sum (x - mean)^2 / divisor over n >= 1; mean [rows] out, too */
    void (*variance)(float *out, float *mean, const float *x, int64_t rows, int64_t n,
                     double divisor, ls_stream *stream);
    void (*variance_backward)(float *dx, const float *dy, const float *x, const float *mean,
                              int64_t rows, int64_t n, double divisor, float beta,
                              ls_stream *stream);

    /* over the last dimension, [rows,n] */
    void (*softmax)(float *out, const float *x, int64_t rows, int64_t n, bool log,
                    ls_stream *stream);
    void (*softmax_backward)(float *dx, const float *dy, const float *y, int64_t rows, int64_t n,
                             bool log, float beta, ls_stream *stream);
    /* y = (x-mean)*rstd*w + b; w, b may be NULL; mean, rstd [rows] out */
    void (*layer_norm)(float *y, float *mean, float *rstd, const float *x, const float *w,
                       const float *b, int64_t rows, int64_t n, float eps, ls_stream *stream);
    /* dx (beta_x), dw and db (beta_w); each NULL where not wanted. workspace: 64-aligned,
     * layer_norm_workspace(rows,n) bytes */
    void (*layer_norm_backward)(float *dx, float beta_x, float *dw, float *db, float beta_w,
                                const float *dy, const float *x, const float *mean,
                                const float *rstd, const float *w, int64_t rows, int64_t n,
                                void *workspace, ls_stream *stream);
    size_t (*layer_norm_workspace)(int64_t rows, int64_t n);
    /* y = x*rstd*w, rstd = 1/sqrt(mean(x^2) + eps); w may be NULL; rstd [rows] out */
    void (*rms_norm)(float *y, float *rstd, const float *x, const float *w, int64_t rows, int64_t n,
                     float eps, ls_stream *stream);
    /* as layer_norm_backward, and its workspace */
    void (*rms_norm_backward)(float *dx, float beta_x, float *dw, float beta_w, const float *dy,
                              const float *x, const float *rstd, const float *w, int64_t rows,
                              int64_t n, void *workspace, ls_stream *stream);
    /* the same of bfloat16; w, b, mean, rstd, dw, db float32. n <= LS__HALF_ROW_MAX */
    void (*rms_norm_bf16)(ls__bfloat16 *y, float *rstd, const ls__bfloat16 *x, const float *w,
                          int64_t rows, int64_t n, float eps, ls_stream *stream);
    void (*rms_norm_backward_bf16)(ls__bfloat16 *dx, float beta_x, float *dw, float beta_w,
                                   const ls__bfloat16 *dy, const ls__bfloat16 *x, const float *rstd,
                                   const float *w, int64_t rows, int64_t n, void *workspace,
                                   ls_stream *stream);
    void (*softmax_bf16)(ls__bfloat16 *out, const ls__bfloat16 *x, int64_t rows, int64_t n,
                         bool log, ls_stream *stream);
    void (*softmax_backward_bf16)(ls__bfloat16 *dx, const ls__bfloat16 *dy, const ls__bfloat16 *y,
                                  int64_t rows, int64_t n, bool log, float beta, ls_stream *stream);
    void (*layer_norm_bf16)(ls__bfloat16 *y, float *mean, float *rstd, const ls__bfloat16 *x,
                            const float *w, const float *b, int64_t rows, int64_t n, float eps,
                            ls_stream *stream);
    void (*layer_norm_backward_bf16)(ls__bfloat16 *dx, float beta_x, float *dw, float *db,
                                     float beta_w, const ls__bfloat16 *dy, const ls__bfloat16 *x,
                                     const float *mean, const float *rstd, const float *w,
                                     int64_t rows, int64_t n, void *workspace, ls_stream *stream);
    /* out[count,dim] = weight[index[i]], 0 for a row that is not here */
    void (*embedding)(float *out, const float *weight, const ls__lookup *at, ls_stream *stream);
    /* dweight[index[i]] += dy[i] in order of i; caller zeroed dweight or it accumulates */
    void (*embedding_backward)(float *dweight, const float *dy, const ls__lookup *at,
                               ls_stream *stream);
    void (*attention)(const ls__attention *a, ls_stream *stream);
    void (*attention_backward)(const ls__attention *a, ls_stream *stream);
    size_t (*attention_workspace)(const ls__attention *a, bool backward);
    /* One step of an LSTM. gates [rows,4n]: i, f, g, o before their functions, and after them on
     * return; h and c_next [rows,n] out; c [rows,n] from the step before, NULL: zeros */
    void (*lstm_step)(float *gates, float *h, float *c_next, const float *c, int64_t rows,
                      int64_t n, ls_stream *stream);
    /* dgates [rows,4n] from dh, the gates as lstm_step left them, c_next and c; dc [rows,n] is the
     * gradient of c_next, and that of c on return */
    void (*lstm_step_backward)(float *dgates, float *dc, const float *dh, const float *gates,
                               const float *c_next, const float *c, int64_t rows, int64_t n,
                               ls_stream *stream);
    /* One step of a GRU. gates [rows,3n]: r, z, n of the input before their functions, and after
     * them on return; product [rows,3n] is before W^T + bias, fresh [rows,n] its last third; h
     * [rows,n] out; before [rows,n], NULL: zeros */
    void (*gru_step)(float *gates, float *h, float *fresh, const float *product,
                     const float *before, int64_t rows, int64_t n, ls_stream *stream);
    /* dgates and dproduct [rows,3n] from dh [rows,n], and gates and fresh as gru_step left them; dh
     * is dh z on return */
    void (*gru_step_backward)(float *dgates, float *dproduct, float *dh, const float *gates,
                              const float *fresh, const float *before, int64_t rows, int64_t n,
                              ls_stream *stream);
    void (*rotary)(const ls__rotary *args, ls_stream *stream);
    size_t (*rotary_workspace)(const ls__rotary *args);
    /* mean nll of the rows that count; dlogits = (softmax - target)/their number where not NULL.
     * Targets are validated already */
    void (*cross_entropy)(const ls__cross_entropy *args, ls_stream *stream);
    /* the same of bfloat16; those of args are not read. args->n <= LS__HALF_LOGITS_MAX, no weight
     */
    void (*cross_entropy_bf16)(ls__bfloat16 *dlogits, const ls__bfloat16 *logits,
                               const ls__cross_entropy *args, ls_stream *stream);
    /* max; sums; the mean loss; dlogits, of the type of the logits, which it may be */
    void (*vocab_max)(const ls__vocab_loss *args, ls_stream *stream);
    void (*vocab_sums)(const ls__vocab_loss *args, ls_stream *stream);
    void (*vocab_loss)(float *loss, const ls__vocab_loss *args, ls_stream *stream);
    void (*vocab_loss_backward)(void *dlogits, const ls__vocab_loss *args, const float *dloss,
                                ls_stream *stream);
    /* mean of -x[i,target_i]; args as of cross_entropy, with logits x log-probabilities, no
     * smoothing or weight */
    void (*nll)(const ls__cross_entropy *args, ls_stream *stream);
    /* *loss = mean of log(1 + exp(x)) - x y; dx = (sigmoid(x) - y)/count where not NULL; it may be
     * x */
    void (*bce)(float *loss, float *dx, const float *x, const float *y, int64_t count,
                ls_stream *stream);
    /* out[i] = (kept ? a[i]/(1-p) : 0) + beta out[i], out may be a */
    void (*dropout)(float *out, const float *a, int64_t count, const ls__drop *drop, float beta,
                    ls_stream *stream);
    void (*dropout_bf16)(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count,
                         const ls__drop *drop, float beta, ls_stream *stream);
    void (*random_uniform)(float *out, int64_t count, uint64_t first, double low, double high,
                           uint64_t seed, uint64_t stream_id, ls_stream *stream);
    void (*random_normal)(float *out, int64_t count, uint64_t first, double mean, double std,
                          uint64_t seed, uint64_t stream_id, ls_stream *stream);

    /* One pass of a convolution, of float32 or bfloat16. No size is 0. */
    void (*conv2d)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                   ls_stream *stream);
    /* for these b, beta, relu, types and plans */
    size_t (*conv2d_workspace)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d);
    /* y the largest of each window (NaN where one is), index where it stands in its plane (row *
     * width + column), the first of equals; index may be NULL */
    void (*max_pool2d)(const ls__pool2d *p, float *y, int32_t *index, const float *x,
                       ls_stream *stream);
    void (*max_pool2d_backward)(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                const int32_t *index, ls_stream *stream);
    void (*avg_pool2d)(const ls__pool2d *p, float *y, const float *x, ls_stream *stream);
    void (*avg_pool2d_backward)(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                ls_stream *stream);
    void (*upsample2d)(const ls__upsample2d *u, float *y, const float *x, ls_stream *stream);
    void (*upsample2d_backward)(const ls__upsample2d *u, float *dx, float beta, const float *dy,
                                ls_stream *stream);
    /* mean and biased variance of each channel of n->x; n->batch * n->pixels > 0 */
    void (*batch_norm_stats)(const ls__batch_norm *n, float *mean, float *variance,
                             ls_stream *stream);
    /* rstd[i] = 1 / sqrt(variance[i] + eps); may be in place */
    void (*batch_norm_rstd)(float *rstd, const float *variance, int64_t channels, double eps,
                            ls_stream *stream);
    /* y = (x-mean)*rstd*w + b, + residual, relu */
    void (*batch_norm)(const ls__batch_norm *n, ls_stream *stream);
    void (*batch_norm_backward)(const ls__batch_norm *n, ls_stream *stream);
    size_t (*batch_norm_workspace)(const ls__batch_norm *n); /* by its shape alone */

    void (*adamw)(const ls__adamw_args *args, ls_stream *stream);
    void (*sgd)(const ls__sgd_args *args, ls_stream *stream);
    void (*rmsprop)(const ls__rmsprop_args *args, ls_stream *stream);
} ls__kernels;

const ls__kernels *ls__kernels_ref(void); /* plain loops: the oracle */
/* Fast, for the best instruction set here or LOCKSTEP_CPU's, which binds oneDNN, too; matrix
 * products through oneDNN where built with it. LOCKSTEP_CPU=ref: the plain ones. Reads the
 * environment: call it once, before any kernel, and keep the answer. */
const ls__kernels *ls__kernels_cpu(void);

/* Threads the fast kernels may use for calls from the calling thread. */
void ls__kernels_set_threads(int threads);

/* The code that computes a family of kernels here, as ls__kernels_cpu() would choose it. */
typedef struct ls__kernel_path {
    const char *family;  /* "products, bfloat16" */
    char path[64];       /* "oneDNN 3.7.2, AVX-512 BF16" */
    const char *because; /* why it is not a faster one; NULL: none is known */
} ls__kernel_path;

#define LS__KERNEL_PATHS 9
int ls__kernels_paths(ls__kernel_path out[LS__KERNEL_PATHS]); /* how many */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The plain twin itself: values computed by hand, gradients against central differences. The
 * differences have the error of float32 results over the step (6e-8 / 1e-2) and of the step squared
 * times the third derivative, so 1e-3 is asked. */
#include "kernel_test.h"

#define STEP 1e-2f
#define ROWS 3
#define N 5
#define COUNT (ROWS * N)

TEST(products_by_hand)
{
    const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {7, 8, 9, 10, 11, 12}; /* [2,3], [3,2] */
    float c[4] = {1, 1, 1, 1};
    ls__gemm g = {.m = 2, .n = 2, .k = 3, .a = a, .lda = 3, .b = b, .ldb = 2, .c = c, .ldc = 2};
    const float want[] = {58, 64, 139, 154};
    ls__kernels_ref()->gemm(&g, NULL);
    check_same_bits("NN", c, want, 4);
    g.trans_a = g.trans_b = true; /* a as [3,2]^T, b as [2,3]^T */
    g.lda = 2, g.ldb = 3;
    g.beta = 1.0f;
    const float want_tt[] = {58 + 1 * 7 + 3 * 8 + 5 * 9, 64 + 1 * 10 + 3 * 11 + 5 * 12,
                             139 + 2 * 7 + 4 * 8 + 6 * 9, 154 + 2 * 10 + 4 * 11 + 6 * 12};
    ls__kernels_ref()->gemm(&g, NULL);
    check_same_bits("TT", c, want_tt, 4);
}

TEST(sums_and_layout_by_hand)
{
    const ls__kernels *k = ls__kernels_ref();
    const float x[] = {1, 2, 3, 4, 5, 6};
    float out[6];
    k->sum_rows(out, x, 2, 3, 0.0f, NULL);
    CHECK(out[0] == 5 && out[1] == 7 && out[2] == 9);
    k->sum_cols(out, x, 2, 3, 1.0f, NULL);
    CHECK(out[0] == 11 && out[1] == 22);
    double squares;
    k->sum(out, x, 6, 2.0, NULL);
    k->mean_squares(out + 1, x, 6, NULL);
    k->sum_squares(&squares, x, 6, NULL);
    CHECK(out[0] == 10.5f && out[1] == (float)(91.0 / 6.0) && squares == 91.0);
    const int64_t shape[3] = {1, 2, 3}, turned[2] = {3, 2};
    const uint8_t keep[3] = {1, 0, 1};
    k->sum_dims(out, x, 3, shape, keep, 0.0f, NULL);
    CHECK(out[0] == 5 && out[1] == 7 && out[2] == 9);
    k->gather(out, x, (ls__strided){{1, 3}}, 2, turned, 4, NULL);
    const float want[] = {1, 4, 2, 5, 3, 6};
    check_same_bits("transpose", out, want, 6);
    k->binary(LS__BINARY_SUB, out, x, (ls__strided){{0, 1}}, x, (ls__strided){{1, 0}}, 2, turned,
              NULL);
    const float differences[] = {0, 1, -1, 0, -2, -1}; /* x[j] - x[i] */
    check_same_bits("broadcast", out, differences, 6);
}

TEST(losses_and_steps_by_hand)
{
    const ls__kernels *k = ls__kernels_ref();
    const float logits[] = {0, 0, 0, 0, 0.6931471805599453f, 0};
    const int32_t target[] = {2, 1};
    float d[6];
    double loss = cross_entropy_of(k, d, logits, target, 4, 2, 3);
    CHECK_NEAR(loss, (log(3.0) + log(2.0)) / 2.0, 1e-7); /* 1/3, and 2/(1+2+1) */
    CHECK_NEAR(d[0], 1.0 / 6.0, 1e-7);
    CHECK_NEAR(d[2], (1.0 / 3.0 - 1.0) / 2.0, 1e-7);
    CHECK_NEAR(d[4], (0.5 - 1.0) / 2.0, 1e-7);

    float param = 1.0f, m = 0.0f, v = 0.0f, grad = 0.5f; /* the first step goes by lr */
    ls__step_part part = {.count = 1, .param = &param, .state = {&m, &v}, .step = 1};
    part.grad.at = &grad, part.lr = 0.1, part.weight_decay = 0.5;
    ls__adamw_args adam = {.parts = &part, .part_count = 1, .decoupled = true};
    adam.beta1 = 0.9, adam.beta2 = 0.99;
    k->adamw(&adam, NULL);
    CHECK_NEAR(param, 1.0 - 0.05 - 0.1, 1e-6);
    CHECK_NEAR(m, 0.05, 1e-7);
    CHECK_NEAR(v, 0.0025, 1e-7);

    float buffer = 2.0f;
    param = 1.0f;
    part = (ls__step_part){.count = 1, .param = &param, .state = {&buffer}, .step = 2};
    part.grad.at = &grad, part.lr = 0.1, part.weight_decay = 1.0;
    ls__sgd_args sgd = {.parts = &part, .part_count = 1, .momentum = 0.5, .nesterov = true};
    k->sgd(&sgd, NULL); /* g = 1.5, buffer = 2.5, along 1.5 + 1.25 */
    CHECK_NEAR(buffer, 2.5, 1e-7);
    CHECK_NEAR(param, 1.0 - 0.275, 1e-7);

    float square = 5.0f, mean = 0.5f;
    param = 1.0f, buffer = 2.0f;
    part.state[0] = &square, part.state[1] = &mean, part.state[2] = &buffer;
    ls__rmsprop_args rmsprop = {.parts = &part, .part_count = 1, .alpha = 0.5, .eps = 0.1};
    rmsprop.momentum = 0.5, rmsprop.centered = true;
    k->rmsprop(&rmsprop, NULL); /* g = 1.5, v = 3.625, m = 1 */
    CHECK_NEAR(square, 3.625, 1e-6);
    CHECK_NEAR(mean, 1.0, 1e-7);
    CHECK_NEAR(buffer, 1.0 + 1.5 / (sqrt(2.625) + 0.1), 1e-6);
    CHECK_NEAR(param, 1.0 - 0.1 * (1.0 + 1.5 / (sqrt(2.625) + 0.1)), 1e-6);
}

/* sum of f(x) * weight, for central differences. */
typedef struct function {
    void (*forward)(const struct function *f, float *out, const float *x);
    int op;
    int64_t inputs, outputs;
    const float *weight;        /* of the outputs: dy */
    const float *other, *third; /* what the function needs besides x */
} function;

static double weighted(const function *f, const float *x)
{
    float out[512];
    CHECK(f->outputs <= 512);
    f->forward(f, out, x);
    double sum = 0.0;
    for (int64_t i = 0; i < f->outputs; i++) {
        sum += (double)out[i] * (double)f->weight[i];
    }
    return sum;
}

static void check_gradient(const char *what, const function *f, const float *x, const float *dx)
{
    float at[512];
    CHECK(f->inputs <= 512);
    memcpy(at, x, (size_t)f->inputs * 4);
    for (int64_t i = 0; i < f->inputs; i++) {
        at[i] = x[i] + STEP;
        double high = weighted(f, at), step = (double)at[i];
        at[i] = x[i] - STEP;
        double low = weighted(f, at);
        step -= (double)at[i];
        at[i] = x[i];
        double want = (high - low) / step;
        if (!(fabs((double)dx[i] - want) <= 1e-3 * (1.0 + fabs(want)))) {
            test_fail(__FILE__, __LINE__, "%s: d/dx[%lld] is %g, differences give %g", what,
                      (long long)i, (double)dx[i], want);
        }
    }
}

static void unary_forward(const function *f, float *out, const float *x)
{
    ls__kernels_ref()->unary((ls__unary)f->op, out, x, f->inputs, NULL);
}

TEST(gradients_of_functions_of_one_element)
{
    float *dy = random_floats(COUNT, 1), *x = random_floats(COUNT, 2), y[COUNT], dx[COUNT];
    for (int op = 0; op < LS__UNARY_COUNT; op++) {
        for (int i = 0; i < COUNT;
             i++) { /* off 0, where relu has no derivative; positive for log */
            const bool positive =
                op == LS__UNARY_LOG || op == LS__UNARY_SQRT || op == LS__UNARY_XLOGX;
            x[i] = positive ? 0.5f + fabsf(x[i]) : fabsf(x[i]) < 0.1f ? x[i] + 0.3f : x[i];
            dx[i] = 1.0f;
        }
        function f = {unary_forward, op, COUNT, COUNT, dy, NULL, NULL};
        unary_forward(&f, y, x);
        ls__kernels_ref()->unary_backward((ls__unary)op, dx, dy, x, y, COUNT, 1.0f, NULL);
        for (int i = 0; i < COUNT; i++) {
            dx[i] -= 1.0f; /* what beta 1 kept */
        }
        check_gradient("unary", &f, x, dx);
    }
    free(dy), free(x);
}

static void softmax_forward(const function *f, float *out, const float *x)
{
    ls__kernels_ref()->softmax(out, x, ROWS, N, f->op != 0, NULL);
}

TEST(gradients_of_softmax)
{
    float *dy = random_floats(COUNT, 1), *x = random_floats(COUNT, 2), y[COUNT], dx[COUNT];
    for (int log = 0; log < 2; log++) {
        function f = {softmax_forward, log, COUNT, COUNT, dy, NULL, NULL};
        softmax_forward(&f, y, x);
        ls__kernels_ref()->softmax_backward(dx, dy, y, ROWS, N, log != 0, 0.0f, NULL);
        check_gradient(log ? "log_softmax" : "softmax", &f, x, dx);
    }
    free(dy), free(x);
}

/* op 0: x varies, other is w; 1: w varies, other is x; 2: b varies, other is x, third w. */
static void norm_forward(const function *f, float *out, const float *v)
{
    float mean[ROWS], rstd[ROWS];
    const float *x = f->op == 0 ? v : f->other;
    const float *w = f->op == 0 ? f->other : f->op == 1 ? v : f->third;
    const float *b = f->op == 2 ? v : NULL;
    ls__kernels_ref()->layer_norm(out, mean, rstd, x, w, b, ROWS, N, 0.5f, NULL);
}

TEST(gradients_of_layer_norm)
{
    float *dy = random_floats(COUNT, 1), *x = random_floats(COUNT, 2), *w = random_floats(N, 3);
    float *b = random_floats(N, 4), y[COUNT], mean[ROWS], rstd[ROWS], dx[COUNT], dw[N], db[N];
    ls__kernels_ref()->layer_norm(y, mean, rstd, x, w, b, ROWS, N, 0.5f, NULL);
    ls__kernels_ref()->layer_norm_backward(dx, 0.0f, dw, db, 0.0f, dy, x, mean, rstd, w, ROWS, N,
                                           NULL, NULL);
    function f = {norm_forward, 0, COUNT, COUNT, dy, w, NULL};
    check_gradient("layer_norm x", &f, x, dx);
    f = (function){norm_forward, 1, N, COUNT, dy, x, NULL};
    check_gradient("layer_norm w", &f, w, dw);
    f = (function){norm_forward, 2, N, COUNT, dy, x, w};
    check_gradient("layer_norm b", &f, b, db);
    free(dy), free(x), free(w), free(b);
}

static void loss_forward(const function *f, float *out, const float *x)
{
    const int64_t target[ROWS] = {4, 0, 2};
    (void)f;
    out[0] = (float)cross_entropy_of(ls__kernels_ref(), NULL, x, target, 8, ROWS, N);
}

TEST(gradient_of_cross_entropy)
{
    const int64_t target[ROWS] = {4, 0, 2};
    const float one = 1.0f;
    float *x = random_floats(COUNT, 2), dx[COUNT];
    cross_entropy_of(ls__kernels_ref(), dx, x, target, 8, ROWS, N);
    function f = {loss_forward, 0, COUNT, 1, &one, NULL, NULL};
    check_gradient("cross_entropy", &f, x, dx);
    free(x);
}

#define HEADS 2
#define TIME 4
#define DIM 3
#define QKV (3 * HEADS * TIME * DIM)

static ls__attention attention_of(const float *qkv, float *o, float *lse, void *workspace)
{
    ls__attention a = {.batch = 1, .heads = HEADS, .kv_heads = HEADS, .time = TIME, .dim = DIM};
    a.keys = TIME;
    a.q = qkv, a.k = qkv + QKV / 3, a.v = qkv + 2 * QKV / 3;
    a.q_h = a.k_h = a.v_h = a.o_h = TIME * DIM;
    a.q_t = a.k_t = a.v_t = a.o_t = DIM;
    a.o = o, a.lse = lse, a.workspace = workspace;
    a.causal = true, a.scale = 0.7f;
    return a;
}

static void attention_forward(const function *f, float *out, const float *qkv)
{
    float lse[HEADS * TIME];
    double workspace[TIME];
    ls__attention a = attention_of(qkv, out, lse, workspace);
    a.causal = f->op != 0;
    CHECK(ls__kernels_ref()->attention_workspace(&a, false) <= sizeof workspace);
    ls__kernels_ref()->attention(&a, NULL);
}

TEST(gradients_of_attention)
{
    float *qkv = random_floats(QKV, 1), *d_o = random_floats(QKV / 3, 2), o[QKV / 3];
    float lse[HEADS * TIME], d[QKV];
    double workspace[2 * TIME * TIME];
    for (int causal = 0; causal < 2; causal++) {
        ls__attention a = attention_of(qkv, o, lse, workspace);
        a.causal = causal != 0;
        ls__kernels_ref()->attention(&a, NULL);
        a.d_o = d_o, a.dq = d, a.dk = d + QKV / 3, a.dv = d + 2 * QKV / 3;
        CHECK(ls__kernels_ref()->attention_workspace(&a, true) <= sizeof workspace);
        ls__kernels_ref()->attention_backward(&a, NULL);
        function f = {attention_forward, causal, QKV, QKV / 3, d_o, NULL, NULL};
        check_gradient("attention", &f, qkv, d);
    }
    free(qkv), free(d_o);
}

TEST(attention_by_hand)
{
    /* Two keys, equal scores: the second query sees the mean of both values, the first its own. */
    const float qkv[] = {1, 0, 0, 2, 0, 0, /**/ 0, 1, 1, 0, 1, 1, /**/ 3, 4, 5, 5, 6, 7};
    float o[6], lse[2];
    double workspace[2];
    ls__attention a = {.batch = 1, .heads = 1, .kv_heads = 1, .time = 2, .keys = 2, .dim = 3};
    a.causal = true, a.scale = 1.0f;
    a.q = qkv, a.k = qkv + 6, a.v = qkv + 12;
    a.q_t = a.k_t = a.v_t = a.o_t = 3;
    a.o = o, a.lse = lse, a.workspace = workspace;
    ls__kernels_ref()->attention(&a, NULL);
    const float want[] = {3, 4, 5, 4, 5, 6};
    check_close("o", o, want, 6, 1e-7, 0.0);
    CHECK_NEAR(lse[0], 0.0, 1e-7);
    CHECK_NEAR(lse[1], log(2.0), 1e-7);
}

TEST_MAIN

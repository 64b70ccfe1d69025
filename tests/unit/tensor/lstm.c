/* SPDX-License-Identifier: Apache-2.0 */
/* ls_lstm and ls_gru against the same cells written with elementwise operations: values, gradients,
 * a state that is carried on, and sequences of nothing; layers against PyTorch. */
#include <math.h>

#include <lockstep/nn.h>
#include <lockstep/ops.h>

#include "local.h"

enum { T = 4, B = 3, H = 5 };

static float number(int64_t i)
{
    return sinf(0.7f * (float)i + 0.1f * (float)(i % 11));
}

static ls_tensor *numbers(ls_shape shape, int64_t from)
{
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *x = ls_data(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        x[i] = number(from + i);
    }
    return ls_set_requires_grad(t, true);
}

static ls_tensor *gate(ls_tensor *all, int i)
{
    return ls_slice(all, 1, i * H, (i + 1) * H);
}

static ls_tensor *at_step(ls_tensor *x, int64_t t) /* [T,..] -> [B,..] */
{
    return ls_reshape(ls_slice(x, 0, t, t + 1), LS_SHAPE(ls_size(x, 1), -1));
}

typedef struct run {
    ls_tensor *gates, *weight, *state; /* leaves */
    ls_tensor *h[T], *c;
} run;

static run run_new(void)
{
    return (run){.gates = numbers(LS_SHAPE(T, B, 4 * H), 0),
                 .weight = numbers(LS_SHAPE(4 * H, H), 1000),
                 .state = numbers(LS_SHAPE(2, B, H), 2000)};
}

/* The published formulas, an operation each. */
static run by_parts(void)
{
    run r = run_new();
    ls_tensor *h = at_step(r.state, 0), *c = at_step(r.state, 1);
    for (int t = 0; t < T; t++) {
        ls_tensor *a = ls_add(at_step(r.gates, t), ls_linear(h, r.weight, NULL));
        ls_tensor *kept = ls_mul(ls_sigmoid(gate(a, 1)), c);
        c = ls_add(kept, ls_mul(ls_sigmoid(gate(a, 0)), ls_tanh(gate(a, 2))));
        h = ls_mul(ls_sigmoid(gate(a, 3)), ls_tanh(c));
        r.h[t] = h;
    }
    r.c = c;
    return r;
}

/* `first` steps, then the others from the state they left. */
static run by_lstm(int64_t first)
{
    run r = run_new();
    ls_tensor *state = r.state;
    const int64_t bound[] = {0, first, T};
    for (int part = 0; part < 2; part++) {
        int64_t steps = bound[part + 1] - bound[part];
        ls_tensor *gates = ls_slice(r.gates, 0, bound[part], bound[part + 1]);
        ls_tensor *out = ls_lstm(gates, r.weight, state);
        CHECK_OK(ls_tensor_status(out));
        CHECK_INT(ls_size(out, 0), steps + 1);
        for (int64_t t = 0; t < steps; t++) {
            r.h[bound[part] + t] = at_step(out, t);
        }
        r.c = at_step(out, steps);
        if (steps > 0) { /* the last h and the c behind it */
            state = ls_slice(out, 0, steps - 1, steps + 1);
        }
    }
    return r;
}

static void backward(const run *r)
{
    ls_tensor *sum = ls_sum(ls_mul(r->c, ls_detach(numbers(LS_SHAPE(B, H), 3000))));
    for (int t = 0; t < T; t++) {
        ls_tensor *weights = ls_detach(numbers(LS_SHAPE(B, H), 4000 + 100 * t));
        sum = ls_add(sum, ls_sum(ls_mul(r->h[t], weights)));
    }
    CHECK_OK(ls_backward(sum));
}

static void check_same(ls_tensor *got, ls_tensor *want)
{
    float a[T * B * 4 * H], b[T * B * 4 * H];
    CHECK(got != NULL && want != NULL);
    size_t bytes = (size_t)ls_numel(want) * sizeof(float);
    CHECK_OK(ls_copy_out(got, a, bytes));
    CHECK_OK(ls_copy_out(want, b, bytes));
    for (int64_t i = 0; i < ls_numel(want); i++) {
        CHECK_NEAR(a[i], b[i], 4e-6); /* sums of at most 20 terms below 2 */
    }
}

static void check_runs(const run *got, const run *want)
{
    backward(got);
    backward(want);
    check_same(got->c, want->c);
    for (int t = 0; t < T; t++) {
        check_same(got->h[t], want->h[t]);
    }
    check_same(ls_grad(got->gates), ls_grad(want->gates));
    check_same(ls_grad(got->weight), ls_grad(want->weight));
    check_same(ls_grad(got->state), ls_grad(want->state));
}

LOCAL_TEST(a_sequence_equals_its_formulas_one_operation_each)
{
    run got = by_lstm(T), want = by_parts();
    check_runs(&got, &want);
}

LOCAL_TEST(a_state_that_is_carried_on_gives_the_same_as_one_sequence)
{
    for (int64_t first = 1; first < T; first++) {
        run got = by_lstm(first), want = by_parts();
        check_runs(&got, &want);
    }
}

LOCAL_TEST(no_state_is_a_state_of_zeros)
{
    run a = run_new(), b = run_new();
    ls_tensor *zeros = ls_zeros(LS_SHAPE(2, B, H), LS_FLOAT32);
    ls_tensor *got = ls_lstm(a.gates, a.weight, NULL), *want = ls_lstm(b.gates, b.weight, zeros);
    ls_tensor *factors = ls_detach(numbers(LS_SHAPE(T + 1, B, H), 3000));
    CHECK_OK(ls_backward(ls_sum(ls_mul(got, factors))));
    CHECK_OK(ls_backward(ls_sum(ls_mul(want, factors))));
    for (int t = 0; t <= T; t++) {
        check_same(at_step(got, t), at_step(want, t));
    }
    check_same(ls_grad(a.gates), ls_grad(b.gates));
    check_same(ls_grad(a.weight), ls_grad(b.weight));
}

/* Gradients add up over uses, whatever was there before. */
LOCAL_TEST(gradients_of_two_uses_add_up)
{
    run a = run_new(), b = run_new();
    ls_tensor *one = ls_lstm(a.gates, a.weight, a.state),
              *two = ls_lstm(b.gates, b.weight, b.state);
    CHECK_OK(ls_backward(ls_add(ls_sum(one), ls_sum(ls_lstm(a.gates, a.weight, a.state)))));
    CHECK_OK(ls_backward(ls_scale(ls_sum(two), 2.0)));
    check_same(ls_grad(a.gates), ls_grad(b.gates));
    check_same(ls_grad(a.weight), ls_grad(b.weight));
    check_same(ls_grad(a.state), ls_grad(b.state));
}

/* A number of bfloat16 is off by 2^-9 of itself, sums of some 20 of such products by as much of
 * their largest. */
static void check_rounded(ls_tensor *got, ls_tensor *want, double tolerance)
{
    ls_tensor *wide = ls_cast(got, LS_FLOAT32), *to = ls_cast(want, LS_FLOAT32);
    const float *g = ls_data(ls_contiguous(wide)), *w = ls_data(ls_contiguous(to));
    CHECK(g != NULL && w != NULL);
    CHECK_INT(ls_numel(got), ls_numel(want));
    for (int64_t i = 0; i < ls_numel(want); i++) {
        CHECK_NEAR(g[i], w[i], tolerance);
    }
}

LOCAL_TEST(under_autocast_products_are_of_bfloat16_and_gradients_of_float32)
{
    run a = run_new(), b = by_parts();
    ls_tensor *loss = NULL;
    {
        LS_AUTOCAST(true);
        ls_tensor *out = ls_lstm(a.gates, a.weight, a.state);
        CHECK(ls_dtype_of(out) == LS_BFLOAT16);
        for (int t = 0; t < T; t++) {
            a.h[t] = at_step(out, t);
            check_rounded(a.h[t], b.h[t], 0.02);
        }
        a.c = at_step(out, T);
        check_rounded(a.c, b.c, 0.04);
        loss = ls_sum(
            ls_mul(ls_cast(out, LS_FLOAT32), ls_detach(numbers(LS_SHAPE(T + 1, B, H), 3000))));
    }
    CHECK_OK(ls_backward(loss));
    run c = run_new();
    ls_tensor *exact = ls_lstm(c.gates, c.weight, c.state);
    CHECK_OK(ls_backward(ls_sum(ls_mul(exact, ls_detach(numbers(LS_SHAPE(T + 1, B, H), 3000))))));
    ls_tensor *pairs[][2] = {{ls_grad(a.gates), ls_grad(c.gates)},
                             {ls_grad(a.weight), ls_grad(c.weight)},
                             {ls_grad(a.state), ls_grad(c.state)}};
    for (int i = 0; i < 3; i++) {
        CHECK(ls_dtype_of(pairs[i][0]) == LS_FLOAT32);
        check_rounded(pairs[i][0], pairs[i][1], 0.05);
    }
}

LOCAL_TEST(no_steps_hand_the_state_on_and_no_rows_give_zero_gradients)
{
    run r = run_new();
    ls_tensor *out = ls_lstm(ls_slice(r.gates, 0, 0, 0), r.weight, r.state);
    check_same(at_step(out, 0), at_step(r.state, 1));
    CHECK_OK(ls_backward(ls_sum(out)));
    check_same(ls_grad(r.weight), ls_zeros(LS_SHAPE(4 * H, H), LS_FLOAT32));
    const float *state = ls_data(ls_grad(r.state));
    for (int64_t i = 0; i < 2 * B * H; i++) { /* of h nothing is used, of c each once */
        CHECK_NEAR(state[i], i < B * H ? 0.0 : 1.0, 0.0);
    }
    run none = run_new();
    out = ls_lstm(ls_slice(none.gates, 1, 0, 0), none.weight, NULL);
    CHECK_INT(ls_numel(out), 0);
    CHECK_OK(ls_backward(ls_sum(out)));
    check_same(ls_grad(none.weight), ls_zeros(LS_SHAPE(4 * H, H), LS_FLOAT32));
}

LOCAL_TEST(a_module_has_the_names_and_shapes_of_pytorch)
{
    static const char *const names[] = {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0",
                                        "weight_ih_l1", "weight_hh_l1", "bias_ih_l1", "bias_hh_l1"};
    ls_module *net = ls_lstm_new(3, H, 2);
    CHECK(net != NULL);
    ls_param params[8];
    CHECK_INT(ls_module_params(net, params, 8), 8);
    for (int i = 0; i < 8; i++) {
        CHECK_STR(params[i].name, names[i]);
        CHECK_INT(ls_size(params[i].value, 0), 4 * H);
    }
    CHECK_INT(ls_size(params[0].value, 1), 3);
    CHECK_INT(ls_size(params[4].value, 1), H);
    ls_tensor *y = ls_forward(net, numbers(LS_SHAPE(B, T, 3), 0));
    CHECK_OK(ls_tensor_status(y));
    CHECK(ls_size(y, 0) == B && ls_size(y, 1) == T && ls_size(y, 2) == H);
    ls_module_free(net);
}

/* ---- gated recurrent units ------------------------------------------------------------------ */

typedef struct gru_run {
    ls_tensor *leaf[4]; /* gates, weight, bias, state */
    ls_tensor *h;       /* [T,B,H] */
} gru_run;

static gru_run gru_new(void)
{
    return (gru_run){.leaf = {numbers(LS_SHAPE(T, B, 3 * H), 0), numbers(LS_SHAPE(3 * H, H), 1000),
                              numbers(LS_SHAPE(3 * H), 1500), numbers(LS_SHAPE(1, B, H), 2000)}};
}

static ls_tensor *gru_cell(ls_tensor *a, ls_tensor *p, ls_tensor *h)
{
    ls_tensor *r = ls_sigmoid(ls_add(gate(a, 0), gate(p, 0)));
    ls_tensor *z = ls_sigmoid(ls_add(gate(a, 1), gate(p, 1)));
    ls_tensor *n = ls_tanh(ls_add(gate(a, 2), ls_mul(r, gate(p, 2))));
    return ls_add(n, ls_mul(z, ls_sub(h, n)));
}

static gru_run gru_by_parts(void)
{
    gru_run r = gru_new();
    ls_tensor *h = at_step(r.leaf[3], 0), *all[T];
    for (int t = 0; t < T; t++) {
        h = gru_cell(at_step(r.leaf[0], t), ls_linear(h, r.leaf[1], r.leaf[2]), h);
        all[t] = ls_reshape(h, LS_SHAPE(1, B, H));
    }
    r.h = ls_concat(all, T, 0);
    return r;
}

/* `first` steps, then the others from the state they left. */
static gru_run by_gru(int64_t first)
{
    gru_run r = gru_new();
    ls_tensor *const gates = r.leaf[0];
    ls_tensor *begin = ls_gru(ls_slice(gates, 0, 0, first), r.leaf[1], r.leaf[2], r.leaf[3]);
    ls_tensor *end = ls_gru(ls_slice(gates, 0, first, T), r.leaf[1], r.leaf[2],
                            first > 0 ? ls_slice(begin, 0, first - 1, first) : r.leaf[3]);
    r.h = ls_concat((ls_tensor *[]){begin, end}, 2, 0);
    return r;
}

static void check_gru_runs(const gru_run *got, const gru_run *want)
{
    ls_tensor *factors = ls_detach(numbers(LS_SHAPE(T, B, H), 3000));
    CHECK_OK(ls_backward(ls_sum(ls_mul(got->h, factors))));
    CHECK_OK(ls_backward(ls_sum(ls_mul(want->h, factors))));
    check_same(got->h, want->h);
    for (int i = 0; i < 4; i++) {
        check_same(ls_grad(got->leaf[i]), ls_grad(want->leaf[i]));
    }
}

LOCAL_TEST(a_sequence_of_a_gru_equals_its_formulas_also_where_its_state_is_carried_on)
{
    for (int64_t first = 0; first <= T; first++) {
        gru_run got = by_gru(first), want = gru_by_parts();
        check_gru_runs(&got, &want);
    }
}

LOCAL_TEST(a_gru_under_autocast_rounds_its_products)
{
    gru_run a = gru_new(), b = by_gru(T);
    ls_tensor *factors = ls_detach(numbers(LS_SHAPE(T, B, H), 3000)), *loss;
    {
        LS_AUTOCAST(true);
        a.h = ls_gru(a.leaf[0], a.leaf[1], a.leaf[2], a.leaf[3]);
        CHECK(ls_dtype_of(a.h) == LS_BFLOAT16);
        check_rounded(a.h, b.h, 0.02);
        loss = ls_sum(ls_mul(ls_cast(a.h, LS_FLOAT32), factors));
    }
    CHECK_OK(ls_backward(loss));
    CHECK_OK(ls_backward(ls_sum(ls_mul(b.h, factors))));
    for (int i = 0; i < 4; i++) {
        CHECK(ls_dtype_of(ls_grad(a.leaf[i])) == LS_FLOAT32);
        check_rounded(ls_grad(a.leaf[i]), ls_grad(b.leaf[i]), 0.05);
    }
}

/* Sequences of nothing, and no state. */
LOCAL_TEST(a_gru_without_steps_rows_or_state_has_zero_gradients)
{
    gru_run r = gru_new(), none = gru_new();
    ls_tensor *out = ls_gru(ls_slice(r.leaf[0], 0, 0, 0), r.leaf[1], r.leaf[2], r.leaf[3]);
    CHECK_INT(ls_numel(out), 0);
    CHECK_OK(ls_backward(ls_sum(out)));
    check_same(ls_grad(r.leaf[1]), ls_zeros(LS_SHAPE(3 * H, H), LS_FLOAT32));
    check_same(ls_grad(r.leaf[2]), ls_zeros(LS_SHAPE(3 * H), LS_FLOAT32));
    check_same(ls_grad(r.leaf[3]), ls_zeros(LS_SHAPE(1, B, H), LS_FLOAT32));
    out = ls_gru(ls_slice(none.leaf[0], 1, 0, 0), none.leaf[1], NULL, NULL);
    CHECK_OK(ls_backward(ls_sum(out)));
    check_same(ls_grad(none.leaf[1]), ls_zeros(LS_SHAPE(3 * H, H), LS_FLOAT32));
}

static void check_numbers(ls_tensor *got, int64_t from, int64_t stride, const float *want,
                          int count)
{
    const float *x = ls_data(ls_contiguous(got));
    CHECK(x != NULL);
    for (int i = 0; i < count; i++) {
        CHECK_NEAR(x[from + i * stride], want[i], 2e-6);
    }
}

/* Numbers without rounding; in Python ((from + i) * 37 % 101 - 50) / 128. */
static ls_tensor *fill_exact(ls_tensor *t, int64_t from)
{
    float *x = ls_data(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        x[i] = (float)((from + i) * 37 % 101 - 50) / 128.0f;
    }
    return t;
}

/* PyTorch 2.13:
 *
 *     net = torch.nn.GRU(2, 5, 2, batch_first=True)
 *     for k, p in enumerate(net.parameters()):
 *         p.copy_(exact(p.shape, 100 * k))
 *     x = exact((3, 4, 2), 5000).requires_grad_()
 *     y, h = net(x)
 *     (y * exact(y.shape, 3000)).sum().backward()
 *     y[1], x.grad[2], and of each parameter's gradient elements 0, n // 3 and 2 (n // 3) */
LOCAL_TEST(two_layers_of_a_gru_compute_what_pytorch_computes)
{
    static const float y[] = {-0.073434554f, 0.17547968f,    -0.112987347f,  -0.0662565529f,
                              0.166771024f,  -0.0745790154f, 0.278123349f,   -0.170905426f,
                              -0.124419674f, 0.202059716f,   -0.0708526298f, 0.320199937f,
                              -0.195146009f, -0.155349627f,  0.198730648f,   -0.058410611f,
                              0.357814759f,  -0.258320391f,  -0.205250591f,  0.207752615f};
    static const float dx[] = {0.0148114897f, -0.0225418471f, 0.045823276f,   -0.0369066857f,
                               0.0161312893f, -0.026192015f,  -0.0184106082f, -0.00419788109f};
    static const float dparams[8][3] = {{0.000897258811f, -0.00142157986f, 0.0137188975f},
                                        {-0.00222142809f, 0.00305331196f, -0.0208664425f},
                                        {-0.00795023981f, 0.0266147014f, -0.199071869f},
                                        {-0.00795023981f, 0.0266147032f, -0.108749136f},
                                        {0.00683147274f, -0.00414484506f, -0.135420814f},
                                        {-0.000517617911f, 0.00026400041f, 0.00772620644f},
                                        {0.0243689381f, -0.0189074762f, -0.424560994f},
                                        {0.0243689381f, -0.0189074744f, -0.241289288f}};
    ls_param params[8];
    ls_module *net = ls_gru_new(2, H, 2);
    CHECK_INT(ls_module_params(net, params, 8), 8);
    for (int i = 0; i < 8; i++) {
        fill_exact(params[i].value, 100 * i);
    }
    ls_tensor *x = fill_exact(ls_empty(LS_SHAPE(B, T, 2), LS_FLOAT32), 5000);
    ls_tensor *factors = fill_exact(ls_empty(LS_SHAPE(B, T, H), LS_FLOAT32), 3000);
    ls_tensor *out = ls_forward(net, ls_set_requires_grad(x, true));
    CHECK_OK(ls_backward(ls_sum(ls_mul(out, factors))));
    check_numbers(out, T * H, 1, y, T * H);
    check_numbers(ls_grad(x), (int64_t)2 * T * 2, 1, dx, 2 * T);
    for (int i = 0; i < 8; i++) {
        check_numbers(ls_grad(params[i].value), 0, ls_numel(params[i].value) / 3, dparams[i], 3);
    }
    CHECK_STR(params[5].name, "weight_hh_l1");
    ls_module_free(net);
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* Users' operations and hooks under DistributedDataParallel: the weights are those of built-in
 * operations to the last bit, on any number of ranks. */
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "says.h"
#include "test.h"

enum { IN = 5, HIDDEN = 8, BATCH = 6, STEPS = 8 };

/* (x, scale) -> relu(x) * scale: the scale is a parameter that goes in as it is. */
static ls_status gate_forward(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out,
                              int m, void *arg)
{
    (void)arg;
    CHECK(n == 2 && m == 1);
    out[0] = ls_mul(ls_relu(in[0]), in[1]);
    LS_TRY(ls_function_save(call, in[0]));
    return ls_function_save(call, in[1]);
}

static ls_status gate_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                               ls_tensor **din, int n)
{
    CHECK(n == 2 && m == 1);
    const float *x = elements_of(ls_function_saved(call, 0));
    ls_tensor *scale = ls_function_saved(call, 1);
    din[0] = ls_mul(dout[0], scale);
    float *dx = edit_elements(din[0]);
    for (int64_t i = 0; i < ls_numel(din[0]); i++) { /* raw numbers */
        dx[i] = x[i] > 0.0f ? dx[i] : 0.0f;
    }
    put_elements(din[0], dx);
    ls_tensor *product = ls_mul(dout[0], ls_relu(ls_function_saved(call, 0)));
    din[1] = ls_sum_dim(product, 0, false);
    return LS_OK;
}

static const ls_function gate =
    LS_FUNCTION(.name = "gate", .forward = gate_forward, .backward = gate_backward);

typedef struct net {
    ls_module base;
    ls_module *fc1, *fc2;
    ls_tensor *scale;
    bool own, recompute;
} net;

static ls_tensor *body(ls_tensor *x, void *arg)
{
    net *self = arg;
    ls_tensor *h = ls_forward(self->fc1, x), *y = NULL;
    if (self->own) {
        CHECK_OK(ls_function_apply_many(&gate, (ls_tensor *[]){h, self->scale}, 2, &y, 1, NULL));
    } else {
        y = ls_mul(ls_relu(h), self->scale);
    }
    return ls_forward(self->fc2, y);
}

static ls_tensor *net_forward(ls_module *m, ls_tensor *x)
{
    net *self = (net *)m;
    return self->recompute ? ls_recompute_call(body, x, self) : body(x, self);
}

static const ls_module_class net_class = LS_MODULE_CLASS(.name = "net", .forward = net_forward);

static net *net_new(bool own, bool recompute)
{
    CHECK_OK(ls_manual_seed(2));
    net *n = ls_module_new(sizeof *n, &net_class);
    n->fc1 = ls_module_add(&n->base, "fc1", ls_linear_new(IN, HIDDEN, NULL));
    n->scale = ls_module_add_param(&n->base, "scale", ls_full(LS_SHAPE(HIDDEN), LS_FLOAT32, 0.8));
    n->fc2 = ls_module_add(&n->base, "fc2", ls_linear_new(HIDDEN, 1, NULL));
    n->own = own;
    n->recompute = recompute;
    return n;
}

static ls_tensor *batch_of(int step)
{
    float x[BATCH * IN];
    for (int i = 0; i < BATCH * IN; i++) {
        x[i] = ls_random_normal(9, (uint64_t)(step * 16 + ls_rank()), (uint64_t)i);
    }
    return ls_from_data(x, LS_SHAPE(BATCH, IN), LS_FLOAT32);
}

static uint64_t train(bool own, bool recompute)
{
    int identical = 0;
    uint64_t hash = 0;
    ls_module *ddp = ls_ddp_new(&net_new(own, recompute)->base, ls_world(), NULL);
    CHECK(ddp != NULL);
    ls_optim *optim = ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
    for (int step = 0; step < STEPS; step++) {
        LS_SCOPE;
        ls_tensor *y = ls_forward(ddp, batch_of(step));
        CHECK_OK(ls_backward(ls_mse_loss(y, ls_ones(LS_SHAPE(BATCH, 1), LS_FLOAT32))));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    CHECK_OK(ls_replicas_identical(ddp, ls_world(), &identical, &hash));
    CHECK_INT(identical, ls_world_size());
    ls_optim_free(optim);
    ls_module_free(ddp);
    return hash;
}

static void compare(void)
{
    const uint64_t built_in = train(false, false);
    CHECK(train(true, false) == built_in);
    CHECK(train(true, true) == built_in);
}

/* ---- hooks --------------------------------------------------------------------------------- */

static ls_status scale_by_rank(void *arg, ls_tensor *t, ls_tensor *grad)
{
    float *values = edit_elements(grad);
    (void)t;
    for (int64_t i = 0; i < ls_numel(grad); i++) {
        values[i] *= (float)(ls_rank() + 1);
    }
    put_elements(grad, values);
    ++*(int *)arg;
    return LS_OK;
}

/* Every rank has the same gradient g; what each makes of it is averaged: g (1 + … + n) / n. */
static void hooks_come_before_the_average(void)
{
    float plain[HIDDEN], hooked[HIDDEN];
    int calls = 0;
    net *n = net_new(false, false);
    ls_module *ddp = ls_ddp_new(&n->base, ls_world(), NULL);
    CHECK(ddp != NULL);
    for (int with = 0; with < 2; with++) {
        ls_hook *hook =
            with ? ls_grad_hook_new(ls_module_param(ddp, "scale"), scale_by_rank, &calls) : NULL;
        for (int micro = 0; micro < 2; micro++) { /* accumulated here first */
            LS_SCOPE;
            (void)ls_ddp_set_sync(ddp, micro == 1);
            ls_tensor *y = ls_forward(ddp, ls_ones(LS_SHAPE(BATCH, IN), LS_FLOAT32));
            CHECK_OK(ls_backward(ls_sum(y)));
        }
        CHECK_OK(ls_copy_out(ls_grad(n->scale), with ? hooked : plain, sizeof plain));
        ls_hook_free(hook);
        ls_optim *optim = ls_sgd_new(ddp, NULL);
        ls_optim_zero_grad(optim);
        ls_optim_free(optim);
    }
    CHECK_INT(calls, 2);
    double mean = 0.0; /* of (1 + k) (1/2 + … ): the first micro-batch is scaled twice */
    for (int rank = 0; rank < ls_world_size(); rank++) {
        mean += 0.5 * (rank + 1) * (rank + 1) + 0.5 * (rank + 1);
    }
    mean /= ls_world_size();
    for (int i = 0; i < HIDDEN; i++) {
        CHECK_NEAR(hooked[i], mean * (double)plain[i], 1e-5 * (1.0 + mean));
    }
    ls_module_free(ddp);
}

DIST_TEST(a_hook_changes_a_gradient_before_two_ranks_average_it, 2)
{
    hooks_come_before_the_average();
}

DIST_TEST(a_hook_changes_a_gradient_before_three_ranks_average_it, 3)
{
    hooks_come_before_the_average();
}

DIST_TEST(a_users_operation_trains_to_the_same_bits_on_two_ranks, 2)
{
    compare();
}

DIST_TEST(a_users_operation_trains_to_the_same_bits_on_three_ranks, 3)
{
    compare();
}

/* ---- operations in which other ranks take part --------------------------------------------- */

static int spread_calls;

/* x -> x; its gradient is the sum over the ranks (Megatron's f). */
static ls_status spread_forward(ls_function_call *call, ls_tensor *const *in, int n,
                                ls_tensor **out, int m, void *arg)
{
    (void)call, (void)arg;
    CHECK(n == 1 && m == 1);
    out[0] = ls_clone(in[0]);
    return LS_OK;
}

static ls_status spread_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                                 ls_tensor **din, int n)
{
    (void)call;
    CHECK(n == 1 && m == 1);
    spread_calls++;
    din[0] = ls_clone(dout[0]);
    float *sum = edit_elements(din[0]);
    CHECK_OK(ls_all_reduce(ls_world(), sum, sum, ls_numel(din[0]), LS_FLOAT32, LS_SUM, NULL, NULL));
    put_elements(din[0], sum);
    return LS_OK;
}

static const ls_function spread = LS_FUNCTION(.name = "spread", .forward = spread_forward,
                                              .backward = spread_backward, .collective = true);

static ls_tensor *spread_twice(ls_tensor *x, void *arg)
{
    ls_tensor *h = ls_function_apply(&spread, ls_forward(((net *)arg)->fc1, x), NULL);
    return ls_function_apply(&spread, ls_forward(((net *)arg)->fc2, h), NULL);
}

static ls_tensor *plain_body(ls_tensor *x, void *arg)
{
    return ls_forward(((net *)arg)->fc2, ls_forward(((net *)arg)->fc1, x));
}

typedef struct wrap {
    ls_module base;
    net *inner;
    ls_recompute_fn body;
    bool recompute;
} wrap;

static ls_tensor *wrap_forward(ls_module *m, ls_tensor *x)
{
    wrap *self = (wrap *)m;
    return self->recompute ? ls_recompute_call(self->body, x, self->inner)
                           : self->body(x, self->inner);
}

static const ls_module_class wrap_class = LS_MODULE_CLASS(.name = "wrap", .forward = wrap_forward);

/* The gradient of the first weight; only rank 0 has data. */
static void grads_of(ls_recompute_fn run, bool recompute, float *out)
{
    wrap *w = ls_module_new(sizeof *w, &wrap_class);
    w->inner = net_new(false, false);
    w->body = run;
    w->recompute = recompute;
    ls_module_add(&w->base, "inner", &w->inner->base);
    ls_module *ddp = ls_ddp_new(&w->base, ls_world(), NULL);
    CHECK(ddp != NULL);
    {
        LS_SCOPE;
        ls_tensor *x = batch_of(0);
        CHECK_OK(ls_backward_weighted(
            ls_mse_loss(ls_forward(ddp, x), ls_ones(LS_SHAPE(BATCH, 1), LS_FLOAT32)),
            ls_rank() == 0 ? 3.0 : 0.0));
        memcpy(out, elements_of(ls_grad(ls_module_param(ddp, "inner.fc1.weight"))),
               sizeof(float) * IN * HIDDEN);
    }
    ls_module_free(ddp);
}

DIST_TEST(a_collective_function_runs_backward_on_ranks_whose_weight_is_0, 3)
{
    float plain[IN * HIDDEN], own[IN * HIDDEN], again[IN * HIDDEN];
    grads_of(plain_body, false, plain);
    grads_of(spread_twice, false, own);
    CHECK_INT(spread_calls, 2);
    CHECK(memcmp(own, plain, sizeof own) == 0);
    grads_of(spread_twice, true, again);
    CHECK_INT(spread_calls, 4);
    CHECK(memcmp(again, plain, sizeof own) == 0);
}

/* ---- errors of the user's functions -------------------------------------------------------- */

static bool says_why;

static ls_status refuse(void)
{
    return says_why ? ls_fail(LS_ERR_UNSUPPORTED, "no inverse of 0") : LS_ERR_UNSUPPORTED;
}

/* Refuses three elements. */
static ls_status refusing_function(ls_function_call *call, ls_tensor *const *in, int n,
                                   ls_tensor **out, int m, void *arg)
{
    return ls_numel(in[0]) == 3 ? refuse() : spread_forward(call, in, n, out, m, arg);
}

static ls_status refusing_segment(ls_tensor *const *in, int n, ls_tensor **out, int m, void *arg)
{
    (void)in, (void)n, (void)out, (void)m, (void)arg;
    return refuse();
}

static ls_status refusing_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                                   ls_tensor **din, int n)
{
    (void)call, (void)dout, (void)m, (void)din, (void)n;
    return refuse();
}

static ls_status refusing_hook(void *arg, ls_tensor *t, ls_tensor *grad)
{
    (void)arg, (void)t, (void)grad;
    return refuse();
}

static ls_status refusing_forward_hook(void *arg, ls_module *module, ls_tensor **inputs,
                                       int input_count, ls_tensor **outputs, int output_count)
{
    (void)arg, (void)module, (void)inputs, (void)input_count, (void)outputs, (void)output_count;
    return refuse();
}

static ls_status refusing_forward(ls_module *self, ls_tensor *const *inputs, int input_count,
                                  ls_tensor **outputs, int output_count)
{
    (void)self, (void)inputs, (void)input_count, (void)outputs, (void)output_count;
    return refuse();
}

static const ls_function refusing =
    LS_FUNCTION(.name = "f", .forward = refusing_function, .backward = refusing_backward);
static const ls_module_class refusing_class =
    LS_MODULE_CLASS(.name = "shy", .forward_many = refusing_forward);

static void check_text(ls_status status, const char *what)
{
    CHECK_INT(status, LS_ERR_UNSUPPORTED);
    if (test_count_said(ls_error_message(), what) == 0) {
        test_fail(__FILE__, __LINE__, "\"%s\" is not in: %s", what, ls_error_message());
    }
    if (says_why) {
        CHECK_CONTAINS(ls_error_message(), ": no inverse of 0");
    } else {
        CHECK_SAYS(ls_error_message(), "%s returned %s without ls_fail");
    }
    CHECK(!test_contains(ls_error_message(), "an older"));
}

static void check_refusals(void)
{
    LS_SCOPE;
    ls_tensor *x = ls_ones(LS_SHAPE(2), LS_FLOAT32);
    CHECK_OK(ls_set_requires_grad(x, true));
    (void)ls_fail(LS_ERR_LIMIT, "an older failure");
    check_text(ls_backward(ls_sum(ls_function_apply(&refusing, x, NULL))),
               SAYS("backward of \"%s\""));
    (void)ls_fail(LS_ERR_LIMIT, "an older failure");
    check_text(
        ls_tensor_status(ls_function_apply(&refusing, ls_ones(LS_SHAPE(3), LS_FLOAT32), NULL)),
        SAYS("forward of \"%s\""));
    ls_hook *hook = ls_grad_hook_new(x, refusing_hook, NULL);
    (void)ls_fail(LS_ERR_LIMIT, "an older failure");
    check_text(ls_backward(ls_sum(ls_scale(x, 2.0))), SAYS("gradient hook of %s"));
    ls_hook_free(hook);
    ls_module *linear = ls_linear_new(2, 2, NULL);
    CHECK(ls_forward_hook_new(linear, refusing_forward_hook, NULL) != NULL);
    (void)ls_fail(LS_ERR_LIMIT, "an older failure");
    check_text(ls_tensor_status(ls_forward(linear, ls_reshape(x, LS_SHAPE(1, 2)))),
               SAYS("forward hook of %s"));
    ls_module_free(linear);
    if (!says_why) {
        ls_tensor *y = NULL;
        (void)ls_fail(LS_ERR_LIMIT, "an older failure");
        check_text(ls_recompute_call_many(refusing_segment, &x, 1, &y, 1, NULL),
                   SAYS("the function of ls_recompute_call_many"));
        ls_module *shy = ls_module_new(sizeof *shy, &refusing_class);
        (void)ls_fail(LS_ERR_LIMIT, "an older failure");
        check_text(ls_tensor_status(ls_forward(shy, x)), SAYS("forward of the %s"));
        ls_module_free(shy);
    }
}

TEST(an_error_of_a_users_function_names_it_and_never_quotes_another_failure)
{
    CHECK_OK(ls_init(NULL));
    check_refusals();
    says_why = true;
    check_refusals();
    CHECK_OK(ls_finalize());
}

TEST_MAIN

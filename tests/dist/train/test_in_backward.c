/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer in backward (ls_ddp_step_in_backward): the bits of a step afterwards. */
#include <math.h>
#include <sched.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "replicas.h"
#include "says.h"
#include "test.h"

enum { IN = 6, HIDDEN = 24, OUT = 3, SHARE = 5, STEPS = 12 };

/* How a model is trained. */
typedef struct recipe {
    bool in_backward, adam, weighted, uneven;
    int micro_batches;
    ls_reduce_mode mode;
} recipe;

static ls_module *make(const recipe *how)
{
    CHECK_OK(ls_manual_seed(1));
    ls_module *layers[] = {ls_linear_new(IN, HIDDEN, NULL), ls_relu_new(),
                           ls_linear_new(HIDDEN, HIDDEN, NULL), ls_relu_new(),
                           ls_linear_new(HIDDEN, OUT, NULL)};
    ls_module *ddp =
        ls_ddp_new(ls_sequential_new(layers, 5), ls_world(),
                   LS_OPTIONS(ls_ddp_options, .bucket_bytes = 600, .first_bucket_bytes = 100,
                              .mode = how->mode, .check_every = 1));
    CHECK_OK(ls_module_status(ddp));
    return ddp;
}

static ls_tensor *loss_of(ls_module *net, int batch)
{
    float x[SHARE * IN];
    int32_t y[SHARE];
    for (int i = 0; i < SHARE * IN; i++) {
        x[i] = ls_random_normal(5, (uint64_t)(100 * batch + ls_rank()), (uint64_t)i);
    }
    for (int i = 0; i < SHARE; i++) {
        y[i] = x[IN * i] > 0.3f ? 0 : x[IN * i + 1] > x[IN * i + 2] ? 1 : 2;
    }
    return ls_cross_entropy(ls_forward(net, ls_from_data(x, LS_SHAPE(SHARE, IN), LS_FLOAT32)),
                            ls_from_data(y, LS_SHAPE(SHARE), LS_INT32), NULL);
}

/* False: no rank has data any more. */
static bool backward(ls_module *ddp, const recipe *how, int step)
{
    bool more = !how->uneven || step < STEPS - 2 * ls_rank();
    if (!more) {
        CHECK_OK(ls_ddp_join(ddp, NULL, &more));
        return more;
    }
    for (int m = 0; m < how->micro_batches; m++) {
        LS_SCOPE;
        ls_tensor *loss = loss_of(ddp, step * how->micro_batches + m);
        CHECK_OK(ls_ddp_set_sync(ddp, m == how->micro_batches - 1));
        CHECK_OK(how->weighted ? ls_backward_weighted(loss, 1 + ls_rank()) : ls_backward(loss));
    }
    return true;
}

/* Returns the hash of the parameters. */
static uint64_t train(const recipe *how)
{
    ls_module *ddp = make(how);
    ls_optim *optim = how->adam
                          ? ls_adamw_new(ddp, LS_OPTIONS(ls_adamw_options, .lr = 1e-2))
                          : ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .lr = 0.1, .momentum = 0.9));
    if (how->in_backward) {
        CHECK_OK(ls_ddp_step_in_backward(ddp, optim));
    }
    for (int step = 0; step < STEPS || how->uneven; step++) {
        ls_optim_set_lr(optim, 1e-2 / (1 + step));
        if (!backward(ddp, how, step)) {
            break;
        }
        if (how->in_backward) {
            CHECK(ls_grad(ls_module_param(ddp, "0.weight")) == NULL);
            continue;
        }
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    const uint64_t hash = equal_replicas(ddp, ls_world());
    ls_optim_free(optim);
    ls_module_free(ddp);
    return hash;
}

static void compare(recipe how)
{
    const uint64_t plain = train(&how);
    how.in_backward = true;
    CHECK(train(&how) == plain);
}

DIST_TESTS(steps_in_backward_of_, _ranks_have_the_bits_of_steps_after_it, 1, 2, 3, 4, 8)
{
    for (int adam = 0; adam < 2; adam++) {
        for (int mode = LS_REDUCE_OVERLAP; mode <= LS_REDUCE_NAIVE; mode++) {
            compare((recipe){.adam = adam == 1, .micro_batches = 1, .mode = (ls_reduce_mode)mode});
        }
        compare((recipe){.adam = adam == 1, .micro_batches = 3});
        compare((recipe){.adam = adam == 1, .micro_batches = 2, .weighted = true});
        compare((recipe){.adam = adam == 1, .micro_batches = 1, .weighted = true, .uneven = true});
    }
}

/* ---- it is in backward ----------------------------------------------------------------------- */

typedef struct look {
    ls_module *ddp;
    bool averaged; /* the head's bias has its average while backward goes on … */
    float seen;    /* … and this value, when the first layer is reached */
} look;

static float head_bias(ls_module *ddp)
{
    return ((const float *)elements_of(ls_module_param(ddp, "4.bias")))[0];
}

/* The average may lie in memory before this rank knows that the operation has ended: both ranks
 * make progress for a while. */
static ls_status let_it_end(void)
{
    for (int i = 0; i < 50; i++) {
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    }
    return LS_OK;
}

/* On a layer in the middle: holds backward until the head's bias has its average, 1.5 / OUT. */
static ls_status wait_for_head(void *arg, ls_tensor *t, ls_tensor *grad)
{
    look *self = arg;
    (void)t, (void)grad;
    const ls_tensor *bias = ls_grad(ls_module_param(self->ddp, "4.bias"));
    if (bias == NULL) { /* it has stepped already */
        self->averaged = true;
        return let_it_end();
    }
    const double until = ls_time() + 10.0;
    const volatile float *at = ls_data((ls_tensor *)bias);
    do {
        self->averaged = fabs((double)*at - 1.5 / OUT) < 1e-6;
        (void)sched_yield();
    } while (!self->averaged && ls_time() < until);
    return let_it_end();
}

/* On the first layer, the last of a backward. */
static ls_status look_at_head(void *arg, ls_tensor *t, ls_tensor *grad)
{
    look *self = arg;
    (void)t, (void)grad;
    self->seen = head_bias(self->ddp);
    return LS_OK;
}

DIST_TEST(the_head_has_stepped_before_the_first_layer_is_computed, 2)
{
#if defined(__SANITIZE_THREAD__)
    SKIP("it looks at memory that is being reduced, on purpose");
#endif
    if (test_on_device()) {
        SKIP("it looks at memory that is being reduced, which is not the gradient's on a device");
    }
    const recipe how = {.micro_batches = 1};
    ls_module *ddp = make(&how);
    ls_optim *optim = ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
    CHECK_OK(ls_ddp_step_in_backward(ddp, optim));
    (void)backward(ddp, &how, 0); /* the first one lays out */
    look at = {.ddp = ddp};
    const float before = head_bias(ddp);
    CHECK(ls_grad_hook_new(ls_module_param(ddp, "2.bias"), wait_for_head, &at) != NULL);
    CHECK(ls_grad_hook_new(ls_module_param(ddp, "0.weight"), look_at_head, &at) != NULL);
    {
        LS_SCOPE;
        ls_tensor *y = ls_forward(ddp, ls_ones(LS_SHAPE(2, IN), LS_FLOAT32));
        CHECK_OK(ls_backward(ls_scale(ls_mean(y), 1.0 + ls_rank())));
    }
    CHECK(at.averaged);
    CHECK(at.seen != before && at.seen == head_bias(ddp));
    ls_optim_free(optim);
    ls_module_free(ddp);
}

static float head_weight(ls_module *ddp)
{
    return ((const float *)elements_of(ls_module_param(ddp, "4.weight")))[0];
}

/* ---- beginning and ending -------------------------------------------------------------------- */

DIST_TEST(an_optimizer_of_a_part_is_refused_and_NULL_ends_the_mode, 2)
{
    const recipe how = {.micro_batches = 1};
    ls_module *ddp = make(&how), *other = ls_linear_new(IN, OUT, NULL);
    ls_optim *part = ls_sgd_new(other, NULL), *optim = ls_sgd_new(ddp, NULL);
    CHECK_STATUS(ls_ddp_step_in_backward(ddp, part), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_ddp_step_in_backward: parameter %s is not one of the optimizer's; give one that "
               "was made for the whole module");
    CHECK_STATUS(ls_ddp_step_in_backward(other, part), LS_ERR_INVALID);
    CHECK_OK(ls_ddp_step_in_backward(ddp, optim));
    (void)backward(ddp, &how, 0);
    CHECK_OK(ls_ddp_step_in_backward(ddp, NULL));
    const float before = head_weight(ddp);
    (void)backward(ddp, &how, 1);
    CHECK(head_weight(ddp) == before);
    CHECK(ls_grad(ls_module_param(ddp, "0.weight")) != NULL);
    CHECK_OK(ls_optim_step(optim));
    CHECK(head_weight(ddp) != before);
    ls_optim_free(part);
    ls_optim_free(optim);
    ls_module_free(other);
    ls_module_free(ddp);
}

/* The learning rates of all ranks are compared as in a step afterwards. */
DIST_TEST(a_rank_with_another_learning_rate_is_named, 3)
{
    const recipe how = {.micro_batches = 1};
    ls_module *ddp = make(&how);
    ls_optim *optim = ls_sgd_new(ddp, NULL);
    CHECK_OK(ls_ddp_step_in_backward(ddp, optim));
    (void)backward(ddp, &how, 0);
    ls_optim_set_lr(optim, ls_rank() == 1 ? 0.5 : 0.25);
    LS_SCOPE;
    CHECK_STATUS(ls_backward(loss_of(ddp, 1)), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "SGD #1: rank 0 has 0.25, as 2 of 3 ranks, rank 1 has 0.5");
    ls_optim_free(optim);
    ls_module_free(ddp);
}

TEST_MAIN

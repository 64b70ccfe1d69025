/* SPDX-License-Identifier: Apache-2.0 */
/* A module with two inputs and two outputs, wrapped: after each step the replicas are equal, and
 * the losses are those of one process on the whole batch. */
#include <math.h>

#include <lockstep/lockstep.h>

#include "replicas.h"
#include "test.h"

enum { IN = 6, HIDDEN = 10, OUT = 3, BATCH = 12, STEPS = 12 };

typedef struct net {
    ls_module base;
    ls_module *left, *right, *head, *guess;
} net;

/* a [B,IN], b [B,IN] -> y [B,OUT], guess [B,IN] */
static ls_status net_forward(ls_module *m, ls_tensor *const *inputs, int input_count,
                             ls_tensor **outputs, int output_count)
{
    net *self = (net *)m;
    if (input_count != 2 || output_count != 2) {
        return ls_fail(LS_ERR_INVALID, "net: %d inputs, %d outputs", input_count, output_count);
    }
    ls_tensor *h =
        ls_add(ls_forward(self->left, inputs[0]), ls_tanh(ls_forward(self->right, inputs[1])));
    outputs[0] = ls_forward(self->head, ls_relu(h));
    outputs[1] = ls_forward(self->guess, h);
    return LS_OK;
}

static const ls_module_class net_class =
    LS_MODULE_CLASS(.name = "net", .forward_many = net_forward);

static ls_module *net_new(void)
{
    net *n = ls_module_new(sizeof *n, &net_class);
    n->left = ls_module_add(&n->base, "left", ls_linear_new(IN, HIDDEN, NULL));
    n->right = ls_module_add(&n->base, "right", ls_linear_new(IN, HIDDEN, NULL));
    n->head = ls_module_add(&n->base, "head", ls_linear_new(HIDDEN, OUT, NULL));
    n->guess = ls_module_add(&n->base, "guess", ls_linear_new(HIDDEN, IN, NULL));
    CHECK_OK(ls_module_status(&n->base));
    return &n->base;
}

static ls_tensor *rows(uint64_t kind, int step, int first, int count)
{
    float x[BATCH * IN];
    for (int i = 0; i < count * IN; i++) {
        x[i] = ls_random_normal(7 + kind, (uint64_t)step, (uint64_t)(first * IN + i));
    }
    return ls_from_data(x, LS_SHAPE(count, IN), LS_FLOAT32);
}

static ls_tensor *loss_of(ls_module *m, int step, int first, int count)
{
    ls_tensor *inputs[] = {rows(0, step, first, count), rows(1, step, first, count)}, *out[2];
    CHECK_OK(ls_forward_many(m, inputs, 2, out, 2));
    ls_tensor *zero = ls_zeros(ls_shape_of(out[0]), LS_FLOAT32);
    return ls_add(ls_mse_loss(out[0], zero), ls_mse_loss(out[1], inputs[1]));
}

static void train(ls_module *m, int first, int count, double *losses)
{
    ls_optim *optim = ls_sgd_new(m, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
    for (int step = 0; step < STEPS; step++) {
        {
            LS_SCOPE;
            ls_tensor *loss = loss_of(m, step, first, count);
            CHECK_OK(ls_backward(loss));
            CHECK_OK(ls_item(loss, &losses[step]));
        }
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    ls_optim_free(optim);
}

static void compare_with_one_process(void)
{
    double together[STEPS], alone[STEPS];
    const int share = BATCH / ls_world_size();
    CHECK_OK(ls_manual_seed(3));
    ls_module *ddp = ls_ddp_new(net_new(), ls_world(), NULL);
    CHECK(ddp != NULL);
    train(ddp, ls_rank() * share, share, together);
    CHECK_OK(ls_all_reduce(ls_world(), together, together, STEPS, LS_FLOAT64, LS_AVG, NULL, NULL));
    (void)equal_replicas(ddp, ls_world());
    ls_module_free(ddp);
    CHECK_OK(ls_manual_seed(3));
    ls_module *plain = net_new();
    train(plain, 0, BATCH, alone);
    ls_module_free(plain);
    for (int step = 0; step < STEPS; step++) {
        CHECK_NEAR(together[step], alone[step], 1e-5 * fabs(alone[step]));
    }
    CHECK(alone[STEPS - 1] < 0.9 * alone[0]);
}

DIST_TEST(two_inputs_and_two_outputs_train_alike_on_two_ranks, 2)
{
    compare_with_one_process();
}

DIST_TEST(two_inputs_and_two_outputs_train_alike_on_three_ranks, 3)
{
    compare_with_one_process();
}

/* A forward that fails in the wrapped module is not a step; the counts are its own to judge. */
DIST_TEST(an_error_of_the_wrapped_module_comes_through_the_wrapper, 2)
{
    ls_module *ddp = ls_ddp_new(net_new(), ls_world(), NULL);
    {
        LS_NO_GRAD;
        LS_SCOPE;
        ls_tensor *x = rows(0, 0, 0, 2);
        CHECK_STATUS(ls_tensor_status(ls_forward(ddp, x)), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "net: 1 inputs, 1 outputs");
    }
    ls_module_free(ddp);
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient accumulation: several micro-batches make one step, and only the last one synchronises.
 *
 * `LS_NO_SYNC(net);` keeps the backwards of its block local (the paper's no_sync, section 3.2.4).
 * The backward that synchronises stands *outside*: with all of them inside, the gradients would
 * never be averaged, and ls_optim_step refuses to step on them. The program takes the same steps
 * twice, with one large batch and with four micro-batches, and shows that the losses agree.
 *
 *     lockstep run -n 2 ./05_gradient_accumulation
 */
#include <math.h>
#include <stdio.h>

#include <lockstep/lockstep.h>

enum { IN = 12, HIDDEN = 24, BATCH = 32, MICRO = 4, STEPS = 20 };

static ls_module *make_net(void)
{
    LS_CHECK(ls_manual_seed(3));
    ls_module *layers[] = {ls_linear_new(IN, HIDDEN, NULL), ls_gelu_new(LS_GELU_ERF),
                           ls_linear_new(HIDDEN, 1, NULL)};
    return ls_ddp_new(ls_sequential_new(layers, 3), ls_world(), NULL);
}

/* Rows [first, first+count) of this rank's batch of a step: x [count,IN], y [count,1] = a rule. */
static void make_rows(int step, int first, int count, ls_tensor **x, ls_tensor **y)
{
    float xs[BATCH * IN], ys[BATCH];
    uint64_t stream = (uint64_t)(step * ls_world_size() + ls_rank());
    for (int i = 0; i < count; i++) {
        ys[i] = 0.0f;
        for (int k = 0; k < IN; k++) {
            xs[i * IN + k] = ls_random_normal(11, stream, (uint64_t)((first + i) * IN + k));
            ys[i] += (k % 2 ? 0.5f : -0.25f) * xs[i * IN + k];
        }
    }
    *x = ls_from_data(xs, LS_SHAPE(count, IN), LS_FLOAT32);
    *y = ls_from_data(ys, LS_SHAPE(count, 1), LS_FLOAT32);
}

/* Forward and backward of one micro-batch out of `parts`; returns its share of the loss. */
static double micro_step(ls_module *net, int step, int part, int parts)
{
    double value = 0.0;
    {
        LS_SCOPE;
        ls_tensor *x, *y;
        make_rows(step, part * BATCH / parts, BATCH / parts, &x, &y);
        ls_tensor *loss = ls_scale(ls_mse_loss(ls_forward(net, x), y), 1.0 / parts);
        LS_CHECK(ls_backward(loss));
        LS_CHECK(ls_item(loss, &value));
    }
    return value;
}

static double train_step(ls_module *net, ls_optim *optim, int step, int parts)
{
    double loss = 0.0;
    {
        LS_NO_SYNC(net);
        for (int part = 0; part < parts - 1; part++) {
            loss += micro_step(net, step, part, parts);
        }
    }
    loss += micro_step(net, step, parts - 1, parts); /* the last one, outside: it synchronises */
    LS_CHECK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
    LS_CHECK(ls_all_reduce(ls_world(), &loss, &loss, 1, LS_FLOAT64, LS_AVG, NULL, NULL));
    return loss;
}

int main(void)
{
    LS_CHECK(ls_init(NULL));
    double losses[2][STEPS];
    for (int run = 0; run < 2; run++) {
        ls_module *net = make_net();
        if (net == NULL) {
            fprintf(stderr, "%s\n", ls_error_message());
            return 1;
        }
        ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.05, .momentum = 0.9));
        for (int step = 0; step < STEPS; step++) {
            losses[run][step] = train_step(net, optim, step, run == 0 ? 1 : MICRO);
        }
        ls_optim_free(optim);
        ls_module_free(net);
    }
    double worst = 0.0;
    for (int step = 0; step < STEPS; step++) {
        double difference = fabs(losses[0][step] - losses[1][step]) / losses[0][step];
        worst = difference > worst ? difference : worst;
    }
    if (ls_rank() == 0) {
        printf("loss after %d steps: one batch %.6f, %d micro-batches %.6f\n", STEPS,
               losses[0][STEPS - 1], MICRO, losses[1][STEPS - 1]);
        printf("largest relative difference of a step: %.1e\n", worst);
    }
    LS_CHECK(ls_finalize());
    return worst < 1e-4 ? 0 : 1;
}

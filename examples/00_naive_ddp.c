/* SPDX-License-Identifier: Apache-2.0 */
/* Data parallelism by hand: after backward, one all_reduce for every parameter's gradient.
 *
 * This is the loop that DDP replaces. Nothing is sent while backward runs, and each of the many
 * small messages pays its latency alone. The program takes the same steps both ways, prints the
 * milliseconds of a step, and shows that the losses agree:
 *
 *     for each parameter: all_reduce(gradient); gradient /= ranks     by hand
 *     net = ls_ddp_new(net, ls_world(), NULL)                         02_mlp_ddp.c and all others
 *
 *     lockstep run -n 4 ./00_naive_ddp
 */
#include <math.h>
#include <stdio.h>

#include <lockstep/lockstep.h>

enum { IN = 64, HIDDEN = 64, LAYERS = 24, BATCH = 8, STEPS = 30 };

/* A deep and narrow perceptron: many small gradients, the case in which buckets pay most. */
static ls_module *make_net(void)
{
    ls_module *layers[2 * LAYERS];
    LS_CHECK(ls_manual_seed(5));
    for (int i = 0; i < LAYERS; i++) {
        layers[2 * i] = ls_linear_new(i == 0 ? IN : HIDDEN, i == LAYERS - 1 ? 1 : HIDDEN, NULL);
        layers[2 * i + 1] = i == LAYERS - 1 ? ls_identity_new() : ls_relu_new();
    }
    return ls_sequential_new(layers, 2 * LAYERS);
}

/* Every gradient, summed over the ranks and divided by their number: what makes the step the one
 * that a single process would take on the batches of all. */
static void average_gradients(ls_module *net)
{
    ls_param params[2 * LAYERS];
    const int count = ls_module_params(net, params, 2 * LAYERS);
    for (int i = 0; i < count; i++) {
        ls_tensor *grad = ls_grad(params[i].value);
        LS_CHECK(ls_all_reduce(ls_world(), ls_data(grad), ls_data(grad), ls_numel(grad), LS_FLOAT32,
                               LS_AVG, NULL, NULL));
    }
}

/* This rank's batch of a step: x [BATCH,IN], y [BATCH,1], a rule of x. */
static void make_batch(int step, ls_tensor **x, ls_tensor **y)
{
    float xs[BATCH * IN], ys[BATCH] = {0};
    const uint64_t stream = (uint64_t)(step * ls_world_size() + ls_rank());
    for (int i = 0; i < BATCH * IN; i++) {
        xs[i] = ls_random_normal(3, stream, (uint64_t)i);
        ys[i / IN] += xs[i] * (i % 2 ? 0.1f : -0.1f);
    }
    *x = ls_from_data(xs, LS_SHAPE(BATCH, IN), LS_FLOAT32);
    *y = ls_from_data(ys, LS_SHAPE(BATCH, 1), LS_FLOAT32);
}

/* Trains a net of its own. Returns the last loss, averaged over the ranks; *ms: of a step. */
static double train(bool by_hand, double *ms)
{
    double loss = 0.0, started = 0.0;
    ls_module *net = make_net();
    net = by_hand ? net : ls_ddp_new(net, ls_world(), NULL);
    LS_CHECK(ls_module_status(net));
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.05));
    for (int step = 0; step < STEPS; step++) {
        if (step == STEPS / 3) { /* the first steps set things up */
            started = ls_time();
        }
        LS_SCOPE;
        ls_tensor *x, *y;
        make_batch(step, &x, &y);
        ls_tensor *mean = ls_mse_loss(ls_forward(net, x), y);
        LS_CHECK(ls_backward(mean));
        if (by_hand) {
            average_gradients(net);
        }
        LS_CHECK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        LS_CHECK(ls_item(mean, &loss));
    }
    *ms = (ls_time() - started) * 1e3 / (STEPS - STEPS / 3);
    LS_CHECK(ls_all_reduce(ls_world(), &loss, &loss, 1, LS_FLOAT64, LS_AVG, NULL, NULL));
    ls_optim_free(optim);
    ls_module_free(net);
    return loss;
}

int main(void)
{
    double by_hand_ms, ddp_ms;
    LS_CHECK(ls_init(NULL));
    const double by_hand = train(true, &by_hand_ms), ddp = train(false, &ddp_ms);
    const double difference = fabs(by_hand - ddp) / fabs(ddp);
    if (ls_rank() == 0) {
        printf("by hand  loss %.6f  %6.2f ms a step, %d messages\n", by_hand, by_hand_ms,
               2 * LAYERS);
        printf("DDP      loss %.6f  %6.2f ms a step, buckets, sent during backward\n", ddp, ddp_ms);
        printf("relative difference of the losses: %.1e\n", difference);
    }
    LS_CHECK(ls_finalize());
    return difference < 1e-4 ? 0 : 1;
}

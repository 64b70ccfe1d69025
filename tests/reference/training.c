/* SPDX-License-Identifier: Apache-2.0 */
/* Training beside PyTorch in float64, on 1 to 4 ranks: 50 steps of SGD with momentum and of AdamW,
 * and of gpt and bert 100 steps of AdamW with groups of parameters.
 *
 * Each step all ranks take equal shares of the same global batch. The mean of their losses must be
 * PyTorch's within 1e-5 of it at every step, and each parameter's averaged gradient g within
 * 1e-5 ||g|| at the first and 5e-5 ||g|| at the last step (1e-4 after 100), by which the rounding
 * errors of all steps have gone through the weights. Where the true gradient is zero (a bias before
 * a batch norm, the bias of attention's keys) the bounds are absolute.
 *
 * TEST_VERBOSE=1 prints the largest distances. */
#include <math.h>
#include <stdio.h>

#include "nets.h"

#define LOSS_TOLERANCE 1e-5
#define ZERO_GRADIENT 1e-12 /* float64 leaves 1e-16 and less of one; true ones are above 1e-6 */

typedef struct worst {
    double loss, first, last;
} worst;

typedef struct training {
    const reference_net *of;
    const numbers *numbers;
    const char *optim_name;
    char prefix[16]; /* of names in the file: "4/", or "" */
    ls_module *net;
    ls_optim *optim;
    ls_param *params;
    int count;
    worst worst;
} training;

/* After the vectors, which include the norm behind BERT's embeddings, are in a group. */
static bool select_embeddings(void *arg, const char *name, const ls_tensor *param)
{
    (void)arg;
    return ls_shape_of(param).ndim > 1 &&
           (strstr(name, "embeddings") != NULL || strcmp(name, "tokens.weight") == 0 ||
            strcmp(name, "positions") == 0);
}

/* As adamw_with_groups in make.py. */
static ls_optim *adamw_with_groups(ls_module *net)
{
    ls_optim *o = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 3e-3, .weight_decay = 0.1));
    CHECK_OK(ls_optim_add_group(o, ls_select_vectors, NULL,
                                LS_OPTIONS(ls_optim_group_options, .weight_decay = 0)));
    CHECK_OK(ls_optim_add_group(o, select_embeddings, NULL,
                                LS_OPTIONS(ls_optim_group_options, .lr_scale = 0.5)));
    return o;
}

static ls_optim *optim_new(const char *name, ls_module *net)
{
    if (strcmp(name, "sgd") == 0) {
        return ls_sgd_new(
            net, LS_OPTIONS(ls_sgd_options, .lr = 0.02, .momentum = 0.9, .weight_decay = 1e-3));
    }
    return strcmp(name, "groups") == 0
               ? adamw_with_groups(net)
               : ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 3e-3));
}

static void begin(training *t, const reference_net *of, const numbers *n, const char *optim)
{
    *t = (training){.of = of, .numbers = n, .optim_name = optim};
    if (of->by_ranks) {
        (void)snprintf(t->prefix, sizeof t->prefix, "%d/", ls_world_size());
    }
    ls_module *net = of->make();
    CHECK(net != NULL);
    formula_params(net);
    t->net = ls_ddp_new(net, ls_world(), NULL);
    CHECK(t->net != NULL);
    t->optim = optim_new(optim, t->net);
    CHECK(t->optim != NULL);
    t->count = ls_module_param_count(t->net);
    t->params = calloc((size_t)t->count + 1, sizeof *t->params);
    CHECK(t->params != NULL);
    (void)ls_module_params(t->net, t->params, t->count);
    char start[32];
    (void)snprintf(start, sizeof start, "%sstart/", t->prefix);
    CHECK_INT(numbers_count(n, start), t->count);
}

static void end(training *t)
{
    int identical = 0;
    uint64_t hash = 0;
    CHECK_OK(ls_replicas_identical(t->net, ls_world(), &identical, &hash)); /* statistics, too */
    CHECK_INT(identical, ls_world_size());
    free(t->params);
    ls_optim_free(t->optim);
    ls_module_free(t->net);
}

/* The distance of a parameter's gradient from `want`, in units of its norm. */
static double distance(const ls_param *param, const double *want)
{
    ls_tensor *grad = ls_grad(param->value);
    CHECK(grad != NULL);
    const float *got = ls_data(grad);
    double difference = 0.0, norm = 0.0;
    for (int64_t i = 0; i < ls_numel(grad); i++) {
        double d = (double)got[i] - want[i];
        difference += d * d;
        norm += want[i] * want[i];
    }
    return norm > ZERO_GRADIENT * ZERO_GRADIENT ? sqrt(difference / norm) : sqrt(difference);
}

/* The largest distance of all parameters. */
static double check_gradients(const training *t, const char *when, double tolerance)
{
    double largest = 0.0;
    for (int p = 0; p < t->count; p++) {
        double *want = numbers_get(t->numbers, ls_numel(t->params[p].value), "%s%s/%s", t->prefix,
                                   when, t->params[p].name);
        double far = distance(&t->params[p], want);
        free(want);
        if (!(far <= tolerance)) {
            test_fail(__FILE__, __LINE__, "%s, %s, %s: the gradient of %s is %.3g off, wanted %g",
                      t->of->name, t->optim_name, when, t->params[p].name, far, tolerance);
        }
        largest = fmax(largest, far);
    }
    return largest;
}

static double loss_and_gradients(const training *t, int step)
{
    double loss = 0.0;
    int64_t share = BATCH / ls_world_size();
    {
        LS_SCOPE;
        ls_tensor *value = t->of->loss(t->net, step % BATCHES * BATCH + ls_rank() * share, share);
        CHECK_OK(ls_backward(value));
        CHECK_OK(ls_item(value, &loss));
    }
    CHECK_OK(ls_all_reduce(ls_world(), &loss, &loss, 1, LS_FLOAT64, LS_AVG, NULL, NULL));
    return loss;
}

static void check_loss(training *t, int step, double got, double want)
{
    double far = fabs(got - want) / fabs(want);
    if (!(far <= LOSS_TOLERANCE)) {
        test_fail(__FILE__, __LINE__, "%s, %s, step %d: the loss is %.9g, wanted %.9g", t->of->name,
                  t->optim_name, step + 1, got, want);
    }
    t->worst.loss = fmax(t->worst.loss, far);
}

static void train(const reference_net *of, const numbers *n, const char *optim, int steps)
{
    training t;
    char last[32];
    begin(&t, of, n, optim);
    (void)snprintf(last, sizeof last, "%s/end", optim);
    double *losses = numbers_get(n, steps, "%s%s/losses", t.prefix, optim);
    for (int step = 0; step < steps; step++) {
        check_loss(&t, step, loss_and_gradients(&t, step), losses[step]);
        if (step == 0) {
            t.worst.first = check_gradients(&t, "start", 1e-5);
        } else if (step == steps - 1) {
            t.worst.last = check_gradients(&t, last, 1e-6 * steps);
        }
        CHECK_OK(ls_optim_step(t.optim));
        ls_optim_zero_grad(t.optim);
    }
    if (ls_rank() == 0) {
        printf("# %s, %d ranks, %s: losses %.2g off, gradients %.2g and %.2g\n", of->name,
               ls_world_size(), optim, t.worst.loss, t.worst.first, t.worst.last);
    }
    free(losses);
    end(&t);
}

static void train_all(const reference_net *of)
{
    numbers *n = numbers_open(of->name);
    train(of, n, "sgd", 50);
    train(of, n, "adamw", 50);
    if (of->groups) {
        train(of, n, "groups", 100);
    }
    numbers_close(n);
}

#define TRAINS(net)                                                                                \
    DIST_TEST(net##_trains_as_in_float64_on_1_rank, 1)                                             \
    {                                                                                              \
        train_all(&net##_net);                                                                     \
    }                                                                                              \
    DIST_TEST(net##_trains_as_in_float64_on_2_ranks, 2)                                            \
    {                                                                                              \
        train_all(&net##_net);                                                                     \
    }                                                                                              \
    DIST_TEST(net##_trains_as_in_float64_on_3_ranks, 3)                                            \
    {                                                                                              \
        train_all(&net##_net);                                                                     \
    }                                                                                              \
    DIST_TEST(net##_trains_as_in_float64_on_4_ranks, 4)                                            \
    {                                                                                              \
        train_all(&net##_net);                                                                     \
    }

TRAINS(mlp)
TRAINS(gpt)
TRAINS(lstm)
TRAINS(bert)
TRAINS(cnn)
TRAINS(resnet)

TEST_MAIN

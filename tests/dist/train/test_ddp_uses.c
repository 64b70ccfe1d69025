/* SPDX-License-Identifier: Apache-2.0 */
/* What programs do with DistributedDataParallel besides the plain loop: frozen parameters, buffers,
 * uneven data to the end of an epoch, dropout, several forwards, losses and wrappers. */
#include <math.h>
#include <sched.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "autograd/param.h"
#include "elements.h"
#include "replicas.h"
#include "says.h"
#include "test.h"

enum { IN = 6, HIDDEN = 16, OUT = 3 };

static ls_module *perceptron(double dropout)
{
    CHECK_OK(ls_manual_seed(1));
    ls_module *layers[] = {ls_linear_new(IN, HIDDEN, NULL), ls_relu_new(), ls_dropout_new(dropout),
                           ls_linear_new(HIDDEN, OUT, NULL)};
    ls_module *net = ls_sequential_new(layers, 4);
    CHECK_OK(ls_module_status(net));
    return net;
}

static void sample(int64_t i, float *x, int32_t *y)
{
    for (int64_t k = 0; k < IN; k++) {
        x[k] = ls_random_normal(9, 0, (uint64_t)(i * IN + k));
    }
    *y = x[0] > 0.3f ? 0 : x[1] > x[2] ? 1 : 2;
}

static ls_status samples_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    (void)self;
    sample(index, x, y);
    return LS_OK;
}

static ls_dataset samples(int64_t count)
{
    return (ls_dataset)LS_DATASET(.count = count, .x_shape = LS_SHAPE(IN), .y_shape = LS_SCALAR,
                                  .x_dtype = LS_FLOAT32, .y_dtype = LS_INT32, .get = samples_get);
}

static void check_replicas(ls_module *net)
{
    (void)equal_replicas(net, ls_world());
}

/* ---- the same global batches, whoever shares them ----------------------------------------- */

typedef struct job {
    int64_t count, batch; /* samples; of all ranks in a step */
    double dropout;
    bool alone; /* this rank by itself takes the whole batch, without a wrapper */
} job;

enum { EPOCHS = 3, STEPS_MAX = 64 };

static ls_loader *open_loader(const job *j, ls_dataset *data, ls_sampler **sampler)
{
    int ranks = j->alone ? 1 : ls_world_size();
    ls_loader *loader = NULL;
    CHECK_OK(*sampler = ls_sampler_new(
                 j->count, LS_OPTIONS(ls_sampler_options, .batch = j->batch / ranks,
                                      .rank = j->alone ? 0 : ls_rank(), .world_size = ranks)));
    CHECK_OK(loader = ls_loader_new(data, *sampler, NULL));
    return loader;
}

/* Returns the mean loss over the step's global batch. */
static double train_step(const job *j, ls_module *net, const ls_batch *batch)
{
    double sums[2] = {0.0, (double)batch->count};
    {
        LS_SCOPE;
        ls_tensor *loss = ls_cross_entropy(ls_forward(net, batch->x), batch->y, NULL);
        CHECK_OK(j->alone ? ls_backward(loss) : ls_backward_weighted(loss, (double)batch->count));
        CHECK_OK(ls_item(loss, &sums[0]));
        sums[0] = batch->count > 0 ? sums[0] * sums[1] : 0.0;
    }
    if (!j->alone) {
        CHECK_OK(ls_all_reduce(ls_world(), sums, sums, 2, LS_FLOAT64, LS_SUM, NULL, NULL));
    }
    CHECK_INT((int64_t)sums[1], batch->global_count);
    return sums[0] / sums[1];
}

static int train(const job *j, double losses[STEPS_MAX])
{
    ls_dataset data = samples(j->count);
    ls_sampler *sampler = NULL;
    ls_loader *loader = open_loader(j, &data, &sampler);
    ls_module *net = perceptron(j->dropout);
    net = j->alone ? net : ls_ddp_new(net, ls_world(), NULL);
    CHECK(net);
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1, .momentum = 0.9));
    ls_batch batch = {.size = sizeof batch};
    int steps = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        while (ls_loader_next(loader, &batch)) {
            losses[steps++] = train_step(j, net, &batch);
            CHECK_OK(ls_clip_grad_norm(net, 1.0, NULL, NULL));
            CHECK_OK(ls_optim_step(optim));
            ls_optim_zero_grad(optim);
        }
        CHECK_OK(ls_loader_status(loader));
    }
    check_replicas(net);
    ls_optim_free(optim);
    ls_module_free(net);
    ls_loader_free(loader);
    ls_sampler_free(sampler);
    return steps;
}

static void ranks_equal_one(int64_t count, int64_t batch, double dropout)
{
    double together[STEPS_MAX], alone[STEPS_MAX];
    job j = {.count = count, .batch = batch, .dropout = dropout};
    int steps = train(&j, together);
    j.alone = true;
    CHECK_INT(train(&j, alone), steps);
    CHECK_INT(steps, EPOCHS * ((count + batch - 1) / batch));
    for (int i = 0; i < steps; i++) {
        CHECK_NEAR(together[i], alone[i], 1e-5 * fabs(alone[i]));
    }
}

/* The last step of an epoch has 2 samples for 4 ranks. */
DIST_TEST(an_epoch_that_ends_with_fewer_samples_than_ranks_trains_as_one_process_does, 4)
{
    ranks_equal_one(50, 16, 0.0);
}

DIST_TEST(a_data_set_smaller_than_a_batch_trains_as_one_process_does, 3)
{
    ranks_equal_one(7, 24, 0.0);
}

DIST_TESTS(dropout_on_, _ranks_drops_what_one_process_drops, 1, 2, 4)
{
    ranks_equal_one(40, 16, 0.4);
}

/* ---- parts of a model --------------------------------------------------------------------- */

static void backward_of_ones(ls_module *net, double scale)
{
    LS_SCOPE;
    ls_tensor *x = ls_full(LS_SHAPE(4, IN), LS_FLOAT32, 1.0 + ls_rank());
    ls_tensor *y = ls_forward(net, x);
    CHECK_OK(ls_backward(ls_scale(ls_mean(ls_mul(y, y)), scale)));
}

DIST_TEST(frozen_parameters_are_broadcast_and_left_alone, 2)
{
    ls_module *net = perceptron(0.0);
    ls_param p[4];
    CHECK_INT(ls_module_params(net, p, 4), 4);
    CHECK_OK(ls_fill_constant(p[0].value, 0.25 * (1 + ls_rank())));
    CHECK_OK(ls_tensor_status(ls_set_requires_grad(p[0].value, false)));
    CHECK_OK(ls_tensor_status(ls_set_requires_grad(p[1].value, false)));
    ls_module *ddp = ls_ddp_new(net, ls_world(), NULL);
    CHECK_OK(ls_module_status(ddp));
    ls_optim *optim = ls_adamw_new(ddp, NULL);
    for (int i = 0; i < 3; i++) {
        backward_of_ones(ddp, 1.0);
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    const float *frozen = elements_of(p[0].value);
    CHECK(frozen[0] == 0.25f && frozen[HIDDEN * IN - 1] == 0.25f);
    check_replicas(ddp);
    ls_optim_free(optim);
    ls_module_free(ddp);
}

/* Whoever is first fails the group for all, so all start together. */
static void backward_is_refused(ls_module *ddp, const char *words)
{
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    LS_SCOPE;
    ls_tensor *y = ls_forward(ddp, ls_ones(LS_SHAPE(4, IN), LS_FLOAT32));
    CHECK_STATUS(ls_backward(ls_mean(y)), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), words);
    CHECK_CONTAINS(ls_error_message(), "ls_ddp_unwrap");
}

DIST_TEST(a_parameter_thawed_after_wrapping_is_named_instead_of_drifting_apart, 2)
{
    ls_module *net = perceptron(0.0);
    (void)ls_set_requires_grad(ls_module_param(net, "0.weight"), false);
    ls_module *ddp = ls_ddp_new(net, ls_world(), NULL);
    ls_optim *optim = ls_sgd_new(ddp, NULL);
    CHECK_OK(ls_tensor_status(ls_set_requires_grad(ls_module_param(net, "0.weight"), true)));
    backward_is_refused(ddp, "parameter 0.weight began to require gradients after ls_ddp_new");
    CHECK_STATUS(ls_optim_step(optim), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "the last ls_backward failed");
    ls_optim_free(optim);
    ls_module_free(ddp);
}

static ls_tensor *through_both(ls_module *m, ls_tensor *x)
{
    ls_tensor *y = ls_forward(ls_module_child(m, "first"), x);
    ls_module *added = ls_module_child_at(m, 1);
    return added != NULL ? ls_forward(added, y) : y;
}

static const ls_module_class both_class = LS_MODULE_CLASS(.name = "both", .forward = through_both);

static ls_module *both(void)
{
    ls_module *net = ls_module_new(sizeof *net, &both_class);
    (void)ls_module_add(net, "first", ls_linear_new(IN, HIDDEN, NULL));
    CHECK_OK(ls_module_status(net));
    return net;
}

DIST_TEST(a_layer_added_after_wrapping_is_named_instead_of_drifting_apart, 2)
{
    ls_module *net = both();
    ls_module *ddp = ls_ddp_new(net, ls_world(), NULL);
    backward_of_ones(ddp, 1.0);
    CHECK(ls_module_add(net, "second", ls_linear_new(HIDDEN, OUT, NULL)) != NULL);
    backward_is_refused(ddp, "parameter second.weight was added after ls_ddp_new");
    ls_module_free(ddp);
}

/* Each rank has its own data, so a parameter that is not averaged differs at once. */
static void train_some(ls_module *net, ls_optim *optim, int steps)
{
    for (int i = 0; i < steps; i++) {
        backward_of_ones(net, 1.0 + ls_rank());
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
}

DIST_TESTS(a_parameter_may_be_frozen_and_thawed_under_ddp_of_, _ranks, 1, 2)
{
    ls_module *net = perceptron(0.0);
    ls_module *ddp = ls_ddp_new(net, ls_world(), NULL);
    ls_optim *optim = ls_adamw_new(ddp, NULL);
    ls_tensor *weight = ls_module_param(net, "0.weight");
    float before[HIDDEN * IN], after[HIDDEN * IN];
    train_some(ddp, optim, 2);
    (void)ls_set_requires_grad(weight, false);
    CHECK_OK(ls_copy_out(weight, before, sizeof before));
    train_some(ddp, optim, 2);
    CHECK_OK(ls_copy_out(weight, after, sizeof after));
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK_OK(ls_tensor_status(ls_set_requires_grad(weight, true)));
    train_some(ddp, optim, 2);
    CHECK_OK(ls_copy_out(weight, after, sizeof after));
    CHECK(memcmp(before, after, sizeof before) != 0);
    check_replicas(ddp);
    ls_optim_free(optim);
    ls_module_free(ddp);
}

DIST_TEST(a_wrapper_can_be_taken_off_and_another_put_on, 2)
{
    ls_module *net = both();
    ls_module *ddp = ls_ddp_new(net, ls_world(), NULL);
    ls_optim *optim = ls_adamw_new(ddp, NULL);
    train_some(ddp, optim, 3);
    const uint64_t hash = ls_module_hash(ddp);
    CHECK(ls_ddp_unwrap(ddp) == net);
    CHECK(ls_ddp_unwrap(net) == net);
    CHECK(ls_module_hash(net) == hash);
    backward_of_ones(net, 1.0);
    CHECK_OK(ls_optim_step(optim)); /* its names outlive the wrapper */
    ls_optim_free(optim);
    CHECK(ls_module_add(net, "second", ls_linear_new(HIDDEN, OUT, NULL)) != NULL);
    ddp = ls_ddp_new(net, ls_world(), NULL);
    optim = ls_adamw_new(ddp, NULL);
    train_some(ddp, optim, 3);
    check_replicas(ddp);
    ls_optim_free(optim);
    ls_module_free(ddp);
}

static int warnings, halves;

static void count_warnings(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    warnings += level == LS_LOG_WARN && strstr(text, "this SGD") != NULL &&
                test_count_said(
                    text, SAYS("ls_optim_step: %d ranks train, but the gradients of this %s were "
                               "not averaged: its module is not wrapped by ls_ddp_new, and no "
                               "collective ran since the last step. Replicas of one model drift "
                               "apart this way")) > 0;
}

static void count_halves(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    halves +=
        level == LS_LOG_WARN && strstr(text, "parameter head.weight has") != NULL &&
        strstr(text, "that first.weight belongs to") != NULL &&
        test_count_said(text, SAYS("ls_optim_step: parameter %s has a gradient of this rank only, "
                                   "because it does not belong to the ls_ddp_new that %s belongs "
                                   "to, so it drifts apart from the other ranks'; wrap the whole "
                                   "model after its last layer was added, unless each rank has a "
                                   "part of its own on purpose")) > 0;
}

/* The wrapped part and a head of each rank's own, in one optimizer. */
DIST_TEST(an_optimizer_of_a_half_wrapped_model_names_the_other_half_once, 2)
{
    ls_module *net = ls_module_new(sizeof *net, &both_class);
    ls_module *ddp = ls_ddp_new(ls_linear_new(IN, HIDDEN, NULL), ls_world(), NULL);
    CHECK(ls_module_add(net, "first", ddp) &&
          ls_module_add(net, "head", ls_linear_new(HIDDEN, OUT, NULL)));
    ls_optim *optim = ls_sgd_new(net, NULL);
    ls_set_log_callback(count_halves, NULL);
    train_some(net, optim, 3);
    CHECK_INT(halves, 1);
    ls_optim_free(optim);
    ls_module_free(net);
}

static void train_apart(int averaged_by_hand)
{
    ls_module *net = perceptron(0.0);
    double one = 1.0;
    CHECK_OK(ls_all_reduce(ls_world(), &one, &one, 1, LS_FLOAT64, LS_AVG, NULL, NULL));
    ls_optim *optim = ls_sgd_new(net, NULL);
    ls_set_log_callback(count_warnings, NULL);
    for (int i = 0; i < averaged_by_hand; i++) { /* for all that is known */
        backward_of_ones(net, 1.0);
        CHECK_OK(ls_all_reduce(ls_world(), &one, &one, 1, LS_FLOAT64, LS_AVG, NULL, NULL));
        CHECK_OK(ls_optim_step(optim));
    }
    CHECK_INT(warnings, 0);
    for (int i = 0; i < 3; i++) {
        train_some(net, optim, 1);
        CHECK_INT(warnings, 1);
    }
    ls_optim_free(optim);
    ls_module_free(net);
}

DIST_TEST(replicas_that_train_apart_are_warned_once, 2)
{
    train_apart(3);
}

DIST_TEST(replicas_that_exchanged_only_before_the_optimizer_was_made_are_warned, 2)
{
    train_apart(0);
}

typedef struct counting {
    ls_module base;
    ls_module *inner;
    ls_tensor *seen; /* a buffer: int64 [1] */
} counting;

static ls_tensor *counting_forward(ls_module *m, ls_tensor *x)
{
    counting *self = (counting *)m;
    put_int64(self->seen, 0, *(const int64_t *)elements_of(self->seen) + 1);
    return ls_forward(self->inner, ls_forward(self->inner, x)); /* twice: gradients add up */
}

static const ls_module_class counting_class =
    LS_MODULE_CLASS(.name = "counting", .forward = counting_forward);

static ls_module *counting_new(void)
{
    CHECK_OK(ls_manual_seed(2));
    counting *c = ls_module_new(sizeof *c, &counting_class);
    const int64_t start = 100 + ls_rank();
    c->inner = ls_module_add(&c->base, "inner", ls_linear_new(IN, IN, NULL));
    c->seen = ls_module_add_buffer(&c->base, "seen", ls_from_data(&start, LS_SHAPE(1), LS_INT64));
    CHECK_OK(ls_module_status(&c->base));
    return &c->base;
}

DIST_TEST(buffers_start_as_those_of_rank_0_and_get_no_gradients, 3)
{
    ls_module *net = counting_new(), *ddp = ls_ddp_new(net, ls_world(), NULL);
    ls_tensor *seen = ((counting *)net)->seen;
    CHECK_INT(*(const int64_t *)elements_of(seen), 100);
    CHECK_INT(ls_module_param_count(ddp), 2);
    backward_of_ones(ddp, 1.0);
    CHECK_INT(*(const int64_t *)elements_of(seen), 101);
    check_replicas(ddp);
    ls_module_free(ddp);
}

static double gradient(ls_module *net, int param)
{
    ls_param p[4];
    CHECK(ls_module_params(net, p, 4) > param);
    const float *g = elements_of(ls_grad(p[param].value));
    CHECK(g);
    return (double)g[1];
}

DIST_TEST(two_losses_and_two_backwards_add_up_as_in_one_process, 2)
{
    ls_module *ddp = ls_ddp_new(counting_new(), ls_world(), NULL);
    for (int step = 0; step < 3; step++) { /* the first is followed by the new layout of buckets */
        ls_optim *optim = ls_sgd_new(ddp, NULL);
        backward_of_ones(ddp, 1.0);
        double one = gradient(ddp, 0);
        ls_optim_zero_grad(optim);
        backward_of_ones(ddp, 0.25);
        backward_of_ones(ddp, 0.75); /* onto a reduced gradient */
        CHECK_NEAR(gradient(ddp, 0), one, 1e-6 * (1.0 + fabs(one)));
        backward_of_ones(ddp, 1.0); /* and again, without zero_grad */
        CHECK_NEAR(gradient(ddp, 0), 2.0 * one, 2e-6 * (1.0 + fabs(one)));
        ls_optim_zero_grad(optim);
        ls_optim_free(optim);
    }
    ls_module_free(ddp);
}

DIST_TEST(a_wrapper_can_be_freed_and_made_again, 2)
{
    for (int i = 0; i < 5; i++) {
        ls_module *ddp = ls_ddp_new(perceptron(0.0), ls_world(), NULL);
        CHECK_OK(ls_module_status(ddp));
        backward_of_ones(ddp, 1.0);
        backward_of_ones(ddp, 1.0);
        check_replicas(ddp);
        ls_module_free(ddp);
    }
}

DIST_TEST(two_wrapped_modules_in_one_loss_are_both_averaged, 2)
{
    ls_module *a = ls_ddp_new(perceptron(0.0), ls_world(), NULL);
    ls_module *b = ls_ddp_new(perceptron(0.0), ls_world(), NULL);
    {
        LS_SCOPE;
        ls_tensor *x = ls_full(LS_SHAPE(4, IN), LS_FLOAT32, 1.0 + ls_rank());
        CHECK_OK(ls_backward(ls_mean(ls_mul(ls_forward(a, x), ls_forward(b, x)))));
    }
    CHECK_NEAR(gradient(a, 2), gradient(b, 2), 0.0); /* the same weights: the same gradients */
    double low = gradient(a, 2), high = low;
    CHECK_OK(ls_all_reduce(ls_world(), &low, &low, 1, LS_FLOAT64, LS_MIN, NULL, NULL));
    CHECK_OK(ls_all_reduce(ls_world(), &high, &high, 1, LS_FLOAT64, LS_MAX, NULL, NULL));
    CHECK(low == high);
    ls_module_free(b);
    ls_module_free(a);
}

/* ---- overlap ------------------------------------------------------------------------------ */

/* Owns the input, whose gradient is the last of a backward pass, and holds the pass there. */
typedef struct probe {
    ls__observer base;
    ls_tensor *bias; /* of the last layer: the first gradient to be final */
    double seen;     /* its gradient when it had become the average, or after too long */
} probe;

static ls_status probe_begin(ls__observer *self, const ls__backward_info *info)
{
    (void)self;
    (void)info;
    return LS_OK;
}

static double average_of_ranks(void)
{
    return (1.0 + ls_world_size()) / 2.0 / OUT;
}

static ls_status probe_ready(ls__observer *self, int index)
{
    probe *p = (probe *)self;
    double until = ls_time() + 10.0;
    (void)index;
    do {
        p->seen = (double)*(volatile float *)ls_data(ls_grad(p->bias));
        (void)sched_yield();
    } while (fabs(p->seen - average_of_ranks()) > 1e-6 && ls_time() < until);
    return LS_OK;
}

static ls_status probe_end(ls__observer *self)
{
    (void)self;
    return LS_OK;
}

static void probe_abort(ls__observer *self, ls_status status, const char *message)
{
    (void)self;
    (void)status;
    (void)message;
}

DIST_TEST(gradients_are_averaged_while_the_backward_pass_still_runs, 3)
{
#if defined(__SANITIZE_THREAD__)
    SKIP("it looks at memory that is being reduced, on purpose");
#endif
    if (test_on_device()) {
        SKIP("it looks at memory that is being reduced, which is not the gradient's on a device");
    }
    ls_module *net = perceptron(0.0);
    ls_module *ddp = ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .bucket_bytes = 0));
    ls_param p[4];
    CHECK_INT(ls_module_params(net, p, 4), 4);
    probe last = {.base = {.param_count = 1,
                           .begin = probe_begin,
                           .ready = probe_ready,
                           .end = probe_end,
                           .abort = probe_abort},
                  .bias = p[3].value};
    CHECK_OK(ls__observer_add(&last.base));
    for (int step = 0; step < 3; step++) {
        {
            LS_SCOPE;
            ls_tensor *x = ls_set_requires_grad(ls_ones(LS_SHAPE(1, IN), LS_FLOAT32), true);
            CHECK_OK(ls__param_observe(x, &last.base, 0));
            CHECK_OK(ls_backward(ls_scale(ls_mean(ls_forward(ddp, x)), 1.0 + ls_rank())));
        }
        CHECK_NEAR(last.seen, average_of_ranks(), 1e-6);
        for (int i = 0; i < 4; i++) {
            CHECK_OK(ls__param_set_grad_present(p[i].value, false));
        }
    }
    ls__observer_remove(&last.base);
    ls_module_free(ddp);
}

/* ---- what cannot be wrapped --------------------------------------------------------------- */

DIST_TEST(what_cannot_be_wrapped_is_refused_in_words_and_stays_usable, 2)
{
    ls_module *ddp = ls_ddp_new(perceptron(0.0), ls_world(), NULL);
    CHECK(!ls_ddp_new(ddp, ls_world(), NULL));
    CHECK_CONTAINS(ls_error_message(), "ls_ddp_new: parameter 0.weight belongs to a");
    CHECK(!ls_ddp_new(ls_ddp_module(ddp), ls_world(), NULL));
    CHECK_CONTAINS(ls_error_message(),
                   "ls_ddp_new: the Sequential is part of module ddp; wrap the whole");
    CHECK(!ls_ddp_new(NULL, ls_world(), NULL));
    CHECK(!ls_ddp_new(ddp, NULL, NULL));
    CHECK_CONTAINS(ls_error_message(), "the group is NULL");
    ls_module *relu = ls_relu_new();
    CHECK(!ls_ddp_new(relu, ls_world(), NULL));
    CHECK_CONTAINS(ls_error_message(), "no parameter that requires gradients");
    ls_module_free(relu);
    backward_of_ones(ddp, 1.0);
    check_replicas(ddp);
    ls_module_free(ddp);
}

static ls_module *perceptron_in_a_model(ls_module **inner)
{
    *inner = perceptron(0.0);
    return ls_sequential_new(inner, 1);
}

/* The other ranks would wait for it. */
static void check_odd_call(ls_module *module, const char *wanted)
{
    const double begin = ls_time();
    CHECK(!ls_ddp_new(module, ls_world(), NULL));
    CHECK_WITHIN(ls_time() - begin, 3);
    CHECK_STATUS(ls_error_status(), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "ls_ddp_new: ddp: the ranks differ in the arguments: ");
    CHECK_CONTAINS(ls_error_message(), wanted);
    CHECK_SAYS(ls_error_message(), "the arguments");
    CHECK_SAYS(ls_error_message(), "wrong ones (%s)");
    CHECK_SAYS(ls_error_message(),
               "give every rank its own copy of the whole model, and the same options");
}

DIST_TEST(a_call_that_is_wrong_on_one_rank_is_named_by_all, 3)
{
    ls_module *inner, *whole = perceptron_in_a_model(&inner), *other = perceptron(0.0);
    check_odd_call(ls_rank() == 1 ? inner : whole,
                   "rank 0 has right ones, as 2 of 3 ranks, rank 1 has wrong ones (the Sequential "
                   "is part of module "
                   "Sequential; wrap the whole model, or wrap it before it is added); ");
    check_odd_call(ls_rank() == 2 ? NULL : whole, "rank 2 has wrong ones (the module is NULL");
    ls_module *ddp = ls_ddp_new(whole, ls_world(), NULL);
    CHECK_OK(ls_module_status(ddp));
    check_odd_call(ls_rank() == 2 ? inner : other,
                   "rank 2 has wrong ones (the Sequential is part of module");
    check_odd_call(ls_rank() == 0 ? ddp : other,
                   "rank 0 has wrong ones (parameter 0.0.weight belongs to a ddp already");
    backward_of_ones(ddp, 1.0);
    check_replicas(ddp);
    ls_module_free(ddp);
    ls_module_free(other);
}

/* ---- after the end ------------------------------------------------------------------------- */

static void leave_behind(ls_module **ddp, ls_module **plain, ls_optim **optim)
{
    CHECK_OK(ls_init(NULL));
    *ddp = ls_ddp_new(perceptron(0.0), ls_world(), NULL);
    *plain = perceptron(0.0);
    *optim = ls_adamw_new(*ddp, NULL);
    train_some(*ddp, *optim, 2);
    CHECK_OK(ls_finalize());
}

/* In the wrong order, but valgrind and ASan must agree that it is harmless; also when another
 * runtime has begun, whose tensors may have the same handles. */
TEST(what_is_freed_after_finalize_frees_nothing_else)
{
    for (int again = 0; again < 2; again++) {
        ls_module *ddp = NULL, *plain = NULL, *other = NULL;
        ls_optim *optim = NULL;
        leave_behind(&ddp, &plain, &optim);
        if (again) {
            CHECK_OK(ls_init(NULL));
            other = perceptron(0.0);
        }
        const uint64_t hash = again ? ls_module_hash(other) : 0;
        CHECK_STATUS(ls_optim_step(optim), LS_ERR_STATE);
        ls_optim_free(optim);
        ls_module_free(ddp);
        ls_module_free(plain);
        if (again) {
            CHECK(ls_module_hash(other) == hash);
            CHECK_OK(ls_tensor_status(ls_module_param(other, "0.weight")));
            ls_module_free(other);
            CHECK_OK(ls_finalize());
        }
    }
}

TEST_MAIN

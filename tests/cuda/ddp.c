/* SPDX-License-Identifier: Apache-2.0 */
/* Data parallelism of a module on the device `cuda`, whose gradients go by the backend `nccl`, both
 * over their fakes: over a group of that backend, and over the world, which stays native.
 * Gradients lie in buckets of the device and are averaged in streams; the host reads none of them,
 * which would trap. */
#include <math.h>
#include <string.h>

#include "../device/models.h"
#include "../dist/comm/nccl_fakes.h"
#include "../fake_cuda/fake.h"
#include "../fake_cuda/libraries.h"
#include "outcome.h"
#include "says.h"

enum { IN = 7, OUT = 3 };

/* The fakes are found by their names: the driver because this program links it. */
static void use_cuda(void)
{
    name_fakes();
    load_fake_libraries();
    CHECK_OK(ls_device_use("cuda"));
}

static ls_group *begin(const char *name)
{
    use_cuda();
    return group_over_nccl(name);
}

static void check_close(const double *got, const double *want, double close)
{
    for (int i = 0; i < 2 * STEPS; i++) {
        if (!(fabs(got[i] - want[i]) <= close * fabs(want[i]))) {
            test_fail(__FILE__, __LINE__, "number %d: %.9g, on the processor %.9g", i, got[i],
                      want[i]);
        }
    }
}

static void check_replicas(ls_module *net)
{
    int identical = 0;
    uint64_t hash = 0;
    CHECK_OK(ls_replicas_identical(net, ls_world(), &identical, &hash));
    CHECK_INT(identical, ls_world_size());
}

static void refused(ls_module *net, ls_group *group, const ls_ddp_options *options)
{
    CHECK(ls_ddp_new(net, group, options) == NULL);
    CHECK_INT(ls_error_status(), LS_ERR_UNSUPPORTED);
}

/* ---- training ------------------------------------------------------------------------------- */

/* Sums of two are those of buckets on the host, to the bit; those of three have another order. */
static void check_training(ls_group *group, const training *t)
{
    double cpu[2 * STEPS], host[2 * STEPS], gpus[2 * STEPS];
    CHECK_OK(ls_device_use("cpu"));
    ls_module_free(train(t, ls_world(), cpu));
    CHECK_OK(ls_device_use("cuda"));
    ls_module_free(
        train_with(LS_OPTIONS(ls_ddp_options, .backend = "native"), t, ls_world(), host));
    ls_module *net = train(t, group, gpus);
    CHECK(strcmp(ls_ddp_backend(net), "nccl") == 0);
    check_close(gpus, cpu, t->close);
    CHECK(ls_world_size() != 2 || memcmp(gpus, host, sizeof host) == 0);
    check_replicas(net);
    ls_module_free(net);
}

DIST_TESTS(replicas_on_, _gpus_learn_what_they_learn_on_processors, 1, 2, 3)
{
    ls_group *nccl = begin("gpus");
    check_training(ls_world(), &(training){make_gpt, language, true, true, 2e-5});
    check_training(nccl, &(training){make_gpt, language_bf16, false, true, 2e-2});
    check_training(ls_world(), &(training){make_cnn, image_loss, true, true, 2e-4});
    CHECK_OK(ls_group_free(nccl));
}

/* Each rank steps its part of the parameters, and gathers the others' in the device's memory; zero
 * 1 on two ranks, 2 on three. */
DIST_TESTS(the_optimizer_divided_among_, _gpus_has_the_losses_of_a_whole_one, 2, 3)
{
    const training t = {make_gpt, language, true, true, 2e-5};
    double whole[2 * STEPS], divided[2 * STEPS];
    use_cuda();
    ls_module_free(train(&t, ls_world(), whole));
    ls_module *net = train_with(LS_OPTIONS(ls_ddp_options, .zero = ls_world_size() - 1), &t,
                                ls_world(), divided);
    CHECK(strcmp(ls_ddp_backend(net), "nccl") == 0);
    check_close(divided, whole, 1e-6);
    check_replicas(net);
    ls_module_free(net);
}

/* ---- the device chooses --------------------------------------------------------------------- */

/* The backend of a wrapper that is freed again. */
static const char *backend_with(const char *device, const ls_ddp_options *options)
{
    CHECK_OK(ls_device_use(device));
    ls_module *net = ls_ddp_new(ls_linear_new(IN, OUT, NULL), ls_world(), options);
    CHECK_OK(ls_module_status(net));
    const char *name = ls_ddp_backend(net);
    ls_module_free(net);
    return name;
}

DIST_TEST(gradients_go_by_the_backend_of_their_device_and_the_rest_by_that_of_the_group, 2)
{
    use_cuda();
    float on_host[2] = {1, 2};
    CHECK(strcmp(backend_with("cuda", NULL), "nccl") == 0);
    CHECK(strcmp(backend_with("cpu", NULL), "native") == 0);
    CHECK(strcmp(backend_with("cuda", LS_OPTIONS(ls_ddp_options, .backend = "native")), "native") ==
          0);
    CHECK(strcmp(backend_with("cuda", LS_OPTIONS(ls_ddp_options, .shards = 2)), "native") == 0);
    CHECK(strcmp(backend_with("cuda", LS_OPTIONS(ls_ddp_options, .wire_dtype = LS_BFLOAT16)),
                 "native") == 0);
    CHECK(strcmp(ls_group_backend(ls_world()), "native") == 0);
    CHECK_OK(ls_all_reduce(ls_world(), on_host, on_host, 2, LS_FLOAT32, LS_SUM, NULL, NULL));
    CHECK(on_host[0] == 2 && on_host[1] == 4);
    CHECK(strcmp(ls_ddp_backend(NULL), "native") == 0);
}

DIST_TEST(a_backend_that_does_not_reach_the_parameters_is_refused, 2)
{
    use_cuda();
    CHECK_OK(ls_device_use("cpu"));
    ls_module *net = ls_linear_new(IN, OUT, NULL);
    refused(net, ls_world(), LS_OPTIONS(ls_ddp_options, .backend = "nccl"));
    CHECK_CONTAINS(ls_error_message(), "is on device \"cpu\", whose memory backend \"nccl\"");
    ls_module_free(net);
}

DIST_TEST(ranks_that_ask_for_different_backends_are_named, 2)
{
    use_cuda();
    ls_module *net = ls_linear_new(IN, OUT, NULL);
    const char *asked = ls_rank() == 0 ? "native" : NULL;
    CHECK(ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .backend = asked)) == NULL);
    CHECK_INT(ls_error_status(), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(),
               "put the model on the same kind of device on every rank, or give all of them the "
               "same ls_ddp_options.backend");
    CHECK_SAYS(ls_error_message(), "the backend of gradients");
    CHECK_CONTAINS(ls_error_message(), "rank 0 has native, rank 1 has nccl");
    ls_module_free(net);
}

/* One rank has no NCCL: all send gradients through the host, and who asks for NCCL is told. */
DIST_TEST(without_nccl_on_every_rank_gradients_pass_through_the_host, 2)
{
    use_cuda();
    if (ls_rank() == 1) {
        setenv("LOCKSTEP_NCCL", "/nowhere/libnccl.so.2", 1);
    }
    CHECK(strcmp(backend_with("cuda", NULL), "native") == 0);
    ls_module *net = ls_linear_new(IN, OUT, NULL);
    CHECK(ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .backend = "nccl")) == NULL);
    CHECK_CONTAINS(ls_error_message(), "rank 1 has wrong ones (");
    CHECK_CONTAINS(ls_error_message(), "install NCCL 2.19 or later");
    ls_module_free(net);
}

/* ---- micro-batches, parameters that are not reached, ranks without data --------------------- */

typedef struct branches {
    ls_module base;
    ls_module *layer[2];
} branches;

static bool takes_second; /* of the branches, in the forward pass */

static ls_tensor *branches_forward(ls_module *m, ls_tensor *x)
{
    branches *self = (branches *)m;
    ls_tensor *y = ls_forward(self->layer[0], x);
    return takes_second ? ls_add(y, ls_forward(self->layer[1], x)) : y;
}

static ls_module *make_branches(void)
{
    static const ls_module_class cls =
        LS_MODULE_CLASS(.name = "branches", .forward = branches_forward);
    branches *self = ls_module_new(sizeof *self, &cls);
    self->layer[0] = ls_module_add(&self->base, "0", ls_linear_new(IN, OUT, NULL));
    self->layer[1] = ls_module_add(&self->base, "1", ls_linear_new(IN, OUT, NULL));
    return &self->base;
}

static ls_tensor *branches_loss(ls_module *net, int seed)
{
    return ls_mse_loss(ls_forward(net, floats(ROWS, IN, seed)), floats(ROWS, OUT, seed + 50));
}

/* In odd steps only rank 0 takes the second branch; in the last one rank 1 has no data. */
static void backward_unevenly(ls_module *net, int step, double *loss)
{
    const int rank = ls_rank(), seed = 20 * step + rank;
    bool more = false;
    takes_second = step % 2 == 0 || rank == 0;
    if (step == STEPS - 1 && rank == 1) {
        CHECK_OK(ls_ddp_join(net, NULL, &more));
        CHECK(more);
        return;
    }
    if (step != 1) {
        LS_NO_SYNC(net);
        CHECK_OK(ls_backward(branches_loss(net, seed + 10)));
    }
    ls_tensor *y = branches_loss(net, seed);
    CHECK_OK(ls_backward(y));
    CHECK_OK(ls_item(y, loss));
}

static void train_unevenly(ls_group *group, bool steps_in_backward, double values[2 * STEPS])
{
    bool more = true;
    ls_module *net = ls_ddp_new(make_branches(), group, NULL);
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.05));
    CHECK_OK(ls_module_status(net));
    CHECK_OK(steps_in_backward ? ls_ddp_step_in_backward(net, optim) : LS_OK);
    memset(values, 0, 2 * STEPS * sizeof *values);
    for (int step = 0; step < STEPS; step++) {
        LS_SCOPE;
        backward_unevenly(net, step, &values[2 * step]);
        if (!steps_in_backward) {
            CHECK_OK(ls_clip_grad_norm(net, 0.5, NULL, &values[2 * step + 1]));
            CHECK_OK(ls_optim_step(optim));
            ls_optim_zero_grad(optim);
        }
    }
    CHECK_OK(ls_ddp_join(net, NULL, &more));
    CHECK(!more);
    check_replicas(net);
    ls_optim_free(optim);
    ls_module_free(net);
}

DIST_TEST(uneven_steps_are_those_of_the_processor, 2)
{
    double cpu[2 * STEPS], gpus[2 * STEPS];
    ls_group *nccl = begin("uneven");
    for (int in_backward = 0; in_backward < 2; in_backward++) {
        CHECK_OK(ls_device_use("cpu"));
        train_unevenly(ls_world(), in_backward == 1, cpu);
        CHECK_OK(ls_device_use("cuda"));
        train_unevenly(nccl, in_backward == 1, gpus);
        check_close(gpus, cpu, 2e-5);
    }
    CHECK_OK(ls_group_free(nccl));
}

/* Rank 1 has no samples in even steps, and NaN in their place; else ranks have different numbers
 * of them. values: the mean loss and the norm of each step. */
static void train_weighted(ls_group *group, double values[2 * STEPS])
{
    ls_module *net = ls_ddp_new(make_branches(), group, NULL);
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.05, .momentum = 0.9));
    CHECK_OK(ls_module_status(net));
    takes_second = true;
    for (int step = 0; step < STEPS; step++) {
        LS_SCOPE;
        double loss = 0.0;
        const double weight = ls_rank() == 0 ? 2.0 : step % 2 == 0 ? 0.0 : 3.0;
        ls_tensor *x = floats(ROWS, IN, 20 * step + ls_rank());
        ls_tensor *y = ls_forward(net, ls_scale(x, weight > 0.0 ? 1.0 : (double)NAN));
        ls_tensor *of = ls_mse_loss(y, floats(ROWS, OUT, 50));
        CHECK_OK(ls_backward_weighted(of, weight));
        CHECK_OK(ls_item(of, &loss));
        CHECK(isnan(loss) == (weight == 0.0));
        CHECK_OK(ls_metric_mean(ls_world(), loss, weight, &values[2 * step]));
        CHECK_OK(ls_clip_grad_norm(net, 0.5, NULL, &values[2 * step + 1]));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    check_replicas(net);
    ls_optim_free(optim);
    ls_module_free(net);
}

DIST_TESTS(ranks_of_weight_0_on_, _gpus_get_the_average_of_the_others, 2, 3)
{
    double cpu[2 * STEPS], gpus[2 * STEPS];
    use_cuda();
    CHECK_OK(ls_device_use("cpu"));
    train_weighted(ls_world(), cpu);
    CHECK_OK(ls_device_use("cuda"));
    train_weighted(ls_world(), gpus);
    check_close(gpus, cpu, 2e-5);
}

/* ---- local steps ---------------------------------------------------------------------------- */

typedef struct local_training {
    ls_module *(*make)(void);
    loss_fn *loss;
    bool weighted; /* two micro-batches of a step, and the ranks in an average */
} local_training;

static void average(ls_module *net, ls_optim *optim, double weight, bool outer)
{
    const ls_outer_options *diloco =
        LS_OPTIONS(ls_outer_options, .lr = 0.7, .momentum = 0.9, .nesterov = true);
    CHECK_OK(ls_ddp_average(net, LS_OPTIONS(ls_ddp_average_options, .weight = weight,
                                            .optim = optim, .outer = outer ? diloco : NULL)));
}

/* A step with averaged gradients, a round of two local steps, and a step after the mode. values:
 * the loss and the norm of each step. */
static void train_locally(const char *backend, const local_training *t, double values[2 * STEPS])
{
    const int rank = ls_rank();
    const double weight = t->weighted ? 1.0 + 2.0 * rank : 1.0;
    takes_second = true;
    ls_module *net =
        ls_ddp_new(t->make(), ls_world(), LS_OPTIONS(ls_ddp_options, .backend = backend));
    CHECK_OK(ls_module_status(net));
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.02));
    for (int step = 0; step < STEPS; step++) {
        LS_SCOPE;
        double *loss = &values[2 * step];
        if (step == 1) {
            CHECK_OK(ls_ddp_set_local(net, true));
            average(net, NULL, 1.0, true);
        }
        ls_step_begin((ls_step_context){.step = (uint64_t)step, .sample_offset = rank * ROWS});
        for (int m = 0; m < 1 + t->weighted; m++) {
            CHECK_OK(ls_ddp_set_sync(net, !ls_ddp_local(net) && m == t->weighted));
            ls_tensor *y = t->loss(net, step + 10 * rank + 20 * m);
            CHECK_OK(t->weighted ? ls_backward_weighted(y, 1.0 + m + rank) : ls_backward(y));
            CHECK_OK(ls_item(y, loss));
            if (ls_ddp_local(net) && m < t->weighted) { /* the next is added to the clipped sum */
                CHECK_OK(ls_clip_grad_norm(net, 0.1, NULL, NULL));
            }
        }
        CHECK_OK(ls_clip_grad_norm(net, 0.5, NULL, loss + 1));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        if (step == 2) {
            average(net, optim, weight, true);
            check_replicas(net);
            CHECK_OK(ls_ddp_set_local(net, false));
        }
    }
    check_replicas(net);
    ls_optim_free(optim);
    ls_module_free(net);
}

/* The averages of `native` and `nccl` are the same; so are their gradients, but for the weights of
 * micro-batches, which a GPU divides in float32. */
static void check_local(const local_training *t, double close)
{
    double cpu[2 * STEPS], host[2 * STEPS], gpus[2 * STEPS];
    CHECK_OK(ls_device_use("cpu"));
    train_locally(NULL, t, cpu);
    CHECK_OK(ls_device_use("cuda"));
    train_locally("native", t, host);
    train_locally("nccl", t, gpus);
    check_close(host, cpu, close);
    check_close(gpus, cpu, close);
    CHECK(t->weighted || ls_world_size() != 2 || memcmp(gpus, host, sizeof host) == 0);
}

DIST_TESTS(local_steps_on_, _gpus_are_those_of_the_processor, 2, 3)
{
    use_cuda();
    check_local(&(local_training){make_branches, branches_loss, .weighted = true}, 2e-5);
    check_local(&(local_training){make_cnn, image_loss, .weighted = false}, 2e-4);
}

DIST_TEST(a_parameter_on_a_gpu_that_is_not_finite_is_named_instead_of_averaged, 2)
{
    use_cuda();
    ls_module *net = ls_ddp_new(ls_linear_new(IN, OUT, NULL), ls_world(), NULL);
    ls_param p[2];
    CHECK_OK(ls_ddp_set_local(net, true));
    CHECK_INT(ls_module_params(net, p, 2), 2);
    if (ls_rank() == 1) {
        CHECK_OK(ls_fill_constant(p[1].value, (double)NAN));
    }
    CHECK(ls_ddp_average(net, NULL) < 0);
    CHECK_CONTAINS(ls_error_message(), "ls_ddp_average: bias is not finite on rank 1 (element 0");
    ls_module_free(net);
}

/* ---- the host ------------------------------------------------------------------------------- */

/* The third and fourth step return while the GPU is held up before their first kernel. The first
 * one compares the replicas and lays buckets out. */
DIST_TEST(a_step_waits_for_nothing_on_the_gpu, 2)
{
    double before = INFINITY, value = 0.0;
    ls_group *nccl = begin("ahead");
    LS_SCOPE;
    ls_tensor *x = floats(ROWS, IN, ls_rank()), *target = floats(ROWS, OUT, 50);
    ls_module *net = ls_ddp_new(ls_linear_new(IN, OUT, NULL), nccl, NULL);
    CHECK_OK(ls_module_status(net));
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.05));
    void *stream = stream_of(net);
    for (int step = 0; step < 4; step++) {
        LS_SCOPE;
        fake_cuda_hold(stream, step >= 2);
        ls_tensor *loss = ls_mse_loss(ls_forward(net, x), target);
        CHECK_OK(ls_backward(loss));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        fake_cuda_hold(stream, 0);
        CHECK_OK(ls_item(loss, &value));
        CHECK(value < before);
        before = value;
    }
    check_replicas(net);
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_group_free(nccl));
}

/* ---- refusals ------------------------------------------------------------------------------- */

DIST_TEST(what_needs_buckets_on_the_host_is_refused, 2)
{
    ls_group *nccl = begin("refusing");
    ls_comm_hook hook = {.size = sizeof hook};
    ls_module *net = ls_linear_new(IN, OUT, NULL);
    refused(net, ls_world(), LS_OPTIONS(ls_ddp_options, .zero = 1, .backend = "native"));
    CHECK_SAYS(ls_error_message(), "zero: parameters are gathered in memory that kernels of their "
                                   "device do not reach; have gradients averaged there (backend "
                                   "\"nccl\"), or leave zero out");
    refused(net, nccl, LS_OPTIONS(ls_ddp_options, .zero = 3, .shard_group = ls_world()));
    CHECK_SAYS(ls_error_message(),
               "shard_group over backend \"%s\": the host would begin the second of a bucket's two "
               "operations, and waits for none there; leave shard_group out");
    refused(net, nccl, LS_OPTIONS(ls_ddp_options, .shards = 2));
    CHECK_CONTAINS(ls_error_message(), "shards: backend \"nccl\" adds in an order of its own");
    refused(net, nccl, LS_OPTIONS(ls_ddp_options, .wire_dtype = LS_BFLOAT16));
    CHECK_CONTAINS(ls_error_message(), "backend \"nccl\" has memory of a device only");
    net = ls_ddp_new(net, nccl, NULL);
    CHECK_OK(ls_module_status(net));
    CHECK_OK(ls_comm_hook_parse("int8", &hook));
    CHECK_STATUS(ls_ddp_set_hook(net, &hook), LS_ERR_UNSUPPORTED);
    CHECK_CONTAINS(ls_error_message(), "backend \"nccl\" has memory of a device only");
    {
        LS_SCOPE;
        CHECK_OK(ls_backward(branches_loss(net, 0)));
        CHECK_STATUS(ls_backward(branches_loss(net, 1)), LS_ERR_UNSUPPORTED);
        CHECK_CONTAINS(ls_error_message(), "still holds an average");
    }
    ls_module_free(net);
    CHECK_OK(ls_group_free(nccl));
}

TEST_MAIN

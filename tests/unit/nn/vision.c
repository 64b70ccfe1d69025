/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of images, and the networks made of them: names and shapes as torchvision's, initial
 * values, running statistics, and three steps of ResNets beside PyTorch's. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include <lockstep/models/alexnet.h>
#include <lockstep/models/resnet.h>

#define PARAMS_MAX 512

/* Name and elements of every parameter and buffer, in order. */
typedef struct seen {
    int count;
    int64_t elements;
    char names[PARAMS_MAX * 2][64];
} seen;

static ls_status see_tensor(void *self, const char *name, const ls_state_tensor *t)
{
    seen *s = self;
    int64_t numel = 1;
    for (int d = 0; d < t->ndim; d++) {
        numel *= t->global[d];
    }
    CHECK(s->count < PARAMS_MAX * 2);
    (void)snprintf(s->names[s->count++], sizeof s->names[0], "%s", name);
    s->elements += numel;
    return LS_OK;
}

static ls_status see_int(void *self, const char *name, int64_t *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static ls_status see_float(void *self, const char *name, double *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static const seen *state_of(ls_module *net)
{
    static seen s;
    s = (seen){0};
    const ls_state_visitor visitor = {.size = sizeof(ls_state_visitor),
                                      .self = &s,
                                      .tensor = see_tensor,
                                      .int64 = see_int,
                                      .float64 = see_float};
    CHECK_OK(ls_module_state(net, "", &visitor));
    return &s;
}

static bool has(const seen *s, const char *name)
{
    for (int i = 0; i < s->count; i++) {
        if (strcmp(s->names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static ls_tensor *tensor_of(ls_module *net, const char *name)
{
    ls_param params[PARAMS_MAX];
    int count = ls_module_params(net, params, PARAMS_MAX);
    for (int i = 0; i < count; i++) {
        if (strcmp(params[i].name, name) == 0) {
            return params[i].value;
        }
    }
    test_fail(__FILE__, __LINE__, "no parameter %s", name);
    return NULL;
}

/* ---- layers ------------------------------------------------------------------------------- */

static void check_uniform(ls_tensor *t, double bound)
{
    const float *x = ls_data(t);
    double largest = 0.0, sum = 0.0;
    int64_t numel = ls_numel(t);
    for (int64_t i = 0; i < numel; i++) {
        largest = fmax(largest, fabs((double)x[i]));
        sum += (double)x[i];
    }
    CHECK(largest <= bound && largest > 0.97 * bound);
    CHECK_NEAR(sum / (double)numel, 0.0, 4.0 * bound / sqrt(3.0 * (double)numel));
}

TEST(layers_of_sequences_and_growing_images_are_their_operations)
{
    CHECK_OK(ls_init(NULL));
    ls_module *layer = ls_conv1d_new(
        12, 90, 5, LS_OPTIONS(ls_conv1d_layer_options, .groups = 2, .stride = 2, .padding = 1));
    ls_tensor *w = tensor_of(layer, "weight"), *x = ls_randn(LS_SHAPE(2, 12, 9));
    CHECK(has(state_of(layer), "bias") && ls_size(w, 1) == 6 && ls_size(w, 2) == 5);
    check_uniform(w, 1.0 / sqrt(30.0));
    CHECK_INT(ls_size(ls_forward(layer, x), 2), 4);
    ls_module_free(layer);
    layer = ls_conv_transpose2d_new(60, 8, 3,
                                    LS_OPTIONS(ls_conv_transpose2d_layer_options, .stride = 2,
                                               .output_padding = 1, .padding = 1, .groups = 2));
    w = tensor_of(layer, "weight");
    CHECK(ls_size(w, 0) == 60 && ls_size(w, 1) == 4 && ls_numel(tensor_of(layer, "bias")) == 8);
    check_uniform(w, 1.0 / 6.0);
    ls_tensor *y = ls_forward(layer, ls_randn(LS_SHAPE(1, 60, 4, 5)));
    CHECK(ls_size(y, 1) == 8 && ls_size(y, 2) == 8 && ls_size(y, 3) == 10);
    ls_module_free(layer);
    layer = ls_upsample_new(LS_OPTIONS(ls_upsample_options, .scale = {2.0, 3.0}));
    y = ls_forward(layer, y);
    CHECK(ls_size(y, 2) == 16 && ls_size(y, 3) == 30 && state_of(layer)->count == 0);
    ls_module_free(layer);
    layer = ls_group_norm_new(4, 8, NULL);
    double sum;
    CHECK_OK(ls_item(ls_sum(tensor_of(layer, "weight")), &sum));
    CHECK_NEAR(sum, 8.0, 0.0);
    CHECK_OK(ls_item(ls_mean(ls_mul(ls_forward(layer, y), ls_forward(layer, y))), &sum));
    CHECK_NEAR(sum, 1.0, 1e-3); /* the variance of its result */
    ls_module_free(layer);
    CHECK_OK(ls_finalize());
}

TEST(convolutions_start_as_in_pytorch)
{
    CHECK_OK(ls_init(NULL));
    ls_module *conv = ls_conv2d_new(12, 90, 3, LS_OPTIONS(ls_conv2d_layer_options, .groups = 2));
    const seen *s = state_of(conv);
    CHECK_INT(s->count, 2);
    CHECK(has(s, "weight") && has(s, "bias"));
    CHECK_INT(ls_module_numel(conv), 90 * 6 * 9 + 90);
    check_uniform(tensor_of(conv, "weight"), 1.0 / sqrt(54.0)); /* kaiming_uniform(a=sqrt(5)) */
    check_uniform(tensor_of(conv, "bias"), 1.0 / sqrt(54.0));
    ls_tensor *w = tensor_of(conv, "weight");
    for (int fan_out = 0; fan_out < 2; fan_out++) {
        double squares = 0.0, std = sqrt(2.0 / (fan_out ? 90 * 9 : 6 * 9));
        CHECK_OK(ls_fill_kaiming_normal(w, fan_out));
        const float *x = ls_data(w);
        for (int64_t i = 0; i < ls_numel(w); i++) {
            squares += (double)x[i] * (double)x[i];
        }
        CHECK_NEAR(sqrt(squares / (double)ls_numel(w)), std, 0.05 * std);
    }
    ls_module_free(conv);
    CHECK_OK(ls_finalize());
}

/* Per channel of x = {1,2,3,6} and {0,0,4,4}: means 3 and 2, unbiased variances 14/3 and 16/3. */
TEST(batch_norm_keeps_running_statistics)
{
    CHECK_OK(ls_init(NULL));
    ls_module *norm = ls_batch_norm2d_new(2, 1e-5, 0.1);
    const float x0[] = {1, 2, 0, 0, 3, 6, 4, 4}; /* [2,2,1,2] */
    const char *names[] = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"};
    float got[8], once[8];
    {
        LS_SCOPE;
        const seen *s = state_of(norm);
        CHECK_INT(s->count, 5);
        for (int i = 0; i < 5; i++) {
            CHECK(strcmp(s->names[i], names[i]) == 0);
        }
        CHECK_INT(ls_module_param_count(norm), 2);
        ls_tensor *x = ls_from_data(x0, LS_SHAPE(2, 2, 1, 2), LS_FLOAT32);
        CHECK_OK(ls_copy_out(ls_forward(norm, x), got, sizeof got));
        CHECK_NEAR(got[0], (1.0 - 3.0) / sqrt(3.5 + 1e-5), 1e-6);
        ls_module_train(norm, false);
        CHECK_OK(ls_copy_out(ls_forward(norm, x), once, sizeof once));
        double mean = 0.9 * 0 + 0.1 * 3, var = 0.9 * 1 + 0.1 * 14 / 3;
        CHECK_NEAR(once[0], (1.0 - mean) / sqrt(var + 1e-5), 1e-6);
        CHECK_NEAR(once[7], (4.0 - 0.2) / sqrt(0.9 + 1.6 / 3 + 1e-5), 1e-6);
        CHECK_OK(
            ls_copy_out(ls_forward(norm, x), got, sizeof got)); /* evaluation changes nothing */
        CHECK(memcmp(got, once, sizeof got) == 0);
    }
    ls_module_free(norm);
    CHECK_OK(ls_finalize());
}

/* Hash of what batch norm is after two batches, its running statistics included. */
static uint64_t norm_after(bool recompute)
{
    ls_module *norm = ls_batch_norm2d_new(3, 1e-5, 0.1);
    CHECK_OK(ls_module_status(norm));
    const uint64_t before = ls_module_hash(norm);
    for (int step = 1; step <= 2; step++) {
        LS_SCOPE;
        float values[24];
        for (int i = 0; i < 24; i++) {
            values[i] = sinf((float)(i * step));
        }
        ls_tensor *x = ls_from_data(values, LS_SHAPE(2, 3, 2, 2), LS_FLOAT32);
        ls_tensor *y = recompute ? ls_recompute(norm, x) : ls_forward(norm, x);
        CHECK_OK(ls_backward(ls_sum(ls_mul(y, y))));
    }
    const uint64_t after = ls_module_hash(norm);
    CHECK(after != before);
    ls_module_free(norm);
    return after;
}

TEST(a_batch_that_is_recomputed_counts_once)
{
    CHECK_OK(ls_init(NULL));
    CHECK(norm_after(true) == norm_after(false));
    CHECK_OK(ls_finalize());
}

TEST(layers_of_images_have_the_shapes_of_pytorch)
{
    CHECK_OK(ls_init(NULL));
    ls_module *layers[] = {
        ls_conv2d_new(3, 8, 5, LS_OPTIONS(ls_conv2d_layer_options, .stride = 2, .padding = 2)),
        ls_batch_norm2d_new(8, 1e-5, 0.1),
        ls_relu_new(),
        ls_max_pool2d_new(3, 2, 1),
        ls_avg_pool2d_new(2, 0, 0),
        ls_adaptive_avg_pool2d_new(2, 1),
        ls_flatten_new(),
        ls_linear_new(16, 5, NULL),
    };
    ls_module *net = ls_sequential_new(layers, 8);
    CHECK_OK(ls_module_status(net));
    const int64_t channels[] = {8, 8, 8, 8, 8, 8}, sides[] = {12, 12, 12, 6, 3, 2};
    for (int64_t n = 0; n < 3; n += 2) { /* no image at all, and two */
        LS_SCOPE;
        ls_tensor *x = ls_rand(LS_SHAPE(n, 3, 23, 24));
        for (int i = 0; i < 6; i++) {
            x = ls_forward(layers[i], x);
            CHECK_INT(ls_size(x, 0), n);
            CHECK_INT(ls_size(x, 1), channels[i]);
            CHECK_INT(ls_size(x, 2), sides[i]);
        }
        ls_tensor *y = ls_forward(layers[7], ls_forward(layers[6], x));
        CHECK_INT(ls_ndim(y), 2);
        CHECK_INT(ls_size(y, 0), n);
        CHECK_INT(ls_size(y, 1), 5);
        CHECK_OK(ls_backward(ls_sum(y)));
    }
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

/* ---- networks ----------------------------------------------------------------------------- */

static void check_resnet(int depth, int64_t classes, bool cifar, int64_t numel, int params)
{
    ls_module *net = ls_resnet_new(depth, classes, cifar);
    CHECK(net != NULL);
    CHECK_INT(ls_module_numel(net), numel);
    CHECK_INT(ls_module_param_count(net), params);
    const seen *s = state_of(net);
    /* each batch norm, two parameters of its own, has three buffers more */
    CHECK_INT(s->count, params + (params - 2) / 3 * 3);
    CHECK(strcmp(s->names[0], "conv1.weight") == 0);
    CHECK(has(s, "bn1.running_mean") && has(s, "layer1.0.conv1.weight"));
    CHECK(has(s, "layer1.1.bn2.num_batches_tracked") && has(s, "layer2.0.downsample.0.weight"));
    CHECK(has(s, "layer4.0.downsample.1.running_var") && has(s, "fc.bias"));
    CHECK(has(s, "layer1.0.downsample.0.weight") == (depth >= 50));
    CHECK(has(s, "layer3.0.bn3.weight") == (depth >= 50));
    ls_module_free(net);
}

TEST(layers_with_relu_within_are_those_with_one_behind_and_identity_holds_its_place)
{
    CHECK_OK(ls_init(NULL));
    ls_module *steps[] = {
        ls_conv2d_new(3, 4, 3, LS_OPTIONS(ls_conv2d_layer_options, .stride = 2, .relu = true)),
        ls_identity_new(), ls_conv2d_new(4, 2, 1, NULL)};
    ls_module *net = ls_sequential_new(steps, 3);
    {
        LS_SCOPE;
        ls_tensor *x = ls_randn(LS_SHAPE(2, 3, 7, 6)), *y = ls_forward(net, x);
        const ls_conv2d_options *by_two = LS_OPTIONS(ls_conv2d_options, .stride = {2, 2});
        ls_tensor *first =
            ls_relu(ls_conv2d(x, tensor_of(net, "0.weight"), tensor_of(net, "0.bias"), by_two));
        ls_tensor *want =
            ls_conv2d(first, tensor_of(net, "2.weight"), tensor_of(net, "2.bias"), NULL);
        CHECK_INT(ls_numel(y), 2 * 2 * 3 * 2);
        y = ls_contiguous(y), want = ls_contiguous(want);
        CHECK_INT(memcmp(ls_data(y), ls_data(want), (size_t)ls_numel(y) * sizeof(float)), 0);
    }
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

/* Counts of torchvision's models. */
TEST(resnets_have_the_parameters_of_torchvision)
{
    CHECK_OK(ls_init(NULL));
    check_resnet(18, 1000, false, 11689512, 62);
    check_resnet(50, 1000, false, 25557032, 161);
    CHECK(ls_resnet_new(20, 10, true) == NULL);
    CHECK_CONTAINS(ls_error_message(), "give 18, 34, 50, 101 or 152");
    CHECK_OK(ls_finalize());
}

TEST(the_largest_networks_have_the_parameters_of_torchvision)
{
    CHECK_OK(ls_init(NULL));
    check_resnet(152, 1000, false, 60192808, 467);
    ls_module *net = ls_alexnet_new(1000, 0.5);
    CHECK(net != NULL);
    CHECK_INT(ls_module_numel(net), 61100840);
    const seen *s = state_of(net);
    CHECK_INT(s->count, 16);
    CHECK(strcmp(s->names[0], "features.0.weight") == 0 && has(s, "features.10.bias"));
    CHECK(has(s, "classifier.1.weight") && has(s, "classifier.6.bias"));
    {
        LS_SCOPE;
        ls_module_train(net, false);
        ls_tensor *y = ls_forward(net, ls_rand(LS_SHAPE(1, 3, 63, 63)));
        CHECK_OK(ls_tensor_status(y));
        CHECK_INT(ls_size(y, 1), 1000);
    }
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

/* ---- beside PyTorch ----------------------------------------------------------------------- */

enum { STEPS = 3 };

typedef struct training {
    int depth;
    bool cifar;
    int64_t classes, batch, side;
    double lr;
    double expected[STEPS][2]; /* loss, norm of the gradients */
    double logit;              /* the first, in evaluation, after the steps */
} training;

/* Numbers in [-1,1) of a formula that the script has, too. */
static double noise(int64_t i, int k)
{
    double u = 43758.5453 * sin(12.9898 * (double)i + 78.233 * (double)k);
    return 2.0 * (u - floor(u)) - 1.0;
}

static void fill(ls_module *net)
{
    ls_param params[PARAMS_MAX];
    int count = ls_module_params(net, params, PARAMS_MAX);
    for (int k = 0; k < count; k++) {
        ls_tensor *t = params[k].value;
        int64_t numel = ls_numel(t);
        bool matrix = ls_ndim(t) > 1, bias = strstr(params[k].name, "bias") != NULL;
        double scale = matrix ? sqrt(6.0 / (double)(numel / ls_size(t, 0))) : 0.1;
        float *x = malloc((size_t)numel * sizeof *x);
        CHECK(x != NULL);
        for (int64_t i = 0; i < numel; i++) {
            x[i] = (float)((matrix || bias ? 0.0 : 1.0) + scale * noise(i, k));
        }
        CHECK_OK(ls_copy_in(t, x, (size_t)numel * sizeof *x));
        free(x);
    }
}

static ls_tensor *images(const training *t)
{
    ls_tensor *x = ls_empty(LS_SHAPE(t->batch, 3, t->side, t->side), LS_FLOAT32);
    float *data = ls_data(x);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        data[i] = (float)noise(i, 1000);
    }
    return x;
}

/* Float32 beside float64: the first step differs by rounding, later ones by what momentum and the
 * kinks of ReLU make of it. */
static void check_step(const training *t, int step, double loss, double norm)
{
    const double *want = t->expected[step];
    double rtol = step == 0 ? 1e-5 : 1e-3;
    if (!(fabs(loss - want[0]) < rtol * (0.1 + want[0])) ||
        !(fabs(norm - want[1]) < 10 * rtol * want[1])) {
        test_fail(__FILE__, __LINE__,
                  "resnet %d, step %d: loss %.9g norm %.9g, PyTorch has %.9g %.9g", t->depth, step,
                  loss, norm, want[0], want[1]);
    }
}

static void train(const training *t)
{
    ls_module *net = ls_resnet_new(t->depth, t->classes, t->cifar);
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = t->lr, .momentum = 0.9));
    int32_t y[16];
    fill(net);
    for (int64_t i = 0; i < t->batch; i++) {
        y[i] = (int32_t)(i * 3 % t->classes);
    }
    for (int step = 0; step < STEPS; step++) {
        double loss = 0.0, norm = 0.0;
        {
            LS_SCOPE;
            ls_tensor *target = ls_from_memory(y, LS_SHAPE(t->batch), LS_INT32);
            ls_tensor *mean = ls_cross_entropy(ls_forward(net, images(t)), target, NULL);
            CHECK_OK(ls_backward(mean));
            CHECK_OK(ls_item(mean, &loss));
        }
        CHECK_OK(ls_clip_grad_norm(net, 1e30, NULL, &norm));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        check_step(t, step, loss, norm);
    }
    {
        LS_SCOPE;
        ls_module_train(net, false);
        ls_tensor *logits = ls_forward(net, images(t));
        CHECK_OK(ls_tensor_status(logits));
        double first = (double)((float *)ls_data(logits))[0];
        CHECK_NEAR(first, t->logit, 0.01 * (1.0 + fabs(t->logit)));
    }
    ls_optim_free(optim);
    ls_module_free(net);
}

TEST(a_resnet_learns_as_the_same_network_in_pytorch)
{
    const training small = {
        .depth = 18,
        .cifar = true,
        .classes = 10,
        .batch = 4,
        .side = 16,
        .lr = 0.005,
        .expected = {{4.02441712, 81.4441409},
                     {0.237750807, 18.0780932},
                     {0.0111852271, 0.705306733}},
        .logit = -0.112606052,
    };
    CHECK_OK(ls_init(NULL));
    train(&small);
    CHECK_OK(ls_finalize());
}

TEST_MAIN

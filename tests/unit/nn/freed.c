/* SPDX-License-Identifier: Apache-2.0 */
/* What backward gives back on its way: the activations of modules, and nothing that the user may
 * still look at. */
#include "../tensor/local.h"

#include <math.h>

#include <lockstep/lockstep.h>

enum { WIDE = 64, MANY = 512, LAYERS_MAX = 16 };

static ls_memory_stats memory(void)
{
    ls_memory_stats m = {.size = sizeof m};
    CHECK_OK(ls_memory_get_stats(&m));
    return m;
}

static double item_of(ls_tensor *t)
{
    double value = NAN;
    CHECK_OK(ls_item(t, &value));
    return value;
}

/* In units of one activation. */
static double units(int64_t bytes)
{
    return (double)bytes / (MANY * WIDE * (double)sizeof(float));
}

static ls_module *deep(int layers)
{
    ls_module *list[2 * LAYERS_MAX];
    for (int i = 0; i < layers; i++) {
        list[2 * i] = ls_linear_new(WIDE, WIDE, NULL);
        list[2 * i + 1] = ls_gelu_new(LS_GELU_ERF);
    }
    return ls_sequential_new(list, 2 * layers);
}

/* Memory in use before ls_backward, at most during it, and after it, within the scope. */
static void measure(int layers, double *before, double *most, double *after)
{
    ls_module *net = deep(layers);
    for (int round = 0; round < 2; round++) { /* the first makes the parameters' gradients */
        ls_memory_stats start = memory();
        LS_SCOPE;
        ls_tensor *y = ls_forward(net, ls_ones(LS_SHAPE(MANY, WIDE), LS_FLOAT32));
        ls_tensor *loss = ls_mean(y);
        CHECK_OK(ls_memory_reset_peaks());
        *before = units((int64_t)memory().allocated - (int64_t)start.allocated);
        CHECK_OK(ls_backward(loss));
        *most = units((int64_t)memory().allocated_peak - (int64_t)start.allocated);
        *after = units((int64_t)memory().allocated - (int64_t)start.allocated);
        CHECK(ls_data(y) != NULL);
    }
    ls_module_free(net);
}

LOCAL_TEST(activations_are_freed_as_backward_passes_whatever_the_depth)
{
    double before[2] = {0}, most[2] = {0}, after[2] = {0};
    measure(4, &before[0], &most[0], &after[0]);
    measure(LAYERS_MAX, &before[1], &most[1], &after[1]);
    for (int i = 0; i < 2; i++) {
        CHECK(before[i] >= (i == 0 ? 8 : 2 * LAYERS_MAX));
        CHECK(most[i] <= before[i] + 3); /* a few gradients under way */
        CHECK(after[i] < 3);             /* x, y, the loss */
    }
}

typedef struct nosy { /* keeps what it makes in its struct, in several ways */
    ls_module base;
    ls_tensor *own, *detached, *kept, *view;
} nosy;

static ls_tensor *nosy_forward(ls_module *m, ls_tensor *x)
{
    nosy *self = (nosy *)m;
    self->own = ls_exp(x);
    self->detached = ls_detach(ls_tanh(x));
    self->kept = ls_keep(ls_exp(ls_scale(x, 2.0)));
    self->view = ls_reshape(self->own, LS_SHAPE(-1, 1));
    return ls_add(self->own, ls_tanh(x));
}
static const ls_module_class nosy_class = LS_MODULE_CLASS(.name = "nosy", .forward = nosy_forward);

LOCAL_TEST(what_the_user_may_look_at_stays_and_the_rest_says_what_happened)
{
    nosy *n = ls_module_new(sizeof *n, &nosy_class);
    {
        LS_SCOPE;
        ls_tensor *x = ls_set_requires_grad(ls_ones(LS_SHAPE(3), LS_FLOAT32), true);
        ls_tensor *h = ls_exp(x), *y = ls_forward(&n->base, h), *z = ls_forward(&n->base, y);
        ls_tensor *loss = ls_sum(z);
        CHECK_OK(ls_tensor_status(n->own));
        CHECK_OK(ls_backward(loss));
        ls_tensor *stay[] = {x, h, y, z, loss, n->detached, n->kept};
        for (int i = 0; i < 7; i++) {
            CHECK_OK(ls_tensor_status(stay[i]));
            CHECK(ls_data(stay[i]) != NULL);
        }
        CHECK_STATUS(ls_tensor_status(n->own), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(),
                       "ls_backward has freed this tensor, an intermediate result of a module");
        CHECK_STATUS(ls_tensor_status(ls_relu(n->view)), LS_ERR_STATE);
        CHECK_STATUS(ls_backward(ls_sum(n->own)), LS_ERR_STATE);
        ls_free(n->own);
        ls_free(n->kept);
    }
    ls_module_free(&n->base);
}

static ls_tensor *learning_forward(ls_module *m, ls_tensor *x)
{
    (void)m;
    ls_tensor *weight = ls_set_requires_grad(ls_full(LS_SHAPE(3), LS_FLOAT32, 2.0), true);
    ls_tensor *inside = ls_mul(x, weight), *loss = ls_sum(inside);
    CHECK_OK(ls_backward(loss));
    CHECK_NEAR(item_of(ls_sum(inside)), 6.0, 0.0);
    CHECK_NEAR(item_of(ls_sum(ls_grad(weight))), 3.0, 0.0);
    return loss;
}
static const ls_module_class learning_class =
    LS_MODULE_CLASS(.name = "learning", .forward = learning_forward);

LOCAL_TEST(a_forward_that_runs_backward_itself_keeps_what_it_is_working_with)
{
    ls_module *m = ls_module_new(sizeof(ls_module), &learning_class);
    {
        LS_SCOPE;
        CHECK_NEAR(item_of(ls_forward(m, ls_ones(LS_SHAPE(3), LS_FLOAT32))), 6.0, 0.0);
    }
    ls_module_free(m);
}

TEST_MAIN

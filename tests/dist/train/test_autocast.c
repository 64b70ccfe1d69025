/* SPDX-License-Identifier: Apache-2.0 */
/* A network trained under autocast: replicas stay equal to the last bit, parameters, gradients and
 * optimizer remain float32, and it learns what it learns in float32. */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "test.h"
#include <lockstep/models/gpt.h>

enum { STEPS = 20, BATCH = 4, CONTEXT = 16, VOCAB = 17, PARAMS_MAX = 64 };

/* Losses from 2.8 on downwards; both runs see the same batches. */
#define LOSS_TOLERANCE 0.01

static double step_loss(ls_module *net, int step, bool autocast)
{
    int32_t x[BATCH * CONTEXT], y[BATCH * CONTEXT];
    double value = NAN;
    for (int i = 0; i < BATCH * CONTEXT; i++) {
        int at = i + ls_rank() * 31 + step * 7;
        x[i] = (at * at / 2) % VOCAB;
        y[i] = ((at + 1) * (at + 1) / 2) % VOCAB;
    }
    {
        LS_SCOPE;
        ls_tensor *loss = NULL;
        {
            LS_AUTOCAST(autocast);
            ls_tensor *in = ls_from_data(x, LS_SHAPE(BATCH, CONTEXT), LS_INT32);
            ls_tensor *out = ls_from_data(y, LS_SHAPE(BATCH, CONTEXT), LS_INT32);
            loss = ls_cross_entropy(ls_forward(net, in), out, NULL);
        }
        CHECK_OK(ls_backward(loss));
        CHECK_OK(ls_item(loss, &value));
    }
    return value;
}

static void check_float32(ls_module *net)
{
    ls_param params[PARAMS_MAX];
    int count = ls_module_params(net, params, PARAMS_MAX);
    CHECK(count > 0 && count <= PARAMS_MAX);
    for (int i = 0; i < count; i++) {
        CHECK(ls_dtype_of(params[i].value) == LS_FLOAT32);
        CHECK(ls_dtype_of(ls_grad(params[i].value)) == LS_FLOAT32);
    }
}

static void train(bool autocast, double losses[STEPS])
{
    int identical = 0;
    uint64_t hash = 0;
    CHECK_OK(ls_manual_seed(4));
    ls_module *net = ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 2, .heads = 2, .dim = 32,
                                           .context = CONTEXT, .vocab = VOCAB));
    CHECK(net != NULL);
    net = ls_ddp_new(net, ls_world(), NULL);
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.003));
    for (int step = 0; step < STEPS; step++) {
        losses[step] = step_loss(net, step, autocast);
        check_float32(net);
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    CHECK_OK(ls_replicas_identical(net, ls_world(), &identical, &hash));
    CHECK_INT(identical, ls_world_size());
    ls_optim_free(optim);
    ls_module_free(net);
}

static void train_both(void)
{
    double full[STEPS], half[STEPS];
    train(false, full);
    train(true, half);
    bool differs = false;
    for (int step = 0; step < STEPS; step++) {
        differs = differs || half[step] != full[step];
        if (!(fabs(half[step] - full[step]) < LOSS_TOLERANCE)) {
            test_fail(__FILE__, __LINE__, "step %d: loss %g under autocast, %g in float32", step,
                      half[step], full[step]);
        }
    }
    CHECK(differs);
    CHECK(half[STEPS - 1] < 0.95 * half[0]);
}

DIST_TEST(a_gpt_under_autocast_learns_as_in_float32, 1)
{
    train_both();
}

DIST_TEST(two_replicas_under_autocast_stay_equal_to_the_last_bit, 2)
{
    train_both();
}

/* ---- parameters that are bfloat16 themselves ------------------------------------------------- */

enum { WIDE = 40, MIXED_STEPS = 20 };

typedef struct mixed { /* w bfloat16, b float32 */
    ls_module base;
    ls_tensor *w, *b;
} mixed;

static ls_tensor *mixed_forward(ls_module *m, ls_tensor *x)
{
    const mixed *self = (const mixed *)m;
    return ls_mul(ls_add(ls_cast(self->w, LS_FLOAT32), self->b), x);
}

static const ls_module_class mixed_class =
    LS_MODULE_CLASS(.name = "mixed", .forward = mixed_forward);

static mixed *make_mixed(void)
{
    LS_SCOPE;
    mixed *m = ls_module_new(sizeof *m, &mixed_class);
    CHECK(m != NULL);
    m->w = ls_module_add_param(&m->base, "w", ls_ones(LS_SHAPE(WIDE), LS_BFLOAT16));
    m->b = ls_module_add_param(&m->base, "b", ls_ones(LS_SHAPE(WIDE), LS_FLOAT32));
    CHECK_OK(ls_module_status(&m->base));
    return m;
}

/* The gradient of both parameters is `scale` times small multiples of 1/4: exact in bfloat16. */
static void train_mixed(ls_module *net, double scale)
{
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.001));
    CHECK(optim != NULL);
    for (int step = 0; step < MIXED_STEPS; step++) {
        float x[WIDE];
        for (int i = 0; i < WIDE; i++) {
            x[i] = (float)(scale * 0.25 * ((i + 3 * step) % 5 - 2));
        }
        LS_SCOPE;
        ls_tensor *input = ls_from_data(x, LS_SHAPE(WIDE), LS_FLOAT32);
        CHECK_OK(ls_backward(ls_sum(ls_forward(net, input))));
        CHECK_OK(ls_clip_grad_norm(net, 1.0, NULL, NULL));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    ls_optim_free(optim);
}

/* Ranks 0 and 1 with gradients g and 3 g train as one process with 2 g. */
DIST_TEST(bfloat16_parameters_under_ddp_train_as_in_one_process, 2)
{
    mixed *twin = make_mixed(), *inner = make_mixed();
    ls_module *net = ls_ddp_new(&inner->base, ls_world(), NULL);
    CHECK(net != NULL);
    train_mixed(&twin->base, 2.0);
    train_mixed(net, 1.0 + 2.0 * ls_rank());
    CHECK(memcmp(elements_of(inner->w), elements_of(twin->w), WIDE * sizeof(uint16_t)) == 0);
    CHECK(memcmp(elements_of(inner->b), elements_of(twin->b), WIDE * sizeof(float)) == 0);
    ls_module_free(net);
    ls_module_free(&twin->base);
}

TEST_MAIN

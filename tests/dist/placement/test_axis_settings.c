/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks with parts of a parameter do alike, though no shape tells so: an optimizer, its rate,
 * its steps, the norm of clipping, the first values of what is not divided. A rank that differs is
 * named on all ranks of the axis before anything is stepped, also where its wrapper's other ranks
 * do the same as it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "says.h"
#include "test.h"

enum { WIDTH = 4, HIDDEN = 12, STEPS = 3 };

typedef enum deed {
    NOTHING,
    RATE,
    KIND,
    SEED,
    LATER_RATE,
    LATER_SEED,
    SKIPPED,
    NORM,
    NO_NORM,
    VALUE,
    GROUP,
    FROZEN,
    OWN
} deed;

typedef struct run {
    const char *axes;
    deed odd;
    int found; /* in this step; STEPS: never */
    const char *says[2];
    bool within; /* the optimizer steps within backward */
} run;

typedef struct mlp {
    ls_module base;
    ls_tensor *a, *b;
    ls_tensor *bias; /* of no placement: the ranks have copies */
} mlp;

static ls_tensor *mlp_forward(ls_module *m, ls_tensor *x)
{
    const mlp *self = (mlp *)m;
    x = ls_redistribute(x, "tp", LS_INVARIANT, LS_REPLICATED);
    ls_tensor *y = ls_linear(ls_relu(ls_linear(x, self->a, NULL)), self->b, NULL);
    return ls_add(ls_redistribute(y, "tp", LS_PARTIAL, LS_INVARIANT), self->bias);
}

static const ls_module_class mlp_class = LS_MODULE_CLASS(.name = "mlp", .forward = mlp_forward);

static ls_tensor *weight(mlp *m, const char *name, ls_shape shape, int dim)
{
    ls_tensor *t = ls_module_add_param(&m->base, name, ls_empty(shape, LS_FLOAT32));
    CHECK_OK(ls_fill_normal(t, 0.0, 0.2));
    CHECK_OK(ls_tensor_shard(t, "tp", dim, NULL, 0));
    return t;
}

static ls_module *mlp_new(deed odd)
{
    mlp *m = ls_module_new(sizeof *m, &mlp_class);
    m->a = weight(m, "a", LS_SHAPE(HIDDEN, WIDTH), 0);
    m->b = weight(m, "b", LS_SHAPE(WIDTH, HIDDEN), 1);
    m->bias = ls_module_add_param(&m->base, "bias", ls_zeros(LS_SHAPE(WIDTH), LS_FLOAT32));
    CHECK_OK(odd == VALUE ? ls_fill_normal(m->bias, 0.5, 0.0) : LS_OK);
    return &m->base;
}

static bool is_bias(void *arg, const char *name, const ls_tensor *value)
{
    (void)arg, (void)value;
    return strcmp(name, "bias") == 0;
}

static ls_optim *optim_of(ls_module *net, deed odd)
{
    if (odd == KIND) {
        return ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.25));
    }
    ls_optim *optim =
        ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = odd == RATE ? 0.5 : 0.25));
    CHECK_OK(odd != GROUP ? LS_OK
                          : ls_optim_add_group(optim, is_bias, NULL,
                                               LS_OPTIONS(ls_optim_group_options, .lr_scale = 3)));
    return optim;
}

/* What a rank trains by itself is nothing to the others. */
static void train_own(void)
{
    LS_SCOPE;
    ls_module *own = ls_linear_new(WIDTH, 1, NULL);
    ls_optim *optim = ls_adamw_new(own, LS_OPTIONS(ls_adamw_options, .lr = 0.7));
    CHECK_OK(ls_backward(ls_mean(ls_forward(own, ls_ones(LS_SHAPE(2, WIDTH), LS_FLOAT32)))));
    CHECK_OK(ls_clip_grad_norm(own, 5.0, NULL, NULL));
    CHECK_OK(ls_optim_step(optim));
    ls_optim_free(optim);
    ls_module_free(own);
}

static ls_status step(ls_module *net, ls_optim *optim, deed odd, int at)
{
    LS_SCOPE;
    LS_TRY(ls_backward(ls_mean(ls_forward(net, ls_ones(LS_SHAPE(2, WIDTH), LS_FLOAT32)))));
    ls_optim_set_lr(optim, odd == LATER_RATE && at == 1 ? 0.125 : 0.25);
    const double norm = odd == NORM ? 2.0 : odd == NO_NORM ? INFINITY : 1.0;
    CHECK_OK(ls_clip_grad_norm(net, norm, NULL, NULL));
    if (odd == OWN) {
        train_own();
    }
    CHECK_OK(odd == LATER_SEED && at == 1 ? ls_manual_seed(9) : LS_OK);
    if (odd == SKIPPED && at == 1) {
        return LS_OK;
    }
    const ls_status status = ls_optim_step(optim);
    ls_optim_zero_grad(optim);
    return status;
}

static ls_status step_within(ls_module *net, ls_optim *optim, deed odd, int at)
{
    LS_SCOPE;
    ls_optim_set_lr(optim, odd == LATER_RATE && at == 1 ? 0.125 : 0.25);
    return ls_backward(ls_mean(ls_forward(net, ls_ones(LS_SHAPE(2, WIDTH), LS_FLOAT32))));
}

/* Of the ranks of the axis tp the last one is odd. */
static int train(void *arg)
{
    const run *r = arg;
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_mesh_new(ls_world(), r->axes, &mesh));
    const int last = ls_mesh_size(mesh, "tp") - 1;
    const deed odd = ls_mesh_coordinate(mesh, "tp") == last ? r->odd : NOTHING;
    CHECK_OK(ls_manual_seed(odd == SEED ? 4 : 3));
    ls_module *net = mlp_new(odd);
    net = strstr(r->axes, "dp") != NULL ? ls_ddp_new(net, ls_mesh_group(mesh, "dp"), NULL) : net;
    ls_optim *optim = optim_of(net, odd);
    CHECK(net != NULL && optim != NULL);
    CHECK_OK(r->within ? ls_ddp_step_in_backward(net, optim) : LS_OK);
    ls_tensor *b = ls_module_param(net, "b");
    CHECK(odd != FROZEN || ls_set_requires_grad(ls_module_param(net, "a"), false) != NULL);
    float before[WIDTH * HIDDEN], after[WIDTH * HIDDEN];
    ls_status status = LS_OK;
    int at = 0;
    while (at < STEPS && status == LS_OK) {
        CHECK_OK(ls_copy_out(b, before, (size_t)ls_numel(b) * sizeof *before));
        status = r->within ? step_within(net, optim, odd, at) : step(net, optim, odd, at);
        at += status == LS_OK;
    }
    if (at != r->found || (status < 0) != (r->found < STEPS)) {
        test_fail(__FILE__, __LINE__, "%s, \"%s\" wanted in step %d; step %d, %s: %s", r->axes,
                  r->says[0], r->found, at, ls_status_name(status), ls_error_message());
    }
    if (status < 0) {
        CHECK_INT(status, LS_ERR_MISMATCH);
        CHECK_CONTAINS(ls_error_message(), r->says[0]);
        CHECK_CONTAINS(ls_error_message(), r->says[1]);
        CHECK(r->odd != FROZEN ||
              test_count_said(ls_error_message(),
                              SAYS("the number of parameters that %s #%d trains")) == 1);
        CHECK(r->odd != VALUE ||
              test_count_said(ls_error_message(),
                              SAYS("give the ranks of the axis the same first values, by one seed "
                                   "or a checkpoint, or their own parts (ls_tensor_shard)")) == 1);
        CHECK_OK(ls_copy_out(b, after, (size_t)ls_numel(b) * sizeof *after));
        CHECK_INT(memcmp(before, after, (size_t)ls_numel(b) * sizeof *after), 0); /* not stepped */
    }
    ls_optim_free(optim);
    ls_module_free(net);
    (void)ls_mesh_free(mesh);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* the process goes on */
    CHECK_OK(ls_finalize());
    return 0;
}

#define AXIS "axis \"tp\": the ranks differ in "
static const run runs[] = {
    {"tp=2", RATE, 0,
     .says = {AXIS "optimizer 1: rank 0 has AdamW, lr 0.25", "rank 1 has AdamW, lr 0.5"}},
    {"tp=3", KIND, 0, .says = {AXIS "optimizer 1: rank 0 has AdamW", "rank 2 has SGD"}},
    {"tp=2", SEED, 0, .says = {AXIS "the seed: rank 0 has 3", "rank 1 has 4"}},
    {"tp=2", LATER_RATE, 1,
     .says = {AXIS "the learning rate of AdamW #1: rank 0 has 0.25", "rank 1 has 0.125"}},
    {"tp=2", LATER_SEED, 1, .says = {AXIS "the seed: rank 0 has 3", "rank 1 has 9"}},
    {"tp=4", NORM, 0,
     .says = {AXIS "the largest norm of ls_clip_grad_norm: rank 0 has 1", "rank 3 has 2"}},
    {"tp=2", VALUE, 0,
     .says = {AXIS "the numbers of bias (parameter 2): rank 0 has hash", "rank 1 has hash"}},
    {"tp=3", VALUE, 0, .says = {AXIS "the numbers of bias", "rank 2 has hash"}},
    {"tp=2", NO_NORM, 0, .says = {AXIS "the largest norm", "rank 1 has none"}},
    {"tp=2", GROUP, 0, .says = {AXIS "optimizer group 1: rank 0 has none", "bias the first"}},
    {"tp=3", FROZEN, 0,
     .says = {AXIS "the number of parameters that AdamW #1 trains: rank 0 has 3", "rank 2 has 2"}},
    {"tp=2", OWN, STEPS, .says = {"", ""}},
    /* All replicas do the same, so no wrapper finds it. */
    {"dp=2,tp=2", RATE, 0, .says = {AXIS "optimizer 1: rank", "has AdamW, lr 0.5"}},
    {"tp=2,dp=2", LATER_RATE, 1, .says = {AXIS "the learning rate of AdamW #1", "0.125"}},
    /* Replicas of one rank: others would hear of the failed backward before their own step. */
    {"dp=1,tp=2", KIND, 0, .says = {AXIS "optimizer 1: rank", "has SGD"}, .within = true},
    {"dp=1,tp=2", LATER_RATE, 1, .says = {AXIS "the learning rate", "0.125"}, .within = true},
    {"dp=2,tp=2", NOTHING, STEPS, .says = {"", ""}, .within = true},
    {"tp=1", RATE, STEPS, .says = {"", ""}},
    {"tp=2", NOTHING, STEPS, .says = {"", ""}},
    {"tp=4", NOTHING, STEPS, .says = {"", ""}},
    {"dp=2,tp=2", NOTHING, STEPS, .says = {"", ""}},
};

TEST(a_setting_in_which_a_rank_of_the_axis_differs_is_named_on_all_of_them)
{
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        int ranks = 1;
        for (const char *at = runs[i].axes; (at = strchr(at, '=')) != NULL;) {
            ranks *= *++at - '0';
        }
        CHECK_OK(ls_spawn(train, (void *)(uintptr_t)&runs[i], ranks));
    }
}

/* The other rank is in its next forward then, whose sum is another call. */
DIST_TEST(a_step_that_one_rank_of_the_axis_leaves_out_is_named_on_both, 2)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=2", &mesh));
    ls_module *net = mlp_new(NOTHING);
    ls_optim *optim = optim_of(net, NOTHING);
    ls_status status = LS_OK;
    for (int at = 0; at < STEPS && status == LS_OK; at++) {
        status = step(net, optim, ls_rank() == 1 ? SKIPPED : NOTHING, at);
    }
    CHECK_INT(status, LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(), "settings of the ranks of an axis");
    CHECK_CONTAINS(ls_error_message(), "rank 1 ");
    ls_optim_free(optim);
    ls_module_free(net);
    (void)ls_mesh_free(mesh);
}

/* More optimizers than the table of settings has places, every second of another kind on rank 1. */
DIST_TEST(an_optimizer_that_was_freed_is_compared_no_longer, 2)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=2", &mesh));
    for (int i = 0; i < 40; i++) {
        const bool differ = i % 2 == 0;
        ls_module *net = mlp_new(NOTHING);
        ls_optim *optim = optim_of(net, differ && ls_rank() == 1 ? KIND : NOTHING);
        CHECK_STATUS(step(net, optim, NOTHING, 0), differ ? LS_ERR_MISMATCH : LS_OK);
        ls_optim_free(optim);
        ls_module_free(net);
    }
    CHECK_OK(ls_mesh_free(mesh));
}

/* The norm would be of this rank's parts alone, or of other ranks'. */
DIST_TEST(a_norm_under_another_mesh_than_that_of_the_parts_is_refused, 2)
{
    ls_mesh *mesh = NULL, *other = NULL;
    double norm = 0.0;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=2", &mesh));
    ls_module *net = mlp_new(NOTHING);
    {
        LS_SCOPE;
        CHECK_OK(ls_backward(ls_mean(ls_forward(net, ls_ones(LS_SHAPE(2, WIDTH), LS_FLOAT32)))));
    }
    CHECK_OK(ls_mesh_use(NULL));
    CHECK_STATUS(ls_clip_grad_norm(net, 1.0, NULL, &norm), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(),
               SAYS("clip_grad_norm: parameter %.200s is a part along the axes of a mesh, and %s; "
                    "put that mesh in force (ls_mesh_use)"));
    CHECK_SAYS(ls_error_message(), "none is in force");
    CHECK_OK(ls_mesh_new(ls_world(), "tp=1,dp=2", &other));
    CHECK_STATUS(ls_clip_grad_norm(net, 1.0, NULL, &norm), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(), "another one is in force");
    CHECK_OK(ls_mesh_use(mesh));
    CHECK_OK(ls_clip_grad_norm(net, 1.0, NULL, &norm));
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(other));
    CHECK_OK(ls_mesh_free(mesh));
}

TEST_MAIN

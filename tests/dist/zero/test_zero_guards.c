/* What zero refuses, and what it says when ranks do not do the same. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "reduce/reducer.h"
#include "says.h"
#include "test.h"

enum { DIM = 48 };

static ls_module *layers_new(void)
{
    CHECK_OK(ls_manual_seed(1));
    ls_module *layers[] = {ls_linear_new(DIM, DIM, NULL), ls_relu_new(),
                           ls_linear_new(DIM, DIM, NULL)};
    return ls_sequential_new(layers, 3);
}

static ls_status backward(ls_module *net, float factor)
{
    LS_SCOPE;
    ls_tensor *y = ls_forward(net, ls_ones(LS_SHAPE(2, DIM), LS_FLOAT32));
    return ls_backward(ls_scale(ls_mean(y), factor));
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void check_refused(const ls_ddp_options *options, ls_status status, const char *says)
{
    ls_module *net = layers_new();
    CHECK(ls_ddp_new(net, ls_world(), options) == NULL);
    CHECK_INT(ls_error_status(), status);
    CHECK_SAYS(ls_error_message(), says);
    ls_module_free(net);
}

DIST_TEST(a_stage_that_does_not_exist_is_refused, 2)
{
    check_refused(
        LS_OPTIONS(ls_ddp_options, .zero = 3), LS_ERR_INVALID,
        SAYS("zero is %d; give 0, 1 (the optimizer's state is divided among the ranks) or 2 "
             "(gradients as well)"));
}

DIST_TEST(shards_are_refused, 2)
{
    check_refused(
        LS_OPTIONS(ls_ddp_options, .zero = 1, .shards = 2), LS_ERR_UNSUPPORTED,
        SAYS("zero and shards: shards are added in one tree of whole gradients on every rank; "
             "leave one of them out"));
}

DIST_TEST(a_wire_dtype_is_refused, 2)
{
    check_refused(
        LS_OPTIONS(ls_ddp_options, .zero = 1, .wire_dtype = LS_BFLOAT16), LS_ERR_UNSUPPORTED,
        SAYS("zero and wire_dtype: only gradients would be sent in bfloat16, and the other "
             "half of what is sent are parameters; leave one of them out"));
}

static void place_apart(void *arg, const char *name, const ls_tensor *param, ls_ddp_place *place)
{
    (void)param;
    place->reduce_group = strcmp(name, "2.bias") == 0 ? arg : NULL;
}

DIST_TEST(a_place_that_sums_over_a_part_of_the_group_is_refused, 2)
{
    ls_group *own = NULL;
    CHECK_OK(ls_group_split(ls_world(), ls_rank(), 0, NULL, &own));
    check_refused(LS_OPTIONS(ls_ddp_options, .zero = 1, .place = place_apart, .place_arg = own),
                  LS_ERR_UNSUPPORTED,
                  SAYS("zero, and some gradients are added over a part of the group (place, or "
                       "batch_axes of a "
                       "mesh): the elements are divided among all ranks of the group, and those of "
                       "other ranks "
                       "have other parameters; leave zero out"));
    CHECK_OK(ls_group_free(own));
}

DIST_TEST(hooks_and_local_steps_are_refused, 2)
{
    ls_module *ddp = ls_ddp_new(layers_new(), ls_world(), LS_OPTIONS(ls_ddp_options, .zero = 1));
    CHECK_OK(ls_module_status(ddp));
    CHECK_STATUS(ls_ddp_set_local(ddp, true), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "ls_ddp_set_local: with zero a rank steps its part of the parameters only, so it "
               "cannot train by itself; make the ddp without zero");
    ls_comm_hook hook = {.size = sizeof hook};
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK_OK(ls_cast_hook_new(LS_BFLOAT16, &hook));
    CHECK_STATUS(ls_ddp_set_hook(ddp, &hook), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "hook \"%s\" and zero: a hook gives every rank the averages of a whole bucket, and "
               "with zero a rank gets those of its part; leave one of them out");
    ls_module_free(ddp);
}

DIST_TEST(an_optimizer_without_its_wrapper_is_refused, 2)
{
    ls_module *ddp = ls_ddp_new(layers_new(), ls_world(), LS_OPTIONS(ls_ddp_options, .zero = 1));
    ls_optim *optim = ls_adamw_new(ddp, NULL);
    CHECK_OK(backward(ddp, 1.0f));
    CHECK_OK(ls_optim_step(optim));
    ls_module *net = ls_ddp_unwrap(ddp);
    CHECK_OK(backward(net, 1.0f));
    CHECK_STATUS(ls_optim_step(optim), LS_ERR_STATE);
    CHECK_SAYS(
        ls_error_message(),
        "%s: this rank keeps the state of elements %lld to %lld of %s, and its wrapper, which "
        "divided them among the ranks (zero), is another now; save a checkpoint before the "
        "wrapper is taken off, make a new optimizer, and load it");
    ls_optim_free(optim);
    ls_module_free(net);
}

/* ---- ranks that differ ----------------------------------------------------------------------- */

DIST_TEST(a_rank_with_another_zero_is_named, 3)
{
    ls_module *ddp = ls_ddp_new(layers_new(), ls_world(),
                                LS_OPTIONS(ls_ddp_options, .zero = ls_rank() == 1 ? 2 : 1));
    CHECK_OK(ls_module_status(ddp));
    CHECK_STATUS(backward(ddp, 1.0f), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "zero 2");
    CHECK_CONTAINS(ls_error_message(), "zero 1");
    CHECK_CONTAINS(ls_error_message(), "rank 1");
    ls_module_free(ddp);
}

DIST_TEST(a_rank_that_leaves_out_a_step_is_an_error_on_all, 3)
{
    ls_module *ddp = ls_ddp_new(layers_new(), ls_world(), LS_OPTIONS(ls_ddp_options, .zero = 1));
    ls_optim *optim = ls_sgd_new(ddp, NULL);
    CHECK_OK(backward(ddp, 1.0f));
    CHECK_OK(ls_optim_step(optim));
    CHECK_OK(backward(ddp, 1.0f));
    ls_status status = ls_rank() != 1 ? ls_optim_step(optim) : LS_OK;
    status = status < 0 ? status : backward(ddp, 1.0f);
    CHECK(status < 0);
    ls_optim_free(optim);
    ls_module_free(ddp);
}

/* The sum overflows in one rank's part of the gradients; all find it in the norm. */
DIST_TEST(an_average_that_is_not_finite_on_one_rank_is_found_by_all, 3)
{
    ls_module *ddp = ls_ddp_new(layers_new(), ls_world(), LS_OPTIONS(ls_ddp_options, .zero = 2));
    ls_optim *optim = ls_sgd_new(ddp, NULL);
    CHECK_OK(backward(ddp, 1.0f));
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
    CHECK_OK(backward(ddp, ls_rank() == 2 ? NAN : 1.0f));
    CHECK_STATUS(ls_clip_grad_norm(ddp, 1.0, NULL, NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "clip_grad_norm: the gradients' norm is nan");
    ls_optim_free(optim);
    ls_module_free(ddp);
}

static char warned[2048];

static void keep_warning(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == LS_LOG_WARN) {
        (void)snprintf(warned, sizeof warned, "%s", text);
    }
}

/* Every contribution is finite; the rank that has the average says that it is not. */
DIST_TEST(a_sum_that_overflows_is_reported_by_its_owner, 3)
{
    ls_reducer *r = NULL;
    ls_reducer_param param = {.name = "steep", .count = 96, .dtype = LS_FLOAT32};
    CHECK_OK(ls_reducer_new(ls_world(), &param, 1, NULL, &r));
    ls__reducer_divide(r, false);
    ls__reducer_scatter(r);
    ls_set_log_callback(keep_warning, NULL);
    CHECK_OK(ls_reducer_begin(r, NULL));
    for (int k = 0; k < 96; k++) {
        ((float *)param.grad)[k] = k == 50 ? 2e38f : 1.0f; /* the second third */
    }
    CHECK_OK(ls_reducer_ready(r, 0, NULL));
    CHECK_OK(ls_reducer_wait(r));
    CHECK(test_contains(warned, "gradient of steep is not finite (element 50 of 96)") ==
          (ls_rank() == 1));
    const float *own = (const float *)param.grad + 32 * ls_rank();
    for (int k = 0; k < 32; k++) {
        CHECK(own[k] == (32 * ls_rank() + k == 50 ? INFINITY : 1.0f));
    }
    CHECK_OK(ls_reducer_free(r));
}

TEST_MAIN

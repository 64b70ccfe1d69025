/* SPDX-License-Identifier: Apache-2.0 */
/* What zero refuses, and what it says when ranks do not do the same. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
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
        LS_OPTIONS(ls_ddp_options, .zero = 4), LS_ERR_INVALID,
        SAYS("zero is %d; give 0, 1 (the optimizer's state is divided among the ranks), 2 "
             "(gradients as well) or 3 (parameters, too)"));
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

DIST_TEST(a_shard_group_without_zero_is_refused, 2)
{
    check_refused(LS_OPTIONS(ls_ddp_options, .shard_group = ls_world()), LS_ERR_INVALID,
                  SAYS("shard_group without zero: nothing is divided; give zero 1, 2 or 3, or "
                       "leave shard_group out"));
}

/* Rank 0 gives a group of one, the others one of two. */
DIST_TEST(shard_groups_of_different_sizes_are_refused, 3)
{
    ls_group *some = NULL;
    CHECK_OK(ls_group_split(ls_world(), ls_rank() > 0, 0, NULL, &some));
    check_refused(LS_OPTIONS(ls_ddp_options, .zero = 1, .shard_group = some), LS_ERR_INVALID,
                  SAYS("shard_group: that of rank %d has %d ranks, of which %d are ranks of the "
                       "ddp that give it, and that of rank %d has %d; give each rank of the ddp "
                       "its own one of groups of equal size, which together have all of them"));
    CHECK_CONTAINS(ls_error_message(), "that of rank 1 has 2 ranks, of which 2");
    CHECK_OK(ls_group_free(some));
}

/* Rank 0 and 2 give that of both, rank 1 gives one with rank 0. */
DIST_TEST(shard_groups_that_overlap_are_refused, 3)
{
    static const int first[] = {0, 1}, second[] = {0, 2};
    ls_group *of_first = NULL, *of_second = NULL;
    CHECK_OK(ls_group_new(ls_world(), first, 2, NULL, &of_first));
    CHECK_OK(ls_group_new(ls_world(), second, 2, NULL, &of_second));
    check_refused(
        LS_OPTIONS(ls_ddp_options, .zero = 1, .shard_group = ls_rank() == 1 ? of_first : of_second),
        LS_ERR_INVALID, "give each rank of the ddp its own one of groups of equal size");
    CHECK_OK(ls_group_free(of_first));
    CHECK_OK(ls_group_free(of_second));
}

static void place_apart(void *arg, const char *name, const ls_tensor *param, ls_ddp_place *place)
{
    (void)param;
    place->reduce_group = strcmp(name, "2.bias") == 0 ? arg : NULL;
}

DIST_TEST(a_place_that_sums_over_a_part_of_the_group_is_refused_with_zero_3, 2)
{
    ls_group *own = NULL;
    CHECK_OK(ls_group_split(ls_world(), ls_rank(), 0, NULL, &own));
    check_refused(LS_OPTIONS(ls_ddp_options, .zero = 3, .place = place_apart, .place_arg = own),
                  LS_ERR_UNSUPPORTED,
                  SAYS("zero 3 or shard_group, and some gradients are added over a part of the "
                       "group (place, or a mesh): parameters are divided and gathered by all of "
                       "its ranks in one order, and some of them have others; take zero 1 or 2 "
                       "without shard_group"));
    check_refused(LS_OPTIONS(ls_ddp_options, .zero = 1, .shard_group = ls_world(),
                             .place = place_apart, .place_arg = own),
                  LS_ERR_UNSUPPORTED, SAYS("take zero 1 or 2 without shard_group"));
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

DIST_TEST(a_norm_of_gradients_that_were_not_averaged_is_refused, 2)
{
    for (int zero = 1; zero <= 3; zero++) {
        ls_module *net = ls_ddp_new(layers_new(), ls_world(),
                                    LS_OPTIONS(ls_ddp_options, .zero = zero, .check_every = 0));
        CHECK_OK(ls_module_status(net));
        CHECK_OK(backward(net, 1.0F));
        double norm = 0.0;
        CHECK_OK(ls_clip_grad_norm(net, 1.0, NULL, &norm));
        CHECK_OK(ls_ddp_set_sync(net, false));
        CHECK_OK(backward(net, 1.0F));
        CHECK_STATUS(ls_clip_grad_norm(net, 1.0, NULL, &norm), LS_ERR_STATE);
        CHECK_SAYS(ls_error_message(),
                   "ls_optim_step: the gradients were accumulated on this rank and never averaged: "
                   "every backward since the last step ran without synchronisation; move the last "
                   "ls_backward of the step out of LS_NO_SYNC, or call ls_ddp_set_sync(net, true) "
                   "before it");
        CHECK_OK(ls_ddp_set_sync(net, true));
        CHECK_OK(backward(net, 1.0F));
        CHECK_OK(ls_clip_grad_norm(net, 1.0, NULL, &norm));
        ls_module_free(net);
    }
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

/* ---- parameters that are divided ------------------------------------------------------------- */

typedef struct trainee {
    ls_module *net, *ddp;
    ls_optim *optim;
} trainee;

/* After two steps, so that parameters are divided. */
static trainee divided_new(int64_t bucket_bytes)
{
    trainee t = {.net = layers_new()};
    t.ddp = ls_ddp_new(t.net, ls_world(),
                       LS_OPTIONS(ls_ddp_options, .zero = 3, .bucket_bytes = (size_t)bucket_bytes));
    CHECK_OK(ls_module_status(t.ddp));
    t.optim = ls_adamw_new(t.ddp, NULL);
    for (int step = 0; step < 2; step++) {
        CHECK_OK(backward(t.ddp, 1.0f));
        CHECK_OK(ls_optim_step(t.optim));
        ls_optim_zero_grad(t.optim);
    }
    return t;
}

static void divided_free(trainee *t)
{
    ls_optim_free(t->optim);
    ls_module_free(t->ddp);
}

static void check_divided(const char *what)
{
    CHECK_INT(ls_error_status(), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), what);
    CHECK_SAYS(ls_error_message(),
               "parameter %s is divided among the ranks (zero 3), and this one has elements %lld "
               "to %lld of %lld; read it in a forward pass of the ddp, or call ls_ddp_gather on "
               "all ranks before");
}

static ls_tensor *plain(ls_tensor *x, void *arg)
{
    return ls_matmul(x, ls_transpose(arg, 0, 1));
}

DIST_TEST(whoever_reads_a_divided_parameter_is_told_how, 3)
{
    trainee t = divided_new(0);
    ls_tensor *weight = ls_module_param(t.net, "0.weight");
    float numbers[DIM * DIM];
    LS_SCOPE;
    if (!test_on_device()) {
        CHECK(ls_data(weight) == NULL);
        check_divided("data: parameter 0.weight");
    }
    CHECK_STATUS(ls_copy_out(weight, numbers, sizeof numbers), LS_ERR_STATE);
    check_divided("0.weight");
    CHECK_STATUS(ls_copy_in(weight, numbers, sizeof numbers), LS_ERR_STATE);
    check_divided("0.weight");
    CHECK_STATUS(ls_fill_constant(weight, 1.0), LS_ERR_STATE);
    check_divided("0.weight");
    CHECK_STATUS(ls_fill_normal(weight, 0.0, 1.0), LS_ERR_STATE);
    check_divided("0.weight");
    CHECK_STATUS(ls_tensor_status(ls_forward(t.net, ls_ones(LS_SHAPE(2, DIM), LS_FLOAT32))),
                 LS_ERR_STATE);
    check_divided("0.weight");
    CHECK_STATUS(ls_tensor_status(ls_add(ls_reshape(weight, LS_SHAPE(DIM * DIM)),
                                         ls_ones(LS_SHAPE(DIM * DIM), LS_FLOAT32))),
                 LS_ERR_STATE);
    check_divided("reshape: parameter 0.weight");
    ls_tensor *x = ls_ones(LS_SHAPE(2, DIM), LS_FLOAT32);
    CHECK_STATUS(ls_tensor_status(ls_recompute_call(plain, x, weight)), LS_ERR_STATE);
    check_divided("0.weight");
    CHECK_STATUS(ls_module_save_safetensors(t.net, "/dev/null", NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "ls_safetensors_save: this rank has only a slice of \"%.200s\"; show its whole "
               "(ls_tensor_whole, ls_ddp_gather), or save a checkpoint instead");
    uint64_t hash = 0;
    int same = 0;
    CHECK(ls_module_hash(t.net) == 0);
    CHECK_STATUS(ls_replicas_identical(t.ddp, ls_world(), &same, &hash), LS_ERR_STATE);
    check_divided("0.weight");
    divided_free(&t);
}

/* Rank 1 has all of them. */
DIST_TEST(replicas_of_which_one_cannot_be_read_are_not_compared, 2)
{
    trainee t = divided_new(0);
    uint64_t hash = 0;
    int same = 0;
    ls_module *net = ls_rank() == 0 ? t.net : layers_new();
    CHECK_STATUS(ls_replicas_identical(net, ls_world(), &same, &hash), LS_ERR_STATE);
    if (ls_rank() == 0) {
        check_divided("0.weight");
    } else {
        CHECK_SAYS(ls_error_message(),
                   "ls_replicas_identical: the parameters of rank %d of the group cannot be read; "
                   "its error says why");
        ls_module_free(net);
    }
    divided_free(&t);
}

static ls_status reading(const ls_module *net)
{
    float numbers[DIM * DIM];
    return ls_copy_out(ls_module_param(net, "2.weight"), numbers, sizeof numbers);
}

/* One rank alone, as often as it likes. */
DIST_TEST(gathered_parameters_are_read_on_one_rank, 3)
{
    trainee t = divided_new(4000);
    CHECK_OK(ls_ddp_gather(t.ddp));
    CHECK_OK(ls_ddp_gather(t.ddp));
    uint64_t hash = 0;
    int same = 0;
    CHECK_OK(ls_replicas_identical(t.ddp, ls_world(), &same, &hash));
    CHECK_INT(same, 3);
    for (int i = 0; i < 5 && ls_rank() == 1; i++) {
        LS_SCOPE;
        LS_NO_GRAD;
        double mean;
        CHECK_OK(ls_item(
            ls_mean(ls_forward(i % 2 ? t.net : t.ddp, ls_ones(LS_SHAPE(2, DIM), LS_FLOAT32))),
            &mean));
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK_OK(ls_ddp_release(t.ddp));
    CHECK_INT(reading(t.net), LS_ERR_STATE);
    CHECK_OK(ls_ddp_gather(t.ddp)); /* until the next step */
    CHECK_OK(backward(t.ddp, 1.0f));
    CHECK_INT(reading(t.net), LS_OK);
    CHECK_OK(ls_optim_step(t.optim));
    CHECK_INT(reading(t.net), LS_ERR_STATE);
    ls_optim_zero_grad(t.optim);
    CHECK_OK(backward(t.ddp, 1.0f));
    divided_free(&t);
}

DIST_TEST(an_unwrapped_module_is_whole, 3)
{
    trainee t = divided_new(4000);
    uint64_t hash = 0, again = 0;
    int same = 0;
    CHECK_OK(ls_ddp_gather(t.ddp));
    CHECK_OK(ls_replicas_identical(t.ddp, ls_world(), &same, &hash));
    CHECK_OK(ls_ddp_release(t.ddp));
    ls_module *net = ls_ddp_unwrap(t.ddp);
    CHECK(net == t.net);
    CHECK_OK(ls_replicas_identical(net, ls_world(), &same, &again));
    CHECK_INT(same, 3);
    CHECK(hash == again);
    ls_optim_free(t.optim);
    ls_module_free(net);
}

static ls_module *gathered_within;

static ls_tensor *gather_and_pass(ls_module *m, ls_tensor *x)
{
    (void)m;
    if (gathered_within != NULL) {
        CHECK_STATUS(ls_ddp_gather(gathered_within), LS_ERR_STATE);
        CHECK_SAYS(ls_error_message(), "ls_ddp_gather: a forward or a backward of the ddp is under "
                                       "way; call it before or after");
    }
    return x;
}

static const ls_module_class gathering =
    LS_MODULE_CLASS(.name = "gatherer", .forward = gather_and_pass);

DIST_TEST(gathering_within_a_forward_pass_is_refused, 2)
{
    ls_module *net = layers_new();
    (void)ls_module_add(net, "last", ls_module_new(sizeof(ls_module), &gathering));
    ls_module *ddp = ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .zero = 3));
    CHECK_OK(ls_module_status(ddp));
    CHECK_OK(backward(ddp, 1.0f));
    gathered_within = ddp;
    CHECK_OK(backward(ddp, 1.0f));
    ls_module_free(ddp);
}

DIST_TEST(a_parameter_within_a_larger_tensor_is_refused, 2)
{
    ls_tensor *all = ls_keep(ls_ones(LS_SHAPE(4, DIM), LS_FLOAT32));
    ls_module *net = layers_new();
    (void)ls_module_add_param(net, "row", ls_keep(ls_slice(all, 0, 1, 2)));
    CHECK_OK(ls_module_status(net));
    CHECK(ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .zero = 3)) == NULL);
    CHECK_INT(ls_error_status(), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "zero 3: parameter %s is part of a larger tensor, whose elements stay where they "
               "are; give it memory of its own (ls_clone), or take zero 2");
    ls_module_free(net);
    ls_free(all);
}

/* A checkpoint that cannot be written costs no step. */
DIST_TEST(training_goes_on_after_a_checkpoint_that_failed, 3)
{
    trainee t = divided_new(4000);
    ls_checkpoint *checkpoint = NULL;
    CHECK(ls_checkpoint_new("/proc/nowhere", ls_world(),
                            LS_OPTIONS(ls_checkpoint_options, .async = false), &checkpoint) < 0);
    CHECK_CONTAINS(ls_error_message(), "/proc/nowhere");
    CHECK_OK(backward(t.ddp, 1.0f));
    CHECK_OK(ls_optim_step(t.optim));
    divided_free(&t);
}

/* A part that one rank has changed is not that of the other group; so is what one rank alone has
 * changed while everything is whole. */
DIST_TEST(parameters_that_differ_between_ranks_are_found, 4)
{
    for (int split = 0; split < 2; split++) {
        ls_group *within = NULL;
        CHECK_OK(ls_group_split(ls_world(), ls_rank() / 2, 0, NULL, &within));
        ls_module *ddp = ls_ddp_new(layers_new(), ls_world(),
                                    LS_OPTIONS(ls_ddp_options, .zero = 3, .check_every = 2,
                                               .shard_group = split ? within : NULL));
        CHECK_OK(ls_module_status(ddp));
        CHECK_OK(ls_group_free(within));
        for (int step = 0; step < 6; step++) {
            CHECK_OK(backward(ddp, 1.0f)); /* compared before steps 0, 2, 4 */
        }
        CHECK_OK(ls_ddp_gather(ddp));
        if (ls_rank() == 3) { /* the end of its part, and of that of all */
            add_float(ls_module_param(ls_ddp_module(ddp), "0.weight"), DIM * DIM - 1, 1.0f);
        }
        if (split) {
            CHECK_OK(ls_ddp_release(ddp));
        }
        CHECK_STATUS(backward(ddp, 1.0f), LS_ERR_MISMATCH);
        CHECK_CONTAINS(ls_error_message(), "the numbers of 0.weight");
        CHECK_CONTAINS(ls_error_message(), "a bit has flipped");
        ls_module_free(ddp);
    }
}

/* A rank without data gathers nothing before a backward. */
DIST_TEST(a_step_in_which_a_rank_has_no_data_is_not_compared, 3)
{
    ls_module *ddp = ls_ddp_new(layers_new(), ls_world(),
                                LS_OPTIONS(ls_ddp_options, .zero = 3, .check_every = 1));
    for (int step = 0; step < 5; step++) {
        bool more = ls_rank() != 1 || step % 2 == 0;
        CHECK_OK(more ? backward(ddp, 1.0f) : ls_ddp_join(ddp, NULL, &more));
        CHECK(more);
    }
    ls_module_free(ddp);
}

/* ---- ranks that differ ----------------------------------------------------------------------- */

static void check_named(int zero, int other)
{
    char text[16];
    ls_module *ddp = ls_ddp_new(layers_new(), ls_world(),
                                LS_OPTIONS(ls_ddp_options, .zero = ls_rank() == 1 ? other : zero));
    CHECK_OK(ls_module_status(ddp));
    CHECK_STATUS(backward(ddp, 1.0f), LS_ERR_MISMATCH);
    (void)snprintf(text, sizeof text, "zero %d", other);
    CHECK_CONTAINS(ls_error_message(), text);
    CHECK_CONTAINS(ls_error_message(), "rank 1");
    ls_module_free(ddp);
}

DIST_TEST(a_rank_with_another_zero_is_named, 3)
{
    check_named(1, 2);
}

DIST_TEST(a_rank_with_divided_gradients_beside_divided_parameters_is_named, 3)
{
    check_named(3, 2);
}

DIST_TEST(a_rank_with_divided_parameters_beside_whole_ones_is_named, 3)
{
    check_named(0, 3);
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
    CHECK_OK(ls__reducer_divide(r, false, NULL));
    CHECK_OK(ls__reducer_scatter(r));
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

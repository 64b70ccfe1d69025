/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters that are sharded in place: first values and the norm of gradients are those of the
 * whole tensor, on any mesh. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "says.h"
#include "sharded.h"
#include "test.h"

enum { ROWS = 24, COLUMNS = 16 };

/* A parameter "weight" whose values are due. */
static ls_tensor *weight_of(ls_module **net)
{
    *net = ls_sequential_new(NULL, 0);
    ls_tensor *w =
        ls_module_add_param(*net, "weight", ls_zeros(LS_SHAPE(ROWS, COLUMNS), LS_FLOAT32));
    CHECK_OK(ls_fill_normal(w, 0.0, 1.0));
    return w;
}

static int coordinate_of(const ls_mesh *mesh, const char *axis)
{
    return ls_mesh_coordinate(mesh, axis);
}

/* The index in the whole of index `at` of part i of n, cut within groups. */
static int64_t in_whole(int64_t at, int i, int n, const int64_t *groups, int count)
{
    int64_t begin = 0;
    for (int g = 0; g < count; begin += groups[g++]) {
        if (at < groups[g] / n) {
            return begin + i * (groups[g] / n) + at;
        }
        at -= groups[g] / n;
    }
    CHECK(false);
    return -1;
}

typedef struct cut {
    int dim;
    int64_t groups[4];
    int count;
} cut;

static const cut cuts[] = {
    {0, {ROWS}, 1},     {1, {COLUMNS}, 1}, {0, {8, 8, 8}, 3},
    {0, {16, 4, 4}, 3}, {1, {8, 4, 4}, 3}, {-1, {COLUMNS}, 1},
};

static void check_part(ls_tensor *part, ls_tensor *whole, const cut *c, int i, int n)
{
    const int dim = c->dim < 0 ? 1 : c->dim;
    const int64_t rows = dim == 0 ? ROWS / n : ROWS, columns = dim == 1 ? COLUMNS / n : COLUMNS;
    const float *own = elements_of(part), *all = elements_of(whole);
    CHECK(ls_size(part, 0) == rows && ls_size(part, 1) == columns);
    CHECK(ls_is_contiguous(part));
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t k = 0; k < columns; k++) {
            const int64_t row = dim == 0 ? in_whole(r, i, n, c->groups, c->count) : r;
            const int64_t column = dim == 1 ? in_whole(k, i, n, c->groups, c->count) : k;
            CHECK(own[r * columns + k] == all[row * COLUMNS + column]);
        }
    }
}

/* `read`: the values were drawn before. */
static void check_cut(const cut *c, bool read, int i, int n)
{
    ls_module *net, *other;
    ls_tensor *part = weight_of(&net), *whole = weight_of(&other);
    if (read) {
        CHECK(elements_of(part) != NULL);
    }
    CHECK_OK(ls_tensor_shard(part, "tp", c->dim, c->count > 1 ? c->groups : NULL, c->count));
    CHECK(ls_placement_of(part, "tp") == LS_SHARDED(c->dim < 0 ? 1 : c->dim));
    check_part(part, whole, c, i, n);
    CHECK_OK(ls_fill_normal(part, 1.0, 2.0));
    CHECK_OK(ls_fill_normal(whole, 1.0, 2.0));
    check_part(part, whole, c, i, n);
    CHECK_OK(ls_fill_kaiming_normal(part, true));
    CHECK_OK(ls_fill_kaiming_normal(whole, true));
    check_part(part, whole, c, i, n);
    ls_module_free(net);
    ls_module_free(other);
}

DIST_TESTS(a_sharded_parameter_has_the_values_of_the_whole_on_, _ranks, 1, 2, 4)
{
    ls_mesh *mesh = mesh_of("tp=*");
    const int n = ls_world_size();
    for (size_t k = 0; k < sizeof cuts / sizeof cuts[0]; k++) {
        check_cut(&cuts[k], false, coordinate_of(mesh, "tp"), n);
        check_cut(&cuts[k], true, coordinate_of(mesh, "tp"), n);
    }
    CHECK_OK(ls_mesh_free(mesh));
}

/* Along two axes, in either dimension; and gradients have the part's shape. */
DIST_TEST(parameters_are_sharded_along_two_axes, 4)
{
    static const int dims[][2] = {{0, 1}, {1, 0}, {0, 0}};
    static const int64_t groups[] = {8, 8, 8};
    ls_mesh *mesh = mesh_of("ep=2,tp=2");
    const int e = coordinate_of(mesh, "ep"), t = coordinate_of(mesh, "tp");
    for (int k = 0; k < 3; k++) {
        ls_module *net, *other;
        ls_tensor *part = weight_of(&net), *whole = weight_of(&other);
        CHECK_OK(ls_tensor_shard(part, "ep", dims[k][0], dims[k][0] == 0 ? groups : NULL, 3));
        CHECK_OK(ls_tensor_shard(part, "tp", dims[k][1], NULL, 0));
        const int64_t rows = ls_size(part, 0), columns = ls_size(part, 1);
        CHECK(rows * columns == ROWS * COLUMNS / 4);
        const float *own = elements_of(part), *all = elements_of(whole);
        for (int64_t i = 0; i < rows * columns; i++) {
            int64_t row = i / columns, column = i % columns;
            if (k == 0) {
                row = in_whole(row, e, 2, groups, 3), column += t * columns;
            } else if (k == 1) {
                row += t * rows, column += e * columns;
            } else { /* the second cut is in what the first has left */
                row = in_whole(row + t * rows, e, 2, groups, 3);
            }
            CHECK(own[i] == all[row * COLUMNS + column]);
        }
        LS_SCOPE;
        {
            ls_tensor *sum = ls_sum(ls_mul(part, part));
            sum = ls_redistribute(sum, "ep", LS_PARTIAL, LS_INVARIANT);
            CHECK_OK(ls_backward(ls_redistribute(sum, "tp", LS_PARTIAL, LS_INVARIANT)));
            CHECK(ls_size(ls_grad(part), 0) == rows && ls_size(ls_grad(part), 1) == columns);
            CHECK(*(const float *)elements_of(ls_grad(part)) == 2 * own[0]);
        }
        ls_module_free(net);
        ls_module_free(other);
    }
    CHECK_OK(ls_mesh_free(mesh));
}

#define REFUSED(call, status, format)                                                              \
    do {                                                                                           \
        CHECK_STATUS(call, status);                                                                \
        CHECK_SAYS(ls_error_message(), format);                                                    \
    } while (0)

DIST_TEST(dimensions_and_groups_that_do_not_fit_are_refused, 2)
{
    static const int64_t odd[] = {3, 21}, few[] = {8, 8}, none[] = {0, 24};
    ls_module *net;
    ls_tensor *w = weight_of(&net);
    CHECK_STATUS(ls_tensor_shard(w, "tp", 0, NULL, 0), LS_ERR_STATE);
    ls_mesh *mesh = mesh_of("tp=2");
    CHECK_STATUS(ls_tensor_shard(w, "dp", 0, NULL, 0), LS_ERR_NOT_FOUND);
    REFUSED(ls_tensor_shard(w, "tp", 2, NULL, 0), LS_ERR_INVALID,
            SAYS("%s: it has no dimension %d"));
    CHECK_CONTAINS(ls_error_message(), "tensor_shard: parameter weight of [24,16]: it has");
    REFUSED(
        ls_tensor_shard(w, "tp", 0, odd, 2), LS_ERR_INVALID,
        SAYS("%s: dimension %d has %s%lld elements, which the %lld ranks of axis %s do not divide; "
             "give a model or an axis of another size"));
    CHECK_SAYS(ls_error_message(), "a group of ");
    CHECK_CONTAINS(ls_error_message(), "dimension 0 has a group of 3 elements, which the 2 ranks");
    REFUSED(
        ls_tensor_shard(w, "tp", 0, few, 2), LS_ERR_INVALID,
        SAYS("%s: the groups do not add up to dimension %d; give the sizes of all of them, of the "
             "tensor as it is now"));
    CHECK_STATUS(ls_tensor_shard(w, "tp", 0, none, 2), LS_ERR_INVALID);
    REFUSED(ls_tensor_shard(w, "tp", 0, odd, 17), LS_ERR_LIMIT,
            SAYS("%s: %d groups; give at most %d"));
    CHECK(ls_size(w, 0) == ROWS);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(a_part_of_too_many_runs_is_refused, 4)
{
    int64_t twos[12];
    for (int i = 0; i < 12; i++) {
        twos[i] = 2;
    }
    ls_module *net;
    ls_mesh *mesh = mesh_of("ep=2,tp=2");
    ls_tensor *w = weight_of(&net);
    CHECK_OK(ls_tensor_shard(w, "ep", 0, twos, 12));
    REFUSED(ls_tensor_shard(w, "tp", 1, twos, 8), LS_ERR_LIMIT,
            SAYS("%s: its part would have more than %d runs of indices; give fewer groups"));
    CHECK(ls_size(w, 1) == COLUMNS);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

#define IN_USE SAYS("%s: %s; shard parameters right after the model is built")

DIST_TEST(a_parameter_in_use_is_not_sharded, 2)
{
    ls_module *net;
    ls_mesh *mesh = mesh_of("tp=2");
    ls_tensor *w = weight_of(&net), *row = ls_slice(w, 0, 0, 2);
    REFUSED(ls_tensor_shard(w, "tp", 0, NULL, 0), LS_ERR_STATE, IN_USE);
    CHECK_SAYS(ls_error_message(), "a view of it, or a graph, exists");
    CHECK_STATUS(ls_tensor_shard(row, "tp", 0, NULL, 0), LS_ERR_STATE);
    ls_free(row);
    LS_SCOPE;
    {
        ls_tensor *square = ls_mul(w, w);
        CHECK_STATUS(ls_tensor_shard(w, "tp", 0, NULL, 0), LS_ERR_STATE);
        CHECK_SAYS(ls_error_message(), "a view of it, or a graph, exists");
        CHECK_STATUS(ls_tensor_shard(square, "tp", 0, NULL, 0), LS_ERR_STATE);
        CHECK_SAYS(ls_error_message(), "it is the result of an operation");
        CHECK_OK(ls_backward(ls_sum(square)));
    }
    CHECK_STATUS(ls_tensor_shard(w, "tp", 0, NULL, 0), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(), "it has a gradient");
    ls_tensor *frozen = ls_zeros(LS_SHAPE(4, 4), LS_FLOAT32), *view = ls_slice(frozen, 0, 0, 2);
    CHECK_STATUS(ls_tensor_shard(frozen, "tp", 0, NULL, 0), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(),
               "its elements are shared with another tensor, or lie in the program's memory");
    CHECK_STATUS(ls_tensor_shard(view, "tp", 0, NULL, 0), LS_ERR_STATE);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(an_optimizer_or_a_wrapper_fixes_the_size, 2)
{
    ls_module *net;
    ls_mesh *mesh = mesh_of("tp=2");
    ls_tensor *w = weight_of(&net);
    net = ls_ddp_new(net, ls_world(), NULL);
    CHECK_STATUS(ls_tensor_shard(w, "tp", 0, NULL, 0), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(), "its module is wrapped by ls_ddp_new");
    ls_module_free(net);
    w = weight_of(&net);
    ls_optim *optim = ls_adamw_new(net, NULL);
    CHECK_STATUS(ls_tensor_shard(w, "tp", 0, NULL, 0), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(), "an optimizer was made over it");
    ls_optim_free(optim);
    ls_module_free(net);
    w = weight_of(&net);
    CHECK_OK(ls_tensor_shard(w, "tp", 0, NULL, 0));
    REFUSED(ls_tensor_shard(w, "tp", 0, NULL, 0), LS_ERR_PLACEMENT,
            SAYS("%s is %s on axis %s already; shard it once along each axis"));
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- the whole again ------------------------------------------------------------------------ */

static void check_same(ls_tensor *whole, ls_tensor *want)
{
    CHECK_OK(ls_tensor_status(whole));
    CHECK(ls_dtype_of(whole) == ls_dtype_of(want) && ls_ndim(whole) == ls_ndim(want));
    for (int d = 0; d < ls_ndim(want); d++) {
        CHECK(ls_size(whole, d) == ls_size(want, d));
    }
    CHECK(memcmp(elements_of(whole), elements_of(want),
                 (size_t)ls_numel(want) * ls_dtype_size(ls_dtype_of(want))) == 0);
    CHECK(!ls_requires_grad(whole));
}

static void check_whole(const char *axes)
{
    ls_mesh *mesh = mesh_of(axes);
    ls_module *net = model_of(mesh, 1), *whole = model_of(NULL, 1);
    ls_param parts[WAYS], wanted[WAYS];
    CHECK_INT(ls_module_params(net, parts, WAYS), WAYS);
    CHECK_INT(ls_module_params(whole, wanted, WAYS), WAYS);
    for (int i = 0; i < WAYS; i++) {
        LS_SCOPE;
        check_same(ls_tensor_whole(parts[i].value), wanted[i].value);
        check_same(ls_tensor_whole(ls_detach(parts[i].value)), wanted[i].value);
    }
    ls_module_free(net);
    ls_module_free(whole);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(the_whole_of_a_parameter_is_what_was_sharded_on_tp_1, 1)
{
    check_whole("tp=1");
}

DIST_TEST(the_whole_of_a_parameter_is_what_was_sharded_on_tp_2, 2)
{
    check_whole("tp=2");
}

DIST_TEST(the_whole_of_a_parameter_is_what_was_sharded_on_tp_4, 4)
{
    check_whole("tp=4");
}

DIST_TEST(the_whole_of_a_parameter_is_what_was_sharded_on_dp_2_and_tp_2, 4)
{
    check_whole("dp=2,tp=2");
}

/* Along both axes, in either dimension and twice along one. */
DIST_TEST(the_whole_of_a_parameter_is_what_was_sharded_on_ep_2_and_tp_2, 4)
{
    ls_module *net, *other;
    check_whole("ep=2,tp=2");
    ls_mesh *mesh = mesh_of("ep=2,tp=2");
    ls_tensor *part = weight_of(&net), *whole = weight_of(&other);
    CHECK_OK(ls_tensor_shard(part, "tp", 0, (const int64_t[]){8, 8, 8}, 3));
    CHECK_OK(ls_tensor_shard(part, "ep", 0, NULL, 0));
    check_same(ls_tensor_whole(part), whole);
    ls_module_free(net);
    ls_module_free(other);
    CHECK_OK(ls_mesh_free(mesh));
}

/* Parts that a program has made, of several sizes. */
DIST_TEST(the_whole_of_parts_that_were_said, 2)
{
    enum { SPLIT = 10 };
    ls_mesh *mesh = mesh_of("tp=2");
    const int i = coordinate_of(mesh, "tp");
    ls_module *net, *other;
    ls_tensor *whole = weight_of(&other);
    net = ls_sequential_new(NULL, 0);
    ls_tensor *own = ls_module_add_param(
        net, "weight", ls_zeros(LS_SHAPE(i == 0 ? SPLIT : ROWS - SPLIT, COLUMNS), LS_FLOAT32));
    CHECK_OK(ls_tensor_set_part(own, LS_SHAPE(ROWS, COLUMNS), LS_SHAPE(i == 0 ? 0 : SPLIT, 0)));
    CHECK_OK(ls_fill_normal(own, 0.0, 1.0));
    CHECK_STATUS(ls_tensor_status(ls_tensor_whole(own)), LS_ERR_MISMATCH); /* of one part */
    CHECK_OK(ls_place(own, "tp", LS_SHARDED(0)));
    check_same(ls_tensor_whole(own), whole);
    ls_module_free(net);
    ls_module_free(other);
    CHECK_OK(ls_mesh_free(mesh));
}

/* One part is said to be the other rank's as well; or two parameters are mixed up. */
DIST_TEST(parts_that_make_up_no_tensor_are_refused, 2)
{
    ls_mesh *mesh = mesh_of("tp=2");
    ls_module *net = ls_sequential_new(NULL, 0), *model = model_of(mesh, 1);
    ls_tensor *half =
        ls_module_add_param(net, "half", ls_zeros(LS_SHAPE(ROWS / 2, COLUMNS), LS_FLOAT32));
    CHECK_OK(ls_tensor_set_part(half, LS_SHAPE(ROWS, COLUMNS), LS_SHAPE(0, 0)));
    CHECK_OK(ls_place(half, "tp", LS_SHARDED(0)));
    CHECK_STATUS(ls_tensor_status(ls_tensor_whole(half)), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(),
               "tensor_whole: the %d parts of %s do not make up one tensor of %s; pass the same "
               "parameter on all ranks, and give each rank the part of its own, as "
               "ls_tensor_shard does");
    CHECK_CONTAINS(ls_error_message(), "the 2 parts of argument 1 (parameter half)");
    ls_tensor *mixed = ls_module_param(model, ls_rank() == 0 ? "row" : "conv1d");
    CHECK_STATUS(ls_tensor_status(ls_tensor_whole(mixed)), LS_ERR_MISMATCH);
    mixed = ls_module_param(model, ls_rank() == 0 ? "row" : "experts");
    CHECK_STATUS(ls_tensor_status(ls_tensor_whole(mixed)), LS_ERR_MISMATCH);
    ls_module_free(net);
    ls_module_free(model);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(only_parameters_have_a_whole, 2)
{
    ls_mesh *mesh = mesh_of("tp=2");
    ls_module *net;
    ls_tensor *w = weight_of(&net);
    CHECK_OK(ls_tensor_shard(w, "tp", 0, NULL, 0));
    LS_SCOPE;
    ls_tensor *twice = ls_add(w, w);
    CHECK_STATUS(ls_tensor_status(ls_tensor_whole(twice)), LS_ERR_PLACEMENT);
    CHECK_SAYS(ls_error_message(),
               "tensor_whole: on axis %s %s is %s and no part that ls_tensor_shard has made; "
               "convert results of operations with ls_redistribute");
    CHECK_CONTAINS(ls_error_message(), "argument 1 is sharded(0)");
    ls_tensor *x = ls_ones(LS_SHAPE(2), LS_FLOAT32);
    CHECK_OK(ls_place(x, "tp", LS_VARYING));
    CHECK_STATUS(ls_tensor_status(ls_tensor_whole(x)), LS_ERR_PLACEMENT);
    CHECK_STATUS(ls_tensor_status(ls_tensor_whole(NULL)), LS_ERR_INVALID);
    CHECK_STATUS(ls_tensor_status(ls_tensor_whole(ls_add(x, w))), LS_ERR_INVALID);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(elements_beside_the_graph_are_placed_like_others, 2)
{
    ls_module *net;
    ls_tensor *w = weight_of(&net), *x = ls_ones(LS_SHAPE(4, 2), LS_FLOAT32);
    CHECK_OK(ls_place_like(x, w));
    ls_mesh *mesh = mesh_of("dp=1,tp=2");
    CHECK_OK(ls_tensor_shard(w, "tp", 1, NULL, 0));
    CHECK_OK(ls_place_like(x, w));
    CHECK(ls_placement_of(x, "tp") == LS_SHARDED(1) && ls_placement_of(x, "dp") == LS_INVARIANT);
    LS_SCOPE;
    CHECK_STATUS(ls_place_like(ls_ones(LS_SHAPE(4), LS_FLOAT32), w), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "place: sharded(1) of a tensor of [4]; give one of");
    CHECK_STATUS(ls_place_like(ls_redistribute(w, "tp", LS_SHARDED(1), LS_INVARIANT), w),
                 LS_ERR_PLACEMENT);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

/* The elements of all ranks, and the whole. */
DIST_TEST(a_whole_takes_the_memory_of_two, 4)
{
    enum { BYTES = 4 * 1024 * 1024 };
    ls_mesh *mesh = mesh_of("tp=4");
    ls_module *net = ls_sequential_new(NULL, 0);
    ls_tensor *w = ls_module_add_param(net, "w", ls_zeros(LS_SHAPE(1024, 1024), LS_FLOAT32));
    ls_memory_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    CHECK_OK(ls_tensor_shard(w, "tp", 1, NULL, 0));
    CHECK_OK(ls_memory_reset_peaks());
    CHECK_OK(ls_memory_get_stats(&before));
    for (int i = 0; i < 3; i++) {
        LS_SCOPE;
        CHECK_OK(ls_tensor_status(ls_tensor_whole(w)));
    }
    CHECK_OK(ls_memory_get_stats(&after));
    CHECK(after.allocated == before.allocated);
    const size_t most = (test_on_device() ? 3 : 2) * (size_t)BYTES; /* put together on the host */
    CHECK(after.allocated_peak <= before.allocated + most + BYTES / 2);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- the norm of the gradients -------------------------------------------------------------- */

static void check_norm(const char *axes)
{
    ls_mesh *mesh = mesh_of(axes);
    ls_module *net = model_of(mesh, 1), *whole = model_of(NULL, 1);
    double norm = 0.0, want = 0.0, copies[8];
    CHECK_OK(run_backward(net, mesh));
    CHECK_OK(run_backward(whole, mesh));
    CHECK_OK(ls_clip_grad_norm(whole, INFINITY, NULL, &want));
    CHECK_OK(ls_clip_grad_norm(net, 0.5, NULL, &norm));
    CHECK_NEAR(norm, want, 1e-6 * want);
    CHECK_OK(ls_all_gather(ls_world(), &norm, copies, 1, LS_FLOAT64, NULL, NULL));
    for (int i = 0; i < ls_world_size(); i++) {
        CHECK(memcmp(&copies[i], &norm, sizeof norm) == 0);
    }
    CHECK_OK(ls_clip_grad_norm(net, INFINITY, NULL, &norm));
    CHECK_NEAR(norm, 0.5, 1e-3); /* gradients of bfloat16 are rounded */
    ls_module_free(net);
    ls_module_free(whole);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(the_norm_of_sharded_gradients_is_that_of_one_rank_on_tp_1, 1)
{
    check_norm("tp=1");
}

DIST_TEST(the_norm_of_sharded_gradients_is_that_of_one_rank_on_tp_2, 2)
{
    check_norm("tp=2");
}

DIST_TEST(the_norm_of_sharded_gradients_is_that_of_one_rank_on_tp_4, 4)
{
    check_norm("tp=4");
}

DIST_TEST(the_norm_of_sharded_gradients_is_that_of_one_rank_on_dp_2_and_tp_2, 4)
{
    check_norm("dp=2,tp=2");
}

DIST_TEST(the_norm_of_sharded_gradients_is_that_of_one_rank_on_ep_2_and_tp_2, 4)
{
    check_norm("ep=2,tp=2");
}

/* A replicated parameter whose part is said to be this rank's own counts on each of them. */
DIST_TEST(a_copy_that_is_placed_as_a_part_is_counted_twice_and_seen, 2)
{
    ls_mesh *mesh = mesh_of("tp=2");
    ls_module *net;
    ls_tensor *w = weight_of(&net);
    double norm = 0.0, twice = 0.0;
    LS_SCOPE;
    {
        CHECK_OK(ls_backward(ls_sum(ls_mul(w, w))));
    }
    CHECK_OK(ls_clip_grad_norm(net, INFINITY, NULL, &norm));
    CHECK_OK(ls_place(w, "tp", LS_SHARDED(0)));
    CHECK_OK(ls_clip_grad_norm(net, INFINITY, NULL, &twice));
    CHECK_NEAR(twice, sqrt(2.0) * norm, 1e-6 * norm);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(over_a_group_the_axes_that_it_lacks_are_added_before, 4)
{
    ls_mesh *mesh = mesh_of("pp=2,tp=2");
    ls_module *net;
    ls_tensor *w = weight_of(&net);
    double norm = 0.0, whole = 0.0;
    LS_SCOPE;
    {
        CHECK_OK(ls_backward(ls_sum(ls_mul(w, w))));
    }
    CHECK_OK(ls_clip_grad_norm(net, INFINITY, NULL, &whole));
    ls_module_free(net);
    w = weight_of(&net);
    CHECK_OK(ls_tensor_shard(w, "tp", 0, NULL, 0));
    LS_SCOPE;
    {
        ls_tensor *sum = ls_sum(ls_mul(w, w));
        CHECK_OK(ls_backward(ls_redistribute(sum, "tp", LS_PARTIAL, LS_INVARIANT)));
    }
    ls_group *stages = ls_mesh_group(mesh, "pp");
    CHECK_OK(ls_clip_grad_norm(net, INFINITY,
                               LS_OPTIONS(ls_clip_grad_norm_options, .group = stages), &norm));
    CHECK_NEAR(norm, sqrt(2.0) * whole, 1e-6 * whole); /* two stages with the same */
    CHECK_OK(ls_clip_grad_norm(net, INFINITY,
                               LS_OPTIONS(ls_clip_grad_norm_options, .group = ls_world()), &norm));
    CHECK_NEAR(norm, sqrt(2.0) * whole, 1e-6 * whole);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(a_sharded_gradient_that_is_not_finite_is_named_on_all_ranks, 4)
{
    ls_mesh *mesh = mesh_of("dp=2,tp=2");
    const int tp = coordinate_of(mesh, "tp");
    ls_module *net = model_of(mesh, 1);
    double norm = 0.0;
    CHECK_OK(run_backward(net, mesh));
    if (tp == 1) {
        ls_tensor *row = ls_module_param(net, "row");
        put_float(ls_grad(row), 3, NAN);
    }
    CHECK_STATUS(ls_clip_grad_norm(net, 0.1, NULL, &norm), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "rank %d of axis %s is the first; here it is ");
    CHECK_CONTAINS(ls_error_message(), "rank 1 of axis tp is the first; here it is not finite in");
    CHECK_CONTAINS(ls_error_message(),
                   tp == 1 ? "in 1 of the parameters, first in row" : "in 0 of the parameters)");
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

TEST_MAIN

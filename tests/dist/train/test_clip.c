/* SPDX-License-Identifier: Apache-2.0 */
/* Clipping over a group whose ranks hold different parameters: the norm of the gradients of all of
 * them against a float64 twin, replicated parameters once, the same bits on every rank. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "test.h"

enum { SHARED = 7, OWN = 40 };

/* Gradient i of a parameter, of the copies on all ranks or of one rank's own. A bfloat16 holds it
 * exactly. */
static float gradient_at(int rank, int64_t i)
{
    return (float)(0.25 * (double)((3 * i + 5 * rank) % 13) - 1.5);
}

static ls_tensor *nothing(ls_module *m, ls_tensor *x)
{
    (void)m;
    return x;
}

static const ls_module_class model_class = LS_MODULE_CLASS(.name = "model", .forward = nothing);

/* A parameter whose gradient is gradient_at(rank, …). */
static void add(ls_module *m, const char *name, int rank, int64_t count, ls_dtype dtype)
{
    float gradient[256];
    CHECK(count <= 256);
    for (int64_t i = 0; i < count; i++) {
        gradient[i] = gradient_at(rank, i);
    }
    ls_tensor *value = ls_module_add_param(m, name, ls_ones(LS_SHAPE(count), dtype));
    ls_tensor *by = ls_from_data(gradient, LS_SHAPE(count), LS_FLOAT32);
    CHECK_OK(ls_backward(ls_sum(ls_mul(ls_cast(value, LS_FLOAT32), by))));
}

/* Rank r has 40 + r elements of its own, some of them bfloat16, between two replicated
 * parameters. */
static ls_module *make_model(int rank)
{
    LS_SCOPE;
    ls_module *m = ls_module_new(sizeof *m, &model_class);
    add(m, "norm_weight", 100, SHARED, LS_FLOAT32);
    add(m, "own", rank, OWN + rank, rank % 2 == 0 ? LS_FLOAT32 : LS_BFLOAT16);
    add(m, "norm_bias", 101, SHARED, LS_FLOAT32);
    CHECK_OK(ls_module_status(m));
    return m;
}

static double squares(int rank, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)gradient_at(rank, i) * (double)gradient_at(rank, i);
    }
    return sum;
}

/* The sequential twin: one model with the parameters of ranks [0, ranks). */
static double twin(int first, int ranks)
{
    double sum = squares(100, SHARED) + squares(101, SHARED);
    for (int r = first; r < first + ranks; r++) {
        sum += squares(r, OWN + r);
    }
    return sqrt(sum);
}

static bool select_norms(void *arg, const char *name, const ls_tensor *param)
{
    CHECK(arg == &model_class && ls_shape_of(param).ndim == 1);
    return strncmp(name, "norm_", 5) == 0;
}

#define OVER(over)                                                                                 \
    LS_OPTIONS(ls_clip_grad_norm_options, .group = over, .replicated = select_norms,               \
               .arg = (void *)(uintptr_t)&model_class)

/* All ranks of the group have the same bits, and the twin's norm. */
static void check_norm(ls_group *group, double norm, double want)
{
    double all[8];
    CHECK(fabs(norm - want) <= 1e-14 * want);
    CHECK_OK(ls_all_gather(group, &norm, all, 1, LS_FLOAT64, NULL, NULL));
    for (int i = 0; i < ls_group_size(group); i++) {
        CHECK(memcmp(&all[i], &norm, sizeof norm) == 0);
    }
}

/* Element i of the gradient of parameter number `param`. */
static double grad_at(ls_module *m, int param, int64_t i)
{
    ls_param params[3];
    (void)ls_module_params(m, params, 3);
    LS_SCOPE;
    float wide[256];
    ls_tensor *grad = ls_cast(ls_grad(params[param].value), LS_FLOAT32);
    CHECK_OK(ls_copy_out(grad, wide, (size_t)ls_numel(grad) * sizeof *wide));
    return (double)wide[i];
}

DIST_TEST(the_norm_over_a_group_is_that_of_a_sequential_twin, 4)
{
    const int rank = ls_rank();
    ls_module *m = make_model(rank);
    const double want = twin(0, 4);
    double norm = 0.0;
    CHECK_OK(ls_clip_grad_norm(m, INFINITY, OVER(ls_world()), &norm));
    check_norm(ls_world(), norm, want);
    CHECK_NEAR(grad_at(m, 1, 2), (double)gradient_at(rank, 2), 0.0); /* nothing is scaled */
    CHECK_OK(ls_clip_grad_norm(m, 0.5, OVER(ls_world()), &norm));
    check_norm(ls_world(), norm, want);
    const double factor = 0.5 / want;
    CHECK_NEAR(grad_at(m, 0, 3), factor * (double)gradient_at(100, 3), 1e-7);
    CHECK_NEAR(grad_at(m, 1, 2), factor * (double)gradient_at(rank, 2),
               rank % 2 == 0 ? 1e-7 : 2e-4); /* a bfloat16 has 8 bits */
    CHECK_NEAR(grad_at(m, 2, 6), factor * (double)gradient_at(101, 6), 1e-7);
    ls_module_free(m);
}

/* Without the list every copy counts, as for parameters that differ. */
DIST_TEST(without_a_list_of_replicated_parameters_each_copy_counts, 3)
{
    ls_module *m = make_model(ls_rank());
    const double copies = squares(100, SHARED) + squares(101, SHARED), once = twin(0, 3);
    double norm = 0.0;
    CHECK_OK(ls_clip_grad_norm(m, INFINITY,
                               LS_OPTIONS(ls_clip_grad_norm_options, .group = ls_world()), &norm));
    check_norm(ls_world(), norm, sqrt(once * once + 2 * copies));
    ls_module_free(m);
}

DIST_TEST(each_half_of_the_world_has_a_norm_of_its_own, 4)
{
    const int half = ls_rank() / 2;
    ls_group *group = NULL;
    ls_module *m = make_model(ls_rank());
    double norm = 0.0;
    CHECK_OK(ls_group_split(ls_world(), half, ls_rank(), half == 0 ? "low" : "high", &group));
    CHECK_OK(ls_clip_grad_norm(m, INFINITY, OVER(group), &norm));
    check_norm(group, norm, twin(2 * half, 2));
    ls_module_free(m);
    CHECK_OK(ls_group_free(group));
}

DIST_TEST(a_gradient_that_is_not_finite_is_named_on_all_ranks_and_changes_nothing, 3)
{
    ls_module *m = make_model(ls_rank());
    double norm = 0.0;
    if (ls_rank() == 2) {
        ls_param params[3];
        CHECK_INT(ls_module_params(m, params, 3), 3);
        put_float(ls_grad(params[1].value), 5, NAN);
    }
    CHECK_STATUS(ls_clip_grad_norm(m, 0.1, OVER(ls_world()), &norm), LS_ERR_INVALID);
    CHECK(isnan(norm));
    CHECK_CONTAINS(ls_error_message(),
                   "rank 2 of the group is the first; here it is not finite in");
    CHECK_CONTAINS(ls_error_message(), ls_rank() == 2 ? "in 1 of the parameters, first in own"
                                                      : "in 0 of the parameters)");
    CHECK_NEAR(grad_at(m, 0, 3), (double)gradient_at(100, 3), 0.0);
    ls_module_free(m);
}

DIST_TEST(replicated_parameters_need_a_group, 1)
{
    ls_module *m = make_model(0);
    CHECK_STATUS(ls_clip_grad_norm(m, 1.0, OVER(NULL), NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "replicated is set and options->group is not");
    ls_module_free(m);
}

TEST_MAIN

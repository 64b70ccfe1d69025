/* SPDX-License-Identifier: Apache-2.0 */
/* ls_ddp_new on a mesh: over which axes gradients are summed and by what they are divided, against
 * one process with the whole batch. */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "says.h"
#include "test.h"

enum { BATCH = 8, TIME = 4, WIDTH = 8 };

/* norm (a weight), column, row: on SHARDED(1) activations [B,T,W] with `sequence`. */
typedef struct net {
    ls_module base;
    ls_tensor *norm, *up, *down;
    bool sequence, parallel;
} net;

static ls_tensor *net_forward(ls_module *m, ls_tensor *x)
{
    const net *self = (net *)m;
    ls_tensor *h = ls_mul(x, self->norm);
    if (self->parallel) {
        h = ls_redistribute(h, "tp", self->sequence ? LS_SHARDED(1) : LS_INVARIANT, LS_REPLICATED);
    }
    h = ls_linear(ls_gelu(ls_linear(h, self->up, NULL), LS_GELU_ERF), self->down, NULL);
    if (self->parallel) {
        h = ls_redistribute(h, "tp", LS_PARTIAL, self->sequence ? LS_SHARDED(1) : LS_INVARIANT);
    }
    h = ls_mul(h, self->norm);
    return self->parallel && self->sequence ? ls_redistribute(h, "tp", LS_SHARDED(1), LS_INVARIANT)
                                            : h;
}

static const ls_module_class net_class = LS_MODULE_CLASS(.name = "net", .forward = net_forward);

static float weight_at(int64_t i, int64_t j)
{
    return (float)((i * 5 + j * 3) % 11 - 5) / 16.0f;
}

/* Rows from `row` on and columns from `column` on of a matrix of weight_at. */
static ls_tensor *matrix(int64_t rows, int64_t row, int64_t columns, int64_t column)
{
    ls_tensor *t = ls_empty(LS_SHAPE(rows, columns), LS_FLOAT32);
    float *at = edit_elements(t);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            at[i * columns + j] = weight_at(row + i, column + j);
        }
    }
    put_elements(t, at);
    return t;
}

static net *net_new(int part, int parts, bool sequence)
{
    net *n = ls_module_new(sizeof *n, &net_class);
    const int64_t own = WIDTH / parts;
    n->parallel = parts > 1;
    n->sequence = sequence;
    n->norm = ls_module_add_param(&n->base, "norm", ls_full(LS_SHAPE(WIDTH), LS_FLOAT32, 0.75));
    n->up = ls_module_add_param(&n->base, "up", matrix(own, part * own, WIDTH, 0));
    n->down = ls_module_add_param(&n->base, "down", matrix(WIDTH, 0, own, part * own));
    if (n->parallel) {
        CHECK_OK(ls_place(n->up, "tp", LS_SHARDED(0)));
        CHECK_OK(ls_place(n->down, "tp", LS_SHARDED(1)));
        CHECK_OK(ls_place(n->norm, "tp", sequence ? LS_REPLICATED : LS_INVARIANT));
    }
    return n;
}

static ls_tensor *input(int64_t from, int64_t count)
{
    ls_tensor *x = ls_empty(LS_SHAPE(count, TIME, WIDTH), LS_FLOAT32);
    float *at = edit_elements(x);
    for (int64_t i = 0; i < count * TIME * WIDTH; i++) {
        at[i] = sinf((float)(from * TIME * WIDTH + i));
    }
    put_elements(x, at);
    return x;
}

/* The elements of a tensor that this process has of the one that `whole` has all of. */
static void check_close(ls_tensor *own, ls_tensor *whole, int dim, int part)
{
    ls_tensor *same = dim < 0 ? whole
                              : ls_contiguous(ls_slice(whole, dim, part * ls_size(own, dim),
                                                       (part + 1) * ls_size(own, dim)));
    const float *a = elements_of(own), *b = elements_of(same);
    CHECK(ls_numel(own) == ls_numel(same));
    for (int64_t i = 0; i < ls_numel(own); i++) {
        if (!(fabsf(a[i] - b[i]) <= 2e-6f)) {
            test_fail(__FILE__, __LINE__, "element %lld is %g, want %g", (long long)i, (double)a[i],
                      (double)b[i]);
        }
    }
}

static ls_tensor *loss_of(ls_module *m, ls_tensor *x)
{
    ls_tensor *y = ls_forward(m, x);
    return ls_mean(ls_mul(y, y));
}

/* dp=2,tp=2: the gradients are those of the whole batch in one process; also of parameters that are
 * frozen and thawed after the wrapper was made. */
static void check_step(bool sequence, bool thaws)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "dp=2,tp=2", &mesh));
    const int dp = ls_mesh_coordinate(mesh, "dp"), tp = ls_mesh_coordinate(mesh, "tp");
    net *own = net_new(tp, 2, sequence);
    ls_module *ddp =
        ls_ddp_new(&own->base, ls_world(), LS_OPTIONS(ls_ddp_options, .batch_axes = "dp"));
    CHECK(ddp != NULL);
    ls_tensor *const params[] = {own->norm, own->up, own->down};
    for (size_t i = 0; thaws && i < sizeof params / sizeof *params; i++) {
        CHECK(ls_set_requires_grad(params[i], false) != NULL);
        CHECK(ls_set_requires_grad(params[i], true) != NULL);
    }
    {
        LS_SCOPE;
        ls_tensor *x = input(dp * BATCH / 2, BATCH / 2);
        if (sequence) {
            x = ls_redistribute(x, "tp", LS_INVARIANT, LS_SHARDED(1));
        }
        ls_tensor *loss = loss_of(ddp, x);
        CHECK(ls_placement_of(loss, "dp") == LS_VARYING);
        CHECK(ls_placement_of(loss, "tp") == LS_INVARIANT);
        CHECK_OK(ls_backward(loss));
        CHECK_OK(ls_mesh_use(NULL));
        net *whole = net_new(0, 1, false);
        CHECK_OK(ls_backward(loss_of(&whole->base, input(0, BATCH))));
        check_close(ls_grad(own->norm), ls_grad(whole->norm), -1, 0);
        check_close(ls_grad(own->up), ls_grad(whole->up), 0, tp);
        check_close(ls_grad(own->down), ls_grad(whole->down), 1, tp);
        ls_module_free(&whole->base);
        CHECK_OK(ls_mesh_use(mesh));
    }
    ls_module_free(ddp);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(gradients_of_tensor_and_data_parallelism_are_those_of_one_process, 4)
{
    check_step(false, false);
}

DIST_TEST(norms_under_sequence_parallelism_are_summed_over_the_tensor_axis, 4)
{
    check_step(true, false);
}

DIST_TEST(ranks_of_a_tensor_group_with_other_samples_are_named, 4)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "dp=2,tp=2", &mesh));
    net *n = net_new(ls_mesh_coordinate(mesh, "tp"), 2, false);
    ls_module *ddp =
        ls_ddp_new(&n->base, ls_world(), LS_OPTIONS(ls_ddp_options, .batch_axes = "dp"));
    {
        LS_SCOPE;
        ls_tensor *y = ls_forward(ddp, input(ls_rank() * 2, 2)); /* as if all were data ranks */
        CHECK_STATUS(ls_tensor_status(y), LS_ERR_MISMATCH);
        CHECK_SAYS(ls_error_message(),
                   "%s: the inputs of rank %d of axis %s are not those of rank 0, and the ranks of "
                   "this axis work on the same samples; let them read the part of the data that "
                   "their coordinates in the axes of batches say, or ls_place what differs");
    }
    ls_module_free(ddp);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(axes_of_batches_are_checked, 4)
{
    ls_mesh *mesh = NULL;
    net *n = net_new(0, 1, false);
    CHECK(ls_ddp_new(&n->base, ls_world(), LS_OPTIONS(ls_ddp_options, .batch_axes = "dp")) == NULL);
    CHECK_SAYS(ls_error_message(),
               "batch_axes is \"%.100s\", and no mesh is in force; make one with "
               "ls_mesh_new before");
    CHECK_OK(ls_mesh_new(ls_world(), "dp=2,tp=2", &mesh));
    CHECK(ls_ddp_new(&n->base, ls_world(), LS_OPTIONS(ls_ddp_options, .batch_axes = "dp,cp")) ==
          NULL);
    CHECK_SAYS(ls_error_message(),
               "batch_axes is \"%.100s\"; \"%.*s\" is no axis of the mesh along "
               "which the group \"%s\" extends");
    CHECK(ls_ddp_new(&n->base, ls_mesh_group(mesh, "dp"),
                     LS_OPTIONS(ls_ddp_options, .batch_axes = "tp")) == NULL);
    CHECK_SAYS(ls_error_message(),
               "batch_axes is \"%.100s\"; \"%.*s\" is no axis of the mesh along "
               "which the group \"%s\" extends");
    const int odd[] = {0, 3};
    ls_group *across = NULL;
    CHECK_OK(ls_group_new(ls_world(), odd, 2, "across", &across));
    if (across != NULL) {
        CHECK(ls_ddp_new(&n->base, across, LS_OPTIONS(ls_ddp_options, .batch_axes = "dp")) == NULL);
        CHECK_SAYS(ls_error_message(),
                   "batch_axes is \"%.100s\", and the ranks of group \"%s\" are not all those "
                   "along some axes of the mesh; give the group of a mesh");
        CHECK_OK(ls_group_free(across));
    }
    ls_module_free(&n->base);
    CHECK_OK(ls_mesh_free(mesh));
}

/* norm is frozen, down is frozen and divided: down lacks values on the second replica, whose parts
 * are those of the first one. */
DIST_TEST(a_divided_parameter_that_is_frozen_is_sent_to_its_replicas, 4)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "dp=2,tp=2", &mesh));
    const int dp = ls_mesh_coordinate(mesh, "dp"), tp = ls_mesh_coordinate(mesh, "tp");
    net *own = net_new(tp, 2, false);
    CHECK(ls_set_requires_grad(own->norm, false) != NULL);
    CHECK(ls_set_requires_grad(own->down, false) != NULL);
    CHECK_OK(dp == 1 ? ls_fill_normal(own->down, 9.0, 0.0) : LS_OK);
    ls_module *ddp =
        ls_ddp_new(&own->base, ls_world(), LS_OPTIONS(ls_ddp_options, .batch_axes = "dp"));
    CHECK(ddp != NULL);
    {
        LS_SCOPE;
        net *whole = net_new(0, 1, false);
        check_close(own->down, whole->down, 1, tp);
        CHECK_OK(ls_backward(loss_of(ddp, input(dp * BATCH / 2, BATCH / 2))));
        CHECK_OK(ls_mesh_use(NULL));
        CHECK_OK(ls_backward(loss_of(&whole->base, input(0, BATCH))));
        check_close(ls_grad(own->up), ls_grad(whole->up), 0, tp);
        ls_module_free(&whole->base);
        CHECK_OK(ls_mesh_use(mesh));
    }
    ls_module_free(ddp);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(a_parameter_that_is_thawed_is_averaged_again, 4)
{
    check_step(true, true);
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* A model of which each rank has only a part, under DDP, against one process that has all of it.
 *
 *     rank         0        1        2        3
 *     has          dense    dense    dense    dense        summed over all, divided by 4
 *                  expert0  expert1  expert0  expert1      summed over 2, divided by 4
 *     sees         samples of its own, for its expert
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "replicas.h"
#include "says.h"
#include "test.h"

enum { RANKS = 4, IN = 6, HIDDEN = 16, OUT = 3, SHARE = 5, STEPS = 30 };

typedef struct mixture {
    ls_module base;
    ls_module *dense, *expert[2], *head;
    int only; /* expert; -1: both are there */
    int used;
} mixture;

static ls_tensor *mixture_forward(ls_module *m, ls_tensor *x)
{
    mixture *self = (mixture *)m;
    ls_tensor *h = ls_relu(ls_forward(self->dense, x));
    return ls_forward(self->head, ls_forward(self->expert[self->used], h));
}

static const ls_module_class mixture_class =
    LS_MODULE_CLASS(.name = "mixture", .forward = mixture_forward);

/* Numbers of its own, which do not depend on the order of creation. */
static void fill(ls_module *m, int stream)
{
    ls_param params[2];
    const int count = ls_module_params(m, params, 2);
    for (int i = 0; i < count; i++) {
        float *data = edit_elements(params[i].value);
        for (int64_t k = 0; k < ls_numel(params[i].value); k++) {
            data[k] = 0.3f * ls_random_normal(9, (uint64_t)(stream * 2 + i), (uint64_t)k);
        }
        put_elements(params[i].value, data);
    }
}

/* `only`: the one expert it has; -1: both. */
static mixture *mixture_new(int only)
{
    mixture *n = ls_module_new(sizeof *n, &mixture_class);
    n->only = only;
    n->dense = ls_module_add(&n->base, "dense", ls_linear_new(IN, HIDDEN, NULL));
    fill(n->dense, 0);
    for (int e = 0; e < 2; e++) {
        if (only < 0 || only == e) {
            n->expert[e] = ls_module_add(&n->base, e == 0 ? "expert0" : "expert1",
                                         ls_linear_new(HIDDEN, HIDDEN, NULL));
            fill(n->expert[e], 1 + e);
        }
    }
    n->head = ls_module_add(&n->base, "head", ls_linear_new(HIDDEN, OUT, NULL));
    fill(n->head, 3);
    CHECK_OK(ls_module_status(&n->base));
    return n;
}

/* The mean loss of a rank's share. */
static ls_tensor *share_loss(ls_module *net, mixture *n, int rank, int step)
{
    float xs[SHARE * IN];
    int32_t ys[SHARE];
    for (int i = 0; i < SHARE * IN; i++) {
        xs[i] = ls_random_normal(5, (uint64_t)(step * RANKS + rank), (uint64_t)i);
    }
    for (int i = 0; i < SHARE; i++) {
        ys[i] = (int32_t)(fabsf(xs[i * IN]) * 10) % OUT;
    }
    n->used = rank % 2;
    return ls_cross_entropy(ls_forward(net, ls_from_data(xs, LS_SHAPE(SHARE, IN), LS_FLOAT32)),
                            ls_from_data(ys, LS_SHAPE(SHARE), LS_INT32), NULL);
}

static void place_expert(void *arg, const char *name, const ls_tensor *param, ls_ddp_place *place)
{
    (void)param;
    if (strncmp(name, "expert", 6) == 0) {
        place->reduce_group = arg;
    }
}

/* Every parameter of `part` is the one of the same name in `whole`, to rounding. */
static void check_equal(ls_module *part, ls_module *whole)
{
    ls_param mine[8], all[8];
    const int count = ls_module_params(part, mine, 8), total = ls_module_params(whole, all, 8);
    int found = 0;
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < total; k++) {
            if (strcmp(mine[i].name, all[k].name) != 0) {
                continue;
            }
            found++;
            const float *a = elements_of(mine[i].value), *b = elements_of(all[k].value);
            for (int64_t e = 0; e < ls_numel(mine[i].value); e++) {
                CHECK_NEAR(a[e], b[e], 2e-5);
            }
        }
    }
    CHECK_INT(found, 6);
}

/* The same bytes on all ranks of the group. */
static void check_identical(ls_module *m, ls_group *group)
{
    (void)equal_replicas(m, group);
}

static double twin_step(mixture *twin, ls_optim *optim, int step)
{
    double total = 0;
    LS_SCOPE;
    ls_tensor *sum = NULL;
    ls_optim_zero_grad(optim);
    for (int r = 0; r < RANKS; r++) {
        ls_tensor *loss = share_loss(&twin->base, twin, r, step);
        sum = sum == NULL ? loss : ls_add(sum, loss);
    }
    ls_tensor *mean = ls_scale(sum, 1.0 / RANKS);
    CHECK_OK(ls_backward(ls_sum(mean)));
    CHECK_OK(ls_optim_step(optim));
    CHECK_OK(ls_item(ls_sum(mean), &total));
    return total;
}

static double part_step(ls_module *ddp, mixture *part, ls_optim *optim, int step)
{
    double own = 0;
    {
        LS_SCOPE;
        ls_tensor *loss = share_loss(ddp, part, ls_rank(), step);
        ls_optim_zero_grad(optim);
        CHECK_OK(ls_backward(loss));
        CHECK_OK(ls_optim_step(optim));
        CHECK_OK(ls_item(loss, &own));
    }
    CHECK_OK(ls_all_reduce(ls_world(), &own, &own, 1, LS_FLOAT64, LS_AVG, NULL, NULL));
    return own;
}

DIST_TEST(experts_of_some_ranks_train_as_in_one_process, 4)
{
    ls_group *column = NULL;
    CHECK_OK(ls_group_split(ls_world(), ls_rank() % 2, ls_rank(), "expert", &column));
    mixture *part = mixture_new(ls_rank() % 2), *twin = mixture_new(-1);
    if (ls_rank() > 1) { /* the first ranks' values count: of the world, of each column */
        fill(part->dense, 7);
        fill(part->expert[part->only], 8);
    }
    ls_module *ddp = ls_ddp_new(&part->base, ls_world(),
                                LS_OPTIONS(ls_ddp_options, .place = place_expert,
                                           .place_arg = column, .bucket_bytes = 512));
    CHECK(ddp != NULL);
    ls_optim *optim = ls_adamw_new(ddp, LS_OPTIONS(ls_adamw_options, .lr = 1e-2));
    ls_optim *twins = ls_adamw_new(&twin->base, LS_OPTIONS(ls_adamw_options, .lr = 1e-2));
    double first = 0, last = 0;
    for (int step = 0; step < STEPS; step++) {
        last = twin_step(twin, twins, step);
        first = step == 0 ? last : first;
        CHECK_NEAR(part_step(ddp, part, optim, step), last, 1e-5);
    }
    CHECK(last < first);
    check_equal(&part->base, &twin->base);
    check_identical(part->dense, ls_world());
    check_identical(part->head, ls_world());
    check_identical(part->expert[part->only], column);
    ls_optim_free(optim);
    ls_optim_free(twins);
    ls_module_free(ddp);
    ls_module_free(&twin->base);
    CHECK_OK(ls_group_free(column));
}

/* A group whose collectives take turns over several (section 3.3) is not lost on the way. */
DIST_TEST(a_round_robin_group_trains_to_the_same_bits, 2)
{
    uint64_t hash[2];
    for (int turns = 0; turns < 2; turns++) {
        ls_group *groups[3] = {NULL}, *group = ls_world();
        for (int g = 0; g < 3 * turns; g++) {
            CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &groups[g]));
        }
        if (turns == 1) {
            CHECK_OK(ls_group_round_robin(groups, 3, "turns", &group));
        }
        mixture *n = mixture_new(0);
        ls_module *ddp =
            ls_ddp_new(&n->base, group, LS_OPTIONS(ls_ddp_options, .bucket_bytes = 512));
        ls_optim *optim = ls_adamw_new(ddp, NULL);
        for (int step = 0; step < 10; step++) {
            LS_SCOPE;
            ls_optim_zero_grad(optim);
            CHECK_OK(ls_backward(share_loss(ddp, n, 2 * ls_rank(), step)));
            CHECK_OK(ls_optim_step(optim));
        }
        hash[turns] = ls_module_hash(ddp);
        ls_optim_free(optim);
        ls_module_free(ddp);
        if (turns == 1) {
            CHECK_OK(ls_group_free(group));
        }
        for (int g = 0; g < 3 * turns; g++) {
            CHECK_OK(ls_group_free(groups[g]));
        }
    }
    CHECK(hash[0] == hash[1]);
}

/* ---- groups that are freed too early ------------------------------------------------------- */

#define WRAPPER SAYS("a DDP wrapper or a reducer; free that first")
#define HANDLE SAYS("a handle of ls_group_round_robin; free that first")
#define MESH SAYS("a mesh; call ls_mesh_free first")

/* Refused without waiting for the others, and as usable afterwards as before. */
static void still_used(ls_group *group, const char *user)
{
    int32_t one = 1;
    CHECK_STATUS(ls_group_free(group), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(), "%s: group \"%s\" is still used by %s");
    CHECK_SAYS(ls_error_message(), user);
    CHECK_CONTAINS(ls_error_message(), ls_group_name(group));
    CHECK_OK(ls_all_reduce(group, &one, &one, 1, LS_INT32, LS_SUM, NULL, NULL));
    CHECK_INT(one, ls_group_size(group));
}

static void one_backward(ls_module *ddp)
{
    LS_SCOPE;
    CHECK_OK(ls_backward(ls_sum(ls_forward(ddp, ls_ones(LS_SHAPE(2, IN), LS_FLOAT32)))));
}

/* Also the group of some parameters, and one with which a wrapper could not be made. */
DIST_TESTS(a_group_under_ddp_on_, _ranks_is_not_freed, 1, 2, 4)
{
    ls_group *group = NULL, *placed = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "dp", &group));
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "placed", &placed));
    mixture *n = mixture_new(0);
    ls_module *ddp = ls_ddp_new(
        &n->base, group, LS_OPTIONS(ls_ddp_options, .place = place_expert, .place_arg = placed));
    still_used(group, WRAPPER);
    still_used(placed, WRAPPER);
    one_backward(ddp);
    CHECK(ls_ddp_unwrap(ddp) == &n->base);
    CHECK_OK(ls_group_free(placed));
    CHECK(ls_ddp_new(&n->base, group, LS_OPTIONS(ls_ddp_options, .shards = 3)) == NULL);
    ddp = ls_ddp_new(&n->base, group, NULL);
    still_used(group, WRAPPER);
    ls_module_free(ddp);
    CHECK_OK(ls_group_free(group));
}

/* Also the group of one parameter. */
DIST_TESTS(a_group_under_a_reducer_on_, _ranks_is_not_freed, 1, 2, 4)
{
    ls_group *group[3] = {NULL}, *turns = NULL;
    ls_reducer *reducer = NULL;
    for (int g = 0; g < 3; g++) {
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &group[g]));
    }
    CHECK_OK(ls_group_round_robin(group, 2, "turns", &turns));
    still_used(group[1], HANDLE);
    ls_reducer_param params[] = {{.name = "a", .count = 9, .dtype = LS_FLOAT32},
                                 {.name = "b", .count = 9, .dtype = LS_FLOAT32}};
    params[1].reduce_group = group[2];
    CHECK_OK(ls_reducer_new(turns, params, 2, NULL, &reducer));
    still_used(turns, WRAPPER);
    still_used(group[2], WRAPPER);
    CHECK_OK(ls_reducer_free(reducer));
    CHECK_OK(ls_group_free(turns));
    for (int g = 0; g < 3; g++) {
        CHECK_OK(ls_group_free(group[g]));
    }
}

/* Its axes' groups are the mesh's: nobody else frees them, and it is not freed below a wrapper. */
DIST_TESTS(a_group_under_a_mesh_on_, _ranks_is_not_freed, 1, 2, 4)
{
    ls_group *group = NULL;
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "all", &group));
    CHECK_OK(ls_mesh_new(group, "pp=1,dp=*", &mesh));
    still_used(group, MESH);
    still_used(ls_mesh_group(mesh, "dp"), MESH);
    ls_module *ddp = ls_ddp_new(ls_linear_new(IN, OUT, NULL), ls_mesh_group(mesh, "dp"), NULL);
    CHECK_STATUS(ls_mesh_free(mesh), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "ls_mesh_free: group \"dp\" is still used by a DDP wrapper");
    still_used(ls_mesh_group(mesh, "pp"), MESH);
    one_backward(ddp);
    ls_module_free(ddp);
    CHECK_OK(ls_mesh_free(mesh));
    CHECK_OK(ls_group_free(group));
}

/* ls_finalize frees the groups, before or after the program frees their users. */
TEST(users_of_groups_may_be_freed_after_finalize)
{
    ls_group *group = NULL;
    ls_mesh *mesh = NULL;
    for (int again = 0; again < 2; again++) {
        CHECK_OK(ls_init(NULL));
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, "left", &group));
        CHECK_OK(ls_mesh_new(group, "dp=*", &mesh));
        ls_module *ddp = ls_ddp_new(ls_linear_new(IN, OUT, NULL), ls_mesh_group(mesh, "dp"), NULL);
        CHECK_OK(ls_finalize());
        if (again) {
            CHECK_OK(ls_init(NULL));
        }
        ls_module_free(ddp);
        CHECK_OK(ls_mesh_free(mesh));
        if (again) {
            CHECK_OK(ls_finalize());
        }
    }
}

TEST_MAIN

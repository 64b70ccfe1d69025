/* SPDX-License-Identifier: Apache-2.0 */
/* The state of rank 0 on all ranks when a model is wrapped. */
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "comm/core/group.h"
#include "elements.h"
#include "reduce/reducer.h"
#include "test.h"

enum { IN = 6, OUT = 3 };

/* Blocks of a convolution and a batch norm, the first frozen, and a head. Every rank draws numbers
 * of its own. */
static ls_module *make(int blocks)
{
    ls_module *layers[64];
    CHECK_OK(ls_manual_seed(100 + (uint64_t)ls_rank()));
    for (int i = 0; i < blocks; i++) {
        layers[2 * i] = ls_conv2d_new(2, 2, 1, NULL);
        layers[2 * i + 1] = ls_batch_norm2d_new(2, 1e-5, 0.1);
    }
    layers[2 * blocks] = ls_flatten_new();
    layers[2 * blocks + 1] = ls_linear_new(2, OUT, NULL);
    ls_module *net = ls_sequential_new(layers, 2 * blocks + 2);
    CHECK_OK(ls_module_status(net));
    CHECK_OK(ls_tensor_status(ls_set_requires_grad(ls_module_param(net, "0.weight"), false)));
    ls_tensor *mean = ls_module_buffer(net, "1.running_mean");
    CHECK_OK(ls_fill_constant(mean, 10.0 + ls_rank()));
    return net;
}

static void check_identical(ls_module *net, ls_group *group, int want)
{
    int identical = 0;
    uint64_t hash = 0;
    CHECK_OK(ls_replicas_identical(net, group, &identical, &hash));
    CHECK_INT(identical, want);
}

/* Operations that ls_ddp_new takes in the caller's group and in its own. */
static uint64_t operations_of(int blocks)
{
    ls_module *net = make(blocks);
    check_identical(net, ls_world(), 1);
    const uint64_t before = ls_world()->sequence;
    net = ls_ddp_new(net, ls_world(), NULL);
    CHECK_OK(ls_module_status(net));
    const uint64_t count =
        ls_world()->sequence - before + ls__reducer_domain_group(ls_ddp_reducer(net), 0)->sequence;
    check_identical(net, ls_world(), ls_world_size());
    const ls_tensor *mean = ls_module_buffer(net, "1.running_mean");
    CHECK(((const float *)elements_of((ls_tensor *)mean))[0] == 10.0f);
    ls_module_free(net);
    return count;
}

DIST_TESTS(a_model_of_any_size_reaches_, _ranks_in_one_operation, 2, 3, 4, 8)
{
    const uint64_t small = operations_of(1);
    CHECK_INT(operations_of(30), small);
}

/* The head belongs to even and to odd ranks apart: its first values are those of each half's rank
 * 0. */
static void place_head(void *arg, const char *name, const ls_tensor *param, ls_ddp_place *place)
{
    (void)param;
    if (strncmp(name, "3.", 2) == 0) {
        place->reduce_group = arg;
    }
}

DIST_TEST(a_parameter_of_a_smaller_group_is_that_of_its_rank_0, 4)
{
    ls_group *half = NULL;
    CHECK_OK(ls_group_split(ls_world(), ls_rank() % 2, ls_rank(), "half", &half));
    ls_module *net = make(1);
    float own = *(const float *)elements_of(ls_module_param(net, "3.weight")), first[4];
    CHECK_OK(ls_all_gather(ls_world(), &own, first, 1, LS_FLOAT32, NULL, NULL));
    net = ls_ddp_new(net, ls_world(),
                     LS_OPTIONS(ls_ddp_options, .place = place_head, .place_arg = half));
    CHECK_OK(ls_module_status(net));
    CHECK(first[0] != first[1]);
    CHECK(*(const float *)elements_of(ls_module_param(net, "3.weight")) == first[ls_rank() % 2]);
    check_identical(net, half, 2);
    check_identical(net, ls_world(), 2);
    ls_module_free(net);
    CHECK_OK(ls_group_free(half));
}

/* Parameters that require gradients are compared before; a buffer only now. */
DIST_TEST(a_buffer_that_only_some_ranks_have_is_named, 3)
{
    ls_module *layers[] = {ls_batch_norm2d_new(2, 1e-5, 0.1), ls_flatten_new(),
                           ls_linear_new(2, OUT, NULL)};
    ls_module *net = ls_sequential_new(layers, 3);
    ls_tensor *mask = ls_zeros(LS_SHAPE(ls_rank() == 1 ? 3 : 2), LS_FLOAT32);
    CHECK_OK(ls_module_add_buffer(net, "mask", mask));
    CHECK(ls_ddp_new(net, ls_world(), NULL) == NULL);
    CHECK_STATUS(ls_error_status(), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "ddp: the ranks differ in mask: rank 0 has 8 bytes, as ");
    CHECK_CONTAINS(ls_error_message(), "rank 1 has 12 bytes; build the same model on every rank");
    ls_module_free(net);
}

TEST_MAIN

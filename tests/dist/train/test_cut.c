/* SPDX-License-Identifier: Apache-2.0 */
/* A model in two wrapped parts whose graph is cut between them, the backward of the second one
 * whole or in an input and a weight part: gradients, averaged over the ranks with uneven weights
 * and several micro-batches, have the bits of the uncut graph. */
#include <string.h>

#include <lockstep/lockstep.h>

#include "test.h"

enum { WIDTH = 16, ROWS = 6, MICRO = 3, STEPS = 2, PARAMS = 4 };

typedef enum way { WHOLE, CUT, PARTS, WAYS } way;

typedef struct model {
    ls_module *first, *second; /* wrapped */
} model;

static ls_module *wrapped(void)
{
    ls_module *layers[] = {ls_linear_new(WIDTH, WIDTH, NULL), ls_gelu_new(LS_GELU_ERF),
                           ls_linear_new(WIDTH, WIDTH, NULL)};
    ls_module *ddp = ls_ddp_new(ls_sequential_new(layers, 3), ls_world(), NULL);
    CHECK(ddp != NULL);
    return ddp;
}

static ls_tensor *loss_of(ls_tensor *y)
{
    return ls_mean(ls_mul(y, ls_tanh(y)));
}

/* Rank r has r + i samples in micro-batch i: the first of rank 0 has none. */
static void backward_of(const model *m, int step, int i, way how)
{
    LS_SCOPE;
    ls_step_begin((ls_step_context){(uint64_t)(step * MICRO + i), ls_rank() * ROWS});
    const double weight = ls_rank() + i;
    ls_tensor *h = ls_forward(m->first, ls_randn(LS_SHAPE(ROWS, WIDTH)));
    ls_tensor *k = how != WHOLE ? ls_set_requires_grad(ls_detach(h), true) : h;
    ls_tensor *loss = loss_of(ls_forward(m->second, k));
    switch (how) {
    case CUT:
        CHECK_OK(ls_backward_from_weighted(&loss, NULL, 1, weight));
        break;
    case PARTS:
        CHECK_OK(ls_backward_input_part(&loss, NULL, 1,
                                        LS_OPTIONS(ls_backward_part_options, .inputs = &k,
                                                   .input_count = 1, .weighted = true,
                                                   .weight = weight)));
        break;
    default:
        CHECK_OK(ls_backward_weighted(loss, weight));
        return;
    }
    ls_tensor *dy = ls_grad(k);
    CHECK((dy == NULL) == (weight == 0.0));
    CHECK_OK(ls_backward_from_weighted(&h, &dy, 1, weight));
    if (how == PARTS) {
        CHECK_OK(ls_backward_weight_part());
    }
}

static void take(ls_module *m, float *to)
{
    ls_param params[PARAMS];
    CHECK_INT(ls_module_params(m, params, PARAMS), PARAMS);
    for (int i = 0; i < PARAMS; i++) {
        ls_tensor *grad = ls_grad(params[i].value);
        CHECK(grad != NULL);
        CHECK_OK(ls_copy_out(grad, to + i * WIDTH * WIDTH, (size_t)ls_numel(grad) * sizeof *to));
    }
}

typedef struct gradients {
    float of[STEPS][2][PARAMS * WIDTH * WIDTH];
} gradients;

static void train(way how, gradients *out)
{
    CHECK_OK(ls_manual_seed(4));
    const model m = {wrapped(), wrapped()};
    ls_module *const both[] = {m.first, m.second};
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < MICRO; i++) {
            for (int k = 0; k < 2; k++) {
                (void)ls_ddp_set_sync(both[k], i == MICRO - 1);
            }
            backward_of(&m, step, i, how);
        }
        for (int k = 0; k < 2; k++) {
            take(both[k], out->of[step][k]);
            ls_optim *optim = ls_sgd_new(both[k], LS_OPTIONS(ls_sgd_options, .lr = 0.1));
            CHECK_OK(ls_optim_step(optim));
            ls_optim_zero_grad(optim);
            ls_optim_free(optim);
        }
    }
    ls_module_free(m.second);
    ls_module_free(m.first);
}

static void compare(void)
{
    static gradients of[WAYS];
    for (int how = 0; how < WAYS; how++) {
        train((way)how, &of[how]);
        CHECK(memcmp(&of[WHOLE], &of[how], sizeof of[how]) == 0);
    }
    CHECK(of[WHOLE].of[0][0][0] != 0.0f && of[WHOLE].of[0][1][0] != 0.0f);
}

DIST_TEST(two_wrapped_parts_of_a_cut_graph_average_the_same_bits_on_two_ranks, 2)
{
    compare();
}

DIST_TEST(two_wrapped_parts_of_a_cut_graph_average_the_same_bits_on_three_ranks, 3)
{
    compare();
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers under DistributedDataParallel: running statistics are rank 0's on all ranks after each
 * step, as PyTorch's are before the next forward pass, and follow each rank's own batches between.
 *
 * Two references: the table that make_buffers.py had of PyTorch, and a plain twin of the network
 * that sees rank 0's batches only, one after the other. */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "replicas.h"
#include "test.h"

enum { STEPS = 3, MICRO = 2, BATCH = 2, CHANNELS = 2, EDGE = 2 };
enum { MEAN = 0, VAR = CHANNELS, BATCHES = 2 * CHANNELS, COLUMNS };

/* What rank 0 and rank 1 of PyTorch hold when each forward pass begins. */
static const double torch_has[2][STEPS * MICRO][COLUMNS] = {
    {{0, 0, 1, 1, 0},
     {0.184375, 0.21875, 1.039174, 0.9959821, 1},
     {0.3315625, 0.34375, 1.104788, 1.043594, 2},
     {0.4890313, 0.48125, 1.16384, 1.086444, 3},
     {0.6651281, 0.58625, 1.218885, 1.155367, 4},
     {0.8486153, 0.70575, 1.268425, 1.217397, 5}},
    {{0, 0, 1, 1, 0},
     {0.2625, 0.24375, 1.041071, 0.9959821, 1},
     {0.3315625, 0.34375, 1.104788, 1.043594, 2},
     {0.6202813, 0.6125, 1.209376, 1.116801, 3},
     {0.6651281, 0.58625, 1.218885, 1.155367, 4},
     {0.8736153, 0.837, 1.268425, 1.29329, 5}},
};

/* make_buffers.py has the same formula. */
static ls_tensor *batch(int rank, int step, int micro)
{
    float values[BATCH * CHANNELS * EDGE * EDGE];
    for (int i = 0; i < BATCH * CHANNELS * EDGE * EDGE; i++) {
        int place = 7 * i * i + 13 * step + 29 * micro + 31 * rank;
        values[i] = (float)(place % 17) / 4.0f + (float)rank;
    }
    return ls_from_data(values, LS_SHAPE(BATCH, CHANNELS, EDGE, EDGE), LS_FLOAT32);
}

/* Batch norm first, so that its statistics depend on the batches alone; and once more behind a
 * convolution, whose weights they then depend on. */
static ls_module *net_new(void)
{
    ls_module *list[] = {ls_batch_norm2d_new(CHANNELS, 1e-5, 0.1),
                         ls_conv2d_new(CHANNELS, 4, 1, NULL),
                         ls_batch_norm2d_new(4, 1e-5, 0.3),
                         ls_relu_new(),
                         ls_flatten_new(),
                         ls_linear_new(4 * EDGE * EDGE, 3, NULL)};
    ls_module *net = ls_sequential_new(list, 6);
    CHECK_OK(ls_module_status(net));
    return net;
}

typedef struct row {
    double at[COLUMNS];
} row;

static ls_status note_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    row *r = self;
    const char *const names[] = {"0.running_mean", "0.running_var"};
    for (int k = 0; k < 2; k++) {
        for (int c = 0; c < CHANNELS && strcmp(name, names[k]) == 0; c++) {
            r->at[k * CHANNELS + c] = (double)((const float *)tensor->data)[c];
        }
    }
    if (strcmp(name, "0.num_batches_tracked") == 0) {
        r->at[BATCHES] = (double)*(const int64_t *)tensor->data;
    }
    return LS_OK;
}

/* The first batch norm's buffers. */
static row look(ls_module *net)
{
    row r;
    for (int i = 0; i < COLUMNS; i++) {
        r.at[i] = NAN;
    }
    const ls_state_visitor visitor = {
        .size = sizeof(ls_state_visitor), .self = &r, .tensor = note_tensor};
    CHECK_OK(ls_module_state(net, "", &visitor));
    return r;
}

static bool rows_equal(const row *a, const row *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static void learn(ls_module *net, int rank, int step, int micro)
{
    LS_SCOPE;
    ls_tensor *y = ls_forward(net, batch(rank, step, micro));
    CHECK_OK(ls_backward(ls_mse_loss(y, ls_ones(ls_shape_of(y), LS_FLOAT32))));
}

static void copy_parameters(ls_module *from, ls_module *to)
{
    ls_param source[16], target[16];
    int count = ls_module_params(from, source, 16);
    CHECK(count <= 16 && ls_module_params(to, target, 16) == count);
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)ls_numel(source[i].value) * sizeof(float);
        CHECK_OK(ls_copy_in(target[i].value, elements_of(source[i].value), bytes));
    }
}

static uint64_t identical_hash(ls_module *net)
{
    const uint64_t hash = equal_replicas(net, ls_world());
    return hash;
}

/* ---- rank 0's statistics win -------------------------------------------------------------- */

DIST_TEST(running_statistics_are_those_of_pytorch_before_every_forward_pass, 2)
{
    ls_module *ddp = ls_ddp_new(net_new(), ls_world(), NULL);
    CHECK(ddp != NULL);
    for (int i = 0; i < STEPS * MICRO; i++) {
        row r = look(ddp);
        for (int c = 0; c < COLUMNS; c++) {
            CHECK_NEAR(r.at[c], torch_has[ls_rank()][i][c], 1e-6);
        }
        CHECK_OK(ls_ddp_set_sync(ddp, i % MICRO == MICRO - 1));
        learn(ddp, ls_rank(), i / MICRO, i % MICRO);
    }
    ls_module_free(ddp);
}

/* The twin is given the parameters of each step, and sees what rank 0 sees. */
static void all_follow_rank_0(void)
{
    ls_module *ddp = ls_ddp_new(net_new(), ls_world(), NULL), *twin = net_new();
    CHECK(ddp != NULL);
    ls_optim *optim = ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .lr = 0.1, .momentum = 0.9));
    for (int step = 0; step < STEPS; step++) {
        copy_parameters(ddp, twin);
        for (int micro = 0; micro < MICRO; micro++) {
            CHECK_OK(ls_ddp_set_sync(ddp, micro == MICRO - 1));
            learn(ddp, ls_rank(), step, micro);
            learn(twin, 0, step, micro);
            row ours = look(ddp), wanted = look(twin);
            CHECK(rows_equal(&ours, &wanted) == (ls_rank() == 0 || micro == MICRO - 1));
        }
        CHECK(identical_hash(ddp) == ls_module_hash(twin));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    CHECK(look(ddp).at[BATCHES] == STEPS * MICRO);
    ls_optim_free(optim);
    ls_module_free(twin);
    ls_module_free(ddp);
}

DIST_TEST(a_world_of_one_keeps_its_statistics, 1)
{
    all_follow_rank_0();
}

DIST_TEST(two_ranks_follow_a_twin_that_sees_the_batches_of_rank_0, 2)
{
    all_follow_rank_0();
}

DIST_TEST(three_ranks_follow_it_too, 3)
{
    all_follow_rank_0();
}

DIST_TEST(four_ranks_follow_it_too, 4)
{
    all_follow_rank_0();
}

DIST_TEST(statistics_stay_each_ranks_own_where_the_option_says_so, 3)
{
    ls_module *ddp =
        ls_ddp_new(net_new(), ls_world(), LS_OPTIONS(ls_ddp_options, .broadcast_buffers = false));
    CHECK(ddp != NULL);
    ls_module *twin = net_new();
    for (int step = 0; step < STEPS; step++) {
        learn(ddp, ls_rank(), step, 0);
        learn(twin, ls_rank(), step, 0);
    }
    row ours = look(ddp), wanted = look(twin);
    CHECK(rows_equal(&ours, &wanted));
    ls_module_free(twin);
    ls_module_free(ddp);
}

/* ---- other buffers, other ends ------------------------------------------------------------ */

typedef struct masked {
    ls_module base;
    ls_module *fc, *norm;
    ls_tensor *mask; /* constant, and saved by the graph */
} masked;

static ls_tensor *masked_forward(ls_module *m, ls_tensor *x)
{
    masked *self = (masked *)m;
    ls_tensor *y = ls_forward(self->norm, ls_forward(self->fc, x));
    return ls_mul(ls_exp(y), self->mask);
}
static const ls_module_class masked_class =
    LS_MODULE_CLASS(.name = "masked", .forward = masked_forward);

DIST_TEST(a_constant_buffer_may_be_saved_by_another_graph, 2)
{
    masked *m = ls_module_new(sizeof *m, &masked_class);
    m->fc = ls_module_add(&m->base, "fc", ls_linear_new(3, 4, NULL));
    m->norm = ls_module_add(&m->base, "norm", ls_batch_norm2d_new(4, 1e-5, 0.1));
    m->mask = ls_module_add_buffer(&m->base, "mask", ls_full(LS_SHAPE(4), LS_FLOAT32, 0.5));
    ls_module *ddp = ls_ddp_new(&m->base, ls_world(), NULL);
    CHECK(ddp != NULL);
    for (int step = 0; step < STEPS; step++) {
        {
            LS_SCOPE;
            ls_tensor *a = ls_forward(ddp, ls_randn(LS_SHAPE(5, 3)));
            ls_tensor *b = ls_forward(ddp, ls_randn(LS_SHAPE(5, 3)));
            CHECK_OK(ls_backward(ls_mean(a)));
            CHECK_OK(ls_backward(ls_mean(b)));
        }
        (void)identical_hash(ddp);
    }
    ls_module_free(ddp);
}

/* As small as a counter. */
DIST_TEST(a_buffer_of_one_element_becomes_that_of_rank_0, 3)
{
    masked *m = ls_module_new(sizeof *m, &masked_class);
    m->fc = ls_module_add(&m->base, "fc", ls_linear_new(3, 4, NULL));
    m->norm = ls_module_add(&m->base, "norm", ls_identity_new());
    m->mask = ls_module_add_buffer(&m->base, "mask", ls_ones(LS_SHAPE(1), LS_FLOAT32));
    ls_module *ddp = ls_ddp_new(&m->base, ls_world(), NULL);
    CHECK(ddp != NULL);
    const float own = 0.5f + (float)ls_rank();
    float now = 0.0f;
    CHECK_OK(ls_copy_in(m->mask, &own, sizeof own));
    {
        LS_SCOPE;
        CHECK_OK(ls_backward(ls_mean(ls_forward(ddp, ls_randn(LS_SHAPE(5, 3))))));
    }
    CHECK_OK(ls_copy_out(m->mask, &now, sizeof now));
    CHECK(now == 0.5f);
    ls_module_free(ddp);
}

DIST_TEST(a_backward_that_fails_on_one_rank_leaves_none_waiting_for_buffers, 3)
{
    ls_module *ddp = ls_ddp_new(net_new(), ls_world(), NULL);
    CHECK(ddp != NULL);
    learn(ddp, ls_rank(), 0, 0);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* else some learn of it in that one */
    {
        LS_SCOPE;
        ls_tensor *y = ls_forward(ddp, batch(ls_rank(), 1, 0));
        ls_tensor *loss = ls_mean(ls_rank() == 1 ? ls_add(y, ls_ones(LS_SHAPE(7), LS_FLOAT32)) : y);
        CHECK(ls_backward(loss) < 0);
        CHECK_CONTAINS(ls_error_message(), "add");
    }
    ls_module_free(ddp);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

TEST_MAIN

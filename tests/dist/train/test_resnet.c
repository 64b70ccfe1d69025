/* SPDX-License-Identifier: Apache-2.0 */
/* A ResNet-18 under DistributedDataParallel: convolutions, and batch norm whose statistics are each
 * rank's own. So one process with the whole batch learns something else; what it must equal is one
 * that goes through the ranks' shares one after the other, adds up their gradients, and keeps the
 * running statistics of rank 0's share.
 *
 * Rank 0 has that twin beside its replica. The first losses are equal to the bit, and parameters
 * after that step but for the order in which gradients were added. Of the second step only what is
 * continuous in the parameters is compared: an activation within 1e-7 of zero may be on ReLU's
 * other side, and then gradients differ by more than rounding. */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "test.h"
#include <lockstep/models/resnet.h>

enum { RANKS_MAX = 4, STEPS = 2, BATCH = 3, EDGE = 16, CLASSES = 5, ITEMS_MAX = 160 };
enum { PIXELS = 3 * EDGE * EDGE };

/* Of losses, and of ||difference|| to ||value|| of each parameter and buffer. */
#define LOSS_TOLERANCE 1e-5
#define TOLERANCE 1e-5

/* ---- what is learned ---------------------------------------------------------------------- */

static double loss_of(ls_module *net, int rank, int step, double share)
{
    static float x[BATCH * PIXELS];
    int32_t y[BATCH];
    double value = NAN;
    for (int i = 0; i < BATCH * PIXELS; i++) {
        int at = i + 1009 * rank + 4021 * step;
        x[i] = (float)sin(0.7 * at + 0.0003 * at * (at % 23));
        y[i / PIXELS] = (i / PIXELS + 2 * rank + step) % CLASSES;
    }
    {
        LS_SCOPE;
        ls_tensor *images = ls_from_data(x, LS_SHAPE(BATCH, 3, EDGE, EDGE), LS_FLOAT32);
        ls_tensor *classes = ls_from_data(y, LS_SHAPE(BATCH), LS_INT32);
        ls_tensor *loss = ls_cross_entropy(ls_forward(net, images), classes, NULL);
        CHECK_OK(ls_backward(share == 1.0 ? loss : ls_scale(loss, share)));
        CHECK_OK(ls_item(loss, &value));
    }
    return value;
}

static ls_module *net_new(void)
{
    CHECK_OK(ls_manual_seed(11));
    ls_module *net = ls_resnet_new(18, CLASSES, true);
    CHECK(net != NULL);
    return net;
}

static ls_optim *optim_new(ls_module *net)
{
    ls_optim *optim = ls_sgd_new(
        net, LS_OPTIONS(ls_sgd_options, .lr = 0.02, .momentum = 0.9, .weight_decay = 1e-4));
    CHECK(optim != NULL);
    return optim;
}

/* ---- parameters and buffers --------------------------------------------------------------- */

typedef struct item {
    char name[96];
    ls_tensor *tensor;
} item;

typedef struct items {
    ls_module *net;
    item at[ITEMS_MAX];
    int count;
} items;

static bool is_running(const char *name)
{
    return strstr(name, "running_") != NULL || strstr(name, "num_batches") != NULL;
}

static ls_status note(void *self, const char *name, const ls_state_tensor *tensor)
{
    items *list = self;
    (void)tensor;
    CHECK(list->count < ITEMS_MAX && strlen(name) < sizeof list->at[0].name);
    item *to = &list->at[list->count++];
    to->tensor =
        is_running(name) ? ls_module_buffer(list->net, name) : ls_module_param(list->net, name);
    memcpy(to->name, name, strlen(name) + 1);
    return ls_tensor_status(to->tensor);
}

static void list_items(ls_module *net, items *out)
{
    const ls_state_visitor visitor = {
        .size = sizeof(ls_state_visitor), .self = out, .tensor = note};
    out->net = net;
    out->count = 0;
    CHECK_OK(ls_module_state(net, "", &visitor));
}

static void check_item(const item *got, const item *want)
{
    LS_SCOPE;
    const int64_t count = ls_numel(want->tensor);
    const float *a = elements_of(got->tensor), *b = elements_of(want->tensor);
    double off = 0.0, size = 0.0;
    CHECK(strcmp(got->name, want->name) == 0 && ls_numel(got->tensor) == count);
    if (ls_dtype_of(got->tensor) != LS_FLOAT32) {
        CHECK(memcmp(a, b, test_bytes_of(want->tensor)) == 0);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        off += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)b[i], 2);
    }
    if (!(sqrt(off) <= TOLERANCE * sqrt(size))) {
        test_fail(__FILE__, __LINE__, "%s is %g off, of %g", got->name, sqrt(off), sqrt(size));
    }
}

/* ---- the twin ----------------------------------------------------------------------------- */

typedef struct twin {
    ls_module *net;
    ls_optim *optim;
    items items;
    float *running; /* of rank 0's share, while the others' are computed */
} twin;

/* Copies running statistics from the net, or back. */
static void keep_running(twin *t, bool back)
{
    char *at = (char *)t->running;
    for (int i = 0; i < t->items.count; i++) {
        const item *of = &t->items.at[i];
        const size_t bytes = test_bytes_of(of->tensor);
        if (is_running(of->name)) {
            CHECK_OK(back ? ls_copy_in(of->tensor, at, bytes) : ls_copy_out(of->tensor, at, bytes));
            at += bytes;
        }
    }
}

static void twin_step(twin *t, int ranks, int step, double losses[RANKS_MAX])
{
    for (int rank = 0; rank < ranks; rank++) {
        losses[rank] = loss_of(t->net, rank, step, 1.0 / ranks);
        keep_running(t, rank > 0);
    }
    CHECK_OK(ls_optim_step(t->optim));
    ls_optim_zero_grad(t->optim);
}

static void twin_open(twin *t)
{
    static float running[16384];
    size_t bytes = 0;
    *t = (twin){.net = net_new(), .running = running};
    t->optim = optim_new(t->net);
    list_items(t->net, &t->items);
    for (int i = 0; i < t->items.count; i++) {
        const item *of = &t->items.at[i];
        bytes += is_running(of->name) ? test_bytes_of(of->tensor) : 0;
    }
    CHECK(bytes > 0 && bytes <= sizeof running);
}

static void twin_close(twin *t)
{
    ls_optim_free(t->optim);
    ls_module_free(t->net);
}

/* ---- both --------------------------------------------------------------------------------- */

static void check_losses(const double *got, const double *want, int step)
{
    for (int rank = 0; rank < ls_world_size(); rank++) {
        const double tolerance = step == 0 ? 0.0 : LOSS_TOLERANCE * want[rank];
        if (!(fabs(got[rank] - want[rank]) <= tolerance)) {
            test_fail(__FILE__, __LINE__, "step %d: rank %d has loss %.9g, the twin %.9g", step,
                      rank, got[rank], want[rank]);
        }
    }
}

static void check_items(ls_module *net, twin *beside, int step)
{
    static items mine;
    list_items(net, &mine);
    list_items(beside->net, &beside->items);
    CHECK_INT(mine.count, beside->items.count);
    for (int i = 0; i < mine.count; i++) {
        if (step == 0 || is_running(mine.at[i].name)) {
            check_item(&mine.at[i], &beside->items.at[i]);
        }
    }
}

static void train_beside_the_twin(void)
{
    static twin beside;
    double want[RANKS_MAX], all[RANKS_MAX];
    int identical = 0;
    uint64_t hash = 0;
    ls_module *net = ls_ddp_new(net_new(), ls_world(), NULL);
    ls_optim *optim = optim_new(net);
    twin_open(&beside); /* on all: ranks must make the same modules and optimizers */
    for (int step = 0; step < STEPS; step++) {
        double loss = loss_of(net, ls_rank(), step, 1.0);
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        CHECK_OK(ls_all_gather(ls_world(), &loss, all, 1, LS_FLOAT64, NULL, NULL));
        if (ls_rank() == 0) {
            twin_step(&beside, ls_world_size(), step, want);
            check_losses(all, want, step);
            check_items(net, &beside, step);
        }
    }
    CHECK_OK(ls_replicas_identical(net, ls_world(), &identical, &hash));
    CHECK_INT(identical, ls_world_size());
    twin_close(&beside);
    ls_optim_free(optim);
    ls_module_free(net);
}

DIST_TEST(a_resnet_on_one_rank_learns_as_without_ddp, 1)
{
    train_beside_the_twin();
}

DIST_TEST(a_resnet_on_two_ranks_learns_as_one_process_share_by_share, 2)
{
    train_beside_the_twin();
}

DIST_TEST(a_resnet_on_three_ranks_learns_as_one_process_share_by_share, 3)
{
    train_beside_the_twin();
}

DIST_TEST(a_resnet_on_four_ranks_learns_as_one_process_share_by_share, 4)
{
    train_beside_the_twin();
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO: state, gradients and steps divided among the ranks have the bits of data parallelism. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "scratch.h"
#include "test.h"

enum { IN = 6, HIDDEN = 27, OUT = 3, ROWS = 40, SHARE = 5, STEPS = 6, NUMBERS_MAX = 8192 };

#if defined(HOSTS) /* every rank is on a pretended host of its own */
__attribute__((constructor)) static void on_hosts_of_their_own(void)
{
    setenv("LOCKSTEP_HOSTS", HOSTS, 1);
}
#endif

/* How a model is trained; all zero: AdamW, one micro-batch. */
typedef struct recipe {
    int zero;
    bool sgd, clip, weighted, uneven, in_backward, bf16, freeze, keep_gradients, two_optimizers;
    bool rmsprop, two_modules;
    bool recompute, no_sync_forward, evaluate, skips, shuffles, empty, twice, each_alone;
    int micro_batches, split; /* of the ranks of a shard_group; 0: of all */
    bool turned;              /* … with the last rank as the first one */
    ls_reduce_mode mode;
} recipe;

typedef struct result {
    double loss[STEPS], norm[STEPS];
    int64_t bytes;
    char numbers[NUMBERS_MAX * sizeof(float)];
} result;

/* A table that two places use, and a parameter that no pass reaches. */
typedef struct model {
    ls_module base;
    ls_module *body, *extra, *other;
    ls_tensor *table, *unused;
    bool recompute, skips;
} model;

static int now; /* the step */

/* Which of two layers comes first differs from rank to rank after the first step. */
static ls_tensor *shuffled(const model *m, ls_tensor *x)
{
    const bool turned = now > 0 && (now + ls_rank()) % 2 == 1;
    x = ls_tanh(ls_forward(turned ? m->other : m->extra, x));
    return ls_tanh(ls_forward(turned ? m->extra : m->other, x));
}

/* Which ranks use the layer `extra` changes from step to step. */
static ls_tensor *model_forward(ls_module *m, ls_tensor *x)
{
    model *self = (model *)m;
    ls_tensor *rows = ls_matmul(x, ls_cast(self->table, LS_FLOAT32)); /* [SHARE,IN] @ [IN,HIDDEN] */
    if (self->other != NULL) {
        rows = shuffled(self, rows);
    } else if (!self->skips || (now + ls_rank()) % 2 == 1) {
        rows = ls_add(rows, ls_forward(self->extra, rows));
    }
    ls_tensor *h = self->recompute ? ls_recompute(self->body, ls_relu(rows))
                                   : ls_forward(self->body, ls_relu(rows));
    return ls_matmul(h, ls_cast(self->table, LS_FLOAT32));
}

static const ls_module_class model_class =
    LS_MODULE_CLASS(.name = "model", .forward = model_forward);

static ls_module *make_model(const recipe *how)
{
    CHECK_OK(ls_manual_seed(1));
    model *m = ls_module_new(sizeof *m, &model_class);
    ls_module *layers[] = {ls_linear_new(HIDDEN, ROWS, NULL), ls_relu_new(),
                           ls_linear_new(ROWS, HIDDEN, NULL), ls_relu_new(),
                           ls_linear_new(HIDDEN, IN, NULL)};
    float table[IN * HIDDEN];
    for (int i = 0; i < IN * HIDDEN; i++) {
        table[i] = 0.3f * ls_random_normal(3, 1, (uint64_t)i);
    }
    m->recompute = how->recompute;
    m->skips = how->skips;
    const ls_dtype dtype = how->bf16 ? LS_BFLOAT16 : LS_FLOAT32;
    m->table = ls_module_add_param(
        &m->base, "table", ls_cast(ls_from_data(table, LS_SHAPE(IN, HIDDEN), LS_FLOAT32), dtype));
    m->unused = ls_module_add_param(&m->base, "unused", ls_ones(LS_SHAPE(33), LS_FLOAT32));
    m->extra = ls_module_add(&m->base, "extra", ls_linear_new(HIDDEN, HIDDEN, NULL));
    m->other = how->shuffles ? ls_module_add(&m->base, "other", ls_linear_new(HIDDEN, HIDDEN, NULL))
                             : NULL;
    m->body = ls_module_add(&m->base, "body", ls_sequential_new(layers, 5));
    CHECK_OK(ls_module_status(&m->base));
    return &m->base;
}

static ls_module *wrap(ls_module *net, const recipe *how)
{
    ls_group *split = NULL;
    if (how->split > 0 && how->zero > 0) {
        CHECK_OK(ls_group_split(ls_world(), ls_rank() / how->split,
                                how->turned ? ls_world_size() - ls_rank() : 0, NULL, &split));
    }
    ls_module *ddp =
        ls_ddp_new(net, ls_world(),
                   LS_OPTIONS(ls_ddp_options, .bucket_bytes = how->each_alone ? 0 : 6000,
                              .first_bucket_bytes = 300, .mode = how->mode, .check_every = 1,
                              .zero = how->zero, .shard_group = split));
    CHECK_OK(ls_module_status(ddp));
    CHECK_OK(ls_group_free(split));
    return ddp;
}

static ls_optim *optim_of(ls_module *net, const recipe *how)
{
    return how->sgd       ? ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1, .momentum = 0.9))
           : how->rmsprop ? ls_rmsprop_new(net, LS_OPTIONS(ls_rmsprop_options, .lr = 1e-3,
                                                           .momentum = 0.9, .centered = true))
                          : ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 1e-2));
}

static ls_tensor *loss_of(ls_module *net, int batch)
{
    float x[SHARE * IN];
    int32_t y[SHARE];
    for (int i = 0; i < SHARE * IN; i++) {
        x[i] = ls_random_normal(5, (uint64_t)(100 * batch + ls_rank()), (uint64_t)i);
    }
    for (int i = 0; i < SHARE; i++) {
        y[i] = x[IN * i] > 0.3f ? 0 : x[IN * i + 1] > x[IN * i + 2] ? 1 : 2;
    }
    return ls_cross_entropy(ls_forward(net, ls_from_data(x, LS_SHAPE(SHARE, IN), LS_FLOAT32)),
                            ls_from_data(y, LS_SHAPE(SHARE), LS_INT32), NULL);
}

/* False: no rank has data any more. */
static bool backward(ls_module *ddp, const recipe *how, int step, double *mean)
{
    bool more = !how->uneven || step < STEPS - 2 * ls_rank();
    *mean = 0.0;
    now = step;
    if (!more) {
        CHECK_OK(ls_ddp_join(ddp, NULL, &more));
        return more;
    }
    const int micro = how->micro_batches > 0 ? how->micro_batches : 1;
    for (int m = 0; m < micro; m++) {
        LS_SCOPE;
        CHECK_OK(ls_ddp_set_sync(ddp, !how->no_sync_forward || m == micro - 1));
        ls_tensor *loss = loss_of(ddp, step * micro + m);
        loss = how->twice ? ls_add(loss, loss_of(ddp, 500 + step)) : loss;
        const double weight = how->empty && (step + ls_rank()) % 3 == 0 ? 0.0 : 1 + ls_rank();
        double value;
        CHECK_OK(ls_item(loss, &value));
        *mean += value;
        CHECK_OK(ls_ddp_set_sync(ddp, m == micro - 1));
        if (how->evaluate) {
            LS_NO_GRAD;
            (void)loss_of(ddp, 1000 + step);
        }
        CHECK_OK(how->weighted ? ls_backward_weighted(loss, weight) : ls_backward(loss));
    }
    return true;
}

static void read_numbers(ls_module *net, result *out)
{
    ls_param params[64];
    const int count = ls_module_params(net, params, 64);
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        const size_t bytes =
            (size_t)ls_numel(params[i].value) * ls_dtype_size(ls_dtype_of(params[i].value));
        CHECK(at + bytes <= sizeof out->numbers);
        memcpy(out->numbers + at, elements_of(params[i].value), bytes);
        at += bytes;
    }
    out->bytes = (int64_t)at;
}

static void set_frozen(ls_module *net, bool frozen)
{
    (void)ls_set_requires_grad(ls_module_param(net, "body.2.weight"), !frozen);
}

static void step_of(ls_module *ddp, ls_optim *const *optims, const recipe *how, int step,
                    result *out)
{
    if (how->clip) {
        CHECK_OK(ls_clip_grad_norm(ddp, 0.05, NULL, &out->norm[step]));
    }
    for (int i = 0; optims[i] != NULL; i++) {
        CHECK_OK(ls_optim_step(optims[i]));
    }
    for (int i = 0; optims[i] != NULL && !how->keep_gradients; i++) {
        ls_optim_zero_grad(optims[i]);
    }
}

static void train_wrapped(ls_module *ddp, ls_optim *const *optims, const recipe *how, int first,
                          int steps, result *out)
{
    for (int step = first; step < first + steps; step++) {
        set_frozen(ls_ddp_module(ddp), how->freeze && step % 3 == 1);
        for (int i = 0; optims[i] != NULL; i++) {
            ls_optim_set_lr(optims[i], 1e-2 / (1 + step));
        }
        if (!backward(ddp, how, step, &out->loss[step])) {
            break;
        }
        if (!how->in_backward) {
            step_of(ddp, optims, how, step, out);
        }
    }
}

static result *train(const recipe *how)
{
    result *out = calloc(1, sizeof *out);
    CHECK(out != NULL);
    ls_module *net = make_model(how), *ddp = wrap(net, how);
    ls_optim *optims[3] = {0};
    const bool first = how->two_optimizers || how->two_modules;
    optims[0] = first ? optim_of(((model *)net)->body, how) : optim_of(ddp, how);
    if (how->two_modules) { /* the body's parameters count once */
        CHECK_OK(ls_optim_add_module(optims[0], "all", ddp));
    }
    optims[1] = how->two_optimizers ? optim_of(ddp, how) : NULL;
    if (how->in_backward) {
        CHECK_OK(ls_ddp_step_in_backward(ddp, optims[0]));
    }
    train_wrapped(ddp, optims, how, 0, STEPS, out);
    CHECK_OK(ls_ddp_gather(ddp));
    read_numbers(net, out);
    for (int i = 0; optims[i] != NULL; i++) {
        ls_optim_free(optims[i]);
    }
    ls_module_free(ddp);
    return out;
}

/* tests/device/test_dist.py */
static bool over_nccl(void)
{
    const char *device = getenv("TEST_DEVICE");
    return device != NULL && strcmp(device, "cuda") == 0;
}

/* Norms may differ in the last place of float64. */
static void compare(recipe how)
{
    how.zero = 0;
    result *plain = train(&how);
    CHECK(plain->bytes > 0);
    for (how.zero = 1; how.zero <= 3; how.zero++) {
        result *divided = train(&how);
        CHECK(memcmp(plain->loss, divided->loss, sizeof plain->loss) == 0);
        CHECK_INT(plain->bytes, divided->bytes);
        CHECK(memcmp(plain->numbers, divided->numbers, sizeof plain->numbers) == 0);
        for (int i = 0; i < STEPS; i++) {
            CHECK(fabs(plain->norm[i] - divided->norm[i]) <= 1e-15 * plain->norm[i]);
        }
        free(divided);
    }
    free(plain);
}

DIST_TESTS(steps_of_, _ranks_have_the_bits_of_data_parallelism, 1, 2, 3, 4, 5)
{
    for (int sgd = 0; sgd < 2; sgd++) {
        for (int clip = 0; clip < 2; clip++) {
            compare((recipe){.sgd = sgd == 1, .clip = clip == 1});
        }
    }
}

DIST_TESTS(micro_batches_of_, _ranks_have_the_bits_of_data_parallelism, 2, 3)
{
    compare((recipe){.micro_batches = 3, .clip = true});
    compare((recipe){.micro_batches = 2, .weighted = true});
    compare((recipe){.weighted = true, .uneven = true});
    compare((recipe){.uneven = true, .sgd = true});
    if (!over_nccl()) { /* which sets no average aside */
        compare((recipe){.keep_gradients = true, .sgd = true});
    }
    compare((recipe){.micro_batches = 3, .no_sync_forward = true});
    compare((recipe){.micro_batches = 2, .weighted = true, .uneven = true});
    compare((recipe){.micro_batches = 2, .evaluate = true});
}

DIST_TESTS(all_kinds_of_models_of_, _ranks_have_the_bits_of_data_parallelism, 2, 3)
{
    compare((recipe){.freeze = true, .clip = true});
    compare((recipe){.freeze = true, .sgd = true});
    compare((recipe){.bf16 = true, .clip = true});
    compare((recipe){.bf16 = true, .sgd = true});
    compare((recipe){.two_optimizers = true});
    compare((recipe){.two_modules = true});
    compare((recipe){.rmsprop = true, .bf16 = true});
    compare((recipe){.recompute = true, .micro_batches = 2});
    for (int mode = LS_REDUCE_OVERLAP; mode <= LS_REDUCE_NAIVE; mode++) {
        compare((recipe){.mode = (ls_reduce_mode)mode});
    }
}

DIST_TESTS(all_kinds_of_passes_of_, _ranks_have_the_bits_of_data_parallelism, 2, 3)
{
    compare((recipe){.skips = true, .each_alone = true});
    compare((recipe){.skips = true, .recompute = true, .micro_batches = 2});
    compare((recipe){.skips = true, .weighted = true, .uneven = true, .each_alone = true});
    compare((recipe){.shuffles = true, .each_alone = true, .micro_batches = 2});
    compare((recipe){.shuffles = true, .recompute = true, .evaluate = true});
    compare((recipe){.weighted = true, .empty = true});
    compare((recipe){.weighted = true, .empty = true, .skips = true, .each_alone = true});
    compare((recipe){.twice = true, .micro_batches = 2});
    compare((recipe){.twice = true, .uneven = true, .sgd = true});
    compare((recipe){.each_alone = true, .bf16 = true, .recompute = true});
}

DIST_TESTS(steps_in_backward_of_, _ranks_have_the_bits_of_data_parallelism, 2, 3)
{
    compare((recipe){.in_backward = true});
    compare((recipe){.in_backward = true, .each_alone = true});
    compare((recipe){.in_backward = true, .micro_batches = 2});
    compare((recipe){.in_backward = true, .weighted = true, .uneven = true});
}

/* Two neighbours are added up first by an all-reduce over four, too. */
DIST_TEST(splits_of_two_of_4_ranks_have_the_bits_of_data_parallelism, 4)
{
    compare((recipe){.split = 2, .clip = true});
    compare((recipe){.split = 2, .micro_batches = 2, .weighted = true, .uneven = true});
    compare((recipe){.split = 2, .in_backward = true, .sgd = true});
    compare((recipe){.split = 2, .recompute = true, .freeze = true});
    compare((recipe){.split = 2, .mode = LS_REDUCE_FLAT});
}

DIST_TEST(splits_of_one_and_of_all_ranks_have_the_bits_of_data_parallelism, 3)
{
    compare((recipe){.split = 1, .clip = true});
    compare((recipe){.split = 3, .clip = true});
    compare((recipe){.split = 3, .turned = true});
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

enum { SAVED_AT = 3 };

/* A job over some ranks of the world. */
typedef struct job {
    ls_group *group;
    ls_module *net, *ddp;
    ls_optim *optim;
} job;

static job job_new(ls_group *group, const recipe *how)
{
    job j = {.group = group, .net = make_model(how)};
    j.ddp = ls_ddp_new(j.net, group,
                       LS_OPTIONS(ls_ddp_options, .bucket_bytes = 6000, .first_bucket_bytes = 300,
                                  .check_every = 1, .zero = how->zero));
    CHECK_OK(ls_module_status(j.ddp));
    j.optim = optim_of(j.ddp, how);
    return j;
}

static void job_free(job *j)
{
    ls_optim_free(j->optim);
    ls_module_free(j->ddp);
}

static void job_train(const job *j, const recipe *how, int first, int steps, result *out)
{
    ls_optim *optims[] = {j->optim, NULL};
    train_wrapped(j->ddp, optims, how, first, steps, out);
}

static ls_status at_folder(const job *j, const char *folder, bool save)
{
    ls_checkpoint *checkpoint = NULL;
    int64_t step = 0;
    CHECK_OK(ls_checkpoint_new(
        folder, j->group, LS_OPTIONS(ls_checkpoint_options, .async = false, .load_only = !save),
        &checkpoint));
    const ls_checkpoint_item items[] = {LS_ITEM("model", j->ddp), LS_ITEM("optim", j->optim)};
    const ls_status status = save ? ls_checkpoint_save(checkpoint, SAVED_AT, items, 2)
                                  : ls_checkpoint_load(checkpoint, items, 2, &step);
    CHECK_OK(ls_checkpoint_free(checkpoint));
    return status;
}

/* Every rank knows the folder of rank 0. */
static void share_folder(char folder[256])
{
    memset(folder, 0, 256);
    if (ls_rank() == 0) {
        scratch_begin();
        snprintf(folder, 256, "%s", scratch_folder());
    }
    CHECK_OK(ls_broadcast(ls_world(), folder, 256, LS_UINT8, 0, NULL, NULL));
}

/* Trained to SAVED_AT over the world with zero `from`, saved, loaded over the first `ranks` ranks
 * with zero `to`, and trained to the end. */
static result *train_over(recipe how, int from, int to, int ranks)
{
    char folder[256];
    result *out = calloc(1, sizeof *out);
    CHECK(out != NULL);
    share_folder(folder);
    how.zero = from;
    job j = job_new(ls_world(), &how);
    job_train(&j, &how, 0, SAVED_AT, out);
    CHECK_OK(at_folder(&j, folder, true));
    job_free(&j);
    ls_group *some = NULL; /* the others train, too: the ranks' optimizers are compared */
    const bool first = ls_rank() < ranks;
    CHECK_OK(ls_group_split(ls_world(), first, 0, NULL, &some));
    how.zero = to;
    job next = job_new(some, &how);
    CHECK_OK(at_folder(&next, folder, false));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (first) {
        CHECK_OK(at_folder(&next, folder, true)); /* state that no step has divided */
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK_OK(at_folder(&next, folder, false));
    job_train(&next, &how, SAVED_AT, STEPS - SAVED_AT, out);
    CHECK_OK(ls_ddp_gather(next.ddp));
    read_numbers(next.net, out);
    job_free(&next);
    CHECK_OK(ls_group_free(some));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 0) {
        scratch_end();
    }
    return out;
}

static void resume_everywhere(recipe how, int ranks)
{
    result *plain = train_over(how, 0, 0, ranks);
    for (int from = 0; from <= 3; from++) {
        for (int to = 0; to <= 3; to++) {
            result *other = train_over(how, from, to, ranks);
            CHECK(memcmp(plain->loss, other->loss, sizeof plain->loss) == 0);
            CHECK(memcmp(plain->numbers, other->numbers, sizeof plain->numbers) == 0);
            free(other);
        }
    }
    free(plain);
}

DIST_TEST(checkpoints_load_at_another_stage_with_equal_bits, 3)
{
    resume_everywhere((recipe){.clip = true}, 3);
    resume_everywhere((recipe){.sgd = true, .bf16 = true}, 3);
}

DIST_TEST(checkpoints_load_on_another_number_of_ranks_with_equal_bits, 5)
{
    resume_everywhere((recipe){.clip = true}, 2);
    resume_everywhere((recipe){.sgd = true}, 3);
}

TEST_MAIN

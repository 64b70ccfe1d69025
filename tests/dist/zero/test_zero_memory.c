/* SPDX-License-Identifier: Apache-2.0 */
/* What training with zero sends in a step, and what it keeps, by counters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt.h>

#include "reduce/internal.h"
#include "test.h"

/* Every rank is on a pretended host of its own: what is sent crosses a wire. */
__attribute__((constructor)) static void on_hosts_of_their_own(void)
{
    setenv("LOCKSTEP_HOSTS", "64", 1);
}

enum { BATCH = 4, CONTEXT = 64 }; /* all rows of the table of tokens are reached */

typedef struct trainee {
    ls_module *net, *ddp;
    ls_optim *optim;
    ls_mesh *mesh; /* NULL: every rank is a replica */
} trainee;

/* The default of `lockstep train gpt`: 875,264 parameters. */
static trainee make(int zero, size_t bucket_bytes, ls_group *split)
{
    CHECK_OK(ls_manual_seed(1));
    trainee t = {.net = ls_gpt_new(LS_OPTIONS(ls_gpt_options, .context = 128))};
    CHECK_OK(ls_module_status(t.net));
    t.ddp = ls_ddp_new(t.net, ls_world(),
                       LS_OPTIONS(ls_ddp_options, .zero = zero, .bucket_bytes = bucket_bytes,
                                  .first_bucket_bytes = bucket_bytes, .check_every = 0,
                                  .shard_group = split));
    CHECK_OK(ls_module_status(t.ddp));
    t.optim = ls_adamw_new(t.ddp, LS_OPTIONS(ls_adamw_options, .lr = 1e-3));
    return t;
}

/* The same on a mesh, of whose two axes tp divides the model. Gradients of what it leaves whole are
 * summed over other ranks than the rest. */
static trainee make_divided(int zero, size_t bucket_bytes)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "dp=2,tp=2", &mesh));
    CHECK_OK(ls_manual_seed(1));
    trainee t = {.net = ls_gpt_new(LS_OPTIONS(ls_gpt_options, .context = 128)), .mesh = mesh};
    CHECK_OK(ls_tensor_parallel(t.net, NULL));
    t.ddp = ls_ddp_new(t.net, ls_world(),
                       LS_OPTIONS(ls_ddp_options, .zero = zero, .bucket_bytes = bucket_bytes,
                                  .first_bucket_bytes = bucket_bytes, .check_every = 0,
                                  .batch_axes = "dp"));
    CHECK_OK(ls_module_status(t.ddp));
    t.optim = ls_adamw_new(t.ddp, LS_OPTIONS(ls_adamw_options, .lr = 1e-3));
    return t;
}

static void backward(const trainee *t)
{
    LS_SCOPE;
    int32_t tokens[BATCH * CONTEXT], next[BATCH * CONTEXT];
    const int own = t->mesh != NULL ? ls_mesh_coordinate(t->mesh, "dp") : ls_rank();
    for (int i = 0; i < BATCH * CONTEXT; i++) {
        tokens[i] = (i + own) % 256;
        next[i] = (i * 11 + own) % 256;
    }
    ls_tensor *y = ls_forward(t->ddp, ls_from_data(tokens, LS_SHAPE(BATCH, CONTEXT), LS_INT32));
    CHECK_OK(ls_backward(ls_tensor_parallel_cross_entropy(
        ls_reshape(y, LS_SHAPE(BATCH * CONTEXT, -1)),
        ls_from_data(next, LS_SHAPE(BATCH * CONTEXT), LS_INT32), NULL)));
}

static void end_step(const trainee *t)
{
    CHECK_OK(ls_optim_step(t->optim));
    ls_optim_zero_grad(t->optim);
}

static void drop(trainee *t)
{
    ls_optim_free(t->optim);
    ls_module_free(t->ddp);
    CHECK_OK(ls_mesh_free(t->mesh));
}

static int64_t count_of(const trainee *t)
{
    ls_param params[256];
    const int n = ls_module_params(t->net, params, 256);
    int64_t count = 0;
    for (int i = 0; i < n; i++) {
        count += ls_numel(params[i].value);
    }
    return count;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static ls_status add_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    (void)name;
    int64_t bytes = (int64_t)ls_dtype_size(tensor->dtype);
    for (int i = 0; i < tensor->ndim; i++) {
        bytes *= tensor->local[i];
    }
    *(int64_t *)self += bytes;
    return LS_OK;
}

static ls_status skip_int64(void *self, const char *name, int64_t *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static ls_status skip_float64(void *self, const char *name, double *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static int64_t state_bytes(const trainee *t)
{
    int64_t bytes = 0;
    const ls_state_visitor visitor = {.size = sizeof visitor,
                                      .self = &bytes,
                                      .tensor = add_tensor,
                                      .int64 = skip_int64,
                                      .float64 = skip_float64};
    CHECK_OK(ls_optim_state(t->optim, "", &visitor));
    return bytes;
}

/* Where all parameters, or all gradients, lie in one piece. */
typedef struct extent {
    uintptr_t from, to;
} extent;

static extent extent_of(const trainee *t, bool gradients)
{
    ls_param params[256];
    const int n = ls_module_params(t->net, params, 256);
    extent e = {.from = UINTPTR_MAX};
    CHECK_OK(ls_ddp_gather(t->ddp));
    for (int i = 0; i < n; i++) {
        ls_tensor *of = gradients ? ls_grad(params[i].value) : params[i].value;
        CHECK(of != NULL);
        const uintptr_t at = (uintptr_t)ls_data(of);
        const uintptr_t end = at + (uintptr_t)ls_numel(of) * sizeof(float);
        e.from = at < e.from ? at : e.from;
        e.to = end > e.to ? end : e.to;
    }
    CHECK_OK(ls_ddp_release(t->ddp));
    return e;
}

/* Bytes of the pages there that are in memory. */
static int64_t resident_bytes(const extent *e)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = e->from / page * page;
    const size_t pages = (e->to - from + page - 1) / page;
    unsigned char *resident = calloc(pages, 1);
    CHECK(resident != NULL && mincore((void *)from, pages * page, resident) == 0);
    int64_t bytes = 0;
    for (size_t i = 0; i < pages; i++) {
        bytes += (resident[i] & 1) * (int64_t)page;
    }
    free(resident);
    return bytes;
}

/* Bytes of the blocks that buckets have taken, or that any has taken so far. */
static int64_t block_bytes(const trainee *t, bool taken)
{
    const ls__reduce_pool *pool = &ls_ddp_reducer(t->ddp)->domains[0].pool;
    int64_t bytes = 0;
    for (int i = 0; i < pool->count; i++) {
        bytes += pool->blocks[i].taken || !taken ? (int64_t)pool->blocks[i].touched : 0;
    }
    return bytes;
}

static void check_near(int64_t bytes, int64_t expected, int64_t bucket)
{
    CHECK(bytes >= expected - bucket && bytes <= expected + bucket);
}

DIST_TESTS(state_of_, _ranks_is_what_the_formula_says, 2, 4)
{
    const int64_t bucket = 256 << 10;
    for (int zero = 0; zero <= 3; zero++) {
        trainee t = make(zero, (size_t)bucket, NULL);
        const int64_t n = ls_world_size(), bytes = 4 * count_of(&t);
        CHECK_INT(bytes, 4 * 875264);
        for (int step = 0; step < 3; step++) {
            backward(&t);
            CHECK_INT(block_bytes(&t, true), 0);
            CHECK(zero >= 2 || block_bytes(&t, false) == 0);
            const extent gradients = extent_of(&t, true), parameters = extent_of(&t, false);
            check_near(resident_bytes(&gradients), zero >= 2 ? bytes / n : bytes, bucket);
            check_near(resident_bytes(&parameters), zero == 3 ? bytes / n : bytes, bucket);
            end_step(&t);
            check_near(resident_bytes(&parameters), zero == 3 ? bytes / n : bytes, bucket);
        }
        const int64_t state = state_bytes(&t), of_each = zero > 0 ? 2 * bytes / n : 2 * bytes;
        check_near(state, of_each, bucket);
        drop(&t);
    }
}

/* Minor faults of this process so far: pages that it has touched for the first time. */
static int64_t faults(void)
{
    struct rusage usage;
    CHECK_INT(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_minflt;
}

/* Pages that a step touches anew: of the steps that one counts in which least else happened. */
static int64_t pages_of_step(const trainee *t)
{
    int64_t least = INT64_MAX;
    for (int step = 0; step < 10; step++) {
        const int64_t before = faults();
        backward(t);
        end_step(t);
        const int64_t in_step = faults() - before;
        least = step > 1 && in_step < least ? in_step : least;
    }
    return least;
}

/* Buckets leave their pages to the next ones. */
DIST_TEST(in_the_steady_state_no_page_of_a_bucket_is_touched_anew, 4)
{
    const int64_t pages = 4 * 875264 / sysconf(_SC_PAGESIZE);
    for (int zero = 2; zero <= 3; zero++) {
        trainee t = make(zero, 128 << 10, NULL);
        CHECK(pages_of_step(&t) < pages / 8); /* other ranks have three quarters of them */
        drop(&t);
    }
}

DIST_TEST(nor_where_ranks_of_two_groups_sum_gradients, 4)
{
    trainee t = make_divided(2, 128 << 10);
    const int64_t pages = 4 * count_of(&t) / sysconf(_SC_PAGESIZE);
    CHECK(ls_ddp_reducer(t.ddp)->domain_count > 1);
    CHECK(pages_of_step(&t) < pages / 8); /* the other rank has half of them */
    drop(&t);
}

/* Before each block of a forward pass. */
typedef struct watch {
    const trainee *of;
    extent parameters;
    int blocks; /* so many of them are still to come */
    int64_t most;
} watch;

static ls_status look(void *arg, ls_module *module, ls_tensor **inputs, int input_count,
                      ls_tensor **outputs, int output_count)
{
    watch *w = arg;
    (void)module, (void)inputs, (void)input_count, (void)outputs, (void)output_count;
    if (w->blocks > 0) {
        const int64_t now = resident_bytes(&w->parameters) + block_bytes(w->of, true);
        w->most = now > w->most ? now : w->most;
        w->blocks--;
    }
    return LS_OK;
}

static void watch_blocks(const trainee *t, watch *w)
{
    *w = (watch){.of = t, .parameters = extent_of(t, false), .blocks = 4};
    for (int b = 0; b < w->blocks; b++) {
        char name[32];
        (void)snprintf(name, sizeof name, "blocks.%d", b);
        CHECK(ls_forward_pre_hook_new(ls_module_child(t->net, name), look, w) != NULL);
    }
}

/* The reads of one pass are those of all, however many micro-batches the first step had. */
DIST_TEST(parameters_go_after_their_last_read_in_a_pass, 4)
{
    trainee t = make(3, 64 << 10, NULL);
    watch w = {.blocks = 0};
    for (int step = 0; step < 2; step++) {
        if (step == 1) {
            watch_blocks(&t, &w);
        }
        {
            LS_NO_SYNC(t.ddp);
            backward(&t);
        }
        backward(&t);
        end_step(&t);
    }
    CHECK_INT(w.blocks, 0);
    const int64_t bytes = 4 * 875264, matrix = 4 * 512 * 128;
    CHECK(w.most > bytes / 4 && w.most < bytes / 4 + 4 * matrix);
    drop(&t);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static uint64_t sent(const trainee *t)
{
    return ls__stats_sent(ls_ddp_reducer(t->ddp));
}

/* 2 (n-1)/n of the buckets, padding included; parameters that are divided are gathered twice. What
 * opens a backward has a group of its own. */
static void check_sent(trainee *t, uint64_t parts, uint64_t of_each)
{
    const uint64_t n = (uint64_t)ls_world_size(), bytes = 4 * 875264;
    for (int step = 0; step < 3; step++) {
        const uint64_t before = sent(t);
        backward(t);
        end_step(t);
        ls_ddp_stats stats = {.size = sizeof stats};
        CHECK_OK(ls_ddp_get_stats(t->ddp, &stats));
        const uint64_t padded = stats.reduce.bucket_bytes;
        CHECK(padded >= bytes && padded - bytes <= 64 * n * (uint64_t)stats.reduce.buckets);
        if (step > 0) { /* the first one lays out, and is one of data parallelism */
            CHECK_INT(sent(t) - before, parts * (padded / of_each));
            CHECK_INT(stats.reduce.sent_bytes, parts * (padded / of_each));
        }
    }
    drop(t);
}

DIST_TESTS(a_step_of_, _ranks_sends_what_an_all_reduce_does, 2, 3, 4)
{
    const uint64_t n = (uint64_t)ls_world_size();
    for (int zero = 0; zero <= 3; zero++) {
        trainee t = make(zero, LS_BUCKET_BYTES_AUTO, NULL);
        check_sent(&t, (zero == 3 ? 3 : 2) * (n - 1), n);
    }
}

/* Within a split a reduce-scatter of all and the gatherings, and across an all-reduce of half. */
DIST_TEST(a_step_with_splits_of_two_sends_half_across, 4)
{
    for (int zero = 1; zero <= 3; zero++) {
        ls_group *split = NULL;
        CHECK_OK(ls_group_split(ls_world(), ls_rank() / 2, 0, NULL, &split));
        trainee t = make(zero, LS_BUCKET_BYTES_AUTO, split);
        CHECK_OK(ls_group_free(split));
        check_sent(&t, zero == 3 ? 4 : 3, 2);
    }
}

TEST_MAIN

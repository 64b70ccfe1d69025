/* What training with zero sends in a step, and what it keeps, by counters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt.h>

#include "reduce/reducer.h"
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
} trainee;

/* The default of `lockstep train gpt`: 875,264 parameters. */
static trainee make(int zero, size_t bucket_bytes)
{
    CHECK_OK(ls_manual_seed(1));
    trainee t = {.net = ls_gpt_new(LS_OPTIONS(ls_gpt_options, .context = 128))};
    CHECK_OK(ls_module_status(t.net));
    t.ddp = ls_ddp_new(t.net, ls_world(),
                       LS_OPTIONS(ls_ddp_options, .zero = zero, .bucket_bytes = bucket_bytes,
                                  .first_bucket_bytes = bucket_bytes, .check_every = 0));
    CHECK_OK(ls_module_status(t.ddp));
    t.optim = ls_adamw_new(t.ddp, LS_OPTIONS(ls_adamw_options, .lr = 1e-3));
    return t;
}

static void backward(const trainee *t)
{
    LS_SCOPE;
    int32_t tokens[BATCH * CONTEXT], next[BATCH * CONTEXT];
    for (int i = 0; i < BATCH * CONTEXT; i++) {
        tokens[i] = (i + ls_rank()) % 256;
        next[i] = (i * 11 + ls_rank()) % 256;
    }
    ls_tensor *y = ls_forward(t->ddp, ls_from_data(tokens, LS_SHAPE(BATCH, CONTEXT), LS_INT32));
    CHECK_OK(ls_backward(ls_cross_entropy(ls_reshape(y, LS_SHAPE(BATCH * CONTEXT, 256)),
                                          ls_from_data(next, LS_SHAPE(BATCH * CONTEXT), LS_INT32),
                                          NULL)));
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

/* Bytes of the pages of all gradients that are in memory. They lie in one piece. */
static int64_t gradient_bytes(const trainee *t)
{
    ls_param params[256];
    const int n = ls_module_params(t->net, params, 256);
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = UINTPTR_MAX, to = 0;
    for (int i = 0; i < n; i++) {
        ls_tensor *grad = ls_grad(params[i].value);
        CHECK(grad != NULL);
        const uintptr_t at = (uintptr_t)ls_data(grad);
        const uintptr_t end = at + (uintptr_t)ls_numel(grad) * sizeof(float);
        from = at < from ? at : from;
        to = end > to ? end : to;
    }
    from = from / page * page;
    const size_t pages = (to - from + page - 1) / page;
    unsigned char *resident = calloc(pages, 1);
    CHECK(resident != NULL && mincore((void *)from, pages * page, resident) == 0);
    int64_t bytes = 0;
    for (size_t i = 0; i < pages; i++) {
        bytes += (resident[i] & 1) * (int64_t)page;
    }
    free(resident);
    return bytes;
}

DIST_TESTS(state_of_, _ranks_is_what_the_formula_says, 2, 4)
{
    const int64_t bucket = 256 << 10;
    for (int zero = 0; zero <= 2; zero++) {
        trainee t = make(zero, (size_t)bucket);
        const int64_t n = ls_world_size(), bytes = 4 * count_of(&t);
        CHECK_INT(bytes, 4 * 875264);
        for (int step = 0; step < 3; step++) {
            backward(&t);
            const int64_t gradients = gradient_bytes(&t), share = zero == 2 ? bytes / n : bytes;
            CHECK(gradients >= share - bucket && gradients <= share + bucket);
            end_step(&t);
        }
        const int64_t state = state_bytes(&t), of_each = zero > 0 ? 2 * bytes / n : 2 * bytes;
        CHECK(state >= of_each - bucket && state <= of_each + bucket);
        drop(&t);
    }
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static uint64_t sent(const trainee *t)
{
    ls_counters counters = {.size = sizeof counters};
    CHECK_OK(ls_group_get_counters(ls__reducer_group(ls_ddp_reducer(t->ddp)), &counters));
    return counters.bytes_sent;
}

/* 2 (n-1)/n of the buckets, padding included. What opens a backward has a group of its own. */
DIST_TESTS(a_step_of_, _ranks_sends_what_an_all_reduce_does, 2, 3, 4)
{
    for (int zero = 0; zero <= 2; zero++) {
        trainee t = make(zero, LS_BUCKET_BYTES_AUTO);
        const uint64_t n = (uint64_t)ls_world_size(), bytes = 4 * 875264;
        for (int step = 0; step < 3; step++) {
            const uint64_t before = sent(&t);
            backward(&t);
            end_step(&t);
            ls_ddp_stats stats = {.size = sizeof stats};
            CHECK_OK(ls_ddp_get_stats(t.ddp, &stats));
            const uint64_t padded = stats.reduce.bucket_bytes;
            CHECK(padded >= bytes && padded - bytes <= 64 * n * (uint64_t)stats.reduce.buckets);
            if (step > 0) { /* the first one lays out, and is one of data parallelism */
                CHECK_INT(sent(&t) - before, 2 * (n - 1) * (padded / n));
            }
        }
        drop(&t);
    }
}

TEST_MAIN

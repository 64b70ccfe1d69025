/* Hooks of the user's: what they are shown, and what becomes of what they return. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/ddp.h>
#include <lockstep/ops.h>
#include <lockstep/random.h>

#include "says.h"
#include "test.h"

/* An all-reduce in two phases: sums of parts, then all parts. */
typedef struct two_phases {
    atomic_int inside; /* calls under way */
    int calls, freed, opened;
    uint64_t step;
    int next[2]; /* the bucket that must come next in each phase */
    int fail_at; /* the call that fails; 0: none */
} two_phases;

static ls_status two_open(void *state, const ls_bucket_param *params, int count, int rank,
                          int ranks)
{
    two_phases *t = state;
    t->opened++;
    CHECK_INT(rank, ls_rank());
    CHECK_INT(ranks, ls_world_size());
    CHECK(count > 0 && params[0].index == 0 && params[0].grad == NULL);
    return LS_OK;
}

static ls_status two_before(void *state, ls_bucket *bucket, int phase, ls_exchange *out,
                            ls_stream *stream)
{
    two_phases *t = state;
    CHECK(stream == NULL && atomic_fetch_add(&t->inside, 1) == 0);
    CHECK(ls_bucket_index(bucket) >= t->next[phase] || ls_bucket_index(bucket) == 0);
    t->next[phase] = ls_bucket_index(bucket) + 1;
    t->step = ls_bucket_step(bucket);
    const int64_t part = ls_bucket_numel(bucket) / ls_bucket_ranks(bucket);
    float *memory = ls_bucket_memory(bucket), *own = memory + part * ls_bucket_rank(bucket);
    float *sum = ls_bucket_scratch(bucket, 3, (size_t)part * sizeof(float));
    *out = phase == 0 ? (ls_exchange){.size = sizeof *out,
                                      .kind = LS_EXCHANGE_REDUCE_SCATTER,
                                      .input = memory,
                                      .output = sum,
                                      .count = part,
                                      .dtype = LS_FLOAT32,
                                      .mean = true}
                      : (ls_exchange){.size = sizeof *out,
                                      .kind = LS_EXCHANGE_ALL_GATHER,
                                      .input = own,
                                      .output = memory,
                                      .count = part,
                                      .dtype = LS_FLOAT32};
    (void)atomic_fetch_sub(&t->inside, 1);
    if (++t->calls == t->fail_at) {
        return LS_ERR_LIMIT;
    }
    return LS_OK;
}

static ls_status two_after(void *state, ls_bucket *bucket, int phase, ls_stream *stream)
{
    two_phases *t = state;
    CHECK(stream == NULL && atomic_fetch_add(&t->inside, 1) == 0);
    if (phase == 0) {
        const int64_t part = ls_bucket_numel(bucket) / ls_bucket_ranks(bucket);
        float *own = (float *)ls_bucket_memory(bucket) + part * ls_bucket_rank(bucket);
        memcpy(own, ls_bucket_scratch(bucket, 3, 0), (size_t)part * sizeof(float));
    }
    (void)atomic_fetch_sub(&t->inside, 1);
    return LS_OK;
}

static void two_free(void *state)
{
    ((two_phases *)state)->freed++;
}

static ls_comm_hook two_hook(two_phases *state)
{
    return *LS_OPTIONS(ls_comm_hook, .name = "two phases", .phases = 2, .state = state,
                       .open = two_open, .before = two_before, .after = two_after,
                       .free = two_free);
}

/* ---- training -------------------------------------------------------------------------------- */

static ls_module *make_net(const ls_comm_hook *hook)
{
    CHECK_OK(ls_manual_seed(1));
    ls_module *layers[] = {ls_linear_new(6, 33, NULL), ls_relu_new(), ls_linear_new(33, 1, NULL)};
    ls_module *net = ls_ddp_new(ls_sequential_new(layers, 3), ls_world(),
                                LS_OPTIONS(ls_ddp_options, .bucket_bytes = 256, .check_every = 1));
    CHECK_OK(ls_module_status(net));
    if (hook != NULL) {
        CHECK_OK(ls_ddp_set_hook(net, hook));
    }
    return net;
}

/* The loss of the last step; rank r has r+1 samples, and two micro-batches. */
static double train(ls_module *net, int steps)
{
    double last = 0.0;
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 1e-2));
    for (int step = 0; step < 2 * steps; step++) {
        LS_SCOPE;
        const int rows = 1 + ls_rank();
        float x[8 * 6], t[8];
        for (int i = 0; i < 6 * rows; i++) {
            x[i] = ls_random_normal(5, (uint64_t)(8 * step + ls_rank()), (uint64_t)i);
        }
        for (int i = 0; i < rows; i++) {
            t[i] = x[6 * i] + 0.5f * x[6 * i + 1];
        }
        CHECK_OK(ls_ddp_set_sync(net, step % 2 == 1));
        ls_tensor *e = ls_sub(ls_forward(net, ls_from_data(x, LS_SHAPE(rows, 6), LS_FLOAT32)),
                              ls_from_data(t, LS_SHAPE(rows, 1), LS_FLOAT32));
        ls_tensor *loss = ls_mean(ls_mul(e, e));
        CHECK_OK(ls_backward_weighted(loss, rows));
        if (step % 2 == 1) {
            CHECK_OK(ls_optim_step(optim));
            ls_optim_zero_grad(optim);
        }
        CHECK_OK(ls_item(loss, &last));
    }
    ls_optim_free(optim);
    return last;
}

DIST_TESTS(a_hook_of_two_phases_over_, _ranks_learns_what_ddp_learns, 1, 2, 3, 5, 8)
{
    ls_module *plain = make_net(NULL);
    const double want = train(plain, 12);
    two_phases state = {0};
    const ls_comm_hook hook = two_hook(&state);
    ls_module *net = make_net(&hook);
    CHECK_NEAR(train(net, 12), want, 1e-6);
    const bool several = ls_world_size() > 1;
    CHECK(several == (state.calls > 0));
    CHECK_INT(state.step, several ? 11 : 0);
    CHECK_INT(state.opened, 1);
    CHECK_OK(ls_ddp_set_hook(net, NULL));
    CHECK_INT(state.freed, 1);
    const int calls = state.calls;
    (void)train(net, 2);
    CHECK_INT(state.calls, calls);
    ls_module_free(net);
    ls_module_free(plain);
    CHECK_INT(state.freed, 1);
}

DIST_TEST(a_hook_is_freed_with_its_wrapper, 2)
{
    two_phases state = {0};
    const ls_comm_hook hook = two_hook(&state);
    ls_module *net = make_net(&hook);
    (void)train(net, 1);
    ls_module_free(net);
    CHECK_INT(state.freed, 1);
    ls_module *bare = ls_linear_new(2, 2, NULL);
    CHECK_OK(ls_ddp_set_hook(bare, &hook)); /* without a wrapper there is nothing to set */
    CHECK_INT(state.freed, 2);
    ls_module_free(bare);
}

/* ---- mistakes -------------------------------------------------------------------------------- */

typedef struct small {
    ls_reducer *reducer;
    ls_reducer_param params[2];
} small;

static small open_small(ls_dtype wire)
{
    small s = {.params = {{.name = "a", .count = 100}, {.name = "b", .count = 3000}}};
    CHECK_OK(ls_reducer_new(ls_world(), s.params, 2,
                            LS_OPTIONS(ls_reducer_options, .bucket_bytes = 0, .wire_dtype = wire),
                            &s.reducer));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* a failure is told to all ranks */
    return s;
}

static ls_status one_backward(const small *s)
{
    CHECK_OK(ls_reducer_begin(s->reducer, NULL));
    CHECK_OK(ls_reducer_ready(s->reducer, 1, NULL));
    CHECK_OK(ls_reducer_ready(s->reducer, 0, NULL));
    return ls_reducer_wait(s->reducer);
}

DIST_TEST(an_error_of_a_hook_ends_the_backward_on_all_ranks, 3)
{
    for (int call = 1; call <= 4; call++) {
        two_phases state = {.fail_at = ls_rank() == 1 ? call : 0};
        const ls_comm_hook hook = two_hook(&state);
        small s = open_small(LS_FLOAT32);
        CHECK_OK(ls_reducer_set_hook(s.reducer, &hook));
        CHECK_STATUS(one_backward(&s), LS_ERR_LIMIT);
        CHECK_CONTAINS(ls_error_message(), "hook \"two phases\", phase ");
        (void)ls_reducer_free(s.reducer);
        CHECK_INT(state.freed, 1);
    }
}

static ls_status bad_before(void *state, ls_bucket *bucket, int phase, ls_exchange *out,
                            ls_stream *stream)
{
    (void)stream;
    CHECK_INT(phase, 0);
    *out = *(const ls_exchange *)state;
    if (out->input != NULL) {
        out->input = out->output = ls_bucket_memory(bucket);
    }
    return LS_OK;
}

DIST_TEST(an_exchange_that_makes_no_sense_is_refused, 2)
{
    char place;
    ls_exchange bad[] = {
        {.size = sizeof *bad, .kind = (ls_exchange_kind)9, .input = &place, .count = 1},
        {.size = sizeof *bad, .kind = LS_EXCHANGE_ALL_REDUCE, .input = &place, .count = -1},
        {.size = sizeof *bad, .kind = LS_EXCHANGE_ALL_REDUCE, .count = 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        small s = open_small(LS_FLOAT32);
        CHECK_OK(
            ls_reducer_set_hook(s.reducer, LS_OPTIONS(ls_comm_hook, .name = "bad", .state = &bad[i],
                                                      .before = bad_before)));
        CHECK_STATUS(one_backward(&s), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(),
                   "phase %d of hook \"%s\" asks for exchange %d of %lld elements of type %d, ");
        CHECK_CONTAINS(ls_error_message(),
                       "; give an ls_exchange_kind, a count >= 0, a dtype and memory");
        (void)ls_reducer_free(s.reducer);
    }
}

/* Calls that a hook may make wrongly. */
static ls_status asking_before(void *state, ls_bucket *bucket, int phase, ls_exchange *out,
                               ls_stream *stream)
{
    ls_bucket_param param = {.size = sizeof param};
    (void)state;
    (void)phase;
    (void)stream;
    CHECK_STATUS(ls_bucket_get_param(NULL, 0, &param), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "ls_bucket_get_param: the bucket is NULL; give a hook's");
    CHECK_STATUS(ls_bucket_get_param(bucket, 99, &param), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_bucket_get_param: parameter %d of a bucket with %d; give 0 to %d");
    CHECK(ls_bucket_scratch(bucket, LS_BUCKET_SLOTS, 1) == NULL);
    CHECK_SAYS(ls_error_message(), "ls_bucket_scratch: slot %d; give 0 to %d");
    out->kind = LS_EXCHANGE_NONE;
    return LS_OK;
}

DIST_TEST(what_a_hook_asks_for_wrongly_is_refused_in_words, 2)
{
    small s = open_small(LS_FLOAT32);
    CHECK_OK(ls_reducer_set_hook(
        s.reducer, LS_OPTIONS(ls_comm_hook, .name = "asking", .before = asking_before)));
    CHECK_OK(one_backward(&s));
    CHECK_OK(ls_reducer_free(s.reducer));
}

DIST_TEST(a_hook_beside_shards_is_refused, 2)
{
    two_phases state = {0};
    const ls_comm_hook hook = two_hook(&state);
    ls_module *net =
        ls_ddp_new(ls_linear_new(2, 2, NULL), ls_world(), LS_OPTIONS(ls_ddp_options, .shards = 2));
    CHECK_OK(ls_module_status(net));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK_STATUS(ls_ddp_set_hook(net, &hook), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(
        ls_error_message(),
        "hook \"%s\" and shards: what a hook sends depends on the number of ranks, so the bits "
        "would; leave one of them out");
    CHECK_INT(state.freed, 1);
    ls_module_free(net);
}

DIST_TEST(other_numbers_of_phases_are_named, 2)
{
    small s = open_small(LS_FLOAT32);
    two_phases state = {0};
    ls_comm_hook hook = two_hook(&state);
    hook.phases = 1 + ls_rank();
    CHECK_STATUS(ls_reducer_set_hook(s.reducer, &hook), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(), "the phases of the communication hook");
    (void)ls_reducer_free(s.reducer);
}

DIST_TEST(a_hook_beside_another_type_on_the_wire_is_refused, 2)
{
    small s = open_small(LS_BFLOAT16);
    two_phases state = {0};
    const ls_comm_hook hook = two_hook(&state);
    CHECK_STATUS(ls_reducer_set_hook(s.reducer, &hook), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "hook \"%s\" and wire_dtype: a hook says itself what is sent; "
                                   "leave one of them out");
    CHECK_INT(state.freed, 1);
    (void)ls_reducer_free(s.reducer);
}

DIST_TEST(a_hook_without_a_function_is_refused, 2)
{
    small s = open_small(LS_FLOAT32);
    CHECK_STATUS(ls_reducer_set_hook(s.reducer, LS_OPTIONS(ls_comm_hook, .name = "none")),
                 LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_reducer_set_hook: name %s, before %s, %d phases; give a name, "
               "a function and 1 to %d phases");
    (void)ls_reducer_free(s.reducer);
    CHECK_STATUS(ls_reducer_set_hook(NULL, NULL), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "ls_reducer_set_hook: the reducer is NULL");
}

DIST_TEST(a_state_is_set_once, 2)
{
    small s = open_small(LS_FLOAT32);
    two_phases state = {0};
    const ls_comm_hook hook = two_hook(&state);
    CHECK_OK(ls_reducer_set_hook(s.reducer, &hook));
    CHECK_STATUS(ls_reducer_set_hook(s.reducer, &hook), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_reducer_set_hook: the state of hook \"%s\" is in use already; "
               "make a new one");
    CHECK_OK(one_backward(&s));
    CHECK_OK(ls_reducer_free(s.reducer));
    CHECK_INT(state.freed, 1);
}

DIST_TEST(a_rank_without_the_hook_is_named, 3)
{
    small s = open_small(LS_FLOAT32);
    two_phases state = {0};
    const ls_comm_hook hook = two_hook(&state);
    CHECK_STATUS(ls_reducer_set_hook(s.reducer, ls_rank() == 2 ? NULL : &hook), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "the ranks differ in the communication hook: rank 0 has two "
                                       "phases");
    CHECK_CONTAINS(ls_error_message(), "rank 2 has none; set the same on all ranks");
    CHECK_SAYS(ls_error_message(), "the communication hook");
    CHECK_SAYS(ls_error_message(), "set the same on all ranks");
    (void)ls_reducer_free(s.reducer);
    CHECK_INT(state.freed, ls_rank() == 2 ? 0 : 1);
}

TEST_MAIN

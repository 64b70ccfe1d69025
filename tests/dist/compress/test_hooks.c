/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the user's: what they are shown, and what becomes of what they return. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "comm/core/comm.h"
#include "comm/core/group.h"
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

DIST_TEST(a_hook_is_set_on_the_wrapper_and_on_no_module_beside_it, 2)
{
    two_phases state = {0};
    bool more = true;
    const ls_comm_hook hook = two_hook(&state);
    ls_module *net = make_net(NULL);
    ls_module *whole = ls_sequential_new(&net, 1);
    CHECK_STATUS(ls_ddp_set_hook(whole, &hook), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "%s: the %s is not the ddp, but %s; give what ls_ddp_new returned");
    CHECK_INT(state.freed, 1);
    CHECK_STATUS(ls_ddp_set_hook(ls_ddp_module(net), &hook), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "part of it");
    CHECK_STATUS(ls_ddp_gather(whole), LS_ERR_INVALID);
    CHECK_STATUS(ls_ddp_release(whole), LS_ERR_INVALID);
    CHECK_STATUS(ls_ddp_join(whole, NULL, &more), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "has one below it");
    ls_module_free(whole);
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

/* Every rank steps on its own gradients. */
static ls_status nothing_before(void *state, ls_bucket *bucket, int phase, ls_exchange *out,
                                ls_stream *stream)
{
    (void)state, (void)bucket, (void)phase, (void)out, (void)stream;
    return LS_OK;
}

DIST_TEST(replicas_that_a_hook_makes_differ_are_found, 2)
{
    ls_module *net =
        make_net(LS_OPTIONS(ls_comm_hook, .name = "nothing", .before = nothing_before));
    ls_optim *optim = ls_sgd_new(net, NULL);
    ls_status status = LS_OK;
    for (int step = 0; step < 4 && status == LS_OK; step++) {
        LS_SCOPE;
        const float x[6] = {(float)(1 + ls_rank())};
        status = ls_backward(ls_mean(ls_forward(net, ls_from_data(x, LS_SHAPE(1, 6), LS_FLOAT32))));
        CHECK(status < 0 || ls_optim_step(optim) == LS_OK);
    }
    CHECK_STATUS(status, LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(),
               "the communication hook gave the ranks different averages, a bit has flipped, or "
               "the program changed it on one rank: continue from the last checkpoint");
    ls_optim_free(optim);
    ls_module_free(net);
}

/* As a program fills in a struct without LS_OPTIONS. */
DIST_TEST(a_hook_may_have_no_text_about_its_settings, 2)
{
    two_phases state = {0};
    ls_comm_hook hook = two_hook(&state);
    hook.about = NULL;
    small s = open_small(LS_FLOAT32);
    CHECK_OK(ls_reducer_set_hook(s.reducer, &hook));
    CHECK_OK(one_backward(&s));
    CHECK_OK(ls_reducer_free(s.reducer));
    CHECK_STATUS(ls_reducer_set_hook(NULL, &hook), LS_ERR_STATE);
    CHECK_INT(state.freed, 2); /* owned, also after a failure */
    CHECK_STATUS(ls_reducer_set_hook(NULL, &(ls_comm_hook){.name = "none"}), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "%s: the size of the %s is %zu, and it has %zu bytes; fill it "
                                   "with LS_OPTIONS(%s, …)");
}

DIST_TEST(the_plain_hook_takes_another_one_off, 2)
{
    two_phases state = {0};
    const ls_comm_hook hook = two_hook(&state);
    ls_comm_hook plain = {.size = sizeof plain};
    small s = open_small(LS_FLOAT32);
    CHECK_OK(ls_reducer_set_hook(s.reducer, &hook));
    CHECK_OK(ls_comm_hook_parse("plain", &plain));
    CHECK_OK(ls_reducer_set_hook(s.reducer, &plain));
    CHECK_INT(state.freed, 1);
    CHECK_OK(one_backward(&s));
    CHECK_INT(state.calls, 0);
    CHECK_OK(ls_reducer_free(s.reducer));
}

/* What an earlier call has failed with is not the hook's failure. */
DIST_TEST(a_bucket_without_elements_passes_through_a_hook, 2)
{
    ls_comm_hook hook = {.size = sizeof hook};
    small s = {.params = {{.name = "empty"}, {.name = "b", .count = 30}}};
    CHECK_OK(ls_reducer_new(ls_world(), s.params, 2,
                            LS_OPTIONS(ls_reducer_options, .bucket_bytes = 0), &s.reducer));
    CHECK_OK(ls_cast_hook_new(LS_BFLOAT16, &hook));
    CHECK_OK(ls_reducer_set_hook(s.reducer, &hook));
    CHECK_STATUS(ls_comm_hook_parse("none", &hook), LS_ERR_INVALID);
    CHECK_OK(one_backward(&s));
    CHECK_OK(ls_reducer_free(s.reducer));
}

/* The phases start on two threads, of which one is at no place of the program; some ranks do not
 * use all parameters, or have no data. */
DIST_TEST(a_strict_check_does_not_compare_from_where_a_backward_sends, 3)
{
    ls_world()->comm->strict = true;
    for (int plain = 0; plain < 2; plain++) {
        two_phases state = {0};
        const ls_comm_hook hook = two_hook(&state);
        ls_module *net = make_net(plain != 0 ? NULL : &hook);
        (void)train(net, 6);
        bool more = false;
        ls_tensor *x = ls_zeros(LS_SHAPE(1, 6), LS_FLOAT32);
        if (ls_rank() == 1) {
            CHECK_OK(ls_ddp_join(net, NULL, &more));
        } else {
            CHECK_OK(ls_backward(ls_mean(ls_forward(net, x))));
        }
        ls_module_free(net);
    }
    ls_world()->comm->strict = false;
}

static void place_alone(void *arg, const char *name, const ls_tensor *param, ls_ddp_place *place)
{
    (void)param;
    place->reduce_group = strcmp(name, "weight") == 0 ? arg : NULL;
}

DIST_TEST(a_hook_beside_gradients_of_a_part_of_the_group_is_refused, 2)
{
    two_phases state = {0};
    const ls_comm_hook hook = two_hook(&state);
    ls_group *alone = NULL;
    CHECK_OK(ls_group_split(ls_world(), ls_rank(), 0, NULL, &alone));
    ls_module *net =
        ls_ddp_new(ls_linear_new(2, 2, NULL), ls_world(),
                   LS_OPTIONS(ls_ddp_options, .place = place_alone, .place_arg = alone));
    CHECK_OK(ls_module_status(net));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK_STATUS(ls_ddp_set_hook(net, &hook), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "hook \"%s\", and some gradients are added over a part of the group (place, or "
               "batch_axes of a mesh): parameters of one name differ between ranks then, and so "
               "would what the hook keeps for them; leave the hook out");
    CHECK_INT(state.freed, 1);
    ls_module_free(net);
    CHECK_OK(ls_group_free(alone));
}

DIST_TEST(a_hook_beside_parameters_that_a_mesh_divides_is_refused, 2)
{
    two_phases state = {0};
    const ls_comm_hook hook = two_hook(&state);
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "dp=1,tp=2", &mesh));
    ls_module *inner = ls_linear_new(2, 2, NULL);
    CHECK_OK(ls_tensor_shard(ls_module_param(inner, "weight"), "tp", 0, NULL, 0));
    ls_module *net = ls_ddp_new(inner, ls_mesh_group(mesh, "dp"), NULL);
    CHECK_OK(ls_module_status(net));
    CHECK_STATUS(ls_ddp_set_hook(net, &hook), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "a communication hook, and parameter %s is divided along axis %s of the mesh: a "
               "checkpoint could not show what the hook keeps for its parts; leave the hook out");
    CHECK_INT(state.freed, 1);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

/* Residuals are state of training, and no weights. */
DIST_TEST(a_file_of_weights_has_no_state_of_a_hook, 2)
{
    ls_comm_hook hook = {.size = sizeof hook};
    char path[64];
    CHECK_OK(ls_comm_hook_parse("int8", &hook));
    ls_module *net = make_net(&hook);
    (void)train(net, 2);
    const uint64_t before = ls_module_hash(ls_ddp_module(net));
    (void)snprintf(path, sizeof path, "hook-weights-%d.safetensors", ls_rank());
    CHECK_OK(ls_module_save_safetensors(net, path, NULL));
    (void)train(net, 1);
    CHECK(ls_module_hash(ls_ddp_module(net)) != before);
    CHECK_OK(ls_module_load_safetensors(net, path, NULL));
    CHECK(ls_module_hash(ls_ddp_module(net)) == before);
    (void)remove(path);
    ls_module_free(net);
}

/* Their settings change in no common order. */
typedef struct trained {
    ls_runtime *runtime;
    ls_module *net;
    int steps;
} trained;

static void *train_thread(void *arg)
{
    const trained *t = arg;
    CHECK_OK(ls_runtime_attach(t->runtime));
    ls_optim *optim = ls_sgd_new(t->net, LS_OPTIONS(ls_sgd_options, .lr = 1e-3));
    for (int step = 0; step < t->steps; step++) {
        LS_SCOPE;
        ls_optim_set_lr(optim, 1e-3 / (1 + step));
        const float x[6] = {(float)ls_rank(), (float)step, 1};
        CHECK_OK(
            ls_backward(ls_mean(ls_forward(t->net, ls_from_data(x, LS_SHAPE(1, 6), LS_FLOAT32)))));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    ls_optim_free(optim);
    CHECK_OK(ls_runtime_attach(NULL));
    return NULL;
}

DIST_TEST(two_threads_train_two_models, 3)
{
    ls_group *groups[2];
    pthread_t threads[2];
    trained models[2];
    for (int i = 0; i < 2; i++) {
        const int ranks[] = {0, 1, 2};
        CHECK_OK(ls_group_new(ls_world(), ranks, 3, i == 0 ? "one" : "two", &groups[i]));
        models[i] = (trained){ls_runtime_current(),
                              ls_ddp_new(ls_linear_new(6, 2, NULL), groups[i], NULL), 10 + 5 * i};
        CHECK_OK(ls_module_status(models[i].net));
    }
    for (int i = 0; i < 2; i++) { /* on one rank in the other order */
        const int first = ls_rank() == 1 ? 1 - i : i;
        CHECK(pthread_create(&threads[first], NULL, train_thread, &models[first]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        ls_module_free(models[i].net);
    }
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ls_group_free(groups[i]));
    }
}

TEST_MAIN

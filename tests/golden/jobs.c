/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of several ranks in which ranks disagree, die, or wait. */
#include <signal.h>

#include "golden.h"

static float buf[5000];

#define SUM_OF(count, dtype, op) ls_all_reduce(ls_world(), buf, buf, count, dtype, op, NULL, NULL)
#define SUM_WITH(...)                                                                              \
    ls_all_reduce(ls_world(), buf, buf, 4, LS_FLOAT32, LS_SUM,                                     \
                  LS_OPTIONS(ls_collective_options, __VA_ARGS__), NULL)

/* Every rank's call, under one heading. */
#define SHOW_RANKS(what, call) golden_show(what, (call))

static bool odd(void)
{
    return ls_rank() % 2 == 1;
}

/* An operation that all have come through: who dies next does not die in it for a slower rank. */
static void weights(void)
{
    MUST(SUM_WITH(.tag = "weights"));
    for (int r = 0; r < ls_world_size(); r += 2) {
        char key[24];
        snprintf(key, sizeof key, "past %d", r);
        if (odd()) {
            MUST(ls_store_wait(ls_runtime_store(), key, -1));
        } else if (r == ls_rank()) {
            MUST(ls_store_set(ls_runtime_store(), key, "", 1, -1));
        }
    }
}

GOLDEN_RANKS(counts_differ, 2)
{
    SHOW_RANKS("all_reduce", SUM_OF(odd() ? 8 : 4, LS_FLOAT32, LS_SUM));
    SHOW_RANKS("the next operation", ls_barrier(ls_world(), NULL, NULL));
}

GOLDEN_RANKS(counts_of_blocks_differ, 2)
{
    const int64_t counts[] = {3, odd() ? 2 : 1}, own = odd() ? 2 : 3;
    SHOW_RANKS("all_gather_v", ls_all_gather_v(ls_world(), buf, own, buf + 8, counts, NULL,
                                               LS_FLOAT32, NULL, NULL));
}

/* Rank 1 may have sent its block before it hears that it is too long. */
GOLDEN_RANKS(a_block_is_longer_than_the_root_expects, 2)
{
    const int64_t counts[] = {3, 1};
    const ls_status status = ls_gather_v(ls_world(), buf, odd() ? 2 : 3, buf + 8, counts, NULL,
                                         LS_FLOAT32, 0, NULL, NULL);
    SHOW_RANKS("gather_v, or the next operation",
               status == LS_OK ? ls_barrier(ls_world(), NULL, NULL) : status);
}

GOLDEN_RANKS(dtypes_differ, 2)
{
    SHOW_RANKS("all_reduce", SUM_OF(4, odd() ? LS_INT32 : LS_FLOAT32, LS_SUM));
}

GOLDEN_RANKS(reduce_ops_differ, 2)
{
    SHOW_RANKS("all_reduce", SUM_OF(4, LS_FLOAT32, odd() ? LS_MAX : LS_SUM));
}

GOLDEN_RANKS(roots_differ, 2)
{
    SHOW_RANKS("broadcast", ls_broadcast(ls_world(), buf, 4, LS_FLOAT32, ls_rank(), NULL, NULL));
}

GOLDEN_RANKS(operations_differ, 2)
{
    SHOW_RANKS("an operation",
               odd() ? ls_barrier(ls_world(), NULL, NULL)
                     : ls_reduce(ls_world(), buf, buf, 4, LS_FLOAT32, LS_SUM, 0, NULL, NULL));
}

/* Ranks r and r + 1 are pair r, and each waits in another pair. */
static void wait_around(void)
{
    const int size = ls_world_size();
    ls_group *mine = NULL;
    for (int r = 0; r < size; r++) {
        const int next = (r + 1) % size;
        const int pair[2] = {r < next ? r : next, r < next ? next : r};
        ls_group *group = NULL;
        char name[24];
        (void)snprintf(name, sizeof name, "pair %d", r);
        LS_CHECK(ls_group_new(ls_world(), pair, 2, name, &group));
        mine = r == ls_rank() ? group : mine;
    }
    SHOW_RANKS("all_reduce", ls_all_reduce(mine, buf, buf, 4, LS_FLOAT32, LS_SUM, NULL, NULL));
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
}

GOLDEN_RANKS(groups_are_called_in_another_order, 2)
{
    wait_around();
}

GOLDEN_RANKS(five_wait_in_a_circle, 5)
{
    wait_around();
}

GOLDEN_RANKS(a_receive_waits_for_a_send_after_a_barrier, 2)
{
    ls_group *group = NULL;
    LS_CHECK(ls_group_new(ls_world(), NULL, 0, "p2p", &group));
    SHOW_RANKS("an operation", odd() ? ls_send(group, buf, 4, LS_FLOAT32, 0, 6, NULL, NULL)
                                     : ls_recv(group, buf, 4, LS_FLOAT32, 1, 5, NULL, NULL));
}

static int calls_from_its_own_place(void *arg)
{
    (void)arg;
    LS_CHECK(ls_init(NULL));
    ls_status status = LS_OK;
    if (odd()) {
        status = SUM_OF(4, LS_FLOAT32, LS_SUM);
    } else {
        status = SUM_OF(4, LS_FLOAT32, LS_SUM);
    }
    if (ls_rank() == 0) {
        golden_show("all_reduce", status);
    }
    return ls_finalize() < 0;
}

GOLDEN_BARE(call_sites_differ_and_the_check_is_strict)
{
    (void)setenv("LOCKSTEP_CHECK", "strict", 1);
    LS_CHECK(ls_spawn(calls_from_its_own_place, NULL, 2));
}

GOLDEN_RANKS(tags_differ, 2)
{
    SHOW_RANKS("all_reduce", SUM_WITH(.tag = odd() ? "weights" : "biases"));
}

GOLDEN_RANKS(divisors_differ, 2)
{
    SHOW_RANKS("all_reduce", SUM_WITH(.divisor = odd() ? 2 : 3));
}

GOLDEN_RANKS(algorithms_differ, 2)
{
    SHOW_RANKS("all_reduce", SUM_WITH(.algorithm = odd() ? "ring" : "direct"));
}

GOLDEN_RANKS(messages_differ, 2)
{
    SHOW_RANKS("send and recv", odd() ? ls_recv(ls_world(), buf, 8, LS_FLOAT32, 0, 3, NULL, NULL)
                                      : ls_send(ls_world(), buf, 4, LS_FLOAT32, 1, 3, NULL, NULL));
}

GOLDEN_LATE(a_message_that_nobody_asks_for, 2)
{
    if (odd()) {
        sleep(3);
        return;
    }
    SHOW_RANKS("ls_send", ls_send(ls_world(), buf, 4, LS_FLOAT32, 1, 4, NULL, NULL));
}

/* The sleeps are long beside the deadlines: a machine may hold both ranks still for seconds. */
GOLDEN_LATE(a_rank_does_not_call, 2)
{
    if (odd()) {
        sleep(10);
    }
    SHOW_RANKS("all_reduce", SUM_OF(4, LS_FLOAT32, LS_SUM));
}

GOLDEN_LATE(a_rank_receives_what_nobody_sends, 2)
{
    ls_work *work = NULL;
    if (odd()) {
        SHOW_RANKS("ls_recv", ls_recv(ls_world(), buf, 4, LS_FLOAT32, 0, 3,
                                      LS_OPTIONS(ls_collective_options, .timeout_ms = 1200), NULL));
    } else {
        MUST(ls_send(ls_world(), buf, 4, LS_FLOAT32, 1, 4, NULL, &work));
        sleep(10);
    }
}

GOLDEN_RANKS(a_rank_is_late, 2)
{
    if (odd()) {
        sleep(12);
    }
    SHOW_RANKS("all_reduce", SUM_WITH(.timeout_ms = 20000, .tag = "weights"));
}

GOLDEN_RANKS(a_rank_leaves_early, 2)
{
    if (odd()) {
        return;
    }
    SHOW_RANKS("all_reduce", SUM_OF(4, LS_FLOAT32, LS_SUM));
}

GOLDEN_RANKS(a_rank_aborts_the_group, 2)
{
    if (odd()) {
        MUST(ls_group_abort(ls_world(), "the data ran out"));
    }
    SHOW_RANKS("all_reduce", SUM_OF(4, LS_FLOAT32, LS_SUM));
}

GOLDEN_LATE(a_rank_is_stopped, 2)
{
    weights();
    if (odd()) {
        raise(SIGSTOP);
    }
    SHOW_RANKS("all_reduce", SUM_WITH(.timeout_ms = 4500));
    exit(1); /* as LS_CHECK does; the launcher waits for ranks that may still go on */
}

GOLDEN_FAR(a_rank_is_killed_on_another_host, 2)
{
    weights();
    if (odd()) {
        raise(SIGKILL);
    }
    SHOW_RANKS("all_reduce", SUM_OF(4, LS_FLOAT32, LS_SUM));
}

GOLDEN_FAR(counts_differ_between_hosts, 2)
{
    SHOW_RANKS("all_reduce", SUM_OF(odd() ? 8 : 4, LS_FLOAT32, LS_SUM));
}

GOLDEN_FAR(shared_memory_asked_for_between_hosts, 2)
{
    SHOW_RANKS("all_reduce", SUM_WITH(.algorithm = "one_shot"));
}

GOLDEN_RANKS(a_rank_is_killed, 2)
{
    weights();
    if (odd()) {
        raise(SIGKILL);
    }
    SHOW_RANKS("all_reduce", SUM_OF(4, LS_FLOAT32, LS_SUM));
}

GOLDEN_RANKS(a_rank_exits_with_a_code, 2)
{
    weights();
    if (odd()) {
        fprintf(stderr, "the disk of this rank is full\n");
        _exit(3);
    }
    SHOW_RANKS("all_reduce", SUM_OF(4, LS_FLOAT32, LS_SUM));
}

GOLDEN_RANKS(a_rank_exits_with_0, 3)
{
    weights();
    if (odd()) {
        _exit(0);
    }
    SHOW_RANKS("all_reduce", SUM_OF(4, LS_FLOAT32, LS_SUM));
}

GOLDEN_RANKS(a_check_fails_on_one_rank, 2)
{
    if (odd()) {
        LS_CHECK(SUM_OF(-1, LS_FLOAT32, LS_SUM));
    }
    SHOW_RANKS("all_reduce", SUM_OF(4, LS_FLOAT32, LS_SUM));
}

GOLDEN_RANKS(groups_differ, 2)
{
    ls_group *g = NULL;
    SHOW_RANKS("ls_group_new",
               ls_group_new(ls_world(), (const int[]){0, 1}, odd() ? 1 : 2, "part", &g));
}

GOLDEN_LATE(the_store_waits_in_vain, 2)
{
    char value[8];
    size_t bytes = sizeof value;
    if (odd()) {
        SHOW(ls_store_get(ls_runtime_store(), "checkpoint", value, &bytes, 200));
    }
}

/* ---- reducers and ddp ------------------------------------------------------------------------ */

static void make_reducer(const char *what, int64_t second, const char *shape, int64_t bucket_bytes)
{
    ls_reducer_param params[] = {{.name = "w", .count = 4},
                                 {.name = "b", .shape = shape, .count = second}};
    ls_reducer *r = NULL;
    SHOW_RANKS(what, ls_reducer_new(ls_world(), params, 2,
                                    LS_OPTIONS(ls_reducer_options, .name = "mine",
                                               .bucket_bytes = (size_t)bucket_bytes),
                                    &r));
}

GOLDEN_RANKS(parameters_differ, 2)
{
    make_reducer("ls_reducer_new", odd() ? 3 : 2, NULL, 1 << 20);
}

GOLDEN_RANKS(bucket_sizes_differ, 2)
{
    make_reducer("ls_reducer_new", 2, NULL, odd() ? 1 << 20 : 1 << 22);
}

GOLDEN_RANKS(models_differ_far_behind, 2)
{
    static char shape[5000];
    memset(shape, 'x', sizeof shape - 2);
    shape[sizeof shape - 2] = odd() ? '1' : '2';
    make_reducer("ls_reducer_new", 2, shape, 1 << 20);
}

GOLDEN_RANKS(a_model_lacks_a_parameter, 2)
{
    static ls_reducer_param params[] = {{.name = "w", .count = 4}, {.name = "b", .count = 2}};
    ls_reducer *r = NULL;
    SHOW_RANKS("ls_reducer_new", ls_reducer_new(ls_world(), params, odd() ? 1 : 2, NULL, &r));
}

static ls_reducer *reducer(void)
{
    static ls_reducer_param params[] = {{.name = "w", .count = 4}, {.name = "b", .count = 2}};
    ls_reducer *r = NULL;
    MUST(ls_reducer_new(ls_world(), params, 2, LS_OPTIONS(ls_reducer_options, .name = "mine"), &r));
    return r;
}

static ls_status backward(ls_reducer *r, const ls_reducer_begin_options *options)
{
    LS_TRY(ls_reducer_begin(r, options));
    LS_TRY(ls_reducer_ready(r, 1, NULL));
    LS_TRY(ls_reducer_ready(r, 0, NULL));
    return ls_reducer_wait(r);
}

GOLDEN_RANKS(weights_that_overflow, 2)
{
    SHOW_RANKS("backward", backward(reducer(), LS_OPTIONS(ls_reducer_begin_options,
                                                          .weighted = true, .weight = 1.7e308)));
}

GOLDEN_RANKS(weighted_on_one_rank_only, 2)
{
    SHOW_RANKS("backward", backward(reducer(), LS_OPTIONS(ls_reducer_begin_options,
                                                          .weighted = odd(), .weight = 1)));
}

GOLDEN_RANKS(a_rank_runs_fewer_backwards, 2)
{
    ls_reducer *r = reducer();
    MUST(backward(r, NULL));
    if (odd()) {
        SHOW(ls_reducer_free(r));
        return;
    }
    SHOW_RANKS("backward", backward(r, NULL));
}

GOLDEN_RANKS(ranks_with_other_seeds, 2)
{
    MUST(ls_manual_seed(odd() ? 4 : 3));
    SHOW_RANKS("backward", backward(reducer(), NULL));
}

GOLDEN_RANKS(ranks_with_other_samplers, 2)
{
    ls_sampler *sampler = NULL;
    MUST(sampler = ls_sampler_new(24, LS_OPTIONS(ls_sampler_options, .batch = odd() ? 3 : 2)));
    SHOW_RANKS("backward", backward(reducer(), NULL));
    ls_sampler_free(sampler);
}

GOLDEN_RANKS(a_sampler_on_one_rank_only, 2)
{
    ls_sampler *sampler = NULL;
    if (odd()) {
        MUST(sampler = ls_sampler_new(24, LS_OPTIONS(ls_sampler_options, .drop_last = true)));
    }
    SHOW_RANKS("backward", backward(reducer(), NULL));
    ls_sampler_free(sampler);
}

GOLDEN_RANKS(a_rank_adds_up_more_backwards, 2)
{
    ls_reducer *r = reducer();
    if (odd()) {
        MUST(ls_reducer_begin(r, LS_OPTIONS(ls_reducer_begin_options, .local = true)));
        MUST(ls_reducer_ready(r, 1, NULL));
        MUST(ls_reducer_ready(r, 0, NULL));
    }
    SHOW_RANKS("backward", backward(r, NULL));
}

GOLDEN_RANKS(models_of_ddp_differ, 2)
{
    ls_module *net = ls_linear_new(4, odd() ? 3 : 2, NULL);
    const ls_module *ddp = ls_ddp_new(net, ls_world(), NULL);
    SHOW_RANKS("ls_ddp_new", ddp != NULL ? LS_OK : LS_ERR_MISMATCH);
}

GOLDEN_RANKS(a_loss_fails_on_one_rank, 2)
{
    ls_module *net = ls_ddp_new(ls_linear_new(4, 2, NULL), ls_world(), NULL);
    ls_optim *optim = ls_sgd_new(net, NULL);
    MUST(ls_barrier(ls_world(), NULL, NULL)); /* the failure would meet a rank that makes its ddp */
    ls_tensor *x = ls_ones(LS_SHAPE(1, odd() ? 5 : 4), LS_FLOAT32);
    SHOW_RANKS("ls_backward", ls_backward(ls_mean(ls_forward(net, x))));
    SHOW_RANKS("ls_optim_step", ls_optim_step(optim));
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static ls_status show_one(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    return visitor->int64(visitor->self, prefix, object);
}

static ls_checkpoint *opened(void)
{
    char path[80] = "";
    ls_checkpoint *c = NULL;
    if (ls_rank() == 0) {
        (void)snprintf(path, sizeof path, "%s", golden_folder());
    }
    MUST(ls_broadcast(ls_world(), path, sizeof path, LS_UINT8, 0, NULL, NULL));
    MUST(
        ls_checkpoint_new(path, ls_world(), LS_OPTIONS(ls_checkpoint_options, .async = false), &c));
    return c;
}

static ls_status show_tensor(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    const int64_t rows = 4 + ls_rank();
    const ls_state_tensor tensor = {.dtype = LS_FLOAT32,
                                    .ndim = 1,
                                    .global = {rows},
                                    .start = {2 * ls_rank()},
                                    .local = {2},
                                    .data = object};
    return visitor->tensor(visitor->self, prefix, &tensor);
}

GOLDEN_RANKS(slices_of_other_shapes, 2)
{
    const ls_checkpoint_item item = {.size = sizeof(ls_checkpoint_item),
                                     .prefix = "weight",
                                     .object = buf,
                                     .state = show_tensor};
    ls_checkpoint *c = opened();
    SHOW_RANKS("ls_checkpoint_save", ls_checkpoint_save(c, 5, &item, 1));
    (void)ls_checkpoint_free(c);
}

GOLDEN_RANKS(checkpoints_of_other_steps, 2)
{
    int64_t value = 1;
    const ls_checkpoint_item item = {
        .size = sizeof(ls_checkpoint_item), .prefix = "value", .object = &value, .state = show_one};
    ls_checkpoint *c = opened();
    SHOW_RANKS("ls_checkpoint_save", ls_checkpoint_save(c, 5 + ls_rank(), &item, 1));
    (void)ls_checkpoint_free(c);
}

GOLDEN_RANKS(checkpoints_of_other_items, 2)
{
    int64_t value = 1 + ls_rank();
    const ls_checkpoint_item item = {
        .size = sizeof(ls_checkpoint_item), .prefix = "value", .object = &value, .state = show_one};
    ls_checkpoint *c = opened();
    SHOW_RANKS("ls_checkpoint_save", ls_checkpoint_save(c, 5, &item, 1));
    (void)ls_checkpoint_free(c);
}

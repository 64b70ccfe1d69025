/* SPDX-License-Identifier: Apache-2.0 */
/* A synchronous server has the bits of data parallelism over its workers. */
#include <limits.h>

#include "says.h"
#include "server/server.h"
#include "train.h"

/* All ranks end with one model. */
static void check_replicas(const numbers *served)
{
    numbers first = *served;
    CHECK_OK(
        ls_broadcast(ls_world(), first.data, (int64_t)sizeof first.data, LS_UINT8, 0, NULL, NULL));
    CHECK(memcmp(first.data, served->data, served->bytes) == 0);
}

static void compare(const recipe *how)
{
    const numbers averaged = train_ddp(how);
    const numbers served = train_served(how);
    if (ls_rank() < workers_of(how)) {
        CHECK_INT(served.bytes, averaged.bytes);
        CHECK(memcmp(served.data, averaged.data, averaged.bytes) == 0);
    }
    check_replicas(&served);
}

/* With 1, 2 and 3 servers of their own, and on the workers themselves. */
static void compare_all(recipe how)
{
    for (int servers = 1; servers <= 3; servers++) {
        how.server.servers = servers;
        how.server.colocated = false;
        if (servers < ls_world_size()) {
            compare(&how);
        }
        how.server.colocated = true;
        if (servers <= ls_world_size()) {
            compare(&how);
        }
    }
}

DIST_TESTS(servers_on_, _ranks_have_the_bits_of_ddp, 2, 3, 4, 5, 6, 7, 8)
{
    compare_all((recipe){0});
}

DIST_TEST(sgd_with_momentum_has_the_bits_of_ddp, 4)
{
    compare_all((recipe){.sgd = true});
}

DIST_TEST(rmsprop_has_the_bits_of_ddp, 3)
{
    compare_all((recipe){.rmsprop = true});
}

DIST_TEST(weighted_passes_of_which_one_has_no_data_have_the_bits_of_ddp, 5)
{
    compare_all((recipe){.weighted = true});
}

DIST_TEST(micro_batches_have_the_bits_of_ddp, 4)
{
    compare_all((recipe){.micro_batches = 3});
    compare_all((recipe){.micro_batches = 2, .weighted = true});
}

DIST_TEST(bfloat16_has_the_bits_of_ddp, 4)
{
    compare_all((recipe){.bf16 = true});
}

DIST_TEST(buffers_follow_worker_0_as_with_ddp, 4)
{
    compare_all((recipe){.norm = true});
}

DIST_TEST(workers_that_end_early_have_the_bits_of_ddp, 4)
{
    compare_all((recipe){.uneven = true, .norm = true});
}

/* One server adds the squares as ls_clip_grad_norm does. Several add those of a parameter that lies
 * on two of them in two parts; here the factor, in float32, is the same. */
DIST_TEST(a_norm_that_servers_limit_has_the_bits_of_ddp, 5)
{
    compare_all((recipe){.server = {.clip_norm = 0.1}});
    compare_all((recipe){.server = {.clip_norm = 0.2}, .bf16 = true, .weighted = true});
    compare_all((recipe){.server = {.clip_norm = 0.1}, .uneven = true, .sgd = true});
    const recipe how = {.server = {.servers = 1, .clip_norm = 0.1}},
                 without = {.server = {.servers = 1}};
    CHECK(memcmp(train_served(&how).data, train_served(&without).data, 100) != 0);
}

DIST_TEST(a_worker_that_comes_late_changes_no_bits, 4)
{
    compare_all((recipe){.late = true});
}

/* Worker 0 goes on until the others have ended, and some steps more, so that servers have taken
 * what they pushed when it joins. Its part of the barrier is there from the beginning: with a
 * backup worker its last push may wait for another one, or for the end of the others. */
#define MORE 4

static bool goes_on(int step, ls_group *workers, ls_work **ended, int *last)
{
    if (step == 0 && workers != NULL) {
        CHECK_OK(ls_barrier(workers, NULL, ended));
    }
    const ls_status status = *ended != NULL ? ls_work_test(*ended) : LS_IN_PROGRESS;
    CHECK(status >= 0);
    if (*last == INT_MAX && status != LS_IN_PROGRESS) {
        *last = step + MORE;
    }
    return step < *last;
}

/* What batch norm has kept after the batches of worker 0: with a learning rate of 0 it depends on
 * nothing else. *steps, if it is not 0, is how many, and becomes it. */
static numbers train_buffers(const recipe *how, ls_module *net, ls_optim *optim, ls_group *workers,
                             int *steps)
{
    ls_work *ended = NULL;
    int last = *steps > 0 ? *steps : ls_rank() == 0 ? INT_MAX : STEPS, step = 0;
    CHECK_OK(ls_server_run(net, optim));
    while (ls_server_works(net) && goes_on(step, last == INT_MAX ? workers : NULL, &ended, &last)) {
        LS_SCOPE;
        CHECK_OK(ls_backward(loss_of(net, ls_rank(), step++)));
    }
    if (ended != NULL) {
        CHECK_OK(ls_work_wait(ended));
    } else if (workers != NULL) {
        CHECK_OK(ls_barrier(workers, NULL, NULL));
    }
    *steps = step;
    CHECK_OK(ls_server_join(net));
    return all_numbers(net, how);
}

static void check_buffers(recipe how)
{
    static const int ranks[] = {0, 1, 2};
    ls_group *workers = NULL, *alone = NULL;
    how.norm = how.sgd = true;
    CHECK_OK(ls_group_new(ls_world(), ranks, workers_of(&how), "workers", &workers));
    ls_module *net = serve_model(&how);
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.0));
    int steps = 0;
    const numbers served = train_buffers(&how, net, optim, workers, &steps);
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(workers != NULL ? ls_group_free(workers) : LS_OK);
    forget_settings();
    check_replicas(&served);
    CHECK_OK(ls_group_new(ls_world(), ranks, 1, "alone", &alone));
    if (alone != NULL) {
        net = ls_ddp_new(make_model(&how), alone, NULL);
        optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.0));
        const numbers twin = train_buffers(&how, net, optim, NULL, &steps);
        CHECK_INT(served.bytes, twin.bytes);
        CHECK(memcmp(served.data, twin.data, twin.bytes) == 0);
        ls_optim_free(optim);
        ls_module_free(net);
        CHECK_OK(ls_group_free(alone));
    }
    forget_settings();
}

DIST_TEST(buffers_are_worker_0s_in_every_mode, 5)
{
    check_buffers((recipe){.server = {.servers = 2}});
    check_buffers((recipe){.server = {.servers = 2, .backup = 1}});
    check_buffers((recipe){.server = {.servers = 2, .mode = LS_SERVER_ASYNC}});
    check_buffers((recipe){.server = {.servers = 2, .mode = LS_SERVER_STALE, .staleness = 1}});
}

/* ls_ddp_get_stats shows what a worker waits for. */
DIST_TEST(pulls_and_pushes_are_waits_for_others, 3)
{
    const recipe how = {.server = {.servers = 1}};
    ls_ddp_stats stats = {.size = sizeof stats};
    ls_module *net = serve_model(&how);
    ls_optim *optim = optim_of(net, &how);
    run_steps(net, optim, &how, 0, STEPS);
    CHECK_OK(ls_ddp_get_stats(net, &stats));
    if (ls_server_works(net)) {
        CHECK(stats.exposed.mean > 0.0 && stats.exposed.mean <= stats.wire.mean);
        CHECK(stats.exposed.mean < stats.step.mean);
        CHECK(stats.forward.mean > 0.0 && stats.backward.mean > 0.0);
    } else {
        CHECK(stats.step.mean == 0.0);
    }
    ls_optim_free(optim);
    ls_module_free(net);
    forget_settings();
}

/* ---- buckets --------------------------------------------------------------------------------- */

static int sent_in_backward; /* buckets, when backward is at the last layer to be reached */

static ls_status probe_forward(ls_function_call *call, ls_tensor *const *inputs, int input_count,
                               ls_tensor **outputs, int output_count, void *arg)
{
    (void)call, (void)input_count, (void)output_count, (void)arg;
    outputs[0] = ls_scale(inputs[0], 1.0);
    return LS_OK;
}

static ls_module *probed;

static ls_status probe_backward(ls_function_call *call, ls_tensor *const *output_grads,
                                int output_count, ls_tensor **input_grads, int input_count)
{
    (void)call, (void)output_count, (void)input_count;
    sent_in_backward = ls__server_of(probed)->sent;
    input_grads[0] = ls_scale(output_grads[0], 1.0);
    return LS_OK;
}

static const ls_function probe =
    LS_FUNCTION(.name = "probe", .forward = probe_forward, .backward = probe_backward);

typedef struct chain {
    ls_module base;
    ls_module *first, *last;
} chain;

static ls_tensor *chain_forward(ls_module *m, ls_tensor *x)
{
    chain *c = (chain *)m;
    return ls_forward(c->last, ls_function_apply(&probe, ls_forward(c->first, x), NULL));
}

static const ls_module_class chain_class =
    LS_MODULE_CLASS(.name = "chain", .forward = chain_forward);

DIST_TEST(a_bucket_is_pushed_while_backward_goes_on, 2)
{
    chain *c = ls_module_new(sizeof *c, &chain_class);
    c->first = ls_module_add(&c->base, "first", ls_linear_new(IN, HIDDEN, NULL));
    c->last = ls_module_add(&c->base, "last", ls_linear_new(HIDDEN, IN, NULL));
    ls_module *net =
        ls_server_new(&c->base, ls_world(), LS_OPTIONS(ls_server_options, .bucket_bytes = 256));
    CHECK_OK(ls_module_status(net));
    ls_optim *optim = ls_sgd_new(net, NULL);
    CHECK_OK(ls_server_run(net, optim));
    if (ls_server_works(net)) {
        LS_SCOPE;
        probed = net;
        CHECK_OK(ls_backward(loss_of(net, 0, 0)));
        CHECK(sent_in_backward > 0 && sent_in_backward < ls__server_of(net)->layout.buckets);
    }
    CHECK_OK(ls_server_join(net));
    ls_optim_free(optim);
    ls_module_free(net);
}

/* Meeting in between changes nothing: versions, state and workers' steps go on. */
DIST_TEST(periods_of_serving_follow_each_other, 4)
{
    const recipe how = {.server = {.servers = 2}};
    const numbers whole = train_served(&how);
    ls_module *net = serve_model(&how);
    ls_optim *optim = optim_of(net, &how);
    for (int from = 0; from < STEPS; from += 3) {
        run_steps(net, optim, &how, from, from + 3);
    }
    const numbers parts = all_numbers(net, &how);
    CHECK(memcmp(parts.data, whole.data, whole.bytes) == 0);
    ls_server_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_server_get_stats(net, &stats));
    CHECK_INT(stats.version, STEPS);
    CHECK_INT(stats.applied, ls_server_here(net) ? 2 * STEPS : STEPS);
    CHECK_INT(stats.dropped, 0);
    ls_optim_free(optim);
    ls_module *plain = ls_ddp_unwrap(net); /* without servers the model is as it was */
    CHECK(memcmp(all_numbers(plain, &how).data, whole.data, whole.bytes) == 0);
    CHECK_STATUS(ls_server_get_stats(plain, &stats), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "the module has no servers; give what ls_server_new returned");
    CHECK(ls_server_works(plain) && !ls_server_here(plain));
    CHECK_OK(ls_server_run(plain, NULL));
    CHECK_OK(ls_server_join(plain));
    ls_module_free(plain);
}

TEST_MAIN

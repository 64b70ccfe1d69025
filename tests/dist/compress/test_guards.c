/* SPDX-License-Identifier: Apache-2.0 */
/* What DDP promises holds with each communication hook: NaN is named, replicas that drift are
 * found, ranks may have unequal data, micro-batches count once, and a step sends what compression.h
 * says. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/compression.h>
#include <lockstep/ddp.h>
#include <lockstep/ops.h>
#include <lockstep/random.h>

#include "says.h"
#include "test.h"

enum { IN = 12, HIDDEN = 33, ROWS = 4 };

static const char *const HOOKS[] = {"plain",
                                    "fp16",
                                    "bf16",
                                    "powersgd:rank=2,start=0,min=0",
                                    "top_k:density=0.1",
                                    "random_k:density=0.1",
                                    "int8",
                                    "one_bit"};
enum { HOOK_COUNT = sizeof HOOKS / sizeof *HOOKS };

/* ---- training -------------------------------------------------------------------------------- */

static ls_module *make_net(const char *text)
{
    ls_comm_hook hook = {.size = sizeof hook};
    CHECK_OK(ls_manual_seed(1));
    ls_module *layers[] = {ls_linear_new(IN, HIDDEN, NULL), ls_relu_new(),
                           ls_linear_new(HIDDEN, 1, NULL)};
    ls_module *net = ls_ddp_new(ls_sequential_new(layers, 3), ls_world(),
                                LS_OPTIONS(ls_ddp_options, .bucket_bytes = 256, .check_every = 1));
    CHECK_OK(ls_module_status(net));
    CHECK_OK(ls_comm_hook_parse(text, &hook));
    CHECK_OK(ls_ddp_set_hook(net, hook.before != NULL ? &hook : NULL));
    return net;
}

/* One backward; all ranks learn the same function of other inputs. */
static ls_status backward(ls_module *net, int step, double factor, double weight)
{
    LS_SCOPE;
    float x[ROWS * IN], t[ROWS];
    for (int i = 0; i < ROWS * IN; i++) {
        x[i] = ls_random_normal(5, (uint64_t)(16 * step + ls_rank()), (uint64_t)i);
    }
    for (int i = 0; i < ROWS; i++) {
        t[i] = x[IN * i] + 0.5f * x[IN * i + 1];
    }
    ls_tensor *e = ls_sub(ls_forward(net, ls_from_data(x, LS_SHAPE(ROWS, IN), LS_FLOAT32)),
                          ls_from_data(t, LS_SHAPE(ROWS, 1), LS_FLOAT32));
    ls_tensor *loss = ls_scale(ls_mean(ls_mul(e, e)), factor);
    return weight < 0.0 ? ls_backward(loss) : ls_backward_weighted(loss, weight);
}

static void check_replicas(ls_module *net)
{
    int identical = 0;
    uint64_t hash = 0;
    CHECK_OK(ls_replicas_identical(net, ls_world(), &identical, &hash));
    CHECK_INT(identical, ls_world_size());
}

static double norm_of(ls_module *net)
{
    double norm = 0.0;
    CHECK_OK(ls_clip_grad_norm(net, INFINITY, NULL, &norm));
    return norm;
}

/* ---- NaN ------------------------------------------------------------------------------------- */

static char warned[4096];

static void keep_warning(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == LS_LOG_WARN) {
        (void)snprintf(warned + strlen(warned), sizeof warned - strlen(warned), "%s\n", text);
    }
}

/* Without a checkpoint of the moment before: the step is left out, and training goes on. */
DIST_TEST(nan_on_one_rank_is_named_with_each_hook_and_leaves_no_trace, 3)
{
    ls_set_log_callback(keep_warning, NULL);
    for (int h = 0; h < HOOK_COUNT; h++) {
        ls_module *net = make_net(HOOKS[h]);
        ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 1e-2));
        warned[0] = '\0';
        for (int step = 0; step < 5; step++) {
            const bool odd = step == 2;
            CHECK_OK(backward(net, step, odd && ls_rank() == 2 ? NAN : 1.0, -1.0));
            CHECK_INT(ls_clip_grad_norm(net, INFINITY, NULL, NULL), odd ? LS_ERR_INVALID : LS_OK);
            if (odd) {
                CHECK_CONTAINS(ls_error_message(), "the gradients' norm is nan (not finite in ");
            } else {
                CHECK_OK(ls_optim_step(optim));
            }
            ls_optim_zero_grad(optim);
        }
        check_replicas(net);
        if (ls_rank() == 2) {
            CHECK_CONTAINS(warned, "is not finite on rank 2 (element 0 of ");
            CHECK_CONTAINS(warned, "in synchronised backward 2;");
        }
        ls_optim_free(optim);
        ls_module_free(net);
    }
    ls_set_log_callback(NULL, NULL);
}

/* ---- replicas that drift --------------------------------------------------------------------- */

static ls_status drifting_before(void *state, ls_bucket *bucket, int phase, ls_exchange *out,
                                 ls_stream *stream)
{
    (void)state;
    (void)phase;
    (void)stream;
    *out = (ls_exchange){.size = sizeof *out,
                         .kind = LS_EXCHANGE_ALL_REDUCE,
                         .input = ls_bucket_memory(bucket),
                         .output = ls_bucket_memory(bucket),
                         .count = ls_bucket_numel(bucket),
                         .dtype = ls_bucket_dtype(bucket),
                         .mean = true};
    return LS_OK;
}

static ls_status drifting_after(void *state, ls_bucket *bucket, int phase, ls_stream *stream)
{
    ls_bucket_param param = {.size = sizeof param};
    (void)state;
    (void)phase;
    (void)stream;
    LS_TRY(ls_bucket_get_param(bucket, 0, &param));
    *(float *)param.grad += ls_bucket_rank(bucket) == 1 ? 0.25f : 0.0f;
    return LS_OK;
}

DIST_TEST(a_hook_that_leaves_other_bytes_on_a_rank_is_found_by_check_every, 3)
{
    ls_module *net = make_net("plain");
    CHECK_OK(ls_ddp_set_hook(net, LS_OPTIONS(ls_comm_hook, .name = "drifting",
                                             .before = drifting_before, .after = drifting_after)));
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 1.0));
    CHECK_OK(backward(net, 0, 1.0, -1.0));
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
    CHECK_STATUS(backward(net, 1, 1.0, -1.0), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "the ranks differ in the numbers of ");
    CHECK_CONTAINS(ls_error_message(), "rank 1 has hash ");
    ls_optim_free(optim);
    ls_module_free(net);
}

/* ---- unequal data ---------------------------------------------------------------------------- */

/* The norms of the averages, step by step; rank r has 2 + r batches. */
static int train_unequal(ls_module *net, bool weighted, double *norms)
{
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 1e-2));
    int step = 0;
    for (bool more = true;; step++) {
        more = step < 2 + ls_rank();
        if (more) {
            CHECK_OK(backward(net, step, 1.0, weighted ? (step + ls_rank()) % 3 : -1.0));
        } else {
            CHECK_OK(ls_ddp_join(net, NULL, &more));
        }
        if (!more) {
            break;
        }
        norms[step] = norm_of(net);
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    check_replicas(net);
    ls_optim_free(optim);
    return step;
}

/* Ranks without data and weights of 0. A hook that loses nothing averages as DDP does. */
DIST_TESTS(hooks_and_unequal_data_of_, _ranks_go_together, 2, 3, 4)
{
    for (int weighted = 0; weighted < 2; weighted++) {
        double want[16] = {0}, norms[16] = {0};
        ls_module *net = make_net("plain");
        const int steps = train_unequal(net, weighted != 0, want);
        ls_module_free(net);
        for (int h = 0; h < HOOK_COUNT; h++) {
            net = make_net(HOOKS[h]);
            CHECK_INT(train_unequal(net, weighted != 0, norms), steps);
            ls_module_free(net);
        }
        net = make_net("top_k:density=1");
        CHECK_INT(train_unequal(net, weighted != 0, norms), steps);
        ls_module_free(net);
        for (int step = 0; step < steps; step++) {
            CHECK_NEAR(norms[step], want[step], 1e-5 * (1.0 + want[step]));
        }
    }
}

/* ---- a reducer of one matrix ----------------------------------------------------------------- */

enum { SIDE = 512, ELEMENTS = SIDE * SIDE };

static ls_reducer *open_matrix(const char *text, ls_reducer_param *param)
{
    ls_reducer *r = NULL;
    ls_comm_hook hook = {.size = sizeof hook};
    *param = (ls_reducer_param){.name = "w", .shape = "[512,512]", .count = ELEMENTS};
    CHECK_OK(ls_reducer_new(ls_world(), param, 1, NULL, &r));
    CHECK_OK(ls_comm_hook_parse(text, &hook));
    CHECK_OK(ls_reducer_set_hook(r, hook.before != NULL ? &hook : NULL));
    return r;
}

static void pass(ls_reducer *r, const ls_reducer_param *param, int step, double factor, bool local)
{
    CHECK_OK(ls_reducer_begin(r, LS_OPTIONS(ls_reducer_begin_options, .local = local)));
    for (int64_t i = 0; i < ELEMENTS; i += 7) {
        const float x = ls_random_normal(9, (uint64_t)(16 * step + ls_rank()), (uint64_t)i);
        ((float *)param->grad)[i] += (float)(factor * (double)x);
    }
    CHECK_OK(ls_reducer_ready(r, 0, NULL));
    CHECK_OK(ls_reducer_wait(r));
}

/* Two halves of a gradient are the gradient: the residual is added once. */
DIST_TEST(micro_batches_add_the_residual_once, 2)
{
    for (int h = 0; h < HOOK_COUNT; h++) {
        ls_reducer_param whole, halves;
        ls_reducer *a = open_matrix(HOOKS[h], &whole), *b = open_matrix(HOOKS[h], &halves);
        for (int step = 0; step < 4; step++) {
            CHECK_OK(ls_reducer_zero(a));
            CHECK_OK(ls_reducer_zero(b));
            pass(a, &whole, step, 1.0, false);
            pass(b, &halves, step, 0.5, true);
            pass(b, &halves, step, 0.5, false);
            CHECK(memcmp(whole.grad, halves.grad, ELEMENTS * sizeof(float)) == 0);
        }
        CHECK_OK(ls_reducer_free(a));
        CHECK_OK(ls_reducer_free(b));
    }
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Groups count what shared memory passes on differently. */
static bool between_hosts(void)
{
    const char *hosts = getenv("LOCKSTEP_HOSTS");
    return hosts != NULL && atoi(hosts) >= ls_world_size() && getenv("TEST_MPI") == NULL;
}

static uint64_t sent_by(ls_reducer *r)
{
    ls_reducer_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_reducer_get_stats(r, &stats));
    uint64_t sent = stats.sent_bytes;
    CHECK_OK(ls_all_reduce(ls_world(), &sent, &sent, 1, LS_UINT64, LS_SUM, NULL, NULL));
    return sent;
}

/* All ranks together, without the control exchange. */
static uint64_t bytes_of_step(const char *hook)
{
    const uint8_t unused[1] = {0};
    ls_reducer_param param;
    ls_reducer *r = open_matrix(hook, &param);
    CHECK_OK(ls_reducer_zero(r));
    pass(r, &param, 0, 1.0, false);
    pass(r, &param, 1, 1.0, false);
    const uint64_t all = sent_by(r);
    CHECK_OK(ls_reducer_begin(r, LS_OPTIONS(ls_reducer_begin_options, .used = unused)));
    CHECK_OK(ls_reducer_wait(r));
    const uint64_t control = sent_by(r);
    CHECK_OK(ls_reducer_free(r));
    return all - control;
}

static void check_bytes(const char *hook, double of_formula)
{
    const uint64_t got = bytes_of_step(hook);
    if (between_hosts()) {
        CHECK_NEAR((double)got, of_formula * ls_world_size(), 0.0);
    }
}

/* The table of compression.h; of messages that are not small. */
DIST_TESTS(a_step_of_, _ranks_sends_what_the_table_says, 2, 4)
{
    CHECK(setenv("LOCKSTEP_ALGORITHM", "all_reduce=ring", 1) == 0);
    const double n = ls_world_size(), d = ELEMENTS, k = ceil(0.1 * d), share = (n - 1.0) / n;
    const double scales = 2.0 * (n - 1.0) * ceil(d / n / 1024.0);
    check_bytes("plain", 8.0 * d * share);
    check_bytes("bf16", 4.0 * d * share);
    check_bytes("powersgd:rank=16,start=0", 8.0 * 16.0 * (SIDE + SIDE) * share);
    check_bytes("top_k:density=0.1", 8.0 * k * (n - 1.0));
    check_bytes("random_k:density=0.1", 8.0 * k * share);
    check_bytes("int8", 2.0 * d * share + scales);
    check_bytes("one_bit", d / 4.0 * share + scales);
    CHECK(unsetenv("LOCKSTEP_ALGORITHM") == 0);
}

DIST_TEST(statistics_say_which_hook_is_set, 2)
{
    ls_reducer_param param;
    ls_reducer_stats stats = {.size = sizeof stats};
    ls_reducer *r = open_matrix("int8", &param);
    CHECK_OK(ls_reducer_get_stats(r, &stats));
    CHECK_CONTAINS(stats.hook, "int8 (bits=8, start=0, feedback=1)");
    CHECK_OK(ls_reducer_set_hook(r, NULL));
    CHECK_OK(ls_reducer_get_stats(r, &stats));
    CHECK(stats.hook[0] == '\0');
    CHECK_OK(ls_reducer_free(r));
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* Captured steps of replicas on the device `cuda`, whose gradients go by the backend `nccl`, both
 * over their fakes. The oracle is the same training without a capture: losses, norms and parameters
 * have its bits. A started graph runs the streams of its capture on threads with random pauses, so
 * what is not waited for is seen. */
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../device/models.h"
#include "../dist/comm/nccl_fakes.h"
#include "../fake_cuda/fake.h"
#include "outcome.h"
#include "says.h"

#define TIMEOUT_MS 2000

/* The fakes are found by their names: the driver because this program links it. */
static void use_cuda(void)
{
    name_fakes();
    (void)dlopen(test_build_path("tests/fake_cuda/libcublasLt.so.13"), RTLD_NOW | RTLD_GLOBAL);
    CHECK_OK(ls_device_use("cuda"));
}

/* ---- a training ----------------------------------------------------------------------------- */

/* What is different, on rank 1 unless it says otherwise. */
typedef enum what {
    AS_EVER,
    OTHER_SHAPE, /* in one run */
    MOVES,       /* before one run */
    READS,
    BAD_INDEX,   /* in one run */
    CHECKS_MORE, /* in all runs */
    FAILS,       /* the graph is not made */
    FAILS_FIRST, /* the function does, in the run to record, before it computes */
    STOPS,       /* does not use ls_captured_run in one run */
    JOINS,       /* has no more data in one run */
    DIES,        /* before one run */
    HANGS,       /* the kernels of one run do */
    OFFSETS,     /* the micro-batch before the last one has another sample offset in one run */
    COMPARES,    /* all ranks: every few steps */
    SHORTER,     /* all ranks: one micro-batch in every third run, by a captured step of its own */
    OUTSIDE,     /* all ranks: clip, step and zero after each run */
    ACCUMULATES  /* all ranks: average in every second run only */
} what;

typedef struct training_of {
    bool floats, images, half, clips, values, momentum, twice, synced;
    what what;
    int zero;
    bool weighted, in_backward;
} training_of;

typedef struct state {
    const training_of *t;
    ls_module *net, *other;
    ls_optim *optim;
    ls_captured *shorter; /* NULL: none */
    double norm;
    int calls, run;
    bool captures;
    ls_step_context context[2]; /* of the last micro-batch, and of the one before it */
} state;

static bool is_odd(const state *s, what of)
{
    return s->t->what == of && ls_rank() == 1;
}

static bool is_short(const state *s)
{
    return s->t->what == SHORTER && s->run % 3 == 2;
}

static ls_module *make_net(const training_of *t)
{
    if (t->floats) {
        ls_module *layers[] = {ls_linear_new(8, 16, NULL), ls_dropout_new(0.2),
                               ls_linear_new(16, 3, NULL)};
        return ls_sequential_new(layers, 3);
    }
    ls_module *net = t->images ? make_residual() : make_gpt();
    CHECK_OK(t->synced ? ls_sync_batch_norm_convert(net, ls_world()) : LS_OK);
    return net;
}

static ls_tensor *loss_of(const state *s, ls_tensor *x, ls_tensor *y)
{
    LS_AUTOCAST(s->t->half);
    ls_tensor *out = ls_forward(s->net, x);
    return s->t->floats ? ls_mse_loss(out, y) : ls_cross_entropy(out, y, NULL);
}

static ls_status add_gradients(state *s, ls_tensor *const *in, ls_tensor **loss)
{
    if (s->t->twice && !is_short(s)) {
        LS_NO_SYNC(s->net);
        LS_TRY(ls_captured_step_begin(&s->context[1]));
        LS_TRY(ls_backward(loss_of(s, in[2], in[3])));
    }
    if (s->t->twice) {
        LS_TRY(ls_captured_step_begin(&s->context[0]));
    }
    *loss = loss_of(s, in[0], in[1]);
    return s->t->weighted ? ls_backward_weighted(*loss, 2.0) : ls_backward(*loss);
}

/* What follows the backward. */
static ls_status update(state *s)
{
    if (s->t->clips) {
        LS_TRY(ls_clip_grad_norm(s->net, 0.5, NULL, &s->norm));
    }
    if (!s->t->in_backward) {
        LS_TRY(ls_optim_step(s->optim));
        ls_optim_zero_grad(s->optim);
    }
    return LS_OK;
}

static ls_status step(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    state *s = arg;
    double seen = 0.0;
    ls_tensor *loss = NULL;
    s->calls++;
    if (is_odd(s, FAILS_FIRST) && s->run == PLAIN) {
        return ls_fail(LS_ERR_STATE, "there is no more data; give some");
    }
    if (is_odd(s, CHECKS_MORE)) {
        LS_TRY(ls_tensor_status(ls_embedding(ls_zeros(LS_SHAPE(3, 2), LS_FLOAT32), in[2])));
    }
    LS_TRY(add_gradients(s, in, &loss));
    if (is_odd(s, READS)) {
        LS_TRY(ls_item(loss, &seen));
    }
    if (s->t->what != OUTSIDE && s->t->what != ACCUMULATES) {
        LS_TRY(update(s));
    }
    if (s->t->values) {
        out[0] = loss;
    }
    return LS_OK;
}

static void make_inputs(const state *s, int run, ls_tensor *in[4])
{
    const int seed = run + 20 * ls_rank();
    const int64_t rows = is_odd(s, OTHER_SHAPE) && run == ODD ? BATCH - 1 : BATCH;
    for (int i = 0; i < 4; i += 2) {
        if (s->t->images) {
            in[i] = ls_reshape(floats(rows, 2 * 8 * 8, seed + i), LS_SHAPE(rows, 2, 8, 8));
            in[i + 1] = integers(rows, 1, 4, seed + i, LS_INT64);
        } else if (s->t->floats) {
            in[i] = floats(rows, 8, seed + i);
            in[i + 1] = floats(rows, 3, seed + i + 50);
        } else {
            in[i] = integers(rows, CONTEXT, VOCAB, seed + i, LS_INT32);
            in[i + 1] = integers(rows, CONTEXT, VOCAB, seed + i + 1, LS_INT64);
        }
    }
    if (is_odd(s, BAD_INDEX) && run == ODD) {
        in[0] = ls_cast(ls_full(LS_SHAPE(BATCH, CONTEXT), LS_INT64, 999.0), LS_INT32);
    }
    if (is_odd(s, CHECKS_MORE)) {
        in[2] = integers(BATCH, 1, 3, 0, LS_INT32);
    }
}

static bool averages(const state *s, int run)
{
    return run % 2 == (s->t->clips ? 1 : 0);
}

static void before_run(state *s, int run)
{
    if (is_odd(s, MOVES) && run == ODD) {
        CHECK_OK(ls_module_to(s->other, "cpu"));
        CHECK_OK(ls_module_to(s->other, "cuda"));
    }
    if (is_odd(s, DIES) && run == ODD && s->captures) {
        (void)kill(getpid(), SIGKILL);
    }
    CHECK_OK(ls_ddp_set_sync(s->net, s->t->what != ACCUMULATES || averages(s, run)));
    fake_cuda_fail_graph(is_odd(s, FAILS) && run == PLAIN && s->captures ? 2 : 0);
    for (int i = 0; i < 2; i++) {
        s->context[i] = (ls_step_context){.step = (uint64_t)(run + i * (3 + run % 2)),
                                          .sample_offset = ls_rank() * BATCH};
    }
    s->context[1].sample_offset += is_odd(s, OFFSETS) && run == ODD;
    s->context[0].sample_offset += is_short(s) ? BATCH : 0;
    if (s->t->what != SHORTER) {
        ls_step_begin(s->context[0]);
    }
    ls_optim_set_lr(s->optim, 0.002 * (1 + run % 5));
}

static ls_status run_captured(state *s, ls_captured *captured, ls_tensor *const *in, double *loss)
{
    ls_tensor *none[1] = {NULL};
    if (is_odd(s, HANGS) && s->run == ODD) {
        fake_cuda_hold(stream_of(s->net), 1);
    }
    if (is_odd(s, STOPS) && s->run == ODD) {
        return step(s, in, none);
    }
    if (is_odd(s, JOINS) && s->run == ODD) {
        bool more = false;
        return ls_ddp_join(s->net, NULL, &more);
    }
    return ls_captured_run(is_short(s) ? s->shorter : captured, (ls_tensor **)(uintptr_t)in,
                           s->t->twice ? 4 : 3, loss, s->t->values ? 1 : 0);
}

/* captured NULL: calls the step itself. */
static void run_once(state *s, ls_captured *captured, int run, outcome *out)
{
    LS_SCOPE;
    ls_tensor *in[4], *loss = NULL;
    s->run = run;
    before_run(s, run);
    make_inputs(s, run, in);
    s->norm = 0.0;
    if (captured != NULL) {
        out->status[run] = run_captured(s, captured, in, &out->loss[run]);
    } else {
        out->status[run] = step(s, in, &loss);
        CHECK(out->status[run] < 0 || loss == NULL || ls_item(loss, &out->loss[run]) == LS_OK);
    }
    if (out->status[run] < 0) {
        snprintf(out->error, sizeof out->error, "%s", ls_error_message());
        out->loss[run] = 0.0;
    }
    if (out->status[run] == LS_OK &&
        (s->t->what == OUTSIDE || (s->t->what == ACCUMULATES && averages(s, run)))) {
        CHECK_OK(update(s));
    }
    out->norm[run] = s->norm;
}

/* A run that failed is made once more where the group goes on. */
static void train_all(const training_of *t, bool captures, outcome *out)
{
    state s = {.t = t, .captures = captures};
    memset(out, 0, sizeof *out);
    ls_module *net = ls_ddp_new(
        make_net(t), ls_world(),
        LS_OPTIONS(ls_ddp_options, .bucket_bytes = 1024, .zero = t->zero, .first_bucket_bytes = 256,
                   .broadcast_buffers = !t->images, .check_every = t->what == COMPARES ? 4 : 100));
    CHECK_OK(ls_module_status(net));
    CHECK(ls_world_size() == 1 || strcmp(ls_ddp_backend(net), "nccl") == 0);
    s.net = net;
    s.other = ls_linear_new(2, 2, NULL);
    s.optim = t->momentum ? ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.05, .momentum = 0.9))
                          : ls_adamw_new(net, NULL);
    CHECK_OK(t->in_backward ? ls_ddp_step_in_backward(net, s.optim) : LS_OK);
    ls_captured *captured = captures ? ls_captured_new(step, &s) : NULL;
    s.shorter = captures && t->what == SHORTER ? ls_captured_new(step, &s) : NULL;
    bool lives = true;
    for (int run = 0; run < RUNS && lives; run++) {
        run_once(&s, captured, run, out);
        lives = out->status[run] == LS_OK || t->what == BAD_INDEX || t->what == FAILS;
        if (lives && out->status[run] < 0) {
            ls_optim_zero_grad(s.optim);
        }
        if (lives && out->status[run] < 0 && t->what == FAILS) {
            run_once(&s, captured, run, out);
        }
        out->hash[run] = lives ? ls_module_hash(net) : 0;
    }
    if (captures) {
        out->replays = ls_captured_replays(captured) + ls_captured_replays(s.shorter);
        snprintf(out->why, sizeof out->why, "%s", ls_captured_why(captured));
    }
    out->calls = s.calls;
    ls_captured_free(s.shorter);
    ls_captured_free(captured);
    ls_optim_free(s.optim);
    ls_module_free(net);
    ls_module_free(s.other);
}

static outcome plain, captured;

static void check_bits(const training_of *t)
{
    const uint64_t before = fake_cuda_replayed();
    train_all(t, false, &plain);
    train_all(t, true, &captured);
    compare_outcomes(&captured, &plain, t->what != ACCUMULATES);
    for (int run = 0; run < RUNS; run++) {
        CHECK_OK(plain.status[run]);
    }
    CHECK_INT(fake_cuda_replayed() - before, (uint64_t)captured.replays);
    CHECK_INT(fake_cuda_graphs(), 0);
}

/* ---- bits ----------------------------------------------------------------------------------- */

DIST_TESTS(captured_steps_of_, _ranks_have_the_bits_of_others, 1, 2, 3, 4)
{
    use_cuda();
    ls_group *nccl = ls_world_size() == 1 ? group_over_nccl("one") : NULL; /* it is loaded */
    check_bits(&(training_of){.clips = true, .values = true});
    CHECK_INT(captured.replays, RUNS - PLAIN);
    CHECK_INT(captured.calls, PLAIN + 1);
    CHECK(captured.why[0] == '\0');
    check_bits(&(training_of){.floats = true, .momentum = true, .values = true});
    CHECK_INT(captured.replays, RUNS - PLAIN);
    CHECK_OK(nccl != NULL ? ls_group_free(nccl) : LS_OK);
}

DIST_TEST(captured_steps_in_bfloat16_or_without_values_have_their_bits, 2)
{
    use_cuda();
    check_bits(&(training_of){.half = true, .clips = true, .values = true});
    CHECK_INT(captured.replays, RUNS - PLAIN);
    check_bits(&(training_of){.floats = true});
    CHECK_INT(captured.replays, RUNS - PLAIN);
}

DIST_TEST(captured_steps_with_batch_norm_of_each_rank_have_their_bits, 2)
{
    use_cuda();
    check_bits(&(training_of){.images = true, .clips = true, .values = true});
    CHECK_INT(captured.replays, RUNS - PLAIN);
}

DIST_TEST(micro_batches_of_a_captured_step_are_reduced_once, 2)
{
    use_cuda();
    training_of t = {.floats = true, .clips = true, .values = true, .twice = true};
    check_bits(&t);
    CHECK_INT(captured.replays, RUNS - PLAIN);
    t.what = OFFSETS;
    check_bits(&t);
    CHECK_INT(captured.replays, RUNS - PLAIN - 1);
    t.what = SHORTER;
    check_bits(&t);
    CHECK_INT(captured.replays, RUNS - 2 * PLAIN);
}

DIST_TEST(averages_of_replays_are_those_that_the_program_sees, 2)
{
    use_cuda();
    check_bits(&(training_of){.floats = true, .clips = true, .values = true, .what = OUTSIDE});
    CHECK_INT(captured.replays, RUNS - PLAIN);
    check_bits(&(training_of){.floats = true, .clips = true, .values = true, .what = ACCUMULATES});
    CHECK_INT(captured.replays, 0);
    CHECK_SAYS(captured.why, "gradients of ls_ddp_new were added up before it; make all "
                             "backwards of a step in the function");
    check_bits(&(training_of){.floats = true, .values = true, .what = ACCUMULATES});
    CHECK_INT(captured.replays, 0);
    CHECK_SAYS(captured.why, "ls_ddp_new averages none of the gradients that it leaves; make all "
                             "backwards of a step in the function");
}

/* ---- ranks that differ ---------------------------------------------------------------------- */

DIST_TEST(one_rank_with_another_shape_has_all_run_without_the_graph, 3)
{
    use_cuda();
    check_bits(&(training_of){.clips = true, .values = true, .what = OTHER_SHAPE});
    CHECK_INT(captured.replays, RUNS - PLAIN - 1);
    CHECK_INT(captured.calls, PLAIN + 2);
}

DIST_TEST(one_rank_that_records_anew_has_all_record_anew, 3)
{
    use_cuda();
    check_bits(&(training_of){.floats = true, .values = true, .what = MOVES});
    CHECK_INT(captured.replays, RUNS - 2 * PLAIN);
    CHECK(captured.why[0] == '\0');
}

DIST_TEST(in_steps_that_compare_the_parameters_nothing_is_replayed, 2)
{
    use_cuda();
    check_bits(&(training_of){.floats = true, .values = true, .what = COMPARES});
    CHECK_INT(captured.replays, RUNS - PLAIN - 2); /* of steps 0, 4 and 8 */
}

DIST_TEST(one_rank_that_cannot_capture_is_named_on_the_others, 2)
{
    use_cuda();
    check_bits(&(training_of){.floats = true, .values = true, .what = READS});
    CHECK_INT(captured.replays, 0);
    CHECK_INT(captured.calls, RUNS);
    if (ls_rank() == 0) {
        CHECK_SAYS(captured.why,
                   "rank %d does not capture it; its ls_captured_why says the reason");
        CHECK_CONTAINS(captured.why, "rank 1");
    } else {
        CHECK_SAYS(captured.why, "ls_item reads on the host");
    }
}

DIST_TEST(a_recording_that_fails_on_one_rank_is_made_on_none, 2)
{
    use_cuda();
    check_bits(&(training_of){.floats = true, .clips = true, .values = true, .what = FAILS});
    CHECK_INT(captured.replays, 0);
    if (ls_rank() == 0) {
        CHECK_SAYS(captured.error,
                   "captured_run: rank %d could not record the step, which was not made on any; "
                   "zero the gradients, and go on: runs to come are made without a capture");
        CHECK_SAYS(captured.why, "rank %d could not record it; its ls_captured_why says the "
                                 "reason");
    } else {
        CHECK_CONTAINS(captured.error, "cuGraphInstantiate: out of memory");
    }
}

DIST_TEST(ranks_that_record_different_operations_are_named, 2)
{
    use_cuda();
    train_all(&(training_of){.floats = true, .values = true, .what = CHECKS_MORE}, true, &captured);
    CHECK_STATUS(captured.status[PLAIN], LS_ERR_MISMATCH);
    CHECK_SAYS(captured.error, "the operations of the recorded step");
    CHECK_SAYS(captured.error, "%u (sizes and types %016llx)");
    CHECK_SAYS(captured.error, "run the same step on every rank");
    CHECK_CONTAINS(captured.error, "rank 0 has");
    CHECK_INT(fake_cuda_graphs(), 0);
}

DIST_TEST(a_rank_that_makes_its_step_itself_is_named, 2)
{
    use_cuda();
    train_all(&(training_of){.floats = true, .what = STOPS}, true, &captured);
    CHECK_STATUS(captured.status[ODD], LS_ERR_MISMATCH);
    CHECK_SAYS(captured.error, "a run of a captured step begins");
    CHECK_SAYS(captured.error, "a synchronised backward begins");
    CHECK_SAYS(captured.error, "all ranks must call the same operations in the same order");
}

DIST_TEST(a_rank_that_joins_while_the_others_replay_is_named, 2)
{
    use_cuda();
    train_all(&(training_of){.floats = true, .values = true, .what = JOINS}, true, &captured);
    CHECK_STATUS(captured.status[ODD], LS_ERR_MISMATCH);
    CHECK_SAYS(captured.error, "a run of a captured step begins");
    CHECK_SAYS(captured.error, "a synchronised backward begins");
    CHECK_INT(fake_cuda_graphs(), 0);
}

DIST_TEST(a_rank_that_fails_before_the_others_exchange_is_named, 2)
{
    use_cuda();
    train_all(&(training_of){.floats = true, .what = FAILS_FIRST}, true, &captured);
    CHECK(captured.status[PLAIN] < 0);
    if (ls_rank() == 0) {
        CHECK_SAYS(captured.error, "a captured step was recorded");
        CHECK_SAYS(captured.error, "a synchronised backward begins");
    } else {
        CHECK_CONTAINS(captured.error, "there is no more data");
    }
}

DIST_TEST(a_check_that_fails_on_one_rank_holds_all_ranks_back, 3)
{
    use_cuda();
    for (int clips = 0; clips < 2; clips++) {
        train_all(&(training_of){.clips = clips == 1, .values = true, .what = BAD_INDEX}, true,
                  &captured);
        CHECK_INT(captured.replays, RUNS - PLAIN);
        for (int run = 0; run < RUNS; run++) {
            CHECK(run == ODD ? captured.status[run] < 0 : captured.status[run] == LS_OK);
        }
        CHECK(captured.hash[ODD] == captured.hash[ODD - 1]);
        CHECK(captured.hash[ODD + 1] != captured.hash[ODD]);
        if (ls_rank() == 1) {
            CHECK_CONTAINS(captured.error, "embedding: element 0 of argument 2 [3,6] is 999");
        } else {
            CHECK_STATUS(captured.status[ODD], LS_ERR_PEER);
            CHECK_SAYS(captured.error,
                       "a captured step: a check has failed on rank %lld, which says what it "
                       "found; no rank has made the step");
            CHECK_CONTAINS(captured.error, "on rank 1, which");
        }
    }
}

/* ---- refusals ------------------------------------------------------------------------------- */

DIST_TEST(what_a_wrapper_does_that_cannot_be_captured_is_named, 2)
{
    use_cuda();
    check_bits(&(training_of){.floats = true, .values = true, .zero = 1});
    CHECK_SAYS(captured.why, "averages of ls_ddp_new are divided (zero)");
    check_bits(&(training_of){.floats = true, .values = true, .weighted = true});
    CHECK_SAYS(captured.why, "ls_backward_weighted over several ranks, whose weights may change");
    check_bits(&(training_of){.floats = true, .values = true, .in_backward = true});
    CHECK_SAYS(captured.why, "ls_ddp_step_in_backward steps within the backward pass");
    check_bits(&(training_of){.images = true, .values = true, .synced = true});
    CHECK_SAYS(captured.why, "batch norm over ranks, whose statistics are added on the host");
}

/* One or two wrapped modules. */
typedef struct pair_of {
    ls_module *net[2];
    ls_optim *optim[2];
    int count;
} pair_of;

static void place_weights(void *group, const char *name, const ls_tensor *param,
                          ls_ddp_place *place)
{
    (void)param;
    if (group != NULL && strcmp(name, "weight") == 0) {
        place->reduce_group = group;
    }
}

/* Weights are added over a group of their own; NULL: as all is. */
static pair_of wrap(ls_module *first, ls_module *second, ls_group *weights)
{
    ls_module *inner[] = {first, second};
    pair_of p = {.count = second != NULL ? 2 : 1};
    for (int i = 0; i < p.count; i++) {
        p.net[i] =
            ls_ddp_new(inner[i], ls_world(),
                       LS_OPTIONS(ls_ddp_options, .place = place_weights, .place_arg = weights));
        CHECK_OK(ls_module_status(p.net[i]));
        p.optim[i] = ls_sgd_new(p.net[i], NULL);
    }
    return p;
}

static void unwrap(const pair_of *p)
{
    for (int i = 0; i < p->count; i++) {
        ls_optim_free(p->optim[i]);
        ls_module_free(p->net[i]);
    }
}

static ls_status add_losses(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    const pair_of *p = arg;
    for (int i = 0; i < p->count; i++) {
        out[0] = ls_mean(ls_forward(p->net[i], in[0]));
        LS_TRY(ls_backward(out[0]));
        ls_optim_zero_grad(p->optim[i]);
    }
    return LS_OK;
}

static void check_why(pair_of p, ls_tensor *x, const char *says)
{
    double value;
    ls_captured *c = ls_captured_new(add_losses, &p);
    for (int run = 0; run < PLAIN + 2; run++) {
        CHECK_OK(ls_captured_run(c, &x, 1, &value, 1));
    }
    CHECK_SAYS(ls_captured_why(c), says);
    CHECK_INT(ls_captured_replays(c), 0);
    ls_captured_free(c);
    unwrap(&p);
}

DIST_TEST(buffers_two_wrappers_and_further_groups_are_named, 2)
{
    ls_group *group = NULL;
    use_cuda();
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "weights", &group));
    LS_SCOPE;
    ls_tensor *x = floats(4, 8, ls_rank());
    ls_module *norm = ls_batch_norm2d_new(2, 1e-5, 0.1);
    ls_module_train(norm, false);
    check_why(wrap(norm, NULL, NULL), ls_reshape(x, LS_SHAPE(2, 2, 2, 4)),
              SAYS("ls_ddp_new broadcasts buffers in each step (broadcast_buffers)"));
    check_why(wrap(ls_linear_new(8, 2, NULL), ls_linear_new(8, 2, NULL), NULL), x,
              SAYS("gradients are averaged by two wrappers of ls_ddp_new"));
    check_why(wrap(ls_linear_new(8, 2, NULL), NULL, group), x,
              SAYS("gradients of ls_ddp_new are added over several groups"));
    CHECK_OK(ls_group_free(group));
}

DIST_TEST(ranks_in_different_steps_are_named, 2)
{
    double value;
    use_cuda();
    LS_SCOPE;
    ls_tensor *x = floats(4, 8, ls_rank());
    pair_of p = wrap(ls_linear_new(8, 2, NULL), NULL, NULL);
    ls_captured *step[] = {ls_captured_new(add_losses, &p), ls_captured_new(add_losses, &p)};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ls_captured_run(step[i], &x, 1, &value, 1));
    }
    CHECK_STATUS(ls_captured_run(step[ls_rank()], &x, 1, &value, 1), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(), "which of the captured steps over these gradients it is");
    CHECK_SAYS(ls_error_message(), "run the same ls_captured_run on every rank");
    ls_captured_free(step[0]);
    ls_captured_free(step[1]);
    unwrap(&p);
}

/* Only its last backward synchronises. */
static ls_status add_loss_twice(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    const pair_of *p = arg;
    LS_TRY(ls_ddp_set_sync(p->net[0], false));
    LS_TRY(ls_backward(ls_mean(ls_forward(p->net[0], in[0]))));
    LS_TRY(ls_ddp_set_sync(p->net[0], true));
    return add_losses(arg, in, out);
}

DIST_TEST(a_step_that_begins_without_synchronisation_is_held_and_says_so, 2)
{
    double value;
    use_cuda();
    LS_SCOPE;
    ls_tensor *x = floats(4, 8, ls_rank());
    pair_of p = wrap(ls_linear_new(8, 2, NULL), NULL, NULL);
    ls_captured *c = ls_captured_new(add_loss_twice, &p);
    for (int run = 0; run < PLAIN + 2; run++) {
        CHECK_OK(ls_ddp_set_sync(p.net[0], false));
        CHECK_OK(ls_captured_run(c, &x, 1, &value, 1));
    }
    CHECK_SAYS(ls_captured_why(c), "runs begin while ls_ddp_set_sync is false (LS_NO_SYNC); turn "
                                   "synchronisation off within the step");
    CHECK_INT(ls_captured_replays(c), 0);
    CHECK_OK(ls_captured_run(c, &x, 1, &value, 1));
    CHECK(strcmp(ls_captured_why(c), "") == 0 && ls_captured_replays(c) == 1);
    ls_captured_free(c);
    unwrap(&p);
}

/* ---- failures ------------------------------------------------------------------------------- */

/* The kernel of one rank hangs in a replay. */
static void hang(bool values)
{
    use_cuda();
    const double begin = ls_time();
    train_all(&(training_of){.floats = true, .values = values}, true, &captured);
    int failed = 0;
    while (failed < RUNS && captured.status[failed] == LS_OK) {
        failed++;
    }
    CHECK(failed > PLAIN && failed < RUNS);
    CHECK_STATUS(captured.status[failed], LS_ERR_TIMEOUT);
    CHECK_SAYS(captured.error, "replay of captured step %llu, recording %llu: %u operations");
    CHECK_SAYS(captured.error,
               "the captured step that this rank has started does not end; look for a kernel of it "
               "that hangs, here or on another rank");
    (void)fprintf(stderr, "rank %d: %s\n", ls_rank(), captured.error);
    CHECK_WITHIN(ls_time() - begin, TIMEOUT_MS * 1e-3 + 5 * TEST_SLOWER); /* the start is in it */
}

DIST_TEST(helper_hangs_and_waits, 2)
{
    hang(true);
}

/* The program waits in the next run, and frees the graph after the abort. */
DIST_TEST(helper_hangs_ahead, 2)
{
    hang(false);
}

static void train_until_error(what odd)
{
    use_cuda();
    train_all(&(training_of){.floats = true, .values = true, .what = odd}, true, &captured);
    (void)fprintf(stderr, "rank %d: run %d: %s\n", ls_rank(), ODD, captured.error);
}

DIST_TEST(helper_dies, 2)
{
    train_until_error(DIES);
}

DIST_TEST(helper_holds, 2)
{
    train_until_error(HANGS);
}

static void check_hang(const char *helper)
{
    test_output run = test_run_helper("LOCKSTEP_TIMEOUT=2 FAKE_NCCL_FAULT=hang:1:20", helper);
    if (run.status != 0) {
        test_fail(__FILE__, __LINE__, "%s", run.text);
    }
    free(run.text);
}

TEST(a_replay_that_hangs_on_one_rank_ends_at_the_deadline_and_is_named)
{
    check_hang("helper_hangs_and_waits");
    check_hang("helper_hangs_ahead");
}

/* Nothing ends the kernels of the program but the end of their process. */
TEST(a_rank_whose_own_kernels_hang_in_a_replay_ends_and_the_others_say_so)
{
    const double begin = ls_time();
    test_output run = test_run_helper("LOCKSTEP_TIMEOUT=2", "helper_holds");
    CHECK_WITHIN(ls_time() - begin, TIMEOUT_MS * 1e-3 + 7 * TEST_SLOWER); /* the start is in it */
    CHECK(run.status != 0);
    CHECK_CONTAINS(run.text, "rank 0: run 7: ");
    CHECK_CONTAINS(run.text, "replay of captured step 1, recording 1");
    CHECK_CONTAINS(run.text, "backend \"nccl\": rank 1 ends: ncclCommAbort of group");
    free(run.text);
}

TEST(a_rank_that_dies_between_replays_is_named)
{
    test_output run = test_run_helper("", "helper_dies");
    CHECK(run.status != 0);
    CHECK_CONTAINS(run.text, "rank 0: run 7: ");
    CHECK_CONTAINS(run.text, "rank 1 (");
    free(run.text);
}

TEST_MAIN

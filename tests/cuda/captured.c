/* SPDX-License-Identifier: Apache-2.0 */
/* Captured steps on the CUDA device, over the fake driver, which records the work of a stream. The
 * oracle is the same training without a capture: losses, norms and parameters have its bits. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../device/models.h"
#include "../fake_cuda/fake.h"
#include "../fake_cuda/libraries.h"
#include "outcome.h"
#include "says.h"

int cuStreamSynchronize(void *stream); /* the driver's */

enum { HELD = 60, MORE_MAX = 2 };

__attribute__((constructor)) static void prepare(void)
{
    setenv("LOCKSTEP_BACKEND_PATH", test_build_path("src/cuda"), 1);
    load_fake_libraries();
}

/* ---- a training ----------------------------------------------------------------------------- */

typedef enum data { TOKENS, FLOATS, IMAGES } data;
typedef enum what {
    AS_EVER,
    READS,
    READS_LATE,
    MORE_LATE,
    FAILS_ITSELF,
    KERNEL_FAILS,
    KEEPS_GRADIENTS,
    WAITS,
    DRAWS,
    OTHER_SHAPE,
    OTHER_SHAPES, /* in every third run */
    OTHER_OFFSETS,
    BAD_INDEX,
    BAD_TARGET,
    BAD_NUMBER,
    FAILS,
    MOVES,
    FULL,
    EVALUATES,
    OTHER_OFFSET,
    BEGINS_ITSELF,
    STEPS_OUTSIDE,   /* gradients are clipped, stepped and zeroed after each run, … */
    ADDS_UP,         /* … or after three runs */
    COMPUTES_OUTSIDE /* they come before each run */
} what;
typedef enum kind { ADAMW, SGD, RMSPROP } kind;

typedef struct training_of {
    ls_module *(*make)(void);
    data data;
    kind kind;
    bool half, clips;
    what what;
    int more; /* micro-batches before the one of the step */
} training_of;

typedef struct state {
    const training_of *t;
    ls_module *net;
    ls_optim *optim;
    double norm;
    int calls;
    ls_step_context context[1 + MORE_MAX];
    ls_tensor *held[HELD]; /* by the program, from the run after the recorded one on */
    bool captures;
} state;

static ls_module *make_mlp(void)
{
    ls_module *layers[] = {ls_linear_new(8, 16, NULL), ls_dropout_new(0.2),
                           ls_linear_new(16, 3, NULL)};
    return ls_sequential_new(layers, 3);
}

static ls_tensor *loss_of(const state *s, ls_tensor *const *in)
{
    LS_AUTOCAST(s->t->half);
    ls_tensor *x = s->t->data == IMAGES ? ls_reshape(in[0], LS_SHAPE(ROWS, 2, 8, 8)) : in[0];
    ls_tensor *y = ls_forward(s->net, x);
    return s->t->data != FLOATS ? ls_cross_entropy(y, in[1], NULL) : ls_mse_loss(y, in[1]);
}

static ls_status begin_context(const state *s, int k)
{
    if (s->t->what == BEGINS_ITSELF) {
        ls_step_begin(s->context[k]);
        return LS_OK;
    }
    return ls_captured_step_begin(&s->context[k]);
}

/* Of the further micro-batches, each of which draws numbers of its own. */
static ls_status add_gradients(const state *s, ls_tensor *const *in, ls_tensor **out)
{
    for (int k = 1; k <= s->t->more; k++) {
        LS_TRY(begin_context(s, k));
        out[k] = loss_of(s, in + (ptrdiff_t)2 * k);
        LS_TRY(ls_backward(out[k]));
    }
    return s->t->more > 0 ? begin_context(s, 0) : LS_OK;
}

/* What follows the backward. */
static ls_status update(state *s)
{
    if (s->t->clips) {
        LS_TRY(ls_clip_grad_norm(s->net, 0.5, NULL, &s->norm));
    }
    LS_TRY(ls_optim_step(s->optim));
    if (s->t->what != KEEPS_GRADIENTS) {
        ls_optim_zero_grad(s->optim);
    }
    return LS_OK;
}

static ls_status step(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    state *s = arg;
    double seen = 0.0;
    s->calls++;
    if (s->t->what == COMPUTES_OUTSIDE) {
        out[0] = ls_sum(in[0]);
        return update(s);
    }
    if (s->t->what == KEEPS_GRADIENTS) {
        ls_optim_zero_grad(s->optim);
    }
    if (s->t->what == KERNEL_FAILS && s->captures && s->calls == PLAIN + 1) {
        fake_cuda_fail_next(700);
    }
    LS_TRY(add_gradients(s, in, out));
    out[0] = loss_of(s, in);
    if (s->t->what == READS || (s->t->what == READS_LATE && s->calls == PLAIN + 1)) {
        LS_TRY(ls_item(out[0], &seen));
    }
    if (s->t->what == MORE_LATE && s->calls == PLAIN + 1) {
        CHECK(ls_dropout(out[0], 0.5) != NULL);
    }
    if (s->t->what == FAILS_ITSELF && s->calls == PLAIN + 1) {
        return ls_fail(LS_ERR_STATE, "there is no more data; give some");
    }
    if (s->t->what == WAITS && s->captures && s->calls == PLAIN + 1) {
        CHECK_INT(cuStreamSynchronize(stream_of(s->net)), 900);
    }
    if (s->t->what == DRAWS) {
        out[0] = ls_add(out[0], ls_scale(ls_sum(ls_rand(LS_SHAPE(2))), 0.0));
    }
    LS_TRY(ls_backward(out[0]));
    return s->t->what == STEPS_OUTSIDE || s->t->what == ADDS_UP ? LS_OK : update(s);
}

static ls_tensor *far_indices(ls_dtype dtype, ls_shape shape)
{
    const int64_t far = dtype == LS_INT64 ? (int64_t)1 << 40 : (int64_t)1 << 30;
    return ls_cast(ls_full(shape, LS_INT64, (double)far), dtype);
}

static void make_inputs(const training_of *t, int run, ls_tensor *in[2])
{
    const int64_t rows =
        (t->what == OTHER_SHAPE && run == ODD) || (t->what == OTHER_SHAPES && run % 3 == 2)
            ? BATCH - 1
            : BATCH;
    if (t->data == TOKENS) {
        in[0] = t->what == BAD_INDEX && run == ODD ? far_indices(LS_INT32, LS_SHAPE(BATCH, CONTEXT))
                                                   : integers(rows, CONTEXT, VOCAB, run, LS_INT32);
        in[1] = t->what == BAD_TARGET && run == ODD
                    ? far_indices(LS_INT64, LS_SHAPE(BATCH, CONTEXT))
                    : integers(rows, CONTEXT, VOCAB, run + 1, LS_INT64);
        return;
    }
    if (t->data == IMAGES) {
        in[0] = floats(ROWS, 2 * 8 * 8, run);
        in[1] = t->what == BAD_TARGET && run == ODD ? far_indices(LS_INT64, LS_SHAPE(ROWS))
                                                    : integers(ROWS, 1, 4, run, LS_INT64);
        return;
    }
    in[0] = floats(rows, 8, run);
    in[1] = floats(rows, 3, run + 50);
    if (t->what == BAD_NUMBER && run == ODD) {
        in[0] = ls_scale(in[0], (double)NAN);
    }
}

static ls_optim *make_optim(const state *s)
{
    return s->t->kind == ADAMW ? ls_adamw_new(s->net, NULL)
           : s->t->kind == SGD ? ls_sgd_new(s->net, LS_OPTIONS(ls_sgd_options, .momentum = 0.9))
                               : ls_rmsprop_new(s->net, NULL);
}

/* Memory that is taken between two runs, of all sizes; what it holds stays. */
static void hold_memory(state *s, int run)
{
    for (int i = 0; i < HELD && run == PLAIN + 1; i++) {
        s->held[i] = ls_keep(ls_ones(LS_SHAPE(16 << (i % 15)), LS_FLOAT32));
        CHECK_OK(ls_tensor_status(s->held[i]));
    }
    for (int i = 0; i < HELD && run == RUNS - 1; i++) {
        double sum;
        CHECK_OK(ls_item(ls_sum(s->held[i]), &sum));
        CHECK(sum == (double)ls_numel(s->held[i]));
        ls_free(s->held[i]);
    }
}

/* Steps that do not follow each other. */
static void set_contexts(state *s, int run)
{
    const bool moves = s->t->what == OTHER_OFFSET && run == ODD;
    for (int k = 0; k <= s->t->more; k++) {
        s->context[k] = (ls_step_context){.step = (uint64_t)((5 * run + 7 * k * k) % 31),
                                          .sample_offset = moves && k == 1 ? BATCH : 0};
    }
}

static void before_run(state *s, int run)
{
    set_contexts(s, run);
    if (s->t->what == MOVES && run == ODD) {
        CHECK_OK(ls_module_to(s->net, "cpu"));
        CHECK_OK(ls_module_to(s->net, "cuda"));
    }
    if (s->t->what == EVALUATES && run % 2 == 1) {
        LS_SCOPE;
        LS_NO_GRAD;
        double value;
        ls_tensor *in[2];
        make_inputs(s->t, 90, in);
        ls_module_train(s->net, false);
        CHECK_OK(ls_item(loss_of(s, in), &value));
        ls_module_train(s->net, true);
    }
    if (s->t->what == FULL) {
        hold_memory(s, run);
    }
    ls_step_begin((ls_step_context){.step = (uint64_t)run,
                                    .sample_offset = s->t->what == OTHER_OFFSETS ? run : 0});
    ls_optim_set_lr(s->optim, 0.002 * (1 + run % 5));
}

/* captured NULL: calls the step itself. */
static void run_once(state *s, ls_captured *captured, int run, outcome *out)
{
    LS_SCOPE;
    const int count = 1 + s->t->more;
    ls_tensor *in[2 + 2 * MORE_MAX], *loss[1 + MORE_MAX] = {NULL};
    double value[1 + MORE_MAX] = {0};
    before_run(s, run);
    for (int k = 0; k < count; k++) {
        make_inputs(s->t, run + 20 * k, in + (ptrdiff_t)2 * k);
    }
    s->norm = 0.0;
    if (s->t->what == COMPUTES_OUTSIDE) {
        CHECK_OK(ls_backward(loss_of(s, in)));
    }
    out->status[run] = captured != NULL ? ls_captured_run(captured, in, 2 * count, value, count)
                                        : step(s, in, loss);
    for (int k = 0; k < count && out->status[run] == LS_OK; k++) {
        CHECK_OK(captured == NULL ? ls_item(loss[k], &value[k]) : LS_OK);
    }
    out->loss[run] = value[0] + 3.0 * value[1] + 7.0 * value[2];
    if (out->status[run] < 0) {
        ls_optim_zero_grad(s->optim);
        out->loss[run] = 0.0;
    }
    if (s->t->what == STEPS_OUTSIDE || (s->t->what == ADDS_UP && run % 3 == 2)) {
        CHECK_OK(update(s));
    }
    out->norm[run] = s->norm;
    out->hash[run] = ls_module_hash(s->net);
}

static void train_all(const training_of *t, bool captures, outcome *out)
{
    state s = {.t = t, .captures = captures};
    memset(out, 0, sizeof *out);
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_device_use("cuda"));
    s.net = t->make();
    s.optim = make_optim(&s);
    CHECK_OK(ls_module_status(s.net));
    ls_captured *captured = captures ? ls_captured_new(step, &s) : NULL;
    for (int run = 0; run < RUNS; run++) {
        const bool fails = captured != NULL && t->what == FAILS && run == PLAIN;
        fake_cuda_fail_graph(fails ? 2 : 0);
        run_once(&s, captured, run, out);
        if (out->status[run] < 0 && captures) {
            snprintf(out->error, sizeof out->error, "%s", ls_error_message());
            if (run == PLAIN && t->what != FAILS_ITSELF) { /* the step was not made */
                run_once(&s, captured, run, out);
            }
        }
    }
    if (captures) {
        out->replays = ls_captured_replays(captured);
        snprintf(out->why, sizeof out->why, "%s", ls_captured_why(captured));
    }
    out->calls = s.calls;
    ls_captured_free(captured);
    ls_optim_free(s.optim);
    ls_module_free(s.net);
    CHECK_OK(ls_finalize());
}

/* The same training with and without a capture. */
static outcome check_bits(const training_of *t)
{
    static outcome plain, captured;
    train_all(t, false, &plain);
    train_all(t, true, &captured);
    compare_outcomes(&captured, &plain, t->what != ADDS_UP);
    CHECK_INT(fake_cuda_graphs(), 0);
    return captured;
}

/* ---- bits ----------------------------------------------------------------------------------- */

TEST(replays_have_the_bits_of_the_steps_that_they_repeat)
{
    const uint64_t before = fake_cuda_replayed();
    const outcome facts = check_bits(&(training_of){.make = make_gpt, .clips = true});
    CHECK_INT(facts.replays, RUNS - PLAIN);
    CHECK_INT(fake_cuda_replayed() - before, RUNS - PLAIN);
    CHECK_INT(facts.calls, PLAIN + 1);
    CHECK(facts.why[0] == '\0');
}

TEST(replays_have_the_bits_in_bfloat16_and_without_clipping)
{
    CHECK_INT(check_bits(&(training_of){.make = make_gpt, .half = true, .clips = true}).replays,
              RUNS - PLAIN);
    CHECK_INT(check_bits(&(training_of){.make = make_gpt}).replays, RUNS - PLAIN);
}

TEST(replays_of_other_optimizers_have_their_bits)
{
    training_of t = {.make = make_mlp, .data = FLOATS, .kind = SGD, .clips = true};
    CHECK_INT(check_bits(&t).replays, RUNS - PLAIN);
    t.kind = RMSPROP;
    CHECK_INT(check_bits(&t).replays, RUNS - PLAIN);
}

TEST(replays_of_sequences_have_their_bits)
{
    CHECK_INT(check_bits(&(training_of){.make = make_lstm, .clips = true}).replays, RUNS - PLAIN);
}

/* The hash covers running statistics and the numbers of batches. */
TEST(replays_of_images_with_batch_norm_have_their_bits)
{
    training_of t = {.make = make_cnn, .data = IMAGES, .clips = true};
    CHECK_INT(check_bits(&t).replays, RUNS - PLAIN);
    t.make = make_residual, t.kind = SGD, t.what = EVALUATES;
    CHECK_INT(check_bits(&t).replays, RUNS - PLAIN);
    t.half = true, t.clips = false, t.what = AS_EVER;
    CHECK_INT(check_bits(&t).replays, RUNS - PLAIN);
}

/* Weights of the attention are dropped, and blocks run again in backward. */
typedef struct attending {
    ls_module base;
    ls_module *table, *head;
} attending;

static ls_tensor *attend(ls_tensor *x, void *arg)
{
    (void)arg;
    return ls_dropout(ls_attention(x, x, x, LS_OPTIONS(ls_attention_options, .dropout = 0.2)), 0.1);
}

static ls_tensor *attending_forward(ls_module *m, ls_tensor *x)
{
    attending *self = (attending *)m;
    ls_tensor *rows = ls_forward(self->table, x); /* of one head */
    const int64_t b = ls_size(rows, 0), n = ls_size(rows, 1), dim = ls_size(rows, 2);
    ls_tensor *y = ls_recompute_call(attend, ls_reshape(rows, LS_SHAPE(b, 1, n, dim)), NULL);
    return ls_forward(self->head, ls_reshape(y, LS_SHAPE(b, n, dim)));
}

static ls_module *make_attending(void)
{
    static const ls_module_class cls =
        LS_MODULE_CLASS(.name = "attending", .forward = attending_forward);
    attending *self = ls_module_new(sizeof *self, &cls);
    self->table = ls_module_add(&self->base, "table", ls_embedding_new(VOCAB, 8));
    self->head = ls_module_add(&self->base, "head", ls_linear_new(8, VOCAB, NULL));
    return &self->base;
}

TEST(a_segment_that_runs_again_draws_the_numbers_of_the_replay)
{
    const outcome facts = check_bits(&(training_of){.make = make_attending, .clips = true});
    CHECK_INT(facts.replays, RUNS - PLAIN);
}

TEST(programs_that_evaluate_and_take_memory_between_replays_do_not_disturb_them)
{
    training_of t = {.make = make_gpt, .clips = true, .what = EVALUATES};
    CHECK_INT(check_bits(&t).replays, RUNS - PLAIN);
    t.what = FULL;
    CHECK_INT(check_bits(&t).replays, RUNS - PLAIN);
}

TEST(micro_batches_of_a_replay_draw_the_numbers_of_their_contexts)
{
    training_of t = {.make = make_gpt, .clips = true, .more = 2};
    outcome facts = check_bits(&t);
    CHECK_INT(facts.replays, RUNS - PLAIN);
    CHECK_INT(facts.calls, PLAIN + 1);
    t.make = make_attending, t.half = true;
    CHECK_INT(check_bits(&t).replays, RUNS - PLAIN);
    t.what = OTHER_OFFSET;
    CHECK_INT(check_bits(&t).replays, RUNS - PLAIN - 1);
    t.what = BAD_INDEX; /* in the last one */
    CHECK_INT(check_bits(&t).replays, RUNS - PLAIN);
}

/* Gradients are what such a step takes or gives, wherever they lie meanwhile. */
TEST(gradients_of_replays_are_those_that_the_program_sees)
{
    training_of t = {.make = make_gpt, .clips = true, .what = STEPS_OUTSIDE};
    CHECK_INT(check_bits(&t).replays, RUNS - PLAIN);
    t = (training_of){.make = make_mlp, .data = FLOATS, .clips = true, .what = COMPUTES_OUTSIDE};
    CHECK_INT(check_bits(&t).replays, RUNS - PLAIN);
    t.what = ADDS_UP; /* a first gradient is written, not added: such runs are not replays */
    CHECK_INT(check_bits(&t).replays, RUNS - PLAIN - (RUNS - PLAIN) / 3);
}

/* ---- what is not captured ------------------------------------------------------------------- */

TEST(a_step_that_reads_is_named_and_made_without_a_capture)
{
    outcome facts = check_bits(&(training_of){.make = make_gpt, .what = READS});
    CHECK_INT(facts.replays, 0);
    CHECK_INT(facts.calls, RUNS);
    CHECK_SAYS(facts.why, "ls_item reads on the host");
    CHECK_CONTAINS(facts.why, "tests/cuda/captured.c:");
    facts = check_bits(&(training_of){.make = make_gpt, .what = DRAWS});
    CHECK_INT(facts.replays, 0);
    CHECK_SAYS(facts.why, "ls_rand and ls_randn, whose numbers would be those of every step");
    facts = check_bits(&(training_of){.make = make_gpt, .more = 1, .what = BEGINS_ITSELF});
    CHECK_INT(facts.replays, 0);
    CHECK_SAYS(facts.why, "ls_step_begin, whose context would be that of every run; call "
                          "ls_captured_step_begin");
}

TEST(other_shapes_run_as_they_are_between_replays)
{
    const outcome facts =
        check_bits(&(training_of){.make = make_gpt, .clips = true, .what = OTHER_SHAPE});
    CHECK_INT(facts.replays, RUNS - PLAIN - 1);
    CHECK_INT(facts.calls, PLAIN + 2);
}

TEST(shapes_that_always_change_are_named)
{
    const outcome facts =
        check_bits(&(training_of){.make = make_mlp, .data = FLOATS, .what = OTHER_SHAPES});
    CHECK_INT(facts.replays, 0);
    CHECK_SAYS(facts.why, "input %d was %s %.50s in one run and %s %.50s in the next; three "
                          "runs in a row that have them alike are needed");
    CHECK_CONTAINS(facts.why, "input 1 was float32 [3,8] in one run and float32 [2,8] in the next; "
                              "three runs in a row that have them alike are needed");
    const outcome other =
        check_bits(&(training_of){.make = make_mlp, .data = FLOATS, .what = OTHER_OFFSETS});
    CHECK_SAYS(other.why,
               "inputs, autocast, the seed, the sample offset or parameters (where they lie, which "
               "are frozen, settings of their optimizer) have changed from run to run; three runs "
               "in a row that have them alike are needed");
}

TEST(parameters_that_move_are_captured_anew)
{
    const outcome facts =
        check_bits(&(training_of){.make = make_mlp, .data = FLOATS, .what = MOVES});
    CHECK_INT(facts.replays, RUNS - 2 * PLAIN);
}

/* ---- errors --------------------------------------------------------------------------------- */

TEST(an_index_outside_its_table_is_named_and_the_step_not_made)
{
    const outcome facts =
        check_bits(&(training_of){.make = make_gpt, .clips = true, .what = BAD_INDEX});
    CHECK_INT(facts.replays, RUNS - PLAIN);
    CHECK_CONTAINS(facts.error,
                   "embedding: element 0 of argument 2 [3,6] is 1073741824; give values in [0,13)");
    (void)check_bits(&(training_of){.make = make_gpt, .what = BAD_INDEX});
}

TEST(a_target_that_is_no_class_is_named_and_the_step_not_made)
{
    const outcome facts =
        check_bits(&(training_of){.make = make_gpt, .half = true, .what = BAD_TARGET});
    CHECK_INT(facts.replays, RUNS - PLAIN);
    CHECK_CONTAINS(facts.error,
                   "cross_entropy: element 0 of target [3,6] is 1099511627776; give values in "
                   "[0,13), or -100 for rows that do not count");
    const outcome images =
        check_bits(&(training_of){.make = make_residual, .data = IMAGES, .what = BAD_TARGET});
    CHECK_INT(images.replays, RUNS - PLAIN);
    CHECK(images.hash[ODD] != images.hash[ODD - 1]); /* running statistics have moved, as ever */
}

TEST(a_norm_that_is_not_finite_is_named_and_the_step_not_made)
{
    const outcome facts = check_bits(
        &(training_of){.make = make_mlp, .data = FLOATS, .clips = true, .what = BAD_NUMBER});
    CHECK_INT(facts.replays, RUNS - PLAIN);
    CHECK_CONTAINS(facts.error, "clip_grad_norm: the gradients' norm is nan (not finite in 4 of "
                                "the parameters, first in 0.weight); look for");
}

TEST(a_capture_that_fails_leaves_the_device_and_the_training_as_they_were)
{
    const outcome facts =
        check_bits(&(training_of){.make = make_gpt, .clips = true, .what = FAILS});
    CHECK_INT(facts.replays, 0);
    CHECK_SAYS(facts.error, "captured_run: device \"%s\" could not record the step, which was not "
                            "made: %s; zero the gradients, and go on: runs to come are made "
                            "without a capture");
    CHECK_CONTAINS(facts.error, "cuGraphInstantiate: out of memory");
    CHECK_CONTAINS(facts.why, "cuGraphInstantiate: out of memory");
}

TEST(a_kernel_that_cannot_be_recorded_is_no_failure_of_the_device)
{
    const outcome facts =
        check_bits(&(training_of){.make = make_gpt, .clips = true, .what = KERNEL_FAILS});
    CHECK_INT(facts.replays, 0);
    CHECK_CONTAINS(facts.error, ": an illegal memory access was encountered; zero the gradients");
}

TEST(a_program_that_waits_for_the_stream_itself_ends_the_capture_and_no_more)
{
    const outcome facts =
        check_bits(&(training_of){.make = make_gpt, .clips = true, .what = WAITS});
    CHECK_INT(facts.replays, 0);
    CHECK_CONTAINS(facts.error, "cuStreamEndCapture: operation failed due to a previous error");
}

TEST(a_run_that_does_more_than_the_one_before_is_refused_and_the_device_stays_usable)
{
    const outcome facts =
        check_bits(&(training_of){.make = make_gpt, .clips = true, .what = READS_LATE});
    CHECK_INT(facts.replays, 0);
    CHECK_SAYS(facts.error,
               "a captured step does in this run what it did not in the run before, and what "
               "cannot be captured: %s; let its runs be alike");
    CHECK_CONTAINS(facts.why, "ls_item reads on the host (");
    const outcome more = check_bits(&(training_of){.make = make_gpt, .what = MORE_LATE});
    CHECK_SAYS(more.why, "it does more than in the run before");
    const outcome own = check_bits(&(training_of){.make = make_gpt, .what = FAILS_ITSELF});
    CHECK_SAYS(own.why, "the run to record failed: %.200s");
    CHECK_CONTAINS(own.why, "there is no more data; give some");
}

/* ---- other refusals, and memory -------------------------------------------------------------- */

static ls_status run_inner(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    double value;
    out[0] = ls_sum(in[0]);
    return arg != NULL ? ls_captured_run(arg, in, 1, &value, 1) : LS_OK;
}

static ls_status of_two_elements(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    (void)arg;
    out[0] = in[0];
    return LS_OK;
}

static ls_status in_ddp(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    state *s = arg;
    out[0] = ls_mse_loss(ls_forward(s->net, in[0]), in[1]);
    LS_TRY(ls_backward(out[0]));
    LS_TRY(ls_optim_step(s->optim));
    ls_optim_zero_grad(s->optim);
    return LS_OK;
}

/* What a step may not do; s->calls says which. */
static ls_status doing(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    const state *s = arg;
    float host[2] = {1, 2};
    ls_tensor *one = ls_zeros(LS_SHAPE(1), LS_FLOAT32);
    out[0] = ls_sum(in[0]);
    switch (s->calls) {
    case 0:
        return ls_copy_out(out[0], host, sizeof *host);
    case 1:
        return ls_copy_in(one, host, sizeof *host);
    case 2:
        return ls_tensor_status(ls_from_data(host, LS_SHAPE(2), LS_FLOAT32));
    case 3:
        return ls_tensor_status(ls_full(LS_SHAPE(2), LS_FLOAT32, 3.0));
    case 4:
        return ls_tensor_status(ls_sum(ls_from_memory(host, LS_SHAPE(2), LS_FLOAT32)));
    case 5:
        return ls_tensor_status(ls_upsample(ls_reshape(in[0], LS_SHAPE(1, 1, 2, 8)),
                                            LS_OPTIONS(ls_upsample_options, .output = {4, 16})));
    case 6:
        return ls_all_reduce(ls_world(), host, host, 2, LS_FLOAT32, LS_SUM, NULL, NULL);
    case 7:
        return ls_clip_grad_norm(s->net, 1.0,
                                 LS_OPTIONS(ls_clip_grad_norm_options, .group = ls_world()), NULL);
    default:
        return ls_module_hash(s->net) != 0 ? LS_OK : LS_ERR_STATE;
    }
}

static void check_why(ls_step_fn fn, void *arg, ls_tensor *const *in, int count, const char *says)
{
    double value;
    ls_captured *captured = ls_captured_new(fn, arg);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(ls_captured_run(captured, in, count, &value, 1));
    }
    CHECK_SAYS(ls_captured_why(captured), says);
    CHECK_INT(ls_captured_replays(captured), 0);
    ls_captured_free(captured);
}

TEST(what_a_step_may_not_do_is_named)
{
    static const char *const says[] = {
        SAYS("ls_copy_out reads on the host"),
        SAYS("ls_copy_in copies from the program's memory"),
        SAYS("ls_from_data copies from the program's memory"),
        SAYS("an operation copies from the program's memory"),
        SAYS("an operation on the processor, which no replay makes again"),
        SAYS("ls_upsample copies from the program's memory"),
        SAYS("ranks exchange something"),
        SAYS("ls_clip_grad_norm over several ranks"),
        SAYS("it waits for the device"),
    };
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_device_use("cuda"));
    {
        LS_SCOPE;
        ls_tensor *x = floats(2, 8, 1);
        state s = {.net = make_mlp()};
        for (s.calls = 0; s.calls < (int)(sizeof says / sizeof *says); s.calls++) {
            check_why(doing, &s, &x, 1, says[s.calls]);
        }
        ls_module_free(s.net);
    }
    CHECK_OK(ls_finalize());
}

TEST(devices_inputs_and_wrappers_that_cannot_be_captured_say_so)
{
    CHECK_OK(ls_init(NULL));
    {
        LS_SCOPE;
        ls_tensor *x = floats(2, 8, 1);
        check_why(run_inner, NULL, &x, 1, SAYS("device \"%s\" captures no steps"));
        CHECK_OK(ls_device_use("cuda"));
        check_why(run_inner, NULL, &x, 1, SAYS("input %d is on device \"%s\""));
        ls_tensor *in[] = {floats(2, 8, 1), floats(2, 3, 2)};
        ls_tensor *leaf = ls_set_requires_grad(floats(2, 8, 1), true);
        check_why(run_inner, NULL, &leaf, 1, SAYS("input %d requires gradients"));
        state s = {.net = ls_ddp_new(make_mlp(), ls_world(), NULL)};
        s.optim = ls_sgd_new(s.net, NULL);
        check_why(in_ddp, &s, in, 2, SAYS("gradients are averaged by ls_ddp_new on the host"));
        ls_optim_free(s.optim);
        ls_module_free(s.net);
    }
    CHECK_OK(ls_finalize());
}

static ls_status fails_silently(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    (void)arg, (void)in, (void)out;
    return LS_ERR_INVALID;
}

TEST(calls_that_make_no_sense_are_refused)
{
    double value;
    CHECK_OK(ls_init(NULL));
    {
        LS_SCOPE;
        ls_tensor *x = floats(1, 2, 1);
        CHECK(ls_captured_new(NULL, NULL) == NULL);
        CHECK_SAYS(ls_error_message(), "captured_new: the step is NULL; give its function");
        CHECK_STATUS(ls_captured_run(NULL, &x, 1, &value, 1), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(),
                   "captured_run: the step is NULL; check what ls_captured_new returned");
        CHECK_STATUS(ls_captured_step_begin(NULL), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(), "captured_step_begin: the context is NULL; give its "
                                       "address, which each run of the step reads");
        ls_captured *inner = ls_captured_new(of_two_elements, NULL);
        CHECK_STATUS(ls_captured_run(inner, &x, LS_CAPTURED_MAX + 1, &value, 1), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(), "captured_run: %d inputs%s and %d values%s; give 0 to %d "
                                       "of each, and their arrays");
        CHECK_STATUS(ls_captured_run(inner, NULL, 1, &value, 1), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "1 inputs at NULL and 1 values;");
        CHECK_STATUS(ls_captured_run(inner, &x, 1, NULL, 1), LS_ERR_INVALID);
        CHECK_STATUS(ls_captured_run(inner, &x, 1, &value, 1), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(), "%s is %s %s; give float32 of one element");
        CHECK_SAYS(ls_error_message(), "captured_run: output %d of the step");
        x = NULL;
        CHECK_STATUS(ls_captured_run(inner, &x, 1, &value, 1), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(), "captured_run: input %d");
        CHECK_CONTAINS(ls_error_message(), "input 1: its argument is NULL");
        x = floats(1, 2, 1);
        ls_captured *silent = ls_captured_new(fails_silently, NULL);
        CHECK_STATUS(ls_captured_run(silent, &x, 1, &value, 1), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(), "captured_run: the step");
        ls_captured_free(silent);
        CHECK_OK(ls_device_use("cuda"));
        ls_tensor *on = floats(1, 2, 1);
        ls_captured *outer = ls_captured_new(run_inner, inner);
        CHECK_STATUS(ls_captured_run(outer, &on, 1, &value, 1), LS_ERR_INVALID); /* the inner's */
        ls_captured_free(outer);
        ls_captured_free(inner);
        ls_captured *self = ls_captured_new(run_inner, NULL);
        outer = ls_captured_new(run_inner, self);
        CHECK_OK(ls_captured_run(outer, &on, 1, &value, 1));
        CHECK_STATUS(ls_captured_run(outer, &on, 1, &value, 1), LS_ERR_STATE);
        CHECK_SAYS(ls_error_message(), "captured_run: a captured step is under way, and makes no "
                                       "other; call the function of the inner one");
        ls_captured_free(outer);
        ls_captured_free(self);
    }
    CHECK_OK(ls_finalize());
}

/* What a capture took is the tensors' again, in use or not. */
TEST(a_captured_step_gives_its_memory_back)
{
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_device_use("cuda"));
    const training_of t = {.make = make_gpt, .what = KEEPS_GRADIENTS};
    outcome out = {0};
    ls_memory_stats none = {.size = sizeof none};
    CHECK_OK(ls_memory_release_cached());
    CHECK_OK(ls_memory_get_stats(&none));
    state s = {.t = &t, .net = make_gpt()};
    s.optim = ls_adamw_new(s.net, NULL);
    ls_memory_stats before = {.size = sizeof before}, after = before;
    ls_captured *captured = ls_captured_new(step, &s);
    for (int run = 0; run < RUNS; run++) {
        if (run == PLAIN) {
            CHECK_OK(ls_memory_get_stats(&before));
        }
        run_once(&s, captured, run, &out);
    }
    CHECK_INT(ls_captured_replays(captured), RUNS - PLAIN);
    CHECK_INT(fake_cuda_graphs(), 1);
    ls_captured_free(captured);
    CHECK_OK(ls_memory_get_stats(&after));
    CHECK_INT(fake_cuda_graphs(), 0);
    CHECK_INT(after.allocated, before.allocated);
    CHECK_INT(after.blocks, before.blocks);
    CHECK_OK(ls_memory_release_cached());
    run_once(&s, NULL, 0, &out);
    CHECK_OK(out.status[0]);
    captured = ls_captured_new(step, &s);
    for (int run = 0; run <= PLAIN; run++) {
        run_once(&s, captured, run, &out);
    }
    CHECK_INT(fake_cuda_graphs(), 1);
    ls_captured_free(captured);
    ls_optim_free(s.optim);
    ls_module_free(s.net);
    CHECK_OK(ls_memory_release_cached());
    CHECK_OK(ls_memory_get_stats(&after));
    CHECK_INT(after.blocks, none.blocks);
    CHECK_INT(after.reserved, none.reserved);
    CHECK_OK(ls_finalize());
    CHECK_INT(fake_cuda_graphs(), 0);
}

TEST(a_captured_step_ends_with_its_runtime_and_may_be_freed_after_it)
{
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_device_use("cuda"));
    const training_of t = {.make = make_mlp, .data = FLOATS};
    outcome out = {0};
    state s = {.t = &t, .net = make_mlp()};
    s.optim = ls_adamw_new(s.net, NULL);
    ls_captured *captured = ls_captured_new(step, &s);
    for (int run = 0; run <= PLAIN; run++) {
        run_once(&s, captured, run, &out);
    }
    CHECK_INT(fake_cuda_graphs(), 1);
    ls_optim_free(s.optim);
    ls_module_free(s.net);
    CHECK_OK(ls_finalize());
    CHECK_INT(fake_cuda_graphs(), 0);
    CHECK_OK(ls_init(NULL));
    CHECK_STATUS(ls_captured_run(captured, NULL, 0, NULL, 0), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(), "captured_run: the step was made before ls_finalize; make a new "
                                   "one after ls_init");
    CHECK_OK(ls_finalize());
    ls_captured_free(captured);
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* Programs around captured steps on the CUDA device, over the fake driver: what they change between
 * runs, and what else a step does. The oracle is the same program without a capture: status, losses
 * and parameters of each run have its bits. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../device/models.h"
#include "../fake_cuda/fake.h"
#include "../fake_cuda/libraries.h"
#include "says.h"

enum { RUNS = 14, PLAIN = 2, ODD = 7, MICRO_MAX = 4, HIDDEN = 16, IN = 8, OUT = 3 };

__attribute__((constructor)) static void prepare(void)
{
    setenv("LOCKSTEP_BACKEND_PATH", test_build_path("src/cuda"), 1);
    load_fake_libraries();
}

/* ---- a program ------------------------------------------------------------------------------- */

typedef struct program program;

typedef struct kind {
    ls_step_fn step;
    void (*before)(program *p, ls_tensor **in); /* a run; NULL: nothing */
    int micro;                                  /* pairs of inputs, and outputs */
    int fewer;                                  /* in every third run, by a step of its own */
    bool classes;                               /* targets are indices */
    bool clips, draws;
    bool outside; /* the optimizer steps after the run */
} kind;

struct program {
    const kind *k;
    ls_module *net[2];
    ls_optim *optim[2];
    ls_step_context context[MICRO_MAX];
    ls_tensor *kept;
    int run, micro;
};

typedef struct outcome {
    ls_status status[RUNS];
    double value[RUNS];
    uint64_t hash[RUNS];
    int64_t replays, of_fewer;
    char why[300], error[1000];
} outcome;

static ls_module *make_net(const kind *k)
{
    ls_module *layers[] = {ls_linear_new(IN, HIDDEN, NULL), ls_dropout_new(k->draws ? 0.2 : 0.0),
                           ls_linear_new(HIDDEN, OUT, NULL)};
    return ls_sequential_new(layers, 3);
}

static ls_tensor *loss_of(const program *p, int net, ls_tensor *const *in)
{
    ls_tensor *y = ls_forward(p->net[net], in[0]);
    return p->k->classes ? ls_cross_entropy(y, in[1], NULL) : ls_mse_loss(y, in[1]);
}

static ls_status update(const program *p, int net)
{
    if (p->k->clips) {
        LS_TRY(ls_clip_grad_norm(p->net[net], 0.5, NULL, NULL));
    }
    LS_TRY(ls_optim_step(p->optim[net]));
    ls_optim_zero_grad(p->optim[net]);
    return LS_OK;
}

static void make_inputs(const program *p, ls_tensor **in)
{
    for (int k = 0; k < MICRO_MAX; k++) {
        const int seed = 9 * p->run + k;
        in[2 * k] = floats(ROWS, IN, seed);
        in[2 * k + 1] =
            p->k->classes ? integers(ROWS, 1, OUT, seed, LS_INT64) : floats(ROWS, OUT, seed + 50);
    }
}

/* Without a capture it calls the function itself. */
static ls_status call(program *p, ls_captured *captured, ls_tensor **in, double *values)
{
    ls_tensor *out[MICRO_MAX] = {NULL};
    LS_SCOPE;
    if (captured != NULL) {
        return ls_captured_run(captured, in, 2 * p->micro, values, p->micro);
    }
    LS_TRY(p->k->step(p, in, out));
    for (int k = 0; k < p->micro; k++) {
        LS_TRY(ls_item(out[k], &values[k]));
    }
    return LS_OK;
}

static void run_once(program *p, ls_captured *const *captured, outcome *out)
{
    LS_SCOPE;
    const bool fewer = p->k->fewer > 0 && p->run % 3 == 2;
    ls_tensor *in[2 * MICRO_MAX];
    double values[MICRO_MAX] = {0};
    make_inputs(p, in);
    for (int k = 0; k < MICRO_MAX; k++) {
        p->context[k] = (ls_step_context){.step = (uint64_t)(10 * p->run + k),
                                          .sample_offset = (int64_t)ROWS * k};
    }
    if (p->k->before != NULL) {
        p->k->before(p, in);
    }
    p->micro = fewer ? p->k->fewer : p->k->micro;
    const ls_status status = call(p, captured[fewer ? 1 : 0], in, values);
    if (status < 0) {
        snprintf(out->error, sizeof out->error, "%s", ls_error_message());
    } else if (p->k->outside) {
        CHECK_OK(update(p, 0));
    }
    out->status[p->run] = status;
    for (int k = 0; k < p->micro && status == LS_OK; k++) {
        out->value[p->run] += (k + 1) * values[k];
    }
    for (int i = 0; i < 2; i++) {
        ls_optim_zero_grad(p->optim[i]);
        out->hash[p->run] = 31 * out->hash[p->run] + ls_module_hash(p->net[i]);
    }
}

static void run_all(const kind *k, bool captures, outcome *out)
{
    program p = {.k = k};
    ls_captured *captured[2] = {NULL, NULL};
    memset(out, 0, sizeof *out);
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_device_use("cuda"));
    for (int i = 0; i < 2; i++) {
        p.net[i] = make_net(k);
        p.optim[i] = ls_adamw_new(p.net[i], LS_OPTIONS(ls_adamw_options, .lr = 0.01));
        captured[i] = captures ? ls_captured_new(k->step, &p) : NULL;
    }
    p.kept = ls_keep(ls_zeros(LS_SHAPE(ROWS, OUT), LS_FLOAT32));
    for (p.run = 0; p.run < RUNS; p.run++) {
        run_once(&p, captured, out);
    }
    out->replays = ls_captured_replays(captured[0]);
    out->of_fewer = ls_captured_replays(captured[1]);
    snprintf(out->why, sizeof out->why, "%s", ls_captured_why(captured[0]));
    for (int i = 0; i < 2; i++) {
        ls_captured_free(captured[i]);
        ls_optim_free(p.optim[i]);
        ls_module_free(p.net[i]);
    }
    CHECK_OK(ls_finalize());
}

/* The same program with and without a capture. */
static outcome check_bits(const kind *k)
{
    static outcome plain, captured;
    run_all(k, false, &plain);
    run_all(k, true, &captured);
    for (int run = 0; run < RUNS; run++) {
        CHECK_INT(captured.status[run], plain.status[run]);
        CHECK(memcmp(&captured.value[run], &plain.value[run], sizeof(double)) == 0);
        CHECK(captured.hash[run] == plain.hash[run]);
    }
    CHECK_INT(fake_cuda_graphs(), 0);
    return captured;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* One micro-batch, or several with a context each. */
static ls_status accumulate(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    program *p = arg;
    for (int k = 0; k < p->micro; k++) {
        LS_TRY(p->k->micro > 1 ? ls_captured_step_begin(&p->context[k]) : LS_OK);
        out[k] = loss_of(p, 0, in + (ptrdiff_t)2 * k);
        LS_TRY(ls_backward(ls_scale(out[k], 1.0 / p->micro)));
    }
    return p->k->outside ? LS_OK : update(p, 0);
}

static ls_status step_two_models(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    const program *p = arg;
    for (int i = 0; i < 2; i++) {
        out[i] = loss_of(p, i, in + (ptrdiff_t)2 * i);
        LS_TRY(ls_backward(out[i]));
        LS_TRY(update(p, i));
    }
    return LS_OK;
}

static ls_status step_one_model_twice(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    const program *p = arg;
    for (int i = 0; i < 2; i++) {
        out[i] = loss_of(p, 0, in + (ptrdiff_t)2 * i);
        LS_TRY(ls_backward(out[i]));
        LS_TRY(update(p, 0));
    }
    return LS_OK;
}

/* ---- checks that fail ------------------------------------------------------------------------ */

static ls_tensor *no_class(void)
{
    return ls_cast(ls_full(LS_SHAPE(ROWS), LS_FLOAT32, 999.0), LS_INT64);
}

static void spoil_first(program *p, ls_tensor **in)
{
    in[1] = p->run == ODD ? no_class() : in[1];
}

static void spoil_second(program *p, ls_tensor **in)
{
    in[3] = p->run == ODD ? no_class() : in[3];
}

static void spoil_number(program *p, ls_tensor **in)
{
    in[0] = p->run == ODD ? ls_scale(in[0], (double)NAN) : in[0];
}

static void spoil_recorded(program *p, ls_tensor **in)
{
    in[1] = p->run == PLAIN ? no_class() : in[1];
}

/* What the function did before it would have failed, a replay has done, too. */
TEST(a_check_that_fails_holds_back_what_follows_it_and_nothing_before)
{
    kind k = {.step = step_two_models, .micro = 2, .classes = true, .before = spoil_second};
    CHECK_INT(check_bits(&k).replays, RUNS - PLAIN);
    k.clips = true;
    CHECK_INT(check_bits(&k).replays, RUNS - PLAIN);
    k.before = spoil_first;
    CHECK_INT(check_bits(&k).replays, RUNS - PLAIN);
    k.step = step_one_model_twice;
    CHECK_INT(check_bits(&k).replays, RUNS - PLAIN);
    k.before = spoil_second, k.clips = false;
    CHECK_INT(check_bits(&k).replays, RUNS - PLAIN);
}

TEST(draws_are_counted_on_after_a_check_that_fails)
{
    kind k = {.step = accumulate, .micro = 1, .classes = true, .draws = true};
    k.before = spoil_first;
    CHECK_INT(check_bits(&k).replays, RUNS - PLAIN);
    k.before = spoil_recorded;
    CHECK_INT(check_bits(&k).replays, RUNS - PLAIN);
    k.before = spoil_number, k.clips = true;
    CHECK_INT(check_bits(&k).replays, RUNS - PLAIN);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void put_on_the_processor(program *p, ls_tensor **in)
{
    in[0] = p->run == ODD ? ls_to(in[0], "cpu") : in[0];
}

static void ask_for_gradients(program *p, ls_tensor **in)
{
    in[0] = p->run == ODD ? ls_scale(ls_module_param(p->net[0], "0.weight"), 0.1) : in[0];
    in[0] = p->run == ODD ? ls_slice(in[0], 0, 0, ROWS) : in[0];
}

TEST(inputs_that_a_replay_cannot_take_are_given_to_the_function)
{
    kind k = {.step = accumulate, .micro = 1, .before = put_on_the_processor};
    const outcome facts = check_bits(&k);
    CHECK_INT(facts.replays, RUNS - PLAIN - 1);
    CHECK_CONTAINS(facts.error, "one before it on device \"cpu\"");
    k.before = ask_for_gradients;
    CHECK_INT(check_bits(&k).replays, RUNS - PLAIN - 1);
}

/* ---- micro-batches --------------------------------------------------------------------------- */

/* The last accumulation of an epoch has fewer. */
TEST(two_captured_steps_of_one_model_with_other_numbers_of_micro_batches)
{
    const outcome facts = check_bits(
        &(kind){.step = accumulate, .micro = 4, .fewer = 2, .clips = true, .draws = true});
    CHECK_INT(facts.replays + facts.of_fewer, RUNS - 2 * PLAIN);
}

static ls_tensor *segment(ls_tensor *x, void *net)
{
    return ls_dropout(ls_forward(net, x), 0.3);
}

static ls_status step_by_segments(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    program *p = arg;
    for (int k = 0; k < 2; k++) {
        LS_TRY(ls_captured_step_begin(&p->context[k]));
        out[k] = ls_mse_loss(ls_recompute_call(segment, in[2 * k], p->net[0]), in[2 * k + 1]);
    }
    LS_TRY(ls_backward(ls_add(out[0], out[1])));
    return update(p, 0);
}

static void begin_alike(program *p, ls_tensor **in)
{
    (void)in;
    p->context[0].sample_offset = p->context[1].sample_offset = 0;
    p->context[1].step = p->run < ODD ? p->context[0].step : p->context[1].step;
}

TEST(segments_that_run_again_draw_what_their_own_micro_batch_drew)
{
    CHECK_INT(
        check_bits(&(kind){.step = step_by_segments, .micro = 2, .before = begin_alike}).replays,
        RUNS - PLAIN);
}

static ls_status step_with_one_context(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    program *p = arg;
    for (int k = 0; k < 2; k++) {
        p->context[0].step = (uint64_t)(2 * p->run + k);
        LS_TRY(ls_captured_step_begin(&p->context[0]));
        out[k] = loss_of(p, 0, in + (ptrdiff_t)2 * k);
        LS_TRY(ls_backward(out[k]));
    }
    return update(p, 0);
}

TEST(one_context_that_the_step_writes_for_several_micro_batches_is_named)
{
    const outcome facts =
        check_bits(&(kind){.step = step_with_one_context, .micro = 2, .draws = true});
    CHECK_INT(facts.replays, 0);
    CHECK_SAYS(facts.why, "ls_captured_step_begin: the step writes one context for several "
                          "micro-batches; give each one its own, written before the run");
}

/* ---- parameters and settings ----------------------------------------------------------------- */

static ls_tensor *weight_of(const program *p)
{
    return ls_module_param(p->net[0], "0.weight");
}

static void fill(program *p, ls_tensor **in)
{
    (void)in;
    CHECK_OK(p->run == ODD ? ls_fill_normal(weight_of(p), 0.0, 0.3) : LS_OK);
}

static void freeze(program *p, ls_tensor **in)
{
    (void)in;
    if (p->run == ODD - PLAIN || p->run == ODD + PLAIN) {
        (void)ls_set_requires_grad(weight_of(p), p->run > ODD);
    }
}

static void thaw(program *p, ls_tensor **in)
{
    (void)in;
    if (p->run == 0 || p->run == ODD) {
        (void)ls_set_requires_grad(weight_of(p), p->run > 0);
    }
}

static void freeze_for_a_while(program *p, ls_tensor **in)
{
    (void)in;
    if (p->run == ODD) {
        (void)ls_set_requires_grad(weight_of(p), false);
        (void)ls_set_requires_grad(weight_of(p), true);
    }
}

TEST(parameters_that_are_filled_frozen_or_thawed_are_captured_anew)
{
    kind k = {.step = accumulate, .micro = 1, .clips = true, .before = fill};
    CHECK_INT(check_bits(&k).replays, RUNS - 2 * PLAIN);
    k.before = freeze;
    CHECK_INT(check_bits(&k).replays, RUNS - 3 * PLAIN);
    k.before = thaw;
    CHECK_INT(check_bits(&k).replays, RUNS - 2 * PLAIN);
    k.before = freeze_for_a_while, k.outside = true;
    CHECK_INT(check_bits(&k).replays, RUNS - 2 * PLAIN);
}

static ls_status see_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    (void)self, (void)name, (void)tensor;
    return LS_OK;
}

static ls_status see_steps(void *self, const char *name, int64_t *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static ls_status set_decay(void *self, const char *name, double *value)
{
    *value = strcmp(name, "optim.weight_decay") == 0 ? *(const double *)self : *value;
    return LS_OK;
}

/* As a checkpoint with these settings does. */
static void load_settings(program *p, ls_tensor **in)
{
    double decay = p->run < ODD ? 0.01 : 0.3;
    (void)in;
    CHECK_OK(ls_optim_state(p->optim[0], "optim",
                            &(ls_state_visitor){.size = sizeof(ls_state_visitor),
                                                .self = &decay,
                                                .tensor = see_tensor,
                                                .int64 = see_steps,
                                                .float64 = set_decay}));
}

TEST(settings_that_are_loaded_are_captured_anew)
{
    CHECK_INT(check_bits(&(kind){.step = accumulate, .micro = 1, .before = load_settings}).replays,
              RUNS - 2 * PLAIN);
}

/* ---- what a step may not do ------------------------------------------------------------------ */

static ls_status step_that_fills(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    const program *p = arg;
    ls_tensor *noise = ls_empty(LS_SHAPE(ROWS, IN), LS_FLOAT32);
    LS_TRY(ls_fill_normal(noise, 0.0, 1.0));
    out[0] = ls_mse_loss(ls_forward(p->net[0], ls_add(in[0], noise)), in[1]);
    LS_TRY(ls_backward(out[0]));
    return update(p, 0);
}

static ls_status step_that_keeps(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    program *p = arg;
    ls_tensor *y = ls_forward(p->net[0], in[0]), *former = p->kept;
    out[0] = ls_mse_loss(y, former);
    LS_TRY(ls_backward(out[0]));
    p->kept = ls_keep(ls_detach(ls_scale(y, 0.5)));
    ls_free(former);
    return update(p, 0);
}

TEST(numbers_that_are_drawn_and_tensors_that_are_kept_are_named)
{
    const outcome filled = check_bits(&(kind){.step = step_that_fills, .micro = 1});
    CHECK_INT(filled.replays, 0);
    CHECK_SAYS(filled.why,
               "a tensor is filled (ls_fill_normal), with the same numbers in every step");
    const outcome keeps = check_bits(&(kind){.step = step_that_keeps, .micro = 1});
    CHECK_INT(keeps.replays, 0);
    CHECK_SAYS(keeps.why, "ls_keep of a tensor, which would be that of the recorded run for ever");
}

TEST_MAIN

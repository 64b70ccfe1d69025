/* SPDX-License-Identifier: Apache-2.0 */
/* Pitfalls of pipelines, each beside the whole model in one process: losses scaled once,
 * micro-batches of unequal size, norms of gradients that tied parameters enter once. */
#include "elements.h"
#include "says.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/core/group.h"

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt2.h>

enum { TOKENS = 6, VOCAB = 11, MICRO = 4, ROWS = 12, PARAMS_MAX = 64 };

static ls_module *make_net(void)
{
    return ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .layers = 3, .heads = 2, .dim = 16,
                                  .context = TOKENS, .vocab = VOCAB, .dropout = 0.0));
}

static ls_tensor *tokens_of(int first, int rows, int shift)
{
    int32_t x[ROWS * TOKENS];
    for (int i = 0; i < rows * TOKENS; i++) {
        x[i] = ((first * TOKENS + i) * 7 + shift) % VOCAB;
    }
    return ls_from_data(x, LS_SHAPE(rows, TOKENS), LS_INT32);
}

/* The rows of the batch in micro-batches of these sizes. */
static void cut_batch(const int *rows, ls_micro_batch *micro)
{
    int first = 0;
    for (int m = 0; m < MICRO; m++) {
        micro[m] = (ls_micro_batch){.size = sizeof *micro,
                                    .inputs = {tokens_of(first, rows[m], 0)},
                                    .target = tokens_of(first, rows[m], 1)};
        first += rows[m];
    }
    CHECK_INT(first, ROWS);
}

/* One backward of all rows; *norm: of all gradients. */
static ls_module *whole_batch(double *loss, double *norm)
{
    LS_SCOPE;
    ls_module *net = make_net();
    ls_tensor *y = ls_forward(net, tokens_of(0, ROWS, 0));
    ls_tensor *of = ls_cross_entropy(y, tokens_of(0, ROWS, 1), NULL);
    CHECK_OK(ls_backward(of));
    CHECK_OK(ls_item(of, loss));
    CHECK_OK(ls_clip_grad_norm(net, INFINITY, NULL, norm));
    return net;
}

/* The gradients of this rank's stage are the whole model's, up to rounding. */
static void check_grads(ls_module *net, ls_module *whole)
{
    ls_param params[PARAMS_MAX];
    const int count = ls_module_params(net, params, PARAMS_MAX);
    for (int i = 0; i < count; i++) {
        ls_tensor *other = ls_module_param(whole, params[i].name);
        const float *a = elements_of(ls_grad(params[i].value)), *b = elements_of(ls_grad(other));
        for (int64_t e = 0; e < ls_numel(other); e++) {
            CHECK(fabsf(a[e] - b[e]) <= 1e-6F + 1e-4F * fabsf(b[e]));
        }
    }
}

static bool is_tied(void *arg, const char *name, const ls_tensor *value)
{
    (void)arg, (void)value;
    return strcmp(name, "transformer.wte.weight") == 0;
}

static void check_norm(ls_module *net, double expected)
{
    double norm = 0.0, twice = 0.0;
    CHECK_OK(ls_clip_grad_norm(
        net, INFINITY,
        LS_OPTIONS(ls_clip_grad_norm_options, .group = ls_world(), .replicated = is_tied), &norm));
    CHECK(fabs(norm - expected) <= 1e-5 * expected);
    CHECK_OK(ls_clip_grad_norm(net, INFINITY,
                               LS_OPTIONS(ls_clip_grad_norm_options, .group = ls_world()), &twice));
    CHECK(twice > norm * 1.001); /* the tie does enter it */
}

static void check_sizes(const int *rows, const char *schedule, ls_pipeline_loss_fn loss_of)
{
    double loss, norm, losses[MICRO], mean = 0.0;
    ls_module *net = make_net(), *whole = whole_batch(&loss, &norm);
    ls_pipeline *pipe = NULL;
    CHECK_OK(ls_pipeline_new(net, ls_world(),
                             LS_OPTIONS(ls_pipeline_options, .schedule = schedule,
                                        .micro_batches = MICRO, .loss = loss_of),
                             &pipe));
    {
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        cut_batch(rows, micro);
        CHECK_OK(ls_pipeline_backward(pipe, net, micro, losses));
    }
    for (int m = 0; m < MICRO; m++) {
        mean += losses[m] / MICRO;
    }
    CHECK(fabs(mean - loss) < 1e-6);
    check_grads(net, whole);
    check_norm(net, norm);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
    ls_module_free(whole);
}

/* The mean over the rows of the whole batch, of which micro-batches have unequal shares. */
static ls_tensor *loss_by_rows(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg;
    const double share = (double)ls_size(target, 0) / ROWS;
    return ls_scale(ls_cross_entropy(output, target, NULL), share * MICRO);
}

static void check_all(void)
{
    static const char *const all[] = {"gpipe", "1f1b", "zb-h1"};
    for (int i = 0; i < 3; i++) {
        check_sizes((int[]){3, 3, 3, 3}, all[i], NULL);
        check_sizes((int[]){5, 3, 3, 1}, all[i], loss_by_rows);
        check_sizes((int[]){4, 4, 3, 1}, all[i], loss_by_rows);
    }
}

DIST_TEST(gradients_losses_and_norms_are_those_of_the_whole_batch_on_2, 2)
{
    check_all();
}

DIST_TEST(gradients_losses_and_norms_are_those_of_the_whole_batch_on_4, 4)
{
    check_all();
}

static char warned[1024];

static void keep_warning(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == LS_LOG_WARN) {
        (void)snprintf(warned, sizeof warned, "%s", text);
    }
}

static ls_tensor *loss_of_nan(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg;
    return ls_scale(ls_cross_entropy(output, target, NULL), NAN);
}

/* There is no reducer to say so; the caller's norm then ends the step on all ranks. */
DIST_TEST(a_gradient_that_is_not_finite_is_named_without_a_wrapper, 2)
{
    static const int rows[MICRO] = {3, 3, 3, 3};
    ls_module *net = make_net();
    ls_pipeline *pipe = NULL;
    ls_set_log_callback(keep_warning, NULL);
    CHECK_OK(ls_pipeline_new(
        net, ls_world(),
        LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO, .loss = loss_of_nan), &pipe));
    for (int round = 0; round < 2; round++) {
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        warned[0] = '\0';
        cut_batch(rows, micro);
        CHECK_OK(ls_pipeline_backward(pipe, net, micro, NULL));
        CHECK((warned[0] != '\0') == (round == 0));
        if (round == 0) {
            CHECK_SAYS(warned,
                       "pipeline: the gradient of %.200s is not finite on rank %d (element %lld of "
                       "%lld), of stage %d: look for a division by zero or a logarithm of 0, or "
                       "lower the learning rate");
        }
    }
    CHECK_STATUS(ls_clip_grad_norm(net, INFINITY,
                                   LS_OPTIONS(ls_clip_grad_norm_options, .group = ls_world()),
                                   NULL),
                 LS_ERR_INVALID);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
}

/* ---- parts that do not compute what forward computes ----------------------------------------- */

typedef struct crooked {
    ls_module base;
    ls_module *first, *second;
} crooked;

static ls_tensor *crooked_forward(ls_module *m, ls_tensor *x)
{
    crooked *self = (crooked *)m;
    return ls_forward(self->second, ls_relu(ls_forward(self->first, x)));
}

static void crooked_parts(ls_module *m, ls_parts *parts) /* without the relu */
{
    crooked *self = (crooked *)m;
    ls_parts_add(parts, &LS_PART(.module = self->first));
    ls_parts_add(parts, &LS_PART(.module = self->second));
}

static const ls_module_class crooked_class =
    LS_MODULE_CLASS(.name = "crooked", .forward = crooked_forward, .parts = crooked_parts);

static ls_module *make_of(const ls_module_class *cls)
{
    crooked *self = ls_module_new(sizeof *self, cls);
    self->first = ls_module_add(&self->base, "first", ls_linear_new(4, 6, NULL));
    self->second = ls_module_add(&self->base, "second", ls_linear_new(6, 3, NULL));
    return &self->base;
}

static ls_status train_crooked(ls_module *net, ls_pipeline *pipe)
{
    LS_SCOPE;
    ls_micro_batch micro[MICRO];
    for (int m = 0; m < MICRO; m++) {
        const int32_t target[2] = {m % 3, 1};
        micro[m] = (ls_micro_batch){.size = sizeof *micro,
                                    .inputs = {ls_randn(LS_SHAPE(2, 4))},
                                    .target = ls_from_data(target, LS_SHAPE(2), LS_INT32)};
    }
    return ls_pipeline_backward(pipe, net, micro, NULL);
}

DIST_TEST(crooked_parts_are_found_on_the_first_strict_step, 2)
{
    for (int strict = 0; strict < 2; strict++) {
        ls_module *net = make_of(&crooked_class);
        ls_pipeline *pipe = NULL;
        ls_world()->comm->strict = strict != 0;
        CHECK_OK(ls_pipeline_new(net, ls_world(),
                                 LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO), &pipe));
        const ls_status status = train_crooked(net, pipe);
        CHECK((status == LS_ERR_MISMATCH) == (strict != 0) && (status == LS_OK) == (strict == 0));
        if (strict != 0) {
            CHECK_CONTAINS(ls_error_message(), "forward of the crooked and its parts differ");
        }
        CHECK_INT(ls_module_param_count(net), 2);
        (void)ls_pipeline_free(pipe);
        ls_module_free(net);
    }
    ls_world()->comm->strict = false;
}

static ls_tensor *careless_head(ls_module *m, ls_tensor *const *x)
{
    return ls_forward(((crooked *)m)->second, ls_relu(x[0]));
}

static void careless_parts(ls_module *m, ls_parts *parts) /* the head does not declare "second" */
{
    ls_parts_add(parts, &LS_PART(.module = ((crooked *)m)->first));
    ls_parts_add(parts, &LS_PART(.name = "head", .run = careless_head, .uses = ""));
}

static const ls_module_class careless_class =
    LS_MODULE_CLASS(.name = "careless", .forward = crooked_forward, .parts = careless_parts);

DIST_TEST(a_part_that_uses_a_freed_module_is_named, 2)
{
    for (int strict = 0; strict < 2; strict++) {
        ls_module *net = make_of(&careless_class);
        ls_pipeline *pipe = NULL;
        ls_world()->comm->strict = strict != 0;
        CHECK_OK(ls_pipeline_new(net, ls_world(),
                                 LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO), &pipe));
        CHECK(train_crooked(net, pipe) < 0);
        CHECK_CONTAINS(ls_error_message(), "part \"head\" of the careless");
        CHECK_CONTAINS(ls_error_message(), "add \"second\" to the uses");
        (void)ls_pipeline_free(pipe);
        ls_module_free(net);
    }
    ls_world()->comm->strict = false;
}

/* ---- groups of an optimizer ---------------------------------------------------------------- */

static bool is_named(void *arg, const char *name, const ls_tensor *param)
{
    (void)param;
    return strcmp(name, arg) == 0;
}

/* `scales` are the groups of this stage: the first one of its weight, the second of its bias. */
static ls_status step_and_save(const double *scales)
{
    char folder[64], name[16], command[96];
    snprintf(folder, sizeof folder, "/tmp/lockstep-groups-%d", (int)getppid());
    ls_module *net = make_of(&crooked_class);
    ls_pipeline *pipe = NULL;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_pipeline_new(net, ls_world(),
                             LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO), &pipe));
    ls_optim *optim = ls_sgd_new(net, NULL);
    for (int i = 0; i < 2 && scales[i] > 0; i++) {
        snprintf(name, sizeof name, "%s.%s", ls_rank() == 0 ? "first" : "second",
                 i == 0 ? "weight" : "bias");
        CHECK_OK(ls_optim_add_group(optim, is_named, name,
                                    LS_OPTIONS(ls_optim_group_options, .lr_scale = scales[i])));
    }
    ls_status status = train_crooked(net, pipe);
    if (status == LS_OK) {
        CHECK_OK(ls_optim_step(optim));
        CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
        status = ls_checkpoint_save(
            c, 1, (ls_checkpoint_item[]){LS_ITEM("model", net), LS_ITEM("optim", optim)}, 2);
        CHECK_OK(ls_checkpoint_wait(c));
        CHECK_OK(ls_checkpoint_free(c));
    }
    char message[400];
    snprintf(message, sizeof message, "%.399s", ls_error_message());
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    snprintf(command, sizeof command, "rm -rf %s", folder);
    test_output removed = test_run(command, 30);
    CHECK_INT(removed.status, 0);
    free(removed.text);
    ls_optim_free(optim);
    (void)ls_pipeline_free(pipe);
    ls_module_free(net);
    return status < 0 ? ls_fail(status, "%s", message) : LS_OK;
}

DIST_TEST(a_stage_adds_the_groups_whose_parameters_it_has, 2)
{
    CHECK_OK(step_and_save(ls_rank() == 0 ? (double[]){0} : (double[]){2, 3}));
}

DIST_TEST(a_stage_adds_the_first_groups_of_another, 2)
{
    CHECK_OK(step_and_save(ls_rank() == 0 ? (double[]){2, 3} : (double[]){2, 0}));
}

DIST_TEST(stages_that_each_have_a_group_of_their_own_are_refused, 2)
{
    CHECK_STATUS(step_and_save(ls_rank() == 0 ? (double[]){2, 0} : (double[]){3, 0}),
                 LS_ERR_MISMATCH);
}

DIST_TEST(a_group_that_has_another_number_on_another_stage_cannot_be_saved, 2)
{
    CHECK_STATUS(step_and_save(ls_rank() == 0 ? (double[]){2, 3} : (double[]){3, 0}),
                 LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "group.1.lr_scale");
}

/* The other stages' parts are there for the check, and nothing else sees them. */
static uint64_t hash_after_steps(bool strict, bool steps)
{
    static const int rows[MICRO] = {3, 3, 3, 3};
    ls_module *net = make_net();
    ls_pipeline *pipe = NULL;
    ls_world()->comm->strict = strict;
    CHECK_OK(ls_pipeline_new(net, ls_world(),
                             LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO), &pipe));
    ls_world()->comm->strict = false;
    const int own = ls_module_param_count(net);
    ls_group *alone = NULL;
    CHECK_OK(ls_group_split(ls_world(), ls_rank(), 0, "alone", &alone));
    ls_module *wrapper = ls_ddp_new(net, alone, NULL);
    ls_optim *optim = ls_sgd_new(wrapper, NULL);
    for (int step = 0; steps && step < 2; step++) {
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        cut_batch(rows, micro);
        CHECK_OK(ls_pipeline_backward(pipe, wrapper, micro, NULL));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    CHECK_INT(ls_module_param_count(net), own);
    const uint64_t hash = ls_module_hash(net);
    ls_optim_free(optim);
    CHECK_OK(ls_pipeline_free(pipe));
    CHECK_INT(ls_module_param_count(net), own);
    ls_module_free(wrapper);
    CHECK_OK(ls_group_free(alone));
    return hash;
}

DIST_TEST(a_strict_step_changes_nothing, 3)
{
    CHECK(hash_after_steps(true, true) == hash_after_steps(false, true));
    CHECK(hash_after_steps(true, false) == hash_after_steps(false, false)); /* freed unused */
}

TEST_MAIN

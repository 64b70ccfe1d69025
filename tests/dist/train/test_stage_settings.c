/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a pipeline must have alike though no shape tells so: settings and optimizers of
 * all stages, the options and the parts of ls_pipeline_new. A difference is an error on all ranks,
 * with the rank that differs, and the job's cause. */
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "says.h"
#include "test.h"

enum { DIM = 4, ROWS = 2, MICRO = 4, STEPS = 3 };

/* ---- settings ----------------------------------------------------------------------------- */

typedef enum deed { /* what one rank does otherwise */
                    NOTHING,
                    RATE,
                    KIND,
                    SEED,
                    DECAY_OF_GROUP,
                    LATER_RATE, /* from the end of step 0 on */
                    SKIPPED,    /* the step of the optimizer at the end of step 1 */
                    NORM,
                    AUTOCAST
} deed;

typedef struct run {
    const char *schedule, *axes;
    deed odd;
    int rank, until; /* the odd ranks: rank … until */
    int found;       /* in this step; STEPS: never */
    const char *says[2];
    int thawed; /* parameters are frozen for a moment once all is made; 1: the first stays so */
} run;

static ls_tensor *mean_of(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg, (void)target;
    return ls_mean(output);
}

static void fill(ls_micro_batch *micro, int step)
{
    for (int m = 0; m < MICRO; m++) {
        micro[m] = (ls_micro_batch){.size = sizeof *micro,
                                    .inputs = {ls_ones(LS_SHAPE(ROWS, DIM), LS_FLOAT32)},
                                    .context = {.step = (uint64_t)(step * MICRO + m)}};
    }
}

static ls_optim *make_optim(ls_module *net, deed odd)
{
    ls_optim *optim =
        odd == KIND
            ? ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.25))
            : ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = odd == RATE ? 0.5 : 0.25));
    CHECK(optim != NULL);
    CHECK_OK(ls_optim_add_group(
        optim, ls_select_vectors, NULL,
        LS_OPTIONS(ls_optim_group_options, .weight_decay = odd == DECAY_OF_GROUP ? 0.5 : 0.0)));
    return optim;
}

static ls_status step(ls_pipeline *pipe, ls_module *net, ls_optim *optim, deed odd, int at)
{
    LS_SCOPE;
    LS_AUTOCAST(odd == AUTOCAST && at == 1);
    ls_micro_batch micro[MICRO];
    fill(micro, at);
    LS_TRY(ls_pipeline_backward(pipe, net, micro, NULL));
    if (odd == SKIPPED && at == 1) {
        return LS_OK;
    }
    ls_optim_set_lr(optim, odd == LATER_RATE ? 0.125 : 0.25);
    CHECK_OK(ls_clip_grad_norm(net, odd == NORM ? 2.0 : 1.0, NULL, NULL));
    return ls_optim_step(optim);
}

static int train(void *arg)
{
    const run *r = arg;
    ls_mesh *mesh = NULL;
    ls_pipeline *pipe = NULL;
    CHECK_OK(ls_init(NULL));
    const deed odd = ls_rank() >= r->rank && ls_rank() <= r->until ? r->odd : NOTHING;
    CHECK_OK(ls_manual_seed(odd == SEED ? 4 : 3));
    CHECK_OK(ls_mesh_new(ls_world(), r->axes, &mesh));
    /* Stages of other numbers of parameters. */
    ls_module *layers[] = {ls_linear_new(DIM, DIM, NULL), ls_linear_new(DIM, DIM, NULL),
                           ls_layer_norm_new(DIM, NULL)};
    ls_module *net = ls_sequential_new(layers, 3);
    CHECK_OK(ls_pipeline_new(net, ls_mesh_group(mesh, "pp"),
                             LS_OPTIONS(ls_pipeline_options, .schedule = r->schedule,
                                        .micro_batches = MICRO, .loss = mean_of),
                             &pipe));
    ls_module *wrapped =
        ls_mesh_group(mesh, "dp") != NULL ? ls_ddp_new(net, ls_mesh_group(mesh, "dp"), NULL) : net;
    ls_optim *optim = make_optim(wrapped, odd);
    CHECK_OK(ls_pipeline_set_optim(pipe, strncmp(r->schedule, "pipedream", 9) == 0 ? optim : NULL));
    ls_param params[4];
    const int count = ls_module_params(net, params, 4);
    for (int i = 0; i < count && r->thawed > 0; i++) {
        CHECK(ls_set_requires_grad(params[i].value, false) != NULL);
        CHECK(ls_set_requires_grad(params[i].value, i > 0 || r->thawed > 1) != NULL);
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* all have made everything */
    ls_status status = LS_OK;
    int at = 0;
    while (at < STEPS && status == LS_OK) {
        status = step(pipe, wrapped, optim, odd, at);
        at += status == LS_OK;
    }
    if (at != r->found || (status != LS_OK) != (r->found < STEPS)) {
        test_fail(__FILE__, __LINE__, "%s, \"%s\" wanted in step %d; step %d, %s: %s", r->schedule,
                  r->says[0], r->found, at, ls_status_name(status), ls_error_message());
    }
    if (status < 0) {
        CHECK_INT(status, LS_ERR_MISMATCH);
        CHECK_CONTAINS(ls_error_message(), r->says[0]);
        CHECK_CONTAINS(ls_error_message(), r->says[1]);
        CHECK(r->odd != LATER_RATE ||
              test_count_said(ls_error_message(), SAYS("the stage's ")) == 1);
        CHECK(r->odd != LATER_RATE ||
              test_count_said(ls_error_message(),
                              SAYS("do the same on every rank in every step, or they do not "
                                   "train one model")) == 1);
    }
    ls_optim_free(optim);
    (void)ls_pipeline_free(pipe);
    ls_module_free(wrapped);
    (void)ls_mesh_free(mesh);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* the process goes on */
    CHECK_OK(ls_finalize());
    return 0;
}

#define ONE(number) .rank = number, .until = number
#define LATER "the ranks differ in "
static const run runs[] = {
    {"1f1b",
     "pp=3",
     RATE,
     ONE(1),
     0,
     {"pipeline \"1f1b\": the ranks differ in optimizer 1: rank 0 has AdamW, lr 0.25",
      "rank 1 has AdamW, lr 0.5"}},
    {"gpipe", "pp=3", KIND, ONE(2), 0, {"rank 0 has AdamW", "rank 2 has SGD"}},
    {"naive", "pp=2", SEED, ONE(1), 0, {"the seed: rank 0 has 3", "rank 1 has 4"}},
    {"zb-h1",
     "pp=2",
     DECAY_OF_GROUP,
     ONE(0),
     0,
     {"optimizer group 1: rank 0 has lr_scale 1, weight_decay 0.5 (1 parameters of AdamW",
      "weight_decay 0 ("}},
    {"pipedream", "pp=2", RATE, ONE(1), 0, {"lr 0.25", "lr 0.5"}},
    {"pipedream-2bw", "pp=2", KIND, ONE(0), 0, {"rank 0 has SGD", "rank 1 has AdamW"}},
    {"zb-h1",
     "pp=3",
     LATER_RATE,
     ONE(1),
     1,
     {LATER "the learning rate of the stage's AdamW #1: rank 0 has 0.25", "one model"}},
    {"pipedream",
     "pp=2",
     LATER_RATE,
     ONE(1),
     1,
     {LATER "the learning rate of the stage's AdamW #1: rank 0 has 0.25", "one model"}},
    {"1f1b",
     "pp=2",
     SKIPPED,
     ONE(1),
     2,
     {LATER "the number of steps of the stage's AdamW #1: rank 0 has 2", "every step"}},
    {"gpipe",
     "pp=2",
     NORM,
     ONE(1),
     1,
     {LATER "the largest norm of ls_clip_grad_norm: rank 0 has 1, rank 1 has 2", "one model"}},
    {"1f1b",
     "pp=3",
     AUTOCAST,
     ONE(2),
     1,
     {LATER "autocast: rank 0 has 0, as 2 of 3 ranks, rank 2 has 1", "one model"}},
    /* All replicas of a stage are alike, so only the pipeline can find it. */
    {"1f1b",
     "pp=2,dp=2",
     RATE,
     .rank = 2,
     .until = 3,
     0,
     {"has AdamW, lr 0.5", "pipeline \"1f1b\""}},
    {"1f1b",
     "pp=2,dp=2",
     SKIPPED,
     .rank = 2,
     .until = 3,
     2,
     {"the number of steps of the stage's AdamW #1", "pipeline \"1f1b\""}},
    {"1f1b",
     "pp=2",
     LATER_RATE,
     ONE(1),
     1,
     {LATER "the learning rate of the stage's AdamW #1: rank 0 has 0.25", "one model"},
     .thawed = 2},
    {"1f1b", "pp=2,dp=2", NOTHING, ONE(0), STEPS, {"", ""}, .thawed = 1},
    {"1f1b", "pp=2,dp=2", NOTHING, ONE(0), STEPS, {"", ""}, .thawed = 2},
    {"1f1b", "pp=3", NOTHING, ONE(0), STEPS, {"", ""}},
    {"pipedream", "pp=3", NOTHING, ONE(0), STEPS, {"", ""}},
    {"1f1b", "pp=2,dp=2", NOTHING, ONE(0), STEPS, {"", ""}},
};

TEST(a_setting_in_which_a_stage_differs_is_named_on_all_ranks)
{
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const int ranks = strstr(runs[i].axes, "dp") != NULL ? 4 : runs[i].axes[3] - '0';
        CHECK_OK(ls_spawn(train, (void *)(uintptr_t)&runs[i], ranks));
    }
}

/* ---- stages that lack something ------------------------------------------------------------ */

/* The first and the last stage read data, the one between has no parameters. Only the last one has
 * vectors. */
DIST_TEST(a_stage_without_data_or_parameters_or_vectors_agrees_with_the_others, 3)
{
    ls_pipeline *pipe = NULL;
    ls_module *layers[] = {ls_linear_new(DIM, DIM, LS_OPTIONS(ls_linear_options, .bias = false)),
                           ls_relu_new(), ls_linear_new(DIM, DIM, NULL)};
    ls_module *net = ls_sequential_new(layers, 3);
    ls_sampler *sampler = NULL;
    ls_optim *optim = NULL;
    CHECK_OK(ls_pipeline_new(
        net, ls_world(), LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO, .loss = mean_of),
        &pipe));
    if (ls_rank() != 1) {
        CHECK_OK(sampler = ls_sampler_new(8, LS_OPTIONS(ls_sampler_options, .batch = 2)));
        optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.25));
    }
    if (ls_rank() == 2) {
        CHECK_OK(ls_optim_add_group(optim, ls_select_vectors, NULL,
                                    LS_OPTIONS(ls_optim_group_options, .weight_decay = 0)));
    }
    for (int at = 0; at < STEPS; at++) {
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        fill(micro, at);
        CHECK_OK(ls_pipeline_backward(pipe, net, micro, NULL));
        CHECK_OK(optim != NULL ? ls_optim_step(optim) : LS_OK);
    }
    ls_optim_free(optim);
    ls_sampler_free(sampler);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
}

/* ---- making -------------------------------------------------------------------------------- */

typedef struct speller { /* whose head says what it uses */
    ls_module base;
    ls_module *body, *head;
} speller;

static const char *head_uses;
static int head_from;

static ls_tensor *run_body(ls_module *self, ls_tensor *const *in)
{
    return ls_forward(((speller *)self)->body, in[0]);
}

static ls_tensor *run_head(ls_module *self, ls_tensor *const *in)
{
    return ls_forward(((speller *)self)->head, in[0]);
}

static ls_tensor *speller_forward(ls_module *self, ls_tensor *x)
{
    return run_head(self, (ls_tensor *[]){run_body(self, &x)});
}

static void speller_parts(ls_module *self, ls_parts *parts)
{
    (void)self;
    (void)ls_parts_add(parts, &LS_PART(.name = "body", .run = run_body, .uses = "body"));
    (void)ls_parts_add(parts, &LS_PART(.name = "head", .run = run_head, .uses = head_uses,
                                       .from = &head_from, .from_count = 1));
}

static const ls_module_class speller_class =
    LS_MODULE_CLASS(.name = "speller", .forward = speller_forward, .parts = speller_parts);

static ls_module *speller_new(void)
{
    speller *self = ls_module_new(sizeof *self, &speller_class);
    self->body = ls_module_add(&self->base, "body", ls_linear_new(DIM, DIM, NULL));
    self->head = ls_module_add(&self->base, "head", ls_linear_new(DIM, DIM, NULL));
    return &self->base;
}

typedef struct making {
    int ranks, odd;
    int micro;           /* of the odd rank */
    const char *uses[2]; /* of the head on the odd rank, and on the others */
    int from;            /* of the head on the odd rank */
    ls_status status;
    const char *says;
} making;

/* The odd rank stops first or last: what the launcher names does not depend on it. */
static int make(void *arg)
{
    const making *m = arg;
    ls_pipeline *pipe = NULL;
    CHECK_OK(ls_init(NULL));
    const bool odd = ls_rank() == m->odd;
    head_uses = m->uses[odd ? 0 : 1];
    head_from = odd ? m->from : 0;
    ls_module *layers[] = {ls_linear_new(DIM, DIM, NULL), ls_linear_new(DIM, DIM, NULL),
                           ls_linear_new(DIM, DIM, NULL), ls_linear_new(DIM, DIM, NULL)};
    ls_module *net = m->ranks > 2 ? ls_sequential_new(layers, 4) : speller_new();
    const ls_status status = ls_pipeline_new(
        net, ls_world(), LS_OPTIONS(ls_pipeline_options, .micro_batches = odd ? m->micro : MICRO),
        &pipe);
    CHECK_INT(status, m->status);
    CHECK(pipe == NULL);
    CHECK_CONTAINS(ls_error_message(), m->says);
    return 1; /* as a program does that gives up */
}

TEST(a_rank_that_makes_another_pipeline_is_named_as_the_cause_of_the_job)
{
    static const making makings[] = {
        {4,
         1,
         3,
         {"head", "head"},
         0,
         LS_ERR_MISMATCH,
         "ls_pipeline_new: the ranks differ in micro_batches: rank 0 has 4, as 3 of 4 ranks, rank "
         "1 "
         "has 3; give all ranks the same model and options"},
        {4,
         0,
         3,
         {"head", "head"},
         0,
         LS_ERR_MISMATCH,
         "ls_pipeline_new: the ranks differ in micro_batches: rank 0 has 3, rank 1 has 4, as 3 of"},
        {2,
         1,
         MICRO,
         {"head", "head"},
         -1,
         LS_ERR_MISMATCH,
         "ls_pipeline_new: the ranks differ in part 1: rank 0 has \"head\" from 0, using head, "
         "rank "
         "1 has \"head\" from -1, using head; give all ranks the same model and options"},
        {2,
         0,
         MICRO,
         {"hedd", "hedd"},
         0,
         LS_ERR_INVALID,
         "parts of speller: \"head\" says that it uses \"hedd\", which the speller does not have"},
    };
    for (size_t i = 0; i < sizeof makings / sizeof *makings; i++) {
        CHECK(ls_spawn(make, (void *)(uintptr_t)&makings[i], makings[i].ranks) < 0);
        CHECK_CONTAINS(ls_error_message(), makings[i].says);
        CHECK(i > 0 || test_contains(ls_error_message(), "as 3 of 4 ranks"));
    }
}

TEST_MAIN

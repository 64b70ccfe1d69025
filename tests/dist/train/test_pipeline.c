/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines against their sequential twin: gradient accumulation over the same micro-batches in one
 * process, that of the last stage, or in each where stages have replicas. Losses and parameters are
 * equal to the last bit after several steps, with dropout, for every schedule and number of
 * ranks. */
#include "elements.h"
#include "test.h"

#include <stdio.h>

#include "pipeline_models.h"

/* ---- the twin ----------------------------------------------------------------------------- */

static void twin_step(const use *u, ls_module *net, int step, int replica, double *losses)
{
    LS_AUTOCAST(u->mixed && step % 2 == 1);
    for (int m = 0; m < u->micro; m++) {
        LS_SCOPE;
        ls_micro_batch micro = micro_of(u, step, m, replica);
        ls_tensor *y = NULL;
        ls_step_begin(micro.context);
        CHECK_OK(ls_ddp_set_sync(net, m == u->micro - 1));
        CHECK_OK(ls_forward_many(net, micro.inputs, u->make == make_bert ? 3 : 1, &y, 1));
        ls_tensor *loss = loss_of(NULL, y, micro.target);
        CHECK_OK(ls_backward(ls_scale(loss, 1.0 / u->micro)));
        CHECK_OK(ls_item(loss, &losses[m]));
    }
}

/* ---- evaluation --------------------------------------------------------------------------- */

enum { COUNT_MAX = 10 };

/* Other counts and shapes than in training, in either mode. `twin` is NULL where it was not
 * trained. */
static void evaluate(const use *given, ls_pipeline *pipe, ls_module *net, ls_module *twin, int step,
                     int replica, bool last)
{
    LS_SCOPE;
    LS_NO_GRAD;
    use u = *given;
    u.short_last = true;
    u.micro = 1 + 3 * step;
    ls_micro_batch micro[COUNT_MAX];
    ls_tensor *outputs[COUNT_MAX];
    ls_module_train(net, step == 1);
    for (int m = 0; m < u.micro; m++) {
        micro[m] = micro_of(&u, 50 + step, m, replica);
    }
    CHECK_OK(ls_pipeline_forward(pipe, micro, u.micro, outputs));
    ls_module_train(net, true);
    for (int m = 0; m < u.micro; m++) {
        CHECK((outputs[m] != NULL) == last);
    }
    if (twin == NULL) {
        return;
    }
    ls_module_train(twin, step == 1);
    for (int m = 0; m < u.micro; m++) {
        ls_tensor *y = NULL;
        ls_step_begin(micro[m].context);
        CHECK_OK(ls_forward_many(twin, micro[m].inputs, u.make == make_bert ? 3 : 1, &y, 1));
        if (last) {
            check_output(outputs[m], y, u.make == make_gpt2 || u.make == make_bert);
        }
    }
    ls_module_train(twin, true);
}

/* ---- both ---------------------------------------------------------------------------------- */

/* The parameters of the last stage's twin go to the other stages. */
static void share(ls_module *twin, ls_group *stages)
{
    ls_param params[PARAMS_MAX];
    const int count = ls_module_params(twin, params, PARAMS_MAX);
    for (int i = 0; i < count; i++) {
        float *at = edit_elements(params[i].value);
        CHECK_OK(ls_broadcast(stages, at, ls_numel(params[i].value), LS_FLOAT32,
                              ls_group_size(stages) - 1, NULL, NULL));
        put_elements(params[i].value, at);
    }
}

/* Trains both over `pp` stages and `dp` replicas. */
static void train(const use *u, int pp, int dp)
{
    char axes[32];
    ls_mesh *mesh = NULL;
    ls_pipeline *pipe = NULL;
    const bool tied = u->make == make_gpt2 || u->make == make_bert;
    (void)snprintf(axes, sizeof axes, "pp=%d,dp=%d", pp, dp);
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    ls_group *stages = ls_mesh_group(mesh, "pp");
    const int replica = ls_mesh_coordinate(mesh, "dp");
    const bool last = ls_mesh_coordinate(mesh, "pp") == pp - 1;
    const bool with_twin = last || dp > 1; /* a wrapper compares settings over all stages */
    ls_module *net = u->make(), *twin = u->make();
    CHECK_OK(
        ls_pipeline_new(net, stages,
                        LS_OPTIONS(ls_pipeline_options, .schedule = u->schedule,
                                   .micro_batches = u->micro, .chunks = u->chunks,
                                   .recompute = u->recompute, .warm_up = u->warm_up, .cut = u->cut),
                        &pipe));
    if (dp > 1) {
        net = ls_ddp_new(net, ls_mesh_group(mesh, "dp"), NULL);
        twin = ls_ddp_new(twin, ls_mesh_group(mesh, "dp"), NULL);
    }
    ls_optim *optim = optim_of(net, tied), *other = optim_of(twin, tied);
    for (int step = 0; step < STEPS; step++) {
        double losses[MICRO_MAX], expected[MICRO_MAX];
        {
            LS_SCOPE;
            LS_AUTOCAST(u->mixed && step % 2 == 1);
            ls_micro_batch micro[MICRO_MAX];
            for (int m = 0; m < u->micro; m++) {
                micro[m] = micro_of(u, step, m, replica);
            }
            CHECK_OK(ls_pipeline_backward(pipe, net, micro, losses));
        }
        if (with_twin) {
            twin_step(u, twin, step, replica, expected);
        }
        CHECK_OK(ls_broadcast(stages, expected, u->micro, LS_FLOAT64, pp - 1, NULL, NULL));
        check_losses(losses, expected, u->micro, tied);
        if (optim != NULL) {
            CHECK_OK(ls_optim_step(optim));
            ls_optim_zero_grad(optim);
        }
        if (with_twin) {
            CHECK_OK(ls_optim_step(other));
            ls_optim_zero_grad(other);
        }
        evaluate(u, pipe, net, with_twin ? twin : NULL, step, replica, last);
    }
    share(twin, stages);
    check_params(net, twin, tied);
    ls_optim_free(optim);
    ls_optim_free(other);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
    ls_module_free(twin);
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- tests -------------------------------------------------------------------------------- */

static void every_schedule(ls_module *(*make)(void), int pp, int dp)
{
    train(&(use){.make = make, .schedule = "naive", .micro = 3}, pp, dp);
    train(&(use){.make = make, .schedule = "gpipe", .micro = 4}, pp, dp);
    train(&(use){.make = make, .schedule = "gpipe", .micro = 4, .recompute = true}, pp, dp);
    train(&(use){.make = make, .schedule = "1f1b", .micro = 8}, pp, dp);
    train(&(use){.make = make, .schedule = "1f1b", .micro = 5, .short_last = true}, pp, dp);
    train(&(use){.make = make, .schedule = "zb-h1", .micro = 8}, pp, dp);
    train(&(use){.make = make, .schedule = "1f1b", .micro = 1}, pp, dp);
    train(&(use){.make = make, .schedule = "1f1b", .micro = 8, .warm_up = 2}, pp, dp);
    train(&(use){.make = make, .schedule = "zb-h1", .micro = 1}, pp, dp);
}

DIST_TEST(every_schedule_equals_accumulation_on_1, 1)
{
    every_schedule(make_gpt, 1, 1);
}

DIST_TEST(every_schedule_equals_accumulation_on_2, 2)
{
    every_schedule(make_gpt, 2, 1);
    train(&(use){.make = make_gpt, .schedule = "interleaved", .micro = 4, .chunks = 2}, 2, 1);
    train(&(use){.make = make_gpt, .schedule = "interleaved", .micro = 4, .chunks = 5}, 2, 1);
}

DIST_TEST(every_schedule_equals_accumulation_on_4, 4)
{
    every_schedule(make_gpt, 4, 1);
    train(&(use){.make = make_gpt, .schedule = "interleaved", .micro = 8, .chunks = 2}, 4, 1);
    train(&(use){.make = make_gpt, .schedule = "1f1b", .micro = 4, .cut = "blocks.0 blocks.6 head"},
          4, 1);
}

DIST_TEST(every_schedule_equals_accumulation_on_7, 7)
{
    every_schedule(make_gpt, 7, 1);
}

DIST_TEST(batch_norm_takes_each_micro_batch_by_itself, 3)
{
    train(&(use){.make = make_resnet, .schedule = "1f1b", .micro = 4}, 3, 1);
    train(&(use){.make = make_resnet, .schedule = "zb-h1", .micro = 4, .short_last = true}, 3, 1);
}

DIST_TEST(recomputed_stages_count_a_batch_once_in_their_running_statistics, 3)
{
    train(&(use){.make = make_resnet, .schedule = "gpipe", .micro = 4, .recompute = true}, 3, 1);
}

/* Values with gradients, that one or two later stages take. */
static void train_unet(int pp)
{
    train(&(use){.make = make_unet, .schedule = "gpipe", .micro = 4}, pp, 1);
    train(&(use){.make = make_unet, .schedule = "gpipe", .micro = 4, .recompute = true}, pp, 1);
    train(&(use){.make = make_unet, .schedule = "1f1b", .micro = 5, .short_last = true}, pp, 1);
    train(&(use){.make = make_unet, .schedule = "zb-h1", .micro = 8}, pp, 1);
}

DIST_TEST(gradients_of_skip_connections_cross_any_number_of_stages_on_3, 3)
{
    train_unet(3);
    train(&(use){.make = make_unet, .schedule = "interleaved", .micro = 6, .chunks = 2}, 3, 1);
}

DIST_TEST(gradients_of_skip_connections_cross_any_number_of_stages_on_6, 6)
{
    train_unet(6);
}

DIST_TEST(sequences_may_have_other_lengths_in_every_micro_batch, 4)
{
    train(&(use){.make = make_gpt, .schedule = "1f1b", .micro = 8, .lengths = true}, 4, 1);
    train(&(use){.make = make_gpt,
                 .schedule = "interleaved",
                 .micro = 8,
                 .chunks = 2,
                 .short_last = true,
                 .lengths = true},
          4, 1);
    train(&(use){.make = make_bert,
                 .schedule = "zb-h1",
                 .micro = 5,
                 .short_last = true,
                 .lengths = true},
          4, 1);
}

DIST_TEST(the_type_of_values_may_change_from_step_to_step, 3)
{
    train(&(use){.make = make_unet, .schedule = "1f1b", .micro = 5, .mixed = true}, 3, 1);
}

DIST_TEST(masks_cross_several_stages_and_ties_are_summed, 4)
{
    train(&(use){.make = make_bert,
                 .schedule = "1f1b",
                 .micro = 4,
                 .cut = "bert.encoder.layer.0 bert.encoder.layer.1 bert.encoder.layer.2"},
          4, 1);
    train(&(use){.make = make_gpt2, .schedule = "gpipe", .micro = 3}, 4, 1);
}

/* Several values of a stage go to stages of its own rank. */
DIST_TEST(values_pass_stages_of_one_rank, 1)
{
    train(&(use){.make = make_bert,
                 .schedule = "interleaved",
                 .micro = 4,
                 .chunks = 4,
                 .cut = "bert.encoder.layer.0 bert.encoder.layer.1 bert.encoder.layer.2"},
          1, 1);
}

DIST_TEST(values_pass_stages_of_the_same_rank_too, 2)
{
    train(&(use){.make = make_bert,
                 .schedule = "interleaved",
                 .micro = 4,
                 .chunks = 2,
                 .cut = "bert.encoder.layer.0 bert.encoder.layer.1 bert.encoder.layer.2"},
          2, 1);
    train(&(use){.make = make_bert, .schedule = "zb-h1", .micro = 4, .cut = "bert.encoder.layer.1"},
          2, 1);
}

DIST_TEST(a_stage_without_gradients_takes_part, 3)
{
    const char *const cut = "bert.embeddings bert.encoder.layer.1"; /* the mask by itself */
    train(&(use){.make = make_bert, .schedule = "1f1b", .micro = 4, .cut = cut}, 3, 1);
    train(&(use){.make = make_bert, .schedule = "zb-h1", .micro = 4, .cut = cut}, 3, 1);
}

DIST_TEST(replicas_of_stages_average_their_gradients, 4)
{
    every_schedule(make_gpt, 2, 2);
    train(&(use){.make = make_gpt, .schedule = "interleaved", .micro = 4, .chunks = 2}, 2, 2);
    train(&(use){.make = make_gpt2, .schedule = "1f1b", .micro = 4}, 2, 2);
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* Pipeline parallelism: every rank has some layers of a model, and a batch goes through them in
 * micro-batches.
 *
 * The model is made whole on every rank; ls_pipeline_new cuts it into as many stages as there are
 * ranks and frees the rest. The first rank reads the inputs, the last one the targets. The program
 * trains the same model by gradient accumulation as well and shows that losses are equal to the
 * last bit, whatever the schedule.
 *
 *     lockstep run -n 4 ./07_pipeline [naive|gpipe|1f1b|zb-h1]
 *     lockstep plan schedule 1f1b -p 4 -m 8          # what the ranks do when
 *     lockstep train gpt -n 4 --mesh pp=4 --data …   # the same for the models of lockstep/models
 */
#include <stdio.h>

#include <lockstep/lockstep.h>

enum { IN = 12, HIDDEN = 24, LAYERS = 8, ROWS = 8, MICRO = 8, STEPS = 20 };

static ls_module *make_net(void)
{
    const ls_linear_options *with_gelu =
        LS_OPTIONS(ls_linear_options, .activation = LS_ACTIVATION_GELU);
    ls_module *layers[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layers[i] = ls_linear_new(i == 0 ? IN : HIDDEN, i < LAYERS - 1 ? HIDDEN : 1,
                                  i < LAYERS - 1 ? with_gelu : NULL);
    }
    return ls_sequential_new(layers, LAYERS);
}

/* Micro-batch `part` of a step: x [ROWS,IN], y [ROWS,1] = a rule. */
static ls_micro_batch make_rows(int step, int part)
{
    float x[ROWS * IN], y[ROWS] = {0.0f};
    for (int i = 0; i < ROWS * IN; i++) {
        x[i] = ls_random_normal(11, (uint64_t)step, (uint64_t)(part * ROWS * IN + i));
        y[i / IN] += (i % 2 ? 0.5f : -0.25f) * x[i];
    }
    return (ls_micro_batch){.size = sizeof(ls_micro_batch),
                            .inputs = {ls_from_data(x, LS_SHAPE(ROWS, IN), LS_FLOAT32)},
                            .target = ls_from_data(y, LS_SHAPE(ROWS, 1), LS_FLOAT32),
                            .context = {.step = (uint64_t)(step * MICRO + part)}};
}

static ls_tensor *squares(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg;
    return ls_mse_loss(output, target);
}

/* A step of the pipeline: losses[MICRO] on all ranks. */
static void pipeline_step(ls_pipeline *pipeline, ls_module *net, int step, double *losses)
{
    LS_SCOPE;
    ls_micro_batch micro[MICRO];
    for (int part = 0; part < MICRO; part++) {
        micro[part] = make_rows(step, part);
    }
    LS_CHECK(ls_pipeline_backward(pipeline, net, micro, losses));
}

/* The same in this process alone. */
static void accumulated_step(ls_module *net, int step, double *losses)
{
    for (int part = 0; part < MICRO; part++) {
        LS_SCOPE;
        ls_micro_batch rows = make_rows(step, part);
        ls_step_begin(rows.context);
        ls_tensor *loss = squares(NULL, ls_forward(net, rows.inputs[0]), rows.target);
        LS_CHECK(ls_backward(ls_scale(loss, 1.0 / MICRO)));
        LS_CHECK(ls_item(loss, &losses[part]));
    }
}

static void optim_step(ls_optim *optim)
{
    LS_CHECK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
}

int main(int argc, char **argv)
{
    LS_CHECK(ls_init(NULL));
    ls_pipeline *pipeline = NULL;
    ls_module *net = make_net(), *whole = make_net();
    LS_CHECK(ls_pipeline_new(net, ls_world(),
                             LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO,
                                        .schedule = argc > 1 ? argv[1] : "1f1b", .loss = squares),
                             &pipeline));
    printf("rank %d of %d has %lld of %lld parameters\n", ls_rank(), ls_world_size(),
           (long long)ls_module_numel(net), (long long)ls_module_numel(whole));
    ls_optim *optim = ls_adamw_new(net, NULL), *other = ls_adamw_new(whole, NULL);
    double first = 0.0, last = 0.0;
    int different = 0;
    for (int step = 0; step < STEPS; step++) {
        double losses[MICRO], expected[MICRO];
        pipeline_step(pipeline, net, step, losses);
        accumulated_step(whole, step, expected);
        optim_step(optim);
        optim_step(other);
        for (int part = 0; part < MICRO; part++) {
            different += losses[part] != expected[part];
        }
        first = step == 0 ? losses[0] : first;
        last = losses[0];
    }
    if (ls_rank() == 0) {
        printf("loss %.6f, after %d steps %.6f; losses that differ from accumulation: %d of %d\n",
               first, STEPS, last, different, STEPS * MICRO);
    }
    ls_optim_free(optim);
    ls_optim_free(other);
    LS_CHECK(ls_pipeline_free(pipeline));
    ls_module_free(net);
    ls_module_free(whole);
    LS_CHECK(ls_finalize());
    return different == 0 ? 0 : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Twenty steps of a GPT with dropout: the file of the losses that the last stage writes under each
 * schedule is, byte for byte, that of one process that accumulates gradients over the same
 * micro-batches. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt.h>

#include "scratch.h"

enum { STEPS = 20, MICRO = 8, ROWS = 2, TOKENS = 8, VOCAB = 17, BYTES = STEPS * MICRO * 32 };

static ls_module *make_net(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 6, .heads = 2, .dim = 16,
                                 .context = TOKENS, .vocab = VOCAB, .dropout = 0.1));
}

static ls_tensor *tokens_of(int step, int m, int shift)
{
    int32_t x[ROWS * TOKENS];
    for (int i = 0; i < ROWS * TOKENS; i++) {
        x[i] = (i * (3 + m) + step * 5 + shift) % VOCAB;
    }
    return ls_from_data(x, LS_SHAPE(ROWS, TOKENS), LS_INT32);
}

static ls_micro_batch micro_of(int step, int m)
{
    return (ls_micro_batch){.size = sizeof(ls_micro_batch),
                            .inputs = {tokens_of(step, m, 0)},
                            .target = tokens_of(step, m, 1),
                            .context = {.step = (uint64_t)step, .sample_offset = m * ROWS}};
}

static void accumulate(ls_module *net, int step, double *losses)
{
    for (int m = 0; m < MICRO; m++) {
        LS_SCOPE;
        ls_micro_batch micro = micro_of(step, m);
        ls_step_begin(micro.context);
        ls_tensor *loss = ls_cross_entropy(ls_forward(net, micro.inputs[0]), micro.target, NULL);
        CHECK_OK(ls_item(loss, &losses[m]));
        CHECK_OK(ls_backward(ls_scale(loss, 1.0 / MICRO)));
    }
}

static void run(ls_module *net, ls_pipeline *pipe, int step, double *losses)
{
    LS_SCOPE;
    ls_micro_batch micro[MICRO];
    for (int m = 0; m < MICRO; m++) {
        micro[m] = micro_of(step, m);
    }
    CHECK_OK(ls_pipeline_backward(pipe, net, micro, losses));
}

/* Trains by `schedule`, NULL: accumulates; and writes a line for each loss. */
static void write_losses(const char *schedule, int chunks, const char *path)
{
    ls_module *net = make_net();
    ls_pipeline *pipe = NULL;
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    if (schedule != NULL) {
        CHECK_OK(ls_pipeline_new(net, ls_world(),
                                 LS_OPTIONS(ls_pipeline_options, .schedule = schedule,
                                            .micro_batches = MICRO, .chunks = chunks),
                                 &pipe));
    }
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.01));
    for (int step = 0; step < STEPS; step++) {
        double losses[MICRO];
        if (pipe != NULL) {
            run(net, pipe, step, losses);
        } else {
            accumulate(net, step, losses);
        }
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        for (int m = 0; m < MICRO; m++) {
            fprintf(file, "%d %.9g\n", step, losses[m]);
        }
    }
    CHECK_INT(fclose(file), 0);
    ls_optim_free(optim);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
}

static size_t read_all(const char *path, char *out)
{
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    const size_t bytes = fread(out, 1, BYTES, file);
    (void)fclose(file);
    return bytes;
}

static void compare_files(void)
{
    static const struct {
        const char *schedule;
        int chunks;
    } all[] = {{"gpipe", 0}, {"1f1b", 0}, {"interleaved", 2}, {"zb-h1", 0}};
    static char expected[BYTES], got[BYTES];
    scratch_begin();
    const char *path = scratch_at("losses");
    write_losses(NULL, 0, path);
    const size_t bytes = read_all(path, expected);
    CHECK(bytes > STEPS * MICRO * 4 && bytes < BYTES);
    for (int i = 0; i < 4; i++) {
        write_losses(all[i].schedule, all[i].chunks, path);
        CHECK_INT(read_all(path, got), bytes);
        CHECK(memcmp(got, expected, bytes) == 0);
    }
    scratch_end();
}

DIST_TEST(twenty_steps_write_the_same_losses_on_2_as_one_process, 2)
{
    compare_files();
}

DIST_TEST(twenty_steps_write_the_same_losses_on_4_as_one_process, 4)
{
    compare_files();
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep info --memory MODEL`, a published GPT-2 or the folder of a model: what training keeps
 * on each rank between two steps, by the formulas of Rajbhandari et al. 2020 (figure 1) for
 * float32: 4 bytes of parameters, 4 of gradients and 8 of AdamW's moments for each parameter, of
 * which a rank keeps 1/n where they are divided. */
#include <stdio.h>

#include "commands.h"
#include "tools/cli/cli.h"
#include "tools/sim.h"

#define WIDTH 4

static void print_stage(double count, int stage, int ranks)
{
    const ls__state_bytes b = ls__state_bytes_of(count, WIDTH, stage, ranks);
    printf("%4d %11.3f GB %11.3f GB %11.3f GB %8.1f GB\n", stage, b.parameters * 1e-9,
           b.gradients * 1e-9, b.optimizer * 1e-9,
           (b.parameters + b.gradients + b.optimizer) * 1e-9);
}

int print_zero(const cli_command *command, char *const *argv, const char *model, int stage,
               int ranks)
{
    ls__gpt sizes;
    decoder_shape shape = {.model = "gpt2"};
    if (!ls__gpt_find(model, &sizes)) {
        if (!decoder_read_config(model, &shape, argv)) {
            return cli_wrong(command,
                             "there is no model \"%s\"; give gpt2, gpt2-medium, gpt2-large, "
                             "gpt2-xl, or a folder with a config.json",
                             model);
        }
        sizes = sim_gpt_of(&shape);
    }
    const double count = ls__gpt_parameters(&sizes);
    printf("%s: %.0f parameters in float32, AdamW, %d rank%s; kept by each between two steps\n\n",
           model, count, ranks, ranks == 1 ? "" : "s");
    printf("zero     parameters      gradients      optimizer         sum\n");
    for (int s = stage < 0 ? 0 : stage; s <= (stage < 0 ? 3 : stage); s++) {
        print_stage(count, s, ranks);
    }
    printf(
        "\nActivations come on top, and the buckets on their way: with zero 2 and 3 those of "
        "gradients "
        "in backward, with zero 3 those of parameters in both passes; their memory stays for the "
        "next step\n");
    return 0;
}

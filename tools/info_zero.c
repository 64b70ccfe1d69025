/* `lockstep info --memory MODEL`: what training keeps on each rank between two steps, by the
 * formulas of Rajbhandari et al. 2020 (figure 1) for float32: 4 bytes of parameters, 4 of gradients
 * and 8 of AdamW's moments for each parameter, of which a rank keeps 1/n where they are divided. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "tools/cli/cli.h"

#define PARAMETER 4.0
#define GRADIENT 4.0
#define OPTIMIZER 8.0
#define VOCAB 50257
#define CONTEXT 1024

/* Elements; the head is the token embedding. */
static double parameters_of(const char *model)
{
    static const struct {
        const char *name;
        int layers, dim;
    } models[] = {{"gpt2", 12, 768},
                  {"gpt2-medium", 24, 1024},
                  {"gpt2-large", 36, 1280},
                  {"gpt2-xl", 48, 1600}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcmp(model, models[i].name) == 0) {
            const double c = models[i].dim, block = 12.0 * c * c + 13.0 * c;
            return models[i].layers * block + (VOCAB + CONTEXT) * c + 2.0 * c;
        }
    }
    return 0.0;
}

static void print_stage(double count, int stage, int ranks)
{
    const double part = count / ranks;
    const double parameters = PARAMETER * (stage > 2 ? part : count);
    const double gradients = GRADIENT * (stage > 1 ? part : count);
    const double optimizer = OPTIMIZER * (stage > 0 ? part : count);
    printf("%4d %11.3f GB %11.3f GB %11.3f GB %8.1f GB\n", stage, parameters * 1e-9,
           gradients * 1e-9, optimizer * 1e-9, (parameters + gradients + optimizer) * 1e-9);
}

int print_zero(const cli_command *command, const char *model, int stage, int ranks)
{
    const double count = parameters_of(model);
    if (count == 0.0) {
        return cli_wrong(command,
                         "there is no model \"%s\"; give gpt2, gpt2-medium, gpt2-large or gpt2-xl",
                         model);
    }
    printf("%s: %.0f parameters in float32, AdamW, %d rank%s; kept by each between two steps\n\n",
           model, count, ranks, ranks == 1 ? "" : "s");
    printf("zero     parameters      gradients      optimizer         sum\n");
    for (int s = stage < 0 ? 0 : stage; s <= (stage < 0 ? 3 : stage); s++) {
        print_stage(count, s, ranks);
    }
    printf(
        "\nActivations come on top, and in backward with zero 2 the buckets on their way; training "
        "has zero 0, 1 and 2\n");
    return 0;
}

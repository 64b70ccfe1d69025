/* `lockstep plan profile`: the training program measures its own model, so that model, data, loss
 * and batch are those of training.
 *
 *     lockstep plan profile gpt --data book.txt --layers 6 --out gpt.json
 *
 * becomes `train_gpt --data book.txt --layers 6 --profile gpt.json`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "tools/cli/cli.h"
#include "tools/plan.h"

#define KINDS "gpt|bert|image"

static const cli_command command = {
    .name = "lockstep plan profile",
    .about =
        "Measures the parts of a model that `lockstep train` trains, for lockstep plan pipeline.",
    .operands = KINDS " [--threads N] --out FILE ...",
    .more =
        "  lockstep plan profile gpt --data book.txt --batch 2 --out gpt.json\n"
        "  lockstep plan profile image --data digits --model resnet18 --out resnet.json\n"
        "\n"
        "All further options are those of `lockstep train gpt|bert|image`. --batch is the samples "
        "of\n"
        "a micro-batch, --threads N the compute threads of a worker of the job to be planned, by\n"
        "default those of one rank on this host. Of a module of your own ls_profile_write\n"
        "(lockstep/plan.h) writes the same file.\n"};

/* The value of `name` in argv[*i], or after it; NULL: it is another option. */
static char *value_of(const char *name, int argc, char **argv, int *i)
{
    const size_t length = strlen(name);
    char *text = argv[*i];
    if (strncmp(text, name, length) != 0) {
        return NULL;
    }
    if (text[length] == '=') {
        return text + length + 1;
    }
    return text[length] == '\0' && *i + 1 < argc ? argv[++*i] : NULL;
}

int plan_profile(int argc, char **argv)
{
    static char flag[] = "--profile";
    char *out = NULL, **rest = calloc((size_t)argc + 4, sizeof *rest), *value;
    int count = 1;
    if (argc < 2 || argv[1][0] == '-') {
        free(rest);
        const int first = cli_parse(&command, argc, argv);
        return first < 0 ? -1 - first
                         : cli_wrong(&command, "the model is missing; give gpt, bert or image");
    }
    if (rest == NULL || cli_choice(KINDS, argv[1]) < 0) {
        free(rest);
        return cli_wrong(&command, "there is no \"%s\"; give gpt, bert or image", argv[1]);
    }
    for (int i = 2; i < argc; i++) {
        if ((value = value_of("--out", argc, argv, &i)) != NULL) {
            out = value;
        } else if ((value = value_of("--threads", argc, argv, &i)) != NULL) {
            (void)setenv("LOCKSTEP_THREADS", value, 1);
        } else {
            rest[count++] = argv[i];
        }
    }
    if (out == NULL) {
        free(rest);
        return cli_wrong(&command, "--out is missing; name the file of the profile");
    }
    rest[count++] = flag;
    rest[count] = out;
    const int status = train_become(argv[1], rest);
    free(rest);
    return status;
}

void plan_profile_print_operands(void)
{
    printf("gpt\nbert\nimage\n");
}

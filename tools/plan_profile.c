/* SPDX-License-Identifier: Apache-2.0 */
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

/* Options that are taken out of the training program's, in value[]. The training program's own are
 * left in rest[1 ...]; returns how many there are, or -1 - an exit status. */
static int take(const cli_command *c, const char *const *name, char **value, int argc, char **argv,
                char **rest)
{
    int count = 1;
    if (argc < 2 || argv[1][0] == '-') {
        const int first = cli_parse(c, argc, argv);
        return first < 0 ? first
                         : -1 - cli_wrong(c, "the model is missing; give gpt, bert or image");
    }
    if (cli_choice(KINDS, argv[1]) < 0) {
        return -1 - cli_wrong(c, "there is no \"%s\"; give gpt, bert or image", argv[1]);
    }
    for (int i = 2; i < argc; i++) {
        char *found = NULL;
        int k = 0;
        while (name[k] != NULL && (found = value_of(name[k], argc, argv, &i)) == NULL) {
            k++;
        }
        if (found != NULL) {
            value[k] = found;
        } else {
            rest[count++] = argv[i];
        }
    }
    return count;
}

static int become(const char *kind, char **rest, int count, char *flag, char *value)
{
    rest[count++] = flag;
    rest[count] = value;
    return train_become(kind, rest);
}

int plan_profile(int argc, char **argv)
{
    static const char *const names[] = {"--out", "--threads", NULL};
    static char flag[] = "--profile";
    char *value[2] = {NULL, NULL}, **rest = calloc((size_t)argc + 4, sizeof *rest);
    int status = 1, count = rest != NULL ? take(&command, names, value, argc, argv, rest) : -2;
    if (count < 0) {
        status = -1 - count;
    } else if (value[0] == NULL) {
        status = cli_wrong(&command, "--out is missing; name the file of the profile");
    } else {
        if (value[1] != NULL) {
            (void)setenv("LOCKSTEP_THREADS", value[1], 1);
        }
        status = become(argv[1], rest, count, flag, value[0]);
    }
    free(rest);
    return status;
}

/* ---- plan tensor ----------------------------------------------------------------------------- */

static const cli_command tensor = {
    .name = "lockstep plan tensor",
    .about = "Finds which matrices of a model the ranks of a mesh share, by the cost model of "
             "lockstep sim.",
    .operands = KINDS " --mesh AXES [--cluster LEVELS] [--device SPEEDS] ...",
    .more =
        "  lockstep plan tensor gpt --data book.txt --mesh tp=4 --cluster 4:10gbyte@20us --device "
        "100gflop,20gbyte\n"
        "\n"
        "--cluster and --device as in lockstep sim. All further options are those of `lockstep "
        "train\n"
        "gpt|bert|image`; --batch is the samples of all ranks of the mesh together. The words that "
        "it\n"
        "prints are for --tensor-plan of lockstep train, and for the option plan of "
        "ls_tensor_parallel.\n"};

int plan_tensor(int argc, char **argv)
{
    static const char *const names[] = {"--mesh", "--cluster", "--device", NULL};
    static char flag[] = "--tensor-search";
    static char cluster[] = "8:200gbyte,8:25gbyte", device[] = "312tflop,2039gbyte";
    char *value[3] = {NULL, cluster, device}, spec[512];
    char **rest = calloc((size_t)argc + 4, sizeof *rest);
    int status = 1, count = rest != NULL ? take(&tensor, names, value, argc, argv, rest) : -2;
    if (count < 0) {
        status = -1 - count;
    } else if (value[0] == NULL) {
        status = cli_wrong(&tensor, "--mesh is missing; give axes, such as tp=4");
    } else if (snprintf(spec, sizeof spec, "%s %s %s", value[0], value[1], value[2]) >=
               (int)sizeof spec) {
        status = cli_wrong(&tensor,
                           "--mesh, --cluster and --device have more than %zu characters "
                           "together",
                           sizeof spec - 1);
    } else {
        status = become(argv[1], rest, count, flag, spec);
    }
    free(rest);
    return status;
}

void plan_profile_print_operands(void)
{
    printf("gpt\nbert\nimage\n");
}

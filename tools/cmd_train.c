/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep train` and `lockstep generate` are separate programs, which this process executes.
 *
 *     lockstep train gpt --data book.txt                 one process
 *     lockstep train gpt -n 4 --data book.txt            as lockstep run -n 4 lockstep train gpt …
 *
 * They are installed in libexec/lockstep; in a build folder they are in programs/. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/suggest.h"
#include "base/trusted.h"
#include "commands.h"
#include "tools/build_info.h"
#include "tools/cli/cli.h"

#define PATH_BYTES 4096

static const cli_command command = {
    .name = "lockstep train",
    .about = "Trains a model, in one process or on all ranks of a job.",
    .operands = "gpt|bert|image [-n N] ...",
    .more =
        "  lockstep train gpt -n 4 --data book.txt     4 ranks on this host\n"
        "  lockstep train bert --help                  its options\n"
        "\n"
        "With -n N, `lockstep run -n N` starts the program. Use that command itself for its other\n"
        "options and for several hosts: lockstep run -n 4 lockstep train gpt --data book.txt\n"};

/* Another user could have made ../libexec where the folder above this command's is open, as
 * /tmp. */
static int execute(const char *self, char *path, char **argv)
{
    char real[LS__TRUSTED_PATH_MAX];
    ls__untrusted why;
    const int error = ls__trusted_beside(ls__env_posix(), path, self, real, &why);
    if (error == -EPERM) {
        (void)ls__untrusted_fail(ls__env_posix(), "lockstep", path, &why);
        fprintf(stderr, "%s\n", ls_error_message());
        return 1;
    }
    if (error == 0) {
        argv[0] = path;
        (void)execv(real, argv);
    }
    fprintf(stderr, "lockstep: \"%s\" cannot be started: %s\n", path,
            strerror(error < 0 ? -error : errno));
    return 1;
}

/* False after saying why. */
static bool find_self(char self[PATH_BYTES])
{
    const ssize_t length = readlink("/proc/self/exe", self, PATH_BYTES - 1);
    if (length < 0) {
        fprintf(
            stderr,
            "lockstep: cannot read /proc/self/exe: %s; mount /proc (mount -t proc proc /proc)\n",
            strerror(errno));
        return false;
    }
    self[length] = '\0';
    return true;
}

/* Executes `program` with the arguments argv[1…]; returns an exit status only when that fails. */
static int become(const char *program, char **argv)
{
    char self[PATH_BYTES], path[2 * PATH_BYTES];
    if (!find_self(self)) {
        return 1;
    }
    const int folder = (int)(strrchr(self, '/') - self);
    for (int installed = 0; installed <= 1; installed++) {
        snprintf(path, sizeof path,
                 !installed ? "%.*s/programs/%s" : "%.*s/" BUILD_LIBEXEC "/lockstep/%s", folder,
                 self, program);
        if (access(path, X_OK) == 0) {
            return execute(self, path, argv);
        }
    }
    fprintf(stderr,
            "lockstep: \"%s\" is missing; install Lockstep again, not as a wheel, which has no "
            "programs that train\n",
            path);
    return 1;
}

/* Where -n 4 or -n4 stands; 0: nowhere. */
static int place_of_ranks(int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        const char *word = argv[i];
        if (strncmp(word, "-n", 2) == 0 && (word[2] == '\0' || isdigit((unsigned char)word[2]))) {
            return i;
        }
    }
    return 0;
}

/* `lockstep train gpt -n 4 …` is `lockstep run -n 4 lockstep train gpt …`. */
static int run_on_ranks(int argc, char **argv, int at)
{
    static char run[] = "run", option[] = "-n", self[PATH_BYTES], train[] = "train";
    char **all = calloc((size_t)argc + 6, sizeof *all);
    const bool joined = argv[at][2] != '\0'; /* -n4 */
    const int rest = at + (joined ? 1 : 2);
    if (!find_self(self)) {
        free(all);
        return 1;
    }
    if (all == NULL || rest > argc) {
        free(all);
        return cli_wrong(&command, "-n needs a number of ranks");
    }
    char *const front[] = {run, option, joined ? argv[at] + 2 : argv[at + 1], self, train, argv[1]};
    memcpy(all, front, sizeof front);
    memcpy(all + 6, argv + 2, (size_t)(at - 2) * sizeof *all);
    memcpy(all + 6 + at - 2, argv + rest, (size_t)(argc - rest) * sizeof *all);
    const int status = cmd_run(6 + at - 2 + argc - rest, all);
    free(all);
    return status;
}

int train_become(const char *kind, char **argv)
{
    char program[32];
    snprintf(program, sizeof program, "train_%s", kind);
    return become(program, argv);
}

/* Every argument but -n belongs to the program. */
int cmd_train(int argc, char **argv)
{
    static const char *const kinds[] = {"gpt", "bert", "image"};
    if (argc < 2 || argv[1][0] == '-') {
        const int first = cli_parse(&command, argc, argv);
        return first < 0 ? -1 - first
                         : cli_wrong(&command, "the model is missing; give gpt, bert or image");
    }
    if (cli_choice("gpt|bert|image", argv[1]) < 0) {
        const char *near = ls__suggest(argv[1], kinds, 3);
        return near != NULL
                   ? cli_wrong(&command, "there is no \"%s\"; did you mean %s?", argv[1], near)
                   : cli_wrong(&command, "there is no \"%s\"; give gpt, bert or image", argv[1]);
    }
    const int ranks = place_of_ranks(argc, argv);
    if (ranks > 0) {
        return run_on_ranks(argc, argv, ranks);
    }
    return train_become(argv[1], argv + 1);
}

int cmd_generate(int argc, char **argv)
{
    (void)argc;
    static char name[] = "generate";
    return become(name, argv);
}

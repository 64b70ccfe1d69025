/* `lockstep`: one command with subcommands. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/version.h>

#include "base/suggest.h"
#include "commands.h"

/* The benchmarks are a part of their own; a build without them has the other commands. */
#pragma weak cmd_bench

static const char usage[] =
    "usage: lockstep COMMAND ...\n"
    "\n"
    "  run -n N [--max-restarts R] PROGRAM ARGS ...   train with N workers on this host\n"
    "  data tokens TEXT ... --tokenizer T --out DIR   make shards of tokens from text\n"
    "  env                                            which world a program here would join, and "
    "why\n"
    "  secret FILE                                    make the secret that several hosts share\n"
    "  bench NAME ...                                 measure (all-reduce, broadcast ... step)\n"
    "  info [--tuning]                                build, processor, settings; algorithms in "
    "use\n"
    "  version                                        the version\n"
    "  help                                           this text\n"
    "\n"
    "`lockstep run --help` says more about running.\n";

static int cmd_version(int argc, char **argv)
{
    if (argc > 1) {
        fprintf(stderr, "lockstep version: takes no arguments, not \"%s\"\n", argv[1]);
        return 2;
    }
    printf("lockstep %s\n", ls_version());
    return 0;
}

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
} command;

static int cmd_help(int argc, char **argv);

static const command commands[] = {
    {"run", cmd_run},   {"bench", cmd_bench}, {"info", cmd_info},       {"secret", cmd_secret},
    {"data", cmd_data}, {"env", cmd_env},     {"version", cmd_version}, {"--version", cmd_version},
    {"help", cmd_help}, {"--help", cmd_help}, {"-h", cmd_help},
};

#define COMMAND_COUNT ((int)(sizeof commands / sizeof *commands))

static const command *find(const char *name)
{
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(name, commands[i].name) == 0 && commands[i].run != NULL) {
            return &commands[i];
        }
    }
    return NULL;
}

static int unknown(const char *name)
{
    const char *names[COMMAND_COUNT];
    for (int i = 0; i < COMMAND_COUNT; i++) {
        names[i] = commands[i].name;
    }
    const char *near = ls__suggest(name, names, COMMAND_COUNT);
    fprintf(stderr, "lockstep: there is no command \"%s\"", name);
    if (near != NULL) {
        fprintf(stderr, "; did you mean %s?", near);
    }
    fprintf(stderr, "\n%s", usage);
    return 2;
}

/* `lockstep help run` is `lockstep run --help`. */
static int cmd_help(int argc, char **argv)
{
    static char flag[] = "--help";
    const command *about = argc > 1 ? find(argv[1]) : NULL;
    if (argc > 1 && about == NULL) {
        return unknown(argv[1]);
    }
    if (about != NULL &&
        (about->run == cmd_run || about->run == cmd_bench || about->run == cmd_data)) {
        return about->run(2, (char *[]){argv[1], flag, NULL});
    }
    fputs(usage, stdout);
    return 0;
}

/* Started with a standard stream closed: what goes there goes nowhere, and not into the next file
 * that is opened. */
static void open_standard_streams(void)
{
    int fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd < STDERR_FILENO) {
        fd = dup(fd);
    }
    if (fd > STDERR_FILENO) {
        (void)close(fd);
    }
}

int main(int argc, char **argv)
{
    open_standard_streams();
    if (argc < 2) {
        fputs(usage, stderr);
        return 2;
    }
    const command *asked = find(argv[1]);
    return asked != NULL ? asked->run(argc - 1, argv + 1) : unknown(argv[1]);
}

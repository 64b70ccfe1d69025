/* `lockstep`: one command with subcommands. */
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "commands.h"

/* The benchmarks are a part of their own; a build without them has the other commands. */
#pragma weak cmd_bench

static const char usage[] =
    "usage: lockstep COMMAND ...\n"
    "\n"
    "  run -n N [--log-dir DIR] PROGRAM ARGS ...   train with N workers on this host\n"
    "  bench NAME ...                              measure (all-reduce)\n"
    "  info                                        build, processor, settings\n"
    "  version                                     the version\n"
    "  help                                        this text\n"
    "\n"
    "`lockstep run --help` says more about running.\n";

static int cmd_version(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    printf("lockstep %s\n", ls_version());
    return 0;
}

static int cmd_help(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    fputs(usage, stdout);
    return 0;
}

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
} command;

static const command commands[] = {
    {"run", cmd_run},         {"bench", cmd_bench},       {"info", cmd_info},
    {"version", cmd_version}, {"--version", cmd_version}, {"help", cmd_help},
    {"--help", cmd_help},     {"-h", cmd_help},
};

#define COMMAND_COUNT ((int)(sizeof commands / sizeof *commands))

static int unknown(const char *name)
{
    const char *names[COMMAND_COUNT];
    for (int i = 0; i < COMMAND_COUNT; i++) {
        names[i] = commands[i].name;
    }
    const char *near = suggest(name, names, COMMAND_COUNT);
    fprintf(stderr, "lockstep: there is no command \"%s\"", name);
    if (near != NULL) {
        fprintf(stderr, "; did you mean %s?", near);
    }
    fprintf(stderr, "\n%s", usage);
    return 2;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fputs(usage, stderr);
        return 2;
    }
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(argv[1], commands[i].name) == 0 && commands[i].run != NULL) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    return unknown(argv[1]);
}

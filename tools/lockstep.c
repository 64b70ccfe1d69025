/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep`: one command with subcommands. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/version.h>

#include "base/suggest.h"
#include "commands.h"
#include "tools/cli/cli.h"

static int cmd_help(int argc, char **argv);
static int cmd_version(int argc, char **argv);

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about; /* NULL: not listed, because it is an alias or serves scripts only */
} command;

static const command commands[] = {
    {"run", cmd_run, "start a program as N ranks, on one host or several"},
    {"train", cmd_train, "train a GPT, a BERT or a classifier of images"},
    {"generate", cmd_generate, "generate text with a trained model"},
    {"data", cmd_data, "convert text to token shards"},
    {"bench", cmd_bench, "measure collectives and training steps"},
    {"paper", cmd_paper, "measure the figures and tables of the DDP paper on this machine"},
    {"plan", cmd_plan, "choose mesh, stages and schedule of a model before it runs"},
    {"sim", cmd_sim, "predict a training step on a cluster by simulation"},
    {"tune", cmd_tune, "time the links between hosts to choose algorithms"},
    {"replay", cmd_replay, "make the versions of an asynchronous run again, and compare them"},
    {"trace", cmd_trace, "summarise the trace of a job, written by LOCKSTEP_TRACE"},
    {"report", cmd_report, "write a page about runs, from their logs and traces"},
    {"top", cmd_top, "show what the ranks of a running job do"},
    {"info", cmd_info, "print library, processor, limits and settings"},
    {"doctor", cmd_doctor, "find what keeps jobs from running here, or slows them down"},
    {"env", cmd_env, "print which world a program started here would join, and why"},
    {"secret", cmd_secret, "make the secret that the hosts of a job share"},
    {"completion", cmd_completion, "print the completion script for bash, zsh or fish"},
    {"version", cmd_version, "print the version"},
    {"help", cmd_help, "print the help of a command"},
    {"complete", cmd_complete, NULL},
    {"--version", cmd_version, NULL},
    {"--help", cmd_help, NULL},
    {"-h", cmd_help, NULL},
};

#define COMMAND_COUNT ((int)(sizeof commands / sizeof *commands))

/* NULL: no command has this name. */
static const command *find(const char *name)
{
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(name, commands[i].name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

static void print_usage(FILE *out)
{
    fputs("usage: lockstep COMMAND ...\n\n", out);
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (commands[i].about != NULL) {
            fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].about);
        }
    }
    fputs("\n`lockstep help COMMAND` prints the help of a command.\n", out);
}

/* Prints the usage, and last the error with the most similar name, where a user sees it. */
static int unknown(const char *name)
{
    const char *names[COMMAND_COUNT];
    int count = 0;
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (commands[i].about != NULL) {
            names[count++] = commands[i].name;
        }
    }
    const char *near = ls__suggest(name, names, count);
    fprintf(stderr, "lockstep: there is no command \"%s\"", name);
    if (near != NULL) {
        fprintf(stderr, "; did you mean %s?", near);
    }
    fputs("\n", stderr);
    print_usage(stderr);
    return CLI_WRONG_USE;
}

/* Also runs commands that another one asks for, as help and completion do. */
int command_run(int argc, char **argv)
{
    const command *asked = find(argv[0]);
    return asked != NULL ? asked->run(argc, argv) : unknown(argv[0]);
}

void command_print_names(void)
{
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (commands[i].about != NULL) {
            printf("%s\t%s\n", commands[i].name, commands[i].about);
        }
    }
}

static int cmd_version(int argc, char **argv)
{
    static const cli_command version = {.name = "lockstep version",
                                        .about = "Prints the version of the library."};
    const int first = cli_parse(&version, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    printf("lockstep %s\n", ls_version());
    return 0;
}

/* The list as a page for man(1). Each command has its own page. */
static void print_man(void)
{
    printf(".TH LOCKSTEP 1 \"\" \"lockstep %s\" \"Lockstep\"\n.SH NAME\n"
           "lockstep \\- distributed deep\\-learning training\n.SH SYNOPSIS\n"
           ".B lockstep\n\\fICOMMAND\\fR ...\n.SH COMMANDS\n",
           ls_version());
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (commands[i].about != NULL) {
            printf(".TP\n.B %s\n%s\n", commands[i].name, commands[i].about);
        }
    }
    printf(".SH SEE ALSO\n.BR lockstep\\-run (1)\n");
}

/* `lockstep help run` is `lockstep run --help`, `lockstep help train gpt` likewise. */
static int cmd_help(int argc, char **argv)
{
    char *asked[4] = {NULL};
    int count = 0;
    if (argc == 2 && strcmp(argv[1], "--help=man") == 0) {
        print_man();
        return 0;
    }
    for (int i = 1; i < argc && count < 2 && argv[i][0] != '-'; i++) {
        asked[count++] = argv[i];
    }
    if (count == 0 || strcmp(asked[0], "help") == 0) {
        print_usage(stdout);
        return 0;
    }
    static char flag[] = "--help";
    asked[count] = flag;
    return command_run(count + 1, asked);
}

/* If a standard stream is closed, the next file that is opened would take its number and receive
 * its output; /dev/null takes the number instead. */
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
        print_usage(stderr);
        return CLI_WRONG_USE;
    }
    return cli_end(command_run(argc - 1, argv + 1));
}

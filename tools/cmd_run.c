/* `lockstep run`: N ranks of a program on this host. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/settings.h"
#include "base/suggest.h"
#include "comm/board.h"
#include "commands.h"
#include "launch/launch.h"

static const char usage[] =
    "usage: lockstep run -n N [--log-dir DIR] [--max-restarts R] [--] PROGRAM ARGS ...\n"
    "\n"
    "Starts PROGRAM N times on this host, as ranks 0 to N-1 of one world. Lines of output get the\n"
    "rank in front, \"[2] \". When a rank fails, the others are ended and the first cause is\n"
    "reported; the status is that rank's, 128 + the number if a signal ended it.\n"
    "\n"
    "  -n N             ranks, 1 to 256 (also --nproc-per-node N, --nproc_per_node N)\n"
    "  --log-dir DIR    writes DIR/RANK/stdout.log, DIR/RANK/stderr.log and DIR/pids.json; with\n"
    "                   --max-restarts DIR/attempt_K/RANK/stdout.log ... for attempts 0, 1 ...\n"
    "                   Files of the same name are written over, others left alone\n"
    "  --max-restarts R after a failure all ranks are started again, up to R times (0 to 1000;\n"
    "                   0 unless given): the first time at once, then after 1, 2, 4 ... 30 s. Not\n"
    "                   when the same failure comes twice at the same step, ranks do not fit\n"
    "                   together, or the program cannot be started. It is the program that\n"
    "                   resumes, from its last checkpoint\n"
    "  --restart-window S   only restarts of the last S seconds count towards R\n"
    "  --standalone     accepted, as is --nnodes 1: a job is always one of this host\n"
    "\n"
    "The first Ctrl-C or SIGTERM asks the job to stop: ranks that initialised with .graceful_stop\n"
    "finish their step and end by themselves, with status 0 if all went well; the others get the\n"
    "signal. The second one kills.\n"
    "\n"
    "Ranks find torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK ...) in their environment, and\n"
    "cores / N threads each unless OMP_NUM_THREADS is set. They read no input.\n";

typedef enum option {
    OPTION_RANKS,
    OPTION_LOG_DIR,
    OPTION_NODES,
    OPTION_RESTARTS,
    OPTION_WINDOW,
    OPTION_STANDALONE,
    OPTION_HELP
} option;

static const char *const names[] = {
    "-n",        "--nproc-per-node", "--nproc_per_node", "--log-dir",
    "--log_dir", "--standalone",     "--help",           "-h",
    "--nnodes",  "--max-restarts",   "--max_restarts",   "--restart-window"};
static const option meanings[] = {
    OPTION_RANKS, OPTION_RANKS, OPTION_RANKS, OPTION_LOG_DIR,  OPTION_LOG_DIR,  OPTION_STANDALONE,
    OPTION_HELP,  OPTION_HELP,  OPTION_NODES, OPTION_RESTARTS, OPTION_RESTARTS, OPTION_WINDOW};

#define NAME_COUNT ((int)(sizeof names / sizeof *names))

static int wrong(const char *format, const char *what, const char *more)
{
    fputs("lockstep run: ", stderr);
    fprintf(stderr, format, what, more);
    fprintf(stderr, "\n%s", usage);
    return 2;
}

static int unknown_flag(const char *flag)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(flag, "="), flag);
    const char *near = ls__suggest(name, names, NAME_COUNT);
    return near != NULL ? wrong("unknown flag %s; did you mean %s?", name, near)
                        : wrong("unknown flag %s%s", name, "");
}

/* The flag's index in names, or -1; *value is what stands behind "=", or behind a bare -n. */
static int find_flag(const char *text, const char **value)
{
    *value = NULL;
    for (int i = 0; i < NAME_COUNT; i++) {
        size_t length = strlen(names[i]);
        if (strncmp(text, names[i], length) != 0) {
            continue;
        }
        if (text[length] == '\0') {
            return i;
        }
        if (text[length] == '=' && length > 2) {
            *value = text + length + 1;
            return i;
        }
        if (i == 0 && text[length] >= '0' && text[length] <= '9') {
            *value = text + length;
            return i;
        }
    }
    return -1;
}

/* A whole number from `low` to `high`; `range` is the message about others, with the text in it. */
static int parse_number(const char *name, const char *text, long low, long high, const char *range,
                        int *out)
{
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0') {
        return wrong("%s %s is not a whole number", name, text);
    }
    if (errno != 0 || value < low || value > high) {
        return wrong(range, text, "");
    }
    *out = (int)value;
    return 0;
}

/* The value of a flag that takes one. Returns 0 or the exit status. */
static int take(option meaning, const char *value, ls__job *job)
{
    switch (meaning) {
    case OPTION_LOG_DIR:
        job->log_dir = value;
        return 0;
    case OPTION_NODES:
        return strcmp(value, "1") == 0
                   ? 0
                   : wrong("--nnodes %s: this release runs a job on one host%s", value, "");
    case OPTION_RESTARTS:
        return parse_number("--max-restarts", value, 0, LS__RESTARTS_MAX,
                            "--max-restarts %s: give 0 to 1000%s", &job->max_restarts);
    case OPTION_WINDOW:
        return parse_number("--restart-window", value, 1, INT_MAX,
                            "--restart-window %s: give a number of seconds, from 1 on%s",
                            &job->restart_window_s);
    default:
        return parse_number("-n", value, 1, LS__BOARD_RANKS_MAX,
                            "-n %s: one host runs 1 to 256 ranks%s", &job->ranks);
    }
}

/* Reads flags up to the program. Returns its index, or the negated exit status minus 1. */
static int parse(int argc, char **argv, ls__job *job)
{
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *value = NULL;
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        int flag = find_flag(argv[i], &value);
        if (flag < 0) {
            return -1 - unknown_flag(argv[i]);
        }
        if (meanings[flag] == OPTION_HELP) {
            fputs(usage, stdout);
            return -1;
        }
        if (meanings[flag] == OPTION_STANDALONE) {
            continue;
        }
        if (value == NULL && ++i >= argc) {
            return -1 - wrong("%s needs a value%s", names[flag], "");
        }
        value = value == NULL ? argv[i] : value;
        int status = take(meanings[flag], value, job);
        if (status != 0) {
            return -1 - status;
        }
    }
    return i;
}

/* What failed and when the next attempt comes, while it is waited for. */
static void tell(const ls__job_result *failed)
{
    fputs(failed->report, stderr);
}

int cmd_run(int argc, char **argv)
{
    ls__job job = {.forward_signals = true, .on_restart = tell};
    int program = parse(argc, argv, &job);
    if (program < 0) {
        return -1 - program;
    }
    if (job.ranks == 0) {
        return wrong("how many ranks? give -n N%s%s", "", "");
    }
    if (program >= argc) {
        return wrong("which program? name it behind the flags%s%s", "", "");
    }
    if (job.log_dir != NULL && job.log_dir[0] == '\0') {
        return wrong("--log-dir needs the name of a folder%s%s", "", "");
    }
    (void)ls__settings_check();
    job.argv = (const char *const *)(argv + program);
    job.capture = job.ranks > 1 || job.log_dir != NULL || job.max_restarts > 0;
    ls__job_result result;
    if (ls__job_run(ls__env_posix(), &job, &result) < 0) {
        fprintf(stderr, "lockstep: %s\n", ls_error_message());
        return 1;
    }
    fputs(result.report, stderr);
    return result.code;
}

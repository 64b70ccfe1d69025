/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep run`: N ranks of a program on this host, or on each of several. */
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/settings.h"
#include "commands.h"
#include "job/board.h"
#include "job/nodes/nodes.h"
#include "launch/launch.h"
#include "tools/cli/cli.h"

typedef struct asked { /* the values of the options */
    ls__job job;
    const char *master_addr, *master_port;
    bool node_given;
    char rendezvous[320];
} asked;

static asked given;

/* ---- values -------------------------------------------------------------------------------- */

/* A whole number from low to high; `range` is the remedy that the error names. Returns 0 or the
 * exit status, as all functions below that read a value. */
static int parse_number(const cli_command *command, const cli_option *o, const char *text,
                        const char *range)
{
    char *end = NULL;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || (double)value < o->low ||
        (double)value > o->high) {
        return cli_wrong(command, "%s%s is \"%s\"; %s", o->letter != '\0' ? "-" : "--",
                         o->letter != '\0' ? (const char[]){o->letter, '\0'} : o->name, text,
                         range);
    }
    *(int *)o->value = (int)value;
    return 0;
}

/* Accepts torchrun's words for -n, except gpu. */
static int take_ranks(const cli_command *command, const cli_option *o, const char *text)
{
    const ls__env *env = ls__env_posix();
    if (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0) {
        const int cores = env->cores(env);
        given.job.ranks = cores < LS__BOARD_RANKS_MAX ? cores : LS__BOARD_RANKS_MAX;
        return 0;
    }
    if (strcmp(text, "gpu") == 0) {
        return cli_wrong(command, "-n gpu: Lockstep computes on the CPU; give a number, or auto");
    }
    return parse_number(command, o, text, "one host runs 1 to 256 ranks");
}

/* N, or torchrun's MIN:MAX where both are the same: the number of hosts does not change. */
static int take_nodes(const cli_command *command, const cli_option *o, const char *text)
{
    const char *colon = strchr(text, ':');
    const size_t bytes = colon != NULL ? (size_t)(colon - text) : 0;
    if (colon != NULL && (strlen(colon + 1) != bytes || strncmp(text, colon + 1, bytes) != 0)) {
        return cli_wrong(command, "--nnodes %s: the number of hosts is fixed; give one number",
                         text);
    }
    return parse_number(command, o, colon != NULL ? colon + 1 : text, "give 1 to 128 hosts");
}

static int take_node(const cli_command *command, const cli_option *o, const char *text)
{
    given.node_given = true;
    return parse_number(command, o, text, "give 0 to the number of hosts - 1");
}

static int take_restarts(const cli_command *command, const cli_option *o, const char *text)
{
    return parse_number(command, o, text, "give 0 to 1000 restarts");
}

static int take_window(const cli_command *command, const cli_option *o, const char *text)
{
    return parse_number(command, o, text, "give a number of seconds, 1 or more");
}

static int take_rendezvous(const cli_command *command, const cli_option *o, const char *text)
{
    (void)command;
    given.job.rendezvous = text;
    given.job.rendezvous_from = o->value; /* the option's name, for messages */
    return 0;
}

/* Sets job.plain, which disables TLS between hosts but not the proof of the secret. */
static int take_data_plane(const cli_command *command, const cli_option *o, const char *text)
{
    given.job.plain = cli_choice(o->choices, text) == 1;
    return given.job.plain || strcmp(text, "tls") == 0
               ? 0
               : cli_wrong(command, "--data-plane is \"%s\"; give tls or plain", text);
}

/* torchrun's -m runs a module by itself; here the interpreter is named. */
static int refuse_module(const cli_command *command, const cli_option *o, const char *text)
{
    (void)o;
    (void)text;
    return cli_wrong(command, "name the interpreter: lockstep run -n N python3 -m MODULE");
}

/* ---- the command --------------------------------------------------------------------------- */

static char rendezvous_name[] = "--rendezvous", endpoint_name[] = "--rdzv-endpoint";

static const cli_option options[] = {
    {"nproc-per-node", CLI_READ, &given.job.ranks, .low = 1, .high = LS__BOARD_RANKS_MAX,
     .letter = 'n', .read = take_ranks, .value_name = "N",
     .help = "ranks on this host, 1 to 256; auto: one per core", .fallback = ""},
    {"log-dir", CLI_TEXT, &given.job.log_dir, .value_name = "DIR",
     .help =
         "write DIR/RANK/stdout.log, DIR/RANK/stderr.log and DIR/pids.json; with --max-restarts "
         "DIR/attempt_K/RANK/stdout.log and so on for attempts 0, 1, ... Files of the same name "
         "are overwritten, others are kept"},
    {"max-restarts", CLI_READ, &given.job.max_restarts, .low = 0, .high = LS__RESTARTS_MAX,
     .read = take_restarts, .value_name = "R", .fallback = "0",
     .help = "restart all ranks after a failure, up to R times: the first time at once, then "
             "after 1, 2, 4 ... 30 s"},
    {"restart-window", CLI_READ, &given.job.restart_window_s, .low = 1, .high = INT_MAX,
     .read = take_window, .value_name = "S", .fallback = "",
     .help = "count only restarts of the last S seconds towards R"},
    {"nnodes", CLI_READ, &given.job.nodes, .low = 1, .high = LS__NODES_MAX, .read = take_nodes,
     .value_name = "M", .fallback = "1",
     .help =
         "number of hosts, 1 to 128; node 0 waits for the others up to LOCKSTEP_TIMEOUT (300 s)"},
    {"node-rank", CLI_READ, &given.job.node, .low = 0, .high = LS__NODES_MAX - 1, .read = take_node,
     .value_name = "K", .fallback = "",
     .help =
         "number of this host, 0 to M-1; node 0 listens at HOST:PORT. The other hosts may omit it"},
    {"rendezvous", CLI_READ, rendezvous_name, .read = take_rendezvous, .value_name = "HOST:PORT",
     .help = "address of node 0 (also --rdzv-endpoint, or --master-addr and --master-port)",
     .fallback = ""},
    {"secret-file", CLI_TEXT, &given.job.secret_file, .value_name = "FILE",
     .help =
         "the job's secret, the same on all hosts, made once by `lockstep secret FILE`; without "
         "one only processes of this user on this host may join"},
    {"data-plane", CLI_READ, .read = take_data_plane, .choices = "tls|plain", .fallback = "tls",
     .help = "plain: links between hosts are authenticated but not encrypted"},
    /* torchrun's own */
    {"rdzv-endpoint", CLI_READ, endpoint_name, .read = take_rendezvous, .hidden = true},
    {"master-addr", CLI_TEXT, &given.master_addr, .hidden = true},
    {"master-port", CLI_TEXT, &given.master_port, .hidden = true},
    {"rdzv-id", CLI_TEXT, &given.job.job_id, .hidden = true},
    {"rdzv-backend", CLI_IGNORED, .hidden = true},
    {"rdzv-conf", CLI_IGNORED, .hidden = true},
    {"monitor-interval", CLI_IGNORED, .hidden = true},
    {"start-method", CLI_IGNORED, .hidden = true},
    {"role", CLI_IGNORED, .hidden = true},
    {"redirects", CLI_IGNORED, .letter = 'r', .hidden = true},
    {"tee", CLI_IGNORED, .letter = 't', .hidden = true},
    {"local-addr", CLI_IGNORED, .hidden = true},
    {"local-ranks-filter", CLI_IGNORED, .hidden = true},
    {"standalone", CLI_IGNORED_SWITCH, .hidden = true},
    {"no-python", CLI_IGNORED_SWITCH, .hidden = true},
    {"run-path", CLI_READ, .read = refuse_module, .hidden = true},
    {"module", CLI_READ, .letter = 'm', .read = refuse_module, .hidden = true},
};

static const cli_command command = {
    .name = "lockstep run",
    .about = "Starts PROGRAM N times on this host, as ranks 0 to N-1 of one world.",
    .operands = "[--] PROGRAM ARGS ...",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .ends = true,
    .underscores = true,
    .more =
        "Each line of output begins with its rank, \"[2] \". When a rank fails, the others are\n"
        "ended, and the root cause is reported once. The exit status is that of the failed rank,\n"
        "or 128 + the number of the signal that ended it.\n"
        "\n"
        "A Python script (a name that ends in .py) that is not executable is run by python3,\n"
        "or by the interpreter that LOCKSTEP_PYTHON names.\n"
        "\n"
        "No restart happens if the same failure occurs twice at the same step, if ranks disagree,\n"
        "or if the program cannot be started. The program resumes from its own last checkpoint.\n"
        "\n"
        "With several hosts, run the same command on each, with its own --node-rank. Ranks are\n"
        "numbered contiguously from node 0 on. All hosts stop and restart together, and report\n"
        "the same status and root cause:\n"
        "  lockstep run --nnodes 2 --node-rank K --rendezvous HOST:PORT --secret-file F -n 4 ...\n"
        "\n"
        "torchrun's other options are accepted, with - or _ between words; those that concern "
        "only\n"
        "Python have no effect: --standalone, --no-python, --rdzv-id, --rdzv-backend, ...\n"
        "\n"
        "The first Ctrl-C or SIGTERM requests a stop: ranks that initialised with .graceful_stop\n"
        "finish their step and end with status 0; other ranks receive the signal. The second one\n"
        "kills the job.\n"
        "\n"
        "Ranks find torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK ...) in their environment;\n"
        "MASTER_ADDR:MASTER_PORT is for the program's own use. Each rank computes with cores / N\n"
        "threads, unless OMP_NUM_THREADS is set. The standard input of ranks is empty.\n"};

/* ---- options from the environment ------------------------------------------------------------ */

/* torchrun reads its options from such variables, so Kubeflow sets them. */
static const char *const variables[][2] = {
    {"PET_NNODES", "--nnodes"},
    {"PET_NODE_RANK", "--node-rank"},
    {"PET_NPROC_PER_NODE", "--nproc-per-node"},
    {"PET_MAX_RESTARTS", "--max-restarts"},
    {"PET_RDZV_ENDPOINT", "--rdzv-endpoint"},
    {"PET_MASTER_ADDR", "--master-addr"},
    {"PET_MASTER_PORT", "--master-port"},
};
#define VARIABLES ((int)(sizeof variables / sizeof *variables))

/* The command line with these options before its own, which so win. NULL without memory; the
 * process keeps it to its end. */
static char **with_variables(int *argc, char **argv)
{
    char **all = calloc((size_t)*argc + 2 * VARIABLES + 1, sizeof *all);
    int count = 1;
    if (all == NULL) {
        return NULL;
    }
    all[0] = argv[0];
    for (int i = 0; i < VARIABLES; i++) {
        const char *value = ls__setting_get(variables[i][0]);
        if (value != NULL) {
            all[count++] = (char *)(uintptr_t)variables[i][1];
            all[count++] = (char *)(uintptr_t)value;
        }
    }
    memcpy(all + count, argv + 1, (size_t)*argc * sizeof *argv); /* with the NULL at its end */
    *argc += count - 1;
    return all;
}

/* A wrong value may be one that the user has never written. */
static void say_variables(void)
{
    for (int i = 0; i < VARIABLES; i++) {
        const char *value = ls__setting_get(variables[i][0]);
        if (value != NULL) {
            fprintf(stderr, "lockstep run: %s=%s was taken as %s\n", variables[i][0], value,
                    variables[i][1]);
        }
    }
}

/* Kubernetes numbers the pods of an Indexed Job, also where each of them is a job of its own
 * here. */
static int take_index(void)
{
    const char *index = ls__setting_get("JOB_COMPLETION_INDEX");
    static const cli_option option = {"node-rank", CLI_READ, &given.job.node, .low = 0,
                                      .high = LS__NODES_MAX - 1};
    return index != NULL && !given.node_given ? take_node(&command, &option, index) : 0;
}

/* Checks the options for several hosts and joins torchrun's --master-addr and --master-port to one
 * address. Returns 0 or the exit status. */
static int check_nodes(void)
{
    ls__job *job = &given.job;
    job->secret_file =
        job->secret_file != NULL ? job->secret_file : ls__setting_get("LOCKSTEP_SECRET_FILE");
    if (job->nodes <= 1) {
        return given.node_given && job->node > 0
                   ? cli_wrong(&command, "--node-rank needs --nnodes, the number of hosts")
                   : 0;
    }
    const int status = take_index();
    if (status != 0) {
        return status;
    }
    if (given.node_given && job->node >= job->nodes) {
        return cli_wrong(&command,
                         "--node-rank is not below --nnodes: give 0 to the number of hosts - 1");
    }
    job->node = given.node_given ? job->node : -1;
    if (job->rendezvous == NULL && given.master_addr != NULL) {
        snprintf(given.rendezvous, sizeof given.rendezvous, "%.255s:%.10s", given.master_addr,
                 given.master_port != NULL ? given.master_port : "29400");
        job->rendezvous = given.rendezvous;
        job->rendezvous_from = "--master-addr";
    }
    if (job->rendezvous == NULL) {
        return cli_wrong(&command,
                         "--nnodes above 1 needs --rendezvous HOST:PORT: node 0's name and a port "
                         "that is free there");
    }
    return 0;
}

/* Whether PROGRAM is a Python script that cannot be executed by its name. */
static bool is_script(const char *program)
{
    const char *dot = strrchr(program, '.');
    return dot != NULL && strcmp(dot, ".py") == 0 && access(program, R_OK) == 0 &&
           (strchr(program, '/') == NULL || access(program, X_OK) != 0);
}

/* The command of a rank: `program`, or for a script the interpreter before it, without a buffer
 * between its output and the launcher (torchrun's `python -u`). NULL without memory; the process
 * keeps it to its end. */
static const char *const *rank_argv(int count, char **program)
{
    if (!is_script(program[0])) {
        return (const char *const *)program;
    }
    const char **argv = calloc((size_t)count + 3, sizeof *argv);
    if (argv != NULL) {
        const char *python = ls__setting_get("LOCKSTEP_PYTHON");
        argv[0] = python != NULL ? python : "python3";
        argv[1] = "-u";
        memcpy(argv + 2, program, (size_t)count * sizeof *argv);
    }
    return argv;
}

/* Prints the failure and the time of the next attempt, before the wait for it. */
static void tell(const ls__job_result *failed)
{
    fputs(failed->report, stderr);
}

int cmd_run(int argc, char **argv)
{
    given = (asked){.job = {.forward_signals = true, .on_restart = tell}};
    ls__job *job = &given.job;
    argv = with_variables(&argc, argv);
    if (argv == NULL) {
        fprintf(stderr, "no memory\n");
        return 1;
    }
    const int program = cli_parse(&command, argc, argv);
    if (program < 0) {
        if (program < -1) {
            say_variables();
        }
        return -1 - program;
    }
    if (job->ranks == 0) {
        return cli_wrong(&command, "the number of ranks is missing; give -n N");
    }
    if (program >= argc) {
        return cli_wrong(&command, "the program is missing; name it after the options");
    }
    if (job->log_dir != NULL && job->log_dir[0] == '\0') {
        return cli_wrong(&command, "--log-dir needs the name of a folder");
    }
    int status = check_nodes();
    if (status != 0) {
        return status;
    }
    (void)ls__settings_check();
    job->argv = rank_argv(argc - program, argv + program);
    if (job->argv == NULL) {
        fprintf(stderr, "no memory\n");
        return 1;
    }
    job->capture =
        job->ranks > 1 || job->nodes > 1 || job->log_dir != NULL || job->max_restarts > 0;
    ls__job_result result;
    if (ls__job_run(ls__env_posix(), job, &result) < 0) {
        fprintf(stderr, "lockstep: %s\n", ls_error_message());
        return 1;
    }
    fputs(result.report, stderr);
    return result.code;
}

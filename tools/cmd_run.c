/* `lockstep run`: N ranks of a program on this host, or on each of several. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/settings.h"
#include "base/suggest.h"
#include "commands.h"
#include "job/board.h"
#include "job/nodes/nodes.h"
#include "launch/launch.h"

static const char usage[] =
    "usage: lockstep run -n N [--log-dir DIR] [--max-restarts R] [--] PROGRAM ARGS ...\n"
    "       lockstep run --nnodes M --node-rank K --rendezvous HOST:PORT --secret-file F -n N ...\n"
    "\n"
    "Starts PROGRAM N times on this host, as ranks 0 to N-1 of one world. Lines of output get the\n"
    "rank in front, \"[2] \". When a rank fails, the others are ended and the first cause is\n"
    "reported; the status is that rank's, 128 + the number if a signal ended it.\n"
    "\n"
    "  -n N             ranks, 1 to 256 (also --nproc-per-node N; auto: as many as cores)\n"
    "  --log-dir DIR    writes DIR/RANK/stdout.log, DIR/RANK/stderr.log and DIR/pids.json; with\n"
    "                   --max-restarts DIR/attempt_K/RANK/stdout.log ... for attempts 0, 1 ...\n"
    "                   Files of the same name are written over, others left alone\n"
    "  --max-restarts R after a failure all ranks are started again, up to R times (0 to 1000;\n"
    "                   0 unless given): the first time at once, then after 1, 2, 4 ... 30 s. Not\n"
    "                   when the same failure comes twice at the same step, ranks do not fit\n"
    "                   together, or the program cannot be started. It is the program that\n"
    "                   resumes, from its last checkpoint\n"
    "  --restart-window S   only restarts of the last S seconds count towards R\n"
    "\n"
    "Several hosts: the same command on each, with its own --node-rank. Ranks follow each other "
    "from\n"
    "node 0 on; all end, stop and restart together, with one status and one cause.\n"
    "\n"
    "  --nnodes M       hosts, 1 to 128; they are waited for as long as LOCKSTEP_TIMEOUT says (300 "
    "s)\n"
    "  --node-rank K    0 to M-1; the one with 0 listens at HOST:PORT. The others may leave it "
    "out\n"
    "  --rendezvous HOST:PORT   of node 0 (also --rdzv-endpoint, or --master-addr and "
    "--master-port)\n"
    "  --secret-file F  the job's secret, the same on all hosts, made once by `lockstep secret "
    "F`;\n"
    "                   without one only processes of this user on this host may join\n"
    "  --data-plane plain   links between hosts are authenticated but not encrypted (else TLS "
    "1.3)\n"
    "\n"
    "torchrun's other flags are accepted, with - or _ between words, and those that only concern\n"
    "Python have no effect: --standalone, --no-python, --rdzv-id, --rdzv-backend, --start-method "
    "...\n"
    "\n"
    "The first Ctrl-C or SIGTERM asks the job to stop: ranks that initialised with .graceful_stop\n"
    "finish their step and end by themselves, with status 0 if all went well; the others get the\n"
    "signal. The second one kills.\n"
    "\n"
    "Ranks find torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK ...) in their environment, and\n"
    "cores / N threads each unless OMP_NUM_THREADS is set. MASTER_ADDR:MASTER_PORT is for their "
    "own\n"
    "use; the launcher has its own ways. They read no input.\n";

typedef enum option {
    OPTION_RANKS,
    OPTION_LOG_DIR,
    OPTION_NODES,
    OPTION_NODE,
    OPTION_RENDEZVOUS,
    OPTION_MASTER_ADDR,
    OPTION_MASTER_PORT,
    OPTION_SECRET,
    OPTION_DATA_PLANE,
    OPTION_ID,
    OPTION_RESTARTS,
    OPTION_WINDOW,
    OPTION_NOTHING_VALUE, /* accepted, with a value that has no effect */
    OPTION_VALUES,        /* those from here on have none */
    OPTION_NOTHING,
    OPTION_MODULE,
    OPTION_HELP
} option;

static const struct {
    const char *name; /* with -; _ is taken for it */
    option meaning;
} flags[] = {{"-n", OPTION_RANKS},
             {"--nproc-per-node", OPTION_RANKS},
             {"--log-dir", OPTION_LOG_DIR},
             {"--max-restarts", OPTION_RESTARTS},
             {"--restart-window", OPTION_WINDOW},
             {"--nnodes", OPTION_NODES},
             {"--node-rank", OPTION_NODE},
             {"--rendezvous", OPTION_RENDEZVOUS},
             {"--rdzv-endpoint", OPTION_RENDEZVOUS},
             {"--master-addr", OPTION_MASTER_ADDR},
             {"--master-port", OPTION_MASTER_PORT},
             {"--secret-file", OPTION_SECRET},
             {"--data-plane", OPTION_DATA_PLANE},
             {"--rdzv-id", OPTION_ID},
             {"--rdzv-backend", OPTION_NOTHING_VALUE},
             {"--rdzv-conf", OPTION_NOTHING_VALUE},
             {"--monitor-interval", OPTION_NOTHING_VALUE},
             {"--start-method", OPTION_NOTHING_VALUE},
             {"--role", OPTION_NOTHING_VALUE},
             {"--redirects", OPTION_NOTHING_VALUE},
             {"--tee", OPTION_NOTHING_VALUE},
             {"--standalone", OPTION_NOTHING},
             {"--no-python", OPTION_NOTHING},
             {"--run-path", OPTION_MODULE},
             {"--module", OPTION_MODULE},
             {"-m", OPTION_MODULE},
             {"--help", OPTION_HELP},
             {"-h", OPTION_HELP}};

#define FLAG_COUNT ((int)(sizeof flags / sizeof *flags))

typedef struct asked { /* what the flags said */
    ls__job job;
    const char *master_addr, *master_port;
    bool node_given;
    char rendezvous[320];
} asked;

static int wrong(const char *format, const char *what, const char *more)
{
    fputs("lockstep run: ", stderr);
    fprintf(stderr, format, what, more);
    fputs("; see lockstep run --help\n",
          stderr); /* not all of it here: it would hide the mistake */
    return 2;
}

static int unknown_flag(const char *flag)
{
    char name[64];
    const char *names[FLAG_COUNT];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(flag, "="), flag);
    for (int i = 0; i < FLAG_COUNT; i++) {
        names[i] = flags[i].name;
    }
    const char *near = ls__suggest(name, names, FLAG_COUNT);
    return near != NULL ? wrong("unknown flag %s; did you mean %s?", name, near)
                        : wrong("unknown flag %s%s", name, "");
}

/* Whether `text` begins with the flag, in either of torchrun's spellings. */
static bool begins_with(const char *text, const char *flag)
{
    for (int i = 0; flag[i] != '\0'; i++) {
        if (text[i] != flag[i] && !(flag[i] == '-' && text[i] == '_' && i > 1)) {
            return false;
        }
    }
    return true;
}

/* The flag's index, or -1; *value is what stands behind "=", or behind a bare -n. */
static int find_flag(const char *text, const char **value)
{
    *value = NULL;
    for (int i = 0; i < FLAG_COUNT; i++) {
        size_t length = strlen(flags[i].name);
        if (!begins_with(text, flags[i].name)) {
            continue;
        }
        if (text[length] == '\0') {
            return i;
        }
        if (text[length] == '=' && length > 2 && flags[i].meaning < OPTION_VALUES) {
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

static int take_ranks(const char *value, ls__job *job)
{
    const ls__env *env = ls__env_posix();
    if (strcmp(value, "auto") == 0 || strcmp(value, "cpu") == 0) {
        int cores = env->cores(env);
        job->ranks = cores < LS__BOARD_RANKS_MAX ? cores : LS__BOARD_RANKS_MAX;
        return 0;
    }
    return parse_number("-n", value, 1, LS__BOARD_RANKS_MAX,
                        "-n %s: one host runs 1 to 256 ranks%s", &job->ranks);
}

/* N, or torchrun's MIN:MAX where both are the same: the number of hosts does not change. */
static int take_nodes(const char *value, ls__job *job)
{
    const char *colon = strchr(value, ':');
    size_t bytes = colon != NULL ? (size_t)(colon - value) : 0;
    if (colon != NULL && (strlen(colon + 1) != bytes || strncmp(value, colon + 1, bytes) != 0)) {
        return wrong("--nnodes %s: the number of hosts is fixed; give one number%s", value, "");
    }
    return parse_number("--nnodes", colon != NULL ? colon + 1 : value, 1, LS__NODES_MAX,
                        "--nnodes %s: give 1 to 128 hosts%s", &job->nodes);
}

static int take_data_plane(const char *value, ls__job *job)
{
    job->plain = strcmp(value, "plain") == 0;
    return job->plain || strcmp(value, "tls") == 0
               ? 0
               : wrong("--data-plane %s: give tls or plain%s", value, "");
}

static int take_node(const char *value, asked *a)
{
    a->node_given = true;
    return parse_number("--node-rank", value, 0, LS__NODES_MAX - 1,
                        "--node-rank %s: give 0 to the number of hosts - 1%s", &a->job.node);
}

/* The value of a flag that takes one. Returns 0 or the exit status. */
static int take(int flag, const char *value, asked *a)
{
    ls__job *job = &a->job;
    switch (flags[flag].meaning) {
    case OPTION_LOG_DIR:
        job->log_dir = value;
        return 0;
    case OPTION_NODES:
        return take_nodes(value, job);
    case OPTION_NODE:
        return take_node(value, a);
    case OPTION_RENDEZVOUS:
        job->rendezvous = value;
        job->rendezvous_from = flags[flag].name;
        return 0;
    case OPTION_MASTER_ADDR:
        a->master_addr = value;
        return 0;
    case OPTION_MASTER_PORT:
        a->master_port = value;
        return 0;
    case OPTION_SECRET:
        job->secret_file = value;
        return 0;
    case OPTION_DATA_PLANE:
        return take_data_plane(value, job);
    case OPTION_ID:
        job->job_id = value;
        return 0;
    case OPTION_RESTARTS:
        return parse_number("--max-restarts", value, 0, LS__RESTARTS_MAX,
                            "--max-restarts %s: give 0 to 1000%s", &job->max_restarts);
    case OPTION_WINDOW:
        return parse_number("--restart-window", value, 1, INT_MAX,
                            "--restart-window %s: give a number of seconds, from 1 on%s",
                            &job->restart_window_s);
    case OPTION_RANKS:
        return take_ranks(value, job);
    default:
        return 0;
    }
}

/* A flag without a value. Returns 0, or the negated exit status minus 1. */
static int note(option meaning)
{
    if (meaning == OPTION_HELP) {
        fputs(usage, stdout);
        return -1;
    }
    return meaning == OPTION_MODULE
               ? -1 - wrong("name the interpreter: lockstep run -n N python3 -m MODULE%s%s", "", "")
               : 0;
}

/* Reads flags up to the program. Returns its index, or the negated exit status minus 1. */
static int parse(int argc, char **argv, asked *a)
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
        if (flags[flag].meaning > OPTION_VALUES) {
            int status = note(flags[flag].meaning);
            if (status < 0) {
                return status;
            }
            continue;
        }
        if (value == NULL && ++i >= argc) {
            return -1 - wrong("%s needs a value%s", flags[flag].name, "");
        }
        value = value == NULL ? argv[i] : value;
        int status = take(flag, value, a);
        if (status != 0) {
            return -1 - status;
        }
    }
    return i;
}

/* Several hosts: what must be there, and torchrun's two flags for one. Returns 0 or the status. */
static int check_nodes(asked *a)
{
    ls__job *job = &a->job;
    job->secret_file =
        job->secret_file != NULL ? job->secret_file : ls__setting_get("LOCKSTEP_SECRET_FILE");
    if (job->nodes <= 1) {
        return a->node_given && job->node > 0
                   ? wrong("--node-rank needs --nnodes, the number of hosts%s%s", "", "")
                   : 0;
    }
    if (a->node_given && job->node >= job->nodes) {
        return wrong("--node-rank is not below --nnodes: give 0 to the number of hosts - 1%s%s", "",
                     "");
    }
    job->node = a->node_given ? job->node : -1;
    if (job->rendezvous == NULL && a->master_addr != NULL) {
        snprintf(a->rendezvous, sizeof a->rendezvous, "%.255s:%.10s", a->master_addr,
                 a->master_port != NULL ? a->master_port : "29400");
        job->rendezvous = a->rendezvous;
        job->rendezvous_from = "--master-addr";
    }
    if (job->rendezvous == NULL) {
        return wrong("--nnodes %s needs --rendezvous HOST:PORT: node 0's name and a port that is "
                     "free there%s",
                     "above 1", "");
    }
    return 0;
}

/* What failed and when the next attempt comes, while it is waited for. */
static void tell(const ls__job_result *failed)
{
    fputs(failed->report, stderr);
}

int cmd_run(int argc, char **argv)
{
    asked a = {.job = {.forward_signals = true, .on_restart = tell}};
    ls__job *job = &a.job;
    int program = parse(argc, argv, &a);
    if (program < 0) {
        return -1 - program;
    }
    if (job->ranks == 0) {
        return wrong("how many ranks? give -n N%s%s", "", "");
    }
    if (program >= argc) {
        return wrong("which program? name it behind the flags%s%s", "", "");
    }
    if (job->log_dir != NULL && job->log_dir[0] == '\0') {
        return wrong("--log-dir needs the name of a folder%s%s", "", "");
    }
    int status = check_nodes(&a);
    if (status != 0) {
        return status;
    }
    (void)ls__settings_check();
    job->argv = (const char *const *)(argv + program);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep top`: what the ranks of a running job do, again and again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "commands.h"
#include "tools/cli/cli.h"
#include "tools/top.h"

static bool once;
static double interval = 1.0;

static const cli_option options[] = {
    {"once", CLI_SWITCH, &once, .help = "print the table once, and end"},
    {"interval", CLI_NUMBER, &interval, 0.1, 3600, .help = "seconds between two tables"},
};

static const cli_command command = {
    .name = "lockstep top",
    .about = "Shows what the ranks of a running job do, from the memory that they share.",
    .operands = "[PROCESS]",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more =
        "PROCESS is the launcher or a rank; it may be left out while one job of this user runs\n"
        "on this host. Step is that of the data or of ls_step_context, from 0, and updates the\n"
        "optimizer's. A rank of which all threads wait shows the ranks that it waits for. The\n"
        "command ends with the job.\n"};

/* The one job, or that of the process; -1 with a reason on stderr. */
static int choose(const top_job *jobs, int count, int pid)
{
    char why[512];
    for (int i = 0; i < count && pid > 0; i++) {
        if (top_has_process(&jobs[i], pid)) {
            return i;
        }
    }
    if (pid > 0) {
        top_explain(pid, why, sizeof why);
        fprintf(stderr, "lockstep top: %s\n", why);
        return -1;
    }
    if (count == 1) {
        return 0;
    }
    if (count == 0) {
        fprintf(stderr, "lockstep top: no job of this user runs on this host; a process that is "
                        "alone has nothing to show, start it with `lockstep run -n 1`\n");
        return -1;
    }
    fprintf(stderr, "lockstep top: %d jobs run; give the process of one:\n", count);
    for (int i = 0; i < count; i++) {
        char name[TOP_NAME_BYTES];
        top_name(&jobs[i], name, sizeof name);
        fprintf(stderr, "  lockstep top %d  # %s\n", jobs[i].launcher, name);
    }
    return -1;
}

static void wait_interval(void)
{
    const time_t seconds = (time_t)interval;
    const struct timespec time = {.tv_sec = seconds,
                                  .tv_nsec = (long)((interval - (double)seconds) * 1e9)};
    (void)nanosleep(&time, NULL);
}

/* Of the terminal, so that a row of the table is a line there; 0: of any width. */
static int width_of_output(void)
{
    struct winsize size;
    const bool known = isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    return known ? size.ws_col : 0;
}

/* Follows the launcher of the first table, also over restarts, until it has no board. */
static int follow(int pid)
{
    static top_job jobs[TOP_JOBS_MAX];
    const bool terminal = isatty(STDOUT_FILENO) == 1;
    for (int shown = 0, launcher = pid;; shown++) {
        const int count = top_find(jobs, TOP_JOBS_MAX);
        int at = -1;
        for (int i = 0; i < count && shown > 0; i++) {
            at = top_has_process(&jobs[i], launcher) ? i : at;
        }
        at = shown == 0 ? choose(jobs, count, pid) : at;
        if (at >= 0) {
            fputs(terminal && !once ? "\033[H\033[J" : shown > 0 ? "\n" : "", stdout);
            top_print(&jobs[at], width_of_output());
            cli_flush(stdout);
            launcher = jobs[at].launcher;
        }
        top_close(jobs, count);
        if (at < 0 || once || ferror(stdout)) {
            printf("%s", at < 0 && shown > 0 ? "the job has ended\n" : "");
            return at < 0 && shown == 0 ? 1 : 0;
        }
        wait_interval();
    }
}

int cmd_top(int argc, char **argv)
{
    char *end = NULL;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (argc - first > 1) {
        return cli_wrong(&command, "give one process");
    }
    const long pid = first < argc ? strtol(argv[first], &end, 10) : 0;
    if (first < argc && (pid < 1 || pid > INT32_MAX || *end != '\0')) {
        return cli_wrong(&command,
                         "\"%s\" is no process; give the number of the launcher or of a rank",
                         argv[first]);
    }
    if (access("/proc/self/fd", F_OK) != 0) {
        fprintf(stderr, "lockstep top: jobs are found in /proc, which this system does not show; "
                        "mount it (mount -t proc proc /proc), or run this outside of the "
                        "container\n");
        return 1;
    }
    return follow((int)pid);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Links between two network namespaces, and programs that this one starts. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paper.h"

extern char **environ;

/* ---- programs -------------------------------------------------------------------------------- */

static volatile sig_atomic_t stop_signal;

static void note_stop(int number)
{
    stop_signal = number;
}

/* So that links are removed whatever ends the measurement. Programs that are started have the
 * default again. */
static void watch_signals(void)
{
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = note_stop};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        (void)sigaction(numbers[i], &action, NULL);
    }
}

bool paper_stopped(void)
{
    return stop_signal != 0;
}

int paper_start(const char *const *argv, const char *said)
{
    posix_spawn_file_actions_t files;
    pid_t pid = -1;
    watch_signals();
    (void)posix_spawn_file_actions_init(&files);
    (void)posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (said != NULL) {
        (void)posix_spawn_file_actions_addopen(&files, STDERR_FILENO, said,
                                               O_WRONLY | O_CREAT | O_TRUNC, 0600);
    }
    const int failed = posix_spawnp(&pid, argv[0], &files, NULL, (char *const *)argv, environ);
    (void)posix_spawn_file_actions_destroy(&files);
    if (failed != 0) {
        fprintf(stderr, "lockstep paper: \"%s\" could not be started: %s\n", argv[0],
                strerror(failed));
        return -1;
    }
    return pid;
}

/* A signal to this program alone ends the other one, too. */
int paper_wait(int pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            return -1;
        }
        if (stop_signal != 0) {
            (void)kill(pid, SIGTERM);
        }
    }
    return stop_signal != 0 ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int paper_run(const char *const *argv)
{
    const int pid = paper_start(argv, NULL);
    return pid > 0 ? paper_wait(pid) : -1;
}

int paper_finish(const char *const *argv)
{
    const int pid = paper_start(argv, NULL);
    int status = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- links ----------------------------------------------------------------------------------- */

static bool in_path(const char *tool)
{
    const char *const test[] = {"sh", "-c", "command -v \"$0\"", tool, NULL};
    return paper_run(test) == 0;
}

/* One command of ip or tc; its words are separated by single blanks. */
static bool configure(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool configure(const char *format, ...)
{
    char line[256], copy[256], *rest = copy;
    const char *argv[32];
    int count = 0;
    va_list values;
    va_start(values, format);
    (void)vsnprintf(line, sizeof line, format, values);
    va_end(values);
    memcpy(copy, line, sizeof copy);
    while (count < 31 && (argv[count] = strtok_r(rest, " ", &rest)) != NULL) {
        count++;
    }
    argv[count] = NULL;
    if (paper_run(argv) == 0) {
        return true;
    }
    fprintf(stderr, "lockstep paper: --link: `%s` failed\n", line);
    return false;
}

/* A burst passes at once whenever the link has rested, so it has to be small beside a message; too
 * small a one does not reach the rate. */
static const char *burst_of(const char *rate)
{
    return strcmp(rate, "100mbit") == 0 ? "16k" : strcmp(rate, "1gbit") == 0 ? "32k" : "128k";
}

/* This end sends at the rate. */
static bool limit(const char *name, const char *device, const char *rate)
{
    return configure("ip -n %s link set %s up", name, device) &&
           configure("ip netns exec %s tc qdisc add dev %s root tbf rate %s burst %s latency 20ms",
                     name, device, rate, burst_of(rate));
}

/* The host's end, 10.98.4.K+1. */
static bool make_end(const paper_link *link, int k, const char *rate)
{
    const char *name = link->names[k];
    return configure("ip -n %s link set lo up", name) &&
           configure("ip -n %s addr add 10.98.4.%d/24 dev wire", name, k + 1) &&
           limit(name, "wire", rate);
}

/* Namespaces for the hosts, and the switch; false after it printed why. */
static bool make_names(paper_link *link, const char *rate, int hosts, bool star)
{
    memset(link, 0, sizeof *link);
    if (geteuid() != 0 || !in_path("ip") || !in_path("tc") || !in_path("nsenter")) {
        fprintf(stderr,
                "lockstep paper: --link %s needs root, ip, tc and nsenter (iproute2, "
                "util-linux): run it as root, or leave --link out\n",
                rate);
        return false;
    }
    bool made = true;
    link->hosts = hosts;
    for (int k = 0; k < hosts + star && made; k++) {
        (void)snprintf(link->names[k], sizeof link->names[k], "lockstep-paper-%d-%d", (int)getpid(),
                       k);
        made = configure("ip netns add %s", link->names[k]);
    }
    return made;
}

static bool or_remove(paper_link *link, bool made)
{
    if (!made) {
        paper_link_remove(link);
    }
    return made;
}

bool paper_link_make(paper_link *link, const char *rate)
{
    return or_remove(link, make_names(link, rate, 2, false) &&
                               configure("ip -n %s link add wire type veth peer name wire netns %s",
                                         link->names[0], link->names[1]) &&
                               make_end(link, 0, rate) && make_end(link, 1, rate));
}

/* The k-th host's cable, and the switch's end of it. */
static bool plug_in(const paper_link *link, int k, const char *rate)
{
    const char *hub = link->names[link->hosts];
    char port[16];
    (void)snprintf(port, sizeof port, "port%d", k);
    return configure("ip -n %s link add wire type veth peer name %s netns %s", link->names[k], port,
                     hub) &&
           configure("ip -n %s link set %s master switch", hub, port) && make_end(link, k, rate) &&
           limit(hub, port, rate);
}

bool paper_star_make(paper_link *link, const char *rate, int hosts)
{
    bool made = make_names(link, rate, hosts, true) &&
                configure("ip -n %s link add switch type bridge", link->names[hosts]) &&
                configure("ip -n %s link set switch up", link->names[hosts]);
    for (int k = 0; k < hosts && made; k++) {
        made = plug_in(link, k, rate);
    }
    return or_remove(link, made);
}

void paper_link_remove(paper_link *link)
{
    for (int k = 0; k <= PAPER_HOSTS_MAX && link->names[k][0] != '\0'; k++) {
        const char *const argv[] = {"ip", "netns", "del", link->names[k], NULL};
        (void)paper_finish(argv);
    }
    memset(link, 0, sizeof *link);
}

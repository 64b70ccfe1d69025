/* Sentences about the failure of a rank: the same for every launcher, reader and host. */
#include <signal.h>
#include <stdio.h>

#include "job/agent/host_agent.h"

const char *ls__signal_name(int signal)
{
    static const struct {
        int number;
        const char *name;
    } names[] = {{SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"},
                 {SIGILL, "SIGILL"},   {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"},
                 {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGKILL, "SIGKILL"},
                 {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
                 {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},
                 {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].number == signal) {
            return names[i].name;
        }
    }
    return "a signal";
}

/* Under another launcher only that one knows the status; here it is known that ls_finalize was not
 * reached. */
void ls__failure_say_end(const ls__host_agent *a, int r, char *out, size_t bytes)
{
    const ls__host_agent_rank *rank = &a->rank[r];
    char name[128], doing[640];
    ls__board_name(a->board, r, name, sizeof name);
    ls__board_doing(a->board, a->env, r, doing, sizeof doing);
    if (a->launcher != NULL) {
        snprintf(out, bytes, "%s ended without ls_finalize while %s; its launcher (%s) knows how",
                 name, doing, a->launcher);
    } else if (rank->exit.signal != 0) {
        snprintf(out, bytes, "%s was killed by signal %d (%s) while %s", name, rank->exit.signal,
                 ls__signal_name(rank->exit.signal), doing);
    } else if (rank->exit.code != 0) {
        snprintf(out, bytes, "%s exited with code %d while %s", name, rank->exit.code, doing);
    } else if (rank->life == LS__LIFE_JOINED) {
        snprintf(out, bytes,
                 "%s exited with code 0 without ls_finalize while %s: the other ranks may wait for "
                 "it; end every rank with ls_finalize",
                 name, doing);
    } else {
        snprintf(out, bytes,
                 "%s exited with code 0 without ls_init, which the other ranks have called and "
                 "wait in: start the same program on every rank",
                 name);
    }
}

void ls__failure_say_noted(const ls__host_agent *a, int r, char *out, size_t bytes)
{
    const ls__board_rank *place = &a->board->rank[r];
    char name[128];
    ls__board_name(a->board, r, name, sizeof name);
    if (atomic_load_explicit(&place->failed, memory_order_acquire) == -LS_ERR_MISMATCH) {
        /* It names both sides; neither of them is the one at fault. */
        snprintf(out, bytes, "%.1000s", place->failed_text);
    } else {
        snprintf(out, bytes, "%s failed: %.800s", name, place->failed_text);
    }
}

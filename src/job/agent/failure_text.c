/* SPDX-License-Identifier: Apache-2.0 */
/* Sentences about the failure of a rank: the same for every launcher, reader and host.
 *
 * restart.c of src/launch compares these sentences between two attempts of a job and skips the
 * parts that vary (" while in …", process numbers, durations); keep these parts recognisable. */
#include <signal.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/planted.h"
#include "job/agent/host_agent.h"

/* The name in the language of the user's shell and manual pages; "a signal" for the real-time
 * signals, whose number the messages give anyway. */
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

/* "while in the backward pass (fc1) for 0.1 s; last operation …". A rank that had finished
 * ls_finalize is not described by its last activity, which no longer explains anything. */
static void say_when(const ls__host_agent *a, int r, char *out, size_t bytes)
{
    char doing[640];
    if (a->rank[r].life == LS__LIFE_LEFT) {
        snprintf(out, bytes, "after ls_finalize");
        return;
    }
    ls__board_doing(a->board, a->env, r, doing, sizeof doing);
    snprintf(out, bytes, "while %s", doing);
}

/* Where a signal comes from, if that is known. */
static const char *note_of(const ls__host_agent_rank *rank)
{
    if (rank->no_memory) {
        return ": the kernel killed it because memory was short";
    }
    return rank->exit.signal == SIGHUP ? ": the terminal was closed" : "";
}

/* What the end of rank r looked like from outside. Under another launcher only that launcher
 * knows the exit status; the board shows merely that ls_finalize was not reached. */
void ls__failure_say_end(const ls__host_agent *a, int r, char *out, size_t bytes)
{
    const ls__host_agent_rank *rank = &a->rank[r];
    char name[128], when[704];
    LS_ASSERT(rank->ended);
    ls__board_name(a->board, r, name, sizeof name);
    say_when(a, r, when, sizeof when);
    if (a->launcher != NULL) {
        snprintf(out, bytes,
                 "%s ended without ls_finalize %s; its launcher (%s) knows the exit status", name,
                 when, a->launcher);
    } else if (rank->exit.signal != 0 && !LS__PLANTED(WORDS)) {
        snprintf(out, bytes, "%s was killed by signal %d (%s%s) %s", name, rank->exit.signal,
                 ls__signal_name(rank->exit.signal), note_of(rank), when);
    } else if (rank->exit.code != 0) {
        snprintf(out, bytes, "%s exited with code %d %s", name, rank->exit.code, when);
    } else if (rank->life == LS__LIFE_JOINED) {
        snprintf(out, bytes,
                 "%s exited with code 0 without ls_finalize %s: the other ranks may wait for "
                 "it; end every rank with ls_finalize",
                 name, when);
    } else {
        snprintf(out, bytes,
                 "%s exited with code 0 without ls_init, which the other ranks have called and "
                 "wait in: start the same program on every rank",
                 name);
    }
}

/* The failure that rank r recorded on the board itself. The text of a mismatch names both ranks
 * involved; it gets no "rank r failed" before it, because either of them may be at fault. */
void ls__failure_say_noted(const ls__host_agent *a, int r, char *out, size_t bytes)
{
    const ls__board_rank *place = &a->board->rank[r];
    char name[128];
    ls__board_name(a->board, r, name, sizeof name);
    if (atomic_load_explicit(&place->failed, memory_order_acquire) == -LS_ERR_MISMATCH) {
        snprintf(out, bytes, "%.1000s", place->failed_text);
    } else {
        snprintf(out, bytes, "%s failed: %.800s", name, place->failed_text);
    }
}

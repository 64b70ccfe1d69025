/* SPDX-License-Identifier: Apache-2.0 */
/* SIGINT and SIGTERM as a stop request, for programs that asked for it; and SIGTSTP.
 *
 * A program that has its own handler, or ignores the signal (a job in a shell's background), keeps
 * its own choice. The first signal restores the default action of both, so that the second ends the
 * process. Once the launcher has decided to end the job, a signal is no longer a request: it ends
 * the process at once.
 */
#include "base/env_posix.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>

#include "base/compiler.h"

static const int numbers[] = {SIGINT, SIGTERM};

#define NUMBER_COUNT (sizeof numbers / sizeof *numbers)

/* Signal handlers are the process' own, and so is what they read and write: the one place for it.
 * Sync: relaxed; the number is all there is to see. `over` is set before the handler stands. */
static _Atomic int caught;
static const _Atomic uint32_t *over;

static void note(int number);

/* Whether the signal's present action is exactly `handler`. */
static bool has_handler(int number, void (*handler)(int))
{
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
           now.sa_handler == handler;
}

/* Changes only those signals whose action is still `from`: a handler that the program has installed
 * since stays. */
static void replace(void (*from)(int), void (*to)(int))
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = to;
    action.sa_flags = SA_RESTART;
    for (size_t i = 0; i < NUMBER_COUNT; i++) {
        if (has_handler(numbers[i], from)) {
            (void)sigaction(numbers[i], &action, NULL);
        }
    }
}

/* The handler: only atomics, sigaction and raise, which are async-signal-safe. */
static void note(int number)
{
    replace(note, SIG_DFL);
    if (atomic_load_explicit(over, memory_order_relaxed) != 0) {
        (void)raise(number); /* pending until we return */
        return;
    }
    atomic_store_explicit(&caught, number, memory_order_relaxed);
}

/* `no_more` must outlive the handler: it is read inside it. */
void ls__posix_catch_stop(const ls__env *env LS__UNUSED, const _Atomic uint32_t *no_more)
{
    over = no_more;
    atomic_store_explicit(&caught, 0, memory_order_relaxed);
    replace(SIG_DFL, note);
}

/* A handler that the program has installed meanwhile stays. */
void ls__posix_release_stop(const ls__env *env LS__UNUSED)
{
    replace(note, SIG_DFL);
}

/* The number of the signal, or 0. */
int ls__posix_caught_stop(const ls__env *env LS__UNUSED)
{
    return atomic_load_explicit(&caught, memory_order_relaxed);
}

/* The signal becomes pending and is taken when it is unblocked. The kernel discards it where the
 * process group is orphaned. */
void ls__posix_stop_self(const ls__env *env LS__UNUSED)
{
    sigset_t stops, before;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTSTP);
    (void)raise(SIGTSTP);
    (void)pthread_sigmask(SIG_UNBLOCK, &stops, &before);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

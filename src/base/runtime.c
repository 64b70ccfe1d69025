/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime's common part: the thread's attachment, and refusing calls after a fork.
 *
 * A child made by fork without exec has one thread, the one that called fork, and a copy of its
 * ls__self. The handler below runs in that thread and marks it, so the check in every call costs a
 * load and no getpid. Threads made later in the child start unattached, and ls_runtime_attach does
 * compare process numbers.
 */
#include "base/runtime.h"

#include <lockstep/random.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/settings.h"

_Thread_local ls__thread ls__self;

/* Runs in the child, in the thread that called fork. */
static void mark_forked(void)
{
    ls__self.forked = ls__self.runtime != NULL;
}

/* Runs when the library is loaded, before the program can fork. */
static LS__CONSTRUCTOR void watch_forks(void)
{
    /* Fails only without memory at program start; then forks simply go unnoticed. */
    (void)pthread_atfork(NULL, NULL, mark_forked);
}

/* Returns the error of every public call in such a child. */
static ls_status fail_forked(const char *what)
{
    return ls__fail(LS_ERR_FORKED,
                    "%s: called in a child made by fork() without exec(), which shares nothing "
                    "with the job; call it in the parent, or start the child with exec",
                    what);
}

/* `what` names the public call in the error. The one check that every call makes first. */
ls_runtime *ls__runtime_get(const char *what)
{
    if (LS__UNLIKELY(ls__self.forked)) {
        (void)fail_forked(what);
        return NULL;
    }
    if (LS__UNLIKELY(ls__self.runtime == NULL)) {
        (void)ls__fail(LS_ERR_STATE,
                       "%s: this thread has no runtime; call ls_init first (in a thread of your "
                       "own: ls_runtime_attach)",
                       what);
        return NULL;
    }
    return ls__self.runtime;
}

/* A runtime of one rank. The caller then fills in the world that the launcher has given. */
void ls__runtime_init(ls_runtime *runtime, const ls__env *env)
{
    memset(runtime, 0, sizeof *runtime);
    runtime->env = env;
    runtime->pid = (int)env->pid(env);
    runtime->world_size = 1;
    atomic_store_explicit(&runtime->attached, 1, memory_order_relaxed); /* this thread */
    runtime->local_size = 1;
    runtime->threads = 1;
    runtime->timeout_ms = ls__timeout_setting_ms();
    runtime->log_level = ls__log_level_setting(NULL);
    runtime->activity = &runtime->own_activity;
    runtime->stop = &runtime->own_stop;
    ls__list_init(&runtime->guests);
}

/* Guests are few and long-lived; one lock serves all runtimes. */
static pthread_mutex_t guests_lock = PTHREAD_MUTEX_INITIALIZER;

void ls__runtime_enter(ls_runtime *runtime, ls__runtime_guest *guest)
{
    LS_ASSERT(guest->runtime == NULL);
    (void)pthread_mutex_lock(&guests_lock);
    guest->runtime = runtime;
    ls__list_push_back(&runtime->guests, &guest->link);
    (void)pthread_mutex_unlock(&guests_lock);
}

void ls__runtime_leave(ls__runtime_guest *guest)
{
    (void)pthread_mutex_lock(&guests_lock);
    if (guest->runtime != NULL) {
        ls__list_remove(&guest->link);
        guest->runtime = NULL;
    }
    (void)pthread_mutex_unlock(&guests_lock);
}

void ls__runtime_dismiss(ls_runtime *runtime)
{
    (void)pthread_mutex_lock(&guests_lock);
    for (ls__list *at = ls__list_pop_front(&runtime->guests); at != NULL;
         at = ls__list_pop_front(&runtime->guests)) {
        ls__runtime_guest *guest = LS__LIST_ITEM(at, ls__runtime_guest, link);
        if (guest->ended != NULL) {
            guest->ended(guest);
        }
        guest->runtime = NULL;
    }
    (void)pthread_mutex_unlock(&guests_lock);
}

/* Release: pairs with the deadlock detection, which compares the count with the threads that
 * wait. */
static void count_thread(ls_runtime *from, ls_runtime *to)
{
    if (from != NULL) {
        atomic_fetch_sub_explicit(&from->attached, 1, memory_order_release);
    }
    if (to != NULL) {
        atomic_fetch_add_explicit(&to->attached, 1, memory_order_release);
    }
}

/* Not counted: the runtime joins its own threads. */
void ls__runtime_attach_background(ls_runtime *runtime)
{
    ls__self.runtime = runtime;
    ls__self.background = true;
    ls__self.scope = NULL;
}

/* Each runtime counts the user's threads that are attached, so that a deadlock is reported only
 * when no other thread could still make the missing call. */
ls_status ls_runtime_attach(ls_runtime *runtime)
{
    if (ls__self.forked) {
        return fail_forked("ls_runtime_attach");
    }
    if (runtime != NULL && runtime->pid != (int)runtime->env->pid(runtime->env)) {
        return fail_forked("ls_runtime_attach");
    }
    if (runtime != NULL && ls__self.runtime != NULL && ls__self.runtime != runtime) {
        return ls__fail(LS_ERR_STATE, "ls_runtime_attach: this thread is attached to another "
                                      "runtime; detach first with ls_runtime_attach(NULL)");
    }
    if (ls__self.runtime != runtime) {
        count_thread(ls__self.background ? NULL : ls__self.runtime, runtime);
        ls__self.background = false;
        ls__self.scope = NULL; /* scopes belong to a runtime and end with it at the latest */
    }
    ls__self.runtime = runtime;
    return LS_OK;
}

void ls_set_wait_callback(ls_wait_fn fn, void *arg)
{
    ls__self.on_wait = fn;
    ls__self.on_wait_arg = arg;
}

/* NULL in a thread that is not attached. The ranks and sizes below are then those of a world of
 * one. */
ls_runtime *ls_runtime_current(void)
{
    return ls__self.runtime;
}

int ls_rank(void)
{
    return ls__self.runtime != NULL ? ls__self.runtime->rank : 0;
}

int ls_world_size(void)
{
    return ls__self.runtime != NULL ? ls__self.runtime->world_size : 1;
}

int ls_local_rank(void)
{
    return ls__self.runtime != NULL ? ls__self.runtime->local_rank : 0;
}

int ls_local_world_size(void)
{
    return ls__self.runtime != NULL ? ls__self.runtime->local_size : 1;
}

/* The places find their round outdated when they draw next. */
void ls__draws_restart(ls_runtime *runtime, uint64_t first)
{
    runtime->draw_round++;
    runtime->draw_first = first;
    runtime->calls_in_step = first;
}

/* Must be called alike on every rank; counters restart, so that equal seeds give equal runs. */
ls_status ls_manual_seed(uint64_t seed)
{
    ls_runtime *runtime = ls__runtime_get("ls_manual_seed");
    if (runtime == NULL) {
        return ls__self.status;
    }
    runtime->seed = seed;
    runtime->param_streams = 0;
    ls__draws_restart(runtime, 0);
    return LS_OK;
}

/* Random numbers of a step depend on its number and not on how many were drawn before, so a resumed
 * run draws the same. */
void ls_step_begin(ls_step_context context)
{
    ls_runtime *runtime = ls__runtime_get("ls_step_begin");
    if (runtime != NULL) {
        runtime->step = context.step;
        runtime->sample_offset = context.sample_offset;
        ls__draws_restart(runtime, 0);
        atomic_store_explicit(&runtime->activity->step, context.step + 1, memory_order_relaxed);
    }
}

/* The signal by which this process was asked to stop, directly or by its launcher; 0 without such a
 * request, and always 0 in a program that did not ask for graceful stops. */
uint32_t ls__stop_wanted(const ls_runtime *runtime)
{
    if (!runtime->graceful_stop) {
        return 0;
    }
    int caught = runtime->env->caught_stop(runtime->env);
    return caught != 0 ? (uint32_t)caught
                       : atomic_load_explicit(runtime->stop, memory_order_relaxed);
}

#define AGREEMENT_HASH ((UINT64_C(1) << 40) - 1)

uint64_t ls__agreement_key(int size, uint64_t hash)
{
    hash &= AGREEMENT_HASH;
    return (uint64_t)size << 40 | (hash != 0 ? hash : 1);
}

void ls__agreement_join(ls_runtime *runtime, uint64_t key)
{
    uint64_t now = atomic_load_explicit(&runtime->agreement, memory_order_relaxed);
    uint64_t then = now;
    do {
        if (now >> 40 < key >> 40) {
            then = key;
        } else if (now >> 40 == key >> 40 && now != key) {
            then = now & ~AGREEMENT_HASH; /* two of one size */
        } else {
            return;
        }
    } while (!atomic_compare_exchange_weak_explicit(&runtime->agreement, &now, then,
                                                    memory_order_relaxed, memory_order_relaxed));
}

void ls__agreement_leave(ls_runtime *runtime)
{
    atomic_store_explicit(&runtime->agreement, 0, memory_order_relaxed);
}

/* With several ranks the request counts only once all have agreed (reduce/control.c): otherwise
 * some ranks would leave while others wait. */
bool ls_stop_requested(void)
{
    const ls_runtime *runtime = ls__self.runtime;
    if (runtime == NULL) {
        return false;
    }
    return runtime->world_size == 1
               ? ls__stop_wanted(runtime) != 0
               : atomic_load_explicit(&runtime->stop_agreed, memory_order_relaxed) != 0;
}

/* Monotonic seconds, whose zero is arbitrary: for differences only. */
double ls_time(void)
{
    const ls__env *env = ls__self.runtime != NULL ? ls__self.runtime->env : ls__env_posix();
    return (double)env->now_ns(env) * 1e-9;
}

/* For programs whose free is not that of the library's C runtime. */
void ls_bytes_free(void *memory)
{
    free(memory);
}

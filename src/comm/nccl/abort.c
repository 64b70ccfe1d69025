/* SPDX-License-Identifier: Apache-2.0 */
/* The end of communicators, in order and by force.
 *
 * Note [Abort]
 * A kernel of one communicator may lie behind that of another, and ncclCommAbort then waits for
 * both (NVIDIA/nccl#829, #1013). So a failure aborts all communicators of the process, each on a
 * thread of its own. If one of these, or a driver in a call, has not come back after ABORT_MS, the
 * buffers cannot be given back: the process says so and ends, which frees the GPU. The launcher
 * then reports the root cause, which the library has published before.
 *
 * ncclCommAbort ends kernels at once, but returns only when no graph has operations of the
 * communicator any more (record.c), and the program's thread, which frees graphs, may be waiting
 * for this abort. So a group that has recorded operations counts as ended when its kernels have. */
#include "comm/nccl/plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ABORT_MS 4000
#define DRIVER_MS 1000 /* for it to leave */
#define UNLOAD_MS 5000 /* for the other ranks to finish, too */

static struct {
    pthread_mutex_t lock;
    ls__nccl_group *groups;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

void ls__nccl_enter(ls__nccl_group *g)
{
    pthread_mutex_lock(&process.lock);
    g->next = process.groups;
    process.groups = g;
    pthread_mutex_unlock(&process.lock);
}

void ls__nccl_leave(ls__nccl_group *g)
{
    pthread_mutex_lock(&process.lock);
    for (ls__nccl_group **at = &process.groups; *at != NULL; at = &(*at)->next) {
        if (*at == g) {
            *at = g->next;
            break;
        }
    }
    pthread_mutex_unlock(&process.lock);
}

/* The driver leaves first unless a call holds it, since the communicator is gone afterwards; and so
 * does a thread that records. */
static void *abort_main(void *group)
{
    ls__nccl_group *g = group;
    char error[LS_BACKEND_ERROR_MAX];
    for (int ms = 0; ms < DRIVER_MS && !atomic_load_explicit(&g->ended, memory_order_acquire);
         ms++) {
        ls__nccl_nap(1000);
    }
    const bool taken = atomic_load_explicit(&g->ended, memory_order_acquire) &&
                       ls__nccl_take_call(g, 0, error) == LS_OK;
    const ls__nccl_comm comm = atomic_exchange_explicit(&g->comm, NULL, memory_order_acq_rel);
    if (comm != NULL) {
        (void)ls__cuda.context_set(g->context);
        (void)ls__nccl.abort(comm);
    }
    if (taken) {
        pthread_mutex_unlock(&g->call);
    }
    atomic_store_explicit(&g->aborted, true, memory_order_release);
    return NULL;
}

/* Nothing of the group goes on; its thread leaves as soon as a call returns. */
static void kill_group(ls__nccl_group *g)
{
    pthread_t thread;
    pthread_mutex_lock(&g->lock);
    const bool before = atomic_exchange_explicit(&g->dead, true, memory_order_acq_rel);
    const bool ended = !g->has_driver || atomic_load_explicit(&g->ended, memory_order_relaxed);
    atomic_store_explicit(&g->stop, true, memory_order_release);
    pthread_cond_signal(&g->work);
    pthread_mutex_unlock(&g->lock);
    if (before) {
        return;
    }
    if (!g->has_driver) {
        atomic_store_explicit(&g->ended, true, memory_order_release);
    }
    if (ended || pthread_create(&thread, NULL, abort_main, g) != 0) {
        (void)abort_main(g);
    } else {
        (void)pthread_detach(thread);
    }
}

/* Of a group whose driver has left: whether the device has ended all it was given. */
static bool have_kernels_ended(const ls__nccl_group *g)
{
    (void)ls__cuda.context_set(g->context);
    for (const ls__nccl_request *q = g->all; q != NULL; q = q->next) {
        if (ls__cuda.event_query(q->end) == LS__CUDA_NOT_READY) {
            return false;
        }
    }
    return true;
}

/* Whether nothing of the group goes on; `whole`: and it may be freed. */
static bool is_quiet(const ls__nccl_group *g, bool whole)
{
    return atomic_load_explicit(&g->ended, memory_order_acquire) &&
           (atomic_load_explicit(&g->aborted, memory_order_acquire) ||
            (!whole && atomic_load_explicit(&g->recorded, memory_order_relaxed) &&
             have_kernels_ended(g)));
}

static void end_process(const ls__nccl_group *g)
{
    const bool calls = !atomic_load_explicit(&g->ended, memory_order_acquire);
    const char *call = atomic_load_explicit(&g->calling, memory_order_relaxed);
    (void)fprintf(stderr,
                  "lockstep: backend \"nccl\": rank %d ends: %s of group \"%s\" has not returned "
                  "within %d s after the failure, and the GPU may still use the group's buffers\n",
                  g->world_rank, calls && call != NULL ? call : "ncclCommAbort", g->name,
                  ABORT_MS / 1000);
    (void)fflush(NULL);
    _exit(1);
}

static void wait_for(const ls__nccl_group *g, bool whole, int *left_ms)
{
    for (; !is_quiet(g, whole); (*left_ms)--) {
        if (*left_ms <= 0) {
            end_process(g);
        }
        ls__nccl_nap(1000);
    }
}

/* In the end no group has a request: those of the failed one are freed by the caller's close. */
void ls__nccl_abort(void *group)
{
    int left_ms = ABORT_MS;
    (void)group;
    pthread_mutex_lock(&process.lock);
    for (ls__nccl_group *g = process.groups; g != NULL; g = g->next) {
        kill_group(g);
    }
    for (const ls__nccl_group *g = process.groups; g != NULL; g = g->next) {
        wait_for(g, false, &left_ms);
    }
    pthread_mutex_unlock(&process.lock);
}

void ls__nccl_abort_one(ls__nccl_group *g)
{
    int left_ms = ABORT_MS;
    kill_group(g);
    wait_for(g, true, &left_ms);
}

/* Groups that were closed in order are still being finalized, with the other ranks. */
void ls__nccl_unload(bool failed)
{
    for (int ms = 0; ms < UNLOAD_MS && !failed; ms++) {
        pthread_mutex_lock(&process.lock);
        const bool none = process.groups == NULL;
        pthread_mutex_unlock(&process.lock);
        if (none) {
            return;
        }
        ls__nccl_nap(1000);
    }
}

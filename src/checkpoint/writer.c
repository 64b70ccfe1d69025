/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's thread: sleeps on `state`, runs the commit of a save, and keeps its error for the
 * next public call. Started by the first asynchronous save, ended with the object.
 *
 *     IDLE ──(save: the user's thread)──▶ BUSY ──(written: the writer)──▶ IDLE ──(free)──▶ STOP
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "checkpoint/internal.h"

/* The release store publishes everything this side wrote; it pairs with the acquire loads below.
 * One waiter at most is parked: the user's thread or the writer's. */
static void set_state(ls_checkpoint *c, uint32_t state)
{
    atomic_store_explicit(&c->state, state, memory_order_release);
    c->env->wake(c->env, &c->state, 1);
}

/* The message is thread-local, so it is copied for the thread that will report it. */
static void keep_error(ls_checkpoint *c, ls_status status)
{
    c->status = status;
    if (status < 0) {
        (void)snprintf(c->message, sizeof c->message, "%s", ls_error_message());
    }
}

/* The thread's main loop. Between reading IDLE and parking, the state may change; park compares
 * it with the expected value and returns at once then. */
static void run_writer(void *arg)
{
    ls_checkpoint *c = arg;
    ls__runtime_attach_background(c->runtime);
    for (;;) {
        uint32_t state = atomic_load_explicit(&c->state, memory_order_acquire);
        if (state == LS__CHECKPOINT_STOP) {
            break;
        }
        if (state == LS__CHECKPOINT_BUSY) {
            keep_error(c, ls__checkpoint_commit(c));
            set_state(c, LS__CHECKPOINT_IDLE);
        } else {
            (void)c->env->park(c->env, &c->state, state, LS__NEVER);
        }
    }
    (void)ls_runtime_attach(NULL);
}

/* The state must be IDLE: the caller has joined the previous save. After BUSY is set, the caller
 * must not touch the object before joining. */
ls_status ls__writer_start(ls_checkpoint *c)
{
    LS_ASSERT(atomic_load_explicit(&c->state, memory_order_relaxed) == LS__CHECKPOINT_IDLE);
    if (c->thread == NULL) {
        int error = c->env->thread_start(c->env, "ls-checkpoint", run_writer, c, &c->thread);
        if (error < 0) {
            c->thread = NULL;
            return ls__fail(LS_ERR_SYSTEM,
                            "checkpoint: the writer thread could not be started: %s; async = false "
                            "works without one",
                            strerror(-error));
        }
    }
    set_state(c, LS__CHECKPOINT_BUSY);
    return LS_OK;
}

/* Returns at once if no save is running. The error is reported once and then forgotten. Every wait
 * within the writing has a deadline, so this one ends too. */
ls_status ls__writer_join(ls_checkpoint *c)
{
    while (atomic_load_explicit(&c->state, memory_order_acquire) == LS__CHECKPOINT_BUSY) {
        (void)c->env->park(c->env, &c->state, LS__CHECKPOINT_BUSY, LS__NEVER);
    }
    ls_status status = c->status;
    c->status = LS_OK;
    return status < 0 ? ls__fail_again(status, c->message) : LS_OK;
}

/* Call it after ls__writer_join: STOP would otherwise overwrite BUSY and the save would be lost. */
void ls__writer_stop(ls_checkpoint *c)
{
    LS_ASSERT(atomic_load_explicit(&c->state, memory_order_relaxed) == LS__CHECKPOINT_IDLE);
    if (c->thread != NULL) {
        set_state(c, LS__CHECKPOINT_STOP);
        c->env->thread_join(c->env, c->thread);
        c->thread = NULL;
    }
}

/* The writer's thread: sleeps on `state`, runs the commit of a save, and keeps its error for the
 * next public call. Started by the first save, ended with the object.
 *
 *     IDLE ──(save: the user's thread)──▶ BUSY ──(written: the writer)──▶ IDLE ──(free)──▶ STOP
 *
 * A system call about a file cannot be cancelled, so a file system that hangs takes the thread with
 * it. The thread that waits looks at `disk`: once a step at the file system has taken timeout_ms, a
 * CAS makes it LOST. Then the object belongs to the waiting thread, except for the memory that the
 * system call uses, which is never freed; a writer that comes back finds LOST and sleeps for ever.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "checkpoint/internal.h"
#include "comm/api/collective.h"

#define DISK_MASK ((uint64_t)7) /* of `disk`: what; the other bits are the time of its begin */

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
static void run(void *arg)
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
        int error = c->env->thread_start(c->env, "ls-checkpoint", run, c, &c->thread);
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

/* ---- the deadline of the file system ------------------------------------------------------- */

/* Release: a waiting thread that takes the object from here sees all that was written before. */
void ls__disk_begin(ls_checkpoint *c, ls__checkpoint_disk what)
{
    const uint64_t since = c->env->now_ns(c->env) & ~DISK_MASK;
    LS_ASSERT(atomic_load_explicit(&c->disk, memory_order_relaxed) == LS__DISK_NONE);
    atomic_store_explicit(&c->disk, since | (uint64_t)what, memory_order_release);
}

/* Does not return when the waiting thread was faster: nothing here is this thread's any more. */
void ls__disk_end(ls_checkpoint *c)
{
    const ls__env *env = c->env;
    uint64_t seen = atomic_load_explicit(&c->disk, memory_order_relaxed);
    if (seen != LS__DISK_LOST &&
        atomic_compare_exchange_strong_explicit(&c->disk, &seen, LS__DISK_NONE,
                                                memory_order_acq_rel, memory_order_acquire)) {
        return;
    }
    for (;;) {
        (void)env->park(env, &c->state, LS__CHECKPOINT_BUSY, LS__NEVER);
    }
}

bool ls__writer_lost(const ls_checkpoint *c)
{
    return atomic_load_explicit(&c->disk, memory_order_acquire) == LS__DISK_LOST;
}

/* The file or folder that a step of the writing is about. */
static void path_of(const ls_checkpoint *c, ls__checkpoint_disk what,
                    char out[LS__CHECKPOINT_PATH_MAX])
{
    char temporary[LS__CHECKPOINT_PATH_MAX], own[LS__MANIFEST_FILE_NAME_MAX];
    ls__folder_temporary(c, temporary);
    ls__state_file_name(own, c->rank, c->size);
    const char *name = what == LS__DISK_OWN       ? own
                       : what == LS__DISK_SCALARS ? LS__CHECKPOINT_SCALARS
                                                  : LS__MANIFEST_NAME;
    if (what == LS__DISK_FOLDER || what == LS__DISK_TEMPORARY) {
        (void)snprintf(out, LS__CHECKPOINT_PATH_MAX, "%s",
                       what == LS__DISK_FOLDER ? c->folder : temporary);
    } else {
        ls__path_join(out, temporary, name);
    }
}

/* After the CAS: `disk` was LOST's predecessor. The group is aborted, so that the other ranks return
 * this error and need not wait for their own deadline. The runtime outlives the thread that hangs,
 * which may still log. */
static ls_status lose(ls_checkpoint *c, ls__checkpoint_disk what)
{
    char path[LS__CHECKPOINT_PATH_MAX];
    LS_ASSERT(what > LS__DISK_NONE && what < LS__DISK_LOST);
    path_of(c, what, path);
    c->runtime->kept = true;
    const ls_status status = ls__fail(
        LS_ERR_TIMEOUT,
        "checkpoint: the file system of \"%s\" has not answered for %lld ms (timeout_ms) while "
        "step "
        "%lld was saved; that save is lost, complete checkpoints are unchanged. Check the disk, or "
        "the server that it is mounted from, then start the job again",
        path, (long long)c->set.timeout_ms, (long long)c->step);
    keep_error(c, status);
    ls__group_record_failure(c->group, status, c->message);
    (void)ls_group_abort(c->group, c->message);
    return ls__fail_again(status, c->message);
}

/* Waits until the state or the step at the file system may have changed. True: the file system has
 * run out of time, and the object was taken from the writer; *what says where that hangs. */
static bool wait_once(ls_checkpoint *c, ls__checkpoint_disk *what)
{
    const ls__env *env = c->env;
    uint64_t seen = atomic_load_explicit(&c->disk, memory_order_acquire);
    const uint64_t now = env->now_ns(env), since = seen == LS__DISK_NONE ? now : seen & ~DISK_MASK;
    const uint64_t deadline = ls__time_after(since, c->set.timeout_ms);
    *what = (ls__checkpoint_disk)(seen & DISK_MASK);
    if (seen != LS__DISK_NONE && now >= deadline) {
        return atomic_compare_exchange_strong_explicit(&c->disk, &seen, LS__DISK_LOST,
                                                       memory_order_acq_rel, memory_order_acquire);
    }
    (void)env->park(env, &c->state, LS__CHECKPOINT_BUSY, deadline);
    return false;
}

/* Returns at once if no save is running. The error is reported once and then forgotten, unless the
 * thread hangs: then every call returns it. The wait ends: each step at the file system has the
 * deadline of wait_once, and each operation of the group has one of its own. */
ls_status ls__writer_join(ls_checkpoint *c)
{
    ls__checkpoint_disk what;
    if (ls__writer_lost(c)) {
        return ls__fail_again(c->status, c->message);
    }
    while (atomic_load_explicit(&c->state, memory_order_acquire) == LS__CHECKPOINT_BUSY) {
        if (wait_once(c, &what)) {
            return lose(c, what);
        }
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

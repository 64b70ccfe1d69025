/* SPDX-License-Identifier: Apache-2.0 */
/* The host agent as a thread: its loop, its start and its end.
 *
 *     LOCAL     the ranks of this host come to the local rendezvous    agent_thread_gather.c
 *     HOSTS     the hosts come to the rendezvous (one host: skipped)
 *     RUNNING   store, processes, root cause, the other hosts          job/agent
 *     OVER      the thread ends: all have left, or gathering failed */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "job/bootstrap/agent_thread_internal.h"
#include "job/name_folder.h"

#define RETRY_MS 20   /* between two attempts to listen by a name that is in use */
#define BUSY_MS 3000  /* how long a name may be in use: its owner listens only while ranks gather */
#define FIXED_ITEMS 2 /* of the poll loop: the event and the listener */
#define LEAVE_MS 2000 /* after a failure: time for the others to read the root cause */

/* ---- leaving ------------------------------------------------------------------------------- */

/* Whether every rank of this host has finished ls_finalize, or has ended. */
static bool all_left(const ls__agent_thread *t)
{
    for (int l = 0; l < t->host.ranks; l++) {
        const _Atomic uint32_t *life = &t->host.board->rank[l].life;
        if (!t->host.rank[l].ended &&
            atomic_load_explicit(life, memory_order_acquire) != LS__LIFE_LEFT) {
            return false;
        }
    }
    return true;
}

/* Whether no other host needs this one any more. The first host announces the end; there is no
 * restart, because restarting is the launcher's decision. */
static bool hosts_left(ls__agent_thread *t)
{
    const char *tail = "";
    const ls__nodes_end end = {.again = false};
    const ls__host_agent_leave leave = ls__host_agent_may_leave(&t->host, "", &tail);
    if (leave == LS__LEAVE_DECIDE) {
        ls__nodes_finish(t->host.nodes, &end);
        ls__nodes_flush(t->host.nodes);
        return ls__nodes_state_of(t->host.nodes) == LS__NODES_ENDED;
    }
    return leave == LS__LEAVE_OVER;
}

/* Local rank 0, whose process this is, ends only after the thread: for the root cause it has ended
 * once it leaves, which it also does when its ls_init has failed. */
static void take_own_end(ls__agent_thread *t)
{
    /* Sync: acquire; pairs with ls__agent_thread_end. */
    const bool leaving = atomic_load_explicit(&t->leaving, memory_order_acquire) != 0;
    if (leaving && !t->host.rank[0].ended) {
        ls__host_agent_note_end(&t->host, 0, NULL);
    }
}

/* The agent outlives the ranks that it serves: it ends when all of this host and all hosts have
 * left. After a failure ranks may never leave, so it waits only a moment for them to read the
 * root cause. */
static void check_end(ls__agent_thread *t)
{
    /* Sync: acquire; pairs with ls__agent_thread_end. */
    const bool leaving = atomic_load_explicit(&t->leaving, memory_order_acquire) != 0;
    LS_ASSERT(t->phase == LS__AGENT_RUNNING);
    if (leaving && t->host.has_cause && t->leave_ns == LS__NEVER) {
        t->leave_ns = ls__deadline_after(t->host.env, LEAVE_MS);
    }
    if ((all_left(t) && hosts_left(t) && leaving) ||
        t->host.env->now_ns(t->host.env) >= t->leave_ns) {
        t->phase = LS__AGENT_OVER;
    }
}

/* ---- the loop ------------------------------------------------------------------------------ */

/* A descriptor of -1 keeps its place in the array and is ignored by poll. */
static void add_item(ls__agent_thread *t, int *count, int fd)
{
    LS_ASSERT(*count < t->item_room);
    t->items[(*count)++] = (ls__env_poll){.fd = fd, .want_read = fd >= 0};
}

typedef struct layout { /* where the parts' items stand */
    int newcomers, host, count;
} layout;

/* The items stand in a fixed order: event, listener, newcomers, local ranks, then those of the
 * host agent. ls__agent_thread_gather relies on the order. */
static layout fill_items(ls__agent_thread *t, uint64_t *deadline)
{
    layout at = {.newcomers = FIXED_ITEMS};
    add_item(t, &at.count, t->event_fd);
    add_item(t, &at.count, t->listen_fd);
    for (int i = 0; i < LS__NEWCOMERS_MAX; i++) {
        add_item(t, &at.count, t->newcomer[i]);
    }
    for (int l = 0; l < t->host.ranks; l++) {
        add_item(t, &at.count, t->local[l].fd);
    }
    at.host = at.count;
    at.count +=
        ls__host_agent_poll(&t->host, t->items + at.count, t->item_room - at.count, deadline);
    return at;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* One turn of the loop: waits for events or the next deadline, then serves every part. */
static void turn(ls__agent_thread *t)
{
    const ls__env *env = t->host.env;
    uint64_t deadline = t->phase == LS__AGENT_LOCAL ? least(t->deadline_ns, t->warn_ns) : LS__NEVER;
    deadline = least(deadline, t->leave_ns);
    const layout at = fill_items(t, &deadline);
    (void)env->poll(env, t->items, at.count, deadline);
    if (t->items[0].can_read) {
        env->event_clear(env, t->event_fd);
    }
    ls__host_agent_turn(&t->host, t->items + at.host, at.count - at.host);
    if (t->phase == LS__AGENT_RUNNING) {
        take_own_end(t);
        ls__host_agent_conclude(&t->host);
        check_end(t);
    } else {
        ls__agent_thread_gather(t, t->items + at.newcomers);
    }
}

/* The thread's main. Only this thread touches the agent, except for `leaving`. */
static void run_agent(void *arg)
{
    ls__agent_thread *t = arg;
    while (t->phase != LS__AGENT_OVER) {
        turn(t);
    }
}

/* ---- life ---------------------------------------------------------------------------------- */

/* The name may still be held by the ranks of a former job that are about to end, so a name in
 * use is tried again for a while. The message then names the process that holds it. */
static ls_status listen_by_name(ls__agent_thread *t)
{
    const ls__env *env = t->host.env;
    const uint64_t busy_ns = ls__deadline_after(env, BUSY_MS);
    const uint64_t deadline = busy_ns < t->deadline_ns ? busy_ns : t->deadline_ns;
    do {
        t->listen_fd = env->host_listen(env, t->name);
        if (t->listen_fd != -EADDRINUSE) {
            break;
        }
        env->sleep_until(env, ls__deadline_after(env, RETRY_MS));
    } while (env->now_ns(env) < deadline);
    if (t->listen_fd >= 0) {
        return LS_OK;
    }
    if (t->listen_fd == -EPERM) {
        return ls__name_folder_fail(env, "ls_init");
    }
    pid_t pid = 0;
    int fd = env->host_connect(env, t->name);
    if (fd >= 0) {
        (void)env->peer_pid(env, fd, &pid);
        env->close(env, fd);
    }
    return ls__fail(LS_ERR_STATE,
                    "ls_init: %s, but process %ld already gathers the ranks of a job with these "
                    "settings on this host (%s): either two jobs use the same settings, or two "
                    "processes are local rank 0; give each job its own MASTER_PORT",
                    t->detected.why, (long)pid, strerror(-t->listen_fd));
}

/* Releases also what a failed set_up had opened. The thread has ended, or was never started. */
static void thread_free(ls__agent_thread *t, const ls__env *env)
{
    ls__host_agent_fini(&t->host);
    if (t->listen_fd >= 0) {
        env->host_unlisten(env, t->listen_fd, t->name);
    }
    if (t->event_fd >= 0) {
        env->close(env, t->event_fd);
    }
    for (int i = 0; i < LS__NEWCOMERS_MAX; i++) {
        if (t->newcomer[i] >= 0) {
            env->close(env, t->newcomer[i]);
        }
    }
    if (t->items != NULL) {
        env->release(env, t->items, (size_t)t->item_room * sizeof *t->items);
    }
    explicit_bzero(t->detected.secret, sizeof t->detected.secret);
    env->release(env, t, sizeof *t);
}

/* Everything that can fail before the thread runs: the caller learns of it as an error of
 * ls_init. */
static ls_status set_up(ls__agent_thread *t, const ls__env *env)
{
    const ls__detected *detected = &t->detected;
    LS_TRY(ls__host_agent_init(&t->host, env, detected->launcher, detected->local_size,
                               detected->attempt));
    t->item_room =
        FIXED_ITEMS + LS__NEWCOMERS_MAX + LS__HOST_AGENT_ITEMS + 2 * detected->local_size;
    t->items = env->allocate(env, (size_t)t->item_room * sizeof *t->items);
    t->event_fd = env->event_open(env);
    if (t->items == NULL || t->event_fd < 0) {
        return ls__fail(LS_ERR_SYSTEM,
                        "ls_init: cannot set up the host agent: no memory or no descriptors");
    }
    ls__local_name(detected, t->name, sizeof t->name);
    return listen_by_name(t);
}

/* The launcher's name is a literal of detect.c; all other strings are copied. */
static void init_fields(ls__agent_thread *t, const ls__env *env, const ls__detected *detected,
                        uint64_t deadline_ns)
{
    memset(t, 0, sizeof *t);
    t->detected = *detected;
    t->deadline_ns = deadline_ns;
    t->leave_ns = LS__NEVER;
    t->warn_ns = ls__deadline_after(env, LS__GATHER_WARN_MS);
    t->event_fd = t->listen_fd = -1;
    for (int i = 0; i < LS__NEWCOMERS_MAX; i++) {
        t->newcomer[i] = -1;
    }
    for (int l = 0; l < LS__BOARD_RANKS_MAX; l++) {
        t->local[l].fd = -1;
    }
}

/* Runs in local rank 0 only. That rank then joins like the others, through the local rendezvous,
 * so there is one path for all. */
ls_status ls__agent_thread_start(const ls__env *env, const ls__detected *detected,
                                 uint64_t deadline_ns, ls__agent_thread **out)
{
    ls__agent_thread *t = env->allocate(env, sizeof *t);
    if (t == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for the host agent");
    }
    init_fields(t, env, detected, deadline_ns);
    ls_status status = set_up(t, env);
    const int error = status < 0 ? 0 : env->thread_start(env, "ls-agent", run_agent, t, &t->thread);
    if (error < 0) {
        status = ls__fail(LS_ERR_SYSTEM, "ls_init: cannot start the host agent's thread: %s",
                          strerror(-error));
    }
    if (status < 0) {
        thread_free(t, env);
        return status;
    }
    *out = t;
    return LS_OK;
}

/* Blocks until the agent is no longer needed: this process may not exit before, because the
 * other ranks of the host depend on the store and on the failures that the agent announces. */
void ls__agent_thread_end(ls__agent_thread *t)
{
    if (t == NULL) {
        return;
    }
    LS_ASSERT(t->thread != NULL);
    const ls__env *env = t->host.env;
    /* Sync: release; pairs with check_end and ls__agent_thread_gather. */
    atomic_store_explicit(&t->leaving, 1, memory_order_release);
    env->event_set(env, t->event_fd);
    env->thread_join(env, t->thread);
    thread_free(t, env);
}

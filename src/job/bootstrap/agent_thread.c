/* A thread, and one loop:
 *
 *     LOCAL     the ranks of this host come to the local rendezvous    agent_thread_gather.c
 *     HOSTS     the hosts come to the rendezvous (of one: skipped)
 *     RUNNING   store, processes, root cause, the other hosts          job/agent
 *     OVER      local rank 0 has called ls_finalize, and nobody needs it any more
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "job/bootstrap/agent_thread_internal.h"
#include "job/name_folder.h"

#define RETRY_MS 20
#define FIXED_ITEMS 2
#define LEAVE_MS 2000 /* after a failure, for the others to hear of it */

/* ---- leaving ------------------------------------------------------------------------------- */

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

/* Nothing restarts here: that is the launcher's to decide. */
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

static void look_for_the_end(ls__agent_thread *t)
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

static void add_item(ls__agent_thread *t, int *count, int fd)
{
    LS_ASSERT(*count < t->item_room);
    t->items[(*count)++] = (ls__env_poll){.fd = fd, .want_read = fd >= 0};
}

typedef struct layout { /* where the parts' items stand */
    int newcomers, host, count;
} layout;

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
        ls__host_agent_conclude(&t->host);
        look_for_the_end(t);
    } else {
        ls__agent_thread_gather(t, t->items + at.newcomers);
    }
}

static void run(void *arg)
{
    ls__agent_thread *t = arg;
    while (t->phase != LS__AGENT_OVER) {
        turn(t);
    }
}

/* ---- life ---------------------------------------------------------------------------------- */

/* The name may still be held by ranks of a job before, that are about to end. */
static ls_status listen_by_name(ls__agent_thread *t)
{
    const ls__env *env = t->host.env;
    do {
        t->listen_fd = env->host_listen(env, t->name);
        if (t->listen_fd != -EADDRINUSE) {
            break;
        }
        env->sleep_until(env, ls__deadline_after(env, RETRY_MS));
    } while (env->now_ns(env) < t->deadline_ns);
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
                    "ls_init: %s, and process %ld gathers the ranks of such a job on this host "
                    "already (%s): two jobs have the same numbers, or one process the local rank 0 "
                    "of another; give each job its own MASTER_PORT",
                    t->found.why, (long)pid, strerror(-t->listen_fd));
}

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
    env->release(env, t, sizeof *t);
}

static ls_status set_up(ls__agent_thread *t, const ls__env *env)
{
    const ls__found *found = &t->found;
    LS_TRY(ls__host_agent_init(&t->host, env, found->launcher, found->local_size, found->attempt));
    t->item_room = FIXED_ITEMS + LS__NEWCOMERS_MAX + LS__HOST_AGENT_ITEMS + 2 * found->local_size;
    t->items = env->allocate(env, (size_t)t->item_room * sizeof *t->items);
    t->event_fd = env->event_open(env);
    if (t->items == NULL || t->event_fd < 0) {
        return ls__fail(LS_ERR_SYSTEM, "ls_init: the agent of this host's ranks: no memory or no "
                                       "descriptors");
    }
    ls__local_name(found, t->name, sizeof t->name);
    return listen_by_name(t);
}

/* The launcher's name is a literal of detect.c; the rest is copied. */
static void fill_in(ls__agent_thread *t, const ls__env *env, const ls__found *found,
                    uint64_t deadline_ns)
{
    memset(t, 0, sizeof *t);
    t->found = *found;
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

ls_status ls__agent_thread_start(const ls__env *env, const ls__found *found, uint64_t deadline_ns,
                                 ls__agent_thread **out)
{
    ls__agent_thread *t = env->allocate(env, sizeof *t);
    if (t == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: the agent of this host's ranks");
    }
    fill_in(t, env, found, deadline_ns);
    ls_status status = set_up(t, env);
    const int error = status < 0 ? 0 : env->thread_start(env, "ls-agent", run, t, &t->thread);
    if (error < 0) {
        status = ls__fail(LS_ERR_SYSTEM, "ls_init: the thread of this host's agent: %s",
                          strerror(-error));
    }
    if (status < 0) {
        thread_free(t, env);
        return status;
    }
    *out = t;
    return LS_OK;
}

void ls__agent_thread_end(ls__agent_thread *t)
{
    if (t == NULL) {
        return;
    }
    const ls__env *env = t->host.env;
    /* Sync: release; pairs with look_for_the_end and ls__agent_thread_gather. */
    atomic_store_explicit(&t->leaving, 1, memory_order_release);
    env->event_set(env, t->event_fd);
    env->thread_join(env, t->thread);
    thread_free(t, env);
}

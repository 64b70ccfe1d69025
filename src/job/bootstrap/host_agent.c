/* A thread, and one loop:
 *
 *     HERE      the ranks of this host come to the meeting             steward_gather.c
 *     THERE     the hosts come to the rendezvous (of one: skipped)
 *     RUNNING   store, processes, verdict, the other hosts             steward_judge.c
 *     OVER      local rank 0 has called ls_finalize, and nobody needs it any more
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "job/bootstrap/host_agent_internal.h"

#define RETRY_MS 20
#define FIXED_ITEMS 3

/* ---- the loop ------------------------------------------------------------------------------ */

static ls__env_poll *add_item(ls__host_agent *s, int *count, int fd)
{
    LS_ASSERT(*count < s->item_room);
    s->items[*count] = (ls__env_poll){.fd = fd, .want_read = fd >= 0};
    return &s->items[(*count)++];
}

typedef struct layout {
    int strangers, members, store, count;
} layout;

static layout fill_items(ls__host_agent *s, uint64_t *deadline)
{
    layout at = {.count = 0};
    add_item(s, &at.count, s->event_fd);
    add_item(s, &at.count, s->listen_fd);
    add_item(s, &at.count, s->nodes != NULL ? ls__nodes_fd(s->nodes) : -1);
    at.strangers = at.count;
    for (int i = 0; i < LS__STRANGERS_MAX; i++) {
        add_item(s, &at.count, s->stranger[i]);
    }
    at.members = at.count;
    for (int l = 0; l < s->found.local_size; l++) {
        const ls__host_member *m = &s->member[l];
        add_item(s, &at.count, s->phase == LS__HOST_AGENT_RUNNING || !m->came ? m->pidfd : m->fd);
    }
    at.store = at.count;
    at.count +=
        ls__store_server_poll(s->store, s->items + at.count, s->item_room - at.count, deadline);
    return at;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void take_ends(ls__host_agent *s, const ls__env_poll *items)
{
    for (int l = 0; l < s->found.local_size; l++) {
        ls__host_member *m = &s->member[l];
        if (m->pidfd >= 0 && items[l].can_read) {
            m->ended = true;
            s->env->close(s->env, m->pidfd);
            m->pidfd = -1;
        }
    }
}

static void turn(ls__host_agent *s)
{
    uint64_t deadline =
        s->phase == LS__HOST_AGENT_HERE ? least(s->deadline_ns, s->warn_ns) : LS__NEVER;
    layout at = fill_items(s, &deadline);
    deadline = least(deadline, least(s->settle_ns, s->leave_ns));
    if (s->nodes != NULL) {
        deadline = least(deadline, ls__nodes_deadline(s->nodes));
    }
    (void)s->env->poll(s->env, s->items, at.count, deadline);
    if (s->items[0].can_read) {
        s->env->event_clear(s->env, s->event_fd);
    }
    if (s->nodes != NULL) {
        ls__nodes_turn(s->nodes);
    }
    if (s->phase == LS__HOST_AGENT_RUNNING) {
        take_ends(s, s->items + at.members);
        ls__store_server_turn(s->store, s->items + at.store, at.count - at.store);
        ls__host_agent_judge(s);
        if (s->nodes != NULL) {
            ls__nodes_flush(s->nodes);
        }
        ls__host_agent_look_for_the_end(s);
    } else {
        ls__host_agent_gather(s, s->items + at.strangers);
    }
}

static void run(void *arg)
{
    ls__host_agent *s = arg;
    while (s->phase != LS__HOST_AGENT_OVER) {
        turn(s);
    }
}

/* ---- life ---------------------------------------------------------------------------------- */

/* The name may still be held by ranks of a job before, that are about to end. */
static ls_status listen_by_name(ls__host_agent *s)
{
    const ls__env *env = s->env;
    do {
        s->listen_fd = env->host_listen(env, s->name);
        if (s->listen_fd != -EADDRINUSE) {
            break;
        }
        env->sleep_until(env, ls__deadline_after(env, RETRY_MS));
    } while (env->now_ns(env) < s->deadline_ns);
    if (s->listen_fd >= 0) {
        return LS_OK;
    }
    pid_t pid = 0;
    int fd = env->host_connect(env, s->name);
    if (fd >= 0) {
        (void)env->peer_pid(env, fd, &pid);
        env->close(env, fd);
    }
    return ls__fail(LS_ERR_STATE,
                    "ls_init: %s, and process %ld gathers the ranks of such a job on this host "
                    "already (%s): two jobs have the same numbers, or one process the local rank 0 "
                    "of another; give each job its own MASTER_PORT",
                    s->found.why, (long)pid, strerror(-s->listen_fd));
}

static void steward_free(ls__host_agent *s)
{
    const ls__env *env = s->env;
    ls__nodes_close(s->nodes);
    ls__store_server_free(s->store);
    ls__board_close(env, s->board);
    int fds[] = {s->listen_fd, s->event_fd, s->board_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (fds[i] >= 0) {
            env->close(env, fds[i]);
        }
    }
    for (int i = 0; i < LS__STRANGERS_MAX; i++) {
        if (s->stranger[i] >= 0) {
            env->close(env, s->stranger[i]);
        }
    }
    for (int l = 0; l < LS__BOARD_RANKS_MAX; l++) {
        if (s->member[l].pidfd >= 0) {
            env->close(env, s->member[l].pidfd);
        }
    }
    if (s->items != NULL) {
        env->release(env, s->items, (size_t)s->item_room * sizeof *s->items);
    }
    memset(s->secret, 0, sizeof s->secret);
    env->release(env, s, sizeof *s);
}

static ls_status set_up(ls__host_agent *s)
{
    const ls__env *env = s->env;
    s->item_room = FIXED_ITEMS + LS__STRANGERS_MAX + 2 * s->found.local_size + 2;
    s->items = env->allocate(env, (size_t)s->item_room * sizeof *s->items);
    s->event_fd = env->event_open(env);
    if (s->items == NULL || s->event_fd < 0) {
        return ls__fail(LS_ERR_SYSTEM, "ls_init: the steward of this host's ranks: no memory or no "
                                       "descriptors");
    }
    if (env->host_name(env, s->host, sizeof s->host) < 0) {
        snprintf(s->host, sizeof s->host, "localhost");
    }
    ls__local_name(env, &s->found, s->name, sizeof s->name);
    LS_TRY(ls__store_server_new(env, s->secret, &s->store));
    return listen_by_name(s);
}

ls_status ls__host_agent_start(const ls__env *env, const ls__found *found, uint64_t deadline_ns,
                               ls__host_agent **out)
{
    ls__host_agent *s = env->allocate(env, sizeof *s);
    if (s == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: the steward of this host's ranks");
    }
    memset(s, 0, sizeof *s);
    s->env = env;
    s->found = *found;
    s->deadline_ns = deadline_ns;
    s->settle_ns = s->leave_ns = LS__NEVER;
    s->warn_ns = ls__deadline_after(env, LS__HOST_AGENT_WARN_MS);
    s->reported = LS__FOUND_NONE;
    s->event_fd = s->listen_fd = s->board_fd = -1;
    for (int i = 0; i < LS__STRANGERS_MAX; i++) {
        s->stranger[i] = -1;
    }
    for (int l = 0; l < LS__BOARD_RANKS_MAX; l++) {
        s->member[l].fd = s->member[l].pidfd = -1;
    }
    ls_status status = set_up(s);
    int error = status < 0 ? 0 : env->thread_start(env, "ls-steward", run, s, &s->thread);
    if (error < 0) {
        status = ls__fail(LS_ERR_SYSTEM, "ls_init: the steward's thread: %s", strerror(-error));
    }
    if (status < 0) {
        steward_free(s);
        return status;
    }
    *out = s;
    return LS_OK;
}

void ls__host_agent_end(ls__host_agent *s)
{
    if (s == NULL) {
        return;
    }
    /* Sync: release; pairs with ls__host_agent_look_for_the_end. */
    atomic_store_explicit(&s->leaving, 1, memory_order_release);
    s->env->event_set(s->env, s->event_fd);
    s->env->thread_join(s->env, s->thread);
    steward_free(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's life, and its part of the owner's poll loop. */
#include "job/agent/host_agent.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/memory.h"
#include "trace/file.h"

/* ---- life ----------------------------------------------------------------------------------- */

/* Describes a world that consists of this host alone. With several hosts the first host sends
 * the actual description later. */
static ls_status lay_out(ls__host_agent *a, int attempt)
{
    const int error = a->env->random_bytes(a->env, &a->world.job, sizeof a->world.job);
    a->world.nodes = 1;
    a->world.attempt = attempt;
    return error < 0 ? ls__fail(LS_ERR_SYSTEM, "cannot draw a random number for the job: %s",
                                strerror(-error))
                     : LS_OK;
}

/* Resets the agent: no descriptor is open, no failure is known, this host decides alone. */
static void init_fields(ls__host_agent *a, const ls__env *env, const char *launcher, int ranks)
{
    LS_ASSERT(ranks >= 1 && ranks <= LS__BOARD_RANKS_MAX);
    memset(a, 0, sizeof *a);
    a->env = env;
    a->launcher = launcher;
    a->ranks = a->world.world_size = ranks;
    a->first = true;
    a->reported = LS__FAILURE_NONE;
    a->settle_ns = LS__NEVER;
    a->board_fd = a->ends_fd = -1;
    for (int r = 0; r < LS__BOARD_RANKS_MAX; r++) {
        a->rank[r].pidfd = -1;
    }
}

/* Opens what does not depend on other hosts. On failure the caller still calls
 * ls__host_agent_fini, which releases the parts that were opened. */
ls_status ls__host_agent_init(ls__host_agent *a, const ls__env *env, const char *launcher,
                              int ranks, int attempt)
{
    init_fields(a, env, launcher, ranks);
    if (env->host_name(env, a->name, sizeof a->name) < 0) {
        snprintf(a->name, sizeof a->name, "localhost");
    }
    a->ends_fd = env->poller_open(env);
    if (a->ends_fd < 0) {
        return ls__fail(LS_ERR_SYSTEM, "cannot watch the processes of the ranks: %s",
                        strerror(-a->ends_fd));
    }
    a->oom_kills = ls__memory_oom_kills(env);
    LS_TRY(ls__store_server_new(env, a->secret, &a->store));
    return lay_out(a, attempt);
}

/* Runs in each rank that survives the agent, all at once, so it opens nothing and owns nothing:
 * it only reads the board and records the ends that its caller sees. */
void ls__host_agent_stand_in(ls__host_agent *a, const ls__env *env, const char *launcher,
                             ls__board *board)
{
    init_fields(a, env, launcher, board->ranks);
    a->board = board;
    a->world.world_size = board->world_size;
    for (int r = 0; r < board->ranks; r++) {
        a->rank[r].pid = atomic_load_explicit(&board->rank[r].pid, memory_order_relaxed);
        ls__host_agent_watch(a, r);
    }
}

static void close_fd(const ls__env *env, int fd)
{
    if (fd >= 0) {
        env->close(env, fd);
    }
}

static int trace_part(void *arg, int rank)
{
    const ls__host_agent *a = arg;
    char key[32];
    snprintf(key, sizeof key, "trace/%d", rank);
    return ls__store_server_fd(a->store, key);
}

/* Of the ranks that have ended; also after a failure, when a trace is worth most. */
static void write_trace(ls__host_agent *a)
{
    if (a->store != NULL && a->board != NULL) {
        const ls__trace_job job = {.world_size = a->world.world_size,
                                   .node = a->world.node,
                                   .attempt = a->world.attempt,
                                   .part = trace_part,
                                   .arg = a};
        ls__trace_collect(a->env, &job);
    }
}

/* The secret is erased before the memory may be reused. */
void ls__host_agent_fini(ls__host_agent *a)
{
    if (a->env == NULL) {
        return;
    }
    write_trace(a);
    ls__nodes_close(a->nodes);
    ls__store_server_free(a->store);
    ls__board_close(a->env, a->board);
    for (int r = 0; r < LS__BOARD_RANKS_MAX; r++) {
        close_fd(a->env, a->rank[r].pidfd);
    }
    close_fd(a->env, a->ends_fd);
    close_fd(a->env, a->board_fd);
    explicit_bzero(a->secret, sizeof a->secret);
    a->env = NULL;
}

/* The hosts of a job share one secret, from which the first host derived the job's keys; a host
 * that is alone draws its own. Ranks receive it through a descriptor, never through the
 * environment. */
static ls_status take_secret(ls__host_agent *a)
{
    int error = 0;
    if (a->nodes != NULL) {
        a->world = *ls__nodes_world_of(a->nodes);
        memcpy(a->secret, ls__nodes_secret(a->nodes), sizeof a->secret);
    } else {
        error = a->env->random_bytes(a->env, a->secret, sizeof a->secret);
    }
    ls__store_server_set_secret(a->store, a->secret);
    return error < 0
               ? ls__fail(LS_ERR_SYSTEM, "cannot draw the secret of the job: %s", strerror(-error))
               : LS_OK;
}

/* From here on ranks may be started: the board describes the world, and the store accepts the
 * secret. Called once, when all hosts are present. */
ls_status ls__host_agent_make_board(ls__host_agent *a, const int *world_rank)
{
    const bool several = a->nodes != NULL;
    LS_ASSERT(a->board == NULL && (!several || ls__nodes_state_of(a->nodes) == LS__NODES_RUNNING));
    LS_TRY(take_secret(a));
    const ls__board_job job = {.ranks = a->ranks,
                               .world_size = a->world.world_size,
                               .first_rank = a->world.first_rank,
                               .world_rank = world_rank,
                               .generation = (uint32_t)a->world.attempt,
                               .number = a->world.job,
                               .launcher_pid = (int)a->env->pid(a->env),
                               .host = a->name,
                               .nodes = several ? a->world.nodes : 0,
                               .node = several ? a->world.node : 0,
                               .plain = a->plain,
                               .address = a->world.address};
    return ls__board_new(a->env, &job, &a->board_fd, &a->board);
}

/* ---- in the owner's loop --------------------------------------------------------------------- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The order of the items is fixed: ends, other hosts, store. ls__host_agent_turn relies on it. */
int ls__host_agent_poll(ls__host_agent *a, ls__env_poll *items, int room, uint64_t *deadline_ns)
{
    const int nodes_fd = a->nodes != NULL ? ls__nodes_fd(a->nodes) : -1;
    LS_ASSERT(room >= LS__HOST_AGENT_ITEMS);
    items[0] = (ls__env_poll){.fd = a->ends_fd, .want_read = true};
    items[1] = (ls__env_poll){.fd = nodes_fd, .want_read = nodes_fd >= 0};
    *deadline_ns = least(*deadline_ns, a->settle_ns);
    if (a->nodes != NULL) {
        *deadline_ns = least(*deadline_ns, ls__nodes_deadline(a->nodes));
    }
    return LS__HOST_AGENT_ITEMS + ls__store_server_poll(a->store, items + LS__HOST_AGENT_ITEMS,
                                                        room - LS__HOST_AGENT_ITEMS, deadline_ns);
}

/* The connections between hosts depend on heartbeats, so they get a turn even when no descriptor
 * is ready. */
void ls__host_agent_turn(ls__host_agent *a, const ls__env_poll *items, int count)
{
    LS_ASSERT(count >= LS__HOST_AGENT_ITEMS);
    ls__host_agent_take_ends(a);
    ls__store_server_turn(a->store, items + LS__HOST_AGENT_ITEMS, count - LS__HOST_AGENT_ITEMS);
    if (a->nodes != NULL) {
        ls__nodes_turn(a->nodes);
    }
}

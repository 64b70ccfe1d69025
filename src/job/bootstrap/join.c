/* SPDX-License-Identifier: Apache-2.0 */
/* Joining a world that another launcher started: torchrun, mpirun, srun, or a user who sets
 * their variables.
 *
 * Local rank 0 starts the host agent as a thread; then every rank, local rank 0 included, joins
 * through the local rendezvous. The other ranks watch the process of local rank 0, because no
 * agent is left to report its death. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "job/bootstrap/detect.h"
#include "job/bootstrap/local_rendezvous.h"
#include "job/bootstrap/methods.h"
#include "job/bootstrap/share.h"

/* The limit is the board's; it is checked here, where the message can say which variables gave
 * it. */
static ls_status check(const ls__detected *detected)
{
    if (detected->local_size > LS__BOARD_RANKS_MAX) {
        return ls__fail(
            LS_ERR_LIMIT,
            "ls_init: %s, but %d ranks on this host are too many; a host runs at most %d",
            detected->why, detected->local_size, LS__BOARD_RANKS_MAX);
    }
    return LS_OK;
}

/* Takes the board's descriptor. On failure the connection to the store is closed too, because
 * nothing else owns it yet. */
static ls_status open_board(const ls__env *env, ls__local_joined *met, ls__board **out)
{
    ls_status status = ls__board_open(env, met->board_fd, out);
    env->close(env, met->board_fd);
    if (status < 0) {
        env->close(env, met->fd);
        return ls__fail_within(status, "ls_init");
    }
    return LS_OK;
}

/* Fills in the rank's own entry of the board. `life` is stored last: peers and the agent read
 * the entry once the rank has joined. */
static void adopt(const ls__env *env, const ls__detected *detected, const ls__local_joined *met,
                  ls__boot *out)
{
    ls__board_rank *place = &out->board->rank[detected->local_rank];
    LS_ASSERT(detected->local_rank >= 0 && detected->local_rank < LS__BOARD_RANKS_MAX);
    out->rank = detected->rank;
    out->world_size = detected->size;
    out->local_size = detected->local_size;
    memcpy(out->secret, met->secret, sizeof out->secret);
    out->plain = out->board->plain != 0;
    snprintf(out->address, sizeof out->address, "%s", out->board->address);
    atomic_store_explicit(&place->pid, (int)env->pid(env), memory_order_relaxed);
    atomic_store_explicit(&place->life, LS__LIFE_JOINED, memory_order_release);
}

static ls_status join_met(const ls__env *env, const ls__detected *detected, uint64_t deadline_ns,
                          ls__local_joined *met, ls__boot *out)
{
    LS_TRY(open_board(env, met, &out->board));
    out->local_rank = detected->local_rank;
    LS_TRY(ls__store_connect(env, met->fd, met->secret, ls__time_left_ms(env, deadline_ns),
                             &out->store));
    if (detected->local_rank > 0 && met->host_pid > 0) {
        LS_TRY(ls__parent_watch_start(env, met->host_pid, out->board, detected->launcher,
                                      &out->watch));
    }
    adopt(env, detected, met, out);
    return LS_OK;
}

/* On failure the parts in *out stay open; the caller closes them with ls__bootstrap_close. */
static ls_status join(const ls__env *env, const ls__detected *detected, uint64_t deadline_ns,
                      ls__boot *out)
{
    ls__local_joined met;
    LS_TRY(ls__local_join(env, detected, deadline_ns, &met));
    const ls_status status = join_met(env, detected, deadline_ns, &met, out);
    if (status < 0 && out->board != NULL) {
        ls__boot_record_failure(env, &out->board->rank[out->local_rank], status);
    }
    explicit_bzero(&met, sizeof met);
    return status;
}

/* A world of one rank needs no agent, whatever the launcher says, so it is left to the last
 * method. The error text is saved over the clean-up, which may set one of its own. */
ls_status ls__bootstrap_others(const ls__env *env, int64_t timeout_ms, ls__boot *out)
{
    ls__detected detected;
    LS_TRY(ls__detect_here(env, &detected));
    if (strcmp(detected.launcher, "none") == 0 || strcmp(detected.launcher, "lockstep") == 0 ||
        detected.size == 1) {
        return LS_IN_PROGRESS;
    }
    LS_TRY(check(&detected));
    LS__INFO("ls_init: %s: started by %s, rank %d of %d, local rank %d of %d", detected.why,
             detected.launcher, detected.rank, detected.size, detected.local_rank,
             detected.local_size);
    uint64_t deadline = ls__deadline_after(env, timeout_ms);
    LS_TRY(ls__share_rendezvous(env, deadline, &detected));
    if (detected.local_rank == 0) {
        LS_TRY(ls__agent_thread_start(env, &detected, deadline, &out->agent));
    }
    ls_status status = join(env, &detected, deadline, out);
    ls__share_end(env, &detected);
    explicit_bzero(detected.secret, sizeof detected.secret);
    if (status < 0) {
        char text[LS__MESSAGE_MAX];
        snprintf(text, sizeof text, "%s", ls_error_message());
        ls__bootstrap_close(env, out);
        return ls__fail(status, "%s", text);
    }
    return LS_OK;
}

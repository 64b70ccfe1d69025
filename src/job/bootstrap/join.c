/* The way into worlds of other launchers: torchrun, mpirun, srun and who sets their variables. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "job/bootstrap/agent_thread.h"
#include "job/bootstrap/detect.h"
#include "job/bootstrap/local_rendezvous.h"
#include "job/bootstrap/parent_watch.h"
#include "job/bootstrap/ways.h"

static ls_status check(const ls__found *found)
{
    if (found->local_size > LS__BOARD_RANKS_MAX) {
        return ls__fail(LS_ERR_LIMIT, "ls_init: %s: %d ranks on this host; at most %d fit on one",
                        found->why, found->local_size, LS__BOARD_RANKS_MAX);
    }
    return LS_OK;
}

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

static void adopt(const ls__env *env, const ls__found *found, const ls__local_joined *met,
                  ls__boot *out)
{
    ls__board_rank *place = &out->board->rank[found->local_rank];
    out->rank = found->rank;
    out->world_size = found->size;
    out->local_rank = found->local_rank;
    out->local_size = found->local_size;
    memcpy(out->secret, met->secret, sizeof out->secret);
    out->plain = out->board->plain != 0;
    snprintf(out->address, sizeof out->address, "%s", out->board->address);
    atomic_store_explicit(&place->pid, (int)env->pid(env), memory_order_relaxed);
    atomic_store_explicit(&place->life, LS__LIFE_JOINED, memory_order_release);
}

static ls_status join(const ls__env *env, const ls__found *found, uint64_t deadline_ns,
                      ls__boot *out)
{
    ls__local_joined met;
    LS_TRY(ls__local_join(env, found, deadline_ns, &met));
    LS_TRY(open_board(env, &met, &out->board));
    LS_TRY(ls__store_connect(env, met.fd, met.secret, &out->store));
    if (found->local_rank > 0 && met.host_pid > 0) {
        LS_TRY(ls__parent_watch_start(env, met.host_pid, out->board, found->launcher, &out->watch));
    }
    adopt(env, found, &met, out);
    memset(&met, 0, sizeof met);
    return LS_OK;
}

ls_status ls__bootstrap_others(const ls__env *env, int64_t timeout_ms, ls__boot *out)
{
    ls__found found;
    LS_TRY(ls__detect_here(env, &found));
    if (strcmp(found.launcher, "none") == 0 || strcmp(found.launcher, "lockstep") == 0 ||
        found.size == 1) {
        return LS_IN_PROGRESS;
    }
    LS_TRY(check(&found));
    LS__INFO("ls_init: %s: started by %s, rank %d of %d, local rank %d of %d", found.why,
             found.launcher, found.rank, found.size, found.local_rank, found.local_size);
    uint64_t deadline = ls__deadline_after(env, timeout_ms);
    if (found.local_rank == 0) {
        LS_TRY(ls__agent_thread_start(env, &found, deadline, &out->agent));
    }
    ls_status status = join(env, &found, deadline, out);
    if (status < 0) {
        char text[LS__MESSAGE_MAX];
        snprintf(text, sizeof text, "%s", ls_error_message());
        ls__bootstrap_close(env, out);
        return ls__fail(status, "%s", text);
    }
    return LS_OK;
}

/* Until all ranks are there: the local rendezvous, then that of the hosts; and the reply that all get.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/text.h"
#include "job/bootstrap/agent_thread_internal.h"

/* ---- the local rendezvous ------------------------------------------------------------------ */

static void answer(const ls__env *env, int fd, ls_status status, const char *text)
{
    ls__local_reply reply = {.magic = LS__LOCAL_MAGIC, .status = status};
    snprintf(reply.text, sizeof reply.text, "%s", text);
    (void)env->send(env, fd, &reply, sizeof reply, -1);
}

/* Nobody joins: all that are here, and those still to come while local rank 0 waits, are told. */
static void give_up(ls__agent_thread *t, ls_status status, const char *text)
{
    for (int l = 0; l < t->found.local_size; l++) {
        ls__local_rank *m = &t->local[l];
        if (m->came && m->fd >= 0) {
            answer(t->host.env, m->fd, status, text);
            t->host.env->close(t->host.env, m->fd);
            m->fd = -1;
        }
    }
    t->phase = LS__AGENT_OVER;
}

static void missing_text(const ls__agent_thread *t, char *out, size_t bytes)
{
    ls__text to = {out, bytes};
    int count = 0;
    out[0] = '\0';
    for (int l = 0; l < t->found.local_size; l++) {
        if (!t->local[l].came && count++ < 8) {
            ls__text_add(&to, "%s%d", count == 1 ? "" : ", ", l);
        }
    }
    if (count > 8) {
        ls__text_add(&to, " and %d more", count - 8);
    }
}

static void give_up_late(ls__agent_thread *t)
{
    char text[LS__LOCAL_TEXT], missing[128];
    missing_text(t, missing, sizeof missing);
    snprintf(
        text, sizeof text,
        "ls_init: %s, so %d ranks of a world of %d are expected on this host (%s); local rank "
        "%s did not come within the deadline. Look whether they were started and call ls_init, "
        "or set LOCKSTEP_LAUNCHER=none to run alone",
        t->found.why, t->found.local_size, t->found.size, t->found.launcher, missing);
    give_up(t, LS_ERR_TIMEOUT, text);
}

static void warn_late(ls__agent_thread *t)
{
    char missing[128];
    missing_text(t, missing, sizeof missing);
    LS__WARN("ls_init: %s: waiting for local rank %s of this host (%s)", t->found.why, missing,
             t->found.launcher);
    t->warn_ns = ls__deadline_after(t->host.env, LS__GATHER_WARN_MS);
}

/* "" or what is wrong with who came. */
static void check_hello(const ls__agent_thread *t, const ls__local_hello *h, char *out,
                        size_t bytes)
{
    out[0] = '\0';
    if (h->magic != LS__LOCAL_MAGIC || strncmp(h->version, LS_VERSION, LS__LOCAL_VERSION) != 0) {
        snprintf(out, bytes,
                 "ls_init: this process has another version of lockstep than local rank 0 of this "
                 "host, %s: start all ranks with one library",
                 LS_VERSION);
    } else if (h->world_size != t->found.size || h->local_size != t->found.local_size ||
               h->local_rank < 0 || h->local_rank >= t->found.local_size || h->rank < 0 ||
               h->rank >= t->found.size) {
        snprintf(out, bytes,
                 "ls_init: rank %d of %d, local rank %d of %d, does not fit local rank 0 of this "
                 "host, which has %d of %d ranks: give all ranks of the job the same numbers",
                 h->rank, h->world_size, h->local_rank, h->local_size, t->found.local_size,
                 t->found.size);
    } else if (t->local[h->local_rank].came) {
        snprintf(out, bytes,
                 "ls_init: two processes are local rank %d of this host in this job (%s): rank %d, "
                 "process %d, and one more; each rank is one process",
                 h->local_rank, t->found.launcher, t->local[h->local_rank].world_rank,
                 t->host.rank[h->local_rank].pid);
    }
}

static void let_in(ls__agent_thread *t, const ls__local_hello *h, int fd)
{
    const ls__env *env = t->host.env;
    ls__host_agent_rank *rank = &t->host.rank[h->local_rank];
    pid_t pid = 0;
    LS_ASSERT(!t->local[h->local_rank].came && t->phase == LS__AGENT_LOCAL);
    (void)env->peer_pid(env, fd, &pid);
    t->local[h->local_rank] = (ls__local_rank){.came = true, .fd = fd, .world_rank = h->rank};
    rank->pid = (int)pid;
    if (pid > 0 && pid != env->pid(env)) {
        rank->pidfd = env->watch_process(env, pid);
    }
    t->came++;
}

static void hear_newcomer(ls__agent_thread *t, int *slot)
{
    const ls__env *env = t->host.env;
    ls__local_hello hello;
    char wrong[LS__LOCAL_TEXT];
    /* Sent whole and small: what comes in pieces is none of ours. */
    ssize_t got = env->recv(env, *slot, &hello, sizeof hello, NULL);
    if (got == -EAGAIN) {
        return;
    }
    int fd = *slot;
    *slot = -1;
    if (got != (ssize_t)sizeof hello) {
        env->close(env, fd);
        return;
    }
    check_hello(t, &hello, wrong, sizeof wrong);
    if (wrong[0] != '\0') {
        answer(env, fd, LS_ERR_INVALID, wrong);
        env->close(env, fd);
        return;
    }
    let_in(t, &hello, fd);
}

static void accept_newcomers(ls__agent_thread *t)
{
    const ls__env *env = t->host.env;
    for (int i = 0; i < LS__NEWCOMERS_MAX; i++) {
        if (t->newcomer[i] >= 0) {
            continue;
        }
        uid_t uid;
        int fd = env->host_accept(env, t->listen_fd);
        if (fd < 0) {
            return;
        }
        if (env->peer_uid(env, fd, &uid) < 0 || uid != env->uid(env)) {
            env->close(env, fd);
            continue;
        }
        t->newcomer[i] = fd;
    }
}

/* A stream that ends before all are there: its process has, or gave up. */
static void look_for_gone(ls__agent_thread *t)
{
    for (int l = 0; l < t->found.local_size && t->phase != LS__AGENT_OVER; l++) {
        ls__local_rank *m = &t->local[l];
        char byte, text[LS__LOCAL_TEXT];
        if (!m->came || m->fd < 0) {
            continue;
        }
        ssize_t got = t->host.env->recv(t->host.env, m->fd, &byte, 1, NULL);
        if (got == -EAGAIN) {
            continue;
        }
        snprintf(
            text, sizeof text,
            "ls_init: rank %d (host %s, pid %d) ended before all ranks were there; its launcher "
            "(%s) knows how",
            m->world_rank, t->host.name, t->host.rank[l].pid, t->found.launcher);
        give_up(t, LS_ERR_PEER, text);
    }
}

/* ---- the hosts ----------------------------------------------------------------------------- */

static ls_status no_place(const ls__agent_thread *t)
{
    return ls__fail(
        LS_ERR_INVALID,
        "ls_init: %s, so the world has %d ranks, %d of them on this host (%s), and it is "
        "not known where the hosts meet: set LOCKSTEP_RENDEZVOUS=HOST:PORT for all ranks "
        "(rank 0's host and a port that is free there)",
        t->found.why, t->found.size, t->found.local_size, t->found.launcher);
}

static void world_ranks(const ls__agent_thread *t, int out[LS__BOARD_RANKS_MAX])
{
    for (int l = 0; l < t->host.ranks; l++) {
        out[l] = t->local[l].world_rank;
    }
}

static bool has_rank_0(const ls__agent_thread *t)
{
    for (int l = 0; l < t->host.ranks; l++) {
        if (t->local[l].world_rank == 0) {
            return true;
        }
    }
    return false;
}

static int64_t left_ms(const ls__agent_thread *t)
{
    const uint64_t now = t->host.env->now_ns(t->host.env);
    return t->deadline_ns > now ? (int64_t)((t->deadline_ns - now) / 1000000u) : 0;
}

static ls_status open_nodes(ls__agent_thread *t)
{
    const char *plane = ls__setting_get("LOCKSTEP_DATA_PLANE");
    int world_rank[LS__BOARD_RANKS_MAX];
    if (t->found.rendezvous[0] == '\0') {
        return no_place(t);
    }
    world_ranks(t, world_rank);
    const ls__nodes_spec nodes = {.first = has_rank_0(t),
                                  .node = -1,
                                  .world_size = t->found.size,
                                  .world_rank = world_rank,
                                  .attempt = t->found.attempt,
                                  .id = "",
                                  .run_id = "",
                                  .timeout_ms = left_ms(t)};
    const ls__host_agent_hosts hosts = {.rendezvous = t->found.rendezvous,
                                        .rendezvous_from = t->found.rendezvous_from,
                                        .secret_file = ls__setting_get("LOCKSTEP_SECRET_FILE"),
                                        .secret_from = "LOCKSTEP_SECRET_FILE",
                                        .nodes = &nodes,
                                        .plain = plane != NULL && strcmp(plane, "plain") == 0};
    return ls__host_agent_join_hosts(&t->host, &hosts);
}

/* ---- beginning ----------------------------------------------------------------------------- */

/* Everybody gets the board and the secret; the stream goes on as the one to the store. */
static void hand_out(ls__agent_thread *t)
{
    const ls__env *env = t->host.env;
    ls__local_reply reply = {.magic = LS__LOCAL_MAGIC, .status = LS_OK};
    memcpy(reply.secret, t->host.secret, sizeof reply.secret);
    for (int l = 0; l < t->host.ranks; l++) {
        ls__board_rank *place = &t->host.board->rank[l];
        const int fd = t->local[l].fd;
        t->local[l].fd = -1;
        atomic_store_explicit(&place->pid, t->host.rank[l].pid, memory_order_relaxed);
        atomic_store_explicit(&place->life, LS__LIFE_STARTED, memory_order_release);
        (void)env->send(env, fd, &reply, sizeof reply, t->host.board_fd);
        (void)ls__store_server_invite(t->host.store, fd);
        ls__host_agent_watch(&t->host, l);
    }
    memset(&reply, 0, sizeof reply);
}

static void begin(ls__agent_thread *t)
{
    int world_rank[LS__BOARD_RANKS_MAX];
    world_ranks(t, world_rank);
    if (ls__host_agent_make_board(&t->host, world_rank) < 0) {
        give_up(t, LS_ERR_SYSTEM, ls_error_message());
        return;
    }
    hand_out(t);
    t->phase = LS__AGENT_RUNNING;
}

/* All of this host are there: the name is free again, for a next job. */
static void all_here(ls__agent_thread *t)
{
    t->host.env->host_unlisten(t->host.env, t->listen_fd, t->name);
    t->listen_fd = -1;
    if (t->found.local_size == t->found.size) {
        begin(t);
        return;
    }
    ls_status status = open_nodes(t);
    if (status < 0) {
        give_up(t, status, ls_error_message());
        return;
    }
    t->phase = LS__AGENT_HOSTS;
}

static void look_there(ls__agent_thread *t)
{
    char text[LS__LOCAL_TEXT];
    if (ls__nodes_state_of(t->host.nodes) == LS__NODES_FAILED) {
        snprintf(text, sizeof text, "ls_init: %s", ls__nodes_error(t->host.nodes));
        give_up(t, LS_ERR_PEER, text);
    } else if (ls__nodes_state_of(t->host.nodes) == LS__NODES_RUNNING) {
        begin(t);
    }
}

/* ---- a turn --------------------------------------------------------------------------------- */

void ls__agent_thread_gather(ls__agent_thread *t, const ls__env_poll *newcomers)
{
    for (int i = 0; i < LS__NEWCOMERS_MAX; i++) {
        if (t->newcomer[i] >= 0 && (newcomers[i].can_read || newcomers[i].hangup)) {
            hear_newcomer(t, &t->newcomer[i]);
        }
    }
    if (t->listen_fd >= 0) {
        accept_newcomers(t);
    }
    look_for_gone(t);
    if (t->phase != LS__AGENT_OVER &&
        atomic_load_explicit(&t->leaving, memory_order_acquire) != 0) {
        give_up(t, LS_ERR_PEER, "ls_init: local rank 0 of this host gave up");
    }
    if (t->phase == LS__AGENT_LOCAL && t->came == t->found.local_size) {
        all_here(t);
    } else if (t->phase == LS__AGENT_LOCAL && t->host.env->now_ns(t->host.env) >= t->deadline_ns) {
        give_up_late(t);
    } else if (t->phase == LS__AGENT_LOCAL && t->host.env->now_ns(t->host.env) >= t->warn_ns) {
        warn_late(t);
    }
    if (t->phase == LS__AGENT_HOSTS) {
        look_there(t);
    }
}

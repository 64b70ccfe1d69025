/* SPDX-License-Identifier: Apache-2.0 */
/* Until all ranks are present: the local rendezvous, then that of the hosts, then one reply to
 * each rank.
 *
 *     a rank                                     this thread
 *     connect, hello (who it is)      ──▶        check it; remember the stream
 *                                                … all ranks of this host, then all hosts …
 *                                     ◀──        reply: board, secret; or an error, to all alike
 *     the stream becomes the rank's connection to the store */
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
#include "job/name_folder.h"

/* ---- the local rendezvous ------------------------------------------------------------------ */

/* The reply to a rank that does not join, without a descriptor. A rank that has gone meanwhile
 * is not an error. */
static void send_refusal(const ls__env *env, int fd, ls_status status, const char *text)
{
    ls__local_reply reply = {.magic = LS__LOCAL_MAGIC, .status = status};
    snprintf(reply.text, sizeof reply.text, "%s", text);
    (void)env->send(env, fd, &reply, sizeof reply, -1);
}

/* Gathering has failed: every rank that has joined gets the same error, and so does each one
 * that still arrives while local rank 0 waits. The agent's thread ends. */
static void give_up(ls__agent_thread *t, ls_status status, const char *text)
{
    for (int l = 0; l < t->detected.local_size; l++) {
        ls__local_rank *m = &t->local[l];
        if (m->joined && m->fd >= 0) {
            send_refusal(t->host.env, m->fd, status, text);
            t->host.env->close(t->host.env, m->fd);
            m->fd = -1;
        }
    }
    LS_ASSERT(t->phase == LS__AGENT_LOCAL || t->phase == LS__AGENT_HOSTS);
    t->phase = LS__AGENT_OVER;
}

/* The local ranks that have not joined: "1, 2, 3", at most eight of them, then their number. */
static void missing_text(const ls__agent_thread *t, char *out, size_t bytes)
{
    ls__text to = {out, bytes};
    int count = 0;
    out[0] = '\0';
    for (int l = 0; l < t->detected.local_size; l++) {
        if (!t->local[l].joined && count++ < 8) {
            ls__text_add(&to, "%s%d", count == 1 ? "" : ", ", l);
        }
    }
    if (count > 8) {
        ls__text_add(&to, " and %d more", count - 8);
    }
}

/* The deadline of ls_init has passed; the message says which ranks are missing and why they are
 * expected at all. */
static void give_up_late(ls__agent_thread *t)
{
    char text[LS__LOCAL_TEXT], missing[128];
    missing_text(t, missing, sizeof missing);
    snprintf(text, sizeof text,
             "ls_init: %s, so %d ranks of a world of %d are expected on this host (%s), but local "
             "rank %s did not join within the deadline; check that every rank was started and "
             "calls ls_init, or set LOCKSTEP_LAUNCHER=none to run alone",
             t->detected.why, t->detected.local_size, t->detected.size, t->detected.launcher,
             missing);
    give_up(t, LS_ERR_TIMEOUT, text);
}

/* A wait of many seconds is announced again and again, so that a user who started too few ranks
 * need not wait for the deadline to see it. */
static void warn_late(ls__agent_thread *t)
{
    char missing[128];
    missing_text(t, missing, sizeof missing);
    LS__WARN("ls_init: %s: waiting for local rank %s of this host (%s); LOCKSTEP_LAUNCHER=none "
             "runs alone",
             t->detected.why, missing, t->detected.launcher);
    t->warn_ns = ls__deadline_after(t->host.env, LS__GATHER_WARN_MS);
}

/* The reason for which a process cannot join; "": it can. The sizes are checked before any of
 * them is used as an index. */
static void check_hello(const ls__agent_thread *t, const ls__local_hello *h, char *out,
                        size_t bytes)
{
    out[0] = '\0';
    if (h->magic != LS__LOCAL_MAGIC || strncmp(h->version, LS_VERSION, LS__LOCAL_VERSION) != 0) {
        snprintf(out, bytes,
                 "ls_init: this process uses a different version of Lockstep than local rank 0 of "
                 "this host (%s); start all ranks with the same library",
                 LS_VERSION);
    } else if (h->world_size != t->detected.size || h->local_size != t->detected.local_size ||
               h->local_rank < 0 || h->local_rank >= t->detected.local_size || h->rank < 0 ||
               h->rank >= t->detected.size) {
        snprintf(
            out, bytes,
            "ls_init: rank %d of %d, local rank %d of %d, does not match local rank 0 of this "
            "host, which expects %d of %d ranks here; give all ranks of the job the same sizes",
            h->rank, h->world_size, h->local_rank, h->local_size, t->detected.local_size,
            t->detected.size);
    } else if (t->local[h->local_rank].joined) {
        snprintf(out, bytes,
                 "ls_init: two processes claim to be local rank %d of this host (%s): process %d "
                 "(rank %d) was the first; start one process per rank",
                 h->local_rank, t->detected.launcher, t->host.rank[h->local_rank].pid,
                 t->local[h->local_rank].world_rank);
    }
}

/* The rank keeps its stream until all are present. Its process is watched from now on, except
 * this one, which cannot outlive its own agent. */
static void admit(ls__agent_thread *t, const ls__local_hello *h, int fd)
{
    const ls__env *env = t->host.env;
    ls__host_agent_rank *rank = &t->host.rank[h->local_rank];
    pid_t pid = 0;
    LS_ASSERT(!t->local[h->local_rank].joined && t->phase == LS__AGENT_LOCAL);
    (void)env->peer_pid(env, fd, &pid);
    t->local[h->local_rank] = (ls__local_rank){.joined = true, .fd = fd, .world_rank = h->rank};
    rank->pid = (int)pid;
    if (pid > 0 && pid != env->pid(env)) {
        rank->pidfd = env->watch_process(env, pid);
    }
    t->joined++;
}

/* The hello is small and sent in one call, so a part of it, or anything longer, does not come
 * from a rank of ours: the connection is closed without a reply. */
static void read_hello(ls__agent_thread *t, int *slot)
{
    const ls__env *env = t->host.env;
    ls__local_hello hello;
    char wrong[LS__LOCAL_TEXT];
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
        send_refusal(env, fd, LS_ERR_INVALID, wrong);
        env->close(env, fd);
        return;
    }
    admit(t, &hello, fd);
}

/* Only processes of this user are accepted, which the kernel attests. While all places are
 * taken, others wait in the kernel's queue. */
static void accept_newcomers(ls__agent_thread *t)
{
    const ls__env *env = t->host.env;
    for (int i = 0; i < LS__NEWCOMERS_MAX; i++) {
        if (t->newcomer[i] >= 0) {
            continue;
        }
        int fd = env->host_accept(env, t->listen_fd);
        if (fd < 0) {
            return;
        }
        if (!ls__name_peer_is_own(env, fd)) {
            env->close(env, fd);
            continue;
        }
        t->newcomer[i] = fd;
    }
}

/* A rank sends nothing after its hello. So when its stream ends (or carries data) before all are
 * present, its process has ended or given up, and the world cannot come about. Local rank 0, which
 * runs this thread, must have joined to receive that error. */
static void check_disconnected(ls__agent_thread *t)
{
    if (!t->local[0].joined) {
        return;
    }
    for (int l = 0; l < t->detected.local_size && t->phase != LS__AGENT_OVER; l++) {
        ls__local_rank *m = &t->local[l];
        char byte, text[LS__LOCAL_TEXT];
        if (!m->joined || m->fd < 0) {
            continue;
        }
        ssize_t got = t->host.env->recv(t->host.env, m->fd, &byte, 1, NULL);
        if (got == -EAGAIN) {
            continue;
        }
        snprintf(text, sizeof text,
                 "ls_init: rank %d (host %s, pid %d) ended before all ranks had joined; its "
                 "launcher (%s) knows the exit status",
                 m->world_rank, t->host.name, t->host.rank[l].pid, t->detected.launcher);
        give_up(t, LS_ERR_PEER, text);
    }
}

/* ---- the hosts ----------------------------------------------------------------------------- */

static ls_status fail_no_rendezvous(const ls__agent_thread *t)
{
    return ls__fail(LS_ERR_INVALID,
                    "ls_init: %s, so the world has %d ranks, %d of them on this host (%s), but the "
                    "rendezvous of the hosts is unknown: set LOCKSTEP_RENDEZVOUS=HOST:PORT for all "
                    "ranks (rank 0's host and a free port there)",
                    t->detected.why, t->detected.size, t->detected.local_size,
                    t->detected.launcher);
}

/* The launcher assigns world ranks to local ranks; they need not be consecutive. */
static void world_ranks(const ls__agent_thread *t, int out[LS__BOARD_RANKS_MAX])
{
    for (int l = 0; l < t->host.ranks; l++) {
        out[l] = t->local[l].world_rank;
    }
}

/* The host of rank 0 is the first host: it listens at the rendezvous. */
static bool has_rank_0(const ls__agent_thread *t)
{
    for (int l = 0; l < t->host.ranks; l++) {
        if (t->local[l].world_rank == 0) {
            return true;
        }
    }
    return false;
}

/* From here on the world is gathered as under `lockstep run` (job/nodes), except that the
 * launcher has already assigned the ranks. */
static ls_status open_nodes(ls__agent_thread *t)
{
    const char *plane = ls__setting_get("LOCKSTEP_DATA_PLANE");
    int world_rank[LS__BOARD_RANKS_MAX];
    if (t->detected.rendezvous[0] == '\0') {
        return fail_no_rendezvous(t);
    }
    world_ranks(t, world_rank);
    const ls__nodes_spec nodes = {.first = has_rank_0(t),
                                  .node = -1,
                                  .world_size = t->detected.size,
                                  .world_rank = world_rank,
                                  .attempt = t->detected.attempt,
                                  .id = "",
                                  .run_id = "",
                                  .timeout_ms = ls__time_left_ms(t->host.env, t->deadline_ns)};
    const ls__host_agent_hosts hosts = {.rendezvous = t->detected.rendezvous,
                                        .rendezvous_from = t->detected.rendezvous_from,
                                        .secret_file = ls__setting_get("LOCKSTEP_SECRET_FILE"),
                                        .secret_from = "LOCKSTEP_SECRET_FILE",
                                        .secret =
                                            t->detected.has_secret ? t->detected.secret : NULL,
                                        .nodes = &nodes,
                                        .plain = plane != NULL && strcmp(plane, "plain") == 0};
    const ls_status status = ls__host_agent_join_hosts(&t->host, &hosts);
    explicit_bzero(t->detected.secret, sizeof t->detected.secret);
    return status;
}

/* ---- beginning ----------------------------------------------------------------------------- */

/* Every rank receives the board and the secret; its stream becomes the one to the store. The
 * rank's life is set first, because the rank looks at the board as soon as it has it. */
static void send_replies(ls__agent_thread *t)
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
    explicit_bzero(&reply, sizeof reply);
}

/* The world is complete: makes the board and releases the waiting ranks. */
static void begin_world(ls__agent_thread *t)
{
    int world_rank[LS__BOARD_RANKS_MAX];
    LS_ASSERT(t->joined == t->host.ranks);
    world_ranks(t, world_rank);
    if (ls__host_agent_make_board(&t->host, world_rank) < 0) {
        give_up(t, LS_ERR_SYSTEM, ls_error_message());
        return;
    }
    send_replies(t);
    t->phase = LS__AGENT_RUNNING;
}

/* Other hosts are looked for because variables say so, and these may be left from another job. */
static void give_up_hosts(ls__agent_thread *t, ls_status status, const char *why)
{
    char text[LS__LOCAL_TEXT];
    snprintf(
        text, sizeof text,
        "%.500s. %s, so %d ranks on other hosts are expected (%s); if these variables are left "
        "from another job, unset them, or set LOCKSTEP_LAUNCHER=none to run alone",
        why, t->detected.why, t->detected.size - t->detected.local_size, t->detected.launcher);
    give_up(t, status, text);
}

/* All ranks of this host have joined. The name is released at once, for the next job. */
static void local_ranks_complete(ls__agent_thread *t)
{
    t->host.env->host_unlisten(t->host.env, t->listen_fd, t->name);
    t->listen_fd = -1;
    if (t->detected.local_size == t->detected.size) {
        begin_world(t);
        return;
    }
    ls_status status = open_nodes(t);
    if (status == LS_ERR_SYSTEM || status == LS_ERR_TIMEOUT) { /* the place is not reachable */
        give_up_hosts(t, status, ls_error_message());
        return;
    }
    if (status < 0) {
        give_up(t, status, ls_error_message());
        return;
    }
    t->phase = LS__AGENT_HOSTS;
}

/* Whether the other hosts are present, or can no longer be expected. */
static void check_hosts(ls__agent_thread *t)
{
    char text[LS__LOCAL_TEXT];
    if (ls__nodes_state_of(t->host.nodes) == LS__NODES_FAILED) {
        snprintf(text, sizeof text, "ls_init: %s", ls__nodes_error(t->host.nodes));
        /* its own deadline is this one in whole milliseconds */
        if (ls__time_left_ms(t->host.env, t->deadline_ns) <= 1) {
            give_up_hosts(t, LS_ERR_PEER, text);
        } else {
            give_up(t, LS_ERR_PEER, text);
        }
    } else if (ls__nodes_state_of(t->host.nodes) == LS__NODES_RUNNING) {
        begin_world(t);
    }
}

/* ---- a turn --------------------------------------------------------------------------------- */

/* Advances the gathering as far as the events allow. `leaving` set by now means that ls_init of
 * local rank 0 has failed elsewhere, for example at its own deadline. */
void ls__agent_thread_gather(ls__agent_thread *t, const ls__env_poll *newcomers)
{
    for (int i = 0; i < LS__NEWCOMERS_MAX; i++) {
        if (t->newcomer[i] >= 0 && (newcomers[i].can_read || newcomers[i].hangup)) {
            read_hello(t, &t->newcomer[i]);
        }
    }
    if (t->listen_fd >= 0) {
        accept_newcomers(t);
    }
    check_disconnected(t);
    if (t->phase != LS__AGENT_OVER &&
        /* Sync: acquire; pairs with ls__agent_thread_end. */
        atomic_load_explicit(&t->leaving, memory_order_acquire) != 0) {
        give_up(t, LS_ERR_PEER, "ls_init: local rank 0 of this host gave up");
    }
    if (t->phase == LS__AGENT_LOCAL && t->joined == t->detected.local_size) {
        local_ranks_complete(t);
    } else if (t->phase == LS__AGENT_LOCAL && t->host.env->now_ns(t->host.env) >= t->deadline_ns) {
        give_up_late(t);
    } else if (t->phase == LS__AGENT_LOCAL && t->host.env->now_ns(t->host.env) >= t->warn_ns) {
        warn_late(t);
    }
    if (t->phase == LS__AGENT_HOSTS) {
        check_hosts(t);
    }
}

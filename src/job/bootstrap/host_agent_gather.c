/* Until all are there: the meeting of this host's ranks, then that of the hosts; and what all get.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/text.h"
#include "job/bootstrap/host_agent_internal.h"
#include "job/nodes/secret.h"

/* ---- the meeting --------------------------------------------------------------------------- */

static void answer(const ls__env *env, int fd, ls_status status, const char *text)
{
    ls__local_reply reply = {.magic = LS__LOCAL_MAGIC, .status = status};
    snprintf(reply.text, sizeof reply.text, "%s", text);
    (void)env->send(env, fd, &reply, sizeof reply, -1);
}

/* Nobody joins: all that are here, and those still to come while local rank 0 waits, are told. */
static void give_up(ls__host_agent *s, ls_status status, const char *text)
{
    for (int l = 0; l < s->found.local_size; l++) {
        ls__host_member *m = &s->member[l];
        if (m->came && m->fd >= 0) {
            answer(s->env, m->fd, status, text);
            s->env->close(s->env, m->fd);
            m->fd = -1;
        }
    }
    s->phase = LS__HOST_AGENT_OVER;
}

static void missing_text(const ls__host_agent *s, char *out, size_t bytes)
{
    ls__text to = {out, bytes};
    int count = 0;
    out[0] = '\0';
    for (int l = 0; l < s->found.local_size; l++) {
        if (!s->member[l].came && count++ < 8) {
            ls__text_add(&to, "%s%d", count == 1 ? "" : ", ", l);
        }
    }
    if (count > 8) {
        ls__text_add(&to, " and %d more", count - 8);
    }
}

static void give_up_late(ls__host_agent *s)
{
    char text[LS__LOCAL_TEXT], missing[128];
    missing_text(s, missing, sizeof missing);
    snprintf(
        text, sizeof text,
        "ls_init: %s, so %d ranks of a world of %d are expected on this host (%s); local rank "
        "%s did not come within the deadline. Look whether they were started and call ls_init, "
        "or set LOCKSTEP_LAUNCHER=none to run alone",
        s->found.why, s->found.local_size, s->found.size, s->found.launcher, missing);
    give_up(s, LS_ERR_TIMEOUT, text);
}

static void warn_late(ls__host_agent *s)
{
    char missing[128];
    missing_text(s, missing, sizeof missing);
    LS__WARN("ls_init: %s: waiting for local rank %s of this host (%s)", s->found.why, missing,
             s->found.launcher);
    s->warn_ns = ls__deadline_after(s->env, LS__HOST_AGENT_WARN_MS);
}

/* "" or what is wrong with who came. */
static void check_hello(const ls__host_agent *s, const ls__local_hello *h, char *out, size_t bytes)
{
    out[0] = '\0';
    if (h->magic != LS__LOCAL_MAGIC || strncmp(h->version, LS_VERSION, LS__LOCAL_VERSION) != 0) {
        snprintf(out, bytes,
                 "ls_init: this process has another version of lockstep than local rank 0 of this "
                 "host, %s: start all ranks with one library",
                 LS_VERSION);
    } else if (h->world_size != s->found.size || h->local_size != s->found.local_size ||
               h->local_rank < 0 || h->local_rank >= s->found.local_size || h->rank < 0 ||
               h->rank >= s->found.size) {
        snprintf(out, bytes,
                 "ls_init: rank %d of %d, local rank %d of %d, does not fit local rank 0 of this "
                 "host, which has %d of %d ranks: give all ranks of the job the same numbers",
                 h->rank, h->world_size, h->local_rank, h->local_size, s->found.local_size,
                 s->found.size);
    } else if (s->member[h->local_rank].came) {
        snprintf(out, bytes,
                 "ls_init: two processes are local rank %d of this host in this job (%s): rank %d, "
                 "process %d, and one more; each rank is one process",
                 h->local_rank, s->found.launcher, s->member[h->local_rank].rank,
                 s->member[h->local_rank].pid);
    }
}

static void let_in(ls__host_agent *s, const ls__local_hello *h, int fd)
{
    const ls__env *env = s->env;
    ls__host_member *m = &s->member[h->local_rank];
    pid_t pid = 0;
    (void)env->peer_pid(env, fd, &pid);
    *m = (ls__host_member){.came = true, .fd = fd, .pidfd = -1, .rank = h->rank, .pid = (int)pid};
    if (pid > 0 && pid != env->pid(env)) {
        m->pidfd = env->watch_process(env, pid);
    }
    s->came++;
}

static void hear_stranger(ls__host_agent *s, int *slot)
{
    const ls__env *env = s->env;
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
    check_hello(s, &hello, wrong, sizeof wrong);
    if (wrong[0] != '\0') {
        answer(env, fd, LS_ERR_INVALID, wrong);
        env->close(env, fd);
        return;
    }
    let_in(s, &hello, fd);
}

static void accept_strangers(ls__host_agent *s)
{
    const ls__env *env = s->env;
    for (int i = 0; i < LS__STRANGERS_MAX; i++) {
        if (s->stranger[i] >= 0) {
            continue;
        }
        uid_t uid;
        int fd = env->host_accept(env, s->listen_fd);
        if (fd < 0) {
            return;
        }
        if (env->peer_uid(env, fd, &uid) < 0 || uid != env->uid(env)) {
            env->close(env, fd);
            continue;
        }
        s->stranger[i] = fd;
    }
}

/* A stream that ends before all are there: its process has, or gave up. */
static void look_for_gone(ls__host_agent *s)
{
    for (int l = 0; l < s->found.local_size && s->phase != LS__HOST_AGENT_OVER; l++) {
        ls__host_member *m = &s->member[l];
        char byte, text[LS__LOCAL_TEXT];
        if (!m->came || m->fd < 0) {
            continue;
        }
        ssize_t got = s->env->recv(s->env, m->fd, &byte, 1, NULL);
        if (got == -EAGAIN) {
            continue;
        }
        snprintf(
            text, sizeof text,
            "ls_init: rank %d (host %s, pid %d) ended before all ranks were there; its launcher "
            "(%s) knows how",
            m->rank, s->host, m->pid, s->found.launcher);
        give_up(s, LS_ERR_PEER, text);
    }
}

/* ---- the hosts ----------------------------------------------------------------------------- */

static ls_status no_place(const ls__host_agent *s)
{
    return ls__fail(
        LS_ERR_INVALID,
        "ls_init: %s, so the world has %d ranks, %d of them on this host (%s), and it is "
        "not known where the hosts meet: set LOCKSTEP_RENDEZVOUS=HOST:PORT for all ranks "
        "(rank 0's host and a port that is free there)",
        s->found.why, s->found.size, s->found.local_size, s->found.launcher);
}

static ls_status open_nodes(ls__host_agent *s)
{
    const char *file = ls__setting_get("LOCKSTEP_SECRET_FILE");
    const char *plane = ls__setting_get("LOCKSTEP_DATA_PLANE");
    int world_rank[LS__BOARD_RANKS_MAX];
    ls__rendezvous_place place;
    if (s->found.rendezvous[0] == '\0') {
        return no_place(s);
    }
    LS_TRY(ls__place_parse(s->found.rendezvous, s->found.rendezvous_from, &place));
    LS_TRY(ls__place_resolve(s->env, &place));
    if (file != NULL) {
        LS_TRY(ls__secret_read(s->env, file, "LOCKSTEP_SECRET_FILE", s->secret));
    }
    ls__link_mode mode = ls__place_mode(&place, plane != NULL && strcmp(plane, "plain") == 0);
    s->plain = mode == LS__LINK_PLAIN;
    bool first = false;
    for (int l = 0; l < s->found.local_size; l++) {
        world_rank[l] = s->member[l].rank;
        first = first || world_rank[l] == 0;
    }
    const uint64_t now = s->env->now_ns(s->env);
    const uint64_t left = s->deadline_ns > now ? s->deadline_ns - now : 0;
    const ls__nodes_spec spec = {.env = s->env,
                                 .store = s->store,
                                 .secret = file != NULL ? s->secret : NULL,
                                 .mode = mode,
                                 .place = &place,
                                 .first = first,
                                 .node = -1,
                                 .ranks = s->found.local_size,
                                 .world_size = s->found.size,
                                 .world_rank = world_rank,
                                 .attempt = s->found.attempt,
                                 .id = "",
                                 .run_id = "",
                                 .host = s->host,
                                 .version = LS_VERSION,
                                 .timeout_ms = (int64_t)(left / 1000000u)};
    return ls__nodes_open(&spec, &s->nodes);
}

/* ---- beginning ----------------------------------------------------------------------------- */

static ls_status make_board(ls__host_agent *s)
{
    const ls__env *env = s->env;
    int world_rank[LS__BOARD_RANKS_MAX];
    for (int l = 0; l < s->found.local_size; l++) {
        world_rank[l] = s->member[l].rank;
    }
    if (s->nodes != NULL) {
        s->world = *ls__nodes_world_of(s->nodes);
        memcpy(s->secret, ls__nodes_secret(s->nodes), sizeof s->secret);
    } else {
        (void)env->random_bytes(env, s->secret, sizeof s->secret);
        (void)env->random_bytes(env, &s->world.job, sizeof s->world.job);
    }
    ls__store_server_set_secret(s->store, s->secret);
    const ls__board_job job = {.ranks = s->found.local_size,
                               .world_size = s->found.size,
                               .world_rank = world_rank,
                               .generation = (uint32_t)s->found.attempt,
                               .number = s->world.job,
                               .launcher_pid = (int)env->pid(env),
                               .host = s->host,
                               .nodes = s->nodes != NULL ? s->world.nodes : 0,
                               .node = s->nodes != NULL ? s->world.node : 0,
                               .plain = s->plain,
                               .address = s->world.address};
    return ls__board_new(env, &job, &s->board_fd, &s->board);
}

/* Everybody gets the board and the secret; the stream goes on as the one to the store. */
static void hand_out(ls__host_agent *s)
{
    const ls__env *env = s->env;
    ls__local_reply reply = {.magic = LS__LOCAL_MAGIC, .status = LS_OK};
    memcpy(reply.secret, s->secret, sizeof reply.secret);
    for (int l = 0; l < s->found.local_size; l++) {
        ls__host_member *m = &s->member[l];
        atomic_store_explicit(&s->board->rank[l].pid, m->pid, memory_order_relaxed);
        atomic_store_explicit(&s->board->rank[l].life, LS__LIFE_STARTED, memory_order_release);
        int fd = m->fd;
        m->fd = -1;
        (void)env->send(env, fd, &reply, sizeof reply, s->board_fd);
        (void)ls__store_server_invite(s->store, fd);
    }
    memset(&reply, 0, sizeof reply);
    env->close(env, s->board_fd);
    s->board_fd = -1;
}

static void begin(ls__host_agent *s)
{
    if (make_board(s) < 0) {
        give_up(s, LS_ERR_SYSTEM, ls_error_message());
        return;
    }
    hand_out(s);
    s->phase = LS__HOST_AGENT_RUNNING;
}

/* All of this host are there: the name is free again, for a next job. */
static void all_here(ls__host_agent *s)
{
    s->env->close(s->env, s->listen_fd);
    s->listen_fd = -1;
    if (s->found.local_size == s->found.size) {
        begin(s);
        return;
    }
    ls_status status = open_nodes(s);
    if (status < 0) {
        give_up(s, status, ls_error_message());
        return;
    }
    s->phase = LS__HOST_AGENT_THERE;
}

static void look_there(ls__host_agent *s)
{
    char text[LS__LOCAL_TEXT];
    if (ls__nodes_state_of(s->nodes) == LS__NODES_FAILED) {
        snprintf(text, sizeof text, "ls_init: %s", ls__nodes_error(s->nodes));
        give_up(s, LS_ERR_PEER, text);
    } else if (ls__nodes_state_of(s->nodes) == LS__NODES_RUNNING) {
        begin(s);
    }
}

/* ---- a turn --------------------------------------------------------------------------------- */

void ls__host_agent_gather(ls__host_agent *s, const ls__env_poll *strangers)
{
    for (int i = 0; i < LS__STRANGERS_MAX; i++) {
        if (s->stranger[i] >= 0 && (strangers[i].can_read || strangers[i].hangup)) {
            hear_stranger(s, &s->stranger[i]);
        }
    }
    if (s->listen_fd >= 0) {
        accept_strangers(s);
    }
    look_for_gone(s);
    if (s->phase != LS__HOST_AGENT_OVER &&
        atomic_load_explicit(&s->leaving, memory_order_acquire) != 0) {
        give_up(s, LS_ERR_PEER, "ls_init: local rank 0 of this host gave up");
    }
    if (s->phase == LS__HOST_AGENT_HERE && s->came == s->found.local_size) {
        all_here(s);
    } else if (s->phase == LS__HOST_AGENT_HERE && s->env->now_ns(s->env) >= s->deadline_ns) {
        give_up_late(s);
    } else if (s->phase == LS__HOST_AGENT_HERE && s->env->now_ns(s->env) >= s->warn_ns) {
        warn_late(s);
    }
    if (s->phase == LS__HOST_AGENT_THERE) {
        look_there(s);
    }
}

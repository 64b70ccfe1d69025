/* SPDX-License-Identifier: Apache-2.0 */
/* The agent: one loop over all events of a job.
 *
 *     poll:  signals · the end of front or guard · output · the host agent's items (job/agent)
 *     then:  events are served, failures are examined, and processes past their time are killed
 *
 *     ranks run ──root cause or last end──▶ ranks end (grace, SIGTERM, SIGKILL)
 *         ──no rank left──▶ orphans end, output drains ──other nodes agree──▶ over
 *
 * The job is over when no rank runs, no process that a rank started is left (orphans become the
 * agent's children), and the output is written. */
#include "launch/agent.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

#define FIXED_ITEMS 3
#define LINGER_MS 200      /* for output that is still in the pipes of ended ranks */
#define ORPHAN_TERM_MS 200 /* for orphans, between SIGTERM and SIGKILL */
#define ORPHAN_LOOK_MS 20  /* between two looks at orphans that were killed */
#define STOP_AGAIN_MS 200  /* sooner it is the same request, sent to a whole group of processes */
#define DESCRIPTORS_PER_RANK 6
#define DESCRIPTORS_OTHER 256

static const int watched[] = {SIGCHLD, SIGINT,  SIGTERM, SIGHUP,  SIGUSR1,
                              SIGUSR2, SIGTSTP, SIGCONT, SIGPIPE, SIGTTOU};

/* ---- setting up ----------------------------------------------------------------------------- */

/* Stores the secret in a memfd that no process can change any more; ranks read it. */
static ls_status seal_secret(ls__agent *agent)
{
    const ls__env *env = agent->env;
    const size_t bytes = sizeof agent->host.secret;
    int error = env->shm_create(env, "lockstep-secret", 0);
    agent->secret_fd = error;
    if (error >= 0) {
        const ssize_t put = env->write(env, agent->secret_fd, agent->host.secret, bytes);
        error = put == (ssize_t)bytes ? env->shm_seal(env, agent->secret_fd)
                                      : (put < 0 ? (int)put : -EIO);
    }
    return error < 0 ? ls__fail(LS_ERR_SYSTEM, "cannot pass the secret to the ranks: %s",
                                strerror(-error))
                     : LS_OK;
}

/* torchrun's variables for a world of one host. With several hosts they come from node 0. */
static void lay_out(ls__agent *agent)
{
    ls__nodes_world *world = &agent->host.world;
    const int port = agent->env->free_port(agent->env);
    world->master_port = port > 0 ? port : 0;
    snprintf(world->master, sizeof world->master, "127.0.0.1");
    snprintf(world->run_id, sizeof world->run_id, "%s", agent->job->run_id);
}

/* With restarts each attempt logs to a folder of its own, as torchrun does. */
static ls_status open_output(ls__agent *agent)
{
    const ls__job *job = agent->job;
    char folder[4096];
    const ls__nodes_world *world = &agent->host.world;
    const ls__output_spec spec = {.ranks = job->ranks,
                                  .first_rank = world->first_rank,
                                  .prefix = world->world_size > 1,
                                  .log_dir = job->log_dir};
    if (job->log_dir == NULL || job->max_restarts == 0) {
        return ls__output_new(agent->env, &spec, &agent->output);
    }
    int length = snprintf(folder, sizeof folder, "%s/attempt_%d", job->log_dir, world->attempt);
    if (length >= (int)sizeof folder) {
        return ls__fail(LS_ERR_SYSTEM, "--log-dir: the name is too long; give a shorter one");
    }
    ls__output_spec attempt = spec;
    attempt.log_dir = folder;
    return ls__output_new(agent->env, &attempt, &agent->output);
}

/* Everything before the first rank, and before other nodes join. A failure is reported like that
 * of a rank: as the root cause, with the text of the error. */
static ls_status set_up(ls__agent *agent)
{
    const ls__env *env = agent->env;
    const ls__job *job = agent->job;
    const int descriptors = DESCRIPTORS_OTHER + DESCRIPTORS_PER_RANK * job->ranks;
    uint64_t mask = 0;
    agent->term_ns = agent->kill_ns = agent->linger_ns = agent->stopped_ns = LS__NEVER;
    agent->reaper_fd = -1;
    agent->signals_fd =
        env->signals_open(env, watched, (int)(sizeof watched / sizeof *watched), &mask);
    if (agent->signals_fd < 0) {
        return ls__fail(LS_ERR_SYSTEM, "cannot watch signals: %s", strerror(-agent->signals_fd));
    }
    const int error = env->adopt_orphans(env);
    if (error < 0) {
        return ls__fail(LS_ERR_SYSTEM, "cannot adopt orphaned processes: %s", strerror(-error));
    }
    (void)env->allow_descriptors(env, descriptors); /* a lack is reported where it shows */
    agent->cores = env->cores(env);
    LS_TRY(ls__host_agent_init(&agent->host, env, NULL, job->ranks, job->attempt));
    lay_out(agent);
    agent->item_room = FIXED_ITEMS + LS__HOST_AGENT_ITEMS + 4 * job->ranks + 2;
    agent->items = env->allocate(env, (size_t)agent->item_room * sizeof *agent->items);
    return agent->items != NULL ? LS_OK
                                : ls__fail(LS_ERR_MEMORY, "no memory for the launcher's poll loop");
}

/* Makes the parts that ranks join with, once the layout of the world is known. */
static ls_status prepare_ranks(ls__agent *agent)
{
    LS_ASSERT(!agent->gathering && agent->host.started == 0);
    LS_TRY(ls__host_agent_make_board(&agent->host, NULL));
    LS_TRY(seal_secret(agent));
    return agent->job->capture ? open_output(agent) : LS_OK;
}

/* Also after a failed set_up: the parts that do not exist are zero. */
static void tear_down(ls__agent *agent)
{
    ls__host_agent_fini(&agent->host);
    ls__output_free(agent->output);
    if (agent->items != NULL) {
        agent->env->release(agent->env, agent->items,
                            (size_t)agent->item_room * sizeof *agent->items);
    }
}

/* ---- signals -------------------------------------------------------------------------------- */

void ls__agent_signal_groups(ls__agent *agent, int number)
{
    for (int r = 0; r < agent->host.started; r++) {
        if (!agent->host.rank[r].ended) {
            (void)agent->env->kill_group(agent->env, agent->host.rank[r].pid, number);
        }
    }
}

/* To the ranks alone, through their pidfds. */
static void signal_ranks(ls__agent *agent, int number)
{
    for (int r = 0; r < agent->host.started; r++) {
        if (!agent->host.rank[r].ended) {
            (void)agent->env->kill(agent->env, agent->host.rank[r].pidfd, number);
        }
    }
}

/* The first stop request. A rank that reads the board finishes its step and ends by itself
 * (ls_init with graceful_stop); any other gets the signal. */
static void ask_to_stop(ls__agent *agent, int number)
{
    bool answered = false;
    if (agent->host.board == NULL) {
        ls__agent_fail(agent, 128 + number, "stopped by signal %d (%s) before all nodes had joined",
                       number, ls__signal_name(number));
        return;
    }
    atomic_store_explicit(&agent->host.board->stop, (uint32_t)number, memory_order_release);
    for (int r = 0; r < agent->host.started; r++) {
        ls__board_rank *place = &agent->host.board->rank[r];
        bool itself = atomic_load_explicit(&place->stops_itself, memory_order_acquire) != 0;
        answered = answered || (itself && !agent->host.rank[r].ended);
        if (!itself && !agent->host.rank[r].ended) {
            (void)agent->env->kill_group(agent->env, agent->host.rank[r].pid, number);
        }
    }
    if (answered && agent->output != NULL) {
        ls__output_say(agent->output, "lockstep: stop requested: the ranks finish their step; "
                                      "repeat the signal to stop them now");
    }
}

/* A stop request of the user; `ours`: of this host, so the other nodes must learn of it. The
 * ranks answer the first one; a second one kills them. A terminal sends one Ctrl-C to several
 * processes of this job, so copies that arrive within STOP_AGAIN_MS count as one. */
static void stop(ls__agent *agent, int number, bool ours)
{
    if (ours && agent->host.nodes != NULL) {
        ls__nodes_stop(agent->host.nodes, number);
    }
    uint64_t now = agent->env->now_ns(agent->env);
    if (agent->host.stop_signal != 0 && now < agent->stop_ns + STOP_AGAIN_MS * 1000000ull) {
        return;
    }
    if (agent->host.stop_signal != 0) {
        ls__agent_fail(agent, 128 + number, "the job was killed after a second signal %d (%s)",
                       number, ls__signal_name(number));
        agent->term_ns = agent->kill_ns = now;
        return;
    }
    agent->host.stop_signal = number;
    agent->stop_ns = now;
    ask_to_stop(agent, number);
}

/* SIGHUP goes on to the ranks, which ignore it under nohup. SIGCHLD only starts a check for
 * stopped ranks, because the pidfds report ends. SIGPIPE and SIGTTOU appear as errors of a
 * write. */
static void take_signals(ls__agent *agent)
{
    for (int number = agent->env->signal_next(agent->env, agent->signals_fd); number > 0;
         number = agent->env->signal_next(agent->env, agent->signals_fd)) {
        if (number == SIGINT || number == SIGTERM) {
            stop(agent, number, true);
        } else if (number == SIGHUP) {
            ls__agent_signal_groups(agent, number);
        } else if (number == SIGUSR1 || number == SIGUSR2) {
            signal_ranks(agent, number);
        } else if (number == SIGTSTP || number == SIGCONT) {
            ls__agent_pause(agent, number == SIGTSTP);
        } else if (number == SIGCHLD) {
            agent->stopped_ns = 0;
        }
    }
}

/* ---- ends ----------------------------------------------------------------------------------- */

/* Reaps orphans, and ranks whose end the poller has not reported. False: no child is left at
 * all. */
static bool reap_others(ls__agent *agent)
{
    ls__env_exit how;
    ls__host_agent_take_ends(&agent->host);
    int rc = agent->env->wait_any(agent->env, &how);
    for (; rc == 0; rc = agent->env->wait_any(agent->env, &how)) {
        for (int r = 0; r < agent->host.started; r++) {
            if (!agent->host.rank[r].ended && agent->host.rank[r].pid == how.pid) {
                ls__host_agent_note_end(&agent->host, r, &how);
            }
        }
    }
    return rc == -EAGAIN;
}

/* ---- time ----------------------------------------------------------------------------------- */

/* Ends the ranks that outlive their grace; SIGKILL is repeated, because a rank may fork
 * in between. */
static void end_overdue(ls__agent *agent, uint64_t now)
{
    if (agent->host.running == 0) {
        return;
    }
    if (now >= agent->kill_ns) {
        ls__agent_signal_groups(agent, SIGKILL);
        agent->kill_ns = ls__deadline_after(agent->env, ORPHAN_LOOK_MS);
        agent->term_ns = LS__NEVER;
    } else if (now >= agent->term_ns) {
        ls__agent_signal_groups(agent, SIGTERM);
        agent->term_ns = LS__NEVER;
    }
}

/* After the ranks: SIGTERM to the processes that they left behind, then SIGKILL until none is
 * left. The reaper, which does not end by SIGTERM, is no reason to wait. */
static void end_orphans(ls__agent *agent, uint64_t now)
{
    LS_ASSERT(agent->host.running == 0);
    if (agent->linger_ns == LS__NEVER) {
        const int reapers = agent->reaper_fd >= 0 ? 1 : 0;
        const bool orphans = agent->env->kill_children(agent->env, SIGTERM) > reapers;
        agent->linger_ns = ls__deadline_after(agent->env, LINGER_MS);
        agent->kill_ns = orphans ? ls__deadline_after(agent->env, ORPHAN_TERM_MS) : now;
    } else if (now >= agent->kill_ns) {
        (void)agent->env->kill_children(agent->env, SIGKILL);
        agent->kill_ns = ls__deadline_after(agent->env, ORPHAN_LOOK_MS);
    }
}

/* ---- the loop ------------------------------------------------------------------------------- */

typedef struct layout { /* where the parts' items stand */
    int output, host, count;
} layout;

/* The items: signals, the front, output, host agent; the layout says where each begins. */
static layout fill_items(ls__agent *agent, uint64_t *deadline)
{
    layout at = {.output = FIXED_ITEMS, .count = FIXED_ITEMS};
    ls__env_poll *items = agent->items;
    items[0] = (ls__env_poll){.fd = agent->signals_fd, .want_read = true};
    items[1] = (ls__env_poll){.fd = agent->alone ? -1 : agent->front_fd, .want_read = true};
    items[2] = (ls__env_poll){.fd = agent->alone ? -1 : agent->guard_fd, .want_read = true};
    if (agent->output != NULL) {
        at.count += ls__output_poll(agent->output, items + at.count, agent->item_room - at.count);
    }
    at.host = at.count;
    at.count +=
        ls__host_agent_poll(&agent->host, items + at.count, agent->item_room - at.count, deadline);
    return at;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The front or the guard has ended, so no process reads a result: the ranks get no time to save
 * their work. */
static void front_ended(ls__agent *agent)
{
    agent->alone = true;
    ls__agent_fail(agent, 128 + SIGKILL, "the launcher was killed");
    agent->term_ns = agent->env->now_ns(agent->env);
    agent->kill_ns = ls__deadline_after(agent->env, ORPHAN_TERM_MS);
}

/* A stop request by the user of another node. */
static void take_remote_stop(ls__agent *agent)
{
    const int number = agent->host.nodes != NULL ? ls__nodes_take_stop(agent->host.nodes) : 0;
    if (number != 0) {
        stop(agent, number, false);
    }
}

/* One turn: waits for events or the next deadline, then serves every part. While nodes gather
 * there is no rank, and while ranks are started the next one follows at once, so failures are not
 * examined. */
void ls__agent_turn(ls__agent *agent)
{
    const ls__env *env = agent->env;
    const ls__env_poll *items = agent->items;
    uint64_t deadline =
        least(least(agent->kill_ns, agent->stopped_ns), least(agent->term_ns, agent->linger_ns));
    const layout at = fill_items(agent, &deadline);
    deadline = agent->starting ? env->now_ns(env) : deadline;
    (void)env->poll(env, agent->items, at.count, deadline);
    if (items[0].can_read) {
        take_signals(agent);
    }
    if (items[1].can_read || items[2].can_read) {
        front_ended(agent);
    }
    if (agent->output != NULL) {
        ls__output_turn(agent->output, items + at.output, at.host - at.output);
    }
    ls__host_agent_turn(&agent->host, items + at.host, at.count - at.host);
    take_remote_stop(agent);
    if (agent->gathering || agent->starting) {
        return;
    }
    ls__agent_conclude(agent);
    if (env->now_ns(env) >= agent->stopped_ns) {
        ls__agent_check_stopped(agent);
    }
    end_overdue(agent, env->now_ns(env));
}

/* Whether output is left after the last end: first the bytes in the pipes, for LINGER_MS at most
 * (an orphan may hold a pipe open), then those that are not written yet. Without a front there
 * is no reader. */
static bool output_open(ls__agent *agent, uint64_t now)
{
    if (agent->output == NULL || agent->alone) {
        return false;
    }
    if (ls__output_reading(agent->output) && now < agent->linger_ns) {
        return true;
    }
    ls__output_end(agent->output);
    return ls__output_writing(agent->output);
}

/* Turns until the job is over. linger_ns is LS__NEVER before the last rank has ended, then a
 * time, and LS__NEVER - 1 when that has passed. */
static void run_job(ls__agent *agent)
{
    bool open = true;
    while (open) {
        ls__agent_turn(agent);
        bool children = reap_others(agent);
        if (agent->host.running > 0) {
            continue;
        }
        ls__agent_conclude(agent);
        uint64_t now = agent->env->now_ns(agent->env);
        end_orphans(agent, now);
        if (!children) {
            agent->kill_ns = LS__NEVER;
        }
        agent->term_ns = LS__NEVER;
        open = output_open(agent, now) || children;
        open = open || ls__agent_awaits_nodes(agent);
        if (now >= agent->linger_ns) {
            agent->linger_ns = LS__NEVER - 1;
        }
    }
}

/* Starts the ranks, with a turn of the loop after each: those that run already find their store
 * served, however long the start of the others takes. A stop request ends it, because later ranks
 * would not get the signal. */
static bool start_ranks(ls__agent *agent)
{
    bool sound = true;
    LS_ASSERT(agent->host.started == 0 && agent->host.stop_signal == 0);
    agent->starting = true;
    for (int r = 0;
         sound && r < agent->job->ranks && !agent->host.has_cause && agent->host.stop_signal == 0;
         r++) {
        sound = ls__agent_start_rank(agent, r);
        ls__agent_turn(agent);
    }
    agent->starting = false;
    return sound;
}

/* Each step runs only if all before it succeeded; the loop runs in any case, since ranks may
 * exist. */
void ls__agent_run(ls__agent *agent)
{
    bool sound = set_up(agent) == LS_OK;
    if (sound && agent->job->nodes > 1) {
        sound = ls__agent_gather(agent);
    }
    sound = sound && prepare_ranks(agent) == LS_OK;
    if (!sound) {
        ls__agent_fail(agent, 1, "%s", ls_error_message());
    }
    if (sound) {
        ls__agent_say_placement(agent);
    }
    if (sound) {
        ls__agent_start_reaper(agent);
    }
    sound = sound && start_ranks(agent);
    if (sound) {
        ls__agent_write_pids(agent);
    }
    agent->result->attempt = agent->host.world.attempt;
    if (agent->items != NULL) {
        run_job(agent);
    }
    ls__agent_report(agent);
    tear_down(agent);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Playing a plan: the launcher's processes, the faults at their moments, the end. */
#include "sim/scenario.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define SECOND 1000000000ull

static void go_on(void *process, uint64_t unused)
{
    (void)unused;
    ls__sim_kill(process, SIGCONT);
}

static void mend(void *fault, uint64_t unused)
{
    const ls__fault *f = fault;
    (void)unused;
    ls__sim_note("host %d and host %d reach each other again", f->host, f->other);
    ls__sim->cut[f->host][f->other] = ls__sim->cut[f->other][f->host] = false;
}

static void cut(ls__fault *f)
{
    ls__sim_note("host %d does not reach host %d any more%s", f->host, f->other,
                 f->kind == LS__FAULT_ONE_WAY ? "" : ", nor the other way");
    ls__sim->cut[f->host][f->other] = true;
    ls__sim->cut[f->other][f->host] = f->kind != LS__FAULT_ONE_WAY;
    if (f->kind == LS__FAULT_GAP) {
        ls__sim_at(ls__sim->now_ns + f->for_ns % (SECOND * 3 / 2), mend, f, 0);
    }
}

/* All its processes stop at once, and nobody is told. */
static void lose_host(int host)
{
    ls__sim_note("host %d is gone", host);
    ls__sim->host[host].down = true;
    for (int i = 0; i < ls__sim->processes; i++) {
        if (ls__sim->process[i]->host == host) {
            ls__sim_die(ls__sim->process[i], (ls__env_exit){.signal = SIGKILL});
        }
    }
}

/* One of the process' connections to another host. */
static void reset_one(ls__fault *f, ls__sim_process *p)
{
    ls__sim_object *found = NULL;
    for (int fd = 0, seen = 0; fd < p->fds; fd++) {
        ls__sim_object *o = p->fd[fd];
        if (o != NULL && o->kind == LS__SIM_STREAM && o->tcp && !o->connecting && o->error == 0 &&
            ls__sim_below(&ls__sim->random, (uint64_t)++seen) == 0) {
            found = o;
        }
    }
    f->done = found != NULL; /* none yet: at a later call */
    if (found != NULL) {
        ls__sim_note("a connection to host %d is reset", found->peer_host);
        ls__sim_reset(found);
    }
}

static bool is_rank(const ls__plan *plan, const ls__sim_process *p)
{
    for (int r = 0; r < plan->ranks; r++) {
        if (plan->outcome[r].process == p) {
            return true;
        }
    }
    return false;
}

/* On a connection of the process to a rank of another host. */
static void flip_one(const ls__plan *plan, ls__fault *f, ls__sim_process *p)
{
    ls__sim_channel *found = NULL;
    for (int fd = 0, seen = 0; fd < p->fds; fd++) {
        const ls__sim_object *o = p->fd[fd];
        if (o != NULL && o->kind == LS__SIM_STREAM && o->tcp && !o->connecting && o->error == 0 &&
            o->out->reader != NULL && is_rank(plan, o->out->reader->opener) &&
            ls__sim_below(&ls__sim->random, (uint64_t)++seen) == 0) {
            found = o->out;
        }
    }
    if (found != NULL) {
        f->flip.drawn = ls__sim_draw(&ls__sim->random);
        found->flip = &f->flip;
        f->armed = true;
    }
}

ls__wait_begin ls__wait_begins(void)
{
    return (ls__wait_begin){ls__sim->now_ns, ls__sim->idle_ns};
}

/* Keeps the longest of a rank's waits. */
void ls__wait_ends(ls__rank_outcome *o, ls__wait_begin begun, int operation)
{
    const uint64_t took = ls__sim->now_ns - begun.now_ns;
    const uint64_t idle = ls__sim->idle_ns - begun.idle_ns;
    if (took > o->longest_ns) {
        o->longest_ns = took;
        o->longest = operation;
    }
    if (idle > o->idlest_ns) {
        o->idlest_ns = idle;
        o->idlest = operation;
    }
}

static void strike(const ls__plan *plan, ls__fault *f, ls__sim_process *p)
{
    f->done = true;
    f->at_ns = ls__sim->now_ns;
    switch (f->kind) {
    case LS__FAULT_FLIP:
        f->done = false; /* but when the bit is read */
        flip_one(plan, f, p);
        break;
    case LS__FAULT_CUT:
    case LS__FAULT_ONE_WAY:
    case LS__FAULT_GAP:
        cut(f);
        break;
    case LS__FAULT_HOST:
        lose_host(f->host);
        break;
    case LS__FAULT_RESET:
        reset_one(f, p);
        break;
    case LS__FAULT_STALL:
    case LS__FAULT_FREEZE:
        ls__sim_kill(p, SIGSTOP);
        ls__sim_at(ls__sim->now_ns + f->for_ns, go_on, p, 0);
        break;
    case LS__FAULT_MEMORY:
        f->done = false; /* but when it strikes */
        f->armed = true;
        p->fail_allocation = 1 + f->operation;
        break;
    case LS__FAULT_SLOW:
        ls__sim->pace.slow = p;
        break;
    default:
        ls__sim_kill(p, SIGKILL);
    }
}

static ls__sim_process *target(const ls__plan *plan, const ls__fault *f)
{
    switch (f->kind) {
    case LS__FAULT_EXIT:
    case LS__FAULT_WRONG:
    case LS__FAULT_ABORT:
    case LS__FAULT_STOP:
    case LS__FAULT_DISK:
    case LS__FAULT_POWER:
        return NULL; /* they come by themselves */
    case LS__FAULT_AGENT:
        return plan->node[f->host].front->first_child;
    case LS__FAULT_FRONT:
        return plan->node[f->host].front;
    default:
        return plan->outcome[f->rank].process;
    }
}

static void watch(void *arg, ls__sim_process *p)
{
    ls__plan *plan = arg;
    for (int i = 0; i < plan->faults; i++) {
        ls__fault *f = &plan->fault[i];
        if (f->armed && !f->done && f->kind == LS__FAULT_FLIP) {
            f->done = f->flip.read;
            f->at_ns = f->flip.read_ns;
        } else if (f->armed && !f->done && p->fail_allocation == 0) {
            f->done = true;
        }
        if (!f->done && !f->armed && target(plan, f) == p && p->calls >= f->call) {
            strike(plan, f, p);
        }
    }
}

#define RENDEZVOUS "10.0.0.1:29400"
#define SECRET_PATH "/job.secret"
#define SECRET "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n"

static int front_main(void *arg)
{
    ls__plan_node *node = arg;
    ls__plan *plan = node->plan;
    ls__job job = {.ranks = plan->on_host[node->host],
                   .fn = node->main,
                   .arg = plan,
                   .forward_signals = plan->trains};
    if (plan->hosts > 1) {
        job.nodes = plan->hosts;
        job.node = node->host;
        job.rendezvous = RENDEZVOUS;
        job.rendezvous_from = "--rendezvous";
        job.secret_file = SECRET_PATH;
        job.plain = true;
    }
    node->status = ls__job_run(&ls__sim_env, &job, &node->result);
    node->ended = true;
    node->ended_ns = ls__sim->now_ns;
    ls__sim_note("the job ends on host %d: code %d, culprit %d: %s%s", node->host,
                 node->result.code, node->result.culprit, node->result.cause,
                 node->status < 0 ? ls_error_message() : "");
    return 0;
}

static void start_fronts(ls__plan *plan, int (*main)(void *arg))
{
    for (int h = 0; h < plan->hosts; h++) {
        ls__plan_node *node = &plan->node[h];
        char name[24];
        *node = (ls__plan_node){.plan = plan, .host = h, .main = main};
        snprintf(name, sizeof name, "front %d", h);
        node->front = ls__sim_process_new(h, name, front_main, node);
        ls__sim_set(node->front, "LOCKSTEP_HEAP_RESERVE", "1");
        ls__sim_set(node->front, "LOCKSTEP_TIMEOUT", "60");
    }
}

static void about(const ls__plan *plan, char *out, size_t bytes)
{
    size_t used = (size_t)snprintf(out, bytes, "%d ranks on %d hosts, %d operations%s", plan->ranks,
                                   plan->hosts, plan->operations, plan->groups ? ", groups" : "");
    for (int i = 0; i < plan->faults && used < bytes; i++) {
        const ls__fault *f = &plan->fault[i];
        used += (size_t)snprintf(out + used, bytes - used, "; %s of rank %d%s",
                                 ls__fault_name(f->kind), f->rank, f->done ? "" : " (never)");
    }
}

static void make_hosts(const ls__plan *plan)
{
    for (int h = 0; h < plan->hosts; h++) {
        ls__sim_host *host = &ls__sim->host[ls__sim->hosts++];
        snprintf(host->name, sizeof host->name, "host%d", h);
        snprintf(host->address, sizeof host->address, "10.0.0.%d", h + 1);
        host->cores = 1 + (int)ls__sim_below(&ls__sim->random, 4);
    }
}

static void arm_disk(const ls__plan *plan)
{
    const ls__fault *f = &plan->fault[0];
    if (f->kind == LS__FAULT_DISK) {
        ls__sim->disk_fault_in = f->call;
        ls__sim->disk_error = f->code == 0 ? -EIO : -ENOSPC;
    } else if (f->kind == LS__FAULT_POWER) {
        ls__sim->power_fails_in = f->call;
    }
}

static void disarm_disk(ls__plan *plan)
{
    ls__fault *f = &plan->fault[0];
    f->done = f->done || (f->kind == LS__FAULT_DISK && ls__sim->disk_failed) ||
              (f->kind == LS__FAULT_POWER && ls__sim->power_failed);
    ls__sim->disk_fault_in = ls__sim->power_fails_in = 0;
}

/* All is well again, and the job is started once more. */
static const char *resume(ls__plan *plan)
{
    ls__sim_note("the job is started again");
    memset(ls__sim->cut, 0, sizeof ls__sim->cut);
    for (int h = 0; h < ls__sim->hosts; h++) {
        ls__sim->host[h].down = false;
    }
    ls__sim->watch = NULL;
    ls__sim->pace.slow = NULL;
    ls__sim->limit_ns = ls__sim->now_ns + 200 * SECOND;
    start_fronts(plan, ls__resume_main);
    ls__sim_run();
    for (int h = 0; h < plan->hosts && !ls__sim->over; h++) {
        if (plan->node[h].result.code != 0) {
            ls__sim_stop("the second job: %s", plan->node[h].result.cause);
        }
    }
    return ls__sim->over ? ls__sim->why : NULL;
}

void ls__scenario_run(uint64_t seed, const ls__scenario_options *options,
                      ls__scenario_result *result)
{
    static ls__plan plan; /* large; one world at a time */
    ls__sim_begin(seed);
    ls__sim->log = options->log;
    ls__sim->log_arg = options->log_arg;
    ls__sim->log_switches = options->log_switches;
    ls__plan_draw(&plan, seed, options->ranks);
    make_hosts(&plan);
    ls__sim->limit_ns = 400 * SECOND;
    ls__sim->limit_switches = 20000000;
    ls__sim->watch = watch;
    ls__sim->watch_arg = &plan;
    ls__sim_put_file(SECRET_PATH, SECRET, sizeof SECRET - 1, 0600);
    arm_disk(&plan);
    start_fronts(&plan, ls__player_main);
    ls__sim_run();
    disarm_disk(&plan);
    const char *why = ls__plan_judge(&plan);
    if (why == NULL && plan.saves) {
        why = resume(&plan);
    }
    *result = (ls__scenario_result){.good = why == NULL,
                                    .hash = ls__sim->hash,
                                    .switches = ls__sim->switches,
                                    .calls = ls__sim->calls,
                                    .virtual_ns = ls__sim->now_ns};
    snprintf(result->why, sizeof result->why, "%s", why != NULL ? why : "");
    about(&plan, result->about, sizeof result->about);
    ls__sim_end();
}

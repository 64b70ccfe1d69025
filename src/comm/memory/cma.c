/* Copies from and to private memory of peers, and leases: see cma.h. */
#include "comm/memory/cma.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/settings.h"
#include "comm/diagnose/cause.h"

#define STUCK_NS 2000000000u /* far more than a call takes to end */

/* Of a lease, below the number of the operation. */
enum { CLOSED, OPEN, WRITING, STATES };

static uint64_t lease_of(uint64_t sequence, int state)
{
    return sequence * STATES + (uint64_t)state;
}

/* ---- what the system allows ---------------------------------------------------------------- */

static bool can_reach(const ls__comm *comm, int rank)
{
    const ls__env *env = comm->env;
    const ls__heap_header *header = ls__heap_header_of(&comm->heap, rank);
    const pid_t pid = (pid_t)header->pid;
    const uint64_t nonce = header->nonce, at = header->proof;
    uint64_t found = 0;
    return env->peer_read(env, pid, at, &found, sizeof found) == sizeof found && found == nonce &&
           env->peer_write(env, pid, at + offsetof(ls__cma_proof, written), &nonce, sizeof nonce,
                           at + offsetof(ls__cma_proof, marked), nonce) == 2 * sizeof nonce;
}

void ls__cma_find_out(ls__comm *comm)
{
    const char *setting = ls__setting_get("LOCKSTEP_CMA");
    comm->can_cma =
        comm->env->peer_read != NULL && (setting == NULL || strcmp(setting, "off") != 0);
    comm->always_cma = setting != NULL && strcmp(setting, "always") == 0;
    for (int r = 0; r < comm->heap.size && comm->can_cma; r++) {
        const ls__heap_peer *peer = &comm->heap.peer[r];
        if (r != comm->heap.rank && peer->base != NULL && !peer->remote && !can_reach(comm, r)) {
            LS__INFO(
                "private buffers are staged: this process may not read and write the memory of "
                "rank %d",
                r);
            comm->can_cma = false;
        }
    }
}

/* ---- copies -------------------------------------------------------------------------------- */

static pid_t pid_of(const ls_group *group, int member)
{
    return (pid_t)ls__heap_header_of(&group->comm->heap, group->member[member].world_rank)->pid;
}

/* Whether nothing can be written by this member any more. */
static bool has_ended(const ls_group *group, int member)
{
    const ls__env *env = group->comm->env;
    const int state = env->process_state(env, pid_of(group, member));
    return state < 0 || state == 'Z' || state == 'X';
}

/* Fails the group, unless the member has died, which is reported as every death is. */
static ls__cma_result fail(ls_group *group, int member, const char *what, int error)
{
    const ls__env *env = group->comm->env;
    if (error == ESRCH || has_ended(group, member) ||
        env->process_state(env, pid_of(group, member)) == 'K') {
        return LS__CMA_FAILED;
    }
    char text[LS__FAILURE_MAX], who[256];
    ls__comm_name(group->comm, group->member[member].world_rank, who, sizeof who);
    snprintf(
        text, sizeof text,
        "rank %d cannot %s a private buffer of %s: %s; was a buffer freed during the operation, or "
        "is it shorter than the count says? LOCKSTEP_CMA=off stages private buffers instead",
        group->comm->runtime->rank, what, who, strerror(error));
    ls__group_cause(group, LS_ERR_SYSTEM, text);
    return LS__CMA_FAILED;
}

ls__cma_result ls__cma_read(ls_group *group, int member, uint64_t from, void *to, size_t bytes)
{
    const ls__env *env = group->comm->env;
    const pid_t pid = pid_of(group, member);
    for (size_t done = 0; done < bytes;) {
        const ssize_t got =
            env->peer_read(env, pid, from + done, (unsigned char *)to + done, bytes - done);
        if (got <= 0) {
            return fail(group, member, "read", got == 0 ? EFAULT : (int)-got);
        }
        done += (size_t)got;
    }
    return LS__CMA_DONE;
}

/* Where the member's lease lies in its own address space. */
static uint64_t lease_at(const ls_group *group, int member)
{
    const ls__heap_header *header =
        ls__heap_header_of(&group->comm->heap, group->member[member].world_rank);
    const unsigned char *lease = (const unsigned char *)&group->member[member].control->lease;
    return header->self + (uint64_t)(lease - (const unsigned char *)header);
}

ls__cma_result ls__cma_write(ls_group *group, int member, uint64_t to, const void *from,
                             size_t bytes, uint64_t sequence)
{
    const ls__env *env = group->comm->env;
    const pid_t pid = pid_of(group, member);
    _Atomic uint64_t *lease = &group->member[member].control->lease;
    const uint64_t open = lease_of(sequence, OPEN), writing = lease_of(sequence, WRITING);
    for (size_t done = 0; done < bytes;) {
        uint64_t expected = open;
        if (!atomic_compare_exchange_strong(lease, &expected, writing)) {
            return LS__CMA_LATER;
        }
        const ssize_t got = env->peer_write(env, pid, to + done, (const unsigned char *)from + done,
                                            bytes - done, lease_at(group, member), open);
        expected = writing; /* the call has not come to the mark */
        (void)atomic_compare_exchange_strong(lease, &expected, open);
        if (got <= 0) {
            return fail(group, member, "write", got == 0 ? EFAULT : (int)-got);
        }
        done += (size_t)got;
    }
    return LS__CMA_DONE;
}

/* ---- leases -------------------------------------------------------------------------------- */

void ls__cma_open(ls_group *group, uint64_t sequence)
{
    atomic_store(&group->own->lease, lease_of(sequence, OPEN));
}

/* The job has failed, and the writer neither ends nor goes on: it was stopped in the few instructions
 * between taking the lease and its call. The buffer cannot be given back, so the process ends, as in
 * backend/plugin_call.c. */
static void end_stuck(const ls_group *group, int writer)
{
    char who[256];
    ls__comm_name(group->comm, group->member[writer].world_rank, who, sizeof who);
    LS__ERROR("%s is stopped while it writes into a buffer of rank %d, which has given up the "
              "operation, for %.0f s; so the process ends",
              who, group->comm->runtime->rank, STUCK_NS * 1e-9);
    _exit(1);
}

void ls__cma_close(ls_group *group, int writer)
{
    const ls__env *env = group->comm->env;
    _Atomic uint64_t *lease = &group->own->lease;
    const uint64_t begun = env->now_ns(env);
    for (uint64_t now = atomic_load(lease); now % STATES != CLOSED;) {
        if (now % STATES == OPEN) {
            if (atomic_compare_exchange_weak(lease, &now, now - OPEN + CLOSED)) {
                return;
            }
            continue;
        }
        if (has_ended(group, writer)) {
            return;
        }
        if (env->now_ns(env) - begun > STUCK_NS) {
            end_stuck(group, writer);
        }
        env->yield(env);
        now = atomic_load(lease);
    }
}

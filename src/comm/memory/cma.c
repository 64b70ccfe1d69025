/* Cross-memory attach; Note [Only reading] in cma.h says why it never writes. */
#include "comm/memory/cma.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/settings.h"
#include "comm/diagnose/cause.h"
#include "comm/group/group.h"
#include "comm/memory/control.h"
#include "comm/memory/heap.h"

/* Bytes of a call: the kernel looks up all of their pages before it copies the first. 4 MB that a
 * peer has just written: 400 us so, 400 to 680 in one call; 20 % slower with 32 KiB. */
#define CALL ((size_t)256 << 10)

/* LOCKSTEP_READ_PEERS: "on", "off", or automatic. */
static bool is_set_to(const char *value)
{
    const char *setting = ls__setting_get("LOCKSTEP_READ_PEERS");
    return setting != NULL && strcmp(setting, value) == 0;
}

/* Whether this process can read the memory of that rank. In a container the published pid may
 * belong to another process, so a number is read that only the right one has. */
static bool can_read(const ls__comm *comm, int rank)
{
    const ls__env *env = comm->env;
    const ls__heap_header *header = ls__heap_header_of(&comm->heap, rank);
    uint64_t proof = 0;
    const ssize_t got = env->peek(env, (pid_t)header->pid, header->proof, &proof, sizeof proof);
    return got == (ssize_t)sizeof proof && proof == header->nonce;
}

/* One unreadable rank turns CMA off on this rank; others may still use it, since each rank offers
 * its own buffers. */
void ls__cma_find_out(ls__comm *comm)
{
    comm->has_cma = !is_set_to("off");
    comm->cma_always = is_set_to("on");
    for (int r = 0; r < comm->heap.size && comm->has_cma; r++) {
        const ls__heap_peer *peer = &comm->heap.peer[r];
        if (r != comm->heap.rank && peer->base != NULL && !peer->remote && !can_read(comm, r)) {
            comm->has_cma = false;
            LS__DEBUG("rank %d may not read the memory of rank %d: private buffers are staged",
                      comm->heap.rank, r);
        }
    }
}

/* Probes the first and the last byte by the same system call that peers would use. */
bool ls__cma_can_show(const ls__comm *comm, const void *at, size_t bytes)
{
    const ls__env *env = comm->env;
    const uint64_t first = (uintptr_t)at;
    char byte = 0;
    return bytes > 0 && env->peek(env, env->pid(env), first, &byte, 1) == 1 &&
           env->peek(env, env->pid(env), first + bytes - 1, &byte, 1) == 1;
}

/* The group fails with the reader's view: the owner of the buffer notices nothing. */
static void fail(ls_group *group, int member, int error)
{
    char text[LS__FAILURE_MAX], who[128];
    ls__comm_name(group->comm, group->member[member].world_rank, who, sizeof who);
    snprintf(text, sizeof text,
             "rank %d cannot read a buffer of %s: %s; was it freed during the operation? With "
             "LOCKSTEP_READ_PEERS=off nothing is read so",
             group->comm->runtime->rank, who, strerror(error));
    ls__group_cause(group, LS_ERR_SYSTEM, text);
}

/* Reads in calls of CALL bytes. A process that has died is not reported here, because the launcher
 * names it. */
bool ls__cma_read(ls_group *group, int member, const void *from, void *to, size_t bytes)
{
    const ls__comm *comm = group->comm;
    const ls__env *env = comm->env;
    const ls__heap_header *header =
        ls__heap_header_of(&comm->heap, group->member[member].world_rank);
    for (size_t done = 0; done < bytes;) {
        const size_t left = bytes - done;
        const ssize_t got = env->peek(env, (pid_t)header->pid, (uintptr_t)from + done,
                                      (unsigned char *)to + done, left < CALL ? left : CALL);
        if (got <= 0) {
            if (got != -ESRCH) { /* of a death the launcher tells */
                fail(group, member, got == 0 ? EFAULT : (int)-got);
            }
            return false;
        }
        done += (size_t)got;
    }
    return true;
}

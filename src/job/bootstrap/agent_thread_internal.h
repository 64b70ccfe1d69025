/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by agent_thread.c (the thread, its loop, its end) and agent_thread_gather.c (until all
 * ranks are present). Only the thread touches the fields, except for `leaving`. */
#ifndef LS_JOB_BOOTSTRAP_AGENT_THREAD_INTERNAL_H
#define LS_JOB_BOOTSTRAP_AGENT_THREAD_INTERNAL_H

#include "job/agent/host_agent.h"
#include "job/bootstrap/local_rendezvous.h"
#include "job/bootstrap/methods.h"

#define LS__NEWCOMERS_MAX 64
#define LS__GATHER_WARN_MS 5000

typedef struct ls__local_rank { /* a rank of this host, until all are present; by local rank */
    bool joined;
    int fd; /* its stream, which then goes to the store; -1: none */
    int world_rank;
} ls__local_rank;

typedef enum ls__agent_phase {
    LS__AGENT_LOCAL,   /* the ranks of this host come to the local rendezvous */
    LS__AGENT_HOSTS,   /* the hosts come to the rendezvous */
    LS__AGENT_RUNNING, /* all are present; the board exists */
    LS__AGENT_OVER
} ls__agent_phase;

struct ls__agent_thread {
    ls__host_agent host;
    ls__detected detected;
    uint64_t deadline_ns;
    char name[LS__HOST_NAME_MAX]; /* of the local rendezvous */
    ls__env_thread *thread;
    int event_fd;             /* set with `leaving` */
    _Atomic uint32_t leaving; /* Sync: release by the rank's thread, acquire by this one */
    ls__agent_phase phase;
    int listen_fd;
    int newcomer[LS__NEWCOMERS_MAX]; /* connections whose hello is missing; -1: none */
    ls__local_rank local[LS__BOARD_RANKS_MAX];
    int joined;
    uint64_t warn_ns;  /* when to name the missing ranks again */
    uint64_t leave_ns; /* after a failure: when the thread ends although ranks remain */
    ls__env_poll *items;
    int item_room;
};

/* agent_thread_gather.c: one turn until all are there. The items of the last poll: newcomers', then
 * those of the ranks that have come. */
void ls__agent_thread_gather(ls__agent_thread *t, const ls__env_poll *newcomers);

#endif

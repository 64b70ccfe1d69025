/* SPDX-License-Identifier: Apache-2.0 */
/* What this process knows of the ranks on other hosts: their cached control blocks, heap headers
 * and board records, which messages keep up to date (remote/remote.h). */
#ifndef LS_COMM_CORE_REMOTE_RANK_H
#define LS_COMM_CORE_REMOTE_RANK_H

#include "base/list.h"
#include "comm/core/comm.h"

/* A rank on another host; all of it is written by the holder of the progress lock. */
typedef struct ls__remote_rank {
    unsigned char *cache;   /* heap header and the world's control block */
    ls__board_rank *record; /* of its board */
    char host[64];
    int first;                   /* the lowest rank of its host */
    ls__list waiting;            /* messages (ls__unexpected) that found no slot yet */
    uint64_t broken_ns, left_ns; /* time of the event; 0: it has not happened */
    bool silent;                 /* a warning about its silence was logged */
    bool given_up;               /* its groups have failed */
    bool bye_seen;               /* it has answered BYE */
} ls__remote_rank;

struct ls__remote {
    int count;             /* of remote ranks */
    bool *is;              /* [world size] */
    ls__remote_rank *rank; /* [world size]; empty for local ranks */
    ls__transport *net;    /* TCP; with MPI it carries control only */
    ls__transport *mpi;    /* NULL: TCP carries the data, too; owned by comm->transport, as net */
    int *bell;             /* [board ranks] events that wake the ranks of this host */
    uint64_t next_beat_ns, checked_ns; /* of the next heartbeat, of the last check */
    bool stood_still;                  /* before this check: other ranks only look silent */
    bool leaving;                      /* this rank has said BYE */
};

#endif

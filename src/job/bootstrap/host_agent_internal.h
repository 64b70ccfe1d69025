/* Between steward.c (the thread and its loop), steward_gather.c (until all are there) and
 * steward_judge.c (verdict and leaving). Everything belongs to the thread but `leaving`. */
#ifndef LS_JOB_BOOTSTRAP_HOST_AGENT_INTERNAL_H
#define LS_JOB_BOOTSTRAP_HOST_AGENT_INTERNAL_H

#include "job/board.h"
#include "job/bootstrap/host_agent.h"
#include "job/bootstrap/local_rendezvous.h"
#include "job/nodes/nodes.h"

#define LS__STRANGERS_MAX 64
#define LS__HOST_AGENT_WARN_MS 10000

typedef struct ls__host_member { /* a rank of this host; by local rank */
    bool came, ended;
    int fd;    /* its stream until all are there; then the store has it */
    int pidfd; /* -1: ours, unknown, or ended */
    int rank, pid;
} ls__host_member;

typedef enum ls__host_agent_phase {
    LS__HOST_AGENT_HERE,    /* the ranks of this host come to the meeting */
    LS__HOST_AGENT_THERE,   /* the hosts come to the rendezvous */
    LS__HOST_AGENT_RUNNING, /* store, processes, verdict, the other hosts */
    LS__HOST_AGENT_OVER
} ls__host_agent_phase;

struct ls__host_agent {
    const ls__env *env;
    ls__found found;
    uint64_t deadline_ns;
    char name[LS__HOST_NAME_MAX], host[64];
    ls__env_thread *thread;
    int event_fd;             /* set with `leaving` */
    _Atomic uint32_t leaving; /* Sync: release by the rank's thread, acquire by the steward's */
    ls__host_agent_phase phase;
    int listen_fd;
    int stranger[LS__STRANGERS_MAX]; /* have connected, but not said who they are; -1: none */
    ls__host_member member[LS__BOARD_RANKS_MAX];
    int came;
    uint8_t secret[LS__STORE_SECRET_BYTES];
    ls__store_server *store;
    bool plain;
    ls__nodes *nodes; /* NULL: one host */
    ls__nodes_world world;
    ls__board *board;
    int board_fd;
    bool given;                            /* the verdict */
    bool done;                             /* node 0 was told that all have left here */
    ls__found_kind reported;               /* the best that it was told */
    uint64_t settle_ns, leave_ns, warn_ns; /* warn: who is waited for */
    ls__env_poll *items;
    int item_room;
};

/* steward_gather.c: one turn until all are there; `strangers` are their items of the last poll. */
void ls__host_agent_gather(ls__host_agent *s, const ls__env_poll *strangers);

/* steward_judge.c */
void ls__host_agent_judge(ls__host_agent *s);
/* Whether the thread is needed any more. */
void ls__host_agent_look_for_the_end(ls__host_agent *s);

#endif

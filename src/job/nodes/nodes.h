/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of a job: one process on each host, in a star around node 0.
 *
 *                      ┌──────────── node 0: the store, the layout, the root cause
 *     node 1 ── link ──┤             it alone listens, at the rendezvous
 *     node 2 ── link ──┘
 *
 * A node is the launcher's agent (src/launch) or, under other launchers, a thread of local rank 0
 * (job/bootstrap/agent_thread.c). Its link carries the requests of its ranks to the store, a
 * heartbeat per second in both directions, stop requests, failure records, and the root cause:
 *
 *     HELLO ▸ WELCOME (the world's layout) ▸ … ▸ FAILURE ▸ CAUSE ▸ DONE ▸ END
 *
 * Node 0 decides which failure is the root cause. A node that receives nothing for
 * LS__NODES_SILENT_MS considers the other side lost and reports that. The owner's poll loop drives
 * it; no call blocks; all calls come from one thread.
 */
#ifndef LS_JOB_NODES_NODES_H
#define LS_JOB_NODES_NODES_H

#include "job/board.h"
#include "job/failure.h"
#include "job/link/link.h"
#include "job/nodes/rendezvous.h"
#include "job/store/store.h"

#define LS__NODES_MAX 128
#define LS__NODES_HEARTBEAT_MS 1000
#define LS__NODES_SILENT_MS 5000

/* GATHERING ─▶ RUNNING ─▶ ENDED, or GATHERING ─▶ FAILED. */
typedef enum ls__nodes_state {
    LS__NODES_GATHERING, /* waits for all nodes to join */
    LS__NODES_RUNNING,   /* all nodes have joined */
    LS__NODES_ENDED,     /* END was received, or node 0 has sent it to all others */
    LS__NODES_FAILED     /* gathering failed: ls__nodes_error */
} ls__nodes_state;

typedef struct ls__nodes_spec {
    const ls__env *env;
    ls__store_server *store; /* borrowed: this host's */
    const uint8_t *secret;   /* [LS__LINK_SECRET]; NULL: one of this run, on the loopback only */
    ls__link_mode mode;
    const ls__rendezvous_place *place; /* resolved; borrowed for the call */
    bool first;                        /* this is node 0 */
    int nodes;                         /* how many; 0: until all ranks of the world are there */
    int node;                          /* which this is; -1: given when all are there */
    int ranks;                         /* of this host */
    int world_size;                    /* 0: the sum */
    const int *world_rank;             /* [ranks], borrowed; NULL: in the order of the nodes */
    int attempt;                       /* node 0's counts */
    const char *id;                    /* of the job, the same on all nodes; may be "" */
    const char *run_id;                /* node 0's counts */
    const char *host;                  /* this host's name */
    const char *version;               /* of the library: the same on all nodes */
    int64_t timeout_ms;                /* for all to come */
    uint64_t deadline_ns;              /* when it ends; 0: timeout_ms from now */
} ls__nodes_spec;

/* The layout of the world, the same on all nodes once RUNNING. */
typedef struct ls__nodes_world {
    uint64_t job;
    int attempt, nodes, node, first_rank, world_size;
    char run_id[32];
    char address[LS__ADDRESS_MAX]; /* of this host, as the others reach it */
    char master[LS__ADDRESS_MAX];  /* of node 0 */
    int master_port;               /* free there a moment ago, for the program's own use */
} ls__nodes_world;

typedef struct ls__nodes_end { /* node 0's decision when a job has ended */
    bool again;
    int64_t delay_ms;
    char text[256];
} ls__nodes_end;

typedef struct ls__nodes ls__nodes;

ls_status ls__nodes_open(const ls__nodes_spec *spec, ls__nodes **out);
void ls__nodes_close(ls__nodes *nodes); /* NULL is allowed */

/* For the owner's loop: call ls__nodes_turn when the descriptor is readable or the deadline has
 * passed.
 */
int ls__nodes_fd(const ls__nodes *nodes);
uint64_t ls__nodes_deadline(const ls__nodes *nodes);
void ls__nodes_turn(ls__nodes *nodes);
/* Writes what was queued since the last turn. */
void ls__nodes_flush(ls__nodes *nodes);

ls__nodes_state ls__nodes_state_of(const ls__nodes *nodes);
const char *ls__nodes_error(const ls__nodes *nodes);
const ls__nodes_world *ls__nodes_world_of(const ls__nodes *nodes);
/* The secret of the job, once RUNNING. */
const uint8_t *ls__nodes_secret(const ls__nodes *nodes);
/* The protection of the links, once RUNNING: "TLS 1.3, …" or "plain". */
const char *ls__nodes_protection(const ls__nodes *nodes);

/* The signal of a stop request from another node; 0: none. Each is returned once. */
int ls__nodes_take_stop(ls__nodes *nodes);
/* Sends a stop request of this host's user to all other nodes. */
void ls__nodes_stop(ls__nodes *nodes, int signal);

/* The failure record from elsewhere that explains most: at node 0 those that nodes report, and lost
 * nodes; at another node, the loss of node 0. NULL: none. */
const ls__failure_record *ls__nodes_failure(const ls__nodes *nodes);
/* Reports a failure to node 0, whose answer is the root cause. */
void ls__nodes_report(ls__nodes *nodes, const ls__failure_record *failure);
/* At node 0: sends the root cause to all others. Only the first call counts. */
void ls__nodes_announce_cause(ls__nodes *nodes, const ls__failure_record *cause);
/* The root cause, as node 0 announced it; NULL: not yet. */
const ls__failure_record *ls__nodes_cause(const ls__nodes *nodes);

/* No rank of this host runs any more. `tail`: the last output lines of the failed rank if it ran
 * here, else "". */
void ls__nodes_done(ls__nodes *nodes, const char *tail);
/* At node 0: whether all others are done or lost; *tail: the first text that came with it. */
bool ls__nodes_all_done(const ls__nodes *nodes, const char **tail);
/* At node 0: sends END to all; the state becomes ENDED when the others have hung up. */
void ls__nodes_finish(ls__nodes *nodes, const ls__nodes_end *end);
/* At the others, once ENDED: the decision of node 0; NULL: node 0 is lost. */
const ls__nodes_end *ls__nodes_end_of(const ls__nodes *nodes);

#endif

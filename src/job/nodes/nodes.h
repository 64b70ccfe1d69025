/* The nodes of a job: one process on each host, in a star around node 0.
 *
 *                      ┌──────────── node 0: the store, the layout, the root cause
 *     node 1 ── link ──┤             listens at the rendezvous, and nowhere else
 *     node 2 ── link ──┘
 *
 * A node is the launcher's agent (src/launch) or, under other launchers, a thread of a host's first
 * rank (job/bootstrap/agent_thread.c). Over its link go its ranks' requests to the store, a
 * heartbeat a second both ways, stop requests, failures, and the root cause among them:
 *
 *     HELLO ▸ WELCOME (the world's layout) ▸ … ▸ FAILURE ▸ CAUSE ▸ DONE ▸ END
 *
 * Node 0 decides which failure was the first; a node that hears nothing for LS__NODES_SILENT_MS has
 * lost the other side and says so. Driven by its owner's poll loop; nothing blocks; one thread.
 */
#ifndef LS_JOB_NODES_NODES_H
#define LS_JOB_NODES_NODES_H

#include "job/board.h"
#include "job/failure.h"
#include "job/link/link.h"
#include "job/nodes/rendezvous.h"
#include "job/store/store.h"

#define LS__NODES_MAX 128
#define LS__NODES_BEAT_MS 1000
#define LS__NODES_SILENT_MS 5000

typedef enum ls__nodes_state {
    LS__NODES_GATHERING,
    LS__NODES_RUNNING, /* all nodes are there */
    LS__NODES_ENDED,   /* END has come, or has reached everybody */
    LS__NODES_FAILED   /* gathering failed: ls__nodes_error */
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
} ls__nodes_spec;

/* What all know once all are there. */
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

/* For the owner's loop: readable, or the deadline: then ls__nodes_turn. */
int ls__nodes_fd(const ls__nodes *nodes);
uint64_t ls__nodes_deadline(const ls__nodes *nodes);
void ls__nodes_turn(ls__nodes *nodes);
/* Writes what was queued since the last turn. */
void ls__nodes_flush(ls__nodes *nodes);

ls__nodes_state ls__nodes_state_of(const ls__nodes *nodes);
const char *ls__nodes_error(const ls__nodes *nodes);
const ls__nodes_world *ls__nodes_world_of(const ls__nodes *nodes);
/* The job's, once RUNNING. */
const uint8_t *ls__nodes_secret(const ls__nodes *nodes);
/* "TLS 1.3, …", "plain": of a link between nodes, once RUNNING. */
const char *ls__nodes_protection(const ls__nodes *nodes);

/* A signal that another node's user gave; 0: none. Each is returned once. */
int ls__nodes_take_stop(ls__nodes *nodes);
void ls__nodes_stop(ls__nodes *nodes, int signal);

/* The best that was found elsewhere: at node 0 what nodes report, or that one is lost; at another
 * that node 0 is lost. NULL: nothing. */
const ls__failure_record *ls__nodes_failure(const ls__nodes *nodes);
/* Reports a failure to node 0, whose answer is the root cause. */
void ls__nodes_report(ls__nodes *nodes, const ls__failure_record *finding);
/* At node 0: this is the job's first failure. Once. */
void ls__nodes_announce_cause(ls__nodes *nodes, const ls__failure_record *cause);
/* At the others: what node 0 said; NULL: nothing yet. */
const ls__failure_record *ls__nodes_cause(const ls__nodes *nodes);

/* Nothing of this host runs any more; `tail`: the culprit's last lines, if it ran here, or "". */
void ls__nodes_done(ls__nodes *nodes, const char *tail);
/* At node 0: all others have said so, or are lost; *tail: what came with it. */
bool ls__nodes_all_done(const ls__nodes *nodes, const char **tail);
/* At node 0: tells all; the state becomes ENDED when it is written. */
void ls__nodes_finish(ls__nodes *nodes, const ls__nodes_end *end);
/* At the others, once ENDED: what node 0 decided; NULL: it is lost. */
const ls__nodes_end *ls__nodes_end_of(const ls__nodes *nodes);

#endif

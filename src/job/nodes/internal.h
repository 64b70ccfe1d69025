/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by nodes.c (both sides), first_node.c and gather.c (node 0) and other_node.c (the
 * others). */
#ifndef LS_JOB_NODES_INTERNAL_H
#define LS_JOB_NODES_INTERNAL_H

#include "base/list.h"
#include "job/link/listener.h"
#include "job/nodes/frames.h"
#include "job/nodes/nodes.h"

#define LS__NODES_LISTENERS 4
#define LS__NODES_TAIL 1536
#define LS__NODES_LOST_CODE 1 /* the job's exit code when the root cause is a lost node */

/* At node 0: another node, from its connection on.
 *
 *     connected ─▶ known (HELLO accepted) ─▶ done (none of its ranks runs) ─▶ freed
 *         └─▶ refused ─▶ freed             └──────┴─▶ lost (the link ended or is silent)
 */
typedef struct ls__nodes_peer {
    ls__list link;
    ls__nodes *nodes;
    ls__frames frames;
    bool known;   /* its HELLO was accepted */
    bool refused; /* its HELLO was refused; it is freed when it hangs up or at the deadline */
    bool done;    /* it reported that no rank of its host runs any more */
    bool lost;    /* its link was closed here; only kept for the records */
    uint64_t deadline_ns; /* for HELLO, or for a refused peer to hang up */
    int node;             /* -1: not assigned yet */
    int ranks, first_rank;
    int world_rank[LS__BOARD_RANKS_MAX]; /* its world ranks, if another launcher assigned them */
    char host[64], address[LS__ADDRESS_MAX];
    ls__store_peer *store_peer;
} ls__nodes_peer;

struct ls__nodes {
    const ls__env *env;
    ls__store_server *store;
    ls__link_spec link_spec;
    uint8_t secret[LS__LINK_SECRET];
    bool first; /* this is node 0 */
    int wanted; /* number of nodes; 0: unknown, all nodes have joined when the world is complete */
    int node, ranks;
    int given_world; /* size of the world if another launcher assigned the ranks; else 0 */
    int world_rank[LS__BOARD_RANKS_MAX];
    char id[64], host[64], version[32];
    bool has_secret; /* the user gave a secret; otherwise it is exchanged on this host */
    ls__rendezvous_place place;
    int64_t timeout_ms;
    uint64_t deadline_ns; /* for all nodes to join */
    uint64_t warn_ns;     /* the next time to log which nodes are missing */
    ls__nodes_state state;
    ls__nodes_world world;
    char error[1024];
    int poller;

    int stop; /* a signal that the owner has not taken yet; 0: none */
    bool has_failure, has_cause, has_end;
    ls__failure_record failure, cause;
    ls__nodes_end end;
    char tail[LS__NODES_TAIL];

    /* node 0 */
    ls__listener *listener[LS__NODES_LISTENERS];
    int listeners;
    ls__list peers;
    bool finishing;
    uint64_t finish_ns;        /* deadline for the other nodes to receive END and hang up */
    int exchange_fd;           /* serves the secret to processes of this user; -1: not open */
    char own[LS__ADDRESS_MAX]; /* this host's address as the others reach it; "": not known yet */

    /* the others */
    ls__frames frames;
    bool lost;           /* the link to node 0 is lost */
    bool reached;        /* the TCP connection of this link was established */
    int failed_proofs;   /* connections that ended during the handshake */
    bool hello_sent;     /* HELLO was sent on this link */
    char first_host[64]; /* the host of node 0 */
    int tries;           /* connections tried; selects the next address */
    uint64_t retry_ns;   /* when to try the next address, or to give up the present one */
    bool has_interface;
    ls__env_interface interface;
    char why[768]; /* why the last try failed */
};

/* nodes.c */
/* Gathering has failed: sets the error text and the state FAILED. */
void ls__nodes_fail(ls__nodes *n, const char *format, ...) LS__PRINTF(2, 3);
json_t *ls__failure_pack(const ls__failure_record *f);
/* False: a field is missing or out of range. */
bool ls__failure_unpack(const json_t *from, ls__failure_record *out);
/* The object in a payload, or NULL. */
json_t *ls__node_parse(const uint8_t *payload, size_t bytes);
/* A text of an object, cut to fit; "" if the object has none of that name. */
void ls__node_text(const json_t *from, const char *key, char *out, size_t bytes);
/* Keeps a failure record if it explains more than the one kept so far. */
void ls__nodes_note(ls__nodes *n, const ls__failure_record *f);
/* Sends a heartbeat if nothing was sent for LS__NODES_HEARTBEAT_MS. */
void ls__nodes_heartbeat(ls__frames *f, uint64_t now);
/* Whether nothing was received for LS__NODES_SILENT_MS; `why` then says so. */
bool ls__nodes_silent(const ls__frames *f, uint64_t now, char *why, size_t bytes);
/* The next time at which one of these two must be called. */
uint64_t ls__nodes_frames_deadline(const ls__frames *f, bool watched);

/* first_node.c */
ls_status ls__first_open(ls__nodes *n);
void ls__first_turn(ls__nodes *n, uint64_t now);
void ls__first_flush(ls__nodes *n);
void ls__first_close(ls__nodes *n);
uint64_t ls__first_deadline(const ls__nodes *n);
/* Sends to all accepted nodes but `except` (may be NULL); takes the object. */
void ls__first_send_all(ls__nodes *n, const ls__nodes_peer *except, ls__node_type type,
                        json_t *object);

/* gather.c */
/* Handles a HELLO: the peer becomes known, or is refused with a reason. */
void ls__gather_hello(ls__nodes *n, ls__nodes_peer *p, const json_t *hello);
/* If all nodes have joined: assigns nodes and ranks and sends WELCOME. */
void ls__gather_try(ls__nodes *n);
/* The nodes, or ranks, that have not joined: "node ranks 1, 3 of 4 nodes". */
void ls__gather_missing(const ls__nodes *n, char *out, size_t bytes);

/* other_node.c */
ls_status ls__other_open(ls__nodes *n);
void ls__other_turn(ls__nodes *n, uint64_t now);
uint64_t ls__other_deadline(const ls__nodes *n);

#endif

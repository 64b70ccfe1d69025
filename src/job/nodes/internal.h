/* Between nodes.c (both sides), first_node.c (node 0) and other_node.c (the others). */
#ifndef LS_JOB_NODES_INTERNAL_H
#define LS_JOB_NODES_INTERNAL_H

#include "base/list.h"
#include "job/link/listener.h"
#include "job/nodes/frames.h"
#include "job/nodes/nodes.h"

#define LS__NODES_LISTENERS 4
#define LS__NODES_TAIL 1536

typedef struct ls__nodes_peer { /* at node 0: another node */
    ls__list link;
    ls__nodes *nodes;
    ls__frames frames;
    bool known;  /* has said HELLO, and was accepted */
    bool leaves; /* was refused: goes once that is written */
    bool done;
    bool lost;            /* its link is gone */
    uint64_t deadline_ns; /* to say HELLO, or to go */
    int node;             /* -1: not given yet */
    int ranks, first_rank;
    int world_rank[LS__BOARD_RANKS_MAX]; /* where it said them */
    char host[64], address[LS__ADDRESS_MAX];
    ls__store_peer *store_peer;
} ls__nodes_peer;

struct ls__nodes {
    const ls__env *env;
    ls__store_server *store;
    ls__link_spec link_spec;
    uint8_t secret[LS__LINK_SECRET];
    bool first;
    int wanted; /* nodes; 0: until the world is complete */
    int node, ranks;
    int given_world; /* size of the world, where ranks are dealt out already; 0: they are not */
    int world_rank[LS__BOARD_RANKS_MAX];
    char id[64], host[64], version[32];
    bool has_secret; /* given, or fetched */
    ls__rendezvous_place place;
    int64_t timeout_ms;
    uint64_t deadline_ns; /* of gathering */
    uint64_t warn_ns;     /* when to say next who is waited for */
    ls__nodes_state state;
    ls__nodes_world world;
    char error[1024];
    int poller;

    int stop;
    bool has_failure, has_cause, has_end;
    ls__failure_record failure, cause;
    ls__nodes_end end;
    char tail[LS__NODES_TAIL];

    /* node 0 */
    ls__listener *listener[LS__NODES_LISTENERS];
    int listeners;
    ls__list peers;
    bool finishing;
    uint64_t finish_ns;        /* until when END may be on its way */
    int exchange_fd;           /* hands the secret to processes of this user; -1: it is in a file */
    char own[LS__ADDRESS_MAX]; /* address, as others reach it; "": not known yet */

    /* the others */
    ls__frames frames;
    bool lost;           /* node 0 is not there any more */
    bool reached;        /* somebody listens there: this link was connected */
    int rebuffs;         /* connections that ended within the proof of the secret */
    bool greeted;        /* HELLO was sent on this link */
    char first_host[64]; /* node 0's */
    int tries;           /* of addresses */
    uint64_t retry_ns;   /* when to try the next one */
    bool has_interface;
    ls__env_interface interface;
    char why[768]; /* the last try failed */
};

/* nodes.c */
void ls__nodes_fail(ls__nodes *n, const char *format, ...) LS__PRINTF(2, 3);
json_t *ls__failure_pack(const ls__failure_record *f);
bool ls__failure_unpack(const json_t *from, ls__failure_record *out);
/* The object in a payload, or NULL. */
json_t *ls__node_parse(const uint8_t *payload, size_t bytes);
/* A text of an object, cut to fit; "" where there is none. */
void ls__node_text(const json_t *from, const char *key, char *out, size_t bytes);
void ls__nodes_note(ls__nodes *n, const ls__failure_record *f);

/* first_node.c */
ls_status ls__first_open(ls__nodes *n);
void ls__first_turn(ls__nodes *n, uint64_t now);
void ls__first_flush(ls__nodes *n);
void ls__first_close(ls__nodes *n);
uint64_t ls__first_deadline(const ls__nodes *n);
/* To all accepted nodes but `except` (may be NULL); takes the object. */
void ls__first_tell(ls__nodes *n, const ls__nodes_peer *except, ls__node_type type, json_t *object);

/* gather.c */
/* Looks at a HELLO; the peer is accepted, or refused in words. */
void ls__gather_hello(ls__nodes *n, ls__nodes_peer *p, const json_t *hello);
/* When all are there: deals out the world and welcomes them. */
void ls__gather_try(ls__nodes *n);
/* "node ranks 1 and 3" */
void ls__gather_missing(const ls__nodes *n, char *out, size_t bytes);

/* other_node.c */
ls_status ls__other_open(ls__nodes *n);
void ls__other_turn(ls__nodes *n, uint64_t now);
uint64_t ls__other_deadline(const ls__nodes *n);

#endif

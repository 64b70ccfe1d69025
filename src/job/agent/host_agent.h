/* SPDX-License-Identifier: Apache-2.0 */
/* The agent of a host: everything a job needs there besides its ranks.
 *
 *     the store's server      values and descriptors for the ranks of this host     job/store
 *     the board               shared state of ranks and agent                       job/board.h
 *     the hosts               one node among the job's others, where there are any  hosts.c
 *     the ranks' ends         in the order in which they came                       ends.c
 *     the root cause          one among all failures, one text for all readers      root_cause.c
 *
 * Two owners drive it from their poll loops. `lockstep run` and ls_spawn have a process of their
 * own for it (src/launch), which also starts and ends the ranks. Under other launchers it is a
 * thread of the host's local rank 0 (job/bootstrap/agent_thread.c), which can do neither, and which
 * does not learn how a rank ended: only their parent does. That is the only difference here
 * (`launcher`).
 *
 * One thread; nothing here is shared but the board.
 */
#ifndef LS_JOB_AGENT_HOST_AGENT_H
#define LS_JOB_AGENT_HOST_AGENT_H

#include "job/board.h"
#include "job/failure.h"
#include "job/nodes/nodes.h"
#include "job/store/store.h"

#define LS__HOST_AGENT_ITEMS 2 /* of the poll loop, besides the store's */

typedef struct ls__host_agent_rank { /* by local rank */
    int pid;                         /* 0: not known */
    int pidfd;                       /* -1: this process, not started, or ended */
    bool ended;
    uint64_t ended_ns;
    int order;         /* 1: the first to end, or to be killed; 0: not known to do either */
    ls__life life;     /* on the board when it ended */
    ls__env_exit exit; /* how it ended; only a parent knows */
    bool no_memory;    /* SIGKILL, and the kernel has killed a process for lack of memory */
} ls__host_agent_rank;

typedef struct ls__host_agent {
    const ls__env *env;
    const char *launcher; /* another launcher, the ranks' parent; NULL: this process is */
    char name[64];        /* of the host */
    int ranks;            /* of this host */
    uint8_t secret[LS__STORE_SECRET_BYTES];
    ls__store_server *store;
    ls__board *board; /* NULL: not all hosts are there yet */
    int board_fd;

    ls__nodes *nodes;          /* NULL: this host is alone */
    ls__nodes_world world;     /* where this host's ranks stand in it */
    bool first;                /* this host decides on the root cause */
    bool plain;                /* links that leave this host are not encrypted, or need not be */
    bool done;                 /* DONE was sent: no rank runs here any more */
    ls__failure_kind reported; /* the best explanation sent to the first host */

    ls__host_agent_rank rank[LS__BOARD_RANKS_MAX];
    int started, running;
    int ends_fd;       /* a poller of the ranks' pidfds */
    int ends;          /* orders given */
    int stop_signal;   /* the user's stop request; 0: none. The owner sets it */
    int64_t oom_kills; /* of this host by the kernel, before the ranks were started */

    bool has_cause;
    ls__failure_record cause; /* the root cause */
    int consequences;         /* ranks that it stopped */
    uint64_t settle_ns;       /* when the best explanation so far becomes the root cause */
} ls__host_agent;

/* ---- life: host_agent.c ---------------------------------------------------------------------- */

/* The world is this host's ranks alone, until hosts join. `launcher` is a literal, or NULL. */
ls_status ls__host_agent_init(ls__host_agent *a, const ls__env *env, const char *launcher,
                              int ranks, int attempt);
/* Replaces an agent that has died: it reads the board (borrowed), on which all ranks run, and
 * nothing else. It needs no fini. */
void ls__host_agent_stand_in(ls__host_agent *a, const ls__env *env, const char *launcher,
                             ls__board *board);
void ls__host_agent_fini(ls__host_agent *a); /* also of one whose init failed, or zeros */
/* Makes secret and board, once all hosts are present. world_rank[ranks], NULL: consecutive. */
ls_status ls__host_agent_make_board(ls__host_agent *a, const int *world_rank);

/* For the owner's poll loop: writes up to `room` items, returns how many, lowers *deadline_ns. */
int ls__host_agent_poll(ls__host_agent *a, ls__env_poll *items, int room, uint64_t *deadline_ns);
/* Serves what the poll reported: ends of ranks, the store, the other hosts. */
void ls__host_agent_turn(ls__host_agent *a, const ls__env_poll *items, int count);
/* Then, once there is a board: looks for the root cause, and publishes it. */
void ls__host_agent_conclude(ls__host_agent *a);

/* ---- other hosts: hosts.c -------------------------------------------------------------------- */

typedef struct ls__host_agent_hosts {
    const char *rendezvous, *rendezvous_from; /* HOST:PORT, and the flag or variable that gave it */
    const char *secret_file, *secret_from;    /* NULL: none */
    const uint8_t *secret;       /* used without a file; NULL: none, and then only the loopback */
    const ls__nodes_spec *nodes; /* number of hosts, time limit …; hosts.c adds the rest */
    bool plain;                  /* the user's choice for links that leave the host */
    bool (*stop)(void *arg);     /* asked while a name is resolved; true: give up; NULL: never */
    void *stop_arg;
} ls__host_agent_hosts;

/* Starts to gather: the first host listens at the rendezvous, the others connect to it. */
ls_status ls__host_agent_join_hosts(ls__host_agent *a, const ls__host_agent_hosts *hosts);

typedef enum ls__host_agent_leave {
    LS__LEAVE_WAIT,   /* another host needs this one */
    LS__LEAVE_DECIDE, /* the first host, all are done: say by ls__nodes_finish what follows */
    LS__LEAVE_OVER
} ls__host_agent_leave;

/* Call when no rank of this host runs any more. `tail`: the culprit's last lines if it ran here,
 * else ""; *other_tail: the same from another host. */
ls__host_agent_leave ls__host_agent_may_leave(ls__host_agent *a, const char *tail,
                                              const char **other_tail);

/* ---- ends of ranks: ends.c ------------------------------------------------------------------- */

/* Rank r runs, as rank[r].pid; a pidfd that is not -1 is watched.
 * Ranks are watched in their order. */
void ls__host_agent_watch(ls__host_agent *a, int r);
/* Notes the ends that have come since the last call. A parent reaps them, too. */
void ls__host_agent_take_ends(ls__host_agent *a);
/* One that was reaped elsewhere; how NULL: not known. */
void ls__host_agent_note_end(ls__host_agent *a, int r, const ls__env_exit *how);
bool ls__host_agent_awaits_end(const ls__host_agent *a); /* of a rank killed before the others */

/* ---- failures: root_cause.c, failure_text.c -------------------------------------------------- */

/* A root cause that is about no rank: the program cannot be started, the launcher was killed. Only
 * the first call has an effect. */
void ls__host_agent_fail(ls__host_agent *a, const ls__failure_record *f);
/* "note: …": a failure that a rank recorded and survived; "": none. */
void ls__host_agent_past_failure(const ls__host_agent *a, char *out, size_t bytes);

/* How rank r, which has ended, did so, and during which activity. */
void ls__failure_say_end(const ls__host_agent *a, int r, char *out, size_t bytes);
/* The failure that it recorded itself. */
void ls__failure_say_noted(const ls__host_agent *a, int r, char *out, size_t bytes);
const char *ls__signal_name(int signal); /* "SIGKILL" … */

#endif

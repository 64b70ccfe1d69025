/* The agent's parts, shared by the files of this folder. One thread; nothing here is shared. */
#ifndef LS_LAUNCH_AGENT_H
#define LS_LAUNCH_AGENT_H

#include "job/board.h"
#include "job/nodes/nodes.h"
#include "job/store/store.h"
#include "launch/launch.h"
#include "launch/output.h"
#include "launch/restart.h"

#define LS__JOB_SECRET_BYTES 32

typedef struct ls__agent_rank {
    pid_t pid;
    int pidfd; /* -1: not started, or reaped */
    bool ended;
    uint64_t ended_ns;
    int order;           /* 1: the first to end, or to be killed; 0: not known to do either */
    uint64_t stopped_ns; /* since when its process is stopped; 0: it is not */
    bool told_stopped;   /* the user was told */
    ls__life life;       /* what the board said when it ended */
    ls__env_exit exit;
} ls__agent_rank;

typedef struct ls__agent {
    const ls__env *env;
    const ls__job *job;
    ls__job_result *result;
    char host[64];
    int cores;
    ls__nodes_world world;        /* where this host's ranks stand in it */
    ls__nodes *nodes;             /* NULL: this host is alone */
    bool plain;                   /* links that leave this host are not encrypted, or need not be */
    bool gathering;               /* not all nodes are there: no rank, no board */
    bool over;                    /* the other nodes were told that nothing runs here any more */
    ls__found_kind reported;      /* the best that node 0 was told */
    const ls__restarts *restarts; /* as the front has them */

    ls__agent_rank rank[LS__BOARD_RANKS_MAX];
    int started, running;
    ls__board *board;
    int board_fd, secret_fd;
    int guard_fd; /* whose end wakes the guard; held until ours */
    uint8_t secret[LS__JOB_SECRET_BYTES];
    ls__store_server *store;
    ls__output *output; /* NULL: the ranks inherit ours */

    int signals_fd, parent_fd;
    int ends_fd;               /* a poller of the ranks' pidfds */
    int ends;                  /* orders given */
    int stop_signal;           /* the user's wish; passed on, or noted on the board. 0: none */
    uint64_t stop_ns;          /* when it came */
    int consequences;          /* ranks that the verdict stopped */
    uint64_t settle_ns;        /* when the best explanation so far becomes the verdict */
    uint64_t term_ns, kill_ns; /* when what still runs gets SIGTERM, SIGKILL */
    uint64_t stopped_ns;       /* when ranks that are stopped are looked at again */
    uint64_t linger_ns;        /* when the output of what has ended is no longer waited for */
    bool alone;                /* the front has ended: nobody reads a result */
    ls__env_poll *items;
    int item_room;
} ls__agent;

/* agent.c: the helper process' main; returns when nothing of the job is left. */
void ls__agent_run(ls__agent *agent);

/* hosts.c: several hosts */
/* Waits for the other nodes, serving the loop; false: they did not come, or the job is to end. */
bool ls__agent_gather(ls__agent *agent);
/* A line at the start: who this is among them, and how links are protected. */
void ls__agent_say_where(const ls__agent *agent);
/* After the ranks of this host: whether the job goes on elsewhere. */
bool ls__agent_awaits_nodes(ls__agent *agent);
void ls__agent_turn(ls__agent *agent); /* agent.c: one turn of the loop */

/* rank.c: starts rank r; false with result->cause and code set. */
bool ls__agent_start_rank(ls__agent *agent, int r);

/* ends.c */
void ls__agent_watch_end(ls__agent *agent, int r);
void ls__agent_reap(ls__agent *agent); /* the ranks that have ended, in that order */
void ls__agent_note_end(ls__agent *agent, int r, const ls__env_exit *how); /* one that was reaped */
bool ls__agent_awaits_end(const ls__agent *agent); /* of a rank that was killed before the others */

#define LS__JOB_NUMBER_MAX 40
/* guard.c: a process that outlives front and agent, and ends what carries the job's number. */
void ls__agent_start_guard(ls__agent *agent);
/* Of this attempt on this host; in the environment of every rank. */
void ls__agent_number(const ls__agent *agent, char out[LS__JOB_NUMBER_MAX]);

/* stopped.c: after a SIGCHLD, and at agent->stopped_ns. */
void ls__agent_look_stopped(ls__agent *agent);

/* report.c */
/* Looks at the ranks that have ended and gives the verdict when one of them failed. */
void ls__agent_judge(ls__agent *agent);
/* The culprit's last lines, if it ran here; else "". */
void ls__agent_tail(const ls__agent *agent, char *out, size_t bytes);
/* A verdict that is about no rank: the program cannot be started, the front has ended. */
void ls__agent_fail(ls__agent *agent, int code, const char *format, ...) LS__PRINTF(3, 4);
bool ls__agent_failed(const ls__agent *agent);
/* Composes result->report. */
void ls__agent_report(ls__agent *agent);
/* Writes log_dir/pids.json. */
void ls__agent_write_pids(ls__agent *agent);
const char *ls__signal_name(int signal); /* "SIGKILL" … */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's parts, shared by the files of this folder. One thread; nothing here is shared. */
#ifndef LS_LAUNCH_AGENT_H
#define LS_LAUNCH_AGENT_H

#include "job/agent/host_agent.h"
#include "launch/launch.h"
#include "launch/output.h"
#include "launch/restart.h"

typedef struct ls__agent_rank {
    uint64_t stopped_ns;   /* since when its process is stopped; 0: it is not */
    bool reported_stopped; /* the user has read of it */
} ls__agent_rank;

typedef struct ls__agent {
    const ls__env *env;
    const ls__job *job;
    ls__job_result *result;
    ls__host_agent host;
    int cores;
    bool gathering;               /* nodes are missing: there is no rank and no board */
    bool starting;                /* ranks are being started: a turn does not wait */
    const ls__restarts *restarts; /* the front's count of restarts */

    ls__agent_rank rank[LS__BOARD_RANKS_MAX];
    int secret_fd;
    int reaper_fd;      /* its end wakes the reaper; open as long as this process lives */
    ls__output *output; /* NULL: the ranks inherit ours */

    int signals_fd;
    bool paused;               /* by Ctrl-Z */
    int front_fd, guard_fd;    /* pidfds: with either of them the job ends */
    uint64_t stop_ns;          /* when the user's stop request came */
    uint64_t term_ns, kill_ns; /* when the remaining ranks get SIGTERM, SIGKILL */
    uint64_t stopped_ns;       /* when stopped ranks are checked again */
    uint64_t linger_ns;        /* until when output of ended ranks is awaited */
    bool alone;                /* the front has ended: a result has no reader */
    ls__env_poll *items;
    int item_room;
} ls__agent;

/* agent.c: the helper process' main; returns when nothing of the job is left. */
void ls__agent_run(ls__agent *agent);

/* hosts.c: several hosts */
/* Waits for the other nodes, serving the loop; false: they did not come, or the job is to end. */
bool ls__agent_gather(ls__agent *agent);
/* A line at the start: the place of this node, and how links are protected. */
void ls__agent_say_placement(const ls__agent *agent);
/* After the ranks of this host: whether the job goes on elsewhere. */
bool ls__agent_awaits_nodes(ls__agent *agent);
void ls__agent_turn(ls__agent *agent); /* agent.c: one turn of the loop */

/* rank.c: starts rank r; false with result->cause and code set. */
bool ls__agent_start_rank(ls__agent *agent, int r);

#define LS__JOB_NUMBER_MAX 40
/* reaper.c: a process that outlives front and agent, and kills every process that carries the job's
 * number. */
void ls__agent_start_reaper(ls__agent *agent);
/* Of this attempt on this host; in the environment of every rank. */
void ls__agent_number(const ls__agent *agent, char out[LS__JOB_NUMBER_MAX]);

/* job_control.c: after a SIGCHLD, and at agent->stopped_ns. */
void ls__agent_check_stopped(ls__agent *agent);
/* Stops the ranks of this host and what they started, or lets those that it has stopped go on. */
void ls__agent_pause(ls__agent *agent, bool stop);
/* To the ranks and the processes that they started, which share their process groups. */
void ls__agent_signal_groups(ls__agent *agent, int number);

/* report.c */
/* Looks for the root cause; once it stands, the ranks are ended. */
void ls__agent_conclude(ls__agent *agent);
/* The culprit's last lines, if it ran here; else "". */
void ls__agent_tail(const ls__agent *agent, char *out, size_t bytes);
/* A root cause that is about no rank: the program cannot be started, the front has ended. */
void ls__agent_fail(ls__agent *agent, int code, const char *format, ...) LS__PRINTF(3, 4);
/* Composes result->report. */
void ls__agent_report(ls__agent *agent);
/* Writes log_dir/pids.json. */
void ls__agent_write_pids(ls__agent *agent);

#endif

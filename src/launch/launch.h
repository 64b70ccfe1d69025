/* SPDX-License-Identifier: Apache-2.0 */
/* Running a job: N ranks of one program or function on this host. `lockstep run` and ls_spawn are
 * thin callers of ls__job_run.
 *
 * With restarts the front starts one agent after the other, each with a store, a board and a secret
 * of its own: nothing that the old world still does can reach the new one.
 *
 *     front (the caller)  ──helper──▶  agent  ──▶  rank 0 … N-1  ──▶  what they start
 *       passes signals on,             owns store, board, output, root cause;
 *       waits for the result           adopts orphans, so that nothing is left when it ends
 *
 * Two processes, because either may be killed: the agent watches the front and ends the job when it
 * dies; ranks get SIGKILL from the kernel when the agent dies. The caller of ls_spawn keeps its
 * signal handling, its children and its descriptors as they are.
 */
#ifndef LS_LAUNCH_LAUNCH_H
#define LS_LAUNCH_LAUNCH_H

#include "base/env.h"
#include "base/error.h"

#define LS__RESTARTS_MAX 1000 /* more would be a loop, not a remedy */

struct ls__job_result;

typedef struct ls__job {
    int ranks;               /* 1 … LS__BOARD_RANKS_MAX */
    const char *const *argv; /* the program; NULL: fn */
    int (*fn)(void *arg);
    void *arg;
    const char *log_dir;  /* NULL: none; made if it does not exist */
    bool capture;         /* the ranks' output comes through the agent, with prefixes */
    bool forward_signals; /* SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 go to the ranks */
    int max_restarts;     /* 0 … LS__RESTARTS_MAX: all ranks are started anew after a failure */
    int restart_window_s; /* only restarts of the last seconds count; 0: all of the job */
    void (*on_restart)(const struct ls__job_result *failed); /* before a restart; may be NULL */
    int attempt;        /* filled in by ls__job_run: 0, 1 … */
    const char *run_id; /* filled in by ls__job_run: the same in all attempts */

    /* Several hosts: each runs `lockstep run` (see job/nodes). */
    int nodes;                   /* 0, 1: this host alone */
    int node;                    /* which this is; -1: given on arrival, and not 0 */
    const char *rendezvous;      /* HOST:PORT of node 0 */
    const char *rendezvous_from; /* the flag or variable that gave it */
    const char *secret_file;     /* NULL: none, and then only the loopback */
    const char *job_id;          /* NULL: none; must be the same on all nodes */
    bool plain;                  /* links that leave the host are not encrypted */
} ls__job;

/* The parts of a failure by which restart.c judges whether it would recur. */
typedef struct ls__job_failure {
    bool final;             /* not the ranks' doing, or a stop request: nothing to restart */
    int status;             /* the ls_status that the culprit noted on the board; 0: none */
    int signal;             /* that killed the culprit; 0: none */
    bool before_init;       /* the culprit ended by itself and had not called ls_init */
    uint64_t step, updates; /* how far the culprit was, as in ls__activity; 0: unknown */
    char last_lines[1024];  /* of the culprit's output */
} ls__job_failure;

typedef struct ls__job_result {
    int code;    /* 0, or that of the first failure: its exit code, or 128 + its signal */
    int culprit; /* rank of the first failure; -1: none */
    ls__job_failure failure;
    /* The decision of node 0 about a restart, as received by the other nodes. */
    bool node0_decided, node0_restarts;
    int64_t node0_delay_ms;
    char node0_text[256];
    int attempt;       /* the number this attempt had */
    char cause[1024];  /* one line; "" when all went well */
    char report[6144]; /* several lines, with the culprit's last output; "" when all went well */
} ls__job_result;

/* Runs the job to its end, restarts included. An error means that no rank was started; a job that
 * failed is LS_OK with result->code. */
ls_status ls__job_run(const ls__env *env, const ls__job *job, ls__job_result *result);

#endif

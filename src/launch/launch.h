/* Running a job: N ranks of one program or function on this host. `lockstep run` and ls_spawn are
 * thin callers of ls__job_run.
 *
 *     front (the caller)  ──helper──▶  agent  ──▶  rank 0 … N-1  ──▶  what they start
 *       passes signals on,             owns store, board, output and the verdict;
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

typedef struct ls__job {
    int ranks;               /* 1 … LS__BOARD_RANKS_MAX */
    const char *const *argv; /* the program; NULL: fn */
    int (*fn)(void *arg);
    void *arg;
    const char *log_dir;  /* NULL: none; made if it does not exist */
    bool capture;         /* the ranks' output comes through the agent, with prefixes */
    bool forward_signals; /* SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 go to the ranks */
} ls__job;

typedef struct ls__job_result {
    int code;          /* 0, or that of the first failure: its exit code, or 128 + its signal */
    int culprit;       /* rank of the first failure; -1: none */
    char cause[1024];  /* one line; "" when all went well */
    char report[6144]; /* several lines, with the culprit's last output; "" when all went well */
} ls__job_result;

/* Runs the job to its end. An error means that no rank was started; a job that failed is LS_OK with
 * result->code. */
ls_status ls__job_run(const ls__env *env, const ls__job *job, ls__job_result *result);

#endif

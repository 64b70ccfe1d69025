/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a job that failed is started again, and when. No processes here: a decision. */
#ifndef LS_LAUNCH_RESTART_H
#define LS_LAUNCH_RESTART_H

#include "launch/launch.h"

typedef struct ls__restarts {
    int max, window_s;                  /* as in ls__job */
    int count;                          /* made so far */
    uint64_t made_ns[LS__RESTARTS_MAX]; /* when; restart i lies at i % LS__RESTARTS_MAX */
    bool failed_before;
    int former_code;
    char former_cause[1024];
    ls__job_failure former;
} ls__restarts;

typedef struct ls__restart {
    bool again;
    int64_t delay_ms;
    char text[256]; /* one line: "restart 2 of 3, in 1 s", "not restarted: …" */
} ls__restart;

/* Looks at a failure (result->code is not 0) at `now_ns`; a restart is counted as made. */
ls__restart ls__restart_decide(ls__restarts *self, const ls__job_result *result, uint64_t now_ns);

#endif

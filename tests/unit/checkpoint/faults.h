/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of faults and of kills share: a save with a fault, and what must load after it. */
#ifndef CHECKPOINT_FAULTS_H
#define CHECKPOINT_FAULTS_H

#include <sys/wait.h>

#include "small.h"

#define CALLS_MAX 400

static inline ls_checkpoint *open_it(const char *folder, bool async)
{
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_checkpoint_new(folder, ls_world(),
                               LS_OPTIONS(ls_checkpoint_options, .async = async), &c));
    return c;
}

/* Loads in a fresh object; the folder is tidy after its open. */
static inline int64_t load_fresh(const char *folder)
{
    ls_status status;
    ls_checkpoint *c = open_it(folder, false);
    small_check_tidy(folder);
    int64_t step = small_load(c, &status);
    CHECK_OK(status);
    CHECK_OK(ls_checkpoint_free(c));
    return step;
}

/* ---- jobs in processes of their own ---- */

typedef struct job {
    const char *folder;
    int victim; /* rank */
    fault_kind kind;
    int error;
    bool async;
    int n;          /* FAULT_KILL: at which call */
    int64_t expect; /* helper_load: the step or the one before */
} job;

static inline int ranks_killed(void *arg)
{
    static faults f;
    const job *j = arg;
    faults_init(&f, j->folder);
    if (ls__init_with(&f.env, LS_OPTIONS(ls_init_options, .timeout_ms = 10000)) < 0) {
        return 0;
    }
    ls_checkpoint *c = NULL;
    if (ls_rank() == j->victim) {
        faults_arm(&f, FAULT_KILL, 0, j->n);
    }
    ls_status status = ls_checkpoint_new(j->folder, ls_world(), NULL, &c);
    if (status == LS_OK) {
        (void)small_load(c, &status);
        (void)small_save(c, j->expect);
        (void)ls_checkpoint_free(c);
    }
    (void)ls_finalize();
    return f.hit;
}

static inline int ranks_check(void *arg)
{
    job *j = arg;
    CHECK_OK(ls_init(NULL));
    int64_t step = load_fresh(j->folder);
    CHECK(step == j->expect || step == j->expect - 1);
    CHECK_OK(ls_finalize());
    return step == j->expect ? 0 : 3; /* told the parent by the exit status */
}

static inline int run_child(int (*fn)(void *arg), job *j)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        _exit(fn(j));
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

#endif

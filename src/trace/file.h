/* The file of a trace: when a job has ended, the agent of node 0 writes the spans of all ranks into
 * one JSON file in the trace event format of Chrome and Perfetto. */
#ifndef LS_TRACE_FILE_H
#define LS_TRACE_FILE_H

#include "base/env.h"
#include <lockstep/status.h>

typedef struct ls__trace_job {
    int world_size;
    int node; /* this host's number; another than 0 writes only the parts that did not leave it */
    int attempt;                      /* of a job that is started again after failures */
    int (*part)(void *arg, int rank); /* the rank's memfd, borrowed; -1: it is not here */
    void *arg;
} ls__trace_job;

/* Writes the file that the ranks' LOCKSTEP_TRACE named, if there is one. Failures are logged, since
 * a job does not fail because its trace cannot be written. */
void ls__trace_collect(const ls__env *env, const ls__trace_job *job);

/* Before a job begins: whether ls__trace_collect may write there. A file that is not a trace is not
 * replaced, and a folder that does not exist is not made. A path of LS__TRACE_PATH_MAX at most. */
ls_status ls__trace_check_path(const ls__env *env, const char *path);

#endif

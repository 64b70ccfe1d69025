/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a trace: when a job has ended, the agent of node 0 writes the spans of all ranks into
 * one JSON file in the trace event format of Chrome and Perfetto. */
#ifndef LS_TRACE_FILE_H
#define LS_TRACE_FILE_H

#include "base/env.h"
#include "base/trace.h"
#include <lockstep/status.h>

/* ---- part.c: the spans that one rank has recorded (base/trace.h), in order of time ----------- */

typedef struct ls__trace_part {
    const ls__env *env;
    const ls__trace_head *head;     /* NULL: the rank's part is missing */
    size_t bytes;                   /* of the mapping */
    const ls__trace_event **events; /* [count] by their begin; of two that begin together the
                                       longer one first */
    int64_t count;
    size_t events_bytes;
    uint64_t dropped; /* recorded, but no longer there */
    ls__trace_clock clock[2];
} ls__trace_part;

/* Maps the memfd `fd` (borrowed), which a rank has written. LS_ERR_FORMAT: it is not a
 * part. */
ls_status ls__trace_part_open(const ls__env *env, int fd, ls__trace_part *out);
void ls__trace_part_close(ls__trace_part *part); /* zeros are allowed */

/* A time of the part's host as a time of node 0. */
uint64_t ls__trace_part_time(const ls__trace_part *part, uint64_t ns);

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

/* Writes the spans of a simulated job: parts[world_size], each with a head. LS_ERR_INVALID: the
 * path may not be replaced; LS_ERR_SYSTEM, LS_ERR_MEMORY. */
ls_status ls__trace_write(const ls__env *env, ls__trace_part *parts, int world_size,
                          const char *path);

/* Before a job begins: whether ls__trace_collect may write there. A file that is not a trace is not
 * replaced, and a folder that does not exist is not made. A path of LS__TRACE_PATH_MAX at most. */
ls_status ls__trace_check_path(const ls__env *env, const char *path);

#endif

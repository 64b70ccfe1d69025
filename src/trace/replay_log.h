/* SPDX-License-Identifier: Apache-2.0 */
/* The replay log: what changed the model of an asynchronous run, event after event, so that one
 * process can make each version again and compare it bit for bit.
 *
 *     # lockstep replay 1
 *     # command lockstep train gpt --server async --steps 40
 *     # shards 2
 *     push worker=2 step=41 read=39 made=57 shard=0 hash=9f0c3a51e7b2d846
 *     average round=3 worker=1 step=40 weight=12 made=3 hash=-
 *     stage step=5 read=3 made=4 shard=1 hash=51e7b2d8469f0c3a
 *     # end 3
 *
 * Without its end it is the log of a run that was killed, or whose disk was full, and its last line
 * may be there in part; or lines are missing.
 *
 * The shard of a stage is its number. Events of one shard stand in the order in which they were
 * applied. Several that make one version (a synchronous step, an average) have the same `made`, in
 * the order in which they are added, and the last has the hash. A push that is dropped makes no
 * version: made=-. */
#ifndef LS_TRACE_REPLAY_LOG_H
#define LS_TRACE_REPLAY_LOG_H

#include "base/env.h"
#include "base/file.h"
#include <lockstep/status.h>

typedef enum ls__replay_kind {
    LS__REPLAY_PUSH,    /* a gradient of a worker, applied by a server */
    LS__REPLAY_AVERAGE, /* parameters of a worker, with its weight, in an average */
    LS__REPLAY_STAGE    /* a micro-batch in a stage of a pipeline that steps without a flush */
} ls__replay_kind;

#define LS__REPLAY_NONE INT64_C(-1) /* made: "-" */

/* Fields that a kind does not have are 0. */
typedef struct ls__replay_event {
    ls__replay_kind kind;
    int worker, shard;
    int64_t round; /* average */
    int64_t step;  /* of that worker: which of its batches; stage: which micro-batch */
    int64_t read;  /* version of the parameters that the gradient was computed with */
    int64_t made;  /* version that it made, or LS__REPLAY_NONE */
    double weight; /* average: of the worker */
    bool hashed;   /* false: "-" */
    uint64_t hash; /* of the parameters of the shard in version `made` */
    int64_t line;  /* in the file, from 1; of events that were read */
} ls__replay_event;

/* ---- writing --------------------------------------------------------------------------------- */

/* Sync: one thread at a time. All zero is a closed writer. */
typedef struct ls__replay_writer {
    const ls__env *env;
    const char *path; /* borrowed */
    int fd;
    bool open;
    int64_t events; /* so far */
} ls__replay_writer;

/* Makes the file anew. `command` is the one that lockstep replay runs; NULL: none. */
ls_status ls__replay_open(ls__replay_writer *writer, const ls__env *env, const char *path,
                          const char *command, int shards);
/* Writes a line at once, so that the log of a job that is killed has all events until then. After a
 * failure the writer is closed. */
ls_status ls__replay_write(ls__replay_writer *writer, const ls__replay_event *event);
/* The run has ended: says so in the file. Both do nothing with a closed writer. */
ls_status ls__replay_close(ls__replay_writer *writer);
/* It has failed. */
void ls__replay_leave(ls__replay_writer *writer);

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct ls__replay_log {
    const ls__env *env;
    char *command; /* "": none */
    int shards;
    ls__replay_event *events; /* [count] in the order of the file */
    int64_t count;
    bool ended;    /* false: it has no end, and a line that is there in part was left out */
    ls__file file; /* which the texts lie in */
    size_t bytes;  /* of events */
} ls__replay_log;

/* LS_ERR_INVALID names the line that is no event. Free it with ls__replay_release. */
ls_status ls__replay_read(const ls__env *env, const char *path, ls__replay_log *out);
void ls__replay_release(ls__replay_log *log);

#endif

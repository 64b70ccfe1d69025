/* SPDX-License-Identifier: Apache-2.0 */
/* The backend `nccl` (lockstep/backend.h): collectives of buffers in memory of an NVIDIA GPU. It
 * links neither CUDA nor NCCL and nothing of the library.
 *
 *     load.c         finds libcuda.so.1 and libnccl.so.2
 *     group.c        a group: opening, requests, places in streams, its end
 *     memory.c       memory of the GPU
 *     driver.c       the group's thread, the only one that starts operations
 *     operations.c   an operation in calls of NCCL
 *     record.c       an operation in a step that is captured
 *     abort.c        ends the communicators of the process
 *
 * Note [Who calls NCCL]
 * A call of NCCL or CUDA may not return: it takes locks that a hanging kernel holds up, and a lazy
 * connection waits for another rank. So a group has a thread of its own, the driver, that makes
 * them; the library's functions only pass requests to it and read what has become of them. The
 * library's engine thus goes on watching deadlines and other ranks while a call hangs, and its
 * `abort` is what ends it. Of the calls that the program's threads make, those of `mark`, `follow`
 * and `zero` only put something into a stream, and those of `alloc` and `record` wait for the
 * driver with a deadline.
 *
 * Communicators are made with blocking = 0: a call returns ncclInProgress instead of waiting, and
 * the driver asks ncclCommGetAsyncError until it is done, or until it is told to stop. */
#ifndef LS_COMM_NCCL_PLUGIN_H
#define LS_COMM_NCCL_PLUGIN_H

#include <pthread.h>
#include <stdatomic.h>

#include <lockstep/backend.h>

#include "comm/nccl/abi.h"

#define LS__NCCL_NAME_MAX 64

/* ---- load.c -------------------------------------------------------------------------------- */

extern ls__cuda_library ls__cuda;
extern ls__nccl_library ls__nccl;

ls_status ls__nccl_describe(ls_backend_capabilities *out, char *error);
/* Writes one line to `error`; returns the status. */
ls_status ls__nccl_fail(ls_status status, char *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* LS_OK if the call succeeded; else LS_ERR_SYSTEM with the call and the reason. */
ls_status ls__cuda_check(int result, const char *call, char *error);
ls_status ls__nccl_check(int result, const char *call, ls__nccl_comm comm, char *error);

/* ---- requests ------------------------------------------------------------------------------ */

/* A point in a stream of the program. */
typedef struct ls__nccl_mark {
    struct ls__nccl_mark *next;
    ls__cuda_stream stream;
    ls__cuda_event event;
} ls__nccl_mark;

typedef enum ls__nccl_state {
    LS__NCCL_QUEUED,  /* the driver has not come to it */
    LS__NCCL_CALLING, /* the driver is in a call */
    LS__NCCL_HELD,    /* it is in the group's stream, and waits for the program's stream */
    LS__NCCL_RUNNING, /* … and may run */
    LS__NCCL_DONE,
    LS__NCCL_FAILED
} ls__nccl_state;

typedef struct ls__nccl_request {
    struct ls__nccl_request *next;
    ls_backend_operation operation;
    ls__nccl_mark *after; /* the driver's until the end */
    ls__cuda_event end;   /* NULL: not made */
    _Atomic int state;    /* ls__nccl_state. Sync: release by the driver, acquire */
    ls_status status;     /* FAILED */
    char error[LS_BACKEND_ERROR_MAX];
    int64_t tables[]; /* counts and offsets */
} ls__nccl_request;

/* ---- a group ------------------------------------------------------------------------------- */

typedef struct ls__nccl_address { /* of a rank */
    ls__nccl_id id;               /* rank 0's counts */
    char bus[24];                 /* of its GPU */
    char host[64];                /* as NCCL tells hosts apart */
} ls__nccl_address;

typedef struct ls__nccl_block { /* registered memory */
    struct ls__nccl_block *next;
    void *memory, *handle;
} ls__nccl_block;

typedef struct ls__nccl_group {
    struct ls__nccl_group *next; /* of the process; abort.c */
    char name[LS__NCCL_NAME_MAX];
    int rank, ranks, world_rank;
    int64_t timeout_ms;
    ls__nccl_id id;
    ls__cuda_context context;
    ls__cuda_stream stream;
    _Atomic(ls__nccl_comm) comm; /* NULL: not made yet, or whoever ends it has it */
    pthread_t driver;
    bool has_driver;
    _Atomic int connected;         /* 0: not yet, 1, or an ls_status. Sync: release by the driver */
    _Atomic bool stop;             /* the driver begins nothing more, and leaves */
    _Atomic bool ended;            /* it has left; set under lock */
    _Atomic bool aborted;          /* ncclCommAbort has returned, or there was nothing to abort */
    _Atomic bool dead;             /* it is being aborted: no request goes on; set under lock */
    _Atomic bool recorded;         /* an operation of it was captured. Sync: relaxed */
    bool closing;                  /* lock: the driver frees the group, unless it is dead */
    bool has_way;                  /* lock: it has been asked for a message, which this rank … */
    ls_backend_kind way;           /* … sends or receives */
    _Atomic(const char *) calling; /* what the driver is in */
    char error[LS_BACKEND_ERROR_MAX];
    pthread_mutex_t call; /* of who calls NCCL with this communicator */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work;
    ls__nccl_request *queue, **queue_end; /* QUEUED */
    ls__nccl_request *all;                /* the driver's: in flight, in order */
    ls__nccl_request **all_end;
    ls__nccl_block *blocks;
    ls__nccl_mark *free_marks; /* whose events can be recorded again */
} ls__nccl_group;

ls_status ls__nccl_open(const ls_backend_group_spec *spec, void *address, void **group,
                        char *error);
ls_status ls__nccl_connect(void *group, const void *addresses, char *error);
void ls__nccl_close(void *group, bool failed);
/* The group has failed: LS_ERR_ABORTED. */
ls_status ls__nccl_fail_dead(char *error);
ls_status ls__nccl_start(void *group, const ls_backend_operation *operation, void **request,
                         char *error);
ls_status ls__nccl_test(void *group, void *request, char *error);
ls_status ls__nccl_mark_stream(void *group, ls_stream *stream, void **place, char *error);
void ls__nccl_unmark(void *group, void *place);
ls_status ls__nccl_follow(void *group, void *request, ls_stream *stream, char *error);
const char *ls__nccl_waits(void *group, void *request);
ls_status ls__nccl_record(void *group, const ls_backend_operation *operation, ls_stream *stream,
                          char *error);
/* The driver has ended. */
void ls__nccl_free(ls__nccl_group *g);
void ls__nccl_give_marks(ls__nccl_group *g, ls__nccl_mark *first);

/* ---- memory.c ------------------------------------------------------------------------------ */

ls_status ls__nccl_alloc(void *group, size_t bytes, void **out, char *error);
void ls__nccl_dealloc(void *group, void *memory, size_t bytes);
ls_status ls__nccl_zero(void *group, ls_stream *stream, void *memory, size_t bytes, char *error);
ls_status ls__nccl_accepts(void *group, ls_backend_kind kind, const void *input, const void *output,
                           char *error);

/* ---- driver.c ------------------------------------------------------------------------------ */

void *ls__nccl_drive(void *group);
/* Calls until the communicator has done what was asked of it; LS_ERR_ABORTED: told to stop. */
ls_status ls__nccl_settle(ls__nccl_group *g, int result, const char *call, char *error);

/* ---- operations.c -------------------------------------------------------------------------- */

/* The driver has it while it is in a call, which may hang: LS_ERR_TIMEOUT then. */
ls_status ls__nccl_take_call(ls__nccl_group *g, int64_t wait_ms, char *error);
/* Puts the operation into the group's stream. The caller holds `call`. */
ls_status ls__nccl_launch(ls__nccl_group *g, const ls_backend_operation *o, char *error);

/* ---- abort.c ------------------------------------------------------------------------------- */

void ls__nccl_enter(ls__nccl_group *g); /* it is one of the process's groups from now on */
void ls__nccl_leave(ls__nccl_group *g);
void ls__nccl_abort(void *group); /* all groups of the process */
void ls__nccl_abort_one(ls__nccl_group *g);
void ls__nccl_unload(bool failed);
void ls__nccl_nap(long us);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The trace of a rank: spans of time, recorded in memory that outlives its process.
 *
 *     a thread of the rank ── begin … end ──▶ ring of events ──▶ the host agent, which writes the
 *                                             (a memfd)          file when the job has ended
 *
 * LOCKSTEP_TRACE turns it on; otherwise `runtime->trace` is NULL, and a span costs one look at it.
 * The ring is allocated by ls_init, so recording allocates nothing, and when it is full the newest
 * events replace the oldest. The host agent holds the memfd (through the store), so the events of a
 * rank that was killed are there, too. src/trace writes the file.
 */
#ifndef LS_BASE_TRACE_H
#define LS_BASE_TRACE_H

#include <lockstep/status.h>

#include "base/compiler.h"
#include "base/runtime.h"

#define LS__TRACE_MAGIC 0x4c535452u /* "LSTR" */
#define LS__TRACE_VERSION 2
#define LS__TRACE_TEXT 48
#define LS__TRACE_PATH_MAX 512
#define LS__TRACE_EVENTS_MIN 64
#define LS__TRACE_EVENTS_MAX (1 << 22)

/* The subject of a span. Spans of one thread lie within each other or follow each other, except
 * those from BUCKET on, which belong to operations and not to threads. */
typedef enum ls__trace_kind {
    LS__TRACE_STEP,
    LS__TRACE_LOADER,    /* the training thread waits for a batch */
    LS__TRACE_READ,      /* a loader's thread makes a batch */
    LS__TRACE_FORWARD,   /* an outermost module, or an operation outside of modules */
    LS__TRACE_MODULE,    /* a module within another one */
    LS__TRACE_RECOMPUTE, /* a module that runs again within backward */
    LS__TRACE_BACKWARD,
    LS__TRACE_NODE,    /* an operation of backward */
    LS__TRACE_EXPOSED, /* the thread waits for communication */
    LS__TRACE_OPTIMIZER,
    LS__TRACE_CHECKPOINT, /* a save; on a thread of its own, or within the save, the writing */
    LS__TRACE_BUCKET,     /* from the launch of a bucket until it is reduced */
    LS__TRACE_WIRE,       /* a collective, from the moment when all ranks have announced it */
    LS__TRACE_SEND,
    LS__TRACE_RECV,
    LS__TRACE_KINDS
} ls__trace_kind;

typedef struct ls__trace_event {
    _Atomic uint64_t stamp; /* 1 + its number, stored last; 0: being written */
    uint64_t begin_ns, end_ns;
    uint64_t flow;  /* BUCKET and WIRE, SEND and RECV with the same number belong together; 0:
                       none */
    uint64_t bytes; /* that it moved; of STEP its number */
    uint16_t kind, thread; /* of an operation, 0 */
    uint32_t reserved;
    char text[LS__TRACE_TEXT]; /* the name, 0, a detail, 0 */
} ls__trace_event;

/* The clock of node 0 minus this host's, measured by round trips with rank 0. */
typedef struct ls__trace_clock {
    uint64_t at_ns; /* of this host's clock; 0: not measured */
    int64_t offset_ns;
    uint64_t error_ns; /* half of the shortest round trip */
} ls__trace_clock;

/* The memfd begins with this; [capacity] events follow. */
typedef struct ls__trace_head {
    uint32_t magic, version;
    uint64_t capacity;
    int32_t rank, world_size;
    int32_t pid, node;
    char host[LS__HOST_NAME_MAX];
    char path[LS__TRACE_PATH_MAX]; /* of the file, relative to the folder of the job's start */
    ls__trace_clock clock[2];      /* after ls_init, before ls_finalize */
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint64_t next; /* events recorded so far */
    _Atomic uint32_t threads;                          /* that have recorded */
    _Atomic uint32_t left;                             /* ls_finalize was reached */
    _Atomic uint32_t sent;                             /* a copy is on node 0 */
} ls__trace_head;

typedef struct ls__trace {
    const ls__env *env;
    ls__trace_head *head;
    ls__trace_event *events;
    size_t bytes; /* of the mapping */
    int fd;
    int64_t first_step, last_step; /* that are recorded */
    /* Of the step under way. Relaxed: the thread that trains writes them, and others look. */
    _Atomic uint64_t step, step_begin_ns;
    _Atomic bool backward;  /* one has ended in it */
    _Atomic bool optimizes; /* ls_optim_step was called: it ends the steps */
    _Atomic bool on;        /* it is recorded */
} ls__trace;

typedef struct ls__trace_span {
    ls__trace_kind kind;
    uint64_t begin_ns, end_ns;
    uint64_t flow, bytes;
    const char *name, *detail; /* copied, as far as they fit; `detail` may be NULL */
} ls__trace_span;

/* Reads the settings. *out: NULL unless LOCKSTEP_TRACE is set. Needs the rank's numbers. */
ls_status ls__trace_new(const ls_runtime *runtime, ls__trace **out);
/* The memory stays with whoever else has the descriptor. NULL is allowed. */
void ls__trace_free(ls__trace *trace);
size_t ls__trace_bytes(uint64_t capacity); /* of a memfd */

void ls__trace_add(ls__trace *trace, const ls__trace_span *span);
/* The optimizer has stepped: if gradients were made since the last one, a step ends here. */
void ls__trace_step(ls__trace *trace, uint64_t now_ns);
/* A backward begins in a program that computes its gradients itself (reducer.h). As long as none of
 * our optimizers has stepped, the former step ends here. */
void ls__trace_pass(ls__trace *trace, uint64_t now_ns);
uint64_t ls__trace_now(ls__trace *trace); /* 0: this step is not recorded */
void ls__trace_close_span(uint64_t begin_ns, ls__trace_kind kind, const char *name,
                          const char *detail);
/* A number for the two ends of a flow, which both can compute. Never 0. */
uint64_t ls__trace_flow(uint64_t a, uint64_t b, uint64_t c);

/* A span of this thread: begins here. 0: it is not recorded. */
static inline uint64_t ls__trace_begin(void)
{
    const ls_runtime *runtime = ls__self.runtime;
    return LS__UNLIKELY(runtime != NULL && runtime->trace != NULL) ? ls__trace_now(runtime->trace)
                                                                   : 0;
}

/* And ends here. */
static inline void ls__trace_end(uint64_t begin_ns, ls__trace_kind kind, const char *name,
                                 const char *detail)
{
    if (LS__UNLIKELY(begin_ns != 0)) {
        ls__trace_close_span(begin_ns, kind, name, detail);
    }
}

#endif

/* The reducer's own structures. reducer.c is the state machine, plan.c lays buckets out, bucket.c
 * keeps their contents, control.c runs the exchange that opens a synchronising backward, compare.c
 * checks that all ranks registered alike, config_check.c that they train with the same settings.
 */
#ifndef LS_REDUCE_INTERNAL_H
#define LS_REDUCE_INTERNAL_H

#include <stdatomic.h>

#include <lockstep/reducer.h>

#include "base/arena.h"
#include "base/runtime.h"
#include "comm/engine/lock.h"

#define LS__PARAMS_MAX (1 << 20) /* parameters of one reducer: bounds the control exchange */
#define LS__PARAM_ALIGN ((size_t)64)
#define LS__REDUCE_DTYPES 4 /* float32, float64, float16, bfloat16: the first of ls_dtype */

typedef struct ls__reduce_param {
    char *name, *shape;
    int64_t count;
    ls_dtype dtype;
    size_t bytes;
    void *user;    /* the caller's own gradient memory, or NULL: it lives in the bucket */
    int bucket;    /* where it lies … */
    size_t offset; /* … and the offset of its gradient there, in bytes */
    bool ready;    /* in this backward */
    bool local;    /* holds something accumulated and not reduced yet */
    bool used;     /* reached on some rank in the last synchronised backward */
} ls__reduce_param;

/* The contents of a bucket's memory (docs/design.md, D8). */
typedef enum ls__reduce_bucket_state {
    LS__BUCKET_EMPTY,   /* no gradient is present; the numbers there do not count */
    LS__BUCKET_LOCAL,   /* this rank's sums since the last reduction */
    LS__BUCKET_REDUCED, /* the average over the ranks */
} ls__reduce_bucket_state;

typedef struct ls__reduce_bucket {
    char *memory; /* registered with the group */
    size_t bytes;
    int first, count; /* its parameters: plan.order[first … first+count) */
    int pending;      /* parameters that are not ready yet in this backward */
    ls_dtype dtype;   /* of all of them */
    ls__reduce_bucket_state state;
    void *carry; /* set-aside reduced gradients, allocated when first needed; see set_aside */
    bool carried;
    ls_work *work;
    char tag[LS__MESSAGE_MAX / 16];
} ls__reduce_bucket;

typedef struct ls__reduce_plan {
    int *sequence; /* [param_count] parameters in the order from which the buckets were filled */
    int *order;    /* [param_count] in bucket order: the same, where all are of one type */
    ls__reduce_bucket *buckets;
    int count;
    uint32_t version; /* of the layout; ranks must agree */
} ls__reduce_plan;

/* One rank's part of the control exchange; the used bitmap follows. */
typedef struct ls__reduce_control {
    double weight;
    uint32_t plan_version;
    uint32_t weighted;
    uint64_t reductions; /* synchronised backwards so far */
    uint64_t settings;   /* hash of the settings that may change in the run */
    uint32_t stop;       /* the signal by which this rank was asked to stop; 0: none */
    uint32_t reserved;
} ls__reduce_control;

typedef enum ls__reducer_phase {
    LS__REDUCER_IDLE,    /* between backwards, or in one that is local */
    LS__REDUCER_CONTROL, /* a synchronising backward began; its control exchange is under way */
    LS__REDUCER_RUNNING, /* the exchange is done; buckets may be launched */
    LS__REDUCER_FAILED
} ls__reducer_phase;

struct ls_reducer {
    ls_runtime *runtime;
    ls__runtime_guest guest; /* tells that the runtime has ended */
    ls_group *group;         /* our own duplicate */
    char *name;
    int rank, size;
    ls__reduce_param *params;
    int param_count;
    ls__reduce_plan plan;
    ls__arena arena; /* names, parameters, plans */
    ls_reducer_options options;

    ls__lock lock; /* guards what follows; never held while an operation is started */
    ls__reducer_phase phase;
    ls_status failure;
    char failure_text[LS__MESSAGE_MAX];
    int next_launch; /* first bucket that was not launched */
    bool launching;  /* a thread is starting operations; Note [Launching] in reducer.c */
    bool overwrites; /* the caller overwrites absent gradients: zeroing is forgetting */
    bool weighted;
    double weight; /* local sum of w since the last reduction */
    double divisor;
    int *ready_order; /* [param_count] parameters in the order in which they became ready … */
    int ready_count;  /* … in this backward */

    bool config_checked;
    bool settings_differ; /* of those that may change in the run; found by the control exchange */
    bool nonfinite_reported; /* owned by the thread that launches */
    char *control;           /* registered: size parts of control_bytes each */
    size_t control_bytes;
    ls_work *control_work;

    _Atomic uint64_t first_launch_ns,
        last_end_ns; /* relaxed: read after the works were waited for */
    uint64_t gradient_bytes;
    ls_reducer_stats stats;
};

#endif

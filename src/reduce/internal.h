/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer's own structures. reducer.c is the state machine, domain.c keeps the groups, plan.c
 * lays gradients out in regions and buckets, bucket_size.c says how large buckets are, bucket.c
 * keeps their contents, exchange.c sends them, division.c divides averages among ranks, control.c
 * runs the exchange that opens a synchronising backward, table.c packs the rows of tables, hook.c
 * calls the user's hooks, pool.c has the memory that buckets leave to each other, compare.c lists
 * what all ranks must have alike, device.c has what is different where gradients lie in memory of a
 * device, record.c records backwards of a captured step, and captured.c replays them. */
#ifndef LS_REDUCE_INTERNAL_H
#define LS_REDUCE_INTERNAL_H

#include <stdatomic.h>

#include <lockstep/comm_hook.h>
#include <lockstep/reducer.h>

#include "base/arena.h"
#include "base/lock.h"
#include "base/rows.h"
#include "base/runtime.h"
#include "reduce/reducer.h"

#define LS__PARAMS_MAX (1 << 20) /* parameters of one reducer: bounds the control exchange */
#define LS__PARAM_ALIGN ((size_t)64)
#define LS__PHASES_MAX LS_COMM_HOOK_PHASES_MAX /* collectives that stand for one bucket */
#define LS__REDUCE_DTYPES 4 /* float32, float64, float16, bfloat16: the first of ls_dtype */

/* Memory that one bucket leaves to the next; pool.c. */
typedef struct ls__reduce_block {
    char *memory;   /* [pool.bytes] registered */
    size_t touched; /* of these the first ones have pages */
    bool taken;
} ls__reduce_block;

typedef struct ls__reduce_pool {
    ls__lock lock;            /* of `taken`, `touched` and `count` */
    ls__reduce_block *blocks; /* [max]; NULL: there is no pool */
    int count, max;
    size_t bytes; /* of a block */
} ls__reduce_pool;

/* A group over which gradients are added up (docs/design.md, D8). Domain 0 is the reducer's own
 * group, in which the ranks also tell each other their weights, plans and settings. */
typedef struct ls__reduce_domain {
    ls_group *given;  /* the caller's group, which tells domains apart */
    ls_group *group;  /* our own duplicate; of a round-robin group a handle over … */
    ls_group **turns; /* … [turn_count] duplicates */
    int turn_count;
    ls_group *phase[LS__PHASES_MAX]; /* duplicates, for phases from 1 on; NULL: not made */
    int rank, size;
    int *params; /* [param_count] in order of registration */
    int param_count;
    size_t bucket_bytes; /* cap of its buckets */
    char *control;       /* registered: size parts of control_bytes each */
    size_t control_bytes;
    ls_work *control_work;
    ls__reduce_pool pool; /* of its buckets */
    bool differs;         /* the replicas, in this backward */
} ls__reduce_domain;

/* The ranks whose number, or whose weights, a sum is divided by. */
typedef struct ls__reduce_batch {
    const ls_group *given;
    int *ranks; /* [size] of the reducer's group */
    int size;
    double divisor; /* of this backward */
} ls__reduce_batch;

/* The key of a region: gradients with the same key are reduced together. */
typedef struct ls__reduce_key {
    ls_dtype dtype;
    int domain, batch; /* numbers in the reducer's tables */
    double divisor;    /* 0: the batch's */
} ls__reduce_key;

typedef struct ls__reduce_table { /* table.c */
    ls__rows rows;                /* that this rank reaches in the backward to come */
    uint8_t *taken;               /* [rows.count] 1: some rank reaches it in this backward */
    int64_t taken_count;
    char *packed; /* registered; those rows */
    size_t row_bytes;
} ls__reduce_table;

typedef struct ls__reduce_param {
    char *name, *shape;
    int64_t count;
    int64_t rows;            /* of a table, else 0 */
    ls__reduce_table *table; /* NULL: it is always sent whole */
    size_t bytes;
    ls__reduce_key key;
    int map;       /* the caller's bucket, from 1; 0: Lockstep chooses */
    void *user;    /* the caller's own gradient memory, or NULL: it lives in its region */
    int region;    /* where its gradient lies … */
    size_t offset; /* … and where in that region, in bytes */
    int bucket;
    bool present;      /* a gradient is there. Autograd and optimizers ask this flag: param.h */
    bool local;        /* it holds something accumulated and not reduced yet */
    bool carried;      /* an earlier average of it is set aside; see bucket.c */
    bool ready;        /* in this backward */
    bool used;         /* reached on some rank in the last synchronised backward */
    uint64_t ready_ns; /* in the last synchronised backward; 0: not reached */
} ls__reduce_param;

/* The memory of all gradients with one key. */
typedef struct ls__reduce_region {
    ls__reduce_key key;
    char *memory; /* registered with the domain's group */
    size_t bytes;
    char *wire;  /* registered; what is sent in place of `memory`, see wire.c. NULL: `memory` */
    char *carry; /* [bytes] averages that are set aside; allocated when first needed */
} ls__reduce_region;

typedef struct ls__bucket_scratch { /* ls_bucket_scratch */
    void *memory;                   /* registered */
    size_t bytes;
} ls__bucket_scratch;

/* A part of a region that is reduced by one exchange. */
typedef struct ls__reduce_bucket {
    int region;
    size_t offset, bytes; /* in the region; a multiple of 64 bytes for each rank of the domain */
    int first, count;     /* its parameters: plan.order[first … first+count) */
    int last;             /* position in plan.sequence of the one that becomes ready last */
    int pending;          /* parameters that are not ready yet in this backward */
    const struct ls__exchange_kind *kind; /* NULL: no rank uses the bucket in this backward */
    ls_work *work;                        /* of the phase under way */
    atomic_bool flying; /* Sync: release by the engine when the phase's collective ends; acquire */
    void *place; /* where gradients are final in streams; lock. NULL: the host has written all */
    uint64_t launched_ns;
    uint64_t flow;       /* its arrow in a trace */
    uint64_t reduced_ns; /* of the last phase; written by the engine before `flying` */
    ls_reducer *reducer;
    char *block; /* where its gradients are for now (pool.c); NULL: in the region */
    ls__bucket_scratch scratch[LS_BUCKET_SLOTS];
    char tag[LS__MESSAGE_MAX / 16];
} ls__reduce_bucket;

typedef struct ls__reduce_plan {
    int *sequence; /* [param_count] parameters in the order in which they become ready */
    int *order;    /* [param_count] in the order in which they lie: region by region */
    ls__reduce_region *regions;
    int region_count;
    ls__reduce_bucket *buckets; /* [count] in the order in which they are launched */
    int count;
    uint32_t version; /* of the layout; ranks must agree */
} ls__reduce_plan;

/* A rank's part of the control exchange. */
typedef enum ls__reduce_flag {
    LS__REDUCE_JOINED = 1, /* it has run out of data … */
    LS__REDUCE_LIVE = 2,  /* … and sums are to be divided by the number of ranks that have data */
    LS__REDUCE_DIFFER = 4 /* its replica may differ from the others' */
} ls__reduce_flag;

/* One rank's part of a domain's control exchange; the bitmaps of used parameters and of its tables'
 * rows follow. */
typedef struct ls__reduce_control {
    double weight;
    uint32_t plan_version;
    uint32_t weighted;
    uint64_t reductions; /* synchronised backwards so far */
    uint64_t settings;   /* hash of the settings that may change in the run */
    uint32_t stop;       /* the signal by which this rank was asked to stop; 0: none */
    uint32_t flags;      /* ls__reduce_flag */
    uint64_t agreement;  /* in which group this rank agrees; Note [Agreement] */
    double busy_seconds; /* of the step before, waits left out */
    uint64_t replica;    /* hash of the domain's parameters; 0: not looked at in this step */
} ls__reduce_control;

typedef enum ls__reducer_phase {
    LS__REDUCER_IDLE,    /* between backwards, or in one that is local */
    LS__REDUCER_CONTROL, /* a synchronising backward began; its control exchange is under way */
    LS__REDUCER_RUNNING, /* the exchange is done; buckets may be launched */
    LS__REDUCER_FAILED
} ls__reducer_phase;

#define LS__SHARD_LEVELS 16

/* The shards of a step (shards.h). */
typedef struct ls__reduce_shards {
    int of_rank; /* that this rank computes in a step; 0: steps have no shards */
    int done;    /* in this step */
    int levels;  /* log2(of_rank) */
    char *sums;  /* [levels][bytes] sums of 1, 2, 4, … shards that wait for their neighbours */
    size_t bytes;
    size_t *offset; /* [param_count] of a gradient within a sum */
    bool *held;     /* [param_count] reached by a shard of this step that is done */
    double weights[LS__SHARD_LEVELS];
} ls__reduce_shards;

#define LS__DIVISION_GROUPS 3

/* Among which ranks buckets are divided; division.c. */
typedef struct ls__reduce_division {
    int rank, size; /* of a split; size 0: averages are whole on every rank. Without splits the
                       ranks of a bucket's domain divide it */
    /* Of phases 0 and 1, and of what the wrapper gathers; NULL: all ranks, a group of a domain. */
    ls_group *group[LS__DIVISION_GROUPS];
} ls__reduce_division;

/* State of one backward; zero when the next one begins. */
typedef struct ls__reduce_pass {
    int next[LS__PHASES_MAX + 1]; /* Note [Steps] in exchange.c */
    int next_end;         /* first bucket that was not settled; the thread of backward owns it */
    ls_stream *stream;    /* on which averages are used; NULL: the host's */
    bool stepping;        /* a thread is taking a step */
    bool waiting;         /* wait has begun: the thread of backward takes all steps */
    bool held;            /* by the mode, until all gradients are ready */
    bool records;         /* its operations go into a capture (record.c) */
    bool settings_differ; /* of those that may change in the run; found by the control exchange */
    uint32_t flags;       /* ls__reduce_flag of this rank */
    int exchanges;        /* control exchanges under way */
    int ready_count;      /* parameters that became ready */
    uint64_t gradient_bytes;
} ls__reduce_pass;

/* The user's hook; hook.c. */
typedef struct ls__reduce_hook {
    ls_comm_hook *given; /* a copy, followed by its texts; NULL: there is none, nor a kind */
    const struct ls__exchange_kind *kind;
    size_t text_bytes;
    uint64_t steps; /* synchronised backwards with it */
} ls__reduce_hook;

/* Captured steps; captured.c. The thread that trains owns it. */
typedef struct ls__reduce_captured {
    bool records; /* the next backward is recorded */
    uint64_t noticed;
    ls__reducer_recorded recorded; /* of the step that is being recorded */
    void *parts;                   /* [size] what ranks have voted; NULL: not yet */
} ls__reduce_captured;

/* The reducer's own thread, of a group of more than one rank. */
typedef struct ls__reduce_worker {
    const ls__env *env;
    ls__env_thread *thread;
    _Atomic uint32_t signals; /* grows when there may be something to do. Sync: release, acquire */
    atomic_bool stop;         /* Sync: by `signals` */
} ls__reduce_worker;

struct ls_reducer {
    ls_runtime *runtime;
    ls__runtime_guest guest; /* tells that the runtime has ended */
    ls_group *group;         /* domain 0's, with its rank and size */
    int rank, size;
    char *name;
    ls__reduce_param *params;
    int param_count;
    ls__reduce_domain domains[LS__DOMAINS_MAX];
    int domain_count;
    ls__reduce_batch batches[LS__DOMAINS_MAX];
    int batch_count;
    ls__reduce_plan plan;
    ls__arena arena; /* names, parameters, tables, plans */
    ls_reducer_options options;

    ls__lock lock; /* guards what follows; never held while an operation is started */
    ls__reducer_phase phase;
    ls_status failure;
    char failure_text[LS__MESSAGE_MAX];
    ls__reduce_pass pass;
    bool on_device;    /* gradients lie where the library does not write; device.c */
    ls_stream *stream; /* the one of the last begin */
    int phases;        /* of a bucket, at most */
    bool keeps_parts;  /* averages will end on one rank each … */
    bool scattered;    /* … and do, from the backward after the layout is final; … */
    bool releases;     /* … the memory of other ranks' averages is given back then */
    ls__reduce_division division;
    void (*moved)(void *arg, int param, void *memory); /* its gradient; NULL: nobody asks */
    void *moved_arg;
    ls__reduce_worker worker;
    ls__reduce_hook hook;
    ls__reduce_captured captured;
    bool overwrites; /* the caller overwrites absent gradients: zeroing is forgetting */
    bool weighted;
    double weight; /* local sum of w since the last reduction */
    double idle;   /* of micro-batches without a backward, to be added by the next one */
    ls__reduce_shards shards;
    bool differ;      /* the replicas may, in the backwards to come */
    int first_live;   /* lowest rank that had data in the last synchronised backward; 0: none */
    int *ready_order; /* [param_count] parameters in the order in which they became ready */

    ls__reduced_fn reduced; /* may be NULL */
    void *reduced_arg;
    bool compares;          /* the parameters themselves, in the backward to come: */
    const uint64_t *hashes; /* [param_count] theirs; NULL: this rank has not seen all of them */
    uint64_t agreement;     /* the key of the reducer's group */
    bool agrees;            /* all of its ranks agree in it, as of the last control exchange */
    atomic_bool nonfinite_reported; /* Sync: relaxed; nonfinite.c */
    uint64_t begin_ns, ended_ns;    /* of the last synchronised backward, its wait included */
    uint64_t sent_before;           /* bytes that this rank's groups had sent before it */
    ls_reducer_stats stats;
};

/* ---- control.c: the exchange that opens a synchronising backward ----------------------------- */

/* Sends this rank's parts. After a failure those that were sent must be waited for. */
ls_status ls__control_start(ls_reducer *r);
ls_status ls__control_wait(ls_reducer *r);
/* Under the lock, after all exchanges completed: combines the parts into divisors and
 * params[].used. */
ls_status ls__control_finish(ls_reducer *r);

/* ---- record.c: backwards in a captured step -------------------------------------------------- */

/* This thread begins an operation of the reducer. */
void ls__captured_notice(ls_reducer *r);

/* ---- nonfinite.c: the rank and the parameter with which NaN or infinity enters --------------- */

/* Looks at this rank's contribution right before it is summed; afterwards every rank has the same
 * sum, and nothing tells whose it was. Warns once per reducer, and records the failure for the
 * launcher. */
void ls__nonfinite_look(ls_reducer *r, const ls__reduce_bucket *bucket);
/* Looks at the average, on the first rank of the domain, unless it has reported its own: the sum
 * may overflow where every contribution is finite. */
void ls__nonfinite_look_again(ls_reducer *r, const ls__reduce_bucket *bucket);

/* ---- stats.c --------------------------------------------------------------------------------- */

/* The backward whose ls_reducer_wait began at wait_start_ns has ended. */
void ls__stats_record(ls_reducer *r, uint64_t wait_start_ns);
/* Bytes that this rank has sent by the reducer's groups so far. */
uint64_t ls__stats_sent(const ls_reducer *r);

/* ---- wire.c: gradients that travel in a smaller type than they are kept in ------------------- */

/* Whether the options' type can be sent. */
ls_status ls__wire_check(const ls_reducer_options *options);

/* The memory from which the buckets of a region are sent, if it is not the region's. Collective in
 * that all ranks do it. */
ls_status ls__wire_open(ls_reducer *r, ls__reduce_region *region);
void ls__wire_close(ls_reducer *r, ls__reduce_region *region);

/* The bucket is rounded, and the averages are widened again. */
extern const struct ls__exchange_kind ls__exchange_rounded;

/* ---- division.c: who has which part of a bucket when averages are divided -------------------- */

/* Whether buckets are divided within splits of the ranks, and added up across, in a phase of its
 * own. */
static inline bool ls__division_is_hybrid(const ls_reducer *r)
{
    return r->division.group[0] != NULL;
}

/* Collective. */
ls_status ls__division_free(ls_reducer *r);
/* Bytes that this rank has sent in them. */
uint64_t ls__division_sent(const ls_reducer *r);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer averages gradients over a group while backward is still running. It needs no tensors.
 *
 *     ls_reducer_new(world, params, n, NULL, &r);       register once; params[i].grad is filled in
 *     ls_reducer_begin(r, NULL);                        this backward synchronises
 *     ls_reducer_ready(r, i, NULL);                     gradient i is final (any order)
 *     ls_reducer_wait(r);                               all gradients are averages now
 *
 * Gradients live in flat buckets of registered memory from the start. A bucket is reduced in place
 * as soon as its last gradient is ready, always in the order of the bucket index, so every rank
 * issues the same operations in whichever order its backward runs. Buckets are filled in reverse
 * order of registration (Li et al., VLDB 2020, section 3.2.3), the first of them with a smaller
 * cap. 16-bit gradients are added in float32 over the ranks and rounded once.
 *
 * A gradient may be added over other ranks than it is divided by: the experts of a mixture are
 * added over the ranks that hold the same expert, and divided by the number of all ranks of the
 * batch (ls_reducer_param: reduce_group, batch_group, divisor).
 *
 * Over a backend of device memory (backend "nccl") gradients live in memory of that device, and a
 * stream takes the place of the host: ls_reducer_ready marks where in the stream a gradient is
 * final, its bucket is reduced beside the stream, and ls_reducer_wait lets the stream wait and not
 * the host. Gradients must be zeroed after each step (ls_reducer_zero) there.
 *
 * The reducer does not broadcast parameters: before the first step make them equal on all ranks,
 * for example with ls_broadcast_many from rank 0. It owns a duplicate of the group, so other
 * collectives on the group do not interfere with it.
 */
#ifndef LOCKSTEP_REDUCER_H
#define LOCKSTEP_REDUCER_H

#include <lockstep/comm.h>
#include <lockstep/state.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_reducer ls_reducer;

typedef struct ls_reducer_param {
    const char *name;  /* copied; appears in reports */
    const char *shape; /* "[64,10]", is compared and appears in reports; NULL: only the count */
    int64_t count;     /* elements */
    ls_dtype dtype;    /* float32, float64, float16 or bfloat16; a bucket holds one type */
    void *grad;        /* NULL: ls_reducer_new sets it to memory inside the bucket (no copies). Not
                          NULL: your memory; ls_reducer_ready reads it, ls_reducer_wait writes it */
    ls_group *reduce_group; /* whose gradients are added; a part of the reducer's group with this
                               rank in it. Default NULL: the reducer's group. Its ranks register the
                               same parameters of the group in the same order; other ranks need not
                               have them. Borrowed for the reducer's lifetime */
    ls_group *batch_group;  /* the group whose rank count (or sum of weights) divides the sum;
                               equal on all ranks of reduce_group. Default NULL: the reducer's */
    double divisor; /* not 0: the sum is divided by this instead; 1: it stays a sum. Default 0 */
    int bucket;     /* from 1: parameters with the same number and the same groups and type share a
                       bucket, however large. Default 0: Lockstep chooses. For all or for none */
    /* of a table, such as an embedding's, of which a backward reaches few rows: the gradient is
     * [rows, count / rows]. Between hosts only rows are sent that some rank reaches
     * (ls_reducer_reach), with the same bits as result. Default 0: none */
    int64_t rows;
} ls_reducer_param;

/* When gradients are reduced, and in which pieces. All modes give the same bits. */
typedef enum ls_reduce_mode {
    LS_REDUCE_OVERLAP = 0,  /* buckets, each as soon as its last gradient is ready */
    LS_REDUCE_BUCKETED = 1, /* buckets, after backward */
    LS_REDUCE_FLAT = 2,     /* one bucket for each type and group, after backward */
    LS_REDUCE_NAIVE = 3     /* one all-reduce for each gradient, after backward */
} ls_reduce_mode;

/* As bucket_bytes: the size follows, at ls_reducer_new, from the bytes of the gradients and from
 * what an all-reduce of them costs (latency and bandwidth, of memory or of the link): sqrt(bytes *
 * latency * bandwidth), within 1 and 25 MiB and at most half of the gradients. All ranks choose
 * alike, nothing is measured in a step, and no bit of a result depends on it. LOCKSTEP_DEBUG=info
 * shows the size. */
#define LS_BUCKET_BYTES_AUTO SIZE_MAX

typedef struct ls_reducer_options {
    size_t size;
    size_t bucket_bytes;       /* cap of a bucket; default LS_BUCKET_BYTES_AUTO; 0: one bucket per
                                  parameter */
    size_t first_bucket_bytes; /* cap of the first bucket, whose reduction thus starts early;
                                  default 1 MiB */
    const char *name;          /* appears in reports; copied */
    size_t param_bytes;        /* sizeof(ls_reducer_param), the distance between two entries, so
                                  that the struct can grow */
    ls_reduce_mode mode; /* default LS_REDUCE_OVERLAP; the others are there to be compared with
                            it. FLAT and NAIVE ignore the sizes of buckets */
    /* LS_BFLOAT16: float32 gradients are sent as bfloat16, half the bytes. Each rank's contribution
     * and the average are rounded to 8 bits of precision (a relative error of 2^-8 each); they stay
     * float32 in memory, and equal on all ranks. Default LS_FLOAT32: sent as they are */
    ls_dtype wire_dtype;
    /* What moves gradients: the backend of the groups that the reducer makes, as that of
     * ls_group_options. With "nccl" over a native group `params` get gradients in memory of the
     * GPU, and what the program exchanges in the group stays on the host. All ranks give the same.
     * Copied. Default NULL: that of the group */
    const char *backend;
} ls_reducer_options;
#define LS_DEFAULTS_ls_reducer_options                                                             \
    .bucket_bytes = LS_BUCKET_BYTES_AUTO, .first_bucket_bytes = 1 << 20,                           \
    .param_bytes = sizeof(ls_reducer_param),
LS_DEFAULTS_FUNCTION(reducer)

/* Makes a reducer of params[count] over `group`, which is borrowed until ls_reducer_free.
 * Collective: it first compares names, counts and dtypes of all ranks, and LS_ERR_MISMATCH names
 * the first parameter that differs, with both sides. `params` is borrowed for the call, which only
 * sets params[i].grad. Memory inside buckets is zeroed and lives until ls_reducer_free. */
LS_API ls_status ls_reducer_new(ls_group *group, ls_reducer_param *params, int count,
                                const ls_reducer_options *options, ls_reducer **out);
LS_API ls_status ls_reducer_free(ls_reducer *reducer); /* collective; NULL is allowed */

typedef struct ls_reducer_begin_options {
    size_t size;
    bool local;          /* this backward only accumulates gradients and sends nothing (no_sync) */
    const uint8_t *used; /* [count], 1 for parameters that this backward reaches, 0 for others;
                            NULL: all 1. The others are ready at once; if no rank uses one, it
                            is not changed */
    bool weighted; /* gradients are sums of w*g, and the result is divided once by the global sum of
                      w over micro-batches and ranks. All backwards of a step set the same */
    double weight; /* with `weighted`: w of this micro-batch, in samples or tokens; >= 0 */
    bool joined; /* this rank has run out of data: it adds nothing but gradients that it accumulated
                    before, and takes the other ranks' form (weighted or plain). No parameter
                    becomes ready; not with `local` */
    bool divide_by_live; /* with `joined`: plain gradients are divided by the number of ranks that
                            have data, not of all; equal on all ranks that joined */
    ls_stream *stream;   /* device memory: in which the program computes with gradients and uses
                          averages. NULL: it waits for the device itself (ls_collective_options) */
} ls_reducer_begin_options;
#define LS_DEFAULTS_ls_reducer_begin_options
LS_DEFAULTS_FUNCTION(reducer_begin)

/* Begins a backward; with NULL options it synchronises and reaches all parameters. A synchronising
 * backward is collective: it starts a small control exchange, but does not wait for it. Gradients
 * that an earlier backward has already reduced, and that were not zeroed since, are set aside and
 * added afterwards, so only the new part is reduced. */
LS_API ls_status ls_reducer_begin(ls_reducer *reducer, const ls_reducer_begin_options *options);

/* Says, before ls_reducer_begin, that the next backward reaches the rows index[0 … count-1] of a
 * table. Calls add up. The other rows of the gradient must be zero, or hold sums of earlier local
 * backwards. Without a call every row may be reached. Local call. LS_ERR_INVALID: a parameter
 * without `rows`, or a row that it does not have. */
LS_API ls_status ls_reducer_reach(ls_reducer *reducer, int param, const int64_t *index,
                                  int64_t count);

/* Reports that gradient number `param` is final on this rank; may start the all-reduce of its
 * bucket. Any thread may call it. It does nothing in a local backward and without ls_reducer_begin.
 * A second call for a parameter in one backward is LS_ERR_STATE and names the parameter. `stream`:
 * where it is final after what is in the stream now; NULL: the host has written it. */
LS_API ls_status ls_reducer_ready(ls_reducer *reducer, int param, ls_stream *stream);

/* Waits for all buckets, or lets the stream of ls_reducer_begin wait for them, and then returns
 * when the device has been given all of them. Returns at once after a local backward. LS_ERR_STATE
 * when a gradient was not reported as ready. After an error the gradients are undefined, and the
 * optimizer must not step. */
LS_API ls_status ls_reducer_wait(ls_reducer *reducer);

/* Discards all gradients (zero_grad): the next backward begins from zero. Local call. */
LS_API ls_status ls_reducer_zero(ls_reducer *reducer);

/* Whether any rank used parameter number `param` in the last synchronised backward. Local call. */
LS_API bool ls_reducer_used(const ls_reducer *reducer, int param);

/* One gradient in the last synchronised backward: the gradient-ready timeline. Times are seconds
 * since ls_reducer_begin on this rank; -1 for what did not happen. */
typedef struct ls_reducer_event {
    size_t size;
    const char *name; /* of the parameter; valid until ls_reducer_free */
    int64_t count;
    ls_dtype dtype;
    int bucket;      /* in the order of launching */
    double ready;    /* ls_reducer_ready was called */
    double launched; /* the all-reduce of its bucket was started … */
    double reduced;  /* … and has ended */
} ls_reducer_event;
/* Local call; LS_ERR_STATE during a backward. */
LS_API ls_status ls_reducer_get_event(ls_reducer *reducer, int param, ls_reducer_event *out);

/* One bucket as divided in the last backward. Times are seconds since ls_reducer_begin on this
 * rank, as in ls_reducer_event. */
typedef struct ls_reducer_bucket {
    size_t size;
    uint64_t bytes;
    int params;              /* so many gradients */
    const char *first_param; /* the names of the first and last of them; valid until … */
    const char *last_param;  /* … ls_reducer_free */
    double launched, reduced;
} ls_reducer_bucket;
/* Bucket number `bucket` in the order of launching, from 0 to ls_reducer_stats.buckets - 1. Local
 * call; LS_ERR_STATE during a backward. */
LS_API ls_status ls_reducer_get_bucket(ls_reducer *reducer, int bucket, ls_reducer_bucket *out);

typedef struct ls_reducer_stats {
    size_t size; /* set to sizeof before the call */
    int buckets;
    uint64_t reductions;     /* synchronised backwards so far */
    uint64_t bucket_bytes;   /* bytes of all buckets */
    double comm_seconds;     /* last backward: from the first launch to the last completion */
    double exposed_seconds;  /* last backward: time for which ls_reducer_wait blocked */
    uint64_t gradient_bytes; /* last backward: bytes of the buckets that were reduced, as sent: of a
                                table its rows */
    double backward_seconds; /* last backward: from ls_reducer_begin to ls_reducer_wait */
    /* What each rank did in the step before without waiting for others: from the end of one
       ls_reducer_wait to the begin of the next, 0 in the first step. The slowest rank of the
       reducer's group is the one that the others wait for */
    int slowest_rank;
    double slowest_seconds, fastest_seconds;
    int live_ranks;         /* last backward: ranks that had data; 0: all have joined */
    char slowest_name[128]; /* of slowest_rank, as reports name it: "rank 2 (host a, pid 12)" */
    bool automatic;         /* Lockstep chose the size of buckets (LS_BUCKET_BYTES_AUTO) */
    char hook[128]; /* the communication hook and its settings, "int8 (bits=8, …)"; "": none */
    /* Last backward: bytes that this rank passed to its peers as ls_counters has them, which leave
       out messages of a few KiB: buckets, and the control exchange. With ls_ddp_options.zero those
       of a step: what was gathered since the end of the backward before counts, too */
    uint64_t sent_bytes;
} ls_reducer_stats;
/* Local call. */
LS_API ls_status ls_reducer_get_stats(const ls_reducer *reducer, ls_reducer_stats *out);

#if !defined(LS_NO_SITES)
#define ls_reducer_new(...) LS_AT(ls_reducer_new(__VA_ARGS__))
#define ls_reducer_begin(...) LS_AT(ls_reducer_begin(__VA_ARGS__))
#define ls_reducer_wait(...) LS_AT(ls_reducer_wait(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif

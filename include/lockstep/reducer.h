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
} ls_reducer_param;

typedef struct ls_reducer_options {
    size_t size;
    size_t bucket_bytes;       /* cap of a bucket; default 25 MiB, 0: one bucket per parameter */
    size_t first_bucket_bytes; /* cap of the first bucket, whose reduction thus starts early;
                                  default 1 MiB */
    const char *name;          /* appears in reports; copied */
    size_t param_bytes;        /* sizeof(ls_reducer_param), the distance between two entries, so
                                  that the struct can grow */
} ls_reducer_options;
#define LS_DEFAULTS_ls_reducer_options                                                             \
    .bucket_bytes = 25 << 20, .first_bucket_bytes = 1 << 20,                                       \
    .param_bytes = sizeof(ls_reducer_param),
LS_DEFAULTS_FUNCTION(reducer)

/* Makes a reducer of params[count] over `group`. Collective: it first compares names, counts and
 * dtypes of all ranks, and LS_ERR_MISMATCH names the first parameter that differs, with both sides.
 * `params` is borrowed for the call, which only sets params[i].grad. Memory inside buckets is
 * zeroed and lives until ls_reducer_free. */
LS_API ls_status ls_reducer_new(ls_group *group, ls_reducer_param *params, int count,
                                const ls_reducer_options *options, ls_reducer **out);
LS_API ls_status ls_reducer_free(ls_reducer *reducer); /* collective; NULL is allowed */

typedef struct ls_reducer_begin_options {
    size_t size;
    bool local; /* this backward only accumulates gradients and sends nothing (no_sync) */
    const uint8_t
        *used;     /* [count], 1 for parameters that this backward reaches, 0 for others; NULL: all
                      1. The others are ready at once; if no rank uses one, it is not changed */
    bool weighted; /* gradients are sums of w*g, and the result is divided once by the global sum of
                      w over micro-batches and ranks. All backwards of a step set the same */
    double weight; /* with `weighted`: w of this micro-batch, in samples or tokens; >= 0 */
} ls_reducer_begin_options;
#define LS_DEFAULTS_ls_reducer_begin_options
LS_DEFAULTS_FUNCTION(reducer_begin)

/* Begins a backward; with NULL options it synchronises and reaches all parameters. A synchronising
 * backward is collective: it starts a small control exchange, but does not wait for it. Gradients
 * that an earlier backward has already reduced, and that were not zeroed since, are set aside and
 * added afterwards, so only the new part is reduced. */
LS_API ls_status ls_reducer_begin(ls_reducer *reducer, const ls_reducer_begin_options *options);

/* Reports that gradient number `param` is final on this rank; may start the all-reduce of its
 * bucket. Any thread may call it. It does nothing in a local backward and without ls_reducer_begin.
 * A second call for a parameter in one backward is LS_ERR_STATE and names the parameter. `stream`:
 * NULL. */
LS_API ls_status ls_reducer_ready(ls_reducer *reducer, int param, ls_stream *stream);

/* Waits for all buckets; returns at once after a local backward. LS_ERR_STATE when a gradient was
 * not reported as ready. After an error the gradients are undefined, and the optimizer must not
 * step. */
LS_API ls_status ls_reducer_wait(ls_reducer *reducer);

/* Discards all gradients (zero_grad): the next backward begins from zero. Local call. */
LS_API ls_status ls_reducer_zero(ls_reducer *reducer);

/* Whether any rank used parameter number `param` in the last synchronised backward. Local call. */
LS_API bool ls_reducer_used(const ls_reducer *reducer, int param);

typedef struct ls_reducer_stats {
    size_t size; /* set to sizeof before the call */
    int buckets;
    uint64_t reductions;     /* synchronised backwards so far */
    uint64_t bucket_bytes;   /* bytes of all buckets */
    double comm_seconds;     /* last backward: from the first launch to the last completion */
    double exposed_seconds;  /* last backward: time for which ls_reducer_wait blocked */
    uint64_t gradient_bytes; /* last backward: bytes of the buckets that were reduced */
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

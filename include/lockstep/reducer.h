/* The reducer: gradients averaged over a group while backward is still running. No tensors.
 *
 *     ls_reducer_new(world, params, n, NULL, &r);       register once; params[i].grad is filled in
 *     ls_reducer_begin(r, NULL);                        this backward synchronises
 *     ls_reducer_ready(r, i, NULL);                     gradient i is final (any order)
 *     ls_reducer_wait(r);                               all gradients are averages now
 *
 * Gradients live in flat buckets of registered memory from the start; a bucket is reduced in place
 * as soon as its last gradient is ready, always in the order of the bucket index, so every rank
 * issues the same operations whatever order its backward takes. Buckets are filled in reverse order
 * of registration (Li et al., VLDB 2020, section 3.2.3), a small one first. 16-bit gradients are
 * added in float32 over the ranks and rounded once.
 *
 * A reducer owns a duplicate of the group, so user collectives on the group may interleave freely.
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
    const char *shape; /* "[64,10]", compared and shown; NULL: the count alone */
    int64_t count;     /* elements */
    ls_dtype dtype;    /* float32, float64, float16 or bfloat16; a bucket holds one type */
    void *grad;        /* NULL: memory inside the bucket, filled in by ls_reducer_new (no copies).
                          Not NULL: your own memory; copied in at ready and back in wait */
} ls_reducer_param;

typedef struct ls_reducer_options {
    size_t size;
    size_t bucket_bytes;       /* cap of a bucket; default 25 MiB, 0: a bucket per parameter */
    size_t first_bucket_bytes; /* cap of the first, so that the last-finished gradients start
                                   early; default 1 MiB */
    const char *name;          /* appears in reports; copied */
    size_t param_bytes;        /* sizeof(ls_reducer_param), the step from entry to entry: so that
                                   entries can grow */
} ls_reducer_options;
#define LS_DEFAULTS_ls_reducer_options                                                             \
    .bucket_bytes = 25 << 20, .first_bucket_bytes = 1 << 20,                                       \
    .param_bytes = sizeof(ls_reducer_param),
LS_DEFAULTS_FUNCTION(reducer)

/* Collective: compares names, counts and dtypes on all ranks first; LS_ERR_MISMATCH names the first
 * parameter that differs, on both sides. `params` is borrowed for the call except that grad is
 * filled in; memory inside buckets is zeroed and lives until ls_reducer_free. */
LS_API ls_status ls_reducer_new(ls_group *group, ls_reducer_param *params, int count,
                                const ls_reducer_options *options, ls_reducer **out);
LS_API ls_status ls_reducer_free(ls_reducer *reducer); /* collective; NULL is allowed */

typedef struct ls_reducer_begin_options {
    size_t size;
    bool local; /* this backward only accumulates (no_sync): nothing is sent */
    const uint8_t
        *used;     /* [count] 0/1: parameters this backward reaches; NULL: all. The others count
                      as ready at once; one unused on every rank is neither sent nor changed */
    bool weighted; /* gradients hold sums of w*g; the result is divided once by the global sum of
                      w over micro-batches and ranks. All backwards of a step use one form */
    double weight; /* with `weighted`: w of this micro-batch, in samples or tokens; >= 0 */
} ls_reducer_begin_options;
#define LS_DEFAULTS_ls_reducer_begin_options
LS_DEFAULTS_FUNCTION(reducer_begin)

/* Begins a backward; NULL options: one that synchronises and reaches everything. A synchronising
 * one starts a small control exchange and does not wait for it. Gradients that an earlier backward
 * has reduced already, and that were not zeroed since, are set aside and added back after: only the
 * new part is reduced. */
LS_API ls_status ls_reducer_begin(ls_reducer *reducer, const ls_reducer_begin_options *options);

/* Gradient `param` is final. Safe from any thread. Without a begin it does nothing (a local
 * backward, no_sync). Calling it twice in one backward is LS_ERR_STATE and names the parameter. */
LS_API ls_status ls_reducer_ready(ls_reducer *reducer, int param, ls_stream *stream);

/* Waits for all buckets; returns at once after a local backward. On error the gradients are
 * undefined and the optimizer must not step. */
LS_API ls_status ls_reducer_wait(ls_reducer *reducer);

/* Forgets all gradients (zero_grad): the next accumulation overwrites. O(1) where memory allows. */
LS_API ls_status ls_reducer_zero(ls_reducer *reducer);

/* Whether `param` was reached on any rank in the last synchronised backward. */
LS_API bool ls_reducer_used(const ls_reducer *reducer, int param);

typedef struct ls_reducer_stats {
    size_t size; /* set to sizeof before the call */
    int buckets;
    uint64_t reductions;     /* synchronised backwards so far */
    uint64_t bucket_bytes;   /* bytes of all buckets */
    double comm_seconds;     /* of the last one: first launch to last completion */
    double exposed_seconds;  /* of the last one: time ls_reducer_wait blocked */
    uint64_t gradient_bytes; /* bytes launched in the last one */
} ls_reducer_stats;
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

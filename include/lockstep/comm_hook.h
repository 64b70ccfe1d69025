/* SPDX-License-Identifier: Apache-2.0 */
/* Communication hooks: what is sent in place of a bucket of gradients (Li et al., VLDB 2020,
 * section 6.2.3; torch.distributed.algorithms.ddp_comm_hooks).
 *
 *     ls_comm_hook hook = {.size = sizeof hook};
 *     LS_CHECK(ls_powersgd_new(LS_OPTIONS(ls_powersgd_options, .rank = 4), &hook));
 *     LS_CHECK(ls_ddp_set_hook(net, &hook));
 *
 * A hook replaces the all-reduce of a bucket by one to four phases, each of one collective:
 *
 *     gradients ──before(0)──▶ collective ──after(0)──▶ before(1) ──▶ … ──after(n-1)──▶ averages
 *
 * `before` says what the phase sends, and may first compute it; `after` reads what has come. After
 * the last phase the bucket's memory must hold the average, the same bytes on every rank: else the
 * replicas drift apart, which ls_ddp_options.check_every finds.
 *
 * Calls of one reducer never overlap. They run on a thread of the reducer's own while backward goes
 * on, and on the thread of backward while that waits. Phase k of all buckets runs in the order of
 * the buckets, on all ranks alike, so a hook needs no lock for its state. */
#ifndef LOCKSTEP_COMM_HOOK_H
#define LOCKSTEP_COMM_HOOK_H

#include <lockstep/reducer.h>
#include <lockstep/state.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_COMM_HOOK_PHASES_MAX 4

/* ---- a bucket, valid during a call of a hook ------------------------------------------------ */

typedef struct ls_bucket ls_bucket;

/* All gradients of a bucket lie in one piece of memory: of this rank before the first phase, the
 * averages after the last. Gaps between parameters hold zeros. With weights (ls_backward_weighted)
 * they were multiplied so that the mean over the ranks is the weighted mean. */
LS_API void *ls_bucket_memory(ls_bucket *bucket);
LS_API int64_t ls_bucket_numel(const ls_bucket *bucket); /* elements, gaps included */
LS_API ls_dtype ls_bucket_dtype(const ls_bucket *bucket);
LS_API int ls_bucket_index(const ls_bucket *bucket); /* in the order of launching, from 0 */
LS_API int ls_bucket_rank(const ls_bucket *bucket);  /* in the group over which it is summed … */
LS_API int ls_bucket_ranks(const ls_bucket *bucket); /* … and that group's size */
/* Synchronised backwards since the hook was set, before this one: the same on all ranks. A hook
 * with `visit` counts on from its checkpoint, which shows the number as "steps". */
LS_API uint64_t ls_bucket_step(const ls_bucket *bucket);

typedef struct ls_bucket_param {
    size_t size;
    const char *name; /* valid until the reducer is freed */
    int index;        /* in the order of registration. State of a hook is kept by it: the division
                         into buckets changes once, after the first synchronised backward */
    void *grad;       /* in the bucket's memory; NULL in `open` */
    int64_t count;
    ls_dtype dtype;
    int ndim; /* 1 and count where no shape was registered */
    int64_t shape[LS_DIMS_MAX];
    bool used; /* by some rank in this backward; else the gradient is zero on all */
} ls_bucket_param;
LS_API int ls_bucket_params(const ls_bucket *bucket);
/* Parameter i of the bucket, from 0. LS_ERR_INVALID: it has no such one. */
LS_API ls_status ls_bucket_get_param(const ls_bucket *bucket, int i, ls_bucket_param *out);

/* Memory for what a phase sends or receives, aligned to 64 bytes, which the group's operations work
 * best on. It belongs to the bucket: `slot`, from 0 to 7, returns the same memory, with the same
 * bytes in it, until more is asked for or the buckets are laid out anew; then it is zero. NULL with
 * ls_error_message without memory. */
#define LS_BUCKET_SLOTS 8
LS_API void *ls_bucket_scratch(ls_bucket *bucket, int slot, size_t bytes);

/* ---- a hook ---------------------------------------------------------------------------------- */

typedef enum ls_exchange_kind {
    LS_EXCHANGE_NONE = 0,   /* nothing is sent in this phase, on no rank */
    LS_EXCHANGE_ALL_REDUCE, /* sum of output [count] over the ranks, in place: input == output */
    LS_EXCHANGE_REDUCE_SCATTER, /* input [ranks*count], output [count] */
    LS_EXCHANGE_ALL_GATHER,     /* input [count], output [ranks*count] */
    LS_EXCHANGE_ALL_TO_ALL      /* input [ranks*count], output [ranks*count] */
} ls_exchange_kind;

/* The collective of a phase; the same kind, count and dtype on all ranks. */
typedef struct ls_exchange {
    size_t size;
    ls_exchange_kind kind;
    const void *input;
    void *output;
    int64_t count; /* elements, as of the collective's own call */
    ls_dtype dtype;
    bool mean; /* of sums: divided by the number of ranks */
} ls_exchange;

typedef struct ls_comm_hook {
    size_t size;
    const char *name;  /* "powersgd"; copied */
    const char *about; /* its settings: "rank=4, start_step=10"; copied. Compared over the ranks.
                          Default "" */
    int phases;        /* 1 to LS_COMM_HOOK_PHASES_MAX */
    void *state;       /* given to every call */
    /* Called once, when the hook is set, with all parameters of the reducer in the order of their
     * index, valid for the call, and with this rank's place in its group: makes what is kept for
     * each of them. NULL: nothing is to be done. */
    ls_status (*open)(void *state, const ls_bucket_param *params, int count, int rank, int ranks);
    /* Fills in *out, which is zero but for its size: what this phase sends. Required. `stream`:
     * NULL, the host. An error fails the backward with the text of ls_error_message, on other ranks
     * this one or, if their phases have all ended, the next one. */
    ls_status (*before)(void *state, ls_bucket *bucket, int phase, ls_exchange *out,
                        ls_stream *stream);
    /* Reads what has come. NULL: nothing is to be done. */
    ls_status (*after)(void *state, ls_bucket *bucket, int phase, ls_stream *stream);
    /* Shows the state to a checkpoint (state.h), between steps: what differs between ranks as
     * slices of one tensor. The name "steps" below the prefix is taken. NULL: there is nothing to
     * keep, and the numbers of ls_bucket_step begin anew. */
    ls_status (*visit)(void *state, const char *prefix, const ls_state_visitor *visitor);
    void (*free)(void *state); /* when the hook is taken off; NULL: nothing is to be done */
} ls_comm_hook;
#define LS_DEFAULTS_ls_comm_hook .about = "", .phases = 1,

/* Sets the hook of all buckets, in place of one that was set before, which is freed; NULL takes it
 * off, and so does the "plain" of ls_comm_hook_parse. What the former hook had not sent yet is
 * dropped. Collective; between backwards, gradients that were accumulated stay. The state is owned
 * from the call on, also after a failure; a hook serves one reducer. LS_ERR_MISMATCH names the
 * difference when ranks give different hooks. LS_ERR_UNSUPPORTED, with the reason: with shards,
 * zero or wire_dtype, and where gradients are added over parts of the group. A group of one rank
 * sends nothing and calls no hook. */
LS_API ls_status ls_reducer_set_hook(ls_reducer *reducer, const ls_comm_hook *hook);
#ifdef __cplusplus
}
#endif
#endif

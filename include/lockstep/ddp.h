/* DistributedDataParallel: the one line that makes a training loop parallel (VLDB 2020,
 * section 3.1).
 *
 *     net = ls_ddp_new(net, ls_world(), NULL);
 *
 * Every rank holds a replica. The constructor compares the models and broadcasts rank 0's
 * parameters and buffers; afterwards ls_backward averages the gradients over the ranks, bucket by
 * bucket, while it is still running. Reading weights and evaluating need no wrapper and no
 * collective.
 *
 * Buffers (running statistics of batch norm) follow each rank's own batches in a forward pass; a
 * backward that synchronises makes them rank 0's everywhere, in one broadcast that runs beside it.
 * PyTorch broadcasts them before the next forward pass, so the values are the same; here they are
 * also equal on all ranks when the model is judged or saved after a step.
 *
 * Gradients and parameters move once, in the first synchronised backward, into memory laid out in
 * the order in which gradients become ready: do not hold an ls_data pointer of a parameter across
 * it.
 */
#ifndef LOCKSTEP_DDP_H
#define LOCKSTEP_DDP_H

#include <lockstep/nn.h>
#include <lockstep/reducer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_ddp_options {
    size_t size;
    size_t bucket_bytes;       /* default 25 MiB; see ls_reducer_options */
    size_t first_bucket_bytes; /* default 1 MiB */
    bool broadcast_buffers;    /* default true; false: after the first time they are each rank's
                                   own. The same on all ranks */
} ls_ddp_options;
#define LS_DEFAULTS_ls_ddp_options                                                                 \
    .bucket_bytes = 25 << 20, .first_bucket_bytes = 1 << 20, .broadcast_buffers = true,
LS_DEFAULTS_FUNCTION(ddp)

/* Collective. Takes `module`: free the returned one only. NULL with ls_error_message on failure
 * (LS_ERR_MISMATCH names the parameter that differs and both sides; LS_ERR_STATE: it is wrapped
 * already, or part of another module); `module` is still yours then. Parameters that require no
 * gradients are broadcast and then left alone; ls_backward refuses one that begins to later. */
LS_API ls_module *ls_ddp_new(ls_module *module, ls_group *group, const ls_ddp_options *options);

LS_API ls_module *ls_ddp_module(ls_module *ddp); /* the wrapped module; borrowed */

/* Whether the next backwards synchronise (require_backward_grad_sync); true at first. With false
 * gradients only accumulate locally; the first backward with true synchronises all of it. A module
 * that is not a DDP module accepts the call and ignores it, so one loop serves both. */
LS_API ls_status ls_ddp_set_sync(ls_module *ddp, bool sync);
LS_API bool ls_ddp_sync(const ls_module *ddp);

/* LS_NO_SYNC(net); : backwards from here to the end of the block do not synchronise (no_sync). The
 * last backward of a step belongs outside. A declaration, as LS_SCOPE is. */
#if defined(__GNUC__)
typedef struct ls_no_sync_ {
    ls_module *ddp;
    bool before;
} ls_no_sync_;
static inline ls_no_sync_ ls_no_sync_enter_(ls_module *ddp)
{
    const ls_no_sync_ guard = {ddp, ls_ddp_sync(ddp)};
    (void)ls_ddp_set_sync(ddp, false);
    return guard;
}
static inline void ls_no_sync_cleanup_(const ls_no_sync_ *guard)
{
    (void)ls_ddp_set_sync(guard->ddp, guard->before);
}
#define LS_NO_SYNC(net)                                                                            \
    const ls_no_sync_ LS_ON_LINE(ls_no_sync_here_) LS_UNTIL_END_(ls_no_sync_cleanup_) =            \
        ls_no_sync_enter_(net)
#endif

/* Communication of the last synchronised backward; see ls_reducer_stats. */
LS_API ls_status ls_ddp_get_stats(const ls_module *ddp, ls_reducer_stats *out);

/* Compares parameter hashes over the group: *identical is how many ranks hold the same bytes as the
 * group's rank 0, *hash that rank's. Collective. */
LS_API ls_status ls_replicas_identical(ls_module *module, ls_group *group, int *identical,
                                       uint64_t *hash);

#if !defined(LS_NO_SITES)
#define ls_ddp_new(...) LS_AT(ls_ddp_new(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif

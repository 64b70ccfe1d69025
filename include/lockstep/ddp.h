/* DistributedDataParallel: one line that makes a training loop data-parallel (Li et al., VLDB 2020,
 * section 3.1).
 *
 *     net = ls_ddp_new(net, ls_world(), NULL);
 *
 * Every rank has a replica of the model. The constructor compares the models and broadcasts the
 * parameters and buffers of rank 0. Afterwards ls_backward averages the gradients over the ranks,
 * bucket by bucket, while it is still running. Reading weights and evaluating the model need
 * neither the wrapper nor a collective.
 *
 * Buffers (running statistics of batch norm) follow each rank's own batches in the forward pass. A
 * synchronising backward sets them to those of rank 0, in one broadcast that runs concurrently.
 * PyTorch broadcasts them before the next forward pass, with the same values; here they are also
 * equal on all ranks when the model is evaluated or saved after a step.
 *
 * The first synchronised backward moves gradients and parameters once, into memory in the order in
 * which gradients become ready, so do not keep a pointer from ls_data of a parameter across it.
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
    size_t bucket_bytes;       /* in bytes; default 25 MiB; see ls_reducer_options */
    size_t first_bucket_bytes; /* in bytes; default 1 MiB */
    bool broadcast_buffers;    /* default true; false: only the constructor broadcasts them. All
                                  ranks must set the same */
} ls_ddp_options;
#define LS_DEFAULTS_ls_ddp_options                                                                 \
    .bucket_bytes = 25 << 20, .first_bucket_bytes = 1 << 20, .broadcast_buffers = true,
LS_DEFAULTS_FUNCTION(ddp)

/* Wraps `module` for data-parallel training over `group`
 * (torch.nn.parallel.DistributedDataParallel). Collective. Takes `module`: free only the returned
 * one. NULL with ls_error_message on failure, and the caller keeps `module`: LS_ERR_MISMATCH names
 * the parameter that differs and both sides; LS_ERR_STATE means that the module is wrapped already
 * or is part of another one. The group is borrowed. Parameters that require no gradients are
 * broadcast and otherwise ignored. A parameter may be frozen later (ls_set_requires_grad, on all
 * ranks alike) and thawed before a forward pass. ls_backward refuses, by name, a parameter that
 * required no gradients here and does later, and one that was added later; see ls_ddp_unwrap. */
LS_API ls_module *ls_ddp_new(ls_module *module, ls_group *group, const ls_ddp_options *options);

LS_API ls_module *ls_ddp_module(ls_module *ddp); /* the wrapped module; borrowed */

/* Takes the wrapper off: frees it and returns the wrapped module, which belongs to the caller again.
 * Collective. Optimizers of the module remain usable, but nothing averages its gradients any more. To
 * change which parameters require gradients, or to add layers: unwrap, change, wrap again, and make a
 * new optimizer. A module without a wrapper is returned as it is; NULL with LS_ERR_STATE for a ddp
 * that is part of another module. */
LS_API ls_module *ls_ddp_unwrap(ls_module *ddp);

/* Sets whether the next backward passes synchronise (require_backward_grad_sync); initially true.
 * With false gradients accumulate locally; the first backward with true averages all of them. All
 * ranks set the same. A module without a wrapper ignores the call, and ls_ddp_sync returns true for
 * it, so one training loop serves both. */
LS_API ls_status ls_ddp_set_sync(ls_module *ddp, bool sync);
LS_API bool ls_ddp_sync(const ls_module *ddp);

/* LS_NO_SYNC(net); disables synchronisation until the end of the block (no_sync). The last backward
 * of a step must be outside the block. A declaration, like LS_SCOPE. */
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

/* Statistics of the last synchronised backward; see ls_reducer_stats. Local call. */
LS_API ls_status ls_ddp_get_stats(const ls_module *ddp, ls_reducer_stats *out);

/* Compares the parameters and buffers of all ranks by ls_module_hash: *identical becomes the number
 * of ranks with the same hash as rank 0 of the group, *hash that hash. Collective. */
LS_API ls_status ls_replicas_identical(ls_module *module, ls_group *group, int *identical,
                                       uint64_t *hash);

#if !defined(LS_NO_SITES)
#define ls_ddp_new(...) LS_AT(ls_ddp_new(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif

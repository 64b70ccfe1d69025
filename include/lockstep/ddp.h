/* SPDX-License-Identifier: Apache-2.0 */
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
 * Parameters that only some ranks have alike, as the experts of a mixture, are placed in a group of
 * their own (ls_ddp_options.place); the group given to ls_ddp_new has all of their ranks.
 *
 * Gradients of a module on a device (lockstep.h) are averaged there, in streams, by the backend of
 * its memory: "nccl" for "cuda" (ls_ddp_options.backend). Over others they pass through the host.
 *
 * The first synchronised backward moves gradients and parameters once, into memory in the order in
 * which gradients become ready, so do not keep a pointer from ls_data of a parameter across it.
 */
#ifndef LOCKSTEP_DDP_H
#define LOCKSTEP_DDP_H

#include <lockstep/comm_hook.h>
#include <lockstep/nn.h>
#include <lockstep/optim.h>
#include <lockstep/reducer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the gradient of one parameter is reduced; the fields are those of ls_reducer_param. */
typedef struct ls_ddp_place {
    size_t size;
    ls_group *reduce_group; /* whose gradients are added, and whose rank 0 has the first values */
    ls_group *batch_group;  /* by whose size, or sum of weights, the sum is divided */
    double divisor;         /* not 0: instead */
    int bucket;             /* from 1; 0: Lockstep chooses */
} ls_ddp_place;

typedef struct ls_ddp_options {
    size_t size;
    size_t bucket_bytes;       /* in bytes; default LS_BUCKET_BYTES_AUTO; see reducer.h */
    size_t first_bucket_bytes; /* in bytes; default 1 MiB */
    bool broadcast_buffers;    /* default true; false: only the constructor broadcasts them. All
                                  ranks must set the same */
    /* Called by the constructor for each parameter that requires gradients: changes *place, which
       is zero but for its size, where a parameter is not summed over the whole group (experts,
       norms under sequence parallelism) or has a bucket of the caller's. Default NULL */
    void (*place)(void *arg, const char *name, const ls_tensor *param, ls_ddp_place *place);
    void *place_arg;
    ls_reduce_mode mode; /* default LS_REDUCE_OVERLAP; see reducer.h */
    ls_dtype wire_dtype; /* LS_BFLOAT16: gradients travel as bfloat16 (bf16_compress_hook); default
                            LS_FLOAT32: as they are. See reducer.h for what it gives up */
    int check_every;     /* synchronised backwards between two comparisons of all ranks' parameters,
                            which must be equal to the bit; LS_ERR_MISMATCH names parameter and
                            rank. Also along axes of the mesh outside of the group, but those of
                            pipelines, of parameters that are not sharded there. Default 100; 0:
                            never. All ranks set the same */
    int shards; /* equal bits for any number of ranks (exact=layout): a power of two; 0, the
                   default: only for equal numbers. See below. All ranks set the same */
    /* With a mesh in force: the axes along which the ranks have different samples ("dp,cp"), if the
     * group extends along others as well; "": none. Over those only parameters are summed that
     * ls_place made LS_REPLICATED there (norms under sequence parallelism). Default NULL: all axes
     * of the group.
     * Parameters are then read as replicated along the axes over which they are summed, and inputs
     * that are unplaced as varying along the axes of batches (placement.h). LS_ERR_PLACEMENT: a
     * parameter that is sharded along an axis of batches, unless it is an expert's (moe.h), or
     * replicated along an axis that the group lacks */
    const char *batch_axes;
    /* Divides what training keeps among the ranks (ZeRO): 1, the optimizer's state; 2, the averaged
     * gradients as well; 3, parameters, too; 0, the default: every rank has all of it. See below.
     * All ranks set the same */
    int zero;
    /* With `zero`: it is divided among the ranks of this group only, and each other one of such
     * groups has all of it (hybrid sharding, HSDP). Each rank gives its own; they have the same
     * size, and together all ranks of the ddp. Borrowed for the call. Default NULL: all ranks */
    ls_group *shard_group;
    /* What reports call the wrapper and the groups that it makes (copied; at most 31 bytes are
     * shown). All ranks give the same. Default NULL: "ddp", and "ddp 2", "ddp 3", … of further
     * wrappers over the same group */
    const char *name;
    /* What moves gradients: the backend of the groups that the wrapper makes, as that of
     * ls_group_options; what the program exchanges over its own group is not concerned. All ranks
     * give the same. Default NULL: that of the device on which all parameters lie ("nccl" on
     * "cuda"), if the group's backend carries memory of the host, every rank can load the plug-in,
     * and neither `shards` nor wire_dtype is asked for; the first rank that cannot load it warns.
     * Else that of the group. "native": gradients of a device pass through the host, which hooks
     * (ls_ddp_set_hook) and a second backward before ls_optim_zero_grad need */
    const char *backend;
} ls_ddp_options;
#define LS_DEFAULTS_ls_ddp_options                                                                 \
    .bucket_bytes = LS_BUCKET_BYTES_AUTO, .first_bucket_bytes = 1 << 20,                           \
    .broadcast_buffers = true, .check_every = 100,
LS_DEFAULTS_FUNCTION(ddp)

/* With `shards` = S, training has the same bits on every number of ranks that is a power of two up
 * to S, also when it continues from a checkpoint on another number. A step then consists of S
 * backward passes: S/ranks on each rank, of the same number of samples, in the order in which a
 * loader with the same ls_loader_options.shards gives them. Only the last one of a rank
 * communicates (ls_ddp_set_sync has no effect), and the gradient is the mean over the shards'
 * losses, so do not scale the losses. The gradients of the shards are computed apart and added in
 * one binary tree over the shards. That costs log2(S/ranks) gradients of memory and one addition of
 * all gradients for each shard (docs/ddp.md). Running statistics of batch norm are those of shard
 * 0.
 *
 * ls_ddp_new refuses what has no such promise: other numbers of ranks, parameters that are not
 * float32, `place`, wire_dtype, broadcast_buffers = false, and an algorithm in LOCKSTEP_ALGORITHM
 * that is not exact; ls_ddp_join and ls_ddp_set_local are refused as well, and so is a model whose
 * batch norm takes the statistics of all ranks (ls_sync_batch_norm_convert; LS_ERR_UNSUPPORTED).
 * The promise holds for one execution path: processors with the same instruction sets, one build. A
 * loss that itself depends on other ranks is the caller's matter. */

/* With `zero` each rank steps 1/ranks of the elements, and keeps optimizer state for those only
 * (Rajbhandari et al. 2020; ZeroRedundancyOptimizer, FSDP): gradients are reduce-scattered in place
 * of all-reduced. With 1 and 2 ls_optim_step gathers the parameters, which are whole when it
 * returns, and as many bytes are sent. With 3 each pass gathers them bucket by bucket as they are
 * read, twice in a step, and sends half as many more. ls_optim_step is collective then, and so are
 * ls_clip_grad_norm and, with 3, a forward pass. Losses and parameters have the bits of training
 * without it, unless LOCKSTEP_ALGORITHM names an algorithm that is not exact; those of the norm of
 * ls_clip_grad_norm may differ in the last place, since the squares of a parameter that lies on two
 * ranks are added in two parts (docs/guide/zero.md). A change that one rank alone makes to its
 * gradients or parameters before the step reaches all ranks, and check_every does not find it: with
 * 3 it compares what the ranks have gathered, in a step in which all of them have data.
 * Checkpoints are the same files and load at any `zero` and number of ranks.
 *
 * After a synchronised backward the elements of a gradient that are another rank's are undefined;
 * with 2 and 3 a bucket that is reduced leaves their memory to the next one. Backwards under
 * LS_NO_SYNC add up whole gradients, so with them a rank needs the memory of all gradients, and
 * with 3 of all parameters. The first synchronised backward is one without zero: it shows the
 * layout in which the elements are divided. State that is loaded before it is whole until the first
 * step.
 *
 * With 3 reading a parameter outside of the wrapper's passes is LS_ERR_STATE: see ls_ddp_gather. An
 * address from ls_data within a pass is invalid when the pass has left the module.
 * Parameters that require no gradients here are whole on every rank.
 *
 * The optimizer belongs to the wrapper: after ls_ddp_unwrap it refuses to step. LS_ERR_UNSUPPORTED:
 * `shards`, wire_dtype, a hook, a `place` that sums over a part of the group, ls_ddp_set_local;
 * with 3 a pipeline, and a parameter that is part of a larger tensor. */

/* Wraps `module` for data-parallel training over `group`
 * (torch.nn.parallel.DistributedDataParallel). Collective. Takes `module`: free only the returned
 * one. NULL with ls_error_message on failure, and the caller keeps `module`: LS_ERR_MISMATCH names
 * the parameter that differs and both sides, or a rank on which alone the call is wrong;
 * LS_ERR_STATE means that the module is wrapped already or is part of another one. The group, and
 * those of ls_ddp_options.place, are borrowed until the wrapper is freed. Parameters that require
 * no gradients are broadcast and otherwise ignored. A parameter may be frozen later
 * (ls_set_requires_grad, on all ranks alike) and thawed before a forward pass. ls_backward refuses,
 * by name, a parameter that required no gradients here and does later, and one that was added
 * later; see ls_ddp_unwrap. */
LS_API ls_module *ls_ddp_new(ls_module *module, ls_group *group, const ls_ddp_options *options);

LS_API ls_module *ls_ddp_module(ls_module *ddp); /* the wrapped module; borrowed */

/* The name of the backend that moves gradients (borrowed); "native" of a module without a
 * wrapper. */
LS_API const char *ls_ddp_backend(const ls_module *ddp);

/* With `zero` = 3 the ranks gather all parameters, so that each may read them and run forward
 * passes by itself, for an evaluation or an export (summon_full_params), until ls_ddp_release or
 * the next step of an optimizer. Else, and for a module without a wrapper, parameters are whole
 * already; LS_ERR_INVALID for one that has a wrapper below it, or is below one. Collective. */
LS_API ls_status ls_ddp_gather(ls_module *ddp);
LS_API ls_status ls_ddp_release(ls_module *ddp); /* ends it; local call, on all ranks alike */

/* Takes the wrapper off: frees it and returns the wrapped module, which belongs to the caller
 * again. Collective. Optimizers of the module remain usable, but nothing averages its gradients any
 * more. To change which parameters require gradients, or to add layers: unwrap, change, wrap again,
 * and make a new optimizer. A module without a wrapper is returned as it is; NULL with LS_ERR_STATE
 * for a ddp that is part of another module. */
LS_API ls_module *ls_ddp_unwrap(ls_module *ddp);

/* Sets whether the next backward passes synchronise (require_backward_grad_sync); initially true.
 * With false gradients accumulate locally; the first backward with true averages all of them. All
 * ranks set the same. A module without a wrapper ignores the call, and ls_ddp_sync returns true for
 * it, so one training loop serves both; LS_ERR_INVALID for one that has a wrapper below it, or is
 * below one. */
LS_API ls_status ls_ddp_set_sync(ls_module *ddp, bool sync);
LS_API bool ls_ddp_sync(const ls_module *ddp);

/* LS_NO_SYNC(net); disables synchronisation until the end of the block (no_sync). The last backward
 * of a step must be outside the block. A declaration, like LS_SCOPE. A module that ls_ddp_set_sync
 * refuses ends the process, as by LS_CHECK. */
#if defined(__GNUC__)
typedef struct ls_no_sync_ {
    ls_module *ddp;
    bool before;
} ls_no_sync_;
static inline ls_no_sync_ ls_no_sync_enter_(ls_module *ddp, const char *file, int line)
{
    const ls_no_sync_ guard = {ddp, ls_ddp_sync(ddp)};
    ls_site_set(file, line);
    ls_check_failed(ls_ddp_set_sync(ddp, false), file, line, "LS_NO_SYNC");
    return guard;
}
static inline void ls_no_sync_cleanup_(const ls_no_sync_ *guard)
{
    (void)ls_ddp_set_sync(guard->ddp, guard->before);
}
#define LS_NO_SYNC(net)                                                                            \
    const ls_no_sync_ LS_ON_LINE(ls_no_sync_here_) LS_UNTIL_END_(ls_no_sync_cleanup_) =            \
        ls_no_sync_enter_(net, __FILE__, __LINE__)
#endif

/* From now on every synchronising backward steps `optim`, bucket by bucket as averages arrive,
 * while later ones are still computed (_apply_optimizer_in_backward); the loop is forward and
 * backward. The bits are those of ls_optim_step after it. Gradients are absent afterwards. This
 * gives up
 *   - clipping and looking at gradients: ls_clip_grad_norm finds none;
 *   - adding several synchronising backwards up; micro-batches under LS_NO_SYNC still add up;
 *   - all or nothing: when a backward fails, some parameters may have stepped, and replicas may
 *     differ: continue from a checkpoint.
 * `optim` is borrowed and must have all parameters of `ddp`; NULL ends it, which is due before the
 * optimizer is freed, if the module is used further. Set it on all ranks alike. LS_ERR_INVALID for
 * a module without a wrapper. Local call. */
LS_API ls_status ls_ddp_step_in_backward(ls_module *ddp, ls_optim *optim);

/* Sets the communication hook of all buckets (register_comm_hook): what is sent in place of them,
 * such as ls_powersgd_new. As ls_reducer_set_hook (comm_hook.h), which says who owns what, and
 * which combinations are refused; so is a parameter that is divided along an axis of the mesh. A
 * module without a wrapper ignores the hook and frees its state; LS_ERR_INVALID for one that has a
 * wrapper below it, or is below one. The wrapper's ls_module_state shows the hook's state under
 * "comm_hook". Collective. */
LS_API ls_status ls_ddp_set_hook(ls_module *ddp, const ls_comm_hook *hook);

/* ---- ranks with unequal amounts of data ----------------------------------------------------- */

typedef struct ls_ddp_join_options {
    size_t size;
    /* default true: a plain ls_backward's sums are divided by the number of all ranks, so every
     * sample keeps its weight; false: by the number of ranks that still have data. Equal on all
     * ranks that have joined. Gradients of ls_backward_weighted are divided by the sum of weights
     * in both cases */
    bool divide_by_initial_world_size;
} ls_ddp_join_options;
#define LS_DEFAULTS_ls_ddp_join_options .divide_by_initial_world_size = true,
LS_DEFAULTS_FUNCTION(ddp_join)

/* Takes the place of ls_backward on a rank that has run out of data (torch.distributed.algorithms
 * .join): takes part in the other ranks' next synchronising backward and receives its gradients, so
 * that this rank steps as they do and all replicas and optimizers stay equal.
 *
 *     for (;;) {
 *         bool more = next(&batch);                      this rank's own data, of any length
 *         if (more) {
 *             LS_CHECK(ls_backward_weighted(loss_of(net, &batch), batch.count));
 *         } else {
 *             LS_CHECK(ls_ddp_join(net, NULL, &more));
 *         }
 *         if (!more) {
 *             break;                                     on all ranks in the same step
 *         }
 *         … clip, ls_optim_step, ls_optim_zero_grad …
 *     }
 *
 * *more becomes false when all ranks have joined: there is nothing to step. The next epoch begins
 * as the first one did. Gradients that this rank accumulated without synchronisation before it ran
 * out of data take part. Call it once for each synchronising backward of the other ranks, whether
 * ls_ddp_sync is true or not. Other collectives of a step (ls_metric_mean, ls_clip_grad_norm with a
 * group) need this rank, too: leave them out of the branch with data. With
 * ls_sync_batch_norm_convert it is refused (LS_ERR_UNSUPPORTED, LS_ERR_ABORTED on the other ranks):
 * a rank that has joined runs no forward pass, for which the others wait. Give it an empty batch of
 * weight 0 instead. Without a wrapper *more becomes false. Collective. */
LS_API ls_status ls_ddp_join(ls_module *ddp, const ls_ddp_join_options *options, bool *more);

/* ---- local steps ---------------------------------------------------------------------------- */

/* Says that the replicas may differ from now on (initially false): optimizers may step on gradients
 * of this rank alone, and the ranks' parameters are not compared. ls_ddp_set_sync still says which
 * backwards average gradients. All ranks set the same. Local SGD (PeriodicModelAverager) averages
 * parameters every n steps:
 *
 *     LS_CHECK(ls_ddp_set_local(net, true));
 *     LS_CHECK(ls_ddp_set_sync(net, false));
 *     for each step: ls_backward, ls_optim_step, ls_optim_zero_grad
 *     after every nth: ls_ddp_average
 *
 * Gradients of ls_backward_weighted are divided by the sum of this rank's weights. `false` ends the
 * mode: LS_ERR_STATE unless ls_ddp_average followed the last step. ls_checkpoint_save refuses
 * replicas that differ: average before it, with `optim`, or say in ls_checkpoint_item.replicas what
 * is saved. A module without a wrapper ignores the call; LS_ERR_INVALID for one that has a wrapper
 * below it, or is below one. Local call. */
LS_API ls_status ls_ddp_set_local(ls_module *ddp, bool local);
LS_API bool ls_ddp_local(const ls_module *ddp); /* false for a module without a wrapper */

/* What an average becomes: the outer optimizer of DiLoCo (Douillard et al. 2023) and SlowMo (Wang
 * et al. 2020). x0 are the parameters at the start of the round, mean their average at its end:
 *
 *     g = (x0 - mean) / inner_lr                    the outer gradient
 *     u = momentum u + g
 *     parameters = x0 - lr inner_lr d,              d = u, or with nesterov g + momentum u
 *
 * With lr 1 and no momentum that is the average itself, to the bit; momentum above 0 with lr 1 and
 * inner_lr 1 is block momentum (BMUF). DiLoCo: .lr = 0.7, .momentum = 0.9, .nesterov = true. */
typedef struct ls_outer_options {
    size_t size;
    double lr;       /* above 0; default 1 */
    double momentum; /* in [0,1); default 0 */
    bool nesterov;   /* default false */
    double inner_lr; /* SlowMo's gamma: the learning rate of the round's local steps, so that u
                        outlives a change of it. Above 0; default 1: u follows the parameters */
} ls_outer_options;
#define LS_DEFAULTS_ls_outer_options .lr = 1.0, .inner_lr = 1.0,
LS_DEFAULTS_FUNCTION(outer)

typedef struct ls_ddp_average_options {
    size_t size;
    double weight;   /* of this rank's parameters, from 1e-15 to 1e15, for example its samples since
                        the last average; 0: the others' are taken. Default 1 */
    ls_optim *optim; /* its state (momentum, moments, master copies) is averaged, too, step numbers
                        become the largest. Without it each rank keeps its own, which is usual as
                        long as the steps stay local, but not before the mode ends. Default NULL */
    /* An outer optimizer takes the step from the start of the round. The first call with `outer`
     * after ls_ddp_set_local(net, true) belongs before the first local step: it averages nothing,
     * and notes where the round starts; LS_ERR_STATE after a step. For parameters in float32; of
     * those that are frozen (ls_set_requires_grad) it keeps the momentum and takes no step. Two
     * float32 of memory for each element. The wrapper's ls_module_state shows it under "outer".
     * Borrowed for the call, and its numbers may change between calls. Default NULL */
    const ls_outer_options *outer;
    const char *log;     /* file of the replay log (ls_average_replay), of which rank 0 writes a
                            line for each rank; the same in all calls. Default NULL: none */
    const char *command; /* goes into the log's header: what makes the averages again. Default NULL:
                            none */
    int64_t step;        /* this rank's steps so far, for the log. Default 0 */
} ls_ddp_average_options;
#define LS_DEFAULTS_ls_ddp_average_options .weight = 1.0,
LS_DEFAULTS_FUNCTION(ddp_average)

/* The parameters become their mean over the ranks (of each one's reduce group), weighted; buffers
 * those of the lowest rank whose weight is not 0, unless broadcast_buffers is false. The same bytes
 * on all ranks. Local SGD (Stich 2019), post-local SGD (Lin et al. 2020) and federated averaging
 * (McMahan et al. 2017) are loops around it (docs/guide/averaging.md). LS_ERR_STATE outside the
 * mode of ls_ddp_set_local, LS_ERR_INVALID for another weight than those, if the sum of all weights
 * is 0, or if a parameter of one rank is not finite, which fails the group and names both;
 * LS_ERR_MISMATCH if the ranks give other options than weight and step, or if the call is wrong on
 * some of them only, which names one. Without a wrapper nothing happens; LS_ERR_INVALID for a
 * module that has a wrapper below it, or is below one. Collective. One operation for each type of
 * parameters and group; of a module on a GPU one for each parameter, which passes through the host.
 */
LS_API ls_status ls_ddp_average(ls_module *ddp, const ls_ddp_average_options *options);

/* Takes steps of a worker, with the parameters, buffers and optimizer state that it had, until it
 * has taken `step` in all: forward, ls_backward, ls_optim_step, with the learning rates of then. */
typedef ls_status (*ls_average_train_fn)(void *arg, ls_module *ddp, ls_optim *optim, int worker,
                                         int64_t step);

typedef struct ls_average_replay_options {
    size_t size;
    const char *log; /* that ls_ddp_average has written */
    ls_average_train_fn train;
    void *arg;
    const ls_outer_options *outer; /* that of the run, read at each average, so that `train` may
                                      change it; default NULL: none */
    int64_t *versions; /* becomes the number of averages that were compared; may be NULL */
    bool *ended;       /* becomes whether the log has its end; may be NULL. That of a run that was
                          killed has none, and is replayed up to there */
} ls_average_replay_options;
#define LS_DEFAULTS_ls_average_replay_options
LS_DEFAULTS_FUNCTION(average_replay)

/* The sequential twin of a run with averages: one process trains the workers of a replay log one
 * after the other, averages what they have reached, and compares the hash of each average with that
 * in the log. `ddp` is a wrapper on one rank with the first values of the run, in the mode of
 * ls_ddp_set_local, and `optim` its new optimizer, whose state was not averaged in the run. It
 * takes memory for the parameters and the optimizer state of each worker. LS_ERR_MISMATCH names the
 * first line whose average differs, or that is missing. Local. */
LS_API ls_status ls_average_replay(ls_module *ddp, ls_optim *optim,
                                   const ls_average_replay_options *options);

/* Draws k of `clients` for a federated round: out[k] becomes their numbers in [0,clients), each at
 * most once, ascending; the same on every rank, a function of (seed, round). A client's data stays
 * on the rank that has it: only its parameters, with its samples as the weight, go into
 * ls_ddp_average. LS_ERR_INVALID unless 1 <= k <= clients and round >= 0. k^2 steps at most. Local
 * call. */
LS_API ls_status ls_sample_clients(uint64_t seed, int64_t round, int64_t clients, int64_t k,
                                   int64_t *out);

/* ---- ranks of unequal speed ------------------------------------------------------------------ */

/* Divides the samples of a step anew, so that all ranks need equally long for theirs. `seconds` is
 * this rank's time for the shares[rank] samples that it had, without waiting for others
 * (ls_ddp_stats: forward and backward; means of several steps are steadier); above 0. shares[ranks
 * of the group] are the samples of every rank, at least 1, the same on all ranks; they become the
 * new ones, with the same sum, in proportion to samples/seconds, at least 1 each. They stay as they
 * are unless the slowest rank is expected to need 10 % less time, so that noise moves nothing.
 * *changed says whether they did. The same on all ranks. Use them in ls_sampler_options.batches,
 * and the number of samples as the weight of ls_backward_weighted, which keeps the mean over all
 * samples exact. LS_ERR_INVALID for a time that is not above 0, on all ranks. Collective. */
LS_API ls_status ls_shares_by_speed(ls_group *group, double seconds, int64_t *shares,
                                    bool *changed);

/* ---- where the time of a step goes ---------------------------------------------------------- */

/* Seconds on this rank: in the last synchronised step, and mean and standard deviation over all of
 * them but the first, which allocates and lays out. */
typedef struct ls_ddp_time {
    double last, mean, deviation;
} ls_ddp_time;

/* A step ends with a synchronised backward. */
typedef struct ls_ddp_stats {
    size_t size;             /* set to sizeof before the call */
    ls_ddp_time step;        /* from the end of the step before to the end of this one */
    ls_ddp_time forward;     /* of all micro-batches */
    ls_ddp_time backward;    /* of all micro-batches, without waiting for other ranks */
    ls_ddp_time wire;        /* from the first bucket's launch to the last one's end */
    ls_ddp_time exposed;     /* for which ls_backward waited for other ranks and for the wire */
    ls_ddp_time optimizer;   /* ls_optim_step after the step before */
    double hidden_share;     /* of wire, behind backward: 1 - exposed/wire, at least 0; means */
    ls_reducer_stats reduce; /* buckets, bytes, the slowest rank; see reducer.h */
} ls_ddp_stats;
/* Local call. */
LS_API ls_status ls_ddp_get_stats(const ls_module *ddp, ls_ddp_stats *out);

/* The gradient-ready timeline of the last synchronised step as JSON, terminated by a zero: for each
 * parameter its name, elements, type, bucket, and when its gradient was ready and its bucket was
 * launched and reduced (seconds since backward began; null: it did not happen); and the buckets in
 * the order of launching, with their bytes. *needed, unless NULL, becomes the bytes that it takes;
 * LS_ERR_LIMIT when `bytes` are fewer (out may be NULL with 0). Local call. The same as numbers:
 * ls_reducer_get_event of ls_ddp_reducer. */
LS_API ls_status ls_ddp_timeline(ls_module *ddp, char *out, size_t bytes, size_t *needed);
LS_API ls_reducer *ls_ddp_reducer(ls_module *ddp); /* borrowed; NULL: not a ddp */

/* Compares the parameters and buffers of all ranks by ls_module_hash: *identical becomes the number
 * of ranks with the same hash as rank 0 of the group, *hash that hash. Parameters that are sharded
 * along axes of the mesh in force are compared with those of the first rank that has the same part.
 * LS_ERR_STATE while they are divided (zero 3). Collective. */
LS_API ls_status ls_replicas_identical(ls_module *module, ls_group *group, int *identical,
                                       uint64_t *hash);

/* *mean becomes the mean of all ranks' values, each with its weight: of a loss or an accuracy with
 * the number of samples, however uneven the shares. A rank with weight 0 may have any value, NaN
 * too; NaN where all weights are 0. The same bits on all ranks. Weights are >= 0. Collective. */
LS_API ls_status ls_metric_mean(ls_group *group, double value, double weight, double *mean);

#if !defined(LS_NO_SITES)
#define ls_metric_mean(...) LS_AT(ls_metric_mean(__VA_ARGS__))
#define ls_ddp_new(...) LS_AT(ls_ddp_new(__VA_ARGS__))
#define ls_ddp_step_in_backward(...) LS_AT(ls_ddp_step_in_backward(__VA_ARGS__))
#define ls_ddp_gather(...) LS_AT(ls_ddp_gather(__VA_ARGS__))
#define ls_ddp_release(...) LS_AT(ls_ddp_release(__VA_ARGS__))
#define ls_ddp_set_sync(...) LS_AT(ls_ddp_set_sync(__VA_ARGS__))
#define ls_ddp_set_hook(...) LS_AT(ls_ddp_set_hook(__VA_ARGS__))
#define ls_ddp_join(...) LS_AT(ls_ddp_join(__VA_ARGS__))
#define ls_ddp_set_local(...) LS_AT(ls_ddp_set_local(__VA_ARGS__))
#define ls_ddp_average(...) LS_AT(ls_ddp_average(__VA_ARGS__))
#define ls_average_replay(...) LS_AT(ls_average_replay(__VA_ARGS__))
#define ls_sample_clients(...) LS_AT(ls_sample_clients(__VA_ARGS__))
#define ls_shares_by_speed(...) LS_AT(ls_shares_by_speed(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif

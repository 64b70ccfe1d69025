/* SPDX-License-Identifier: Apache-2.0 */
/* Parameter servers: some ranks keep the parameters and step the optimizer, the others compute
 * gradients (Li et al., OSDI 2014; Dean et al., NIPS 2012).
 *
 *      server 0   server 1          each has its range of every bucket, its part of the optimizer's
 *      ▲ │  ▲ │   ▲ │  ▲ │          state, and counts its versions
 *      │ ▼  │ ▼   │ ▼  │ ▼
 *      worker 0   worker 1 …        push: the gradient of a batch;  pull: the newest version
 *
 *     net = ls_server_new(net, ls_world(), LS_OPTIONS(ls_server_options, .servers = 2));
 *     optim = ls_adamw_new(net, NULL);
 *     LS_CHECK(ls_server_run(net, optim));            a server without a worker is busy in it
 *     for (…; ls_server_works(net) && …;) {           the loop of ls_ddp_new:
 *         loss = …ls_forward(net, x)…;                pulls
 *         LS_CHECK(ls_backward(loss));                pushes
 *         LS_CHECK(ls_optim_step(optim));             does nothing: servers have stepped
 *         ls_optim_zero_grad(optim);
 *     }
 *     LS_CHECK(ls_server_join(net));                  all ranks: the newest version, whole
 *
 * The module that ls_server_new returns is a wrapper of ls_ddp_new, so the calls of ddp.h take it:
 * LS_NO_SYNC accumulates micro-batches, which are pushed in the backward of the last one, each
 * bucket when it is full. ls_ddp_get_stats shows what a worker waits for. Learning rates are the
 * workers': a push carries that of the optimizer given to ls_server_run, so set it before backward.
 *
 * A server that is no worker is busy from ls_server_run on: other collectives of the loop are for a
 * group of the workers, a checkpoint is saved after ls_server_join, and a second module with
 * servers needs `colocated`.
 *
 * With K workers and a model of M bytes, gradients G = M, each server of S receives K·G/S and sends
 * K·M/S bytes a step; in the same time a ring moves 2·M·(K-1)/K. docs/guide/parameter_server.md
 * compares them. A server keeps K gradients, a copy of the parameters for each version that a
 * worker is receiving, and the optimizer's state, all of its ranges only.
 *
 * When any rank dies, all others return the error that names it, as with every group; no rank keeps
 * half of a version. A job that `lockstep run --max-restarts` starts again continues from its
 * newest checkpoint, also where the dead rank was a worker, which has no state: the groups of a job
 * have the ranks that they began with. */
#ifndef LOCKSTEP_SERVER_H
#define LOCKSTEP_SERVER_H

#include <lockstep/ddp.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_server_mode {
    LS_SERVER_SYNC,  /* a version is the step on the mean of one gradient of every worker, added in
                       the order of the ranks: the bits of ls_ddp_new over the workers */
    LS_SERVER_ASYNC, /* every gradient makes a version when it arrives (Dean et al. 2012), whatever
                        its weight, unless that is 0 */
    LS_SERVER_STALE  /* the same, and a worker waits before it would be more than `staleness` steps
                        ahead of the slowest (SSP, Ho et al., NIPS 2013) */
} ls_server_mode;

typedef struct ls_server_options {
    size_t size;
    ls_server_mode mode; /* default LS_SERVER_SYNC */
    int servers;         /* how many of the group's last ranks are servers; default 1 */
    bool colocated;      /* servers are workers as well: each has a thread for its server; default
                            false */
    int staleness;       /* of LS_SERVER_STALE, in steps of a worker; default 0 */
    int backup;          /* of LS_SERVER_SYNC: a version does not wait for the slowest `backup`
                            gradients, which are dropped (Chen et al. 2016); default 0 */
    const char *log; /* file for the replay log, written by server 0, borrowed until the module is
                            freed; NULL, the default: none */
    const char *command; /* goes into its header; lockstep replay runs it; borrowed; NULL: none */
    size_t bucket_bytes; /* gradients are sent in pieces of so many bytes at most, unless one is
                            larger; default 25 MiB */
    double clip_norm;    /* of LS_SERVER_SYNC without backup: the largest norm of the mean of the
                            gradients, as by ls_clip_grad_norm; with several servers the last place
                            of the norm may differ. 0, the default: no limit */
} ls_server_options;
#define LS_DEFAULTS_ls_server_options .servers = 1, .bucket_bytes = 25 << 20,
LS_DEFAULTS_FUNCTION(server)

/* Wraps `module`, as ls_ddp_new does: all ranks get the parameters and buffers of rank 0, which are
 * version 0. Takes the module only on success; NULL with ls_error_message else. Collective over
 * `group`, which is borrowed. LS_ERR_MISMATCH names an option that differs between two ranks, also
 * one that is wrong on some only; LS_ERR_INVALID: no worker or no server, or options that say
 * nothing in this mode; LS_ERR_UNSUPPORTED: experts, and batch norm over all ranks. */
LS_API ls_module *ls_server_new(ls_module *module, ls_group *group,
                                const ls_server_options *options);

/* Whether this rank is a server; whether it is a worker, which has data. Of a module without
 * servers false and true, so that one loop serves both. Local. */
LS_API bool ls_server_here(const ls_module *net);
LS_API bool ls_server_works(const ls_module *net);

/* Servers take the parameters and the optimizer's state as they are on this rank, and serve until
 * all workers have called ls_server_join. A rank that is only a server returns then; on others the
 * call returns at once. `optim` was made for `net` on every rank, and must live, and not be used
 * but for ls_optim_step, ls_optim_zero_grad and ls_optim_set_lr, until ls_server_join. Collective.
 * LS_ERR_MISMATCH: optimizers, parameters or buffers that differ between ranks. Of a module without
 * servers it does nothing. */
LS_API ls_status ls_server_run(ls_module *net, ls_optim *optim);

/* This rank has no further batch for now (ls_ddp_join): the others no longer wait for it. Returns
 * when all workers have called it, and all ranks have the newest version of parameters and buffers,
 * and the optimizer's numbers of steps; the state of the optimizer lies on the servers, and
 * ls_checkpoint_save, which is collective, writes the files that it writes for ls_ddp_new. Then
 * ls_server_run may be called again. Collective; waits without a deadline of its own. */
LS_API ls_status ls_server_join(ls_module *net);

typedef struct ls_server_stats {
    size_t size;           /* set to sizeof before the call */
    int64_t version;       /* of its shard; on a worker the newest that it has read */
    int64_t applied;       /* pushes that made a version, or that this worker has sent */
    int64_t dropped;       /* pushes that came too late, of a step that was over, or had weight 0 */
    double staleness;      /* of a push: versions made between its read and itself; the mean … */
    int64_t staleness_max; /* … and the largest. 0 on a worker */
} ls_server_stats;
/* Of this rank's server, or of its worker. After ls_server_join. LS_ERR_INVALID: not a module of
 * ls_server_new. Local. */
LS_API ls_status ls_server_get_stats(const ls_module *net, ls_server_stats *out);

/* Computes the gradient of a step of a worker: forward and one synchronising ls_backward of `net`,
 * whose parameters are those that the worker had, on the worker's batch of that step; and sets the
 * learning rate of that step before. Steps of one worker come in their order; those whose gradients
 * were dropped are left out. */
typedef ls_status (*ls_server_step_fn)(void *arg, ls_module *net, int worker, int64_t step);

typedef struct ls_server_replay_options {
    size_t size;
    const char *log; /* that servers have written */
    ls_server_step_fn step;
    void *arg;
    double clip_norm;  /* as in ls_server_options; default 0 */
    int64_t *versions; /* becomes the number of versions that were compared; may be NULL */
    bool *ended;       /* becomes whether the log has its end; may be NULL. That of a run that was
                          killed has none, and is replayed up to there */
} ls_server_replay_options;
#define LS_DEFAULTS_ls_server_replay_options
LS_DEFAULTS_FUNCTION(server_replay)

/* The sequential twin of a run with servers: computes every gradient of a replay log with the
 * version that its worker had read, steps `optim`, and compares the hash of each version of each
 * shard. `net` is a wrapper of ls_ddp_new on one rank, with the first values of the run and the
 * bucket_bytes of its servers; afterwards it has the newest version. A version is kept as long as a
 * later event reads it. LS_ERR_MISMATCH names the first line that differs. Local. */
LS_API ls_status ls_server_replay(ls_module *net, ls_optim *optim,
                                  const ls_server_replay_options *options);

#if !defined(LS_NO_SITES)
#define ls_server_replay(...) LS_AT(ls_server_replay(__VA_ARGS__))
#define ls_server_new(...) LS_AT(ls_server_new(__VA_ARGS__))
#define ls_server_run(...) LS_AT(ls_server_run(__VA_ARGS__))
#define ls_server_join(...) LS_AT(ls_server_join(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif

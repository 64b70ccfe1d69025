/* SPDX-License-Identifier: Apache-2.0 */
/* Pipeline parallelism: a model whose stages are on different ranks, and a step whose batch goes
 * through them in micro-batches (GPipe, Huang et al. 2019; PipeDream, Narayanan et al. 2019 and
 * 2021; Megatron-LM, 2021; zero bubble, Qi et al. 2024).
 *
 *     ls_mesh_new(ls_world(), "pp=2,dp=2", &mesh);
 *     ls_module *net = ls_gpt_new(NULL);                     // the whole model, on all ranks
 *     ls_pipeline_new(net, ls_mesh_group(mesh, "pp"),
 *                     LS_OPTIONS(ls_pipeline_options, .schedule = "1f1b", .micro_batches = 8),
 *                     &pipe);
 *     net = ls_ddp_new(net, ls_mesh_group(mesh, "dp"), NULL);
 *     ls_optim *optim = ls_adamw_new(net, NULL);
 *     for each step:
 *         … fill micro[8] …
 *         LS_CHECK(ls_pipeline_backward(pipe, net, micro, losses));
 *         LS_CHECK(ls_optim_step(optim));
 *         ls_optim_zero_grad(optim);
 *
 * Parameters and losses are those of gradient accumulation over the same micro-batches on one rank,
 * to the last bit, whatever the schedule and the number of stages; with a tied embedding up to
 * the order of two additions. The schedules and their costs: `lockstep plan schedule`.
 */
#ifndef LOCKSTEP_PIPELINE_H
#define LOCKSTEP_PIPELINE_H

#include <lockstep/comm.h>
#include <lockstep/optim.h>
#include <lockstep/parts.h>
#include <lockstep/random.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_pipeline ls_pipeline;

/* The scalar loss of a micro-batch, on the rank of the last stage. */
typedef ls_tensor *(*ls_pipeline_loss_fn)(void *arg, ls_tensor *output, ls_tensor *target);

typedef struct ls_pipeline_options {
    size_t size;
    /* "naive", "gpipe", "1f1b", "interleaved", "zb-h1"; "pipedream" and "pipedream-2bw" step within
     * a call, see ls_pipeline_set_optim */
    const char *schedule;
    int micro_batches; /* of a call */
    int chunks;        /* of "interleaved": stages of a rank */
    bool recompute;    /* of "gpipe": stages keep their inputs only and run again in backward */
    const char *cut;   /* the first part of each stage but the first (ls_module_cut_at); NULL:
                          evenly */
    ls_pipeline_loss_fn loss; /* NULL: ls_cross_entropy(output, target, NULL) */
    void *arg;
    /* "gpipe" and "1f1b": how many ranks each stage has, "2,1,1"; the first stage has the first
     * ranks of the group. NULL: one each. See ls_pipeline_stage */
    const char *replicas;
    bool vertical_sync; /* "pipedream": a micro-batch has the same version of the weights at all
                           stages */
    /* "1f1b": forwards that a stage runs ahead, for each rank behind it. 0: 1. With 2 the time of
     * messages between ranks is hidden, up to half a micro-batch's, and rank r keeps 2(P-1-r)+1
     * micro-batches */
    int warm_up;
    /* "pipedream" and "pipedream-2bw": file for the replay log, written by rank 0 of the group
     * after each call; borrowed until the pipeline is freed. Of several copies (data parallelism)
     * one gives it. NULL, the default: none */
    const char *log;
    const char *command; /* goes into its header; lockstep replay runs it; NULL: none */
    bool weighted;       /* the mean is over ls_micro_batch.weight: see ls_pipeline_backward */
} ls_pipeline_options;
#define LS_DEFAULTS_ls_pipeline_options .schedule = "1f1b", .micro_batches = 8,
LS_DEFAULTS_FUNCTION(pipeline)

/* Cuts `net` (lockstep/parts.h) into stages, as many as the group has ranks, times `chunks` (or as
 * many as `replicas` says, whose sum is the number of ranks), and frees what this rank's stages do
 * not use. Call it before the model is wrapped or has an optimizer; the net stays the caller's and
 * must outlive the pipeline. All ranks give the same model and options. Collective over `group`,
 * which is duplicated. LS_ERR_INVALID: the schedule or the cut is refused; LS_ERR_UNSUPPORTED: the
 * schedule steps within its table; LS_ERR_MISMATCH: ranks differ. */
LS_API ls_status ls_pipeline_new(ls_module *net, ls_group *group,
                                 const ls_pipeline_options *options, ls_pipeline **out);
/* Collective; NULL is allowed. */
LS_API ls_status ls_pipeline_free(ls_pipeline *pipeline);

/* The first stage that this rank has, from 0. Local call.
 *
 * A stage with r ranks has replicas (PipeDream's 1F1B-RR, Narayanan et al. 2019, section 3.2):
 * micro-batch m is on replica m mod r, forward and backward, so a stage that takes r times as long
 * as the others does not hold them up. The gradients of a stage are the means over all
 * micro-batches of all its ranks, of which M need not be a multiple; the ranks make them in the
 * last backward. If the pipeline has copies (data parallelism), their ranks take part in the same
 * mean:
 *
 *     ls_pipeline_new(net, ls_mesh_group(mesh, "pp"),
 *                     LS_OPTIONS(ls_pipeline_options, .replicas = "3,1"), &pipe);
 *     ls_group_split(ls_world(), ls_pipeline_stage(pipe), 0, "stage", &alike);
 *     net = ls_ddp_new(net, alike, NULL);
 *
 * Each rank's gradients are added in ascending order, these sums over the ranks of `alike` in the
 * order of an all_reduce, and the result is divided by the number of micro-batches. Losses of
 * ls_pipeline_backward are not scaled before that, so gradients between stages, and
 * those that hooks see, are M times those of a pipeline without replicas. Running statistics of
 * batch norm are those of the micro-batches of the first rank of `alike`. */
LS_API int ls_pipeline_stage(const ls_pipeline *pipeline);

/* What a stage needs of a micro-batch. Tensors are borrowed for the call; shapes may differ from
 * one micro-batch to the next. */
typedef struct ls_micro_batch {
    size_t size;
    /* Inputs of the module, on ranks whose stages read them (LS_PART_INPUT); elsewhere not used. */
    ls_tensor *inputs[LS_PART_FROM_MAX];
    ls_tensor *target;       /* on the rank of the last stage that has it; elsewhere not used */
    ls_step_context context; /* on all ranks: where its random numbers come from */
    double weight;           /* on all ranks, of a weighted pipeline: how much its loss counts */
} ls_micro_batch;

/* The optimizer of this rank's stages, with which ls_pipeline_backward then steps itself, and makes
 * the gradients absent (NULL: the caller does both). Schedules that step while micro-batches are
 * under way need one, on ranks that have parameters: "pipedream" steps after every micro-batch,
 * "pipedream-2bw" after as many as there are ranks. Micro-batch m then computes with older
 * parameters, forward and backward with the same: version max(0, m - (stages - 1 - s)) at stage s
 * (with vertical_sync, the paper's section 3.3, max(0, m - (stages - 1)) at all), max(0, m / ranks
 * - 1) everywhere. A call begins with the newest version everywhere. Stashes take the bytes of the
 * stage's parameters for each version in use. A gradient that is not finite is not stepped with:
 * ls_pipeline_backward ends with LS_ERR_INVALID and names rank and parameter. Borrowed.
 * LS_ERR_UNSUPPORTED with tied parameters. */
LS_API ls_status ls_pipeline_set_optim(ls_pipeline *pipeline, ls_optim *optim);

/* Runs a step's forwards and backwards over micro[0 … micro_batches-1] and adds the gradients of
 * the mean of their losses to the parameters of this rank's stages. `net` is the module of
 * ls_pipeline_new, or its wrapper: ls_ddp_new over ranks of the same stages averages the gradients
 * during the last backward (needed where stages have several ranks). losses[micro_batches] (may be
 * NULL) become the losses, on all ranks.
 * Collective over the group, and over that of the wrapper. An error of one rank is reported by all,
 * and the pipeline cannot be used after it.
 *
 * With options.weighted the mean is exact where losses are means over different numbers: the sum of
 * weight times loss over all micro-batches, and over all ranks of the wrapper, divided by the sum
 * of the weights (ls_backward_weighted). Give the number of targets that count in a micro-batch;
 * one of weight 0 is not computed backward, and its loss is given as 0. Every rank of the pipeline
 * gives the same weights (LS_ERR_MISMATCH at the end of the call). LS_ERR_INVALID: a weight that is
 * negative or not finite, one in a pipeline that is not weighted, or, without a wrapper, weights
 * that are all 0.
 *
 * Losses of modules (ls_module_set_loss; of gates, ls_moe_new) belong to the stages of their layers
 * and are added there, each micro-batch's with the factor of its loss: nothing is to be added in
 * options.loss, and they are no part of losses[]. So the gradients are those of ls_add(loss,
 * ls_module_loss(net)) on one rank.
 *
 * All stages train one model, so LS_ERR_MISMATCH, with the ranks and both values, says where they
 * differ: in the first call the seed, samplers, loaders and optimizers (a stage may lack some of
 * them; the order of the others counts); at the end of each call learning rates, numbers of
 * optimizer steps, clipping and autocast. Give a part of the model another rate with the lr_scale
 * of ls_optim_add_group. A stage that has none of a group's parameters does not add the group
 * (LS_ERR_INVALID); some stage must add all of the groups, and those of the others must be its
 * first ones, in the same order, as a checkpoint names groups by their numbers. */
LS_API ls_status ls_pipeline_backward(ls_pipeline *pipeline, ls_module *net,
                                      const ls_micro_batch *micro, double *losses);

/* Runs the forwards of micro[0 … count-1], of any count >= 1, without gradients, in the mode that
 * the module is in (ls_module_train) and with the newest parameters. On the last rank of the group,
 * which has the last stage under every schedule, outputs[m] becomes the result of micro-batch m in
 * the caller's innermost scope; elsewhere NULL. If the last stage has r ranks, it is on the one
 * that has the micro-batch, rank ls_group_size(group) - r + m mod r. Targets are not used. A rank
 * goes on with the next micro-batch while it sends the last one's activations; it keeps those of
 * one more micro-batch than there are ranks. Scores of the outputs get to all ranks by
 * ls_all_reduce, where ranks without outputs add 0. Collective over the group. An error of one
 * rank, or counts that differ, are reported by all, and the pipeline cannot be used after it. */
LS_API ls_status ls_pipeline_forward(ls_pipeline *pipeline, const ls_micro_batch *micro, int count,
                                     ls_tensor **outputs);

/* Fills in micro-batch `number`, counted over all calls from 0, as copy `copy` of the pipeline gave
 * it to ls_pipeline_backward, and sets the learning rate of that call. Those of a copy come in
 * their order; the tensors lie in the innermost scope. The parameters are the newest ones. */
typedef ls_status (*ls_pipeline_micro_fn)(void *arg, int copy, int64_t number, ls_micro_batch *out);

typedef struct ls_pipeline_replay_options {
    size_t size;
    const char *log; /* that a pipeline has written */
    ls_pipeline_micro_fn micro;
    void *arg;
    int copies;      /* of the pipeline (data parallelism); default 1 */
    const char *cut; /* cut, loss and loss_arg are those of the run */
    ls_pipeline_loss_fn loss;
    void *loss_arg;
    int64_t *versions; /* becomes the number of versions that were compared; may be NULL */
    bool *ended;       /* becomes whether the log has its end; may be NULL. That of a run that was
                          killed, or that failed, has the calls until then */
} ls_pipeline_replay_options;
#define LS_DEFAULTS_ls_pipeline_replay_options .copies = 1,
LS_DEFAULTS_FUNCTION(pipeline_replay)

/* The sequential twin of a pipeline that steps while micro-batches are under way: one process
 * computes each micro-batch of a replay log with the version that each stage had read, steps
 * `optim`, and compares the hash of every version of every stage. `net` is the whole model, not
 * wrapped, with the first values of the run; afterwards it has the newest version. A version is
 * kept as long as a later micro-batch may read it. LS_ERR_MISMATCH names the first line that
 * differs. Local. */
LS_API ls_status ls_pipeline_replay(ls_module *net, ls_optim *optim,
                                    const ls_pipeline_replay_options *options);

#if !defined(LS_NO_SITES)
#define ls_pipeline_replay(...) LS_AT(ls_pipeline_replay(__VA_ARGS__))
#define ls_pipeline_forward(...) LS_AT(ls_pipeline_forward(__VA_ARGS__))
#define ls_pipeline_backward(...) LS_AT(ls_pipeline_backward(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif

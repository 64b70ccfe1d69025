/* SPDX-License-Identifier: Apache-2.0 */
/* A model on the ranks of a mesh (--mesh pp=4,dp=2): the stages of a pipeline along pp, replicas
 * with other data along dp and ep. Without a mesh every rank is a replica, and has the whole
 * model. */
#ifndef PROGRAMS_PARALLEL_H
#define PROGRAMS_PARALLEL_H

#include <lockstep/lockstep.h>

struct trainer_options;

#define AXES_BYTES 16 /* "dp,ep,cp,tp" */

typedef struct parallel {
    ls_mesh *mesh;          /* NULL: without --mesh */
    ls_group *replicas;     /* ranks with other samples that are alike otherwise */
    ls_group *losses;       /* … or with other parts of the sequences, too */
    ls_group *copies;       /* … or of the layers: all ranks of a stage */
    ls_group *parts;        /* ranks with other parts of the layers, and other experts */
    ls_group *alike;        /* with --replicas those instead; else NULL */
    ls_group *stages;       /* ranks with the same data; NULL: without a pipeline; borrowed */
    ls_plan *plan;          /* NULL: without --plan */
    ls_pipeline *pipeline;  /* NULL: without one */
    char axes[AXES_BYTES];  /* of batch_axes */
    const char *batch_axes; /* with parts of layers or sequences: of ls_ddp_options; or NULL */
    bool tensor, context, experts; /* the mesh has an axis tp, cp, ep */
    bool steps;                    /* the pipeline steps the optimizer itself */
    const char *command;           /* of its replay log; borrowed */
    int64_t numel;                 /* parameters of the whole model */
    int64_t smallest, largest;     /* … of a rank, with a pipeline */
    char *elsewhere; /* names, each with its end, of parameters that an earlier rank of `stages`
                        has */
} parallel;

/* Defaults, and what options cannot be given together; ends the program. For
 * trainer_read_options. */
void parallel_complete(struct trainer_options *options);
/* The micro-batches of the run that goes on, which --accum has taken from its file: those of a step
 * of the pipeline, unless they are given. `accum_given`: --accum without that file. */
void parallel_resume_step(struct trainer_options *options, int64_t accum_given);
/* Whether the model recomputes its blocks (--recompute), if it has any: a pipeline of schedule
 * gpipe recomputes whole stages. After trainer_init once more, since a plan may say it. Ends the
 * program where nothing would be recomputed. */
bool parallel_recompute(const struct trainer_options *options, bool has_blocks);
bool parallel_has_pipeline(const struct trainer_options *options);
/* Whether it has, and each stage steps after its own micro-batches. */
bool parallel_steps_within(const struct trainer_options *options);
/* Whether every rank has the whole model and sequences: no axis but dp. */
bool parallel_is_whole(const struct trainer_options *options);
/* Fills in what --plan says; ends the program if the job does not fit it. After ls_init. */
void parallel_read_plan(struct trainer_options *options);

/* Ends the program where the plan is for another model, or for other sizes. */
void parallel_check_plan(const struct trainer_options *options, const char *model,
                         const ls_plan_size *sizes, int count);

/* Ends the program where the mesh divides `net` along other axes than `divided_by`. */
void parallel_check_model(const struct trainer_options *options, const ls_module *net,
                          const char *divided_by);
/* Ends the program where --mesh does not divide so many experts; 0: there are none. Before ls_init.
 */
void parallel_check_experts(const struct trainer_options *options, int64_t experts);
/* Makes the groups. Collective over the world, as all that follows. */
void parallel_open(parallel *p, const struct trainer_options *options);
ls_group *parallel_copies(const parallel *p); /* all ranks with the same stages */
/* Whether this rank writes and counts for all that have equal copies of its parameters; and which
 * parameters these are: stage, part of the experts, part of the layers. */
bool parallel_is_first_copy(const parallel *p);
int parallel_place(const parallel *p);
/* Cuts `net`, if there is a pipeline, and frees the stages of other ranks. */
void parallel_cut(parallel *p, const struct trainer_options *options, ls_module *net,
                  ls_pipeline_loss_fn loss, void *arg);
/* This rank's part of the sequences x [B,T]. */
ls_tensor *parallel_part(const parallel *p, ls_tensor *x);
/* All of the logits [B,T,V] that the ranks of tp and cp have parts of; without gradients. */
ls_tensor *parallel_whole(const parallel *p, ls_tensor *logits);
/* The cross-entropy of logits of which each rank may have some classes. */
ls_tensor *parallel_loss(ls_tensor *logits, ls_tensor *target);
/* The options of ls_clip_grad_norm: a norm over all stages. */
ls_clip_grad_norm_options parallel_clip_options(parallel *p);
void parallel_close(parallel *p); /* after the pipeline and the net were freed */

/* Forwards of micro[0 … count-1] in the mode of `net`, without gradients, of this rank's part of
 * the first inputs, which take their place; outputs[], of whole sequences and classes, as in
 * ls_pipeline_forward. Without a pipeline `count` is 1. */
ls_status parallel_forward(const parallel *p, ls_module *net, ls_micro_batch *micro, int count,
                           ls_tensor **outputs);
int parallel_forward_count(const parallel *p); /* a good `count` */

/* Shows a file one tensor of the model's state, as ls_mixtral_show does. */
typedef ls_status parallel_show(const ls_state_visitor *file, const char *name,
                                const ls_state_tensor *tensor);
/* Writes the whole model, whose other stages are sent to rank 0, as safetensors; `show` NULL: with
 * the names of its state. Ends the program on an error. */
void parallel_export(const parallel *p, ls_module *net, parallel_show *show, const char *path);

#endif

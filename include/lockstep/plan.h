/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: on which mesh a model is trained, which of its parts become a stage of a pipeline, and how
 * (PipeDream: Narayanan et al., SOSP 2019, section 3.1; Alpa: Zheng et al., OSDI 2022). `lockstep
 * plan auto` makes one from the sizes of a GPT. For any other module a program measures the parts:
 *
 *     LS_CHECK(ls_profile_write(net, &x, 1, y, NULL, "profile.json"));
 *
 * `lockstep plan pipeline profile.json` makes a plan from that and writes it into a file, which the
 * program reads and follows:
 *
 *     ls_plan *plan;
 *     LS_CHECK(ls_plan_read("plan.json", &plan));
 *     LS_CHECK(ls_plan_check(plan, net));              // are they the parts of this model?
 *     … ls_plan_cut(plan), ls_plan_schedule(plan), ls_plan_micro_batches(plan) for ls_pipeline_new
 *     ls_plan_free(plan);
 *
 * Nothing in this header is collective.
 */
#ifndef LOCKSTEP_PLAN_H
#define LOCKSTEP_PLAN_H

#include <lockstep/pipeline.h>
#include <lockstep/placement.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- measuring ---------------------------------------------------------------------------- */

typedef struct ls_profile_options {
    size_t size;
    const char *model;        /* its name in the file; NULL: that of the class */
    ls_pipeline_loss_fn loss; /* NULL: ls_cross_entropy(output, target, NULL) */
    void *arg;
    double seconds; /* after which no further repetition begins; there are 3 to 25 */
} ls_profile_options;
#define LS_DEFAULTS_ls_profile_options .seconds = 10.0,
LS_DEFAULTS_FUNCTION(profile)

/* Measures the parts of `net` (lockstep/parts.h) on one micro-batch, and writes a profile, as JSON:
 * for each part the time of its forward and of both parts of its backward (ls_backward_input_part,
 * ls_backward_weight_part), the bytes of its result and of that gradient, the bytes that are kept
 * from forward to backward, and the bytes of its parameters. Times are medians over repetitions of
 * the whole micro-batch, after one that does not count; the loss belongs to the last part.
 *
 * inputs[input_count] are the module's, as for ls_forward_many; an input may be NULL. The
 * micro-batch has the size that a worker will have, and the process as many compute threads. Run it
 * on a module without a wrapper, in training mode, which is not trained afterwards: running
 * statistics change, and gradients become absent. Errors: those of the operations; LS_ERR_SYSTEM
 * for the file. */
LS_API ls_status ls_profile_write(ls_module *net, ls_tensor *const *inputs, int input_count,
                                  ls_tensor *target, const ls_profile_options *options,
                                  const char *path);

/* ---- following a plan --------------------------------------------------------------------- */

typedef struct ls_plan ls_plan;

/* Reads a plan. LS_ERR_NOT_FOUND, LS_ERR_SYSTEM: the file cannot be read; LS_ERR_FORMAT: it is not
 * a plan, with the field; LS_ERR_LIMIT: more than a plan may have; LS_ERR_UNSUPPORTED: of a later
 * version. *out is NULL on an error. */
LS_API ls_status ls_plan_read(const char *path, ls_plan **out);
LS_API void ls_plan_free(ls_plan *plan); /* NULL is allowed */

/* LS_ERR_MISMATCH unless the parts of `net` are those of the plan, in their order. Call it before
 * ls_module_keep_parts or ls_pipeline_new. */
LS_API ls_status ls_plan_check(const ls_plan *plan, ls_module *net);

/* A number of a model's shape: {"layers", 6}. */
typedef struct ls_plan_size {
    const char *name;
    int64_t value;
} ls_plan_size;

/* LS_ERR_MISMATCH unless the plan is for `model` and for these sizes; what it does not say, as
 * plans of version 1, is not compared. */
LS_API ls_status ls_plan_check_model(const ls_plan *plan, const char *model,
                                     const ls_plan_size *sizes, int count);

/* What the plan says. Texts are borrowed until ls_plan_free. */
LS_API const char *ls_plan_model(const ls_plan *plan); /* what was profiled: "gpt" */
LS_API int ls_plan_workers(const ls_plan *plan);       /* ranks, of the whole mesh */
LS_API int ls_plan_stages(const ls_plan *plan);        /* 1: data parallelism, if anything */

/* How the ranks train beside the pipeline, as plans of version 2 say it. */
typedef struct ls_plan_settings {
    size_t size;
    const char *mesh;        /* for ls_mesh_new: "pp=2,dp=2"; NULL: one pipeline of all ranks */
    int64_t batch;           /* samples of a micro-batch; 0: the plan does not say */
    int chunks, warm_up;     /* of ls_pipeline_options; 0: the default */
    int zero;                /* of ls_ddp_options */
    bool recompute;          /* of blocks; of stages with gpipe */
    bool sequence;           /* of ls_tensor_parallel_options */
    const char *tensor_plan; /* .plan of them; NULL: that of the model's class */
} ls_plan_settings;
/* Fills in what the caller's `size` has room for. LS_ERR_INVALID. */
LS_API ls_status ls_plan_get_settings(const ls_plan *plan, ls_plan_settings *out);

/* The first part of each stage but the first, as ls_pipeline_options.cut: "blocks.2 head". NULL:
 * the model is not cut. */
LS_API const char *ls_plan_cut(const ls_plan *plan);
/* Workers of each stage, "3,1"; the first ranks have the first stage. */
LS_API const char *ls_plan_replicas(const ls_plan *plan);
LS_API const char *ls_plan_schedule(const ls_plan *plan); /* "1f1b" */
/* Micro-batches of a step: of the pipeline that the rank belongs to, or without one, of the rank.
 * At least as many as any stage has workers. */
LS_API int ls_plan_micro_batches(const ls_plan *plan);
/* The predicted time of a step of so many micro-batches; negative: the file does not say. */
LS_API double ls_plan_step_seconds(const ls_plan *plan);

/* ---- placements of parameters ------------------------------------------------------------- */

/* How the ranks of a mesh share each matrix of a model, such that a step takes least time by the
 * cost model of `lockstep sim`: Alpa's intra-operator parallelism (Zheng et al., OSDI 2022, section
 * 4), chosen exactly by elimination.
 *
 *     ls_tensor_plan *plan;
 *     LS_CHECK(ls_tensor_plan_find(net, &x, 1, y, LS_OPTIONS(ls_tensor_plan_options,
 *                                                            .mesh = "tp=4"), &plan));
 *     … in a job of 4 ranks, for a model of the same sizes:
 *     LS_CHECK(ls_tensor_parallel(net, LS_OPTIONS(ls_tensor_parallel_options,
 *                                      .plan = ls_tensor_plan_words(plan, "tp"),
 *                                      .sequence = ls_tensor_plan_sequence(plan, "tp"))));
 */
typedef struct ls_tensor_plan ls_tensor_plan;

typedef struct ls_tensor_plan_options {
    size_t size;
    const char *mesh;         /* one or two axes, "dp=8,tp=8" */
    const char *cluster;      /* levels as `lockstep sim --cluster` takes them */
    const char *device;       /* speeds as `lockstep sim --device` takes them */
    ls_pipeline_loss_fn loss; /* NULL: ls_cross_entropy(output, target, NULL) */
    void *arg;
} ls_tensor_plan_options;
#define LS_DEFAULTS_ls_tensor_plan_options                                                         \
    .cluster = "8:200gbyte,8:25gbyte", .device = "312tflop,2039gbyte",
LS_DEFAULTS_FUNCTION(tensor_plan)

/* Runs one forward pass of the module in training mode, with its loss, on the micro-batch of all
 * ranks of the mesh together. A plan has only what ls_tensor_parallel and ls_ddp_new do. Times are
 * those of the whole step, with all communication exposed. LS_ERR_INVALID: the mesh;
 * LS_ERR_FORMAT: cluster or device; LS_ERR_UNSUPPORTED: an operator that is not seen, as in
 * a model of bfloat16; LS_ERR_LIMIT, LS_ERR_MEMORY; errors of the operations. *out is NULL on an
 * error. */
LS_API ls_status ls_tensor_plan_find(ls_module *net, ls_tensor *const *inputs, int input_count,
                                     ls_tensor *target, const ls_tensor_plan_options *options,
                                     ls_tensor_plan **out);
LS_API void ls_tensor_plan_free(ls_tensor_plan *plan); /* NULL is allowed */

/* Words for ls_tensor_parallel_options.plan, borrowed; "": nothing is cut along the axis: its ranks
 * have other samples (ls_tensor_plan_data) or do the same. NULL with LS_ERR_INVALID for an axis
 * that the mesh does not have, as below. */
LS_API const char *ls_tensor_plan_words(const ls_tensor_plan *plan, const char *axis);
/* Whether the words are for ls_tensor_parallel_options.sequence; whether the axis is for data
 * parallelism. */
LS_API bool ls_tensor_plan_sequence(const ls_tensor_plan *plan, const char *axis);
LS_API bool ls_tensor_plan_data(const ls_tensor_plan *plan, const char *axis);
/* How parameter i of ls_module_params is kept along the axis: LS_INVARIANT or LS_SHARDED(d);
 * LS_UNPLACED for an axis or a parameter that does not exist. */
LS_API ls_placement ls_tensor_plan_placement(const ls_tensor_plan *plan, int i, const char *axis);
LS_API double ls_tensor_plan_seconds(const ls_tensor_plan *plan);
LS_API double ls_tensor_plan_work_seconds(const ls_tensor_plan *plan); /* … without communication */
/* The least with any placements, such as Alpa's compiler could run; equal or less. */
LS_API double ls_tensor_plan_any_seconds(const ls_tensor_plan *plan);

#ifdef __cplusplus
}
#endif
#endif

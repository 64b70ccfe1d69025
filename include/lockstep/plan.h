/* Plans of pipelines: which parts of a model become a stage, and how many workers have each
 * (PipeDream: Narayanan et al., SOSP 2019, section 3.1). A program measures the parts of its model:
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

/* What the plan says. Texts are borrowed until ls_plan_free. */
LS_API const char *ls_plan_model(const ls_plan *plan); /* what was profiled: "gpt" */
LS_API int ls_plan_workers(const ls_plan *plan);       /* ranks: the sum of all replicas */
LS_API int ls_plan_stages(const ls_plan *plan);        /* 1: data parallelism, if anything */
/* The first part of each stage but the first, as ls_pipeline_options.cut: "blocks.2 head". NULL:
 * the model is not cut. */
LS_API const char *ls_plan_cut(const ls_plan *plan);
/* Workers of each stage, "3,1"; the first ranks have the first stage. */
LS_API const char *ls_plan_replicas(const ls_plan *plan);
LS_API const char *ls_plan_schedule(const ls_plan *plan); /* "1f1b" */
/* Micro-batches of a step in all, of the size that was profiled; at least as many as any stage has
 * workers. */
LS_API int ls_plan_micro_batches(const ls_plan *plan);
/* The predicted time of a step of so many micro-batches; negative: the file does not say. */
LS_API double ls_plan_step_seconds(const ls_plan *plan);

#ifdef __cplusplus
}
#endif
#endif

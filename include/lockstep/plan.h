/* Plans of pipelines: which parts of a model become a stage, and how many workers have each
 * (PipeDream: Narayanan et al., SOSP 2019, section 3.1). `lockstep plan pipeline` makes a plan from
 * the measured parts of a model and writes it into a file; here a program reads it and follows it.
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

#include <lockstep/parts.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_plan ls_plan;

/* Reads a plan. LS_ERR_NOT_FOUND, LS_ERR_SYSTEM: the file cannot be read; LS_ERR_FORMAT: it is not a
 * plan, with the field; LS_ERR_LIMIT: more than a plan may have; LS_ERR_UNSUPPORTED: of a later
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
/* The first part of each stage but the first, as ls_pipeline_options.cut: "blocks.2 head". NULL: the
 * model is not cut. */
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

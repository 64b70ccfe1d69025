/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers and learning-rate schedules; formulas and defaults are PyTorch's.
 *
 * With g the gradient (plus weight_decay * p but for AdamW) and t the number of the step:
 *     SGD    v = momentum v + (1 - dampening) g, at the first step v = g
 *            p = p - lr v, or with nesterov p - lr (g + momentum v)  (Sutskever et al. 2013)
 *     Adam   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *            p = p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)  (Kingma & Ba 2015)
 *     RMSprop  v = alpha v + (1 - alpha) g^2,  d = g / (sqrt(v) + eps), or with centered
 *            sqrt(v - m^2) of m = alpha m + (1 - alpha) g, in which rounding gives no NaN
 *            b = momentum b + d,  p = p - lr b  (Tieleman & Hinton 2012; Graves 2013)
 *     AdamW  p = p - lr weight_decay p first, then Adam's step  (Loshchilov & Hutter 2019)
 *
 * A parameter whose gradient is absent is skipped, and its momentum does not decay. A bfloat16
 * parameter has a float32 master copy in the optimizer's state, which takes the steps; the
 * parameter becomes its rounded value. A parameter that the program writes itself (weights that are
 * loaded) is where the next step begins. Nothing in this header is collective, except ls_optim_step
 * with ls_ddp_options.zero, and of parameters that are divided along an axis of a mesh: ranks that
 * start from the same parameters and take the same steps stay identical.
 */
#ifndef LOCKSTEP_OPTIM_H
#define LOCKSTEP_OPTIM_H

#include <lockstep/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_optim ls_optim;

typedef struct ls_sgd_options {
    size_t size;
    double lr, momentum, dampening, weight_decay;
    bool nesterov;
} ls_sgd_options;
#define LS_DEFAULTS_ls_sgd_options .lr = 1e-3,
LS_DEFAULTS_FUNCTION(sgd)

typedef struct ls_adam_options { /* AdamW's options have the same fields */
    size_t size;
    double lr, beta1, beta2, eps, weight_decay;
} ls_adam_options;
typedef ls_adam_options ls_adamw_options;
#define LS_DEFAULTS_ls_adam_options .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
LS_DEFAULTS_FUNCTION(adam)
#define LS_DEFAULTS_ls_adamw_options                                                               \
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2,
LS_DEFAULTS_FUNCTION(adamw)

typedef struct ls_rmsprop_options {
    size_t size;
    double lr, alpha, eps, weight_decay;
    double momentum; /* 0: without its state */
    bool centered;   /* divides by the standard deviation of the gradients */
} ls_rmsprop_options;
#define LS_DEFAULTS_ls_rmsprop_options .lr = 1e-2, .alpha = 0.99, .eps = 1e-8,
LS_DEFAULTS_FUNCTION(rmsprop)

/* Optimizers of all parameters of `module` that require gradients. The module is borrowed: free the
 * optimizer before it. NULL with ls_error_message on failure (LS_ERR_INVALID names the option). */
LS_API ls_optim *ls_sgd_new(ls_module *module, const ls_sgd_options *options);
LS_API ls_optim *ls_adam_new(ls_module *module, const ls_adam_options *options);
LS_API ls_optim *ls_rmsprop_new(ls_module *module, const ls_rmsprop_options *options);
LS_API ls_optim *ls_adamw_new(ls_module *module, const ls_adamw_options *options);
LS_API void ls_optim_free(ls_optim *optim); /* NULL is allowed */

/* A group of parameters with settings of its own (torch's param_groups). */
typedef struct ls_optim_group_options {
    size_t size;
    double lr_scale;     /* the group's learning rate is lr_scale times the optimizer's, so that a
                            schedule holds for all groups; default 1 */
    double weight_decay; /* default LS_OPTIM_DECAY: the optimizer's */
} ls_optim_group_options;
#define LS_OPTIM_DECAY (-1.0)
#define LS_DEFAULTS_ls_optim_group_options .lr_scale = 1.0, .weight_decay = LS_OPTIM_DECAY,
LS_DEFAULTS_FUNCTION(optim_group)
/* Makes a group of the parameters that `select` selects. GPT-2 and BERT train without weight decay
 * on biases and norms:
 *     LS_CHECK(ls_optim_add_group(optim, ls_select_vectors, NULL,
 *                                 LS_OPTIONS(ls_optim_group_options, .weight_decay = 0)));
 * `select` is called once for each parameter of the optimizer, with `arg`, during this call only.
 * Parameters in no group have the optimizer's settings. LS_ERR_STATE after the first step, or if a
 * parameter is in a group already; LS_ERR_INVALID if no parameter is selected, or for an option out
 * of range; in both cases nothing changes. Add the same groups on all ranks (stages of a pipeline:
 * those whose parameters they have, see ls_pipeline_backward), and before a checkpoint is loaded:
 * it contains the groups' settings, not their parameters. A checkpoint without groups, of an older
 * version, leaves the settings of the groups as they are. */
LS_API ls_status ls_optim_add_group(ls_optim *optim, ls_select_fn select, void *arg,
                                    const ls_optim_group_options *options);

/* Adds the parameters of another module, which the optimizer then steps as well, so that one
 * optimizer trains several models (torch's list of the parameters of several modules). The module
 * is borrowed. In the state, and for `select`, its parameters have `name` and a dot before their
 * names. A parameter that the modules share counts once, under its first name. Each module may have
 * a wrapper of its own (ls_ddp_new); on servers (server.h) an optimizer has one. LS_ERR_STATE after
 * the first step, or after the state was shown; LS_ERR_INVALID: the name is empty, longer than 63
 * characters, or taken. Nothing changes then. */
LS_API ls_status ls_optim_add_module(ls_optim *optim, const char *name, ls_module *module);

/* Updates every parameter that has a gradient. LS_ERR_STATE, before anything is changed, when
 * gradients of an ls_ddp_new module were accumulated but never averaged, or when the last
 * ls_backward failed before all of them were averaged. In a world of several ranks a warning says
 * once that only some of the parameters belong to an ls_ddp_new, or that none do and no operation
 * on a group ran since the last step: without averages the replicas drift apart. Where parameters
 * are divided along an axis (placement.h) all of its ranks call this in every step, with the same
 * settings; LS_ERR_MISMATCH, before anything is changed, names the rank that differs. Without an
 * ls_ddp_new the first call also compares the values of the parameters that are not divided. An
 * optimizer without divided parameters is not compared then. */
LS_API ls_status ls_optim_step(ls_optim *optim);
/* Makes all gradients absent, so the next backward overwrites them. Until then, gradient memory
 * outside DDP buckets returns to the allocator, and tensors from ls_grad are invalid
 * (LS_ERR_STALE). */
LS_API void ls_optim_zero_grad(ls_optim *optim);
LS_API void ls_optim_set_lr(ls_optim *optim, double lr); /* groups follow, by their lr_scale */
LS_API double ls_optim_lr(const ls_optim *optim);
/* Passes hyperparameters, step numbers and moments to the visitor, under names that begin with
 * `prefix` (state.h). */
LS_API ls_status ls_optim_state(ls_optim *optim, const char *prefix,
                                const ls_state_visitor *visitor);

/* The learning rate as a function of the step only: it rises linearly to `lr` over `warmup` steps
 * (step 0 uses lr/warmup). After that it is constant, or falls along a half cosine (Loshchilov &
 * Hutter 2017) or a straight line to `min_lr` at step `total`. Pass it to ls_optim_set_lr before
 * each step. A negative step counts as step 0. */
typedef enum ls_schedule_kind {
    LS_SCHEDULE_CONSTANT = 0,
    LS_SCHEDULE_COSINE = 1,
    LS_SCHEDULE_LINEAR = 2
} ls_schedule_kind;
typedef struct ls_schedule_options {
    size_t size;
    ls_schedule_kind kind; /* default LS_SCHEDULE_CONSTANT */
    double lr, min_lr;     /* defaults 1e-3 and 0 */
    int64_t warmup;        /* first steps, in which the rate rises to lr; default 0 */
    int64_t total; /* steps, warm-up included, until min_lr is reached; COSINE and LINEAR need it */
} ls_schedule_options;
#define LS_DEFAULTS_ls_schedule_options .lr = 1e-3,
LS_DEFAULTS_FUNCTION(schedule)
/* The learning rate of a step. NaN, with ls_error_message, when options->size is impossible, warmup
 * is negative, or a schedule that falls has total <= 0 or warmup > total; ls_optim_step refuses a
 * rate that is NaN. */
LS_API double ls_schedule_lr(int64_t step, const ls_schedule_options *options);

#if !defined(LS_NO_SITES)
#define ls_optim_step(...) LS_AT(ls_optim_step(__VA_ARGS__))
#define ls_sgd_new(...) LS_AT(ls_sgd_new(__VA_ARGS__))
#define ls_adam_new(...) LS_AT(ls_adam_new(__VA_ARGS__))
#define ls_rmsprop_new(...) LS_AT(ls_rmsprop_new(__VA_ARGS__))
#define ls_optim_add_group(...) LS_AT(ls_optim_add_group(__VA_ARGS__))
#define ls_adamw_new(...) LS_AT(ls_adamw_new(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif

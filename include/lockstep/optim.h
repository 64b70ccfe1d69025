/* Optimizers and learning-rate schedules; formulas and defaults as in PyTorch.
 *
 * A parameter whose gradient is absent is skipped: its momentum does not decay. ls_optim_step
 * refuses (LS_ERR_STATE) when gradients of a DDP module were accumulated but never synchronised,
 * and when the last synchronisation failed.
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

typedef struct ls_adam_options { /* also AdamW's, whose decay is decoupled (Loshchilov & Hutter) */
    size_t size;
    double lr, beta1, beta2, eps, weight_decay;
} ls_adam_options;
typedef ls_adam_options ls_adamw_options;
#define LS_DEFAULTS_ls_adam_options .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
LS_DEFAULTS_FUNCTION(adam)
#define LS_DEFAULTS_ls_adamw_options                                                               \
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2,
LS_DEFAULTS_FUNCTION(adamw)

/* The module is borrowed and must outlive the optimizer. NULL with ls_error_message on failure. */
LS_API ls_optim *ls_sgd_new(ls_module *module, const ls_sgd_options *options);
LS_API ls_optim *ls_adam_new(ls_module *module, const ls_adam_options *options);
LS_API ls_optim *ls_adamw_new(ls_module *module, const ls_adamw_options *options);
LS_API void ls_optim_free(ls_optim *optim);

LS_API ls_status ls_optim_step(ls_optim *optim);
/* Gradients become absent: the next backward overwrites them. Gradient memory outside DDP buckets
 * returns to the allocator until then; tensors from ls_grad become invalid (LS_ERR_STALE). */
LS_API void ls_optim_zero_grad(ls_optim *optim);
LS_API void ls_optim_set_lr(ls_optim *optim, double lr);
LS_API double ls_optim_lr(const ls_optim *optim);
LS_API ls_status ls_optim_state(ls_optim *optim, const char *prefix,
                                const ls_state_visitor *visitor);

/* Learning rate as a pure function of the step: linear warm-up from 0 to `lr` over `warmup` steps
 * (step 0 uses lr/warmup), then constant, or a half cosine or a straight line down to `min_lr` at
 * step `total`. */
typedef enum ls_schedule_kind {
    LS_SCHEDULE_CONSTANT = 0,
    LS_SCHEDULE_COSINE = 1,
    LS_SCHEDULE_LINEAR = 2
} ls_schedule_kind;
typedef struct ls_schedule_options {
    size_t size;
    ls_schedule_kind kind; /* default LS_SCHEDULE_CONSTANT */
    double lr, min_lr;     /* defaults 1e-3 and 0 */
    int64_t warmup, total; /* steps */
} ls_schedule_options;
#define LS_DEFAULTS_ls_schedule_options .lr = 1e-3,
LS_DEFAULTS_FUNCTION(schedule)
/* NaN when options->size is impossible, with ls_error_message; ls_optim_step refuses such a rate. */
LS_API double ls_schedule_lr(int64_t step, const ls_schedule_options *options);

#if !defined(LS_NO_SITES)
#define ls_optim_step(...) LS_AT(ls_optim_step(__VA_ARGS__))
#define ls_sgd_new(...) LS_AT(ls_sgd_new(__VA_ARGS__))
#define ls_adam_new(...) LS_AT(ls_adam_new(__VA_ARGS__))
#define ls_adamw_new(...) LS_AT(ls_adamw_new(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif

/* The common part of the optimizers. One optimizer is a class: names of its hyper-parameters and of
 * its state, and a function that updates one parameter. */
#ifndef LS_OPTIM_OPTIM_H
#define LS_OPTIM_OPTIM_H

#include <lockstep/optim.h>

#include "base/config.h"
#include "base/runtime.h"
#include "kernel/kernels.h"

#define LS__OPTIM_HYPER_MAX 6
#define LS__OPTIM_STATE_MAX 2

typedef struct ls__optim_param {
    const char *name; /* the module's */
    ls_tensor *value; /* the module's */
    int64_t count;
    int64_t steps;                     /* updates so far; PyTorch's state["step"] */
    float *state[LS__OPTIM_STATE_MAX]; /* within the optimizer's memory, [count] each */
} ls__optim_param;

typedef struct ls__optim_class {
    const char *name;
    int hyper_count; /* hyper[0] is the learning rate */
    const char *hyper_name[LS__OPTIM_HYPER_MAX];
    const char *state_name[LS__OPTIM_STATE_MAX];
    /* `steps` counts this update already */
    void (*update)(const ls_optim *optim, ls__optim_param *param, float *value, const float *grad);
} ls__optim_class;

struct ls_optim {
    const ls__optim_class *cls;
    ls__runtime_guest guest;
    const ls__env *env;
    uint64_t exchanges; /* of the thread, at the last step */
    const ls__kernels *kernels;
    double hyper[LS__OPTIM_HYPER_MAX];
    int state_count; /* of the class' state tensors, how many this one keeps */
    ls__optim_param *params;
    int count;
    char lr_name[LS__CONFIG_NAME]; /* for the comparison of the ranks, see base/config.h */
    int64_t steps_max;             /* of its parameters: how far training has come */
    void *memory;                  /* of all state; NULL until the first step */
    size_t memory_bytes;
};

/* Makes an optimizer over the module's parameters; NULL with ls_error_message. */
ls_optim *ls__optim_new(ls_module *module, const ls__optim_class *cls, const double *hyper,
                        int state_count);

/* Whether a hyper-parameter lies in [low, high); says so when not. */
ls_status ls__optim_check(const char *optim, const char *name, double value, double low,
                          double high);

#endif

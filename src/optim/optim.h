/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of the optimizers. One optimizer is a class: names of its hyper-parameters and of
 * its state, and a function that updates any number of parts in one call. */
#ifndef LS_OPTIM_OPTIM_H
#define LS_OPTIM_OPTIM_H

#include <lockstep/optim.h>

#include "autograd/observers.h"
#include "base/config.h"
#include "base/runtime.h"
#include "kernel/kernels.h"

#define LS__OPTIM_HYPER_MAX 6
#define LS__OPTIM_STATE_MAX LS__STEP_STATE_MAX

typedef struct ls__optim_param {
    const char *name; /* the module's, or own_name */
    char *own_name;   /* of a module that was added */
    ls_tensor *value; /* the module's */
    int64_t count;
    int64_t from, own;                 /* this rank's elements: [from, from + own) have state */
    bool half;                         /* bfloat16 */
    bool chosen;                       /* by the last ls_optim_add_group */
    int group;                         /* 0: none, which has the optimizer's settings */
    int64_t steps;                     /* updates so far; PyTorch's state["step"] */
    uint64_t round;                    /* the last one in which it was updated */
    bool updated;                      /* by the last ls__optim_step_ranges that named it */
    float *state[LS__OPTIM_STATE_MAX]; /* within the optimizer's memory, [own] each */
    float *master;                     /* of a bfloat16 parameter; likewise, see ls__step_part */
} ls__optim_param;

typedef struct ls__optim_group {
    double lr_scale, weight_decay; /* as in ls_optim_group_options */
} ls__optim_group;

/* Elements [from, from + count) of a parameter. */
typedef struct ls__optim_range {
    int param;
    int64_t from, count;
} ls__optim_range;

typedef struct ls__optim_class {
    const char *name;
    int hyper_count; /* hyper[0] is the learning rate */
    int decay;       /* hyper[decay] is the weight decay */
    int betas;       /* those of adamw's corrections: hyper[betas] and the next one; 0: none */
    const char *hyper_name[LS__OPTIM_HYPER_MAX];
    const char *state_name[LS__OPTIM_STATE_MAX];
    void (*update)(const ls_optim *optim, const ls__step_part *parts, int64_t count);
} ls__optim_class;

struct ls_optim {
    const ls__optim_class *cls;
    ls__runtime_guest guest;
    const ls__env *env;
    uint64_t exchanges;     /* of the thread, at the last step */
    ls__observer *observer; /* of its first parameter that has one; during a step */
    struct ls__pool *on;    /* the parameters' device; found at each step */
    double hyper[LS__OPTIM_HYPER_MAX];
    int state_count; /* of the class' state tensors, how many this one keeps */
    ls__optim_param *params;
    int count;
    ls__optim_group *groups; /* [group_count]; group g is groups[g - 1] */
    int group_count;
    uint64_t round;         /* steps begun, each with any number of ls__optim_step_ranges */
    ls__optim_range *whole; /* [count]: every parameter */
    ls__step_part *parts;   /* [part_room]: of the call that runs */
    int64_t part_room;      /* at least count */
    /* For the comparison of the ranks, see base/config.h; "": none yet. */
    char lr_name[LS__CONFIG_NAME], steps_name[LS__CONFIG_NAME], trained_name[LS__CONFIG_NAME];
    int64_t steps_shown;
    int trained; /* of its parameters, which were so in the last step; without experts */
    bool staged; /* its parameters are a stage's */
    bool alone;  /* its wrapper has one rank */
    unsigned divided, agreed; /* axes; agree.c */
    int64_t steps_max;        /* of its parameters: how far training has come */
    void *memory;             /* of all state, on that device; NULL until the first step */
    const ls__env *memory_of; /* which gave it */
    size_t memory_bytes;
};

/* Makes an optimizer over the module's parameters; NULL with ls_error_message. */
ls_optim *ls__optim_new(ls_module *module, const ls__optim_class *cls, const double *hyper,
                        int state_count);

/* Whether a hyper-parameter lies in [low, high); says so when not. */
ls_status ls__optim_check(const char *optim, const char *name, double value, double low,
                          double high);

/* The error of a public call whose optimizer is NULL. */
ls_status ls__optim_missing(const char *call);

/* group.c: the settings of a parameter. */
double ls__optim_lr_scale(const ls_optim *o, const ls__optim_param *param);
double ls__optim_lr_of(const ls_optim *o, const ls__optim_param *param);
double ls__optim_decay_of(const ls_optim *o, const ls__optim_param *param);

/* state.c: sets optim->on, and makes room for the state of this rank's elements of the parameters.
 * If those have become fewer since the last call, the state of the others is dropped. */
ls_status ls__optim_allocate_state(ls_optim *o);

/* step.c: shows the learning rate to the comparison of the ranks' settings, of an optimizer whose
 * gradients are averaged. */
void ls__optim_show_lr(ls_optim *o);

/* agree.c: bit a: a parameter is divided along axis a of the mesh in force, whose ranks no wrapper
 * compares. The other function compares along those of o->divided; collective. */
unsigned ls__optim_divided(const ls_optim *o);
/* Whether other ranks train one of its parameters, too (ls__param_is_shared). */
bool ls__optim_shared(const void *optim);
ls_status ls__optim_agree(ls_optim *o);

/* step.c: an optimizer step in several calls, for one that is sharded or runs bucket by bucket.
 * ls__optim_begin opens a step; every ls__optim_step_ranges until the next one belongs to it. A
 * parameter's step count rises once in a step, however many of its ranges are updated; ranges of a
 * step must not overlap. Of a range only the elements that are this rank's are updated. Nothing is
 * updated unless the checks of all ranges of the call pass. */
ls_status ls__optim_begin(ls_optim *o);
ls_status ls__optim_step_ranges(ls_optim *o, const ls__optim_range *ranges, int64_t count);

/* Elements [from, from + count) of a parameter, which are this rank's, in memory of the caller's:
 * `value` and `grad` are of the first of them. */
typedef struct ls__optim_place {
    int param;
    int64_t from, count, step; /* the number of the step, from 1 */
    void *value;
    void *grad; /* read only */
} ls__optim_place;

/* step.c: a step with this learning rate on such memory in place of the module's parameters and
 * gradients, which counts no steps. The state is allocated. Also on another thread than that of the
 * loop, which must not use the optimizer meanwhile, but for ls_optim_step of a wrapper whose steps
 * are made elsewhere (ls__observer) and ls_optim_set_lr. */
ls_status ls__optim_step_at(ls_optim *o, double lr, const ls__optim_place *places, int64_t count);

#endif

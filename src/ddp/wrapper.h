/* The wrapper of ls_ddp_new; ddp.c makes it and joins it to backward, join.c takes part without
 * data, use.c has its other calls. */
#ifndef LS_DDP_WRAPPER_H
#define LS_DDP_WRAPPER_H

#include <lockstep/ddp.h>

#include "autograd/observers.h"
#include "base/runtime.h"
#include "ddp/axes.h"
#include "ddp/buffers.h"
#include "ddp/stats.h"
#include "ddp/values.h"
#include "ddp/zero.h"
#include "nn/module.h"

/* The wrapper. `grads` is the state of the gradients between two backwards: usable by an optimizer,
 * accumulated on this rank only, or spoiled by a failure. */
typedef struct ls__ddp {
    ls_module base;
    ls_module *inner;
    ls_runtime *runtime;
    const ls__env *env;
    ls__runtime_guest guest; /* tells that the runtime has ended */
    ls_group *group;         /* borrowed: the user's */
    ls__ddp_axes axes;
    ls_reducer *reducer;
    ls__observer observer;
    bool observing;
    ls_param *params; /* [param_count] those that require gradients */
    ls_param *frozen; /* [frozen_count] the others */
    int param_count, frozen_count;
    size_t tables_bytes;
    bool sync;
    uint64_t passes; /* backwards that have begun */
    bool planned;    /* buckets lie in the observed order, parameters beside them */
    ls__ddp_values values;
    ls__ddp_zero zero;
    ls__buffers buffers;
    bool synchronising; /* the backward under way does */
    bool shards;     /* steps have shards (reduce/shards.h): the last one of a step synchronises */
    bool local;      /* the replicas may differ (average.c) … */
    bool diverged;   /* … and an optimizer has stepped on gradients of this rank alone */
    ls_optim *optim; /* steps in backward (in_backward.c); borrowed; NULL: none does */
    struct ls__optim_range *whole; /* [param_count] all of each parameter, as the optimizer's … */
    struct ls__optim_range *ranges; /* [param_count] … and those of one bucket */
    double divided; /* local gradients are divided by this sum of weights; 0: they are not */
    ls__step_stats stats;
    uint64_t backward_begun_ns;
    int check_every;  /* synchronised backwards; 0: never */
    uint64_t *hashes; /* [param_count] … */
    bool hashed;      /* … in the backward under way */
    ls_group **sums;  /* [param_count] over which each gradient is added */
    enum { GRADS_USABLE, GRADS_LOCAL, GRADS_FAILED } grads;
} ls__ddp;

extern const ls_module_class ls__ddp_class;

/* The wrapper of a module; NULL: it has none. */
ls__ddp *ls__ddp_of(ls_module *module);
/* The error of a call that needs one. */
ls_status ls__ddp_missing(const char *caller);
/* The peers' operations with this rank end with the message of its failure, which is returned
 * again. */
ls_status ls__ddp_give_up(ls__ddp *d, ls_status status);

/* Takes the place of a backward, of this weight, that reaches no parameter: it counts in the mean,
 * and if the wrapper synchronises, the other ranks wait for it. */
ls_status ls__ddp_pass_empty(ls__ddp *d, bool weighted, double weight);

/* Shows what the wrapper keeps itself to a visitor (use.c): the state of its communication hook. */
ls_status ls__ddp_state(ls_module *self, const char *prefix, const ls_state_visitor *visitor);

/* Lays parameters and gradients out in the observed order, once; collective. */
ls_status ls__ddp_lay_out(ls__ddp *d);
/* in_backward.c: at both ends of a synchronising backward; `waited`: ls__in_backward_begin found
 * that the layout was not final. They do nothing without an optimizer. */
ls_status ls__in_backward_begin(ls__ddp *d);
ls_status ls__in_backward_end(ls__ddp *d, bool waited);
void ls__in_backward_drop(ls__ddp *d);

/* Begins a backward: checks the model, shows its parameters to the replica check, and sends buffers
 * out when the backward synchronises. */
ls_status ls__ddp_begin(ls__ddp *d, const ls_reducer_begin_options *options);
/* Ends it: waits for averages and buffers. After a failure of either the group has failed. */
ls_status ls__ddp_end(ls__ddp *d);

#endif

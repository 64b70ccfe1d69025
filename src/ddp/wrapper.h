/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapper of ls_ddp_new; ddp.c makes it and joins it to backward, join.c takes part without
 * data, use.c has its other calls. */
#ifndef LS_DDP_WRAPPER_H
#define LS_DDP_WRAPPER_H

#include <lockstep/comm.h>
#include <lockstep/ddp.h>
#include <lockstep/nn.h>
#include <lockstep/reducer.h>
#include <lockstep/status.h>

#include "autograd/observers.h"
#include "base/env.h"
#include "base/runtime.h"
#include "ddp/axes.h"
#include "ddp/buffers.h"
#include "ddp/unshard.h"
#include "ddp/values.h"
#include "device/captured.h"
#include "nn/module.h"
#include "trace/replay_log.h"

struct ls__ddp;

/* ---- average_log.c: the replay log of averages ----------------------------------------------- */

/* All zero is a valid state: nothing is logged. */
typedef struct ls__average_log {
    char *path; /* [bytes] */
    size_t bytes;
    ls__replay_writer writer; /* rank 0's */
} ls__average_log;

/* After an average: rank 0 writes a line for each rank. Collective. */
ls_status ls__average_log_add(struct ls__ddp *d, const ls_ddp_average_options *options);
void ls__average_log_drop(struct ls__ddp *d);

/* ---- outer.c: the outer optimizer of ls_ddp_average ------------------------------------------ */

/* All zero is a valid state: there was no outer optimizer. */
typedef struct ls__ddp_outer {
    float *memory; /* for each parameter its start, then its momentum; NULL: never used */
    size_t bytes;
    bool noted; /* the start of the round under way is known */
} ls__ddp_outer;

/* Whether the options can be used; local. */
ls_status ls__outer_check(const ls_outer_options *options);
/* After the average: takes the step, or in the first call of the mode none, and notes where the
 * next round starts. */
ls_status ls__outer_step(struct ls__ddp *d, const ls_outer_options *options);
/* Shows starts and momenta below the prefix; nothing, if there are none. */
ls_status ls__outer_state(struct ls__ddp *d, const char *prefix, const ls_state_visitor *visitor);
void ls__outer_drop(struct ls__ddp *d);

/* ---- zero.c: state, gradients and parameters divided among the ranks (ZeRO) ------------------ */

typedef struct ls__ddp_zero {
    int stage;           /* ls_ddp_options.zero */
    int buckets;         /* 0: everything is whole, as long as the layout may change */
    bool *changed;       /* [buckets] an optimizer has stepped a parameter of it … */
    ls_work **works;     /* [buckets] … which the ranks now gather */
    ls__unshard unshard; /* of stage 3 */
} ls__ddp_zero;

/* Checks what zero is combined with. After the reducer was made; on all ranks alike. */
ls_status ls__ddp_zero_init(struct ls__ddp *d, const ls_ddp_options *options);
/* The layout is final, and gradients are whole averages: from now on both are divided. */
ls_status ls__ddp_zero_begin(struct ls__ddp *d);
/* Gathers the parameters that were stepped. Collective. */
ls_status ls__ddp_zero_share(struct ls__ddp *d);
void ls__ddp_zero_drop(struct ls__ddp *d);

/* ---- stats.c: where the time of a data-parallel step goes ------------------------------------ */

/* All zero is a valid state. The thread that trains owns it. */
typedef struct ls__step_stats {
    ls_ddp_stats shown;
    uint64_t steps;                   /* that count in the means */
    double squares[6];                /* sums of squared distances from the means */
    uint64_t forward_ns, backward_ns; /* of the step under way */
    uint64_t optimizer_ns, passed_ns; /* since the last step; the end of that step, 0: none */
} ls__step_stats;

/* ls_ddp_timeline of a reducer with `params` parameters. */
ls_status ls__timeline_print(ls_reducer *reducer, int params, char *out, size_t bytes,
                             size_t *needed);

/* The times of a synchronised backward beside the passes, in seconds. */
typedef struct ls__backward_waits {
    double backward; /* of the synchronised one, without waiting */
    double wire, exposed;
} ls__backward_waits;

/* A synchronised backward has ended. */
void ls__step_ended(ls__step_stats *s, const ls__env *env, const ls__backward_waits *waits);

/* ---- the wrapper ----------------------------------------------------------------------------- */

/* The calls of servers in place of averaging (src/server). Optimizers step on the servers. */
typedef struct ls__ddp_remote {
    ls_status (*pull)(struct ls__ddp *d); /* before a forward pass that records a graph */
    /* A backward that synchronises begins, which reaches used[param_count]; the gradient of a
     * parameter that it reaches is final; it has ended, and gradients are absent afterwards; it has
     * failed. */
    ls_status (*begin)(struct ls__ddp *d, const uint8_t *used);
    ls_status (*ready)(struct ls__ddp *d, int index);
    ls_status (*push)(struct ls__ddp *d);
    void (*abort)(struct ls__ddp *d, const char *message);
    void (*free)(struct ls__ddp *d);
} ls__ddp_remote;

/* The wrapper. `grads` is the state of the gradients between two backwards: usable by an optimizer,
 * accumulated on this rank only, or spoiled by a failure. */
typedef struct ls__ddp {
    ls_module base;
    ls_module *inner;
    ls_runtime *runtime;
    const ls__env *env;
    ls__runtime_guest guest; /* tells that the runtime has ended */
    ls_group *group;         /* borrowed: the user's */
    const char *backend;     /* of the reducer's groups, while the wrapper is made; NULL: theirs */
    bool on_host;            /* buckets are memory that the library reads and writes */
    ls__ddp_axes axes;
    ls_reducer *reducer;
    ls__observer observer;
    bool observing;
    int number;       /* among the wrappers over its group, from 1 */
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
    bool shards;   /* steps have shards (reduce/shards.h): the last one of a step synchronises */
    bool local;    /* the replicas may differ (average.c) … */
    bool diverged; /* … and an optimizer has stepped on gradients of this rank alone */
    uint64_t averages; /* calls of ls_ddp_average so far */
    ls__ddp_outer outer;
    ls__average_log log;          /* of these calls */
    const ls__ddp_remote *remote; /* NULL: gradients are averaged here */
    void *server;                 /* its state */
    bool weighted;                /* the last backward had a weight */
    ls_optim *optim;              /* steps in backward (in_backward.c); borrowed; NULL: none does */
    struct ls__optim_range *whole; /* [param_count] all of each parameter, as the optimizer's … */
    struct ls__optim_range *ranges; /* [param_count] … and those of one bucket */
    double divided; /* local gradients are divided by this sum of weights; 0: they are not */
    ls__step_stats stats;
    uint64_t backward_begun_ns;
    ls__captured_ranks captured; /* in captured steps */
    uint64_t noticed;            /* by the reducer, when the backward began */
    int check_every;             /* synchronised backwards; 0: never */
    uint64_t *hashes;            /* [param_count] … */
    bool hashed;                 /* … in the backward under way */
    bool frozen_compared;        /* along axes that lead out of the group */
    ls_group **sums;             /* [param_count] over which each gradient is added */
    enum { GRADS_USABLE, GRADS_LOCAL, GRADS_FAILED } grads;
} ls__ddp;

extern const ls_module_class ls__ddp_class;

/* The wrapper of a module; NULL: it has none. */
ls__ddp *ls__ddp_of(ls_module *module);
/* The error of a call that servers do not have; LS_OK of a wrapper without them. */
ls_status ls__ddp_refuse_remote(const ls__ddp *d, const char *caller, const char *instead);
/* The error of a call that ignores a module without a wrapper: it is given a part of a wrapper's
 * module, or a module that has a wrapper below it. */
ls_status ls__ddp_refuse_beside(ls_module *module, const char *caller);
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

/* Whether the ranks compare their parameters in the next backward that synchronises. */
bool ls__ddp_compares(const ls__ddp *d);

/* Before a graph is recorded, or a rank takes part without one: gradients of thawed parameters are
 * averaged from now on. */
ls_status ls__ddp_adopt_thawed(ls__ddp *d);

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

/* ---- captured.c: captured steps -------------------------------------------------------------- */

void ls__ddp_captured_init(ls__ddp *d);
/* At both ends of a backward of this rank. */
void ls__ddp_captured_begin(ls__ddp *d, const ls__backward_info *info, bool local);
void ls__ddp_captured_end(ls__ddp *d);

/* ---- copies.c: parameters along axes over which no reducer adds their gradients -------------- */

/* As a norm's weight on the ranks of tensor parallelism. Every rank of the axis computes the same
 * gradient and takes the same step, so they stay equal to the bit, unless a conversion of the
 * gradient is missing or a bit flips. Over its own axes the reducer compares them
 * (reduce/compare.h). */

/* After a backward for which the parameters were hashed: LS_ERR_MISMATCH names parameter, ranks and
 * axis. Collective over each axis along which any parameter has copies: one all_gather of 16 bytes
 * a rank. `reduced`: what the reducer says; if it failed, the ranks that would wait are told. */
ls_status ls__ddp_copies_check(struct ls__ddp *d, ls_status reduced);

/* ---- layout.c: equal bits for any number of ranks, beyond Note [Shards] ---------------------- */

/* Divides steps into options->shards, unless that is 0. */
ls_status ls__layout_set(ls__ddp *d, const ls_ddp_options *options);
/* When a backward begins, and when one ends that did not synchronise. */
ls_status ls__layout_begin(ls__ddp *d);
void ls__layout_end(ls__ddp *d);
/* An optimizer is about to step in the middle of a step. */
ls_status ls__layout_fail_early(const ls__ddp *d);

/* ---- replicas.c: making replicas of a module equal ------------------------------------------- */

/* Collective: rank 0's state on every rank, parameters, buffers, and the numbers that module
 * classes keep beside them; of the reducer's parameters that of the rank 0 of each one's own group,
 * of a frozen one that of the first rank that has the same part. One operation for each group, and
 * a comparison. */
ls_status ls__replicas_broadcast(ls__ddp *d);

#endif

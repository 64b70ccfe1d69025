/* SPDX-License-Identifier: Apache-2.0 */
/* Local steps: between two averages of the parameters each rank trains by itself (local SGD, Stich
 * 2019; federated averaging, McMahan et al. 2017). An outer optimizer (outer.c) makes a step of the
 * average.
 *
 *     step  step  step  average  step  step  step  average
 *     └── gradients of this rank ──┘
 *
 * The mode is explicit, because replicas that drift apart by mistake train nothing: outside it an
 * optimizer refuses gradients that never met, and the replica check names a rank whose parameters
 * differ. Parameters lie in regions (values.c), so one operation averages all of a type and group
 * in place. Where kernels of their device do not reach these, each passes through the host, also
 * if gradients do not: averages are seldom, and so they have the bits of the processor. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/options.h"
#include "comm/api/collective.h"
#include "comm/api/control.h"
#include "comm/backend/plugin_group.h"
#include "ddp/wrapper.h"
#include "dist/agree.h"
#include "kernel/reduce/reduce.h"
#include "reduce/compare.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "tensor/tensor.h"

#define WEIGHT_MIN 1e-15 /* weighted parameters stay far from the limits of float32 */

/* The state of one call. */
typedef struct averaging {
    ls__ddp *d;
    double weight;   /* of this rank */
    ls_group *group; /* of the last sum of weights … */
    double sum;      /* … which is this */
    int next;        /* parameter whose state the visitor meets next */
} averaging;

/* Finds the sum of the weights of a group; collective, unless it is that of the last call. */
static ls_status weigh(averaging *a, ls_group *group)
{
    if (a->group == group) {
        return LS_OK;
    }
    a->group = group;
    a->sum = a->weight;
    LS_TRY(ls__control_all_reduce(group, &a->sum, 1, LS_FLOAT64, LS_SUM,
                                  LS_OPTIONS(ls_collective_options, .tag = "weights")));
    if (!(a->sum > 0.0)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_ddp_average: the weights of all ranks add up to %g; give at least one "
                        "rank a weight above 0",
                        a->sum);
    }
    return LS_OK;
}

/* Elements on the host. Equal values keep their bits on 2, 4, 8 … ranks; on others the sum is
 * rounded. */
static ls_status average(averaging *a, ls_group *group, const char *tag, void *data, int64_t count,
                         ls_dtype dtype)
{
    LS_TRY(weigh(a, group));
    if (a->weight != 1.0) {
        ls__scale(data, data, count, dtype, a->weight);
    }
    return ls__collective_start(
        group,
        &(ls__collective){.operation = LS__OP_ALL_REDUCE,
                          .input = data,
                          .output = data,
                          .count = count,
                          .dtype = dtype,
                          .op = LS_SUM,
                          .control = !ls__group_on_host(group),
                          .options =
                              LS_OPTIONS(ls_collective_options, .tag = tag, .divisor = a->sum)},
        NULL);
}

/* One that lies in no region. */
static ls_status average_param(averaging *a, ls_group *group, const ls_param *param)
{
    ls__host_view view;
    LS_TRY(ls__host_view_of(param->value, &view));
    const ls_status status = average(a, group, param->name, view.data, ls_numel(param->value),
                                     ls_dtype_of(param->value));
    ls__host_view_close(&view, status == LS_OK);
    return status;
}

/* The group over which parameter i is averaged. */
static ls_group *group_of(const ls__ddp *d, int i)
{
    return ls__reducer_region_group(d->reducer, ls__reducer_place(d->reducer, i).region);
}

static ls_status average_params(averaging *a)
{
    const ls__ddp *d = a->d;
    for (int i = 0; i < d->values.regions; i++) {
        const ls_dtype dtype = ls__reducer_region_dtype(d->reducer, i);
        const size_t bytes = ls__reducer_region_bytes(d->reducer, i);
        LS_TRY(average(a, ls__reducer_region_group(d->reducer, i), "parameters",
                       d->values.memory[i], (int64_t)(bytes / ls_dtype_size(dtype)), dtype));
    }
    for (int i = 0; i < d->param_count; i++) {
        ls_tensor *value = d->params[i].value;
        if (!ls__ddp_values_has(&d->values, d->reducer, value, i)) {
            LS_TRY(average_param(a, group_of(d, i), &d->params[i]));
        }
        ls__tensor_changed(value);
    }
    return LS_OK;
}

/* ---- the optimizer's state ------------------------------------------------------------------- */

/* Whether "exp_avg.fc1.weight" is the state of "fc1.weight". */
static bool is_state_of(const char *state, const char *param)
{
    const char *dot = strchr(state, '.');
    return dot != NULL && strcmp(dot + 1, param) == 0;
}

/* The group of the parameter to which a state belongs; the wrapper's own for others. The visitor
 * goes through the parameters in their order, several states of one after the other. */
static ls_group *group_of_state(averaging *a, const char *name)
{
    const ls__ddp *d = a->d;
    for (int i = 0; i < d->param_count; i++) {
        const int at = (a->next + i) % d->param_count;
        if (is_state_of(name, d->params[at].name)) {
            a->next = at;
            return group_of(d, at);
        }
    }
    return ls__reducer_group(d->reducer);
}

static ls_status average_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++) {
        count *= tensor->local[i]; /* of memory that exists */
    }
    return average(self, group_of_state(self, name), name, tensor->data, count, tensor->dtype);
}

/* Step numbers: a rank that has skipped a parameter is behind. */
static ls_status largest(void *self, const char *name, int64_t *value)
{
    return ls__control_all_reduce(group_of_state(self, name), value, 1, LS_INT64, LS_MAX,
                                  LS_OPTIONS(ls_collective_options, .tag = name));
}

/* Learning rates are compared in each synchronised backward. */
static ls_status keep(void *self, const char *name, double *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static ls_status average_state(averaging *a, ls_optim *optim)
{
    const ls_state_visitor visitor = {.size = sizeof visitor,
                                      .self = a,
                                      .tensor = average_tensor,
                                      .int64 = largest,
                                      .float64 = keep};
    return ls_optim_state(optim, "", &visitor);
}

/* ---- the calls ------------------------------------------------------------------------------- */

static ls_status check(const ls__ddp *d, const ls_ddp_average_options *options,
                       const ls_outer_options *outer)
{
    if (!d->local) {
        return ls__fail(
            LS_ERR_STATE,
            "ls_ddp_average: the replicas are equal, because gradients are averaged; call "
            "ls_ddp_set_local(net, true) before local steps");
    }
    if (options->weight != 0.0 &&
        !(options->weight >= WEIGHT_MIN && options->weight <= 1.0 / WEIGHT_MIN)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_ddp_average: the weight is %g; give 0, or one from %g to %g",
                        options->weight, WEIGHT_MIN, 1.0 / WEIGHT_MIN);
    }
    return outer != NULL ? ls__outer_check(outer) : LS_OK;
}

/* A rank that has trained already does not know where the round started. The others may have had
 * nothing to train. */
static ls_status check_start(const ls__ddp *d, const ls_outer_options *outer)
{
    if (outer == NULL || d->outer.noted || !d->diverged) {
        return LS_OK;
    }
    return ls__fail(LS_ERR_STATE,
                    "ls_ddp_average: outer steps from the start of the round, and rank %d has "
                    "taken local steps before it was noted; call ls_ddp_average with outer once "
                    "after ls_ddp_set_local, before the first step",
                    ls_rank());
}

/* ---- what the ranks must agree on ------------------------------------------------------------ */

typedef struct call {
    const ls_ddp_average_options *options;
    const ls_outer_options *outer;
    bool begins;   /* notes the start of the first round: the ranks' parameters are equal … */
    uint64_t hash; /* … and this is theirs; 0: they have different ones, as experts */
    int giver;     /* of buffers: the lowest rank with a weight */
    const char *refused; /* the error of a call that is wrong on this rank; "": it is right */
} call;

static void list_call(ls__facts *to, const void *arg)
{
    static const char *const remedy = "call ls_ddp_average with the same options on every rank";
    const call *c = arg;
    ls__facts_text(to, "the arguments of ls_ddp_average",
                   c->refused[0] != '\0' ? c->refused : "right ones", remedy);
    ls__facts_text(to, "optim of ls_ddp_average", c->options->optim != NULL ? "given" : "NULL",
                   remedy);
    ls__facts_text(to, "log of ls_ddp_average", c->options->log != NULL ? "given" : "NULL", remedy);
    ls__facts_text(to, "outer of ls_ddp_average", c->outer != NULL ? "given" : "NULL", remedy);
    if (c->outer != NULL) {
        ls__facts_number(to, "lr of outer", c->outer->lr, remedy);
        ls__facts_number(to, "momentum of outer", c->outer->momentum, remedy);
        ls__facts_number(to, "inner_lr of outer", c->outer->inner_lr, remedy);
        ls__facts_text(to, "nesterov of outer", c->outer->nesterov ? "true" : "false", remedy);
    }
    if (c->begins) {
        ls__facts_hash(to, "the parameters at the start of the first round", c->hash,
                       "call ls_ddp_average with outer before anything changes them on one rank");
    }
}

/* Buffers may differ: an average takes those of one rank. */
static uint64_t hash_of_parameters(const ls__ddp *d)
{
    int count = 0;
    const ls__module_item *items = ls__module_items(d->inner, &count);
    uint64_t hash = LS__HASH_START;
    for (int i = 0; items != NULL && i < count; i++) {
        hash = items[i].buffer ? hash : ls__module_item_hash(hash, &items[i]);
    }
    return hash;
}

/* Of all that list_call lists. */
static int64_t hash_of(const call *c)
{
    const ls_outer_options none = {0}, *outer = c->outer != NULL ? c->outer : &none;
    const double numbers[] = {
        outer->lr,        outer->momentum,           outer->inner_lr,         outer->nesterov,
        c->outer != NULL, c->options->optim != NULL, c->options->log != NULL, c->begins};
    const uint64_t hash = ls__hash_bytes(LS__HASH_START, numbers, sizeof numbers);
    return (int64_t)(ls__hash_bytes(hash, c->refused, strlen(c->refused)) ^ c->hash);
}

/* Between synchronised backwards nothing else compares seeds, samplers and optimizers. Ranks that
 * agree need no memory to find that. */
static ls_status agree(ls__ddp *d, call *c)
{
    const ls__agree_peers peers = ls__domain_peers(d->reducer, &d->reducer->domains[0]);
    const int before_end = ls_group_size(d->group) - ls_group_rank(d->group);
    LS_TRY(d->averages == 0 ? ls__agree_settings(&peers) : LS_OK);
    int64_t shown[3] = {hash_of(c), ~hash_of(c), c->options->weight > 0.0 ? before_end : 0};
    LS_TRY(ls__control_all_reduce(d->group, shown, 3, LS_INT64, LS_MAX,
                                  LS_OPTIONS(ls_collective_options, .tag = "options")));
    c->giver = shown[2] > 0 ? ls_group_size(d->group) - (int)shown[2] : 0;
    return shown[0] == ~shown[1] ? LS_OK : ls__agree(&peers, list_call, c);
}

/* One rank's NaN makes the average NaN on all ranks, and nothing tells whose it was. */
static ls_status check_finite(const ls__ddp *d)
{
    for (int i = 0; i < d->param_count; i++) {
        ls_tensor *value = d->params[i].value;
        const int64_t count = ls_numel(value);
        int64_t at = -1;
        LS_TRY(ls__tensor_nonfinite(value, &at));
        if (at >= 0) {
            return ls__fail(
                LS_ERR_INVALID,
                "ls_ddp_average: %.200s is not finite on rank %d (element %lld of %lld), "
                "and its average would not be on any; look for a division by zero or a "
                "logarithm of 0, or lower the learning rate",
                d->params[i].name, ls_rank(), (long long)at, (long long)count);
        }
    }
    return LS_OK;
}

/* Parameters move into regions first, if kernels of their device reach these. One rank is its own
 * average. */
static ls_status average_over_ranks(ls__ddp *d, const call *c)
{
    averaging a = {.d = d, .weight = c->options->weight};
    LS_TRY(ls__ddp_lay_out(d));
    LS_TRY(average_params(&a));
    if (c->options->optim != NULL) {
        LS_TRY(average_state(&a, c->options->optim));
    }
    LS_TRY(ls__buffers_start(&d->buffers, c->giver));
    return ls__buffers_finish(&d->buffers);
}

static ls_status average_all(ls__ddp *d, const call *c)
{
    const bool several = ls_group_size(d->group) > 1;
    LS_TRY(check_finite(d));
    LS_TRY(several && !c->begins ? average_over_ranks(d, c) : LS_OK);
    LS_TRY(c->outer != NULL ? ls__outer_step(d, c->outer) : LS_OK);
    return c->options->log != NULL ? ls__average_log_add(d, c->options) : LS_OK;
}

/* All ranks name a call that is wrong on one rank only. */
static ls_status check_call(ls__ddp *d, call *c)
{
    LS_ASSERT(ls__reducer_is_idle(d->reducer));
    ls_status status = c->refused[0] == '\0' ? check_start(d, c->outer) : LS_OK;
    status = status == LS_OK && ls_group_size(d->group) > 1 ? agree(d, c) : status;
    return status < 0 ? ls__ddp_give_up(d, status) : LS_OK;
}

/* A failure in the middle leaves parameters that are neither this rank's nor averages: the group
 * fails. */
ls_status ls_ddp_average(ls_module *module, const ls_ddp_average_options *options)
{
    LS__OPTIONS(ls_ddp_average_options, given, options);
    LS__OPTIONS(ls_outer_options, outer, given.outer);
    ls__ddp *d = ls__ddp_of(module);
    if (d == NULL) {
        return ls__ddp_refuse_beside(module, "ls_ddp_average");
    }
    LS_TRY(ls__ddp_refuse_remote(d, "ls_ddp_average", "leave it out"));
    call c = {.options = &given, .outer = given.outer != NULL ? &outer : NULL, .refused = ""};
    char refused[LS__MESSAGE_MAX];
    ls_status status = check(d, &given, c.outer);
    if (status < 0) {
        memcpy(refused, ls_error_message(), sizeof refused);
        c.refused = refused;
    } else {
        c.begins = c.outer != NULL && !d->outer.noted;
        c.hash = c.begins && ls__reducer_domains(d->reducer) == 1 ? hash_of_parameters(d) : 0;
    }
    LS_TRY(check_call(d, &c));
    if (status < 0) { /* on all ranks */
        return ls__fail_at_site(ls__fail_again(status, refused));
    }
    status = average_all(d, &c);
    if (status < 0) {
        ls__replay_leave(&d->log.writer);
        return ls__ddp_give_up(d, status);
    }
    d->diverged = false;
    d->averages++;
    return LS_OK;
}

ls_status ls_ddp_set_local(ls_module *module, bool local)
{
    ls__ddp *d = ls__ddp_of(module);
    if (d == NULL) {
        return ls__ddp_refuse_beside(module, "ls_ddp_set_local");
    }
    LS_TRY(ls__ddp_refuse_remote(d, "ls_ddp_set_local",
                                 "workers without a common step are LS_SERVER_ASYNC's"));
    if (local && d->shards) {
        return ls__fail_at_site(ls__fail(LS_ERR_UNSUPPORTED,
                                         "ls_ddp_set_local: local steps depend on the number of "
                                         "ranks; make the ddp without shards"));
    }
    if (local && d->zero.stage > 0) {
        return ls__fail_at_site(ls__fail(LS_ERR_UNSUPPORTED,
                                         "ls_ddp_set_local: with zero a rank steps its part of the "
                                         "parameters only, so it cannot train by itself; make the "
                                         "ddp without zero"));
    }
    if (!local && d->diverged) {
        return ls__fail_at_site(ls__fail(
            LS_ERR_STATE,
            "ls_ddp_set_local: optimizers have stepped on gradients of single ranks, so the "
            "replicas differ; call ls_ddp_average with their state first"));
    }
    d->outer.noted = d->outer.noted && d->local; /* where a round starts is noted in the mode */
    d->local = local;
    ls__reducer_set_differ(d->reducer, local);
    return LS_OK;
}

bool ls_ddp_local(const ls_module *module)
{
    return module != NULL && module->cls == &ls__ddp_class && ((const ls__ddp *)module)->local;
}

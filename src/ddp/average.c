/* Local steps: between two averages of the parameters each rank trains by itself (local SGD, Stich
 * 2019; federated averaging, McMahan et al. 2017).
 *
 *     step  step  step  average  step  step  step  average
 *     └── gradients of this rank ──┘
 *
 * The mode is explicit, because replicas that drift apart by mistake train nothing: outside it an
 * optimizer refuses gradients that never met, and the replica check names a rank whose parameters
 * differ. Parameters lie in regions (values.c), so one operation averages all of a type and group
 * in place. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/options.h"
#include "comm/api/control.h"
#include "ddp/wrapper.h"
#include "kernel/reduce/reduce.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "tensor/tensor.h"

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
    if (!(a->sum > 0.0) || isinf(a->sum)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_ddp_average: the weights of all ranks add up to %g; give at least one "
                        "rank a weight above 0",
                        a->sum);
    }
    return LS_OK;
}

/* Equal values with equal weights keep their bits. */
static ls_status average(averaging *a, ls_group *group, const char *tag, void *data, int64_t count,
                         ls_dtype dtype)
{
    LS_TRY(weigh(a, group));
    if (a->weight != 1.0) {
        ls__scale(data, data, count, dtype, a->weight);
    }
    return ls_all_reduce(group, data, data, count, dtype, LS_SUM,
                         LS_OPTIONS(ls_collective_options, .tag = tag, .divisor = a->sum), NULL);
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
            LS_TRY(average(a, group_of(d, i), d->params[i].name, ls_data(value), ls_numel(value),
                           ls_dtype_of(value)));
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

static ls_status check(const ls__ddp *d, const ls_ddp_average_options *options)
{
    if (!d->local) {
        return ls__fail(
            LS_ERR_STATE,
            "ls_ddp_average: the replicas are equal, because gradients are averaged; call "
            "ls_ddp_set_local(net, true) before local steps");
    }
    if (!(options->weight >= 0.0) || isinf(options->weight)) {
        return ls__fail(LS_ERR_INVALID, "ls_ddp_average: the weight is %g; give a finite one >= 0",
                        options->weight);
    }
    return LS_OK;
}

/* The average of one rank's NaN and all others' numbers is NaN on all, and nothing tells whose it
 * was. */
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

/* Parameters move into regions first. */
static ls_status average_all(ls__ddp *d, const ls_ddp_average_options *options)
{
    averaging a = {.d = d, .weight = options->weight};
    LS_ASSERT(ls__reducer_is_idle(d->reducer));
    LS_TRY(ls__ddp_lay_out(d));
    LS_TRY(check_finite(d));
    LS_TRY(average_params(&a));
    if (options->optim != NULL) {
        LS_TRY(average_state(&a, options->optim));
    }
    LS_TRY(ls__buffers_start(&d->buffers, 0));
    return ls__buffers_finish(&d->buffers);
}

/* A failure in the middle leaves parameters that are neither this rank's nor averages: the group
 * fails. */
ls_status ls_ddp_average(ls_module *module, const ls_ddp_average_options *options)
{
    LS__OPTIONS(ls_ddp_average_options, given, options);
    ls__ddp *d = ls__ddp_of(module);
    if (d == NULL) {
        return LS_OK;
    }
    ls_status status = check(d, &given);
    if (status < 0) {
        return ls__fail_at_site(status);
    }
    status = ls_group_size(d->group) > 1 ? average_all(d, &given) : LS_OK;
    if (status < 0) {
        return ls__ddp_give_up(d, status);
    }
    d->diverged = false;
    return LS_OK;
}

ls_status ls_ddp_set_local(ls_module *module, bool local)
{
    ls__ddp *d = ls__ddp_of(module);
    if (d == NULL) {
        return LS_OK;
    }
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
    d->local = local;
    ls__reducer_set_differ(d->reducer, local);
    return LS_OK;
}

bool ls_ddp_local(const ls_module *module)
{
    return module != NULL && module->cls == &ls__ddp_class && ((const ls__ddp *)module)->local;
}

/* The common part of all optimizers: the list of parameters, lazily allocated state, the checks of
 * a step, and the state visitor.
 *
 * State is allocated at the first step (docs/design.md, D9: addresses of gradients are final by then),
 * in one piece, every tensor of it starting on a cache line. Gradients are read where they live.
 * After the first step nothing is allocated.
 */
#include "optim/optim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/param.h"
#include "base/assert.h"
#include "base/config.h"
#include "base/log.h"
#include "base/options.h"
#include "base/runtime.h"
#include "base/size.h"
#include "base/text.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#define STATE_ALIGN 64 /* a cache line; what env's allocate promises */
#define STATE_NAME_MAX 4352

/* NaN fails too: every comparison with it is false. */
ls_status ls__optim_check(const char *optim, const char *name, double value, double low,
                          double high)
{
    if (value >= low && value < high) {
        return LS_OK;
    }
    return ls__fail(LS_ERR_INVALID, "%s: %s is %g; it must be in [%g, %g)", optim, name, value, low,
                    high);
}

/* ---- making ------------------------------------------------------------------------------- */

/* Borrows names and tensors from the module, which must outlive the optimizer. Buffers are
 * skipped. */
static ls_status list_params(ls_optim *o, ls_module *module)
{
    int items = 0;
    const ls__module_item *item = ls__module_items(module, &items);
    if (item == NULL) {
        return ls__self.status;
    }
    o->params = calloc((size_t)items + 1, sizeof *o->params);
    if (o->params == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for %d parameters", o->cls->name, items);
    }
    for (int i = 0; i < items; i++) {
        if (item[i].buffer) {
            continue;
        }
        if (ls_dtype_of(item[i].value) != LS_FLOAT32) {
            return ls__fail(LS_ERR_UNSUPPORTED, "%s: parameter %s is %s; only float32 is optimized",
                            o->cls->name, item[i].name, ls_dtype_name(ls_dtype_of(item[i].value)));
        }
        o->params[o->count++] = (ls__optim_param){
            .name = item[i].name, .value = item[i].value, .count = ls_numel(item[i].value)};
    }
    if (o->count == 0) {
        return ls__fail(LS_ERR_INVALID, "%s: the module has no parameters; give the one to train",
                        o->cls->name);
    }
    return LS_OK;
}

/* Notes name, parameters and hyper-parameters for the comparison in reduce/config_check.c: ranks
 * whose optimizers differ drift apart although their gradients are equal. */
static void note_config(ls_optim *o)
{
    char hyper[LS__CONFIG_TEXT] = "";
    ls__text to = {hyper, sizeof hyper};
    for (int h = 0; h < o->cls->hyper_count; h++) {
        ls__text_add(&to, ", %s %.9g", o->cls->hyper_name[h], o->hyper[h]);
    }
    ls__config_note("%s of %d parameters%s", o->cls->name, o->count, hyper);
}

/* No state is allocated yet: a wrapper may still move the parameters (docs/design.md, D9). */
ls_optim *ls__optim_new(ls_module *module, const ls__optim_class *cls, const double *hyper,
                        int state_count)
{
    ls__tensors *tensors = ls__tensors_get(cls->name);
    if (tensors != NULL && module == NULL) {
        (void)ls__fail(LS_ERR_INVALID,
                       "%s: the module is NULL; check what its constructor returned", cls->name);
    }
    if (tensors == NULL || module == NULL || ls_module_status(module) < 0) {
        return NULL;
    }
    ls_optim *o = calloc(1, sizeof *o);
    if (o == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "%s: no memory", cls->name);
        return NULL;
    }
    LS_ASSERT(cls->hyper_count <= LS__OPTIM_HYPER_MAX && state_count <= LS__OPTIM_STATE_MAX);
    o->cls = cls;
    o->env = tensors->runtime->env;
    o->exchanges = ls__self.exchanges;
    ls__runtime_enter(tensors->runtime, &o->guest);
    o->state_count = state_count;
    memcpy(o->hyper, hyper, (size_t)cls->hyper_count * sizeof *hyper);
    if (list_params(o, module) < 0) {
        ls_optim_free(o);
        return NULL;
    }
    note_config(o);
    return o;
}

/* The parameters are the module's and stay as they are. Also after ls_finalize. */
void ls_optim_free(ls_optim *o)
{
    if (o == NULL) {
        return;
    }
    ls__runtime_leave(&o->guest);
    if (o->memory != NULL) {
        o->env->release(o->env, o->memory, o->memory_bytes);
    }
    free(o->params);
    free(o);
}

/* The bytes of one state tensor, rounded up to whole cache lines. */
static ls_status state_bytes(const ls_optim *o, const ls__optim_param *param, size_t *out)
{
    size_t bytes;
    if (!ls__bytes_of(param->count, sizeof(float), &bytes) ||
        !ls__add_size(bytes, STATE_ALIGN, &bytes)) {
        return ls__fail(LS_ERR_LIMIT, "%s: the state of %s is too large", o->cls->name,
                        param->name);
    }
    *out = (bytes - 1) & ~((size_t)STATE_ALIGN - 1);
    return LS_OK;
}

/* For sorting parameters by where they lie. */
typedef struct placed {
    const void *address; /* of the parameter's elements */
    ls__optim_param *param;
} placed;

/* Compares as integers would, without a difference that could overflow. */
static int by_address(const void *a, const void *b)
{
    const placed *x = a, *y = b;
    return (x->address > y->address) - (x->address < y->address);
}

/* State lies in the order of the parameters' addresses: with data parallelism this is the order of
 * the buckets, so one bucket's parameters, gradients and state are each in one piece. */
static ls_status place_state(ls_optim *o, uint8_t *at)
{
    size_t bytes = 0;
    placed *order = calloc((size_t)o->count, sizeof *order);
    if (order == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to lay its state out", o->cls->name);
    }
    for (int i = 0; i < o->count; i++) {
        order[i] = (placed){ls_data(o->params[i].value), &o->params[i]};
    }
    qsort(order, (size_t)o->count, sizeof *order, by_address);
    for (int s = 0; s < o->state_count; s++) {
        for (int i = 0; i < o->count; i++) {
            const ls_status status = state_bytes(o, order[i].param, &bytes);
            LS_ASSERT(status == LS_OK); /* as when the memory was allocated */
            order[i].param->state[s] = (float *)(void *)at;
            at += bytes;
        }
    }
    LS_ASSERT(at <= (uint8_t *)o->memory + o->memory_bytes);
    free(order);
    return LS_OK;
}

/* Does nothing after the first call. Zeros are the initial state of every class. */
static ls_status allocate_state(ls_optim *o)
{
    if (o->memory || o->state_count == 0) {
        return LS_OK;
    }
    const ls__env *env = o->env;
    size_t total = 0, bytes = 0;
    for (int i = 0; i < o->count; i++) {
        LS_TRY(state_bytes(o, &o->params[i], &bytes));
        for (int s = 0; s < o->state_count; s++) {
            if (!ls__add_size(total, bytes, &total)) {
                return ls__fail(LS_ERR_LIMIT, "%s: the state is too large", o->cls->name);
            }
        }
    }
    uint8_t *at = env->allocate(env, total ? total : STATE_ALIGN);
    if (at == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for %zu bytes of state", o->cls->name, total);
    }
    o->memory = at;
    o->memory_bytes = total ? total : STATE_ALIGN;
    memset(at, 0, o->memory_bytes);
    return place_state(o, at);
}

/* ---- stepping ----------------------------------------------------------------------------- */

/* Some parameters belong to an ls_ddp_new and some do not, which few programs mean. Once for each
 * process. */
static void warn_half_wrapped(const ls_optim *o, const char *inside, const char *outside)
{
    static atomic_bool warned;
    if (o->guest.runtime->world_size > 1 &&
        !atomic_exchange_explicit(&warned, true, memory_order_relaxed)) {
        LS__WARN(
            "ls_optim_step: parameter %s has a gradient of this rank only, because it does not "
            "belong to the ls_ddp_new that %s belongs to, so it drifts apart from the other "
            "ranks'; wrap the whole model after its last layer was added, unless each rank has "
            "a part of its own on purpose",
            outside, inside);
    }
}

/* Averaging by hand takes an exchange between two steps; a program without one has most likely
 * forgotten the wrapper. Once for each process: ranks may train models of their own on purpose. */
static void warn_unwrapped(ls_optim *o)
{
    static atomic_bool warned;
    const int ranks = o->guest.runtime->world_size;
    const bool exchanged = ls__self.exchanges != o->exchanges;
    if (ranks > 1 && !exchanged && !atomic_exchange_explicit(&warned, true, memory_order_relaxed)) {
        LS__WARN(
            "ls_optim_step: %d ranks train, but the gradients of this %s were not averaged: its "
            "module is not wrapped by ls_ddp_new, and no collective ran since the last step. "
            "Replicas of one model drift apart this way",
            ranks, o->cls->name);
    }
}

/* The next backward compares it (reduce/config_check.c). Only of an optimizer whose gradients are
 * averaged: a rank may have others by itself. They are numbered in the order of their first steps,
 * which is the same on all ranks. */
static void show_lr(ls_optim *o)
{
    if (o->lr_name[0] == '\0') {
        (void)snprintf(o->lr_name, sizeof o->lr_name, "the learning rate of %s #%d", o->cls->name,
                       ++o->guest.runtime->optimizers);
    }
    ls__config_set(o->lr_name, o->hyper[0]);
}

/* Gradients that belong to a reducer are final only when it says so. Neighbouring parameters
 * usually share an observer, which is then asked only once. */
static ls_status check_synchronised(ls_optim *o)
{
    ls__observer *asked = NULL;
    const char *inside = NULL, *outside = NULL;
    for (int i = 0; i < o->count; i++) {
        const ls__optim_param *param = &o->params[i];
        if (!ls_requires_grad(param->value)) {
            continue; /* frozen */
        }
        ls__observer *observer = ls__param_observer(param->value);
        if (observer != NULL && observer != asked && observer->usable) {
            LS_TRY(observer->usable(observer));
        }
        asked = observer;
        if (observer != NULL) {
            inside = inside == NULL ? param->name : inside;
        } else if (outside == NULL && ls__param_grad_present(param->value)) {
            outside = param->name;
        }
    }
    if (inside != NULL && outside != NULL) {
        warn_half_wrapped(o, inside, outside);
    }
    if (inside == NULL && outside != NULL) {
        warn_unwrapped(o);
    }
    o->exchanges = ls__self.exchanges;
    if (inside != NULL) {
        show_lr(o);
    }
    return LS_OK;
}

/* Updates one parameter; its version changes, so a graph that still needs the old values reports
 * it. */
static ls_status update(ls_optim *o, ls__optim_param *param)
{
    ls_status status = ls_tensor_status(param->value);
    if (status < 0) { /* the parameter's name may have died with the module */
        return ls__fail(
            status,
            "ls_optim_step: a parameter of this %s was freed, alone or with its module; "
            "free the optimizer first",
            o->cls->name);
    }
    ls_tensor *grad = ls_grad(param->value);
    if (grad == NULL) {
        return LS_OK; /* absent, which differs from zero: momentum does not decay */
    }
    float *value = ls_data(param->value);
    const float *gradient = ls_data(grad);
    if ((value == NULL || gradient == NULL) && param->count > 0) {
        return ls__fail_within(ls__self.status, "%s step: %s", o->cls->name, param->name);
    }
    LS_ASSERT(o->state_count == 0 || param->state[0] != NULL); /* allocate_state came first */
    param->steps++;
    o->steps_max = param->steps > o->steps_max ? param->steps : o->steps_max;
    o->cls->update(o, param, value, gradient);
    ls__tensor_changed(param->value);
    return LS_OK;
}

/* Nothing is updated unless all checks pass; a failure in the middle leaves earlier parameters
 * updated. */
static ls_status step(ls_optim *o)
{
    LS_TRY(ls__optim_check(o->cls->name, "lr", o->hyper[0], 0.0, INFINITY)); /* set_lr takes any */
    LS_TRY(check_synchronised(o));
    LS_TRY(allocate_state(o));
    for (int i = 0; i < o->count; i++) {
        LS_TRY(update(o, &o->params[i]));
    }
    return LS_OK;
}

/* Returns the error of a public call whose optimizer is NULL. */
static ls_status no_optim(const char *what)
{
    return ls__fail(LS_ERR_INVALID,
                    "%s: the optimizer is NULL; check what its constructor returned", what);
}

/* The activity record receives the number of updates, so that a report can tell how far this rank
 * has come. */
ls_status ls_optim_step(ls_optim *o)
{
    if (o == NULL) {
        return no_optim("ls_optim_step");
    }
    const ls__tensors *tensors = ls__tensors_get("ls_optim_step");
    if (tensors == NULL) {
        return ls__self.status;
    }
    if (o->guest.runtime != tensors->runtime) {
        return ls__fail(LS_ERR_STATE,
                        "ls_optim_step: this %s was made before ls_finalize; make a new "
                        "module and a new optimizer after ls_init",
                        o->cls->name);
    }
    o->kernels = tensors->kernels;
    ls__phase former = ls__activity_enter(LS__PHASE_OPTIMIZER, o->cls->name);
    ls_status status = step(o);
    if (status < 0) {
        (void)ls__fail_at_site(status);
    }
    ls__activity_leave(former);
    atomic_store_explicit(&tensors->runtime->activity->updates, (uint64_t)o->steps_max,
                          memory_order_relaxed);
    return status;
}

/* Makes gradients absent without writing to them; the next backward overwrites. */
void ls_optim_zero_grad(ls_optim *o)
{
    for (int i = 0; o != NULL && i < o->count; i++) {
        (void)ls__param_set_grad_present(o->params[i].value, false);
    }
}

/* The value is checked by the next step, because this function returns no status. */
void ls_optim_set_lr(ls_optim *o, double lr)
{
    if (o != NULL) {
        o->hyper[0] = lr;
    }
}

/* 0 for NULL. */
double ls_optim_lr(const ls_optim *o)
{
    return o != NULL ? o->hyper[0] : 0.0;
}

/* ---- state -------------------------------------------------------------------------------- */

/* Names are PyTorch's: "exp_avg.layers.0.weight" below the prefix, and the parameter's own step
 * count. */
static ls_status visit_param(ls_optim *o, ls__optim_param *param, const char *prefix,
                             const ls_state_visitor *visitor)
{
    char part[STATE_NAME_MAX], name[STATE_NAME_MAX];
    LS_TRY(ls__state_name(part, sizeof part, "step", param->name));
    LS_TRY(ls__state_name(name, sizeof name, prefix, part));
    LS_TRY(visitor->int64(visitor->self, name, &param->steps));
    ls_shape shape = ls_shape_of(param->value);
    for (int s = 0; s < o->state_count; s++) {
        LS_TRY(ls__state_name(part, sizeof part, o->cls->state_name[s], param->name));
        LS_TRY(ls__state_name(name, sizeof name, prefix, part));
        ls_state_tensor seen = {.dtype = LS_FLOAT32, .ndim = shape.ndim, .data = param->state[s]};
        memcpy(seen.global, shape.dim, (size_t)shape.ndim * sizeof shape.dim[0]);
        memcpy(seen.local, shape.dim, (size_t)shape.ndim * sizeof shape.dim[0]);
        LS_TRY(visitor->tensor(visitor->self, name, &seen));
    }
    return LS_OK;
}

/* State that no step has made yet is shown as zeros with step 0, which means the same, so that a
 * loading visitor finds the memory it needs. */
ls_status ls_optim_state(ls_optim *o, const char *prefix, const ls_state_visitor *visitor)
{
    char name[STATE_NAME_MAX];
    if (o == NULL) {
        return no_optim("ls_optim_state");
    }
    LS_TRY(ls__visitor_check(visitor, __func__));
    LS_TRY(allocate_state(o));
    for (int i = 0; i < o->cls->hyper_count; i++) {
        LS_TRY(ls__state_name(name, sizeof name, prefix, o->cls->hyper_name[i]));
        LS_TRY(visitor->float64(visitor->self, name, &o->hyper[i]));
    }
    for (int i = 0; i < o->count; i++) {
        LS_TRY(visit_param(o, &o->params[i], prefix, visitor));
    }
    return LS_OK;
}

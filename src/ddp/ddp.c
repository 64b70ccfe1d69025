/* DistributedDataParallel: a module around a module, a reducer, and the observer that joins them.
 *
 *   ls_forward(ddp, x)   ──▶ forward of the wrapped module; arms the observer
 *   ls_backward(loss)    ──▶ observer.begin   rank 0's buffers set out (buffers.c), then
 *                                             ls__reducer_begin: the parameters reached, the weight
 *                            observer.ready   a gradient is final: its bucket may go
 *                            observer.end     ls_reducer_wait: all buckets are averages;
 *                                             buffers are rank 0's
 *
 * Gradients are bound to bucket memory from the start, so nothing is copied on the way
 * (docs/design.md, D6). After the first synchronised backward the buckets are laid out anew in the
 * order in which gradients really became ready, before the optimizer has state (D9).
 */
#include <stdio.h>
#include <string.h>

#include <lockstep/ddp.h>
#include <lockstep/memory.h>

#include "autograd/param.h"
#include "base/assert.h"
#include "base/config.h"
#include "base/options.h"
#include "base/runtime.h"
#include "base/size.h"
#include "ddp/buffers.h"
#include "ddp/replicas.h"
#include "ddp/values.h"
#include "nn/module.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "tensor/shape.h"

/* The wrapper. `grads` is the state of the gradients between two backwards: usable by an optimizer,
 * accumulated on this rank only, or spoiled by a failure. */
typedef struct ddp {
    ls_module base;
    ls_module *inner;
    ls_runtime *runtime;
    const ls__env *env;
    ls__runtime_guest guest; /* tells that the runtime has ended */
    ls_group *group;         /* borrowed: the user's */
    ls_reducer *reducer;
    ls__observer observer;
    bool observing;
    ls_param *params; /* [param_count] those that require gradients */
    ls_param *frozen; /* [frozen_count] the others */
    uint8_t *present; /* [param_count] which gradients hold numbers as a backward begins */
    int param_count, frozen_count;
    size_t tables_bytes;
    bool sync;
    bool planned; /* buckets lie in the observed order, parameters beside them */
    ls__values values;
    ls__buffers buffers;
    bool synchronising; /* the backward under way does */
    enum { GRADS_USABLE, GRADS_LOCAL, GRADS_FAILED } grads;
} ddp;

static ls_status ddp_forward(ls_module *self, ls_tensor *const *inputs, int input_count,
                             ls_tensor **outputs, int output_count);
static void ddp_free(ls_module *self);

static const ls_module_class ddp_class =
    LS_MODULE_CLASS(.name = "ddp", .forward_many = ddp_forward, .free = ddp_free);

/* NULL for a module of another class, so that the public calls also work on unwrapped modules. */
static ddp *ddp_of(ls_module *module)
{
    return module != NULL && module->cls == &ddp_class ? (ddp *)module : NULL;
}

/* The same for getters. */
static const ddp *ddp_of_const(const ls_module *module)
{
    return module != NULL && module->cls == &ddp_class ? (const ddp *)module : NULL;
}

/* From the observer's callbacks back to the wrapper. */
static ddp *ddp_of_observer(ls__observer *observer)
{
    return LS__LIST_ITEM(observer, ddp, observer);
}

/* A parameter gets a gradient of its own when it begins to require gradients. One that did so when
 * the model was wrapped, was frozen since, and is thawed now, has its place in a bucket. */
static ls_status adopt(ddp *d, int i)
{
    LS_TRY(ls__param_observe(d->params[i].value, &d->observer, i));
    LS_TRY(ls__param_set_name(d->params[i].value, d->params[i].name));
    LS_TRY(ls__param_bind_grad(d->params[i].value, ls__reducer_grad(d->reducer, i)));
    return ls__param_set_grad_present(d->params[i].value, false);
}

/* Before a graph is recorded: gradients of this forward pass are averaged. */
static ls_status adopt_thawed(ddp *d)
{
    for (int i = 0; i < d->param_count; i++) {
        ls_tensor *value = d->params[i].value;
        if (ls_requires_grad(value) && ls__param_observer(value) != &d->observer) {
            LS_TRY(adopt(d, i));
        }
    }
    return LS_OK;
}

/* Takes and gives what the wrapped module does. A failure is in the outputs, which the wrapped
 * module's call has poisoned. Arms the observer: a backward is due, unless no graph is recorded or
 * this is a replay within a backward. */
static ls_status ddp_forward(ls_module *self, ls_tensor *const *inputs, int input_count,
                             ls_tensor **outputs, int output_count)
{
    ddp *d = (ddp *)self;
    const bool counts = !ls__self.no_grad && ls__self.replay == NULL; /* a replay is of backward */
    if (counts) {
        LS_TRY(adopt_thawed(d));
    }
    d->observer.armed = d->observer.armed || counts;
    if (counts) {
        ls__config_set("autocast", ls__self.autocast);
    }
    (void)ls_forward_many(d->inner, inputs, input_count, outputs, output_count);
    return LS_OK;
}

/* ---- the observer ------------------------------------------------------------------------- */

/* Why a parameter is not averaged, if it should be. */
static ls_status fail_outside(const char *name, const char *what)
{
    return ls__fail(
        LS_ERR_STATE,
        "ddp: parameter %s %s after ls_ddp_new, so its gradients would not be averaged; "
        "change the model before it is wrapped, or take the wrapper off with "
        "ls_ddp_unwrap, and make a new one and a new optimizer",
        name, what);
}

/* The first parameter of the tree that the wrapper does not know. */
static ls_status fail_added(ddp *d)
{
    int items = 0;
    const char *name = "of the model";
    const ls__module_item *item = ls__module_items(d->inner, &items);
    for (int i = 0; i < items; i++) {
        bool known = item[i].buffer;
        for (int k = 0; k < d->param_count && !known; k++) {
            known = d->params[k].value == item[i].value;
        }
        for (int k = 0; k < d->frozen_count && !known; k++) {
            known = d->frozen[k].value == item[i].value;
        }
        if (!known) {
            name = item[i].name;
            break;
        }
    }
    return fail_outside(name, "was added");
}

/* A gradient outside the buckets would stay local, and the replicas would drift apart. */
static ls_status check_params(ddp *d)
{
    if (ls_module_param_count(d->inner) != d->param_count + d->frozen_count) {
        return fail_added(d);
    }
    for (int i = 0; i < d->frozen_count; i++) {
        if (ls_requires_grad(d->frozen[i].value)) {
            return fail_outside(d->frozen[i].name, "began to require gradients");
        }
    }
    return LS_OK;
}

/* Runs before anything is computed. Buffers go first: from ls__reducer_begin on buckets may be
 * launched by any thread, and the order of operations must be the same on every rank. */
static ls_status on_begin(ls__observer *self, const ls__backward_info *info)
{
    ddp *d = ddp_of_observer(self);
    LS_TRY(check_params(d));
    for (int i = 0; i < d->param_count; i++) {
        d->present[i] =
            ls_requires_grad(d->params[i].value) && ls__param_grad_present(d->params[i].value);
    }
    d->synchronising = d->sync;
    d->observer.armed = false;
    d->grads = d->sync ? GRADS_FAILED : GRADS_LOCAL; /* until end says otherwise */
    if (d->sync) {
        LS_TRY(ls__buffers_start(&d->buffers));
    }
    return ls__reducer_begin(d->reducer,
                             LS_OPTIONS(ls_reducer_begin_options, .local = !d->sync,
                                        .used = info->used, .weighted = info->weighted,
                                        .weight = info->weight),
                             d->present);
}

/* The gradient lies in its bucket already; nothing is copied. */
static ls_status on_ready(ls__observer *self, int index)
{
    return ls_reducer_ready(ddp_of_observer(self)->reducer, index, NULL);
}

/* Called by ls__reducer_replan while both layouts exist; a gradient that is present is copied. */
static void move_grad(void *arg, int param, void *memory)
{
    ddp *d = arg;
    (void)ls__param_bind_grad(d->params[param].value, memory);
}

/* Lays buckets out in the order in which gradients became ready. With one rank there is nothing to
 * overlap. Two layouts exist for a while, so memory that activations have left is returned to the
 * system first. */
static ls_status lay_out(ddp *d)
{
    if (ls_group_size(d->group) == 1) {
        return LS_OK;
    }
    LS_TRY(ls_memory_release_cached());
    LS_TRY(ls__reducer_replan(d->reducer, move_grad, d));
    return ls__values_move(&d->values, d->env, d->group, d->reducer, d->params, d->param_count);
}

/* Waits for averages and buffers, and makes gradients present that only other ranks contributed to:
 * every rank's optimizer must step the same parameters. */
static ls_status on_end(ls__observer *self)
{
    ddp *d = ddp_of_observer(self);
    if (!d->synchronising) {
        return LS_OK;
    }
    LS_ASSERT(d->grads == GRADS_FAILED); /* since on_begin */
    LS_TRY(ls_reducer_wait(d->reducer));
    LS_TRY(ls__buffers_finish(&d->buffers));
    for (int i = 0; i < d->param_count; i++) {
        if (ls_reducer_used(d->reducer, i)) {
            LS_TRY(ls__param_set_grad_present(d->params[i].value, true));
        }
    }
    if (!d->planned) {
        d->planned = true;
        LS_TRY(lay_out(d));
    }
    d->grads = GRADS_USABLE;
    return LS_OK;
}

/* The peers wait for this rank's gradients, so the failure is reported to them at once. */
static void on_abort(ls__observer *self, ls_status status, const char *message)
{
    ddp *d = ddp_of_observer(self);
    d->observer.armed = false;
    d->grads = GRADS_FAILED;
    if (d->sync) {
        ls__reducer_abort(d->reducer, status, message);
    }
    (void)ls__buffers_finish(&d->buffers); /* on its way or not, the group has failed */
}

/* Asked by optimizers before they step. */
static ls_status on_usable(ls__observer *self)
{
    const ddp *d = ddp_of_observer(self);
    switch (d->grads) {
    case GRADS_USABLE:
        return LS_OK;
    case GRADS_LOCAL:
        return ls__fail(LS_ERR_STATE,
                        "ls_optim_step: the gradients were accumulated on this rank and never"
                        " averaged: every backward since the last step ran without synchronisation;"
                        " move the last ls_backward of the step out of LS_NO_SYNC, or call"
                        " ls_ddp_set_sync(net, true) before it");
    case GRADS_FAILED:
        break;
    }
    return ls__fail(LS_ERR_STATE, "ls_optim_step: the last ls_backward failed before all gradients"
                                  " were averaged; check its status and do not step");
}

/* ---- making ------------------------------------------------------------------------------- */

/* Registers the parameters with a new reducer. Collective; it fails on every rank when the models
 * differ. */
static ls_status make_reducer(ddp *d, const ls_ddp_options *options)
{
    const ls__env *env = d->env;
    size_t n = (size_t)d->param_count;
    size_t bytes = n * (sizeof(ls_reducer_param) + sizeof(ls__shape_text));
    ls_reducer_param *entries = env->allocate(env, bytes);
    if (entries == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for %zu parameters", n);
    }
    ls__shape_text *shapes = (ls__shape_text *)(void *)(entries + n);
    for (size_t i = 0; i < n; i++) {
        shapes[i] = ls__shape_print(ls_shape_of(d->params[i].value));
        entries[i] = (ls_reducer_param){.name = d->params[i].name,
                                        .shape = shapes[i].text,
                                        .count = ls_numel(d->params[i].value),
                                        .dtype = ls_dtype_of(d->params[i].value)};
    }
    ls_status status =
        ls_reducer_new(d->group, entries, d->param_count,
                       LS_OPTIONS(ls_reducer_options, .bucket_bytes = options->bucket_bytes,
                                  .first_bucket_bytes = options->first_bucket_bytes, .name = "ddp"),
                       &d->reducer);
    env->release(env, entries, bytes);
    if (status == LS_OK) {
        ls__reducer_set_overwrites(d->reducer);
    }
    return status;
}

/* Lists the parameters that require gradients in d->params and the others in d->frozen; both only
 * borrow names and tensors. Frozen parameters are broadcast once and not reduced. */
static ls_status list_params(ddp *d)
{
    const ls__env *env = d->env;
    int items = 0;
    if (!ls__module_items(d->inner, &items)) {
        return ls__self.status;
    }
    int all = ls_module_param_count(d->inner);
    size_t n = (size_t)all + 1;
    d->tables_bytes = n * (2 * sizeof *d->params + sizeof *d->present);
    d->params = env->allocate(env, d->tables_bytes);
    if (d->params == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for %d parameters", all);
    }
    d->frozen = d->params + n;
    d->present = (uint8_t *)(d->frozen + n);
    (void)ls_module_params(d->inner, d->params, all);
    for (int i = 0; i < all; i++) {
        if (!ls_requires_grad(d->params[i].value)) {
            d->frozen[d->frozen_count++] = d->params[i];
            continue;
        }
        if (ls__param_observer(d->params[i].value)) {
            return ls__fail(LS_ERR_STATE,
                            "parameter %s belongs to a ddp already; wrap a module once, and "
                            "modules that share parameters together",
                            d->params[i].name);
        }
        d->params[d->param_count++] = d->params[i];
    }
    if (d->param_count == 0) {
        return ls__fail(
            LS_ERR_INVALID,
            "the %s has no parameter that requires gradients; use it without ls_ddp_new",
            d->inner->cls->name);
    }
    return LS_OK;
}

/* From here on backward passes notify this wrapper, and gradients live in its buckets. A failure
 * half-way is undone by tear_down. */
static ls_status observe(ddp *d)
{
    LS_ASSERT(!d->observing && d->reducer != NULL);
    d->observer.param_count = d->param_count;
    d->observer.begin = on_begin;
    d->observer.ready = on_ready;
    d->observer.end = on_end;
    d->observer.abort = on_abort;
    d->observer.usable = on_usable;
    LS_TRY(ls__observer_add(&d->observer));
    d->observing = true;
    for (int i = 0; i < d->param_count; i++) {
        LS_TRY(adopt(d, i));
    }
    return LS_OK;
}

/* Collective. A rank whose module failed to build aborts the group, because its peers already wait
 * in make_reducer. */
static ls_status set_up(ddp *d, const ls_ddp_options *options)
{
    ls_status built = ls_module_status(d->inner);
    if (built < 0) {
        (void)ls_group_abort(d->group, ls_error_message());
        return built;
    }
    LS_TRY(list_params(d));
    LS_TRY(make_reducer(d, options));
    LS_TRY(ls__replicas_broadcast(d->inner, d->group));
    if (options->broadcast_buffers && ls_group_size(d->group) > 1) {
        LS_TRY(ls__buffers_init(&d->buffers, d->env, d->inner, ls__reducer_group(d->reducer)));
    }
    return observe(d);
}

/* After ls_finalize: groups, tensors and observers are gone, and only tables are left. */
static void free_tables(ddp *d)
{
    ls__values_drop(&d->values);
    ls__buffers_drop(&d->buffers);
    (void)ls_reducer_free(d->reducer);
    if (d->params != NULL) {
        d->env->release(d->env, d->params, d->tables_bytes);
    }
}

/* Undoes what set_up did, as far as it got, so that the wrapped module works without the wrapper
 * again. Gradients keep their numbers. */
static void tear_down(ddp *d)
{
    if (d->guest.runtime == NULL) {
        free_tables(d);
        return;
    }
    ls__runtime_leave(&d->guest);
    ls__values_free(&d->values, d->params, d->param_count);
    for (int i = 0; d->observing && i < d->param_count; i++) {
        (void)ls__param_bind_grad(d->params[i].value, NULL);
        (void)ls__param_observe(d->params[i].value, NULL, -1);
        (void)ls__param_set_name(d->params[i].value, NULL);
    }
    if (d->observing) {
        ls__observer_remove(&d->observer);
        d->observing = false;
    }
    ls__buffers_fini(&d->buffers);
    (void)ls_reducer_free(d->reducer);
    d->reducer = NULL;
    if (d->params != NULL) {
        d->env->release(d->env, d->params, d->tables_bytes);
        d->params = NULL;
    }
}

/* The class' destructor; the wrapped module is a child and is freed by its tree. */
static void ddp_free(ls_module *self)
{
    tear_down((ddp *)self);
}

/* Takes the module only on success. After a failure the caller still owns it. */
ls_module *ls_ddp_new(ls_module *module, ls_group *group, const ls_ddp_options *options)
{
    ls_runtime *runtime = ls__runtime_get("ls_ddp_new");
    if (runtime == NULL) {
        return NULL;
    }
    if (module == NULL || group == NULL) {
        /* The last error is most likely that of the module's constructor. */
        const bool failed = module == NULL && ls__self.status < 0;
        (void)ls__fail(LS_ERR_INVALID,
                       "ls_ddp_new: the %s is NULL; give the module to replicate and its group"
                       " (ls_world())%s%s%s",
                       module ? "group" : "module", failed ? " (the last error was: " : "",
                       failed ? ls_error_message() : "", failed ? ")" : "");
        (void)ls__fail_at_site(LS_ERR_INVALID);
        return NULL;
    }
    if (module->entries->parent) {
        (void)ls__fail(
            LS_ERR_STATE,
            "ls_ddp_new: the %s is part of a %s; wrap the whole model, or wrap it before "
            "it is added",
            ls__module_name(module), module->entries->parent->cls->name);
        (void)ls__fail_at_site(LS_ERR_STATE);
        return NULL;
    }
    LS__OPTIONS_OR(NULL, ls_ddp_options, given, options);
    ddp *d = ls_module_new(sizeof *d, &ddp_class);
    if (d == NULL) {
        return NULL;
    }
    d->inner = module;
    d->runtime = runtime;
    d->env = runtime->env;
    ls__runtime_enter(runtime, &d->guest);
    d->group = group;
    d->sync = true;
    ls_status status = set_up(d, &given);
    if (status < 0) {
        (void)ls__fail_within(status, "ls_ddp_new");
        (void)ls__fail_at_site(status);
        char message[LS__MESSAGE_MAX]; /* freeing may leave another text */
        memcpy(message, ls__self.message, sizeof message);
        ls_module_free(&d->base); /* without `module`: it was not added yet */
        (void)ls__fail_again(status, message);
        return NULL;
    }
    /* No name: a checkpoint of the wrapped model loads without the wrapper, and the other way
     * round. */
    (void)ls_module_add(&d->base, "", module);
    return &d->base;
}

/* ---- using -------------------------------------------------------------------------------- */

/* A module without a wrapper is returned as it is. */
ls_module *ls_ddp_module(ls_module *module)
{
    ddp *d = ddp_of(module);
    return d != NULL ? d->inner : module;
}

/* Parameters and gradients move to memory of their own; names that the wrapper gave out stay valid. */
ls_module *ls_ddp_unwrap(ls_module *module)
{
    ddp *d = ddp_of(module);
    if (d == NULL) {
        return module;
    }
    if (module->entries->parent != NULL) {
        (void)ls__fail(LS_ERR_STATE,
                       "ls_ddp_unwrap: the ddp is part of a %s; only a ddp that is not part of "
                       "another module can be taken off",
                       ls__module_name(module->entries->parent));
        return NULL;
    }
    return ls__module_unwrap(module);
}

/* Takes effect at the next backward; a module without a wrapper ignores it. */
ls_status ls_ddp_set_sync(ls_module *module, bool sync)
{
    ddp *d = ddp_of(module);
    if (d != NULL) {
        d->sync = sync;
    }
    return LS_OK;
}

/* A module without a wrapper always counts as synchronised. */
bool ls_ddp_sync(const ls_module *module)
{
    const ddp *d = ddp_of_const(module);
    return d == NULL || d->sync;
}

/* Those of the reducer: of the last synchronised backward. */
ls_status ls_ddp_get_stats(const ls_module *module, ls_reducer_stats *out)
{
    const ddp *d = ddp_of_const(module);
    if (d == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_ddp_get_stats: the module is not a ddp; give what ls_ddp_new returned");
    }
    return ls_reducer_get_stats(d->reducer, out);
}

/* SPDX-License-Identifier: Apache-2.0 */
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
#include "comm/backend/plugin_group.h"
#include "ddp/apart.h"
#include "ddp/buffers.h"
#include "ddp/values.h"
#include "ddp/wrapper.h"
#include "dist/agree.h"
#include "nn/batch_norm.h"
#include "nn/module.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "reduce/shards.h"
#include "reduce/table.h"
#include "tensor/shape.h"

static ls_status ddp_forward(ls_module *self, ls_tensor *const *inputs, int input_count,
                             ls_tensor **outputs, int output_count);
static void ddp_free(ls_module *self);

const ls_module_class ls__ddp_class = LS_MODULE_CLASS(.name = "ddp", .forward_many = ddp_forward,
                                                      .state = ls__ddp_state, .free = ddp_free);

/* From the observer's callbacks back to the wrapper. */
static ls__ddp *ddp_of_observer(ls__observer *observer)
{
    return LS__LIST_ITEM(observer, ls__ddp, observer);
}

static ls_status bind_grad(ls__ddp *d, int i, void *memory)
{
    ls_tensor *value = d->params[i].value;
    return ls__param_bind_grad(value, ls__ddp_copies(d, value) ? NULL : memory,
                               ls__reducer_present(d->reducer, i));
}

/* A parameter gets a gradient of its own when it begins to require gradients. One that did so when
 * the model was wrapped, was frozen since, and is thawed now, has its place in a bucket. */
static ls_status adopt(ls__ddp *d, int i)
{
    LS_TRY(ls__param_observe(d->params[i].value, &d->observer, i));
    LS_TRY(ls__param_set_name(d->params[i].value, d->params[i].name));
    LS_TRY(bind_grad(d, i, ls__reducer_grad(d->reducer, i)));
    return ls__param_set_grad_present(d->params[i].value, false);
}

ls_status ls__ddp_adopt_thawed(ls__ddp *d)
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
    ls__ddp *d = (ls__ddp *)self;
    const bool counts = !ls__self.no_grad && ls__self.replay == NULL; /* a replay is of backward */
    if (counts) {
        LS_TRY(ls__ddp_axes_check_inputs(d, inputs, input_count));
    }
    ls__ddp_axes_mark(d, inputs, input_count);
    if (counts) {
        LS_TRY(ls__ddp_adopt_thawed(d));
    }
    if (counts && d->remote != NULL) {
        LS_TRY(d->remote->pull(d));
    }
    if (counts) {
        atomic_store_explicit(&d->observer.armed, &ls__self, memory_order_relaxed);
    }
    if (counts && ls_group_size(d->group) > 1) {
        ls__config_set("autocast", ls__self.autocast);
    }
    const uint64_t begun = d->env->now_ns(d->env);
    const bool own = ls__unshard_forward_begin(d);
    (void)ls_forward_many(d->inner, inputs, input_count, outputs, output_count);
    const ls_status status = own ? ls__unshard_forward_end(d) : LS_OK;
    d->stats.forward_ns += counts ? d->env->now_ns(d->env) - begun : 0;
    return status;
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
static ls_status fail_added(ls__ddp *d)
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
static ls_status check_params(ls__ddp *d)
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

static bool look_at_params(ls__ddp *d)
{
    for (int i = 0; i < d->param_count; i++) {
        ls__host_view view;
        if (ls__host_view_of(d->params[i].value, &view) == LS_OK) {
            d->hashes[i] = ls__hash_bytes(0, view.data, view.bytes);
            ls__host_view_close(&view, false);
        }
    }
    return true;
}

/* Now and then the ranks compare their parameters (reduce/compare.c). */
static void hash_params(ls__ddp *d)
{
    if (ls__ddp_compares(d)) {
        d->hashed = d->zero.unshard.buckets != NULL ? ls__unshard_look(d) : look_at_params(d);
        ls__reducer_show_hashes(d->reducer, d->hashed ? d->hashes : NULL);
    }
}

/* An optimizer may step on the sums of a weighted local backward, which nothing else divides. */
static ls_status divide_local(ls__ddp *d)
{
    d->divided = d->local ? ls__reducer_weights(d->reducer) : 0.0;
    if (!(d->divided > 0.0)) {
        return LS_OK;
    }
    return ls__ddp_scale_local(d, 1.0 / d->divided);
}

/* A further micro-batch is added to sums. */
static ls_status undo_divide_local(ls__ddp *d)
{
    const double divided = d->divided;
    d->divided = 0.0;
    return ls__ddp_scale_local(d, divided > 0.0 ? divided : 1.0);
}

/* Whether the backward under way sends its gradients to servers. */
static bool pushes(const ls__ddp *d)
{
    return d->remote != NULL && d->sync;
}

/* Buffers go first: from ls__reducer_begin on buckets may be launched by any thread, and the order
 * of operations must be the same on every rank. */
ls_status ls__ddp_begin(ls__ddp *d, const ls_reducer_begin_options *options)
{
    d->passes++;
    d->weighted = options->weighted;
    LS_TRY(check_params(d));
    if (!options->local) {
        LS_TRY(ls__in_backward_begin(d));
    }
    for (int i = 0; i < d->param_count; i++) {
        if (!ls_requires_grad(d->params[i].value)) { /* frozen since */
            *ls__reducer_present(d->reducer, i) = false;
        }
    }
    d->synchronising = !options->local;
    d->backward_begun_ns = d->env->now_ns(d->env);
    atomic_store_explicit(&d->observer.armed, NULL, memory_order_relaxed);
    d->grads = d->synchronising ? GRADS_FAILED : GRADS_LOCAL; /* until end says otherwise */
    LS_TRY(ls__layout_begin(d));
    if (d->synchronising) {
        hash_params(d);
        LS_TRY(ls__buffers_start(&d->buffers, ls__reducer_first_live(d->reducer)));
    }
    LS_TRY(undo_divide_local(d));
    ls_reducer_begin_options given = *options;
    given.stream = ls__ddp_stream(d);
    LS_TRY(ls__ddp_carry_averages(d));
    LS_TRY(ls__reducer_begin(d->reducer, &given));
    ls__unshard_backward_begin(d, d->synchronising);
    return pushes(d) ? d->remote->begin(d, options->used) : LS_OK;
}

static void wait_for_device(const ls__ddp *d)
{
    if (d->param_count > 0) {
        ls__tensor_wait(d->params[0].value);
    }
}

/* Kernels write gradients that the reducer reads and writes on the host, unless it follows their
 * stream. */
static void wait_for_gradients(const ls__ddp *d)
{
    if (ls__ddp_stream(d) == NULL) {
        wait_for_device(d);
    }
}

/* Runs before anything is computed. */
static ls_status on_begin(ls__observer *self, const ls__backward_info *info)
{
    ls__ddp *d = ddp_of_observer(self);
    const bool local = d->remote != NULL || (d->shards ? !ls__shards_last(d->reducer) : !d->sync);
    ls__ddp_captured_begin(d, info, local);
    wait_for_gradients(d);
    return ls__ddp_begin(d, LS_OPTIONS(ls_reducer_begin_options, .local = local, .used = info->used,
                                       .weighted = info->weighted, .weight = info->weight));
}

/* The gradient lies in its bucket already, and nothing is copied, unless ls__ddp_copies says so. */
static ls_status on_ready(ls__observer *self, int index)
{
    const ls__ddp *d = ddp_of_observer(self);
    wait_for_gradients(d);
    LS_TRY(ls__ddp_carry_out(d, index));
    LS_TRY(ls_reducer_ready(d->reducer, index, ls__ddp_stream(d)));
    return pushes(d) ? d->remote->ready(ddp_of_observer(self), index)
                     : ls__reducer_poll(d->reducer);
}

/* Called by ls__reducer_replan while both layouts exist; a gradient that is present is copied. */
static void move_grad(void *arg, int param, void *memory)
{
    (void)bind_grad(arg, param, memory);
}

/* Lays buckets out in the order in which gradients became ready. With one rank there is nothing to
 * overlap. Two layouts exist for a while, so memory that activations have left is returned to the
 * system first. */
ls_status ls__ddp_lay_out(ls__ddp *d)
{
    if (d->planned || ls_group_size(d->group) == 1) {
        return LS_OK;
    }
    d->planned = true;
    LS_TRY(ls_memory_release_cached());
    wait_for_device(d); /* the memory of the former layout is given back */
    LS_TRY(ls__reducer_replan(d->reducer, move_grad, d));
    const bool parts = d->zero.stage > 2 && !d->on_host; /* Note [Parts only] in values.c */
    if (!parts && (d->zero.stage > 0 || !ls__ddp_is_apart(d->params[0].value))) {
        LS_TRY(ls__ddp_values_move(&d->values, d->env, d->reducer, d->params, d->param_count));
    }
    return ls__ddp_zero_begin(d);
}

/* Waits for averages and buffers. */
ls_status ls__ddp_end(ls__ddp *d)
{
    LS_TRY(ls__unshard_backward_end(d));
    if (!d->synchronising) {
        LS_TRY(divide_local(d));
        ls__layout_end(d);
        d->stats.backward_ns += d->env->now_ns(d->env) - d->backward_begun_ns;
        return pushes(d) ? d->remote->push(d) : LS_OK;
    }
    LS_ASSERT(d->grads == GRADS_FAILED); /* since on_begin */
    LS_TRY(ls__ddp_copies_check(d, ls_reducer_wait(d->reducer)));
    LS_TRY(ls__ddp_carry_back(d, NULL, d->param_count)); /* before the buckets move */
    LS_TRY(ls__buffers_finish(&d->buffers));
    const ls_reducer_stats *reduced = ls__reducer_figures(d->reducer);
    ls__step_ended(&d->stats, d->env,
                   &(ls__backward_waits){.backward = reduced->backward_seconds,
                                         .wire = reduced->comm_seconds,
                                         .exposed = reduced->exposed_seconds});
    const bool planned = d->planned || ls_group_size(d->group) == 1;
    LS_TRY(ls__ddp_lay_out(d));
    LS_TRY(ls__in_backward_end(d, !planned));
    d->grads = GRADS_USABLE;
    return LS_OK;
}

static ls_status on_end(ls__observer *self)
{
    ls__ddp *d = ddp_of_observer(self);
    wait_for_gradients(d);
    const ls_status status = ls__ddp_end(d);
    ls__ddp_captured_end(d);
    return status;
}

/* The peers wait for this rank's gradients, so the failure is reported to them at once. */
static void on_abort(ls__observer *self, ls_status status, const char *message)
{
    ls__ddp *d = ddp_of_observer(self);
    atomic_store_explicit(&d->observer.armed, NULL, memory_order_relaxed);
    d->grads = GRADS_FAILED;
    ls__reducer_record(d->reducer, false);
    ls__unshard_abort(d);
    ls__norm_sync_abort(ls__norm_sync_in(d->inner), message); /* they may be in its backward */
    if (d->remote != NULL) {
        d->remote->abort(d, message);
    }
    if (d->sync || d->shards) {
        ls__reducer_abort(d->reducer, status, message);
    }
    (void)ls__buffers_finish(&d->buffers); /* on its way or not, the group has failed */
}

/* Told by optimizers after they stepped. */
static void on_stepped(ls__observer *self, uint64_t ns)
{
    ddp_of_observer(self)->stats.optimizer_ns += ns;
}

static ls__rows *on_rows(ls__observer *self, int index)
{
    return ls__reducer_rows(ddp_of_observer(self)->reducer, index);
}

/* Asked by optimizers before they step. */
static ls_status on_usable(ls__observer *self)
{
    ls__ddp *d = ddp_of_observer(self);
    self->local = d->local;
    self->agrees = ls__reducer_agrees(d->reducer);
    switch (d->grads) {
    case GRADS_USABLE:
        return LS_OK;
    case GRADS_LOCAL:
        if (d->local) {
            d->diverged = true;
            return LS_OK;
        }
        if (d->shards) {
            return ls__layout_fail_early(d);
        }
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

/* All ranks of a group make and free the wrappers over it in the same order, so they agree. */
static int next_number(const ls__ddp *d)
{
    int most = 0;
    for (ls__observer *at = NULL; (at = ls__observer_after(at)) != NULL;) {
        const ls__ddp *other = at->begin == on_begin ? ddp_of_observer(at) : d;
        most = other->group == d->group && other->number > most ? other->number : most;
    }
    return most + 1;
}

typedef struct wrapper_name {
    char text[32];
} wrapper_name;

/* What reports call the wrapper and its groups: "ddp", "ddp 2", … */
static wrapper_name name_of(const ls__ddp *d)
{
    wrapper_name out = {"ddp"};
    if (d->number > 1) {
        (void)snprintf(out.text, sizeof out.text, "ddp %d", d->number);
    }
    return out;
}

/* Of a table whose rows the host can pick out, else 0. */
static int64_t rows_of(const ls__ddp *d, const ls_tensor *param)
{
    return ls__param_is_table(param) && d->on_host ? ls_shape_of(param).dim[0] : 0;
}

/* Registers the parameters with a new reducer. Collective; it fails on every rank when the models
 * differ. */
static ls_status make_reducer(ls__ddp *d, const ls_ddp_options *options)
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
        ls_ddp_place place = {.size = sizeof place};
        if (options->place != NULL) {
            options->place(options->place_arg, d->params[i].name, d->params[i].value, &place);
        }
        const ls_status placed = ls__ddp_axes_place(d, &d->params[i], &place);
        if (placed < 0) {
            env->release(env, entries, bytes);
            return placed;
        }
        d->sums[i] = place.reduce_group != NULL ? place.reduce_group : d->group;
        entries[i] = (ls_reducer_param){.name = d->params[i].name,
                                        .shape = shapes[i].text,
                                        .count = ls_numel(d->params[i].value),
                                        .dtype = ls_dtype_of(d->params[i].value),
                                        .reduce_group = place.reduce_group,
                                        .batch_group = place.batch_group,
                                        .divisor = place.divisor,
                                        .bucket = place.bucket,
                                        .rows = rows_of(d, d->params[i].value)};
    }
    const wrapper_name numbered = name_of(d);
    const char *name = options->name != NULL ? options->name : numbered.text;
    ls_status status = ls_reducer_new(
        d->group, entries, d->param_count,
        LS_OPTIONS(ls_reducer_options, .bucket_bytes = options->bucket_bytes,
                   .first_bucket_bytes = options->first_bucket_bytes, .name = name,
                   .mode = options->mode, .wire_dtype = options->wire_dtype, .backend = d->backend),
        &d->reducer);
    env->release(env, entries, bytes);
    if (status == LS_OK) {
        ls__reducer_set_overwrites(d->reducer);
    }
    return status;
}

/* Lists the parameters that require gradients in d->params and the others in d->frozen; both only
 * borrow names and tensors. Frozen parameters are broadcast once and not reduced. */
static ls_status list_params(ls__ddp *d)
{
    const ls__env *env = d->env;
    int items = 0;
    if (!ls__module_items(d->inner, &items)) {
        return ls__self.status;
    }
    int all = ls_module_param_count(d->inner);
    size_t n = (size_t)all + 1;
    d->tables_bytes = n * (2 * sizeof *d->params + sizeof *d->hashes + sizeof(ls_group *));
    d->params = env->allocate(env, d->tables_bytes);
    if (d->params == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for %d parameters", all);
    }
    d->frozen = d->params + n;
    d->hashes = (uint64_t *)(void *)(d->frozen + n);
    d->sums = (ls_group **)(void *)(d->hashes + n);
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
static ls_status observe(ls__ddp *d)
{
    LS_ASSERT(!d->observing && d->reducer != NULL);
    d->observer.param_count = d->param_count;
    d->observer.begin = on_begin;
    d->observer.ready = on_ready;
    d->observer.end = on_end;
    d->observer.abort = on_abort;
    d->observer.rows = on_rows;
    d->observer.usable = on_usable;
    d->observer.group = d->group;
    d->observer.stepped = on_stepped;
    LS_TRY(ls__observer_add(&d->observer));
    d->observing = true;
    for (int i = 0; i < d->param_count; i++) {
        LS_TRY(adopt(d, i));
        LS_TRY(ls__ddp_axes_note(d, &d->params[i], d->sums[i]));
    }
    ls__ddp_axes_count(d, true);
    return LS_OK;
}

/* The last error is most likely that of the module's constructor. */
static ls_status fail_null(const char *what)
{
    const bool failed = strcmp(what, "module") == 0 && ls__self.status < 0;
    return ls__fail(LS_ERR_INVALID,
                    "the %s is NULL; give the module to replicate and its group (ls_world())"
                    "%s%s%s",
                    what, failed ? " (the last error was: " : "", failed ? ls_error_message() : "",
                    failed ? ")" : "");
}

static ls_status check_module(ls_module *module)
{
    if (module == NULL) {
        return fail_null("module");
    }
    return module->entries->parent == NULL
               ? LS_OK
               : ls__fail(
                     LS_ERR_STATE,
                     "the %s is part of module %s; wrap the whole model, or wrap it before it is "
                     "added",
                     module->cls->name, module->entries->parent->cls->name);
}

/* What this rank can say by itself. Lists the parameters, and finds their backend. */
static ls_status check_call(ls__ddp *d, const ls_ddp_options *options)
{
    LS_TRY(check_module(d->inner));
    if (options->check_every < 0) {
        return ls__fail(LS_ERR_INVALID, "check_every is %d; give a number of steps, or 0 for never",
                        options->check_every);
    }
    LS_TRY(list_params(d));
    return ls__ddp_ask_backend(d, options);
}

typedef struct call_facts {
    const ls__ddp *d;
    const char *refused; /* the error; "": none */
} call_facts;

static void list_call(ls__facts *to, const void *arg)
{
    const call_facts *call = arg;
    const ls__ddp *d = call->d;
    char text[LS__MESSAGE_MAX + 16] = "right ones";
    if (call->refused[0] != '\0') {
        (void)snprintf(text, sizeof text, "wrong ones (%s)", call->refused);
    }
    ls__facts_text(to, "the arguments", text,
                   "give every rank its own copy of the whole model, and the same options");
    ls__facts_text(
        to, "the backend of gradients",
        d->backend != NULL ? d->backend : ls_group_backend(d->group),
        "put the model on the same kind of device on every rank, or give all of them the "
        "same ls_ddp_options.backend");
}

/* A call that is wrong on all ranks leaves the group usable; one that is wrong on some of them is
 * named by all, which would wait for those otherwise. */
static ls_status agree_on_call(const ls__ddp *d, ls_status status)
{
    char refused[LS__MESSAGE_MAX] = "";
    const ls__agree_peers peers = {.group = d->group, .who = "ddp"};
    if (status < 0) {
        memcpy(refused, ls_error_message(), sizeof refused);
    }
    const call_facts call = {d, refused};
    LS_TRY(ls_group_size(d->group) > 1 ? ls__agree(&peers, list_call, &call) : LS_OK);
    return status < 0 ? ls__fail_again(status, refused) : LS_OK;
}

/* Collective. A rank whose module failed to build aborts the group, because its peers already wait
 * for it. */
static ls_status set_up(ls__ddp *d, const ls_ddp_options *options)
{
    const ls_status built = d->inner != NULL ? ls_module_status(d->inner) : LS_OK;
    if (built < 0) {
        (void)ls_group_abort(d->group, ls_error_message());
        return built;
    }
    LS_TRY(agree_on_call(d, check_call(d, options)));
    LS_TRY(ls__ddp_settle_backend(d, options));
    d->number = next_number(d);
    LS_TRY(ls__ddp_axes_init(d, options));
    LS_TRY(make_reducer(d, options));
    const ls_status sent = ls__replicas_broadcast(d);
    if (sent < 0) { /* the peers wait in the broadcast */
        ls__reducer_abort(d->reducer, sent, ls_error_message());
        return sent;
    }
    LS_TRY(ls__ddp_zero_init(d, options));
    LS_TRY(ls__layout_set(d, options));
    if (options->broadcast_buffers && (d->shards || ls_group_size(d->group) > 1)) {
        LS_TRY(ls__buffers_init(&d->buffers, d->env, d->inner, ls__reducer_group(d->reducer)));
    }
    return observe(d);
}

/* After ls_finalize: groups, tensors and observers are gone, and only tables are left. */
static void free_tables(ls__ddp *d)
{
    if (d->remote != NULL) {
        d->remote->free(d);
    }
    ls__in_backward_drop(d);
    ls__ddp_zero_drop(d);
    ls__outer_drop(d);
    ls__average_log_drop(d);
    ls__ddp_values_drop(&d->values);
    ls__buffers_drop(&d->buffers);
    (void)ls_reducer_free(d->reducer);
    if (d->params != NULL) {
        d->env->release(d->env, d->params, d->tables_bytes);
    }
}

/* Undoes what set_up did, as far as it got, so that the wrapped module works without the wrapper
 * again. Gradients keep their numbers. */
static void tear_down(ls__ddp *d)
{
    if (d->guest.runtime == NULL) {
        free_tables(d);
        return;
    }
    if (d->remote != NULL) {
        d->remote->free(d);
    }
    ls__runtime_leave(&d->guest);
    if (d->observing) {
        wait_for_device(d); /* buckets are given back */
    }
    ls__in_backward_drop(d);
    ls__unshard_close(d);
    ls__ddp_zero_drop(d);
    ls__outer_drop(d);
    ls__average_log_drop(d);
    ls__ddp_values_free(&d->values, d->reducer, d->params, d->param_count);
    for (int i = 0; d->observing && i < d->param_count; i++) {
        (void)ls__param_bind_grad(d->params[i].value, NULL, NULL);
        (void)ls__param_observe(d->params[i].value, NULL, -1);
        (void)ls__param_set_name(d->params[i].value, NULL);
        (void)ls__param_set_summed(d->params[i].value, 0);
    }
    ls__ddp_axes_count(d, false);
    if (d->observing) {
        ls__observer_remove(&d->observer);
        d->observing = false;
    }
    ls__buffers_fini(&d->buffers);
    (void)ls_reducer_free(d->reducer);
    (void)ls__ddp_axes_fini(d);
    d->reducer = NULL;
    if (d->params != NULL) {
        d->env->release(d->env, d->params, d->tables_bytes);
        d->params = NULL;
    }
}

/* The class' destructor; the wrapped module is a child and is freed by its tree. */
static void ddp_free(ls_module *self)
{
    tear_down((ls__ddp *)self);
}

/* Takes the module only on success. After a failure the caller still owns it. */
ls_module *ls_ddp_new(ls_module *module, ls_group *group, const ls_ddp_options *options)
{
    ls_runtime *runtime = ls__runtime_get("ls_ddp_new");
    if (runtime == NULL) {
        return NULL;
    }
    if (group == NULL) {
        (void)ls__fail_within(fail_null("group"), "ls_ddp_new");
        (void)ls__fail_at_site(LS_ERR_INVALID);
        return NULL;
    }
    LS__OPTIONS_OR(NULL, ls_ddp_options, given, options);
    ls__ddp *d = ls_module_new(sizeof *d, &ls__ddp_class);
    if (d == NULL) {
        return NULL;
    }
    d->inner = module;
    d->runtime = runtime;
    d->env = runtime->env;
    ls__runtime_enter(runtime, &d->guest);
    d->group = group;
    d->sync = true;
    d->check_every = given.check_every;
    ls__ddp_captured_init(d);
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

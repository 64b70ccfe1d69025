/* SPDX-License-Identifier: Apache-2.0 */
/* Stepping: the checks of a step, and the parts that one call of a kernel updates together.
 *
 * Gradients are read where they live. After the first step nothing is allocated.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/param.h"
#include "base/assert.h"
#include "base/log.h"
#include "base/size.h"
#include "base/trace.h"
#include "device/captured.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

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

/* Optimizers of a kind are numbered in the order of their first steps, which is the same on all
 * ranks: each takes the first number that is free. A rank whose stage had no parameters has made
 * fewer. */
static void name_settings(ls_optim *o)
{
    const char *whose = o->staged ? "the stage's " : "";
    int number = 0;
    do {
        number++;
        (void)snprintf(o->lr_name, sizeof o->lr_name, "the learning rate of %s%s #%d", whose,
                       o->cls->name, number);
    } while (ls__config_has(o->lr_name));
    (void)snprintf(o->steps_name, sizeof o->steps_name, "the number of steps of %s%s #%d", whose,
                   o->cls->name, number);
    (void)snprintf(o->trained_name, sizeof o->trained_name,
                   "the number of parameters that %s #%d trains", o->cls->name, number);
}

/* The next backward compares it (dist/agree.c). Only of an optimizer whose gradients are
 * averaged, or whose parameters are a stage's: a rank may have others by itself. */
void ls__optim_show_lr(ls_optim *o)
{
    if (o->lr_name[0] == '\0') {
        name_settings(o);
    }
    ls__config_set(o->lr_name, o->hyper[0]);
}

/* Whether all ranks make the same steps. */
static bool steps_alike(const ls_optim *o)
{
    const ls__observer *observer = o->observer;
    return observer != NULL && !o->alone ? !observer->local && (observer->agrees || o->staged)
                                         : o->staged || o->divided != 0;
}

/* A rank that leaves out a step trains another model from then on. */
static void show_step(ls_optim *o)
{
    ls__optim_show_lr(o);
    ls__config_set(o->steps_name, (double)++o->steps_shown);
    if (!o->staged) { /* stages have parameters of their own */
        ls__config_set(o->trained_name, o->trained);
    }
}

/* Servers make all steps of an optimizer or none. */
static ls_status refuse_apart(const ls_optim *o, const char *name)
{
    return ls__fail(
        LS_ERR_UNSUPPORTED,
        "ls_optim_step: servers make steps of this %s, and parameter %s does not belong "
        "to the same wrapper; give its module an optimizer of its own",
        o->cls->name, name);
}

/* Whether one of the two has its steps made elsewhere. */
static bool is_apart(const ls__observer *first, const ls__observer *observer)
{
    return first != NULL && observer != NULL && observer != first &&
           (first->elsewhere || observer->elsewhere);
}

/* Gradients that belong to a reducer are final only when it says so. Neighbouring parameters
 * usually share an observer, which is then asked only once. */
static ls_status check_synchronised(ls_optim *o)
{
    ls__observer *asked = NULL;
    const char *inside = NULL, *outside = NULL, *apart = NULL;
    o->observer = NULL;
    o->trained = 0;
    for (int i = 0; i < o->count; i++) {
        const ls__optim_param *param = &o->params[i];
        if (!ls_requires_grad(param->value)) {
            continue; /* frozen */
        }
        ls__observer *observer = ls__param_observer(param->value);
        o->staged = o->staged || ls__param_is_staged(param->value);
        o->trained += ls__param_complete(param->value) == 0;
        if (observer != NULL && observer != asked && observer->usable) {
            LS_TRY(observer->usable(observer));
        }
        asked = observer;
        o->observer = o->observer != NULL ? o->observer : observer;
        apart = apart == NULL && is_apart(o->observer, observer) ? param->name : apart;
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
    if (o->observer != NULL && o->observer->elsewhere) {
        apart = apart != NULL ? apart : outside;
    }
    if (apart != NULL) {
        return refuse_apart(o, apart);
    }
    if (o->observer != NULL && o->observer->elsewhere) {
        return LS_OK;
    }
    o->divided = ls__optim_divided(o);
    o->alone = o->observer != NULL && ls_group_size(o->observer->group) == 1;
    if (steps_alike(o)) {
        show_step(o);
    } else if (inside != NULL && !o->alone) {
        ls__optim_show_lr(o);
    }
    return LS_OK;
}

/* Room for the parts of a call. Only a call of more ranges than any before allocates. */
static ls_status make_room(ls_optim *o, int64_t count)
{
    size_t bytes;
    if (count <= o->part_room) {
        return LS_OK;
    }
    ls__step_part *parts =
        ls__bytes_of(count, sizeof *parts, &bytes) ? realloc(o->parts, bytes) : NULL;
    if (parts == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to update %lld ranges", o->cls->name,
                        (long long)count);
    }
    o->parts = parts;
    o->part_room = count;
    return LS_OK;
}

/* Where a parameter's numbers and its gradient's lie. */
typedef struct operands {
    bool present; /* an absent gradient differs from zero: momentum does not decay */
    void *value;
    ls__real grad;
} operands;

static ls_status find_operands(const ls_optim *o, const ls__optim_param *param, operands *out)
{
    const ls_status status = ls_tensor_status(param->value);
    *out = (operands){0};
    if (status < 0) { /* the parameter's name may have died with the module */
        return ls__fail(
            status,
            "ls_optim_step: a parameter of this %s was freed, alone or with its module; "
            "free the optimizer first",
            o->cls->name);
    }
    ls_tensor *grad = ls_requires_grad(param->value) ? ls_grad(param->value) : NULL;
    if (grad == NULL) {
        return LS_OK;
    }
    ls__pool *on = o->on, *of_grad = o->on;
    *out = (operands){true,
                      ls__tensor_place(param->value, &on),
                      {ls__tensor_elements(grad, &of_grad), param->half}};
    if (on != o->on) {
        return ls__fail(
            LS_ERR_UNSUPPORTED,
            "%s step: %s is on device \"%s\", and the first parameter on device \"%s\"; "
            "keep a module on one device",
            o->cls->name, param->name, on->device->name, o->on->device->name);
    }
    LS_ASSERT((ls_dtype_of(grad) == LS_BFLOAT16) == param->half); /* as autograd makes them */
    if ((out->value == NULL || out->grad.at == NULL) && param->count > 0) {
        return ls__fail_within(ls__self.status, "%s step: %s", o->cls->name, param->name);
    }
    return LS_OK;
}

/* What the kernel receives of a range. */
static ls__step_part part_of(const ls_optim *o, const ls__optim_param *param, const operands *at,
                             const ls__optim_range *range)
{
    const int64_t kept = range->from - param->from; /* where its state lies */
    const size_t skipped =
        (size_t)range->from * (param->half ? sizeof(ls__bfloat16) : sizeof(float));
    void *value = (char *)at->value + skipped;
    ls__step_part part = {.count = range->count,
                          .param = param->half ? param->master + kept : value,
                          .rounded = param->half ? value : NULL,
                          .grad = {(char *)at->grad.at + skipped, at->grad.half},
                          .lr = ls__optim_lr_of(o, param),
                          .weight_decay = ls__optim_decay_of(o, param),
                          .step = param->steps + (param->round != o->round ? 1 : 0)};
    for (int s = 0; s < o->state_count; s++) {
        part.state[s] = param->state[s] + kept;
    }
    return part;
}

/* What of the range is this rank's. */
static ls__optim_range own_of(const ls__optim_param *param, const ls__optim_range *range)
{
    const int64_t end = range->from + range->count, own_end = param->from + param->own;
    const int64_t from = range->from > param->from ? range->from : param->from;
    return (ls__optim_range){range->param, from, (end < own_end ? end : own_end) - from};
}

/* The parameter's version changes, so a graph that still needs the old values reports it. */
static void count_step(ls_optim *o, ls__optim_param *param)
{
    if (!param->updated) {
        return;
    }
    if (param->round != o->round) {
        param->round = o->round;
        param->steps++;
    }
    o->steps_max = param->steps > o->steps_max ? param->steps : o->steps_max;
    ls__tensor_changed(param->value);
    ls__param_updated(param->value);
}

/* The activity record receives the number of updates, so that a report can tell how far this rank
 * has come. */
static void note_step(const ls_optim *o)
{
    if (LS__UNLIKELY(o->guest.runtime->trace != NULL)) {
        ls__trace_step(o->guest.runtime->trace, o->env->now_ns(o->env));
    }
    if (o->observer == NULL || !o->observer->elsewhere) {
        atomic_store_explicit(&o->guest.runtime->activity->updates, (uint64_t)o->steps_max,
                              memory_order_relaxed);
    }
}

/* ---- captured steps -------------------------------------------------------------------------- */

static ls__step_numbers numbers_of(const ls_optim *o, double lr, int64_t step)
{
    ls__step_numbers numbers = {.lr = lr, .step = step};
    for (int i = 0; i < 2 && o->cls->betas > 0; i++) {
        numbers.correction[i] = (float)(1.0 - pow(o->hyper[o->cls->betas + i], (double)step));
    }
    return numbers;
}

static ls_status renew_step(const ls__captured_number *n, void *slot)
{
    ls_optim *o = n->of;
    (void)slot;
    LS_TRY(ls__optim_check(o->cls->name, "lr", o->hyper[0], 0.0, INFINITY));
    if (steps_alike(o)) {
        show_step(o);
    }
    o->round++;
    return LS_OK;
}

static ls_status renew_part(const ls__captured_number *n, void *slot)
{
    ls_optim *o = n->of;
    ls__optim_param *param = &o->params[n->which];
    operands at;
    LS_TRY(find_operands(o, param, &at)); /* it may have been freed */
    param->updated = true;
    count_step(o, param);
    const ls__step_numbers numbers = numbers_of(o, ls__optim_lr_of(o, param), param->steps);
    memcpy(slot, &numbers, sizeof numbers);
    return LS_OK;
}

/* A run that failed before its step has counted none: of its parts the last one comes first. */
static void undo_part(const ls__captured_number *n)
{
    const ls_optim *o = n->of;
    ls__optim_param *param = &o->params[n->which];
    if (param->round == o->round) {
        param->steps--;
        param->round--;
    }
}

static void undo_step(const ls__captured_number *n)
{
    ls_optim *o = n->of;
    o->round--;
}

static ls_status renew_end(const ls__captured_number *n, void *slot)
{
    (void)slot;
    note_step(n->of);
    return LS_OK;
}

/* The step under way may be a captured one: then each replay begins here, … */
static void capture_begin(ls_optim *o)
{
    (void)ls__captured_number_add(
        &(ls__captured_number){.renew = renew_step, .undo = undo_step, .of = o}, NULL, 0);
    if (ls__self.captured != NULL && !ls__self.captured->gated) {
        (void)ls__captured_gate(&(ls__captured_result){0}, (ls__step_gate){.max_norm = INFINITY});
    }
}

/* … ends here, … */
static void capture_end(ls_optim *o)
{
    (void)ls__captured_number_add(&(ls__captured_number){.renew = renew_end, .of = o}, NULL, 0);
}

/* … and reads the numbers of each part from memory. */
static const ls__step_numbers *capture_part(ls_optim *o, int param, const ls__step_part *part)
{
    const ls__step_numbers now = numbers_of(o, part->lr, part->step);
    return ls__captured_number_add(
        &(ls__captured_number){.renew = renew_part, .undo = undo_part, .of = o, .which = param},
        &now, sizeof now);
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Appends a range to the parts of the call, unless its gradient is absent. */
static ls_status add_part(ls_optim *o, const ls__optim_range *range, int64_t *count)
{
    ls__optim_param *param = &o->params[range->param];
    operands at;
    LS_ASSERT(range->from >= 0 && range->count >= 0 && range->count <= param->count - range->from);
    LS_TRY(find_operands(o, param, &at));
    param->updated = at.present;
    const ls__optim_range own = own_of(param, range);
    if (!at.present || own.count <= 0) {
        return LS_OK;
    }
    LS_ASSERT(o->state_count == 0 || param->state[0] != NULL); /* ls__optim_begin came first */
    ls__step_part *part = &o->parts[(*count)++];
    *part = part_of(o, param, &at, &own);
    if (LS__UNLIKELY(ls__self.captured != NULL)) {
        part->varies = capture_part(o, range->param, part);
    }
    return LS_OK;
}

/* The tensors of the optimizer's runtime, which it may have outlived; NULL with the error set. */
static const ls__tensors *find_tensors(const ls_optim *o)
{
    const ls__tensors *tensors = ls__tensors_get("ls_optim_step");
    if (tensors != NULL && o->guest.runtime != tensors->runtime) {
        (void)ls__fail(LS_ERR_STATE,
                       "ls_optim_step: this %s was made before ls_finalize; make a new "
                       "module and a new optimizer after ls_init",
                       o->cls->name);
        return NULL;
    }
    return tensors;
}

ls_status ls__optim_begin(ls_optim *o)
{
    if (find_tensors(o) == NULL) {
        return ls__self.status;
    }
    LS_TRY(ls__optim_check(o->cls->name, "lr", o->hyper[0], 0.0, INFINITY)); /* set_lr takes any */
    LS_TRY(ls__optim_allocate_state(o));
    o->round++;
    return LS_OK;
}

ls_status ls__optim_step_ranges(ls_optim *o, const ls__optim_range *ranges, int64_t count)
{
    int64_t parts = 0;
    LS_ASSERT(o->round > 0); /* ls__optim_begin came first */
    LS_TRY(make_room(o, count));
    for (int64_t i = 0; i < count; i++) {
        LS_ASSERT(ranges[i].param >= 0 && ranges[i].param < o->count);
        LS_TRY(add_part(o, &ranges[i], &parts));
    }
    LS_ASSERT(parts <= o->part_room);
    o->cls->update(o, o->parts, parts);
    for (int64_t i = 0; i < count; i++) {
        count_step(o, &o->params[ranges[i].param]);
    }
    return LS_OK;
}

/* Reads nothing that ls_optim_set_lr or ls_optim_step of the loop writes. */
static ls__step_part part_at(const ls_optim *o, double lr, const ls__optim_place *place)
{
    const ls__optim_param *param = &o->params[place->param];
    const int64_t kept = place->from - param->from; /* where its state lies */
    LS_ASSERT(kept >= 0 && kept + place->count <= param->own);
    ls__step_part part = {.count = place->count,
                          .param = param->half ? param->master + kept : place->value,
                          .rounded = param->half ? place->value : NULL,
                          .grad = {place->grad, param->half},
                          .lr = lr * ls__optim_lr_scale(o, param),
                          .weight_decay = ls__optim_decay_of(o, param),
                          .step = place->step};
    for (int s = 0; s < o->state_count; s++) {
        part.state[s] = param->state[s] + kept;
    }
    return part;
}

ls_status ls__optim_step_at(ls_optim *o, double lr, const ls__optim_place *places, int64_t count)
{
    LS_TRY(ls__optim_check(o->cls->name, "lr", lr, 0.0, INFINITY));
    LS_TRY(make_room(o, count));
    for (int64_t i = 0; i < count; i++) {
        o->parts[i] = part_at(o, lr, &places[i]);
    }
    o->cls->update(o, o->parts, count);
    return LS_OK;
}

/* The other ranks give the elements that they have stepped. */
static ls_status share(const ls_optim *o)
{
    const ls__observer *last = NULL;
    for (int i = 0; i < o->count; i++) {
        const ls_tensor *value = o->params[i].value;
        ls__observer *observer = ls_requires_grad(value) ? ls__param_observer(value) : NULL;
        if (observer != NULL && observer != last && observer->owners != NULL) {
            LS_TRY(observer->share(observer));
        }
        last = observer;
    }
    return LS_OK;
}

/* Nothing is updated unless all checks pass. */
static ls_status step(ls_optim *o)
{
    LS_TRY(check_synchronised(o));
    if (o->observer != NULL && o->observer->elsewhere) {
        return LS_OK; /* on servers, perhaps at this moment on another thread */
    }
    LS_TRY(ls__optim_agree(o));
    LS_TRY(ls__optim_begin(o));
    capture_begin(o);
    LS_TRY(ls__optim_step_ranges(o, o->whole, o->count));
    capture_end(o);
    return share(o);
}

ls_status ls_optim_step(ls_optim *o)
{
    if (o == NULL) {
        return ls__optim_missing("ls_optim_step");
    }
    if (find_tensors(o) == NULL) {
        return ls__self.status;
    }
    const ls__phase former = ls__activity_enter(LS__PHASE_OPTIMIZER, o->cls->name);
    const uint64_t begun = o->env->now_ns(o->env);
    const uint64_t traced = ls__trace_begin();
    const ls_status status = step(o);
    if (status < 0) {
        (void)ls__fail_at_site(status);
    } else if (o->observer != NULL && o->observer->stepped != NULL) {
        o->observer->stepped(o->observer, o->env->now_ns(o->env) - begun);
    }
    ls__trace_end(traced, LS__TRACE_OPTIMIZER, o->cls->name, NULL);
    ls__activity_leave(former);
    note_step(o);
    return status;
}

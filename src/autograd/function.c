/* SPDX-License-Identifier: Apache-2.0 */
/* Differentiable operations of users. One application is a joint (joint.c), which owns the call:
 * the saved tensors and data, and the shapes that gradients must have. function_backward.c runs the
 * second half. */
#include <stddef.h>

#include <lockstep/function.h>

#include "autograd/arrays.h"
#include "autograd/function_call.h"
#include "autograd/joint.h"
#include "autograd/mode.h"
#include "tensor/op.h"

#define FUNCTION_BYTES_MAX 4096 /* a larger size was never set: the struct is uninitialised */

typedef struct context {
    const char *name;
} context;

static _Thread_local uint64_t collectives, gatherings;

uint64_t ls__function_collectives(void)
{
    return collectives;
}

void ls__function_collective_begun(bool gathers_too)
{
    collectives++;
    gatherings += gathers_too;
}

uint64_t ls__function_gatherings(void)
{
    return gatherings;
}

/* Programs that were built with an earlier header have a shorter struct. */
bool ls__function_is_collective(const ls_function *f)
{
    return f->size > offsetof(ls_function, collective) && f->collective;
}

static bool gathers(const ls_function *f)
{
    return f->size > offsetof(ls_function, gathers) && f->collective && f->gathers;
}

/* Fills call->input from the tensors in their present state. The records, NULL where an input was
 * left out, are valid only until the next operation. */
static ls_status read_inputs(ls_function_call *call, ls__record **records)
{
    for (int i = 0; i < call->input_count; i++) {
        LS_TRY(ls__arrays_input(call->tensors, call->function->name, call->inputs, i,
                                call->input_count, true, &records[i]));
        if (records[i] != NULL) {
            call->input[i] =
                (ls__function_signature){.shape = ls__record_shape(records[i]),
                                         .dtype = (ls_dtype)records[i]->dtype,
                                         .wants = records[i]->node != NULL && !ls__self.no_grad};
        }
    }
    return LS_OK;
}

/* Whether a graph is needed at all: some input requires gradients, and some output can have one. */
static bool wants_any(const ls__function_signature *list, int count)
{
    for (int i = 0; i < count; i++) {
        if (list[i].wants) {
            return true;
        }
    }
    return false;
}

/* ---- forward ------------------------------------------------------------------------------ */

/* Copies the results as records outside every graph, because the scope they live in is about to be
 * left. out[i] is never linked, and holds a reference to its storage. */
static ls_status take_results(ls_function_call *call, ls_tensor **results, ls__record *out)
{
    for (int i = 0; i < call->output_count; i++) {
        if (results[i] == NULL) {
            return ls__fail(LS_ERR_INVALID, "%s: its forward gave no output %d of %d",
                            call->function->name, i, call->output_count);
        }
        const ls__record *y =
            ls__record_sound(call->tensors, ls_contiguous(results[i]), call->function->name);
        if (y == NULL) {
            return ls__self.status;
        }
        out[i] = *y;
        out[i].node = NULL;
        ls__storage_ref(y->storage);
        const ls_dtype dtype = (ls_dtype)y->dtype;
        call->output[i] =
            (ls__function_signature){.shape = ls__record_shape(y),
                                     .dtype = dtype,
                                     .wants = dtype == LS_FLOAT32 || dtype == LS_BFLOAT16};
    }
    return LS_OK;
}

/* Runs the user's forward in a scope of its own, without recording a graph, and with the caller's
 * line for errors. Tensors made there are gone afterwards, except results and what was saved. */
static ls_status run_forward(ls_function_call *call, void *arg, ls__record *out)
{
    ls_tensor *results[LS_CALL_TENSORS_MAX] = {NULL};
    const ls__autograd_mode before = ls__autograd_mode_get();
    ls__self.no_grad = true;
    ls_scope *scope = ls_scope_enter();
    const ls__user_call user = ls__user_call_begin();
    collectives += ls__function_is_collective(call->function);
    gatherings += gathers(call->function);
    ls_status status = call->function->forward(call, call->inputs, call->input_count, results,
                                               call->output_count, arg);
    status = ls__user_call_end(&user, status, "forward of \"%s\"", call->function->name);
    if (status == LS_OK) {
        status = take_results(call, results, out);
    }
    ls_scope_leave(scope);
    ls__autograd_mode_set(&before);
    call->phase = LS__FUNCTION_BETWEEN;
    return status;
}

/* Links to where the gradients of the inputs go. NULL with the error set. */
static ls__storage *link_inputs(const ls_function_call *call, ls__record *const *inputs)
{
    ls__storage *storage = ls__links_new(call->tensors, call->input_count);
    if (storage == NULL) {
        return NULL;
    }
    ls__joint_links *links = storage->data;
    for (int i = 0; i < call->input_count; i++) {
        if (call->input[i].wants && !ls__edge_to(call->tensors, inputs[i], &links->at[i].edge)) {
            ls__storage_unref(storage);
            return NULL;
        }
    }
    return storage;
}

/* Puts the call into the graph: one joint, and a node for each output that can have a gradient. The
 * joint takes a reference to `own`, so saved tensors live as long as the graph. */
static ls_status record_call(ls__storage *own, ls__record *const *inputs, ls__record *const *y)
{
    ls_function_call *call = own->data;
    if (!wants_any(call->input, call->input_count) ||
        !wants_any(call->output, call->output_count)) {
        return LS_OK;
    }
    ls__storage *links = link_inputs(call, inputs);
    if (links == NULL) {
        return ls__self.status;
    }
    ls__tensor_node *joint = ls__joint_new(call->tensors, &ls__function_op, call->output_count,
                                           links, ls__storage_ref(own), sizeof(context));
    if (joint == NULL) {
        return ls__self.status;
    }
    ((context *)joint->context)->name = call->function->name;
    ls__joint_outputs_of(joint)->gathers = gathers(call->function);
    for (int i = 0; i < call->output_count; i++) {
        if (call->output[i].wants &&
            ls__joint_add_output(call->tensors, joint, i, y[i], NULL) == NULL) {
            return ls__self.status;
        }
    }
    return LS_OK;
}

/* Makes the results tensors of the surrounding scope. All references in `results` are dropped, also
 * after a failure. */
static ls_status wrap_results(const ls_function_call *call, ls__record *results, ls__record **y)
{
    ls_status status = LS_OK;
    for (int i = 0; i < call->output_count && results[i].storage != NULL; i++) {
        y[i] = NULL;
        if (status == LS_OK) {
            y[i] = ls__record_alias(call->tensors, &results[i]);
            status = y[i] != NULL ? LS_OK : ls__self.status;
        }
        ls__storage_unref(results[i].storage);
    }
    return status;
}

static ls_placing placing_of(const ls_function *f)
{
    return f->size >= offsetof(ls_function, placing) + sizeof f->placing ? f->placing
                                                                         : LS_PLACING_VARYING;
}

/* Results that vary: on each axis on which an input is placed. */
static uint32_t varying(const ls_function_call *call, ls__record *const *inputs)
{
    const ls__axes_in_force *axes = ls__axes_of(call->tensors);
    uint32_t word = 0;
    for (int a = 0; a < axes->count; a++) {
        for (int i = 0; i < call->input_count && axes->axis[a].size > 1; i++) {
            if (inputs[i] != NULL && ls__place_of(inputs[i], a) != LS__PLACED_UNPLACED) {
                word = ls__place_with(word, a, LS__PLACED_VARYING);
            }
        }
    }
    return word;
}

/* What varies has a gradient of its own on every rank, and what is invariant must not. */
static ls_status check_no_invariant(const ls_function_call *call, ls__record *const *inputs)
{
    const ls__axes_in_force *axes = ls__axes_of(call->tensors);
    char subject[160];
    for (int i = 0; i < call->input_count; i++) {
        for (int a = 0; call->input[i].wants && a < axes->count; a++) {
            if (axes->axis[a].size > 1 && ls__place_of(inputs[i], a) == LS__PLACED_INVARIANT) {
                return ls__fail(
                    LS_ERR_PLACEMENT,
                    "%s: on axis %s %s is invariant, and nothing says what the operation makes of "
                    "it; set ls_function.placing, or convert it before: ls_redistribute from "
                    "LS_INVARIANT to LS_REPLICATED",
                    call->function->name, axes->axis[a].name,
                    ls__place_subject(inputs[i], i + 1, subject, sizeof subject));
            }
        }
    }
    return LS_OK;
}

/* The rule of operations in general, for the inputs that one can have. */
static ls_status place_by_rule(const ls_function_call *call, ls__record *const *inputs,
                               ls__record *y, bool pointwise)
{
    ls__call as = {.name = call->function->name,
                   .tensors = call->tensors,
                   .count = call->input_count,
                   .grad = wants_any(call->input, call->input_count)};
    if (as.count > LS__INPUTS_MAX) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "function \"%s\": %d inputs, and placements follow at most %d; place its "
                        "results by LS_PLACING_BY_CALLER",
                        call->function->name, as.count, LS__INPUTS_MAX);
    }
    memcpy(as.in, inputs, (size_t)as.count * sizeof as.in[0]);
    as.follows.how = pointwise ? LS__FOLLOW_ELEMENTWISE : LS__FOLLOW_UNKNOWN;
    ls__call_place(&as, y);
    return as.failed == NULL ? LS_OK : ls__self.status;
}

static ls_status place_results(const ls_function_call *call, ls__record *const *inputs,
                               ls__record *const *y)
{
    const ls_placing placing = placing_of(call->function);
    const uint32_t word = varying(call, inputs);
    if (placing == LS_PLACING_VARYING) {
        LS_TRY(check_no_invariant(call, inputs));
    }
    for (int i = 0; i < call->output_count; i++) {
        if (word != 0 && placing != LS_PLACING_BY_CALLER) {
            LS_TRY(place_by_rule(call, inputs, y[i], placing == LS_PLACING_POINTWISE));
        }
        if (placing != LS_PLACING_POINTWISE) {
            y[i]->place = word;
        }
    }
    return LS_OK;
}

/* The inputs are read twice: their signatures before forward, for ls_function_needs_grad, and their
 * records again after it, because forward may have freed or changed one. */
static ls_status apply_call(ls__storage *own, void *arg, ls__record **y)
{
    ls_function_call *call = own->data;
    ls__record *inputs[LS_CALL_TENSORS_MAX];
    ls__record results[LS_CALL_TENSORS_MAX] = {{.storage = NULL}};
    LS_TRY(read_inputs(call, inputs));
    const ls_status ran = run_forward(call, arg, results);
    const ls_status wrapped = wrap_results(call, results, y); /* also drops what a failure left */
    LS_TRY(ran);
    LS_TRY(wrapped);
    LS_TRY(read_inputs(call, inputs));
    call->inputs = NULL;
    LS_TRY(record_call(own, inputs, y));
    return ls__axes_of(call->tensors) != NULL ? place_results(call, inputs, y) : LS_OK;
}

/* The size is checked first: a struct that was not filled with LS_FUNCTION may hold anything. */
static ls_status check_function(const ls_function *f)
{
    if (f == NULL || f->size < offsetof(ls_function, collective) || f->size > FUNCTION_BYTES_MAX) {
        return ls__fail(LS_ERR_INVALID,
                        "function: %s; fill an ls_function with LS_FUNCTION, which sets its size",
                        f == NULL ? "the ls_function is NULL"
                                  : "the size is not that of an ls_function");
    }
    if (f->name == NULL || f->forward == NULL || f->backward == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "function \"%s\": it needs a name, a forward and a backward",
                        f->name != NULL ? f->name : "");
    }
    return LS_OK;
}

/* `own` is shared with the joint; without a graph it dies here, and with it what forward saved. */
static ls_status apply(ls__tensors *tensors, const ls_function *f, ls_tensor *const *inputs,
                       int input_count, ls__record **y, int output_count, void *arg)
{
    ls__storage *own = ls__function_call_new(tensors, f, inputs, input_count, output_count);
    if (own == NULL) {
        return ls__self.status;
    }
    const ls_status status = apply_call(own, arg, y);
    ls__storage_unref(own);
    return status < 0 ? ls__fail_at_site(status) : LS_OK;
}

/* On failure every output is a tensor that carries the error, so that a caller may check only at
 * the end. */
ls_status ls_function_apply_many(const ls_function *f, ls_tensor *const *inputs, int input_count,
                                 ls_tensor **outputs, int output_count, void *arg)
{
    ls__call call;
    ls__record *y[LS_CALL_TENSORS_MAX];
    ls_status status = check_function(f);
    if (status == LS_OK) {
        status = ls__arrays_check(f->name, inputs, input_count, outputs, output_count);
    }
    if (status < 0) {
        (void)ls__fail_at_site(status);
    } else if (!ls__call_begin(&call, f->name, 0, NULL)) {
        status = ls__self.status;
    } else {
        status = apply(call.tensors, f, inputs, input_count, y, output_count, arg);
    }
    return ls__arrays_finish(&call, status, y, outputs, output_count);
}

/* The case of one input and one output; a failure is in the returned tensor. */
ls_tensor *ls_function_apply(const ls_function *f, ls_tensor *x, void *arg)
{
    ls_tensor *y = NULL;
    (void)ls_function_apply_many(f, &x, 1, &y, 1, arg);
    return y;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The record of one application of a user's operation, and its two functions' access to it. */
#include "autograd/function_call.h"

#include <string.h>

#include "tensor/fill.h"

/* Runs when the last reference is dropped: by the graph, or by `apply` when no graph was
 * recorded. */
static void call_fini(ls__storage *storage)
{
    const ls_function_call *call = storage->data;
    for (int i = 0; i < call->saved_count; i++) {
        const ls__function_saved *s = ls__function_saved_at(call, i);
        ls__storage_unref(s->record.storage);
        ls__node_unref(s->check.leaf);
        ls__storage_unref(call->saved[i]);
    }
    ls__storage_unref(call->copy);
    if (call->free_data != NULL) {
        call->free_data(call->data);
    }
}

/* One block of memory holds the struct and the signatures; its end runs call_fini. */
ls__storage *ls__function_call_new(ls__tensors *tensors, const ls_function *function,
                                   ls_tensor *const *inputs, int input_count, int output_count)
{
    const size_t signatures = (size_t)(input_count + output_count) * sizeof(ls__function_signature);
    const size_t bytes = sizeof(ls_function_call) + signatures;
    ls__storage *storage = ls__storage_new(&tensors->host, bytes);
    if (storage == NULL) {
        return NULL;
    }
    memset(storage->data, 0, bytes);
    ls_function_call *call = storage->data;
    call->function = function;
    call->tensors = tensors;
    call->inputs = inputs;
    call->input_count = input_count;
    call->output_count = output_count;
    call->input = (ls__function_signature *)(void *)(call + 1);
    call->output = call->input + input_count;
    storage->fini = call_fini;
    return storage;
}

/* ---- what the user's functions call ------------------------------------------------------- */

/* A call is valid only while one of its two functions runs; users may have kept the pointer. */
static ls_status check_phase(const ls_function_call *call, const char *what,
                             ls__function_phase phase)
{
    if (call == NULL || call->phase != phase) {
        return ls__fail(LS_ERR_STATE,
                        "%s: call it inside the %s of a function, with the ls_function_call that "
                        "was passed to it",
                        what, phase == LS__FUNCTION_FORWARD ? "forward" : "backward");
    }
    return LS_OK;
}

/* Saves the tensor as it is now, with its version: backward refuses it if it was changed in place
 * since. A parameter's leaf and an argument's number are kept for that error text. */
ls_status ls_function_save(ls_function_call *call, ls_tensor *t)
{
    LS_TRY(check_phase(call, "function_save", LS__FUNCTION_FORWARD));
    const ls__record *record = ls__record_sound(call->tensors, t, "function_save");
    if (record == NULL) {
        return ls__self.status;
    }
    if (call->saved_count == LS_FUNCTION_SAVED_MAX) {
        return ls__fail(LS_ERR_LIMIT, "%s: it saves more than %d tensors; ls_concat some",
                        call->function->name, LS_FUNCTION_SAVED_MAX);
    }
    LS_TRY(ls__fill_settle(record->storage));
    ls__storage *room = ls__storage_new(&call->tensors->host, sizeof(ls__function_saved));
    if (room == NULL) {
        return ls__self.status;
    }
    call->saved[call->saved_count++] = room;
    ls__function_saved *s = room->data;
    *s = (ls__function_saved){.record = *record,
                              .check.version = ls__storage_version(record->storage)};
    ls__storage_ref(record->storage);
    if (record->node != NULL && ls__node_is_leaf(record->node)) {
        s->check.leaf = ls__node_ref(record->node); /* its name is for reports */
    }
    for (int i = 0; i < call->input_count; i++) {
        s->check.argument = call->inputs[i] == t ? i + 1 : s->check.argument;
    }
    return LS_OK;
}

/* From here on the call owns `data`, and frees it with `free_data` when the graph dies. */
ls_status ls_function_save_pointer(ls_function_call *call, void *data,
                                   void (*free_data)(void *data))
{
    LS_TRY(check_phase(call, "function_save_pointer", LS__FUNCTION_FORWARD));
    if (call->data != NULL) {
        return ls__fail(LS_ERR_STATE,
                        "%s: it has saved data already; put all of it into one struct",
                        call->function->name);
    }
    call->data = data;
    call->free_data = free_data;
    return LS_OK;
}

/* Copies the bytes; the copy lives as long as the graph. */
ls_status ls_function_save_data(ls_function_call *call, const void *data, size_t bytes)
{
    LS_TRY(check_phase(call, "function_save_data", LS__FUNCTION_FORWARD));
    ls__storage *copy = ls__storage_new(&call->tensors->host, bytes);
    if (copy == NULL) {
        return ls__self.status;
    }
    const ls_status status = ls_function_save_pointer(call, copy->data, NULL);
    if (status < 0) {
        ls__storage_unref(copy);
        return status;
    }
    memcpy(copy->data, data, bytes);
    call->copy = copy;
    return LS_OK;
}

/* Lets a forward skip the work that only a gradient nobody asked for would need. */
bool ls_function_needs_grad(const ls_function_call *call, int input)
{
    return call != NULL && input >= 0 && input < call->input_count && call->input[input].wants;
}

/* Returns a new handle in the present scope for each call; errors come back as a tensor that
 * carries them. */
ls_tensor *ls_function_saved(ls_function_call *call, int i)
{
    ls_status status = check_phase(call, "function_saved", LS__FUNCTION_BACKWARD);
    if (status == LS_OK && (i < 0 || i >= call->saved_count)) {
        status = ls__fail(LS_ERR_INVALID, "%s: it saved %d tensors, and asks for number %d",
                          call->function->name, call->saved_count, i);
    }
    ls__tensors *tensors = ls__tensors_get("function_saved");
    if (tensors == NULL) {
        return ls__poison_fixed(ls__self.status);
    }
    if (status < 0) {
        return ls__poison(tensors);
    }
    ls__record *record = ls__record_alias(tensors, &ls__function_saved_at(call, i)->record);
    return record != NULL ? ls__handle(record) : ls__poison(tensors);
}

void *ls_function_data(const ls_function_call *call)
{
    return call != NULL ? call->data : NULL;
}

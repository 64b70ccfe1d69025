/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of every operation; see op.h. */
#include "tensor/op.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "base/trace.h"
#include "device/captured.h"
#include "tensor/fill.h"

/* Operations run where their first input lies, or where tensors are made from nothing. */
static void run_on(ls__call *call, ls__pool *on)
{
    call->on = on;
    call->k = on->k;
    call->stream = on->stream;
}

/* False with call->failed set when input i lies elsewhere than those before it. */
static bool same_device(ls__call *call, int i)
{
    const ls__pool *on = call->in[i]->storage->pool;
    if (call->on == on) {
        return true;
    }
    (void)ls__call_fail(call, LS_ERR_INVALID,
                        "argument %d is on device \"%s\", and one before it on device \"%s\"; "
                        "bring one of them there with ls_to",
                        i + 1, on->device->name, call->on->device->name);
    return false;
}

/* The first step of every operation: decodes the inputs into call->in, notes whether a node is
 * due and starts the meter. The first input that is not usable ends the call: an invalid handle
 * is this call's error, a poisoned tensor passes its own on. Everything after that is skipped
 * because `failed` is set. */
static bool begin_call(ls__call *call, const char *name, int count, ls_tensor *const *inputs,
                       unsigned optional)
{
    LS_ASSERT(count >= 0 && count <= LS__INPUTS_MAX);
    *call = (ls__call){.name = name, .count = count};
    call->tensors = ls__tensors_get(name);
    if (call->tensors == NULL) {
        call->failed = ls__poison_fixed(ls__self.status);
        return false;
    }
    call->meter = ls__self.meter;
    call->traced = ls__self.modules == 0 ? ls__trace_begin() : 0;
    if (LS__UNLIKELY(call->meter != NULL)) {
        call->metered = ls__meter_enter(call->meter);
    }
    for (int i = 0; i < count; i++) {
        if (inputs[i] == NULL && (optional >> i & 1u)) {
            continue;
        }
        ls__record *record = ls__record_of(call->tensors, inputs[i], name, count > 1 ? i + 1 : 0);
        if (record == NULL) {
            (void)ls__fail_at_site(ls__self.status);
            call->failed = ls__poison(call->tensors);
            return false;
        }
        if (record->status < 0) { /* passed on with its first error */
            (void)ls_tensor_status(inputs[i]);
            call->failed = ls__poison(call->tensors);
            return false;
        }
        call->in[i] = record;
        if (call->on == NULL) {
            run_on(call, record->storage->pool);
        } else if (LS__UNLIKELY(!same_device(call, i))) {
            return false;
        }
        call->grad = call->grad || (record->node != NULL && !ls__self.no_grad);
    }
    if (call->on == NULL) {
        run_on(call, call->tensors->made);
    }
    return true;
}

bool ls__call_begin_optional(ls__call *call, const char *name, int count, ls_tensor *const *inputs,
                             unsigned optional)
{
    if (!begin_call(call, name, count, inputs, optional)) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        if (call->in[i] != NULL && LS__UNLIKELY(ls__fill_settle(call->in[i]->storage) < 0)) {
            (void)ls__fail_at_site(ls__fail_within(ls__self.status, "%s", name));
            call->failed = ls__poison(call->tensors);
            return false;
        }
    }
    return true;
}

/* A parameter may be marked while its values are not drawn yet. */
bool ls__call_begin_unread(ls__call *call, const char *name, ls_tensor *input)
{
    return begin_call(call, name, 1, &input, 0);
}

/* No argument may be NULL; ls__call_begin_optional allows it. */
bool ls__call_begin(ls__call *call, const char *name, int count, ls_tensor *const *inputs)
{
    return ls__call_begin_optional(call, name, count, inputs, 0);
}

/* The poisoned tensor of a call whose options were refused, with the error that is set already,
 * before there is a call. A fixed one where there is no runtime to own it. */
ls_tensor *ls__call_refused(void)
{
    const ls_status refused = ls__fail_at_site(ls__self.status);
    ls__tensors *tensors = ls__tensors_get("options"); /* no runtime: that is the error then */
    return tensors != NULL ? ls__poison(tensors) : ls__poison_fixed(refused);
}

/* Ends the call with a message, "name: …", and returns the poison. The message is written twice:
 * once for this thread's error, with the caller's line before it, and once into the poison,
 * which carries it to whoever looks at the result. */
ls_tensor *ls__call_fail(ls__call *call, ls_status status, const char *format, ...)
{
    char text[LS__MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)ls__fail(status, "%s: %s", call->name, text);
    (void)ls__fail_at_site(status);
    call->failed = ls__poison(call->tensors);
    return call->failed;
}

/* For failures of functions that set the thread's error themselves: the first one becomes the
 * poison. */
static void call_failed(ls__call *call)
{
    if (call->failed == NULL) {
        call->failed = ls__poison(call->tensors);
    }
}

/* The same with the operation's name and the caller's line before the message. */
static void call_failed_within(ls__call *call)
{
    (void)ls__fail_within(ls__self.status, "%s", call->name);
    (void)ls__fail_at_site(ls__self.status);
    call_failed(call);
}

/* Widens the bfloat16 inputs of `which` and decides `narrow`. A widened input belongs to the
 * call, so it is freed in ls__call_finish; its cast is a node of the graph and outlives it. */
bool ls__call_floats(ls__call *call, unsigned which)
{
    unsigned given = 0;
    for (int i = 0; i < call->count; i++) {
        if (call->in[i] == NULL || !(which >> i & 1u)) {
            continue;
        }
        given |= 1u << i;
        if (call->in[i]->dtype == LS_BFLOAT16) {
            ls__record *wide = ls__call_cast(call, call->in[i], LS_FLOAT32);
            if (call->widened[i] != NULL) { /* autocast's */
                ls__record_free(call->tensors, call->widened[i]);
            }
            call->widened[i] = wide;
            if (wide == NULL) {
                return false;
            }
            call->in[i] = call->widened[i];
            call->halves |= 1u << i;
        }
    }
    call->narrow = given != 0 && call->halves == given;
    return true;
}

/* Checks all inputs that were given. Reported by argument, because the user sees arguments and
 * not edges. False with call->failed set. */
bool ls__call_float_types(ls__call *call)
{
    for (int i = 0; i < call->count; i++) {
        if (call->in[i] != NULL && !ls__carries_gradients((ls_dtype)call->in[i]->dtype)) {
            (void)ls__call_fail(call, LS_ERR_INVALID,
                                "argument %d is %s %s; it takes float32 or bfloat16: convert "
                                "with ls_cast",
                                i + 1, ls_dtype_name((ls_dtype)call->in[i]->dtype),
                                ls__record_print(call->in[i]).text);
            return false;
        }
    }
    return true;
}

/* Halves are widened first; any other type fails the call. */
bool ls__call_float32(ls__call *call)
{
    return ls__call_floats(call, ~0u) && ls__call_float_types(call);
}

/* False with call->failed set when input i is not an index. Values are checked later, by
 * ls__call_indices. */
bool ls__call_index(ls__call *call, int i)
{
    LS_ASSERT(i >= 0 && i < call->count && call->in[i] != NULL);
    ls_dtype dtype = (ls_dtype)call->in[i]->dtype;
    if (dtype == LS_INT32 || dtype == LS_INT64) {
        return true;
    }
    (void)ls__call_fail(call, LS_ERR_INVALID,
                        "argument %d is %s %s; it takes indices of int32 or int64", i + 1,
                        ls_dtype_name(dtype), ls__record_print(call->in[i]).text);
    return false;
}

/* A scalar has a message of its own: a range of dimensions from 0 to -1 would explain nothing. */
bool ls__call_dim(ls__call *call, int dim, int *out)
{
    if (ls__shape_dim(call->in[0], dim, out)) {
        return true;
    }
    int ndim = call->in[0]->ndim;
    if (ndim == 0) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "dimension %d of a scalar, which has none; ls_reshape it to [1]", dim);
        return false;
    }
    (void)ls__call_fail(call, LS_ERR_INVALID, "dimension %d of %s; give %d to %d", dim,
                        ls__record_print(call->in[0]).text, -ndim, ndim - 1);
    return false;
}

/* False with call->failed set. */
bool ls__call_alike(ls__call *call)
{
    const ls__record *a = call->in[0], *b = call->in[1];
    if (ls__shape_equal(a, b)) {
        return true;
    }
    (void)ls__call_fail(call, LS_ERR_INVALID, "%s against %s; both must have the same shape",
                        ls__record_print(a).text, ls__record_print(b).text);
    return false;
}

/* *out is the shape of the result. False with call->failed set. */
bool ls__call_broadcast(ls__call *call, ls_shape *out)
{
    const ls__record *a = call->in[0], *b = call->in[1];
    if (ls__shape_broadcast(ls__record_shape(a), ls__record_shape(b), out)) {
        return true;
    }
    (void)ls__call_fail(call, LS_ERR_INVALID,
                        "%s with %s: shapes align at the right and every pair of sizes must be "
                        "equal or contain a 1; ls_reshape one of them",
                        ls__record_print(a).text, ls__record_print(b).text);
    return false;
}

/* A new record with memory of its own, in the innermost scope; NULL with call->failed set.
 * Memory is not cleared: each operation writes every element of its result. */
ls__record *ls__call_output(ls__call *call, ls_shape shape, ls_dtype dtype)
{
    if (call->failed != NULL) {
        return NULL;
    }
    ls__record *out = ls__record_new(call->tensors);
    if (out == NULL) {
        call_failed(call);
    } else if (!ls__record_set_shape(out, shape, dtype, call->name)) {
        (void)ls__fail_at_site(ls__self.status);
        call_failed(call);
    } else {
        out->storage = ls__storage_new(call->on, (size_t)out->numel * ls_dtype_size(dtype));
        if (out->storage == NULL) {
            (void)ls__fail_within(ls__self.status, "%s: %s", call->name,
                                  ls__shape_print(shape).text);
            (void)ls__fail_at_site(ls__self.status);
            call_failed(call);
        }
    }
    if (call->failed != NULL && out != NULL) {
        ls__record_free(call->tensors, out);
        out = NULL;
    }
    return out;
}

/* Another record over the same elements; the caller changes shape and strides. The node comes
 * along with the view (graph.h, Note [Views make no nodes]), but not where gradients are
 * switched off. */
ls__record *ls__call_view(ls__call *call, const ls__record *of)
{
    if (call->failed != NULL) {
        return NULL;
    }
    const bool open = !call->grad || ls__graph_open(of);
    ls__record *out = open ? ls__record_alias(call->tensors, of) : NULL;
    if (out == NULL) {
        call_failed_within(call);
    } else if (!call->grad) {
        ls__node_unref(out->node);
        out->node = NULL;
    }
    return out;
}

/* Makes the node of `out`, links it to the scope and gives it edges to the inputs; the caller
 * fills its context and saves operands. The scope owns the node from the moment it is linked, so
 * a failure after that leaks nothing. Inputs that were left out have no edge. */
ls__tensor_node *ls__call_record(ls__call *call, const ls__op *op, ls__record *out,
                                 size_t context_bytes)
{
    if (!call->grad || call->failed != NULL || out == NULL) {
        return NULL;
    }
    LS_ASSERT(call->count <= LS__EDGES_MAX && ls__record_contiguous(out));
    ls__tensor_node *node = ls__scope_alloc(call->tensors, sizeof *node);
    void *context =
        node != NULL && context_bytes > 0 ? ls__scope_alloc(call->tensors, context_bytes) : NULL;
    if (node == NULL || (context_bytes > 0 && context == NULL)) {
        call_failed(call);
        return NULL;
    }
    node->op = op;
    node->context = context;
    node->number =
        atomic_fetch_add_explicit(&call->tensors->nodes_made, 1, memory_order_relaxed) + 1;
    call->node = node->number;
    node->numel = out->numel;
    node->dtype = out->dtype;
    node->offset = out->offset;
    node->file = out->file;
    node->line = out->line;
    ls_scope *scope = ls__scope_current(call->tensors);
    node->next = scope->nodes; /* from here on the scope releases it */
    scope->nodes = node;
    for (int i = 0; i < call->count; i++) {
        if (call->in[i] != NULL && !ls__edge_to(call->tensors, call->in[i], &node->edge[i])) {
            call_failed_within(call);
            return NULL;
        }
    }
    out->node = node;
    return node;
}

/* Its kernels report to nobody, so each operation looks whether one has failed so far. */
static void check_device(ls__call *call)
{
    if (call->failed == NULL && ls__device_status(call->on->device) < 0) {
        call_failed_within(call);
    }
}

/* The last step of every operation; takes `out` and returns its handle, or the poison. Order
 * matters: the result is narrowed while its wide form is alive, the meter sees the inputs before
 * the widened ones are freed, and a view with channels first is made last. */
ls_tensor *ls__call_finish(ls__call *call, ls__record *out)
{
    LS_ASSERT(call->failed != NULL || out != NULL);
    if (LS__UNLIKELY(call->on != NULL && !call->on->device->host)) {
        check_device(call);
    } else if (LS__UNLIKELY(ls__self.captured != NULL) && call->on != NULL) {
        ls__captured_refuse("an operation on the processor, which no replay makes again");
    }
    if (LS__UNLIKELY(ls__axes_of(call->tensors) != NULL) && call->failed == NULL) {
        ls__call_place(call, out);
    }
    if (call->narrow && call->failed == NULL && out->dtype == LS_FLOAT32) {
        ls__record *wide = out;
        out = ls__call_cast(call, wide, LS_BFLOAT16);
        ls__record_free(call->tensors, wide);
    }
    if (LS__UNLIKELY(call->meter != NULL) && call->failed == NULL) {
        call->meter->forward(call->meter, call, out, ls__meter_leave(call->meter, &call->metered));
    }
    ls__trace_end(call->traced, LS__TRACE_FORWARD, call->name, NULL);
    for (int i = 0; i < call->count; i++) {
        if (call->widened[i] != NULL) {
            ls__record_free(call->tensors, call->widened[i]);
        }
    }
    if (call->failed != NULL && out != NULL) {
        ls__record_free(call->tensors, out);
    }
    if (call->failed == NULL && call->channels_last) {
        ls__record_see_channels_first(out);
    }
    return call->failed != NULL ? call->failed : ls__handle(out);
}

/* ---- images, see Note [Channels last] ------------------------------------------------------ */

/* The record is copied into the call, because another user of the tensor still sees [N,C,H,W]. */
void ls__call_see_channels_last(ls__call *call, int i)
{
    LS_ASSERT(call->in[i]->ndim >= 2);
    call->seen[i] = *call->in[i];
    call->in[i] = &call->seen[i];
    ls__record_see_channels_last(&call->seen[i]);
    call->channels_last = true;
}

/* For operations that go element by element: sees all inputs as [N,H,W,C], or none, since
 * operands that lie in different orders are brought together by their strides. */
void ls__call_as_stored(ls__call *call)
{
    for (int i = 0; i < call->count; i++) {
        if (!ls__record_channels_last(call->in[i]) || !ls__shape_equal(call->in[0], call->in[i])) {
            return;
        }
    }
    for (int i = 0; i < call->count; i++) {
        ls__call_see_channels_last(call, i);
    }
}

/* ---- row-major operands ------------------------------------------------------------------- */

/* Uninitialised workspace, dropped by the caller. Empty if the call has failed or fails now;
 * callers may go on, since ls__call_finish returns the failure. */
ls__dense ls__call_memory(ls__call *call, size_t bytes)
{
    ls__dense dense = {0};
    if (call->failed != NULL) {
        return dense;
    }
    dense.storage = ls__storage_new(call->on, bytes);
    if (dense.storage == NULL) {
        call_failed(call);
    } else {
        dense.data = dense.storage->data;
    }
    return dense;
}

/* Row-major elements of input i: its own memory, referenced, or a copy; empty where the input
 * was not given or the call has failed. The caller drops it. A parameter that is read in place
 * is noted as a leaf, so that it is saved by its identity and version and not held. */
ls__dense ls__call_dense(ls__call *call, int i)
{
    LS_ASSERT(i >= 0 && i < LS__INPUTS_MAX);
    const ls__record *in = call->in[i];
    ls__dense dense = {0};
    if (call->failed != NULL || in == NULL) {
        return dense;
    }
    size_t element = ls_dtype_size((ls_dtype)in->dtype);
    if (ls__record_contiguous(in)) {
        dense.storage = ls__storage_ref(in->storage);
        dense.data = ls__record_data(in);
        dense.offset = in->offset * (int64_t)element;
        dense.leaf = in->node != NULL && ls__node_is_leaf(in->node) ? in->node : NULL;
        dense.argument = i + 1;
        return dense;
    }
    dense = ls__call_memory(call, (size_t)in->numel * element);
    if (dense.storage != NULL) {
        call->k->gather(dense.data, ls__record_data(in), ls__record_strided(in), in->ndim, in->dim,
                        element, call->stream);
    }
    return dense;
}

/* A reference to the memory of a result or of an input that is read by strides; ls__dense_drop
 * gives it back. */
ls__dense ls__dense_of_output(const ls__record *out)
{
    return (ls__dense){.storage = ls__storage_ref(out->storage),
                       .offset = out->offset * (int64_t)ls_dtype_size((ls_dtype)out->dtype),
                       .data = ls__record_data(out)};
}

ls__dense ls__call_stage(ls__call *call, const ls__record *out)
{
    ls__dense stage = {0};
    if (out == NULL) {
        return stage;
    }
    if (call->on->device->host) {
        stage.data = ls__record_data(out);
        return stage;
    }
    stage.storage = ls__storage_new(&call->tensors->host,
                                    (size_t)out->numel * ls_dtype_size((ls_dtype)out->dtype));
    if (stage.storage == NULL) {
        call_failed(call);
    } else {
        stage.data = stage.storage->data;
    }
    return stage;
}

void ls__call_staged(ls__call *call, const ls__record *out, ls__dense *stage)
{
    if (stage->storage != NULL) {
        ls__captured_refuse("an operation copies from the program's memory");
        ls__device_write(call->on->device, ls__record_data(out), stage->data,
                         (size_t)out->numel * ls_dtype_size((ls_dtype)out->dtype));
    }
    ls__dense_drop(stage);
}

/* Gives the reference back; allowed for an empty one, and twice. */
void ls__dense_drop(ls__dense *dense)
{
    ls__storage_unref(dense->storage);
    *dense = (ls__dense){0};
}

/* Takes a reference of its own, so the caller still drops `dense`. The version is noted with the
 * operand: a change in place before backward is an error that names this input. */
void ls__node_save(ls__tensor_node *node, int slot, const ls__dense *dense)
{
    if (node == NULL || dense->storage == NULL) {
        return;
    }
    LS_ASSERT(slot >= 0 && slot < LS__SAVED_MAX && node->saved[slot].storage == NULL);
    ls__tensor_saved *saved = &node->saved[slot];
    saved->offset = dense->offset;
    saved->version = ls__storage_version(dense->storage);
    saved->argument = dense->argument;
    if (dense->leaf != NULL) {
        saved->leaf = ls__node_ref(dense->leaf);
    } else {
        saved->storage = ls__storage_ref(dense->storage);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of a captured step: as any program's, watched, recorded, and replays
 * (device/captured.h, Note [Captured steps]).
 *
 *     memory of the device   numbers | results | one to spare | outputs     slots
 *                            inputs, and what the recorded run took: blocks of its own
 */
#include <lockstep/captured.h>
#include <lockstep/random.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "device/captured.h"
#include "tensor/fill.h"
#include "tensor/gradients.h"
#include "tensor/op.h"

/* What must be as in the recorded run; compared as bytes. */
typedef struct captured_key {
    int64_t dim[LS_CAPTURED_MAX][LS_DIMS_MAX];
    int64_t ndim[LS_CAPTURED_MAX], dtype[LS_CAPTURED_MAX], place[LS_CAPTURED_MAX];
    int64_t refused[LS_CAPTURED_MAX]; /* on another device, or with a graph of its own */
    int64_t inputs, outputs, autocast, no_grad, sample_offset;
    uint64_t seed, moves;
    const ls__pool *on;
} captured_key;

struct ls_captured {
    ls_step_fn step;
    void *arg;
    ls__runtime_guest guest;
    captured_key key; /* of the recorded run, or of those before it */
    char held[256];   /* why the last run that could have been captured was not, though others may
                       be; "": there was none */
    int alike;        /* runs with this key before the recorded one: made, watched */
    int64_t replays;
    uint64_t recordings;
    ls__captured noted;
    ls__pool *on;
    void *graph; /* NULL: nothing is recorded */
    ls__storage *slots, *input[LS_CAPTURED_MAX];
    char *heard; /* results, the spare one and outputs, on the host */
};

/* One run. */
typedef struct captured_run {
    ls__tensors *tensors;
    ls_tensor *const *inputs;
    const ls__record *in[LS_CAPTURED_MAX];
    double *values;
    captured_key key;
    int64_t sample_offset; /* with which it begins */
} captured_run;

/* ---- making ------------------------------------------------------------------------------- */

static void forget_recorded(ls_captured *c)
{
    if (c->graph != NULL) {
        c->on->device->capture->free(c->on->device, c->graph);
    }
    c->graph = NULL;
    ls__captured_gradients_forget(&c->noted);
    ls__captured_forget(&c->noted);
    for (int i = 0; i < LS_CAPTURED_MAX; i++) {
        ls__storage_unref(c->input[i]);
        c->input[i] = NULL;
    }
    ls__storage_unref(c->slots);
    c->slots = NULL;
    free(c->heard);
    c->heard = NULL;
    if (c->noted.blocks != NULL) {
        ls__pool_blocks_give_up(c->on, c->noted.blocks);
    }
    c->noted.blocks = NULL;
    c->alike = 0;
}

/* The ranks have failed: no communicator ends before the graph that uses it. Keeps the error. */
static void forget_failed(ls_captured *c)
{
    char text[LS__MESSAGE_MAX];
    const ls_status status = ls__self.status;
    if (c->noted.ranks == NULL || c->noted.ranks->status(c->noted.ranks) == LS_OK) {
        return;
    }
    memcpy(text, ls__self.message, sizeof text);
    forget_recorded(c);
    (void)ls__fail_again(status, text);
}

static void runtime_ended(ls__runtime_guest *guest)
{
    forget_recorded(LS__LIST_ITEM(guest, ls_captured, guest));
}

ls_captured *ls_captured_new(ls_step_fn step, void *arg)
{
    ls__tensors *tensors = ls__tensors_get("captured_new");
    if (tensors == NULL || step == NULL) {
        if (tensors != NULL) {
            (void)ls__fail(LS_ERR_INVALID, "captured_new: the step is NULL; give its function");
        }
        return NULL;
    }
    ls_captured *c = calloc(1, sizeof *c);
    if (c == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "a captured step: no memory");
        return NULL;
    }
    c->step = step;
    c->arg = arg;
    c->guest.ended = runtime_ended;
    ls__runtime_enter(tensors->runtime, &c->guest);
    return c;
}

void ls_captured_free(ls_captured *captured)
{
    if (captured != NULL) {
        forget_recorded(captured);
        ls__runtime_leave(&captured->guest);
        free(captured);
    }
}

const char *ls_captured_why(const ls_captured *captured)
{
    return captured == NULL || captured->graph != NULL ? ""
           : captured->noted.why[0] != '\0'            ? captured->noted.why
                                                       : captured->held;
}

int64_t ls_captured_replays(const ls_captured *captured)
{
    return captured != NULL ? captured->replays : 0;
}

/* ---- contexts of micro-batches --------------------------------------------------------------- */

/* Without an undo: draws of a round that has ended are not taken back. */
static ls_status renew_context(const ls__captured_number *n, void *slot)
{
    (void)slot;
    ls_step_begin(*(const ls_step_context *)n->of);
    return LS_OK;
}

/* The offset is an argument of the recorded kernels. */
static bool has_offset(const ls__captured_number *n)
{
    return ((const ls_step_context *)n->of)->sample_offset == n->which;
}

ls_status ls_captured_step_begin(const ls_step_context *context)
{
    if (ls__tensors_get("captured_step_begin") == NULL) {
        return ls__self.status;
    }
    if (context == NULL) {
        return ls__fail(LS_ERR_INVALID, "captured_step_begin: the context is NULL; give its "
                                        "address, which each run of the step reads");
    }
    ls_step_begin(*context);
    ls__captured_context(context);
    if (ls__self.captured != NULL) {
        (void)ls__captured_number_add(&(ls__captured_number){.renew = renew_context,
                                                             .of = (void *)(uintptr_t)context,
                                                             .which = context->sample_offset,
                                                             .fits = has_offset},
                                      NULL, 0);
    }
    return LS_OK;
}

/* ---- a run as any program's ----------------------------------------------------------------- */

/* Output i of the step; NULL with the error set. */
static const ls__record *output_of(ls__tensors *tensors, ls_tensor *output, int i)
{
    char what[48];
    (void)snprintf(what, sizeof what, "captured_run: output %d of the step", i + 1);
    const ls__record *record = ls__record_of(tensors, output, what, 0);
    if (record == NULL) {
        return NULL;
    }
    if (record->status < 0) {
        record = ls__record_sound(tensors, output, what);
    } else if (record->numel != 1 || record->dtype != LS_FLOAT32) {
        (void)ls__fail(LS_ERR_INVALID, "%s is %s %s; give float32 of one element", what,
                       ls_dtype_name((ls_dtype)record->dtype), ls__record_print(record).text);
        return NULL;
    }
    return record;
}

static ls_status call_step(ls_captured *c, ls_tensor *const *inputs, ls_tensor **outputs)
{
    ls__captured *outer = ls__captured_begin(&c->noted);
    const ls__user_call call = ls__user_call_begin();
    const ls_status status =
        ls__user_call_check(&call, c->step(c->arg, inputs, outputs), "captured_run: the step");
    ls__captured_end(outer);
    return status;
}

static ls_status run_plainly(ls_captured *c, const captured_run *run)
{
    ls_tensor *outputs[LS_CAPTURED_MAX] = {0};
    LS_SCOPE;
    LS_TRY(call_step(c, run->inputs, outputs));
    ls__captured *watching = ls__captured_pause();
    ls_status status = LS_OK;
    for (int i = 0; i < run->key.outputs && status == LS_OK; i++) {
        status = output_of(run->tensors, outputs[i], i) != NULL
                     ? ls_item(outputs[i], &run->values[i])
                     : ls__self.status;
    }
    ls__captured_resume(watching);
    return status;
}

/* What is known by its number alone, before the step and after it. */
typedef struct step_counts {
    uint64_t exchanges; /* between ranks */
    uint64_t contexts;  /* that have begun */
} step_counts;

static step_counts counts_of(const captured_run *run)
{
    return (step_counts){ls__self.exchanges, run->tensors->runtime->draw_round};
}

static void refuse_unnoted(const ls_captured *c, const captured_run *run, step_counts before)
{
    const step_counts now = counts_of(run);
    if (now.exchanges - before.exchanges != c->noted.noticed) {
        ls__captured_refuse("ranks exchange something");
    } else if (c->noted.adds_up != NULL) {
        ls__captured_refuse("ls_ddp_new averages none of the gradients that it leaves; make all "
                            "backwards of a step in the function");
    }
    if (now.contexts - before.contexts != c->noted.contexts) {
        ls__captured_refuse("ls_step_begin, whose context would be that of every run; call "
                            "ls_captured_step_begin");
    }
}

static ls_status run_watched(ls_captured *c, const captured_run *run)
{
    const step_counts before = counts_of(run);
    ls__captured_enter(&c->noted, false);
    const ls_status status = run_plainly(c, run);
    refuse_unnoted(c, run, before);
    ls__captured_leave();
    c->alike = status == LS_OK ? 2 : c->alike;
    return status;
}

/* ---- replays -------------------------------------------------------------------------------- */

static size_t slots_bytes(int64_t count)
{
    return (size_t)count * LS__CAPTURED_SLOT;
}

/* What is read after a replay begins behind the numbers. */
static int64_t heard_count(const ls_captured *c)
{
    return c->noted.result_room + 1 + c->key.outputs;
}

static void copy_inputs(ls_captured *c, const captured_run *run)
{
    for (int i = 0; i < run->key.inputs; i++) {
        const ls__record *in = run->in[i];
        if (in->numel > 0) {
            c->on->k->gather(c->input[i]->data, ls__record_data(in), ls__record_strided(in),
                             in->ndim, in->dim, ls_dtype_size((ls_dtype)in->dtype), c->on->stream);
        }
    }
}

/* Other ranks may be the ones that failed: with them the values that were read do not count. */
static ls_status status_of_ranks(const ls_captured *c)
{
    return c->noted.ranks != NULL ? c->noted.ranks->status(c->noted.ranks) : LS_OK;
}

/* What the device has found and computed. *check: the one that has failed. */
static ls_status hear(ls_captured *c, const captured_run *run, int *check)
{
    ls__captured *n = &c->noted;
    const ls__device *device = c->on->device;
    if (n->result_count == 0 && run->key.outputs == 0) {
        return ls__device_status(device);
    }
    ls__device_read(device, c->heard, n->memory + slots_bytes(n->number_room),
                    slots_bytes(heard_count(c)));
    LS_TRY(status_of_ranks(c));
    LS_TRY(ls__device_status(device));
    const char *outputs = c->heard + slots_bytes(n->result_room + 1);
    for (int i = 0; i < run->key.outputs; i++) {
        float value;
        memcpy(&value, outputs + slots_bytes(i), sizeof value);
        run->values[i] = (double)value;
    }
    return ls__captured_take(n, c->heard, check);
}

/* With its results and outputs, if there are any. The copy has read the values when it returns. */
static ls_status start(ls_captured *c, const captured_run *run)
{
    ls__captured *n = &c->noted;
    const ls__device *device = c->on->device;
    ls_status status = LS_OK;
    int failed = -1; /* the check, if one has */
    if (n->number_count > 0) {
        c->on->k->copy(n->memory, n->values, slots_bytes(n->number_count), c->on->stream);
    }
    device->capture->launch(device, c->graph);
    c->replays++;
    if (n->ranks != NULL) {
        status = n->ranks->replayed(n->ranks, n->step, c->recordings);
    }
    status = status < 0 ? status : hear(c, run, &failed);
    if (status < 0) {
        ls__captured_undo(n, failed);
        forget_failed(c);
    } else {
        ls__captured_gradients_leave(n);
    }
    return status;
}

/* What it cannot do the other ranks would wait for. */
static ls_status replay(ls_captured *c, const captured_run *run)
{
    const ls_status status = ls__captured_renew(&c->noted);
    if (status < 0 && c->noted.ranks != NULL) {
        char text[LS__MESSAGE_MAX];
        memcpy(text, ls__self.message, sizeof text);
        c->noted.ranks->abort(c->noted.ranks, status, text);
        forget_failed(c);
        return ls__fail_again(status, text);
    }
    LS_TRY(status);
    copy_inputs(c, run);
    ls__captured_gradients_enter(&c->noted);
    return start(c, run);
}

/* ---- recording ------------------------------------------------------------------------------ */

static ls_status make_storages(ls_captured *c, const captured_run *run)
{
    ls__captured *n = &c->noted;
    LS_TRY(ls__captured_make_room(n));
    ls__storages_release_cached(run->tensors); /* what runs until now took will not be needed */
    const int64_t heard = heard_count(c);
    c->slots = ls__storage_new(c->on, slots_bytes(n->number_room + heard));
    c->heard = calloc((size_t)heard, LS__CAPTURED_SLOT);
    n->blocks = c->slots != NULL ? ls__pool_blocks_new(c->on) : NULL;
    if (n->blocks == NULL) {
        return ls__self.status;
    }
    if (c->heard == NULL) {
        return ls__fail(LS_ERR_MEMORY, "a captured step: no memory");
    }
    n->memory = c->slots->data;
    for (int i = 0; i < run->key.inputs; i++) {
        const ls__record *in = run->in[i];
        c->input[i] =
            ls__storage_new(c->on, (size_t)in->numel * ls_dtype_size((ls_dtype)in->dtype));
        if (c->input[i] == NULL) {
            return ls__self.status;
        }
    }
    return LS_OK;
}

/* A tensor of the innermost scope over the copy of input i. */
static ls_tensor *input_of(const ls_captured *c, const captured_run *run, int i)
{
    const ls__record *in = run->in[i];
    ls__record *record = ls__record_new(run->tensors);
    ls_shape shape = {.ndim = in->ndim};
    if (record == NULL) {
        return ls__poison_fixed(LS_ERR_MEMORY);
    }
    memcpy(shape.dim, in->dim, sizeof shape.dim);
    LS__UNUSED bool is_shape =
        ls__record_set_shape(record, shape, (ls_dtype)in->dtype, "captured_run");
    LS_ASSERT(is_shape); /* it was one */
    record->storage = ls__storage_ref(c->input[i]);
    return ls__handle(record);
}

/* The step, as this thread's kernels are recorded; its outputs go to their slots. */
static ls_status record_step(ls_captured *c, const captured_run *run)
{
    ls_tensor *inputs[LS_CAPTURED_MAX], *outputs[LS_CAPTURED_MAX] = {0};
    char *to = c->noted.memory + slots_bytes(c->noted.number_room + c->noted.result_room + 1);
    LS_SCOPE;
    for (int i = 0; i < run->key.inputs; i++) {
        inputs[i] = input_of(c, run, i);
        LS_TRY(ls_tensor_status(inputs[i]));
    }
    const step_counts before = counts_of(run);
    LS_TRY(call_step(c, inputs, outputs));
    refuse_unnoted(c, run, before);
    for (int i = 0; i < run->key.outputs; i++) {
        const ls__record *out = output_of(run->tensors, outputs[i], i);
        if (out == NULL) {
            return ls__self.status;
        }
        c->on->k->copy(to + slots_bytes(i), ls__record_data(out), sizeof(float), c->on->stream);
    }
    ls__captured_gradients_left(&c->noted);
    return ls__device_status(c->on->device);
}

/* Ends the capture; NULL, with the error set, when nothing was recorded. */
static void *end_record(ls_captured *c, ls_status status)
{
    const ls__device *device = c->on->device;
    char why[LS__DEVICE_ERROR_MAX] = "";
    void *graph = device->capture->end(device, why);
    if (graph != NULL && status < 0) {
        device->capture->free(device, graph);
        graph = NULL;
    } else if (graph == NULL && status == LS_OK) {
        (void)ls__fail(LS_ERR_SYSTEM,
                       "captured_run: device \"%s\" could not record the step, which was not "
                       "made: %s; zero the gradients, and go on: runs to come are made without "
                       "a capture",
                       device->name, why);
        (void)snprintf(c->noted.why, sizeof c->noted.why, "%.250s", why);
    }
    return graph;
}

/* After a failure runs are made without a capture. */
static void give_up(ls_captured *c)
{
    if (c->noted.why[0] == '\0') {
        (void)snprintf(c->noted.why, sizeof c->noted.why, "the run to record failed: %.200s",
                       ls__self.message);
    }
    ls__captured_undo(&c->noted, -1);
    forget_recorded(c);
}

/* Memory, the inputs in it, and the beginning of the capture; false: there will be none. */
static bool prepare_record(ls_captured *c, const captured_run *run)
{
    const ls__device *device = c->on->device;
    char why[LS__DEVICE_ERROR_MAX] = "";
    if (make_storages(c, run) == LS_OK) {
        copy_inputs(c, run);
        if (device->capture->begin(device, why)) {
            return true;
        }
        (void)snprintf(c->noted.why, sizeof c->noted.why, "%.250s", why);
    }
    give_up(c);
    return false;
}

/* What was prepared is not wanted. */
static void cancel_record(ls_captured *c)
{
    const ls__device *device = c->on->device;
    char why[LS__DEVICE_ERROR_MAX] = "";
    const int alike = c->alike;
    c->graph = device->capture->end(device, why);
    forget_recorded(c);
    c->alike = alike;
}

/* Whether all ranks have recorded the same. `status` of this one, whose error is kept. */
static ls_status compare_recorded(ls_captured *c, ls_status status)
{
    ls__captured_ranks *ranks = c->noted.ranks;
    char text[LS__MESSAGE_MAX];
    int failed = 0;
    memcpy(text, ls__self.message, sizeof text);
    const ls_status voted = ranks->recorded(ranks, status == LS_OK, &failed);
    if (status < 0) {
        return ls__fail_again(status, text);
    }
    LS_TRY(voted);
    if (failed == 0) {
        return LS_OK;
    }
    (void)snprintf(c->noted.why, sizeof c->noted.why,
                   "rank %d could not record it; its ls_captured_why says the reason", failed - 1);
    return ls__fail(LS_ERR_SYSTEM,
                    "captured_run: rank %d could not record the step, which was not made on any; "
                    "zero the gradients, and go on: runs to come are made without a capture",
                    failed - 1);
}

static ls_status record_and_start(ls_captured *c, const captured_run *run)
{
    ls__captured_enter(&c->noted, true);
    ls_status status = record_step(c, run);
    ls__captured_leave();
    c->graph = end_record(c, status);
    status = c->graph == NULL ? ls__self.status : LS_OK;
    status = c->noted.ranks != NULL ? compare_recorded(c, status) : status;
    if (status < 0) {
        char text[LS__MESSAGE_MAX];
        memcpy(text, ls__self.message, sizeof text);
        give_up(c);
        return ls__fail_again(status, text);
    }
    c->recordings++;
    return start(c, run);
}

/* ---- runs ----------------------------------------------------------------------------------- */

static ls_status check(const ls_captured *c, const captured_run *run, int inputs, int outputs)
{
    if (c == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "captured_run: the step is NULL; check what ls_captured_new returned");
    }
    if (inputs < 0 || inputs > LS_CAPTURED_MAX || outputs < 0 || outputs > LS_CAPTURED_MAX ||
        (inputs > 0 && run->inputs == NULL) || (outputs > 0 && run->values == NULL)) {
        return ls__fail(
            LS_ERR_INVALID,
            "captured_run: %d inputs%s and %d values%s; give 0 to %d of each, and their "
            "arrays",
            inputs, inputs > 0 && run->inputs == NULL ? " at NULL" : "", outputs,
            outputs > 0 && run->values == NULL ? " at NULL" : "", LS_CAPTURED_MAX);
    }
    if (ls__self.captured != NULL) {
        return ls__fail(LS_ERR_STATE, "captured_run: a captured step is under way, and makes no "
                                      "other; call the function of the inner one");
    }
    return LS_OK;
}

static const ls__record *input_at(const captured_run *run, int i)
{
    char what[48];
    const ls__record *in = ls__record_sound(run->tensors, run->inputs[i], "captured_run");
    if (in == NULL) {
        (void)snprintf(what, sizeof what, "captured_run: input %d", i + 1);
        (void)ls__record_sound(run->tensors, run->inputs[i], what);
    }
    return in;
}

/* Reads the inputs and fills in the key. */
static ls_status describe(captured_run *run, const ls_captured *c, int inputs, int outputs)
{
    const ls_runtime *runtime = run->tensors->runtime;
    captured_key *key = &run->key;
    memset(key, 0, sizeof *key);
    key->inputs = inputs;
    key->outputs = outputs;
    key->autocast = ls__self.autocast;
    key->no_grad = ls__self.no_grad;
    run->sample_offset = runtime->sample_offset;
    key->sample_offset = c->noted.draws_before ? run->sample_offset : 0;
    key->seed = runtime->seed;
    key->moves = run->tensors->moves;
    key->on = run->tensors->made;
    for (int i = 0; i < inputs; i++) {
        const ls__record *in = input_at(run, i);
        if (in == NULL) {
            return ls__self.status;
        }
        LS_TRY(ls__fill_settle(in->storage));
        run->in[i] = in;
        memcpy(key->dim[i], in->dim, sizeof(int64_t) * (size_t)in->ndim);
        key->ndim[i] = in->ndim;
        key->dtype[i] = in->dtype;
        key->place[i] = in->place;
        key->refused[i] = in->storage->pool != key->on || in->node != NULL;
    }
    return LS_OK;
}

/* What speaks against a capture before the step has run. */
static void judge(ls_captured *c, const captured_run *run)
{
    const ls__device *device = run->key.on->device;
    char *why = c->noted.why;
    if (device->capture == NULL) {
        (void)snprintf(why, sizeof c->noted.why, "device \"%s\" captures no steps", device->name);
    }
    for (int i = 0; i < run->key.inputs && why[0] == '\0'; i++) {
        const ls__pool *on = run->in[i]->storage->pool;
        if (on != run->key.on) {
            (void)snprintf(why, sizeof c->noted.why, "input %d is on device \"%s\"", i + 1,
                           on->device->name);
        } else if (run->in[i]->node != NULL) {
            (void)snprintf(why, sizeof c->noted.why, "input %d requires gradients", i + 1);
        }
    }
    c->on = run->tensors->made;
    c->noted.device = device;
}

static ls__shape_text shape_in(const captured_key *key, int input)
{
    ls_shape shape = {.ndim = (int)key->ndim[input]};
    memcpy(shape.dim, key->dim[input], sizeof shape.dim);
    return ls__shape_print(shape);
}

/* The key has changed, from `before`. */
static void note_change(ls_captured *c, const captured_key *before, const captured_key *now)
{
    int i = 0;
    while (i < now->inputs && memcmp(before->dim[i], now->dim[i], sizeof now->dim[i]) == 0 &&
           before->ndim[i] == now->ndim[i] && before->dtype[i] == now->dtype[i]) {
        i++;
    }
    if (i == now->inputs) {
        (void)snprintf(c->held, sizeof c->held,
                       "inputs, autocast, the seed, the sample offset or parameters (where they "
                       "lie, which are frozen, settings of their optimizer) have changed from run "
                       "to run; three runs in a row that have them alike are needed");
        return;
    }
    (void)snprintf(c->held, sizeof c->held,
                   "input %d was %s %.50s in one run and %s %.50s in the next; three runs in a row "
                   "that have them alike are needed",
                   i + 1, ls_dtype_name((ls_dtype)before->dtype[i]), shape_in(before, i).text,
                   ls_dtype_name((ls_dtype)now->dtype[i]), shape_in(now, i).text);
}

/* What this rank would do. */
static ls__captured_act choose_act(ls_captured *c, const captured_run *run)
{
    if (c->graph != NULL && run->key.moves != c->key.moves) {
        forget_recorded(c);
    }
    const bool same = memcmp(&run->key, &c->key, sizeof run->key) == 0;
    if (c->graph != NULL) {
        const bool fits = ls__captured_fits(&c->noted) && ls__captured_gradients_fit(&c->noted);
        return same && fits ? LS__CAPTURED_REPLAY : LS__CAPTURED_PLAIN;
    }
    if (c->noted.why[0] == '\0') {
        judge(c, run);
    }
    if (!same) {
        if (c->key.on != NULL) {
            note_change(c, &c->key, &run->key);
        }
        c->key = run->key;
        c->alike = 0;
    }
    return c->noted.why[0] != '\0' || c->alike == 0 ? LS__CAPTURED_PLAIN
           : c->alike == 1                          ? LS__CAPTURED_WATCH
                                                    : LS__CAPTURED_RECORD;
}

/* Where a rank cannot record the step, none does, and they vote no more. Where one has lost what
 * was recorded, all record it anew. */
static void heed_vote(ls_captured *c, const ls__captured_vote *vote)
{
    if (vote->refuses == 0 && vote->recorded != UINT64_MAX) {
        return;
    }
    forget_recorded(c);
    if (vote->refuses == 0) {
        return;
    }
    c->noted.ranks = NULL;
    if (c->noted.why[0] == '\0') {
        (void)snprintf(c->noted.why, sizeof c->noted.why,
                       "rank %d does not capture it; its ls_captured_why says the reason",
                       vote->refuses - 1);
    }
}

/* What all ranks do in this run. */
static ls_status agree_on_act(ls_captured *c, ls__captured_act *act, bool prepared)
{
    ls__captured_ranks *ranks = c->noted.ranks;
    ls__captured_vote vote = {.act = *act,
                              .refuses = c->noted.why[0] != '\0',
                              .step = c->noted.step,
                              .recorded = c->graph != NULL ? c->recordings : 0};
    const ls_status status = ranks->vote(ranks, &vote);
    *act = vote.act;
    if (prepared && (status < 0 || vote.act != LS__CAPTURED_RECORD)) {
        cancel_record(c);
    }
    if (status < 0) {
        forget_failed(c);
        return status;
    }
    LS_ASSERT(vote.act != LS__CAPTURED_RECORD || prepared);
    heed_vote(c, &vote);
    if (vote.held != NULL) {
        (void)snprintf(c->held, sizeof c->held, "%s", vote.held);
    }
    return LS_OK;
}

static ls_status run_once(ls_captured *c, const captured_run *run)
{
    ls__captured_act act = choose_act(c, run);
    const bool prepared = act == LS__CAPTURED_RECORD && prepare_record(c, run);
    if (act == LS__CAPTURED_RECORD && !prepared) {
        act = LS__CAPTURED_PLAIN;
    }
    if (c->noted.ranks != NULL) {
        LS_TRY(agree_on_act(c, &act, prepared));
    }
    switch (act) {
    case LS__CAPTURED_REPLAY:
        return replay(c, run);
    case LS__CAPTURED_RECORD:
        return record_and_start(c, run);
    case LS__CAPTURED_WATCH:
        return run_watched(c, run);
    case LS__CAPTURED_PLAIN:
        break;
    }
    const bool first = c->graph == NULL && c->alike == 0;
    const ls_status status = run_plainly(c, run);
    if (first) {
        c->alike = 1;
        c->key.sample_offset = c->noted.draws_before ? run->sample_offset : 0;
    }
    return status;
}

ls_status ls_captured_run(ls_captured *captured, ls_tensor *const *inputs, int input_count,
                          double *values, int value_count)
{
    captured_run run = {
        .tensors = ls__tensors_get("captured_run"), .inputs = inputs, .values = values};
    if (run.tensors == NULL) {
        return ls__self.status;
    }
    LS_TRY(check(captured, &run, input_count, value_count));
    if (captured->guest.runtime != run.tensors->runtime) {
        return ls__fail(LS_ERR_STATE, "captured_run: the step was made before ls_finalize; make a "
                                      "new one after ls_init");
    }
    LS_TRY(describe(&run, captured, input_count, value_count));
    return run_once(captured, &run);
}

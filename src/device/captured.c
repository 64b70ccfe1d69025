/* SPDX-License-Identifier: Apache-2.0 */
/* See Note [Captured steps] in captured.h. */
#include "device/captured.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"

/* ---- of the step under way ------------------------------------------------------------------ */

void ls__captured_refuse(const char *what)
{
    ls__captured *c = ls__self.captured;
    if (c == NULL || c->why[0] != '\0') {
        return;
    }
    if (ls__self.file != NULL && ls__self.file[0] != '\0') {
        (void)snprintf(c->why, sizeof c->why, "%.128s (%.110s:%d)", what, ls__self.file,
                       ls__self.line);
    } else {
        (void)snprintf(c->why, sizeof c->why, "%.250s", what);
    }
}

ls__captured *ls__captured_pause(void)
{
    ls__captured *c = ls__self.captured;
    ls__self.captured = NULL;
    return c;
}

void ls__captured_resume(ls__captured *paused)
{
    ls__self.captured = paused;
}

/* Whether slot `at` is there; the step of the capture may do more than the one that was watched. */
static bool has_room(int at, int room)
{
    if (at >= room) {
        ls__captured_refuse("it does more than in the run before");
    }
    return at < room;
}

const void *ls__captured_number_add(const ls__captured_number *number, const void *value,
                                    size_t bytes)
{
    ls__captured *c = ls__self.captured;
    if (c == NULL || !c->records) {
        if (c != NULL) {
            c->number_count++;
        }
        return NULL;
    }
    if (!has_room(c->number_count, c->number_room)) {
        return NULL;
    }
    const size_t at = (size_t)c->number_count * LS__CAPTURED_SLOT;
    c->numbers[c->number_count] = *number;
    c->numbers[c->number_count++].checks = c->result_count;
    if (bytes > 0) {
        memcpy(c->values + at, value, bytes);
    }
    return c->memory + at;
}

/* Without room it is the slot behind the last one: the run goes to its end, and is thrown away. */
void *ls__captured_result_add(const ls__captured_result *result)
{
    ls__captured *c = ls__self.captured;
    if (c != NULL) {
        c->gated = false;
    }
    if (c == NULL || !c->records) {
        if (c != NULL) {
            c->result_count++;
        }
        return NULL;
    }
    char *slots = c->memory + (size_t)c->number_room * LS__CAPTURED_SLOT;
    const int at = c->result_count;
    if (has_room(at, c->result_room)) {
        c->results[c->result_count++] = *result;
    } else if (result->drop != NULL) {
        result->drop(result->of);
    }
    return slots + (size_t)at * LS__CAPTURED_SLOT;
}

static _Thread_local ls__captured *running; /* whose step this thread is in, of whatever kind */

ls__captured *ls__captured_begin(ls__captured *captured)
{
    ls__captured *outer = running;
    captured->contexts = 0;
    captured->context = NULL;
    running = captured;
    return outer;
}

void ls__captured_end(ls__captured *outer)
{
    running = outer;
}

void ls__captured_context(const ls_step_context *context)
{
    ls__captured *c = running;
    if (c == NULL) {
        return;
    }
    if (c->context == context && memcmp(&c->begun, context, sizeof *context) != 0) {
        ls__captured_refuse("ls_captured_step_begin: the step writes one context for several "
                            "micro-batches; give each one its own, written before the run");
    }
    c->context = context;
    c->begun = *context;
    c->contexts++;
}

void ls__captured_drew(void)
{
    if (running != NULL && running->contexts == 0) {
        running->draws_before = true;
    }
}

void ls__captured_join(ls__captured_ranks *ranks)
{
    ls__captured *c = running;
    if (c == NULL || c->ranks == ranks) {
        return;
    }
    if (c->ranks != NULL) {
        ls__captured_refuse("gradients are averaged by two wrappers of ls_ddp_new");
        return;
    }
    c->ranks = ranks;
    c->step = ++ranks->steps;
}

static ls_status take_verdict(const ls__captured_result *result, const void *slot)
{
    int64_t rank;
    (void)result;
    memcpy(&rank, slot, sizeof rank);
    return rank < 0
               ? LS_OK
               : ls__fail(LS_ERR_PEER,
                          "a captured step: a check has failed on rank %lld, which says what it "
                          "found; no rank has made the step",
                          (long long)rank);
}

static const void *checks_of(const ls__captured *c)
{
    return c->memory + (size_t)c->number_room * LS__CAPTURED_SLOT;
}

/* Where ranks exchange, a check that fails on one of them must hold all back: one more check, of
 * the rank that found something, which is the largest of all ranks'. */
static void add_verdict(ls__captured *c)
{
    const int checks = c->result_count;
    if (c->ranks == NULL || checks == 0) {
        return;
    }
    int64_t *verdict = ls__captured_result_add(&(ls__captured_result){.take = take_verdict});
    if (verdict == NULL) {
        return;
    }
    c->device->capture->verdict(verdict, checks_of(c), checks, LS__CAPTURED_SLOT,
                                c->ranks->rank(c->ranks), c->device->stream);
    if (c->ranks->share(c->ranks, verdict) < 0) {
        ls__captured_refuse(ls__self.message);
    }
}

void *ls__captured_gate(const ls__captured_result *result, ls__step_gate args)
{
    ls__captured *c = ls__self.captured;
    if (c != NULL) {
        add_verdict(c);
    }
    const int checks = c != NULL ? c->result_count : 0;
    ls__captured_result gate = *result;
    gate.is_gate = true;
    char *slot = ls__captured_result_add(&gate);
    if (c != NULL) {
        c->gated = true;
    }
    if (slot != NULL) {
        args.slot = slot;
        args.checks = checks_of(c);
        args.check_count = checks;
        args.check_bytes = LS__CAPTURED_SLOT;
        c->device->capture->gate(&args, c->device->stream);
    }
    return slot;
}

/* ---- runs ----------------------------------------------------------------------------------- */

void ls__captured_enter(ls__captured *captured, bool records)
{
    static _Atomic uint32_t runs; /* Sync: relaxed; a number that no other watched run has */
    captured->run = atomic_fetch_add_explicit(&runs, 1, memory_order_relaxed) + 1;
    captured->adds_up = NULL;
    captured->records = records;
    captured->number_count = captured->result_count = 0;
    captured->noticed = 0;
    captured->gated = false;
    ls__self.captured = captured;
}

void ls__captured_leave(void)
{
    ls__self.captured->records = false;
    ls__self.captured = NULL;
}

/* One more of each, so that none of them is of no bytes. */
ls_status ls__captured_make_room(ls__captured *c)
{
    c->numbers = calloc((size_t)c->number_count + 1, sizeof *c->numbers);
    c->results = calloc((size_t)c->result_count + 1, sizeof *c->results);
    c->values = calloc((size_t)c->number_count + 1, LS__CAPTURED_SLOT);
    c->number_room = c->number_count;
    c->result_room = c->result_count;
    if (c->numbers != NULL && c->results != NULL && c->values != NULL) {
        return LS_OK;
    }
    ls__captured_forget(c);
    return ls__fail(LS_ERR_MEMORY, "a captured step: no memory");
}

bool ls__captured_fits(const ls__captured *c)
{
    for (int i = 0; i < c->number_count; i++) {
        if (c->numbers[i].fits != NULL && !c->numbers[i].fits(&c->numbers[i])) {
            return false;
        }
    }
    return true;
}

/* Of the first `end` numbers those after this check, the last one first. */
static void undo_numbers(const ls__captured *c, int end, int check)
{
    for (int i = end - 1; i >= 0 && c->numbers[i].checks > check; i--) {
        if (c->numbers[i].undo != NULL) {
            c->numbers[i].undo(&c->numbers[i]);
        }
    }
}

void ls__captured_undo(const ls__captured *c, int check)
{
    undo_numbers(c, c->number_count, check);
}

ls_status ls__captured_renew(ls__captured *c)
{
    for (int i = 0; i < c->number_count; i++) {
        const ls_status status =
            c->numbers[i].renew(&c->numbers[i], c->values + (size_t)i * LS__CAPTURED_SLOT);
        if (status < 0) {
            undo_numbers(c, i, -1);
            return status;
        }
    }
    return LS_OK;
}

/* Other ranks hear of a check by its verdict, and count as far as that. Of a gate all hear. */
static int verdict_of(const ls__captured *c, int check)
{
    int i = check;
    while (i < c->result_count && c->results[i].take != take_verdict) {
        i++;
    }
    return i < c->result_count && !c->results[check].is_gate ? i : check;
}

ls_status ls__captured_take(const ls__captured *c, const char *slots, int *check)
{
    for (int i = 0; i < c->result_count; i++) {
        const ls__captured_result *r = &c->results[i];
        if (r->take != NULL && r->take(r, slots + (size_t)i * LS__CAPTURED_SLOT) < 0) {
            *check = verdict_of(c, i);
            return ls__self.status;
        }
    }
    return LS_OK;
}

void ls__captured_forget(ls__captured *c)
{
    for (int i = 0; c->results != NULL && i < c->result_count; i++) {
        if (c->results[i].drop != NULL) {
            c->results[i].drop(c->results[i].of);
        }
    }
    free(c->numbers);
    free(c->results);
    free(c->values);
    c->numbers = NULL;
    c->results = NULL;
    c->values = NULL;
    c->number_count = c->result_count = c->number_room = c->result_room = 0;
}

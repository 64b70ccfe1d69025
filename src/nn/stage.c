/* SPDX-License-Identifier: Apache-2.0 */
/* Stages: ranges of parts, what crosses their ends, and running one. */
#include <string.h>

#include "autograd/arrays.h"
#include "base/error.h"
#include "nn/module.h"
#include "nn/parts.h"

/* ---- edges -------------------------------------------------------------------------------- */

/* Inputs of the module come before parts: -1, -2, …, 0, 1, … */
static bool is_before(int a, int b)
{
    return a < 0 && b < 0 ? a > b : a < b;
}

/* Adds to a sorted array without doubles. */
static ls_status insert(int *array, int *count, int value)
{
    int at = 0;
    while (at < *count && is_before(array[at], value)) {
        at++;
    }
    if (at < *count && array[at] == value) {
        return LS_OK;
    }
    if (*count == LS_CALL_TENSORS_MAX) {
        return ls__fail(LS_ERR_LIMIT, "ls_module_stage_edges: more than %d tensors cross an end",
                        LS_CALL_TENSORS_MAX);
    }
    memmove(&array[at + 1], &array[at], (size_t)(*count - at) * sizeof *array);
    array[at] = value;
    ++*count;
    return LS_OK;
}

static bool is_within(int part, int first, int count)
{
    return part >= first && part < first + count;
}

static ls_status find_edges(const ls_parts *parts, int first, int count, ls_stage_edges *out)
{
    *out = (ls_stage_edges){0};
    for (int p = first; p < parts->count; p++) {
        const ls__module_part *part = &parts->list[p];
        for (int i = 0; i < part->from_count; i++) {
            if (p < first + count && !is_within(part->from[i], first, count)) {
                LS_TRY(insert(out->in, &out->in_count, part->from[i]));
            } else if (p >= first + count && is_within(part->from[i], first, count)) {
                LS_TRY(insert(out->out, &out->out_count, part->from[i]));
            }
        }
    }
    return first + count == parts->count ? insert(out->out, &out->out_count, parts->count - 1)
                                         : LS_OK;
}

ls_status ls_module_stage_edges(ls_module *module, int first, int count, ls_stage_edges *out)
{
    const ls_parts *parts = ls__parts_of(module);
    if (parts == NULL) {
        return ls__self.status;
    }
    LS_TRY(ls__parts_check(parts, "ls_module_stage_edges", first, count));
    return find_edges(parts, first, count, out);
}

/* ---- running ------------------------------------------------------------------------------ */

typedef struct stage {
    const ls_parts *parts;
    int first, count;
    const ls_stage_edges *edges;
    ls_tensor *const *inputs;
    bool apart; /* each part has only the modules that it declares */
} stage;

/* A value is an input of the stage or a result of one of its parts. */
static ls_tensor *value_of(const stage *s, ls_tensor *const *results, int from)
{
    if (is_within(from, s->first, s->count)) {
        return results[from - s->first];
    }
    int i = 0;
    while (s->edges->in[i] != from) {
        i++;
    }
    return s->inputs[i];
}

static ls_tensor *run_part(const stage *s, ls_tensor *const *results, const ls__module_part *part)
{
    ls_tensor *in[LS_PART_FROM_MAX], *out = NULL;
    for (int i = 0; i < part->from_count; i++) {
        in[i] = value_of(s, results, part->from[i]);
    }
    if (part->run != NULL) {
        return part->run(s->parts->self, in);
    }
    if (part->module->cls->forward != NULL) {
        return ls_forward(part->module, in[0]);
    }
    (void)ls_forward_many(part->module, in, part->from_count, &out, 1);
    return out;
}

/* Errors name the line that declares the part: the parts before it have changed the call's. */
static ls__user_call begin_part(const ls__module_part *part)
{
    ls__user_call user = ls__user_call_begin();
    user.file = part->file;
    user.line = part->line;
    return user;
}

/* The module's own name is in the errors of a part that is one. */
static ls_status check_result(const stage *s, const ls__module_part *part,
                              const ls__user_call *user, ls_tensor *result)
{
    if (result == NULL && ls__self.fails == user->fails) {
        (void)ls__fail(LS_ERR_INVALID, "it returned NULL; give its result, or a poisoned tensor");
    }
    const ls_status status = result != NULL ? ls_tensor_status(result) : ls__self.status;
    return ls__user_call_end(user, status, "part \"%s\" of the %s", part->name,
                             s->parts->self->cls->name);
}

static ls_status run_parts(void *stage_of, ls_tensor **outputs)
{
    const stage *s = stage_of;
    ls_tensor *results[LS__PARTS_MAX];
    for (int p = 0; p < s->count; p++) {
        const ls__module_part *part = &s->parts->list[s->first + p];
        if (s->apart) {
            LS_TRY(ls__part_withhold_others(s->parts, s->first + p));
        }
        const ls__user_call user = begin_part(part);
        results[p] = run_part(s, results, part);
        if (s->apart) {
            ls__module_withhold(s->parts->self, false);
        }
        LS_TRY(check_result(s, part, &user, results[p]));
    }
    for (int i = 0; i < s->edges->out_count; i++) {
        outputs[i] = results[s->edges->out[i] - s->first];
    }
    return LS_OK;
}

static ls_status run_stage(ls_module *module, stage *s, int input_count, ls_tensor **outputs,
                           int output_count)
{
    ls_stage_edges edges;
    s->parts = ls__parts_of(module);
    if (s->parts == NULL) {
        return ls__self.status;
    }
    LS_TRY(ls__parts_check(s->parts, "ls_module_run_stage", s->first, s->count));
    LS_TRY(find_edges(s->parts, s->first, s->count, &edges));
    if (input_count != edges.in_count || output_count != edges.out_count) {
        return ls__fail(
            LS_ERR_INVALID,
            "ls_module_run_stage: parts %d to %d of the %s take %d tensors and give %d; "
            "%d and %d were passed (see ls_module_stage_edges)",
            s->first, s->first + s->count - 1, s->parts->self->cls->name, edges.in_count,
            edges.out_count, input_count, output_count);
    }
    s->edges = &edges;
    return ls__module_within(s->parts->self, run_parts, s, outputs, output_count);
}

static ls_status check_and_run(ls_module *module, stage *s, int input_count, ls_tensor **outputs,
                               int output_count)
{
    LS_TRY(ls__arrays_check("ls_module_run_stage", s->inputs, input_count, outputs, output_count));
    const ls_status status = run_stage(module, s, input_count, outputs, output_count);
    if (status < 0) {
        ls__arrays_poison(outputs, output_count);
    }
    return status;
}

ls_status ls_module_run_stage(ls_module *module, int first, int count, ls_tensor *const *inputs,
                              int input_count, ls_tensor **outputs, int output_count)
{
    stage s = {.first = first, .count = count, .inputs = inputs};
    return check_and_run(module, &s, input_count, outputs, output_count);
}

ls_status ls__parts_run_apart(ls_module *module, ls_tensor *const *inputs, int input_count,
                              ls_tensor **out)
{
    stage s = {.count = ls_module_part_count(module), .inputs = inputs, .apart = true};
    return check_and_run(module, &s, input_count, out, 1);
}

/* ---- cutting ------------------------------------------------------------------------------ */

ls_status ls_module_cut_evenly(ls_module *module, int stages, int s, int *first, int *count)
{
    const ls_parts *parts = ls__parts_of(module);
    if (parts == NULL) {
        return ls__self.status;
    }
    if (stages < 1 || stages > parts->count || s < 0 || s >= stages) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_module_cut_evenly: stage %d of %d was asked for; the %s has %d parts, "
                        "enough for 1 to %d stages",
                        s, stages, parts->self->cls->name, parts->count, parts->count);
    }
    *first = (int)((int64_t)parts->count * s / stages);
    *count = (int)((int64_t)parts->count * (s + 1) / stages) - *first;
    return LS_OK;
}

static int find_part(const ls_parts *parts, const char *name, size_t length)
{
    for (int p = 0; p < parts->count; p++) {
        if (strlen(parts->list[p].name) == length &&
            memcmp(parts->list[p].name, name, length) == 0) {
            return p;
        }
    }
    return -1;
}

/* The parts after which the next cut may come grow, so an order that is not that of the parts is
 * found at once. */
static ls_status find_cuts(const ls_parts *parts, const char *names, int *first, int *stages)
{
    first[0] = 0;
    *stages = 1;
    for (const char *at = names + strspn(names, " ,"); *at != '\0';) {
        const size_t length = strcspn(at, " ,");
        const int part = find_part(parts, at, length);
        if (part < 0) {
            return ls__fail(
                LS_ERR_INVALID,
                "ls_module_cut_at: the %s has no part \"%.*s\"; its parts are \"%s\" to "
                "\"%s\"",
                parts->self->cls->name, (int)length, at, parts->list[0].name,
                parts->list[parts->count - 1].name);
        }
        if (part <= first[*stages - 1] || *stages == LS_CALL_TENSORS_MAX) {
            return ls__fail(LS_ERR_INVALID,
                            "ls_module_cut_at: there can be no cut before part \"%.*s\" in \"%s\"; "
                            "give parts after the first, in their order, at most %d",
                            (int)length, at, names, LS_CALL_TENSORS_MAX - 1);
        }
        first[(*stages)++] = part;
        at += length;
        at += strspn(at, " ,");
    }
    return LS_OK;
}

int ls_module_cut_at(ls_module *module, const char *names, int *first)
{
    int stages = 0;
    const ls_parts *parts = ls__parts_of(module);
    return parts == NULL || find_cuts(parts, names, first, &stages) < 0 ? (int)ls__self.status
                                                                        : stages;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a plan:
 *
 *     {"format": "lockstep plan", "version": 1, "model": "gpt",
 *      "parts": ["embed", "blocks.0", "blocks.1", "head"],
 *      "workers": 4, "schedule": "1f1b", "micro_batches": 8,
 *      "stages": [{"first": "embed", "replicas": 3, ..}, {"first": "head", "replicas": 1, ..}],
 *      "predicted": {"step_ms": 812.5, ..}, ..}
 *
 * Version 2 has a mesh, and what belongs to it; each stage is on one rank along pp:
 *
 *     {"format": "lockstep plan", "version": 2, "model": "gpt",
 *      "shape": {"layers": 2, "dim": 384, ..}, "mesh": "pp=2,dp=2", "batch": 4, "zero": 1,
 *      "recompute": false, "sequence": false, "tensor_plan": "tokens=vocab ..", "chunks": 0,
 *      "warm_up": 1, "parts": .., ..}
 *
 * Fields that a program follows are checked; further fields are for people.
 */
#include "plan/plan.h"

#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/options.h"
#include "base/runtime.h"
#include "base/text.h"
#include "dist/axes.h"
#include "schedule/schedule.h"

#define CHUNK_BYTES ((size_t)16 << 10)
#define REPLICA_BYTES 5 /* "256," */

/* 1024 names, and 256 stages of some 16 numbers. */
static const ls__json_limit limit = {(size_t)1 << 20, 8192, 1024, 8};

typedef struct reader {
    ls__plan_reader fields;
    ls_plan *plan;
    int64_t version;
} reader;

/* An array of 1 to `most` elements. */
static int elements_of(const json_t *array, size_t most)
{
    const size_t count = json_array_size(array); /* 0: not an array */
    return count <= most ? (int)count : 0;
}

static int index_of(const ls_plan *p, const char *part)
{
    for (int i = 0; part != NULL && i < p->part_count; i++) {
        if (strcmp(p->parts[i], part) == 0) {
            return i;
        }
    }
    return -1;
}

static ls_status read_parts(const reader *r, const json_t *parts)
{
    ls_plan *p = r->plan;
    const int count = elements_of(parts, LS__PLAN_PARTS_MAX);
    if (count == 0) {
        return ls__plan_malformed(&r->fields, "\"parts\"");
    }
    p->parts = ls__arena_alloc(&p->arena, (size_t)count * sizeof *p->parts);
    if (p->parts == NULL) {
        return ls__plan_no_memory(&r->fields);
    }
    for (int i = 0; i < count; i++) {
        const char *name = NULL;
        LS_TRY(ls__plan_read_name(&r->fields, json_array_get(parts, (size_t)i),
                                  "a name of \"parts\"", &name));
        if (!ls__plan_part_name_is_good(name) || index_of(p, name) >= 0) {
            return ls__fail(LS_ERR_FORMAT,
                            "%s: found the part \"%s\"; names have no spaces, and each stands once",
                            r->fields.what, name);
        }
        p->parts[p->part_count++] = name;
    }
    return LS_OK;
}

/* Stages begin at part 0, and each follows the one before it. */
static ls_status read_stage(const reader *r, const json_t *entry, int stage)
{
    ls_plan *p = r->plan;
    int64_t replicas = 0;
    const char *name = json_string_value(json_object_get(entry, "first"));
    const int first = index_of(p, name), lowest = stage > 0 ? p->first[stage - 1] + 1 : 0;
    if (first < lowest || (stage == 0 && first > 0)) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: stage %d begins at \"%.200s\"; stages begin at parts of the plan, in "
                        "their order, the first one at \"%s\"",
                        r->fields.what, stage, name != NULL ? name : "", p->parts[0]);
    }
    const int most = r->version == LS__PLAN_VERSION_WITHOUT_MESH ? LS__SCHEDULE_RANKS_MAX : 1;
    if (!ls__plan_read_int(json_object_get(entry, "replicas"), 1, most, &replicas)) {
        return ls__plan_malformed(&r->fields, "\"replicas\" of a stage");
    }
    p->first[stage] = first;
    p->replicas[stage] = (int)replicas;
    return LS_OK;
}

static ls_status read_stages(const reader *r, const json_t *stages)
{
    ls_plan *p = r->plan;
    const int count = elements_of(stages, LS__SCHEDULE_RANKS_MAX);
    if (count == 0) {
        return ls__plan_malformed(&r->fields, "\"stages\"");
    }
    p->first = ls__arena_alloc(&p->arena, 2 * (size_t)count * sizeof *p->first);
    if (p->first == NULL) {
        return ls__plan_no_memory(&r->fields);
    }
    p->replicas = p->first + count;
    for (int s = 0; s < count; s++) {
        LS_TRY(read_stage(r, json_array_get(stages, (size_t)s), s));
        p->stages++;
    }
    return LS_OK;
}

/* Fields that follow from one another must agree, so that a file that was edited by hand runs as it
 * reads, or not at all. */
static ls_status read_sizes(const reader *r, const json_t *root)
{
    ls_plan *p = r->plan;
    int64_t workers = 0, micro_batches = 0;
    int sum = 0, most = 0;
    for (int s = 0; s < p->stages; s++) {
        sum += p->replicas[s];
        most = p->replicas[s] > most ? p->replicas[s] : most;
    }
    if (!ls__plan_read_int(json_object_get(root, "workers"), 1, LS__SCHEDULE_RANKS_MAX, &workers)) {
        return ls__plan_malformed(&r->fields, "\"workers\"");
    }
    if (workers != sum) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: its stages have %d replicas in all, and \"workers\" is %d; make them "
                        "equal",
                        r->fields.what, sum, (int)workers);
    }
    if (!ls__plan_read_int(json_object_get(root, "micro_batches"), most,
                           LS__SCHEDULE_MICRO_BATCHES_MAX, &micro_batches)) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: \"micro_batches\" must be from %d, the most replicas of a stage, to "
                        "%d",
                        r->fields.what, most, LS__SCHEDULE_MICRO_BATCHES_MAX);
    }
    p->workers = sum;
    p->micro_batches = (int)micro_batches;
    return LS_OK;
}

/* The mesh, whose ranks along pp have the stages. */
static ls_status read_mesh(const reader *r, const json_t *root)
{
    ls_plan *p = r->plan;
    ls__axes axes;
    int64_t workers = 0, micro_batches = 0;
    LS_TRY(ls__plan_read_name(&r->fields, json_object_get(root, "mesh"), "\"mesh\"",
                              &p->settings.mesh));
    if (ls__axes_parse(p->settings.mesh, 0, &axes) < 0) {
        return ls__plan_malformed(&r->fields, "\"mesh\"");
    }
    const int axis = ls__axes_find(&axes, "pp", 2), pp = axis >= 0 ? axes.axis[axis].size : 1;
    const int chunks = p->settings.chunks > 0 ? p->settings.chunks : 1;
    if (!ls__plan_read_int(json_object_get(root, "workers"), axes.ranks, axes.ranks, &workers) ||
        p->stages % chunks != 0 || p->stages / chunks != pp) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: the mesh \"%s\" has %d ranks and %d stages of %d chunks each; "
                        "\"workers\" and \"stages\" must be as many",
                        r->fields.what, p->settings.mesh, axes.ranks, pp, chunks);
    }
    if (!ls__plan_read_int(json_object_get(root, "micro_batches"), 1,
                           LS__SCHEDULE_MICRO_BATCHES_MAX, &micro_batches)) {
        return ls__plan_malformed(&r->fields, "\"micro_batches\"");
    }
    p->workers = axes.ranks;
    p->micro_batches = (int)micro_batches;
    return LS_OK;
}

/* *value stays as it is where the field is missing. */
static ls_status read_count(const reader *r, const json_t *root, const char *name, int64_t high,
                            int64_t *value)
{
    char quoted[32];
    const json_t *found = json_object_get(root, name);
    (void)snprintf(quoted, sizeof quoted, "\"%s\"", name);
    return found == NULL || ls__plan_read_int(found, 0, high, value)
               ? LS_OK
               : ls__plan_malformed(&r->fields, quoted);
}

static ls_status read_switch(const reader *r, const json_t *root, const char *name, bool *value)
{
    char quoted[32];
    const json_t *found = json_object_get(root, name);
    (void)snprintf(quoted, sizeof quoted, "\"%s\"", name);
    *value = json_is_true(found);
    return found == NULL || json_is_boolean(found) ? LS_OK : ls__plan_malformed(&r->fields, quoted);
}

static ls_status read_settings(const reader *r, const json_t *root)
{
    ls_plan_settings *s = &r->plan->settings;
    int64_t chunks = 0, warm_up = 0, zero = 0;
    LS_TRY(read_count(r, root, "batch", INT32_MAX, &s->batch));
    LS_TRY(read_count(r, root, "chunks", LS__SCHEDULE_STAGES_MAX, &chunks));
    LS_TRY(read_count(r, root, "warm_up", LS__SCHEDULE_MICRO_BATCHES_MAX, &warm_up));
    LS_TRY(read_count(r, root, "zero", 3, &zero));
    LS_TRY(read_switch(r, root, "recompute", &s->recompute));
    LS_TRY(read_switch(r, root, "sequence", &s->sequence));
    if (json_object_get(root, "tensor_plan") != NULL) {
        LS_TRY(ls__plan_read_name(&r->fields, json_object_get(root, "tensor_plan"),
                                  "\"tensor_plan\"", &s->tensor_plan));
    }
    s->chunks = (int)chunks;
    s->warm_up = (int)warm_up;
    s->zero = (int)zero;
    return LS_OK;
}

static ls_status read_shape(const reader *r, json_t *shape)
{
    ls_plan *p = r->plan;
    const char *name;
    json_t *value;
    const size_t count = json_object_size(shape); /* 0: not an object */
    if (count == 0 || count > LS__PLAN_SIZES_MAX) {
        return ls__plan_malformed(&r->fields, "\"shape\"");
    }
    p->sizes = ls__arena_alloc(&p->arena, count * sizeof *p->sizes);
    if (p->sizes == NULL) {
        return ls__plan_no_memory(&r->fields);
    }
    json_object_foreach(shape, name, value)
    {
        ls_plan_size *size = &p->sizes[p->size_count];
        json_t *text = json_string(name);
        const ls_status status =
            ls__plan_read_name(&r->fields, text, "a name of \"shape\"", &size->name);
        json_decref(text);
        LS_TRY(status);
        if (!ls__plan_read_int(value, 0, INT64_MAX, &size->value)) {
            return ls__plan_malformed(&r->fields, "a number of \"shape\"");
        }
        p->size_count++;
    }
    return LS_OK;
}

static ls_status read_schedule(const reader *r, const json_t *value)
{
    const char *const *names, *const *abouts;
    const int count = ls__schedule_names(&names, &abouts);
    for (int i = 0; json_is_string(value) && i < count; i++) {
        if (strcmp(json_string_value(value), names[i]) == 0) {
            r->plan->schedule = names[i];
            return LS_OK;
        }
    }
    return ls__plan_malformed(&r->fields, "\"schedule\"");
}

static ls_status read_predicted(const reader *r, const json_t *predicted)
{
    double ms = 0.0;
    const json_t *value = json_object_get(predicted, "step_ms");
    r->plan->step_seconds = -1.0;
    if (value == NULL) {
        return LS_OK;
    }
    if (!ls__plan_read_number(value, &ms)) {
        return ls__plan_malformed(&r->fields, "\"step_ms\"");
    }
    r->plan->step_seconds = ms / 1000.0;
    return LS_OK;
}

/* The forms in which a pipeline's options take it. */
static ls_status write_texts(const reader *r)
{
    ls_plan *p = r->plan;
    size_t cut_bytes = 1;
    const size_t replica_bytes = (size_t)p->stages * REPLICA_BYTES + 1;
    for (int s = 1; s < p->stages; s++) {
        cut_bytes += strlen(p->parts[p->first[s]]) + 1;
    }
    p->replicas_text = ls__arena_alloc(&p->arena, replica_bytes);
    char *cut_text = ls__arena_alloc(&p->arena, cut_bytes);
    if (p->replicas_text == NULL || cut_text == NULL) {
        return ls__plan_no_memory(&r->fields);
    }
    ls__text replicas = {p->replicas_text, replica_bytes}, cut = {cut_text, cut_bytes};
    for (int s = 0; s < p->stages; s++) {
        ls__text_add(&replicas, "%s%d", s > 0 ? "," : "", p->replicas[s]);
        if (s > 0) {
            ls__text_add(&cut, "%s%s", s > 1 ? " " : "", p->parts[p->first[s]]);
        }
    }
    p->cut = p->stages > 1 ? cut_text : NULL;
    return LS_OK;
}

/* Of version 2, after the stages. */
static ls_status read_second(const reader *r, const json_t *root)
{
    LS_TRY(read_settings(r, root));
    LS_TRY(read_shape(r, json_object_get(root, "shape")));
    return read_mesh(r, root);
}

static ls_status read_root(reader *r, const json_t *root)
{
    LS_TRY(ls__plan_read_head(&r->fields, root, LS__PLAN_FORMAT, LS__PLAN_VERSION));
    r->version = json_integer_value(json_object_get(root, "version"));
    LS_TRY(ls__plan_read_name(&r->fields, json_object_get(root, "model"), "\"model\"",
                              &r->plan->model));
    LS_TRY(read_parts(r, json_object_get(root, "parts")));
    LS_TRY(read_stages(r, json_object_get(root, "stages")));
    LS_TRY(r->version == LS__PLAN_VERSION_WITHOUT_MESH ? read_sizes(r, root)
                                                       : read_second(r, root));
    LS_TRY(read_schedule(r, json_object_get(root, "schedule")));
    LS_TRY(read_predicted(r, json_object_get(root, "predicted")));
    return write_texts(r);
}

ls_status ls__plan_parse(const ls__env *env, const char *what, const char *text, size_t bytes,
                         ls_plan **out)
{
    ls__arena arena;
    json_t *root = NULL;
    *out = NULL;
    LS_TRY(ls__json_read(what, text, bytes, 0, &limit, &root));
    ls__arena_init(&arena, env, CHUNK_BYTES);
    ls_plan *plan = ls__arena_alloc(&arena, sizeof *plan);
    if (plan == NULL) {
        ls__arena_fini(&arena);
        json_decref(root);
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to read it", what);
    }
    plan->arena = arena;
    reader r = {{what, &plan->arena}, plan, 0};
    const ls_status status = read_root(&r, root);
    json_decref(root);
    if (status < 0) {
        ls_plan_free(plan);
        return status;
    }
    *out = plan;
    return LS_OK;
}

ls_status ls_plan_read(const char *path, ls_plan **out)
{
    ls__file file;
    const ls_runtime *runtime = ls__runtime_get("ls_plan_read");
    if (runtime == NULL) {
        return ls__self.status;
    }
    if (path == NULL || out == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_plan_read: the path or the place for the plan is NULL; give both");
    }
    *out = NULL;
    LS_TRY(ls__file_map(runtime->env, "plan", path, &file));
    const ls_status status =
        ls__plan_parse(runtime->env, path, (const char *)file.data, file.bytes, out);
    ls__file_release(runtime->env, &file);
    return status;
}

/* The arena is copied out first, because the plan itself is in it. */
void ls_plan_free(ls_plan *plan)
{
    if (plan != NULL) {
        ls__arena arena = plan->arena;
        ls__arena_fini(&arena);
    }
}

ls_status ls_plan_check(const ls_plan *plan, ls_module *net)
{
    if (plan == NULL || net == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_plan_check: the plan or the module is NULL; give both");
    }
    const int count = ls_module_part_count(net);
    LS_TRY(count < 0 ? (ls_status)count : LS_OK);
    for (int i = 0; i < count && i < plan->part_count; i++) {
        const char *name = ls_module_part_name(net, i);
        if (strcmp(plan->parts[i], name) != 0) {
            return ls__fail(LS_ERR_MISMATCH,
                            "ls_plan_check: part %d of the model is \"%s\", and \"%s\" in the plan "
                            "(of %s); profile this model and plan again",
                            i, name, plan->parts[i], plan->model);
        }
    }
    return count == plan->part_count
               ? LS_OK
               : ls__fail(LS_ERR_MISMATCH,
                          "ls_plan_check: the model has %d parts, and the plan (of %s) is for %d; "
                          "profile this model and plan again",
                          count, plan->model, plan->part_count);
}

/* The plan's value of a size; negative: it does not say. */
static int64_t size_of(const ls_plan *plan, const char *name)
{
    for (int i = 0; i < plan->size_count; i++) {
        if (strcmp(plan->sizes[i].name, name) == 0) {
            return plan->sizes[i].value;
        }
    }
    return -1;
}

ls_status ls_plan_check_model(const ls_plan *plan, const char *model, const ls_plan_size *sizes,
                              int count)
{
    if (plan == NULL || model == NULL || (sizes == NULL && count > 0)) {
        return ls__fail(LS_ERR_INVALID, "ls_plan_check_model: the plan, the model's name or its "
                                        "sizes are NULL; give all of them");
    }
    if (plan->settings.mesh == NULL) {
        return LS_OK;
    }
    if (strcmp(plan->model, model) != 0) {
        return ls__fail(LS_ERR_MISMATCH,
                        "ls_plan_check_model: the plan is for the model \"%s\", and this is "
                        "\"%s\"; plan again for this model",
                        plan->model, model);
    }
    for (int i = 0; i < count; i++) {
        const int64_t planned = size_of(plan, sizes[i].name);
        if (planned >= 0 && planned != sizes[i].value) {
            return ls__fail(
                LS_ERR_MISMATCH,
                "ls_plan_check_model: the plan is for model %s with %s %lld, and this one "
                "has %lld; plan again for this model",
                model, sizes[i].name, (long long)planned, (long long)sizes[i].value);
        }
    }
    return LS_OK;
}

/* ---- what it says ---------------------------------------------------------------------------- */

const char *ls_plan_model(const ls_plan *plan)
{
    return plan->model;
}

int ls_plan_workers(const ls_plan *plan)
{
    return plan->workers;
}

int ls_plan_stages(const ls_plan *plan)
{
    return plan->stages;
}

const char *ls_plan_cut(const ls_plan *plan)
{
    return plan->cut;
}

const char *ls_plan_replicas(const ls_plan *plan)
{
    return plan->replicas_text;
}

const char *ls_plan_schedule(const ls_plan *plan)
{
    return plan->schedule;
}

int ls_plan_micro_batches(const ls_plan *plan)
{
    return plan->micro_batches;
}

double ls_plan_step_seconds(const ls_plan *plan)
{
    return plan->step_seconds;
}

ls_status ls_plan_get_settings(const ls_plan *plan, ls_plan_settings *out)
{
    if (plan == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_plan_get_settings: the plan is NULL; give one that "
                                        "ls_plan_read has read");
    }
    return ls__struct_fill(out, &plan->settings, sizeof plan->settings, "ls_plan_settings",
                           "ls_plan_get_settings");
}

/* Reading a plan:
 *
 *     {"format": "lockstep plan", "version": 1, "model": "gpt",
 *      "parts": ["embed", "blocks.0", "blocks.1", "head"],
 *      "workers": 4, "schedule": "1f1b", "micro_batches": 8,
 *      "stages": [{"first": "embed", "replicas": 3, ..}, {"first": "head", "replicas": 1, ..}],
 *      "predicted": {"step_ms": 812.5, ..}, ..}
 *
 * What a program follows is checked; further fields are for people.
 */
#include "plan/plan.h"

#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/runtime.h"
#include "base/text.h"
#include "schedule/schedule.h"

#define CHUNK_BYTES ((size_t)16 << 10)
#define REPLICA_BYTES 5 /* "256," */

/* 1024 names, and 256 stages of some 16 numbers. */
static const ls__json_limit limit = {(size_t)1 << 20, 8192, 1024, 8};

typedef struct reader {
    ls__plan_reader fields;
    ls_plan *plan;
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
    if (!ls__plan_read_int(json_object_get(entry, "replicas"), 1, LS__SCHEDULE_RANKS_MAX,
                           &replicas)) {
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

static ls_status read_root(const reader *r, const json_t *root)
{
    LS_TRY(ls__plan_read_head(&r->fields, root, LS__PLAN_FORMAT, LS__PLAN_VERSION));
    LS_TRY(ls__plan_read_name(&r->fields, json_object_get(root, "model"), "\"model\"",
                              &r->plan->model));
    LS_TRY(read_parts(r, json_object_get(root, "parts")));
    LS_TRY(read_stages(r, json_object_get(root, "stages")));
    LS_TRY(read_sizes(r, root));
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
    const reader r = {{what, &plan->arena}, plan};
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

/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a profile; see profile.h. */
#include "plan/profile.h"

#include <string.h>

#include <lockstep/version.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "plan/plan.h"

#define CHUNK_BYTES ((size_t)16 << 10)
#define BYTES_MAX ((int64_t)1 << 50)
#define MS_MAX 1e12

/* 1024 parts of some 16 values and two containers each, and 64 lists of parts. */
static const ls__json_limit limit = {(size_t)4 << 20, (size_t)1 << 17, 4096, 8};

ls__profile *ls__profile_new(const ls__env *env, int parts)
{
    ls__arena arena;
    ls__arena_init(&arena, env, CHUNK_BYTES);
    ls__profile *p = ls__arena_alloc(&arena, sizeof *p);
    ls__profile_part *list = ls__arena_alloc(&arena, (size_t)parts * sizeof *list);
    ls__profile_shared *shared = ls__arena_alloc(&arena, LS__SHARED_MAX * sizeof *shared);
    if (p == NULL || list == NULL || shared == NULL) {
        ls__arena_fini(&arena);
        return NULL;
    }
    p->arena = arena;
    p->parts = list;
    p->part_count = parts;
    p->shared = shared;
    return p;
}

/* The arena is copied out first, because the profile itself is in it. */
void ls__profile_free(ls__profile *profile)
{
    if (profile != NULL) {
        ls__arena arena = profile->arena;
        ls__arena_fini(&arena);
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

static json_t *ints_json(const int *list, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++) {
        (void)json_array_append_new(array, json_integer(list[i]));
    }
    return array;
}

static json_t *part_json(const ls__profile_part *part)
{
    return json_pack("{s:s, s:o, s:f, s:f, s:f, s:I, s:I, s:I, s:I}", "name", part->name, "from",
                     ints_json(part->from, part->from_count), "forward_ms", 1e3 * part->forward,
                     "input_ms", 1e3 * part->input, "weight_ms", 1e3 * part->weight, "output_bytes",
                     (json_int_t)part->output_bytes, "gradient_bytes",
                     (json_int_t)part->gradient_bytes, "kept_bytes", (json_int_t)part->kept_bytes,
                     "weight_bytes", (json_int_t)part->weight_bytes);
}

static json_t *shared_json(const ls__profile *p, const ls__profile_shared *shared)
{
    json_t *users = json_array();
    for (int i = 0; i < p->part_count; i++) {
        if (shared->used_by[i]) {
            (void)json_array_append_new(users, json_integer(i));
        }
    }
    return json_pack("{s:s, s:I, s:o}", "name", shared->name, "bytes", (json_int_t)shared->bytes,
                     "parts", users);
}

static json_t *profile_json(const ls__profile *p)
{
    json_t *parts = json_array(), *shared = json_array();
    for (int i = 0; i < p->part_count; i++) {
        (void)json_array_append_new(parts, part_json(&p->parts[i]));
    }
    for (int k = 0; k < p->shared_count; k++) {
        (void)json_array_append_new(shared, shared_json(p, &p->shared[k]));
    }
    return json_pack("{s:s, s:i, s:s, s:I, s:{s:s, s:i, s:i, s:s}, s:i, s:o, s:o}", "format",
                     LS__PROFILE_FORMAT, "version", LS__PROFILE_VERSION, "model", p->model, "batch",
                     (json_int_t)p->batch, "machine", "cpu", p->cpu, "cores", p->cores, "threads",
                     p->threads, "library", LS_VERSION, "repeats", p->repeats, "parts", parts,
                     "shared", shared);
}

ls_status ls__profile_save(const ls__env *env, const ls__profile *profile, const char *path)
{
    json_t *root = profile_json(profile);
    const ls_status status = ls__plan_save(env, "profile", root, path);
    json_decref(root);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reader {
    ls__plan_reader fields;
    ls__profile *profile;
} reader;

static ls_status read_ms(const reader *r, const json_t *entry, const char *key, double *seconds)
{
    if (!ls__plan_read_number(json_object_get(entry, key), seconds) || *seconds > MS_MAX) {
        return ls__plan_malformed(&r->fields, "a time of \"parts\"");
    }
    *seconds /= 1e3;
    return LS_OK;
}

static ls_status read_bytes(const reader *r, const json_t *entry, const char *key, int64_t *bytes)
{
    return ls__plan_read_int(json_object_get(entry, key), 0, BYTES_MAX, bytes)
               ? LS_OK
               : ls__plan_malformed(&r->fields, "a number of bytes");
}

/* Earlier parts, or inputs. */
static ls_status read_from(const reader *r, const json_t *from, int number)
{
    ls__profile_part *part = &r->profile->parts[number];
    const size_t count = json_array_size(from); /* 0: not an array */
    int64_t at = 0;
    if (!json_is_array(from) || count > LS_PART_FROM_MAX) {
        return ls__plan_malformed(&r->fields, "\"from\" of a part");
    }
    for (size_t i = 0; i < count; i++) {
        if (!ls__plan_read_int(json_array_get(from, i), LS_PART_INPUT(LS_CALL_TENSORS_MAX - 1),
                               number - 1, &at)) {
            return ls__plan_malformed(&r->fields, "\"from\" of a part");
        }
        part->from[part->from_count++] = (int)at;
    }
    return LS_OK;
}

static ls_status read_part(const reader *r, const json_t *entry, int number)
{
    ls__profile_part *part = &r->profile->parts[number];
    LS_TRY(ls__plan_read_name(&r->fields, json_object_get(entry, "name"), "a name of \"parts\"",
                              &part->name));
    if (!ls__plan_part_name_is_good(part->name)) {
        return ls__plan_malformed(&r->fields, "a name of \"parts\"");
    }
    LS_TRY(read_from(r, json_object_get(entry, "from"), number));
    LS_TRY(read_ms(r, entry, "forward_ms", &part->forward));
    LS_TRY(read_ms(r, entry, "input_ms", &part->input));
    LS_TRY(read_ms(r, entry, "weight_ms", &part->weight));
    LS_TRY(read_bytes(r, entry, "output_bytes", &part->output_bytes));
    LS_TRY(read_bytes(r, entry, "gradient_bytes", &part->gradient_bytes));
    LS_TRY(read_bytes(r, entry, "kept_bytes", &part->kept_bytes));
    return read_bytes(r, entry, "weight_bytes", &part->weight_bytes);
}

static ls_status read_shared(const reader *r, const json_t *entry)
{
    ls__profile *p = r->profile;
    ls__profile_shared *shared = &p->shared[p->shared_count];
    const json_t *users = json_object_get(entry, "parts");
    int64_t at = 0;
    LS_TRY(ls__plan_read_name(&r->fields, json_object_get(entry, "name"), "a name of \"shared\"",
                              &shared->name));
    LS_TRY(read_bytes(r, entry, "bytes", &shared->bytes));
    shared->used_by = ls__arena_alloc(&p->arena, (size_t)p->part_count);
    if (shared->used_by == NULL) {
        return ls__plan_no_memory(&r->fields);
    }
    for (size_t i = 0; i < json_array_size(users); i++) {
        if (!ls__plan_read_int(json_array_get(users, i), 0, p->part_count - 1, &at)) {
            return ls__plan_malformed(&r->fields, "\"parts\" of \"shared\"");
        }
        shared->used_by[at] = true;
    }
    p->shared_count++;
    return LS_OK;
}

static ls_status read_machine(const reader *r, const json_t *root)
{
    ls__profile *p = r->profile;
    const json_t *machine = json_object_get(root, "machine");
    int64_t cores = 0, threads = 0, repeats = 0;
    LS_TRY(ls__plan_read_name(&r->fields, json_object_get(root, "model"), "\"model\"", &p->model));
    LS_TRY(ls__plan_read_name(&r->fields, json_object_get(machine, "cpu"), "\"cpu\"", &p->cpu));
    if (!ls__plan_read_int(json_object_get(root, "batch"), 0, INT64_MAX, &p->batch) ||
        !ls__plan_read_int(json_object_get(root, "repeats"), 0, INT32_MAX, &repeats) ||
        !ls__plan_read_int(json_object_get(machine, "cores"), 1, INT32_MAX, &cores) ||
        !ls__plan_read_int(json_object_get(machine, "threads"), 1, INT32_MAX, &threads)) {
        return ls__plan_malformed(&r->fields, "\"batch\", \"repeats\", \"cores\" or \"threads\"");
    }
    p->repeats = (int)repeats;
    p->cores = (int)cores;
    p->threads = (int)threads;
    return LS_OK;
}

static bool takes_time(const ls__profile *p)
{
    bool some = false;
    for (int i = 0; i < p->part_count; i++) {
        some = some || p->parts[i].forward > 0.0;
    }
    return some;
}

static ls_status read_lists(const reader *r, const json_t *root)
{
    const json_t *parts = json_object_get(root, "parts"), *shared = json_object_get(root, "shared");
    LS_TRY(read_machine(r, root));
    for (int i = 0; i < r->profile->part_count; i++) {
        LS_TRY(read_part(r, json_array_get(parts, (size_t)i), i));
    }
    if (!takes_time(r->profile)) {
        return ls__fail(LS_ERR_FORMAT, "%s: its parts take no time; measure it again",
                        r->fields.what);
    }
    if (json_array_size(shared) > LS__SHARED_MAX) {
        return ls__plan_malformed(&r->fields, "\"shared\"");
    }
    for (size_t k = 0; k < json_array_size(shared); k++) {
        LS_TRY(read_shared(r, json_array_get(shared, k)));
    }
    return LS_OK;
}

static ls_status read_root(const ls__env *env, const char *what, const json_t *root,
                           ls__profile **out)
{
    reader r = {.fields = {.what = what}};
    const size_t count = json_array_size(json_object_get(root, "parts")); /* 0: not an array */
    LS_TRY(ls__plan_read_head(&r.fields, root, LS__PROFILE_FORMAT, LS__PROFILE_VERSION));
    if (count < 1 || count > LS__PLAN_PARTS_MAX) {
        return ls__plan_malformed(&r.fields, "\"parts\"");
    }
    r.profile = ls__profile_new(env, (int)count);
    if (r.profile == NULL) {
        return ls__plan_no_memory(&r.fields);
    }
    r.fields.arena = &r.profile->arena;
    const ls_status status = read_lists(&r, root);
    if (status < 0) {
        ls__profile_free(r.profile);
        return status;
    }
    *out = r.profile;
    return LS_OK;
}

ls_status ls__profile_parse(const ls__env *env, const char *what, const char *text, size_t bytes,
                            ls__profile **out)
{
    json_t *root = NULL;
    *out = NULL;
    LS_TRY(ls__json_read(what, text, bytes, 0, &limit, &root));
    const ls_status status = read_root(env, what, root, out);
    json_decref(root);
    return status;
}

ls_status ls__profile_read(const ls__env *env, const char *path, ls__profile **out)
{
    ls__file file;
    *out = NULL;
    LS_TRY(ls__file_map(env, "profile", path, &file));
    const ls_status status = ls__profile_parse(env, path, (const char *)file.data, file.bytes, out);
    ls__file_release(env, &file);
    return status;
}

/* ---- the chain ------------------------------------------------------------------------------- */

/* Adds what part i's result adds to each cut before its last user. */
static void add_crossing(const ls__profile *p, int i, double *forward, double *backward)
{
    int last = i;
    for (int later = i + 1; later < p->part_count; later++) {
        for (int k = 0; k < p->parts[later].from_count; k++) {
            last = p->parts[later].from[k] == i ? later : last;
        }
    }
    for (int cut = i; cut < last; cut++) {
        forward[cut] += (double)p->parts[i].output_bytes;
        backward[cut] += (double)p->parts[i].gradient_bytes;
    }
}

ls_status ls__profile_chain(ls__profile *p, ls__chain *out)
{
    const size_t count = (size_t)p->part_count;
    double *compute = ls__arena_alloc(&p->arena, 5 * count * sizeof *compute);
    ls__shared *shared = ls__arena_alloc(&p->arena, LS__SHARED_MAX * sizeof *shared);
    if (compute == NULL || shared == NULL) {
        return ls__fail(LS_ERR_MEMORY, "plan: no memory for %zu parts", count);
    }
    double *forward = compute + count, *backward = forward + count, *weights = backward + count,
           *kept = weights + count;
    for (size_t i = 0; i < count; i++) {
        const ls__profile_part *part = &p->parts[i];
        compute[i] = part->forward + part->input + part->weight;
        weights[i] = (double)part->weight_bytes;
        kept[i] = (double)part->kept_bytes;
        add_crossing(p, (int)i, forward, backward);
    }
    for (int k = 0; k < p->shared_count; k++) {
        shared[k] = (ls__shared){(double)p->shared[k].bytes, p->shared[k].used_by};
    }
    *out = (ls__chain){p->part_count, compute, forward, backward,
                       weights,       kept,    shared,  p->shared_count};
    return LS_OK;
}

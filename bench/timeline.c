/* SPDX-License-Identifier: Apache-2.0 */
/* Reads timelines; see timeline.h. A file is foreign: its size, its numbers and its texts are
 * bounded. */
#include "timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/file.h"
#include "base/json.h"

enum {
    GRADIENTS_MAX = 16384,
    NAME_MAX_BYTES = 250,
    VALUES = 5, /* of a gradient: an object and its four members */
    OTHERS = 64 /* values besides the gradients */
};
#define ELEMENTS_MAX ((int64_t)1 << 40)
#define SECONDS_MAX 3600.0

static const ls__json_limit limit = {.bytes = 8u << 20,
                                     .values = VALUES * GRADIENTS_MAX + OTHERS,
                                     .containers = GRADIENTS_MAX + OTHERS,
                                     .depth = 3};

static ls_status missing(const char *what, const char *key, const char *wanted)
{
    return ls_fail(LS_ERR_FORMAT,
                   "%s: \"%s\" is missing or is not %s; lockstep bench ddp --timeline writes such "
                   "files",
                   what, key, wanted);
}

static ls_status get_text(const char *what, const json_t *object, const char *key, const char **out)
{
    *out = json_string_value(json_object_get(object, key));
    return *out != NULL && (*out)[0] != '\0' && strlen(*out) <= NAME_MAX_BYTES
               ? LS_OK
               : missing(what, key, "a text of 1 to 250 bytes");
}

static ls_status get_seconds(const char *what, const json_t *object, const char *key, double *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_number_value(value);
    return json_is_number(value) && *out >= 0.0 && *out <= SECONDS_MAX
               ? LS_OK
               : missing(what, key, "a number of seconds from 0 to 3600");
}

static ls_status get_count(const char *what, const json_t *object, const char *key, int64_t most,
                           int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_integer_value(value);
    return json_is_integer(value) && *out >= 1 && *out <= most
               ? LS_OK
               : missing(what, key, "a count within the limits");
}

static ls_status get_dtype(const char *what, const json_t *object, ls_dtype *out)
{
    static const ls_dtype known[] = {LS_FLOAT32, LS_FLOAT64, LS_FLOAT16, LS_BFLOAT16};
    const char *text = json_string_value(json_object_get(object, "dtype"));
    for (size_t i = 0; text != NULL && i < sizeof known / sizeof *known; i++) {
        if (strcmp(text, ls_dtype_name(known[i])) == 0) {
            *out = known[i];
            return LS_OK;
        }
    }
    return missing(what, "dtype", "float32, float64, float16 or bfloat16");
}

static ls_status read_gradient(const char *what, const ls__timeline *t, const json_t *from,
                               ls__timeline_gradient *out)
{
    LS_TRY(get_text(what, from, "name", &out->name));
    LS_TRY(get_count(what, from, "elements", ELEMENTS_MAX, &out->elements));
    LS_TRY(get_dtype(what, from, &out->dtype));
    LS_TRY(get_seconds(what, from, "ready_s", &out->ready_s));
    return out->ready_s <= t->backward_s
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT, "%s: %s is ready after %g s, but backward ends after %g s",
                         what, out->name, out->ready_s, t->backward_s);
}

static ls_status read_gradients(const char *what, ls__timeline *t)
{
    const json_t *list = json_object_get(t->root, "gradients");
    const size_t count = json_array_size(list);
    if (count < 1 || count > GRADIENTS_MAX) {
        return missing(what, "gradients", "a list of 1 to 16384");
    }
    t->gradients = calloc(count, sizeof *t->gradients);
    if (t->gradients == NULL) {
        return ls_fail(LS_ERR_MEMORY, "no memory");
    }
    for (; t->count < (int)count; t->count++) {
        ls__timeline_gradient *g = &t->gradients[t->count];
        LS_TRY(read_gradient(what, t, json_array_get(list, (size_t)t->count), g));
        t->bytes += g->elements * (int64_t)ls_dtype_size(g->dtype);
        t->parameters += (double)g->elements;
    }
    return LS_OK;
}

/* "AMD EPYC, 2 cores, 2026-11-23" */
static ls_status read_origin(const char *what, ls__timeline *t)
{
    const json_t *machine = json_object_get(t->root, "machine");
    const char *cpu, *date;
    int64_t cores;
    LS_TRY(get_text(what, machine, "cpu", &cpu));
    LS_TRY(get_text(what, t->root, "date", &date));
    LS_TRY(get_count(what, machine, "cores", 1 << 20, &cores));
    (void)snprintf(t->recorded, sizeof t->recorded, "%.200s, %lld core%s, %.40s", cpu,
                   (long long)cores, cores == 1 ? "" : "s", date);
    return LS_OK;
}

static ls_status read_text(const char *what, const char *text, size_t bytes, ls__timeline *t)
{
    int64_t batch;
    LS_TRY(ls__json_read(what, text, bytes, 0, &limit, &t->root));
    LS_TRY(get_text(what, t->root, "name", &t->name));
    LS_TRY(get_text(what, t->root, "title", &t->title));
    LS_TRY(get_count(what, t->root, "batch", 1 << 20, &batch));
    t->batch = (int)batch;
    LS_TRY(get_seconds(what, t->root, "forward_s", &t->forward_s));
    LS_TRY(get_seconds(what, t->root, "backward_s", &t->backward_s));
    LS_TRY(get_seconds(what, t->root, "optimizer_s", &t->optimizer_s));
    LS_TRY(read_origin(what, t));
    return read_gradients(what, t);
}

const char *ls__timeline_names(char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < ls__timeline_text_count && used < bytes; i++) {
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", i > 0 ? ", " : "",
                                 ls__timeline_texts[i].name);
    }
    return out;
}

ls_status ls__timeline_read(const char *name_or_path, ls__timeline *out)
{
    const ls__env *env = ls__env_posix();
    char what[300], names[512];
    ls__file file = {0};
    *out = (ls__timeline){0};
    (void)snprintf(what, sizeof what, "timeline \"%.250s\"", name_or_path);
    for (int i = 0; i < ls__timeline_text_count; i++) {
        if (strcmp(ls__timeline_texts[i].name, name_or_path) == 0) {
            return read_text(what, ls__timeline_texts[i].text, ls__timeline_texts[i].bytes, out);
        }
    }
    ls_status status = ls__file_read(env, what, name_or_path, limit.bytes + 1, &file);
    if (status == LS_ERR_NOT_FOUND) {
        return ls_fail(status, "%s: it is neither a file nor one of %s", what,
                       ls__timeline_names(names, sizeof names));
    }
    status = status < 0 ? status : read_text(what, (const char *)file.data, file.bytes, out);
    ls__file_release(env, &file);
    return status;
}

static int by_time(const void *a, const void *b)
{
    const double x = ((const ls__timeline_gradient *)a)->ready_s;
    const double y = ((const ls__timeline_gradient *)b)->ready_s;
    return (x > y) - (x < y);
}

void ls__timeline_sort(ls__timeline *t)
{
    qsort(t->gradients, (size_t)t->count, sizeof *t->gradients, by_time);
}

void ls__timeline_free(ls__timeline *t)
{
    json_decref(t->root);
    free(t->gradients);
    *t = (ls__timeline){0};
}

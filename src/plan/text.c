/* SPDX-License-Identifier: Apache-2.0 */
/* Fields of plans and profiles. What a file says is checked before it is copied; see base/json.h
 * for the limits before that. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "plan/plan.h"

ls_status ls__plan_malformed(const ls__plan_reader *r, const char *field)
{
    return ls__fail(LS_ERR_FORMAT, "%s: %s is missing or malformed", r->what, field);
}

ls_status ls__plan_no_memory(const ls__plan_reader *r)
{
    return ls__fail(LS_ERR_MEMORY, "%s: no memory to read it", r->what);
}

ls_status ls__plan_read_head(const ls__plan_reader *r, const json_t *root, const char *format,
                             int version)
{
    const json_t *found = json_object_get(root, "format");
    int64_t number = 0;
    if (!json_is_string(found) || strcmp(json_string_value(found), format) != 0) {
        return ls__fail(LS_ERR_FORMAT, "%s: \"format\" must be \"%s\"", r->what, format);
    }
    if (!ls__plan_read_int(json_object_get(root, "version"), 1, INT32_MAX, &number)) {
        return ls__plan_malformed(r, "\"version\"");
    }
    return number <= version ? LS_OK
                             : ls__fail(LS_ERR_UNSUPPORTED,
                                        "%s: it has version %d, but this library reads versions "
                                        "up to %d; use a newer library, or make it again",
                                        r->what, (int)number, version);
}

static bool is_printable(const char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || *text == 0x7f) {
            return false;
        }
    }
    return true;
}

bool ls__plan_part_name_is_good(const char *name)
{
    return name[0] != '\0' && strlen(name) < LS__PLAN_NAME_MAX && is_printable(name) &&
           strchr(name, ' ') == NULL;
}

ls_status ls__plan_read_name(const ls__plan_reader *r, const json_t *value, const char *field,
                             const char **out)
{
    const char *text = json_string_value(value); /* NULL: not a string */
    const size_t bytes = text != NULL ? strlen(text) + 1 : 0;
    if (bytes < 2 || bytes > LS__PLAN_NAME_MAX || !is_printable(text)) {
        return ls__plan_malformed(r, field);
    }
    char *copy = ls__arena_alloc(r->arena, bytes);
    if (copy == NULL) {
        return ls__plan_no_memory(r);
    }
    *out = memcpy(copy, text, bytes);
    return LS_OK;
}

bool ls__plan_read_int(const json_t *value, int64_t low, int64_t high, int64_t *out)
{
    *out = json_integer_value(value);
    return json_is_integer(value) && *out >= low && *out <= high;
}

bool ls__plan_read_number(const json_t *value, double *out)
{
    *out = json_number_value(value);
    return json_is_number(value) && isfinite(*out) && *out >= 0.0;
}

#define DIGITS 9 /* of times and rates */

/* Continues short writes; one of no bytes might never end. */
static int write_all(const ls__env *env, int fd, const char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        const ssize_t put = env->write(env, fd, text, left);
        if (put <= 0) {
            return put < 0 ? (int)put : -EIO;
        }
        text += put;
        left -= (size_t)put;
    }
    return 0;
}

static int write_file(const ls__env *env, const char *path, const char *text)
{
    const int fd = ls__file_create(env, path, 0666);
    if (fd < 0) {
        return fd;
    }
    int status = write_all(env, fd, text);
    status = status == 0 ? write_all(env, fd, "\n") : status;
    const int closed = env->close(env, fd);
    return status < 0 ? status : closed;
}

ls_status ls__plan_save(const ls__env *env, const char *what, const json_t *root, const char *path)
{
    char *text =
        root != NULL ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(DIGITS)) : NULL;
    if (text == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to write it", what);
    }
    const int error = write_file(env, path, text);
    free(text);
    return error < 0 ? ls__file_fail(error, what, "cannot write", path) : LS_OK;
}

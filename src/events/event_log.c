/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, checking and writing of event logs; see events.h. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/runtime.h>

#include "base/error.h"
#include "base/file.h"
#include "base/options.h"
#include "base/text.h"
#include "events/events.h"

#define WHAT "event log"
#define DIGITS 9 /* significant digits, enough to represent a float32 exactly */
#define JSON_HEAD "{\"step\": "

struct ls_event_log {
    const ls__env *env;
    ls_event_format format;
    int fd;   /* -1: another rank writes */
    bool cut; /* the file ends within a line or record: it could not be written whole */
    char path[1024];
    ls__event_bytes bytes;
};

ls_status ls__event_bytes_put(ls__event_bytes *b, const void *bytes, size_t count)
{
    if (b->room - b->used < count) {
        const size_t room = 2 * (b->used + count);
        char *grown = realloc(b->at, room);
        if (grown == NULL) {
            return ls__fail(LS_ERR_MEMORY, "event log: no memory for %zu bytes", room);
        }
        b->at = grown;
        b->room = room;
    }
    if (count > 0) {
        memcpy(b->at + b->used, bytes, count);
        b->used += count;
    }
    return LS_OK;
}

/* Writes what is ready. */
static ls_status flush(ls_event_log *log)
{
    size_t done = 0;
    while (done < log->bytes.used) {
        const ssize_t put =
            log->env->write(log->env, log->fd, log->bytes.at + done, log->bytes.used - done);
        if (put <= 0) {
            log->cut = log->cut || done > 0;
            return ls__file_fail(put < 0 ? (int)put : -EIO, WHAT, "cannot write", log->path);
        }
        done += (size_t)put;
    }
    log->cut = false;
    log->bytes.used = 0;
    return LS_OK;
}

/* ---- opening -------------------------------------------------------------------------------- */

static ls_status create(ls_event_log *log, const char *path)
{
    return ls__file_create_held(log->env, WHAT, path, &log->fd);
}

/* The length of the whole lines of steps up to `start`; -1: a line is none of a step. */
static int64_t kept_bytes(const ls_event_log *log, const ls__file *file, int64_t start)
{
    const char *head = log->format == LS_EVENTS_JSON ? JSON_HEAD : "";
    const size_t length = strlen(head);
    size_t at = 0;
    while (at < file->bytes) {
        const char *line = (const char *)file->data + at;
        const char *end = memchr(line, '\n', file->bytes - at);
        char number[24] = "";
        if (end == NULL) {
            break;
        }
        const size_t bytes = (size_t)(end - line);
        if (bytes <= length || memcmp(line, head, length) != 0) {
            return -1;
        }
        const size_t rest = bytes - length;
        memcpy(number, line + length, rest < sizeof number - 1 ? rest : sizeof number - 1);
        char *behind = number;
        const long long step = strtoll(number, &behind, 10);
        if (behind == number) {
            return -1;
        }
        if (step > start) {
            break;
        }
        at += bytes + 1;
    }
    return (int64_t)at;
}

/* The lines that stay become a new file, which takes the place of the old one when it is whole. */
static ls_status cut(ls_event_log *log, int64_t start)
{
    char part[sizeof log->path + 8];
    ls__file file;
    LS_TRY(ls__file_map(log->env, WHAT, log->path, &file));
    const int64_t kept = kept_bytes(log, &file, start);
    ls_status status =
        kept < 0 ? ls__fail(LS_ERR_FORMAT,
                            "event log: \"%s\" holds something else than steps; give another file",
                            log->path)
                 : ls__event_bytes_put(&log->bytes, file.data, (size_t)kept);
    ls__file_release(log->env, &file);
    LS_TRY(status);
    (void)snprintf(part, sizeof part, "%s.part", log->path);
    LS_TRY(create(log, part));
    status = flush(log);
    const int error = status < 0 ? 0 : log->env->rename(log->env, part, log->path);
    if (status < 0 || error < 0) {
        (void)log->env->remove_file(log->env, part);
        return error < 0 ? ls__file_fail(error, WHAT, "cannot rename", log->path) : status;
    }
    return LS_OK;
}

static ls_status open_lines(ls_event_log *log, int64_t start)
{
    ls__env_stat found;
    const int error = start > 0 ? log->env->stat(log->env, log->path, false, &found) : -ENOENT;
    if (error == -ENOENT) {
        return create(log, log->path);
    }
    if (error < 0 || found.kind != LS__ENV_FILE) {
        return ls__fail(LS_ERR_INVALID,
                        "event log: \"%s\" cannot be cut behind the step to go on from, as it is "
                        "no regular file; give another file",
                        log->path);
    }
    LS_TRY(ls__file_check_held(log->env, WHAT, log->path));
    return cut(log, start);
}

/* TensorBoard reads the files whose names contain "tfevents", in the order of their names. */
static ls_status open_board(ls_event_log *log, const char *folder, int64_t start)
{
    const ls__env *env = log->env;
    char host[64] = "host";
    const uint64_t now_ns = env->wall_ns(env);
    const int error = env->make_folder(env, folder);
    if (error < 0) {
        return ls__file_fail(error, WHAT, "cannot make", folder);
    }
    (void)env->host_name(env, host, sizeof host);
    (void)snprintf(log->path, sizeof log->path,
                   "%.800s/events.out.tfevents.%010" PRIu64 ".%09" PRIu64 ".%.63s", folder,
                   now_ns / 1000000000u, now_ns % 1000000000u, host);
    LS_TRY(create(log, log->path));
    LS_TRY(ls__tensorboard_head(&log->bytes, now_ns, start));
    return flush(log);
}

static ls_status check_options(const char *path, const ls_event_log_options *o)
{
    if (path == NULL || path[0] == '\0') {
        return ls__fail(LS_ERR_INVALID, "ls_event_log_new: no path; give that of a file or folder");
    }
    if (strlen(path) > 800) {
        return ls__fail(LS_ERR_LIMIT, "ls_event_log_new: a path of %zu bytes; give at most 800",
                        strlen(path));
    }
    if (o->format < LS_EVENTS_JSON || o->format > LS_EVENTS_TENSORBOARD) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_event_log_new: format %d is none of LS_EVENTS_JSON, LS_EVENTS_LINES, "
                        "LS_EVENTS_TENSORBOARD; give one of them",
                        (int)o->format);
    }
    return o->start >= 0 ? LS_OK
                         : ls__fail(LS_ERR_INVALID,
                                    "ls_event_log_new: start is %" PRId64 "; give the steps that "
                                    "are done, 0 or more",
                                    o->start);
}

ls_event_log *ls_event_log_new(const char *path, const ls_event_log_options *options)
{
    LS__OPTIONS_OR(NULL, ls_event_log_options, o, options);
    if (check_options(path, &o) < 0) {
        return NULL;
    }
    ls_event_log *log = calloc(1, sizeof *log);
    if (log == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "ls_event_log_new: no memory");
        return NULL;
    }
    *log = (ls_event_log){.env = ls__env_posix(), .format = o.format, .fd = -1};
    if (ls_rank() != 0) {
        return log;
    }
    (void)snprintf(log->path, sizeof log->path, "%s", path);
    if ((o.format == LS_EVENTS_TENSORBOARD ? open_board(log, path, o.start)
                                           : open_lines(log, o.start)) < 0) {
        (void)ls_event_log_free(log);
        return NULL;
    }
    return log;
}

/* ---- adding --------------------------------------------------------------------------------- */

static ls_status check_name(const char *group, const char *name)
{
    if (name == NULL || name[0] == '\0' || group == NULL || !ls__utf8_valid(name) ||
        !ls__utf8_valid(group)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_event_log_add: a value has no name, or one that is not UTF-8; give one "
                        "such as \"train/loss\"");
    }
    const size_t bytes = strlen(group) + 1 + strlen(name);
    return bytes <= LS_EVENT_NAME_MAX + 1
               ? LS_OK
               : ls__fail(LS_ERR_LIMIT,
                          "ls_event_log_add: \"%.80s/%.80s\" has %zu bytes; give at most %d", group,
                          name, bytes, LS_EVENT_NAME_MAX);
}

static ls_status check_event(const ls_event_log *log, const ls__event *e)
{
    if (log == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_event_log_add: no log; give one that ls_event_log_new has made");
    }
    if (e->step < 0 || e->count < 1 || e->values == NULL || e->count > LS__EVENTS_NUMBERS_MAX) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_event_log_add: step %" PRId64 ", %d values; give a step of at least 0 "
                        "and 1 to %d values",
                        e->step, e->count, LS__EVENTS_NUMBERS_MAX);
    }
    for (int i = 0; i < e->count; i++) {
        LS_TRY(check_name(e->group, e->values[i].name));
        if (log->format == LS_EVENTS_JSON && strcmp(e->values[i].name, "step") == 0) {
            return ls__fail(LS_ERR_INVALID,
                            "ls_event_log_add: a value is called \"step\", as the step of each "
                            "line of JSON; give another name");
        }
    }
    return LS_OK;
}

/* NULL without memory. NaN and infinity, which JSON lacks, become null. */
static json_t *json_of(const ls_event_value *v)
{
    if (v->text != NULL) {
        return json_string(v->text);
    }
    if (v->numbers == NULL) {
        return isfinite(v->number) ? json_real(v->number) : json_null();
    }
    if (v->count == 0) {
        return json_integer(*v->numbers);
    }
    json_t *list = json_array();
    for (int64_t i = 0; i < v->count && list != NULL; i++) {
        if (json_array_append_new(list, json_integer(v->numbers[i])) < 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static ls_status make_json(ls__event_bytes *b, const ls__event *e)
{
    json_t *object = json_object();
    bool good = json_object_set_new(object, "step", json_integer(e->step)) == 0;
    for (int i = 0; i < e->count; i++) {
        good = json_object_set_new(object, e->values[i].name, json_of(&e->values[i])) == 0 && good;
    }
    char *line = good ? json_dumps(object, JSON_REAL_PRECISION(DIGITS)) : NULL;
    json_decref(object);
    if (line == NULL) {
        return ls__fail(LS_ERR_MEMORY, "event log: no memory for a line of %d values", e->count);
    }
    ls_status status = ls__event_bytes_put(b, line, strlen(line));
    free(line);
    return status < 0 ? status : ls__event_bytes_put(b, "\n", 1);
}

static ls_status make_line(ls__event_bytes *b, const ls__event *e)
{
    char text[48];
    (void)snprintf(text, sizeof text, "%" PRId64, e->step);
    LS_TRY(ls__event_bytes_put(b, text, strlen(text)));
    for (int i = 0; i < e->count; i++) {
        if (e->values[i].text == NULL && e->values[i].numbers == NULL) {
            (void)snprintf(text, sizeof text, " %.*g", DIGITS, e->values[i].number);
            LS_TRY(ls__event_bytes_put(b, text, strlen(text)));
        }
    }
    return ls__event_bytes_put(b, "\n", 1);
}

static ls_status add(ls_event_log *log, const ls__event *e)
{
    LS_TRY(check_event(log, e));
    if (log->fd < 0) {
        return LS_OK;
    }
    log->bytes.used = 0; /* what could not be written before is lost, but not the next line */
    if (log->cut && log->format != LS_EVENTS_TENSORBOARD) {
        LS_TRY(ls__event_bytes_put(&log->bytes, "\n", 1));
    }
    LS_TRY(log->format == LS_EVENTS_JSON ? make_json(&log->bytes, e)
           : log->format == LS_EVENTS_LINES
               ? make_line(&log->bytes, e)
               : ls__tensorboard_event(&log->bytes, log->env->wall_ns(log->env), e));
    return flush(log);
}

ls_status ls_event_log_add_all(ls_event_log *log, int64_t step, const char *group,
                               const ls_event_value *values, int count)
{
    const ls__event event = {.step = step, .group = group, .values = values, .count = count};
    return add(log, &event);
}

ls_status ls_event_log_add(ls_event_log *log, int64_t step, const char *name, double value)
{
    char group[LS_EVENT_NAME_MAX + 1] = "";
    const char *slash = name != NULL ? strrchr(name, '/') : NULL;
    if (slash != NULL) {
        const size_t bytes = (size_t)(slash - name);
        if (bytes > LS_EVENT_NAME_MAX) {
            return check_name(name, slash + 1);
        }
        memcpy(group, name, bytes);
        group[bytes] = '\0';
    }
    const ls_event_value one = {.name = slash != NULL ? slash + 1 : name, .number = value};
    return ls_event_log_add_all(log, step, group, &one, 1);
}

ls_status ls_event_log_free(ls_event_log *log)
{
    if (log == NULL) {
        return LS_OK;
    }
    const int error = log->fd >= 0 ? log->env->close(log->env, log->fd) : 0;
    const ls_status status =
        error < 0 ? ls__file_fail(error, WHAT, "cannot write", log->path) : LS_OK;
    free(log->bytes.at);
    free(log);
    return status;
}

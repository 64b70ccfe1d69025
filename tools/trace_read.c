/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a trace: the JSON is walked element by element, and jansson parses one event at a time,
 * so a trace of gigabytes takes the memory of its spans only. A file that ends in the middle, as
 * other programs leave it when they are killed, is read as far as it goes; the format allows
 * that. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "tools/trace.h"

#define EVENT_BYTES_MAX ((size_t)1 << 20)
#define RANKS_MAX 65536

static const ls__json_limit event_limit = {EVENT_BYTES_MAX, 4096, 1024, 16};
static const ls__json_limit head_limit = {(size_t)64 << 20, LS__JSON_VALUES_MAX,
                                          LS__JSON_CONTAINERS_MAX, 16};

typedef struct text {
    const char *path, *at, *end;
} text;

static ls_status fail_other(const text *t, const char *why)
{
    return ls__fail(LS_ERR_FORMAT,
                    "%s is not a trace of Lockstep: %s; LOCKSTEP_TRACE=FILE.json makes a job write "
                    "one",
                    t->path, why);
}

/* ---- walking -------------------------------------------------------------------------------- */

static void skip_spaces(text *t)
{
    while (t->at < t->end && strchr(" \t\r\n,", *t->at) != NULL && *t->at != '\0') {
        t->at++;
    }
}

/* The end of the string that begins at `at`; the end of the text if it is cut. */
static const char *string_end(const text *t, const char *at)
{
    for (at++; at < t->end; at++) {
        if (*at == '"') {
            return at + 1;
        }
        at += *at == '\\';
    }
    return t->end;
}

/* The end of the value that begins here; the end of the text if the value is cut. */
static const char *value_end(const text *t)
{
    const char *at = t->at;
    int depth = 0;
    while (at < t->end) {
        const char c = *at;
        if (depth == 0 && at > t->at && strchr(" \t\r\n,:]}", c) != NULL) {
            return at; /* after a number or a word */
        }
        at = c == '"' ? string_end(t, at) : at + 1;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (depth <= 0 && (c == '"' || c == '}' || c == ']')) {
            return at;
        }
    }
    return t->end;
}

/* Parses the value that begins here and passes it. NULL: it is cut or malformed, or too large. */
static json_t *take_value(text *t, const ls__json_limit *limit)
{
    const char *end = value_end(t);
    json_t *value = NULL;
    if (end > t->at) {
        (void)ls__json_read(t->path, t->at, (size_t)(end - t->at), 0, limit, &value);
    }
    t->at = end;
    return value;
}

/* ---- spans ---------------------------------------------------------------------------------- */

static trace_part part_of(const char *category)
{
    static const struct {
        const char *category;
        trace_part part;
    } table[] = {{"step", TRACE_STEP},         {"forward", TRACE_FORWARD},
                 {"backward", TRACE_BACKWARD}, {"exposed", TRACE_EXPOSED},
                 {"loader", TRACE_LOADER},     {"optimizer", TRACE_OPTIMIZER},
                 {"wire", TRACE_WIRE},         {"operation", TRACE_OPERATION}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].category, category) == 0) {
            return table[i].part;
        }
    }
    return TRACE_WITHIN;
}

/* The number of an operation's name; names beyond the table share its last row. */
static int name_number(trace *t, const char *name)
{
    for (int i = 0; i < t->operation_count; i++) {
        if (strncmp(t->operations[i].name, name, sizeof t->operations[i].name - 1) == 0) {
            return i;
        }
    }
    if (t->operation_count == TRACE_NAMES_MAX) {
        return TRACE_NAMES_MAX - 1;
    }
    trace_operation *made = &t->operations[t->operation_count];
    strncpy(made->name, name, sizeof made->name - 1);
    return t->operation_count++;
}

void *trace_room(void *items, int64_t count, int64_t *room, size_t bytes)
{
    if (count < *room) {
        return items;
    }
    const int64_t more = *room == 0 ? 1024 : 2 * *room;
    void *grown = realloc(items, (size_t)more * bytes);
    *room = grown != NULL ? more : *room;
    return grown;
}

static trace_span *new_span(trace *t)
{
    trace_span *spans = trace_room(t->spans, t->span_count, &t->span_room, sizeof *spans);
    if (spans == NULL) {
        return NULL;
    }
    t->spans = spans;
    return &t->spans[t->span_count++];
}

/* Events of other kinds, and of other programs, are passed over. */
static ls_status take_event(trace *t, const json_t *event)
{
    const char *ph = json_string_value(json_object_get(event, "ph"));
    const char *category = json_string_value(json_object_get(event, "cat"));
    const char *name = json_string_value(json_object_get(event, "name"));
    const json_t *ts = json_object_get(event, "ts"), *dur = json_object_get(event, "dur");
    if (ph == NULL || strcmp(ph, "X") != 0 || category == NULL || name == NULL ||
        !json_is_number(ts) || !json_is_number(dur)) {
        return LS_OK;
    }
    const json_int_t rank = json_integer_value(json_object_get(event, "pid"));
    const json_int_t number =
        json_integer_value(json_object_get(json_object_get(event, "args"), "step"));
    const trace_part part = part_of(category);
    if (rank < 0 || rank >= t->world_size || part == TRACE_WITHIN || number < 0 ||
        number >= INT_MAX) {
        return LS_OK;
    }
    trace_span *span = new_span(t);
    if (span == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for the spans of the trace");
    }
    *span = (trace_span){.rank = (int)rank,
                         .track = (int)json_integer_value(json_object_get(event, "tid")),
                         .part = part,
                         .number = part == TRACE_OPERATION ? name_number(t, name) : (int)number,
                         .begin_us = json_number_value(ts),
                         .end_us = json_number_value(ts) + json_number_value(dur)};
    return LS_OK;
}

/* ---- the file ------------------------------------------------------------------------------- */

static void take_rank(trace_rank *out, const json_t *rank)
{
    const char *host = json_string_value(json_object_get(rank, "host"));
    out->present = !json_is_true(json_object_get(rank, "missing"));
    out->finalized = json_is_true(json_object_get(rank, "finalized"));
    out->dropped = json_integer_value(json_object_get(rank, "dropped"));
    out->node = (int)json_integer_value(json_object_get(rank, "node"));
    strncpy(out->host, host != NULL ? host : "", sizeof out->host - 1);
}

static ls_status take_head(text *at, trace *t, const json_t *head)
{
    const json_int_t size = json_integer_value(json_object_get(head, "world_size"));
    const json_t *ranks = json_object_get(head, "ranks");
    if (json_object_get(head, "lockstep_trace") == NULL || size < 1 || size > RANKS_MAX ||
        json_array_size(ranks) != (size_t)size || t->ranks != NULL) {
        return fail_other(at, "another program wrote it");
    }
    t->ranks = calloc((size_t)size, sizeof *t->ranks);
    if (t->ranks == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for the ranks of the trace");
    }
    t->world_size = (int)size;
    for (int r = 0; r < t->world_size; r++) {
        take_rank(&t->ranks[r], json_array_get(ranks, (size_t)r));
    }
    return LS_OK;
}

/* `at` is after the "[". */
static ls_status take_events(text *at, trace *t)
{
    for (skip_spaces(at); at->at < at->end && *at->at != ']'; skip_spaces(at)) {
        const bool last = value_end(at) == at->end;
        json_t *event = take_value(at, &event_limit);
        if (event == NULL && last) {
            t->cut = true;
            return LS_OK;
        }
        if (event == NULL) {
            return ls__fail_again(LS_ERR_FORMAT, ls_error_message());
        }
        const ls_status status = take_event(t, event);
        json_decref(event);
        LS_TRY(status);
    }
    t->cut = at->at == at->end;
    at->at += t->cut ? 0 : 1;
    return LS_OK;
}

/* Whether the string, with its quotes, is `name`. */
static bool is_key(const char *at, size_t bytes, const char *name)
{
    return bytes == strlen(name) + 2 && memcmp(at + 1, name, bytes - 2) == 0;
}

/* One member of the outer object. Our own come before the events, so that a file which is cut has
 * them. */
static ls_status take_member(text *at, trace *t)
{
    const char *key = at->at;
    at->at = value_end(at);
    const size_t bytes = (size_t)(at->at - key);
    while (at->at < at->end && strchr(" \t\r\n:", *at->at) != NULL) {
        at->at++;
    }
    if (*key != '"' || at->at == at->end) {
        return fail_other(at, "it is not whole JSON");
    }
    if (is_key(key, bytes, "traceEvents") && *at->at == '[') {
        if (t->ranks == NULL) {
            return fail_other(at, "another program wrote it");
        }
        at->at++;
        return take_events(at, t);
    }
    if (!is_key(key, bytes, "otherData")) {
        at->at = value_end(at);
        return LS_OK;
    }
    json_t *value = take_value(at, &head_limit);
    const ls_status status =
        value != NULL ? take_head(at, t, value) : fail_other(at, "it is not whole JSON");
    json_decref(value);
    return status;
}

static ls_status read_text(text *at, trace *t)
{
    skip_spaces(at);
    if (at->at == at->end || *at->at != '{') {
        return fail_other(at, at->at == at->end ? "it is empty"
                              : *at->at == '['  ? "another program wrote it"
                                                : "it is not JSON");
    }
    at->at++;
    for (skip_spaces(at); at->at < at->end && *at->at != '}'; skip_spaces(at)) {
        LS_TRY(take_member(at, t));
    }
    return t->ranks != NULL ? LS_OK : fail_other(at, "another program wrote it");
}

ls_status trace_read(const char *path, trace *out)
{
    const ls__env *env = ls__env_posix();
    ls__file file;
    *out = (trace){0};
    LS_TRY(ls__file_map(env, "trace", path, &file));
    const char *data = (const char *)file.data;
    text at = {path, data, data != NULL ? data + file.bytes : data};
    const ls_status status = read_text(&at, out);
    ls__file_release(env, &file);
    return status;
}

void trace_free(trace *t)
{
    free(t->ranks);
    free(t->spans);
    free(t->steps);
    *t = (trace){0};
}

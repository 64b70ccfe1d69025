/* SPDX-License-Identifier: Apache-2.0 */
/* Reads results that earlier experiments wrote to OUT/NAME.json. Such a file may be damaged, of
 * another version or hostile: its size, its types and its texts are checked, and texts are
 * printable ASCII. */
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "ddp_rows.h"

enum { TEXT_MAX = 600, TABLES_MAX = 64, COLUMNS_MAX = 64, ROWS_MAX = 1024 };
#define NUMBER_MAX 1e12

/* All media, 2 networks and 4 intervals of --steps 1000 --turns 10 are half a million numbers, 30
 * bytes each. */
static const ls__json_limit limit = {
    .bytes = 32u << 20, .values = 1u << 20, .containers = 1u << 16, .depth = 8};

typedef struct source { /* a file to read */
    const char *path, *name;
    const char *const *columns;
    json_t *rows; /* the result */
} source;

/* Returns false. */
static bool damaged(const source *s, const char *what)
{
    return ls__fail(LS_ERR_FORMAT, "%s: %s", s->path, what) == LS_OK;
}

/* NULL: it is no text that can be shown. */
static const char *text_of(const json_t *value)
{
    const char *text = json_string_value(value);
    const size_t bytes = text != NULL ? json_string_length(value) : 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < ' ' || text[i] > '~') {
            return NULL;
        }
    }
    return bytes > 0 && bytes <= TEXT_MAX ? text : NULL;
}

static bool is_positive(const json_t *value)
{
    const double number = json_number_value(value);
    return number > 0.0 && number <= NUMBER_MAX;
}

static bool are_positive(const json_t *list)
{
    bool all = json_array_size(list) > 0;
    for (size_t i = 0; i < json_array_size(list) && all; i++) {
        all = is_positive(json_array_get(list, i));
    }
    return all;
}

/* `column` is "s:network". */
static bool fits(const json_t *cell, const char *column)
{
    return strchr("st", column[0]) != NULL ? text_of(cell) != NULL
           : column[0] == 'n'              ? is_positive(cell)
                                           : are_positive(cell);
}

static int index_of(const json_t *table, const char *column)
{
    return paper_column_index(table, column + 2);
}

/* Of "Step time, 2 ranks, MPI (Open MPI), computed; means": the part before "computed" or
 * "replayed". */
static json_t *medium_of(const char *title)
{
    const char *end = strstr(title, ", computed"), *begin = title;
    end = end != NULL ? end : strstr(title, ", replayed");
    for (const char *at = title; end != NULL && (at = strstr(at, ", ")) != NULL && at < end;) {
        at += 2;
        begin = at;
    }
    const size_t bytes = end != NULL && begin > title ? (size_t)(end - begin) : 0;
    return json_stringn(begin, bytes);
}

static bool add_row(source *s, const json_t *table, const json_t *cells, json_t *medium)
{
    char what[160];
    json_t *row = json_object();
    json_array_append_new(s->rows, row);
    for (const char *const *c = s->columns; *c != NULL; c++) {
        const int at = index_of(table, *c);
        json_t *cell = c[0][0] == 't' ? medium : at >= 0 ? json_array_get(cells, (size_t)at) : NULL;
        if (!fits(cell, *c)) {
            (void)snprintf(what, sizeof what, "\"%s\" of a row is missing or of another type",
                           *c + 2);
            return damaged(s, what);
        }
        json_object_set(row, *c + 2, cell);
    }
    return true;
}

static bool add_table(source *s, const json_t *table)
{
    bool good = true;
    const char *title = text_of(json_object_get(table, "title"));
    const json_t *rows = json_object_get(table, "rows");
    if (title == NULL || !json_is_array(rows) ||
        json_array_size(json_object_get(table, "columns")) > COLUMNS_MAX ||
        json_array_size(rows) > ROWS_MAX) {
        return damaged(s, "a table has no title, no rows or too many of them");
    }
    if (index_of(table, s->columns[0]) < 0) {
        return true;
    }
    json_t *medium = medium_of(title);
    for (size_t r = 0; r < json_array_size(rows) && good; r++) {
        good = add_row(s, table, json_array_get(rows, r), medium);
    }
    json_decref(medium);
    return good;
}

/* The rows, and a note on where they are from. */
static bool add(paper *p, source *s, const json_t *root)
{
    char note[TEXT_MAX + 200];
    const char *command = text_of(json_object_get(root, "command"));
    const char *version = text_of(json_object_get(root, "version"));
    const char *cpu = text_of(json_object_get(json_object_get(root, "machine"), "cpu"));
    const json_t *tables = json_object_get(root, "tables");
    if (strcmp(paper_text(root, "experiment"), s->name) != 0) {
        return damaged(s, "it is no result of this experiment");
    }
    if (command == NULL || version == NULL || cpu == NULL) {
        return damaged(s, "its command, version or CPU is missing or is no text");
    }
    if (json_array_size(tables) == 0 || json_array_size(tables) > TABLES_MAX) {
        return damaged(s, "it has no tables or too many");
    }
    for (size_t t = 0; t < json_array_size(tables); t++) {
        if (!add_table(s, json_array_get(tables, t))) {
            return false;
        }
    }
    if (json_array_size(s->rows) == 0) {
        return damaged(s, "it has no rows of the expected columns");
    }
    (void)snprintf(note, sizeof note, "%s.json: `%s`, Lockstep %.40s, %.100s.", s->name, command,
                   version, cpu);
    paper_note_once(p, note);
    return true;
}

json_t *paper_earlier(paper *p, const char *name, const char *const *columns)
{
    const ls__env *env = ls__env_posix();
    char path[512];
    ls__file file = {0};
    json_t *root = NULL;
    source s = {.path = path, .name = name, .columns = columns, .rows = json_array()};
    if (p->options->out == NULL) {
        return s.rows;
    }
    (void)snprintf(path, sizeof path, "%s/%s.json", p->options->out, name);
    ls_status status = ls__file_read(env, path, path, limit.bytes + 1, &file);
    if (status == LS_ERR_NOT_FOUND) {
        return s.rows;
    }
    status = status < 0
                 ? status
                 : ls__json_read(path, (const char *)file.data, file.bytes, 0, &limit, &root);
    const bool good = status >= 0 && add(p, &s, root);
    ls__file_release(env, &file);
    json_decref(root);
    if (!good) {
        fprintf(stderr,
                "lockstep paper: %s; run `lockstep paper %s --out DIR` again, or remove the file\n",
                ls_error_message(), name);
        json_decref(s.rows);
    }
    return good ? s.rows : NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Results: tables, claims and plots as JSON. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/assert.h"
#include "bench/bench.h"
#include "paper.h"

json_t *paper_result_new(const paper_experiment *e, const paper_options *o, const char *command)
{
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:o, s:s*, s:s*, s:b, s:b, s:o, s:[], s:[], s:[], s:[]}",
        "experiment", e->name, "place", e->place, "about", e->about, "command", command, "version",
        ls_version(), "date", paper_date(), "transport", o->transport, "link", o->link, "full",
        o->full, "quick", o->quick, "machine", ls__bench_machine(), "tables", "claims", "plots",
        "notes");
}

bool paper_has_rows(const json_t *result)
{
    const json_t *tables = json_object_get(result, "tables");
    bool any = false;
    for (size_t t = 0; t < json_array_size(tables); t++) {
        any = any || json_array_size(json_object_get(json_array_get(tables, t), "rows")) > 0;
    }
    return any;
}

void paper_set_incomplete(json_t *result, const char *why)
{
    if (json_object_get(result, "incomplete") == NULL) {
        json_object_set_new(result, "incomplete", json_string(why));
    }
}

json_t *paper_table(paper *p, const char *title, const paper_column *columns, int count)
{
    json_t *list = json_array();
    for (int c = 0; c < count; c++) {
        json_array_append_new(list, json_pack("{s:s, s:s, s:s*}", "key", columns[c].key, "unit",
                                              columns[c].unit, "format", columns[c].format));
    }
    json_t *table = json_pack("{s:s, s:o, s:[]}", "title", title, "columns", list, "rows");
    LS_ASSERT(table != NULL);
    json_array_append_new(json_object_get(p->result, "tables"), table);
    return table;
}

void paper_transpose(json_t *table)
{
    json_object_set_new(table, "transposed", json_true());
}

void paper_row(json_t *table, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    json_t *row = json_vpack_ex(NULL, 0, format, values);
    va_end(values);
    LS_ASSERT(json_array_size(row) == json_array_size(json_object_get(table, "columns")));
    json_array_append_new(json_object_get(table, "rows"), row);
}

void paper_note(paper *p, const char *format, ...)
{
    char text[1024];
    va_list values;
    va_start(values, format);
    (void)vsnprintf(text, sizeof text, format, values);
    va_end(values);
    json_array_append_new(json_object_get(p->result, "notes"), json_string(text));
}

/* Of sorted ratios. */
static const char *verdict_of(const paper_claim *claim, const double *ratios, size_t count)
{
    const double lowest = ratios[0], highest = ratios[count - 1];
    const bool all = claim->above ? lowest > claim->factor : highest < claim->factor;
    const bool none = claim->above ? highest <= claim->factor : lowest >= claim->factor;
    const bool alone = count == 1 && !claim->counted;
    return alone || (!all && !none) ? "undecided" : all ? "holds" : "fails";
}

void paper_claim_add(paper *p, const paper_claim *claim)
{
    double ratios[64];
    size_t count = json_array_size(claim->left_turns);
    count = count < 64 ? count : 64;
    LS_ASSERT(count > 0 && json_array_size(claim->right_turns) >= count);
    for (size_t i = 0; i < count; i++) {
        ratios[i] = json_number_value(json_array_get(claim->left_turns, i)) /
                    json_number_value(json_array_get(claim->right_turns, i));
    }
    ls__bench_sort(ratios, (int)count);
    const double ratio =
        count % 2 == 1 ? ratios[count / 2] : 0.5 * (ratios[count / 2 - 1] + ratios[count / 2]);
    const char *verdict = verdict_of(claim, ratios, count);
    json_array_append_new(
        json_object_get(p->result, "claims"),
        json_pack("{s:s, s:s, s:s, s:f, s:s, s:f, s:f, s:f, s:i, s:b, s:s, s:b}", "claim",
                  claim->text, "left", claim->left, "relation", claim->above ? ">" : "<", "factor",
                  claim->factor, "right", claim->right, "ratio", ratio, "lowest", ratios[0],
                  "highest", ratios[count - 1], "turns", (int)count, "counted", claim->counted,
                  "verdict", verdict, "holds", strcmp(verdict, "holds") == 0));
}

int paper_verdicts(const json_t *result, const char *verdict)
{
    const json_t *claims = json_object_get(result, "claims");
    int count = 0;
    for (size_t i = 0; i < json_array_size(claims); i++) {
        count += strcmp(paper_text(json_array_get(claims, i), "verdict"), verdict) == 0;
    }
    return count;
}

/* Every plot says what its spread is, or why it has none. */
static const char *saying_of(const paper_plot *plot)
{
    if (plot->says != NULL) {
        return plot->says;
    }
    if (strcmp(plot->kind, "boxes") == 0) {
        return "boxes: quartiles of the steps; whiskers: 1.5 times as far; points: beyond";
    }
    LS_ASSERT(plot->spread[0] != NULL);
    return "bars: lowest to highest turn";
}

static json_t *spreads_of(const paper_plot *plot)
{
    json_t *list = json_array();
    for (int i = 0; i < 6 && plot->y[i] != NULL; i++) {
        LS_ASSERT(plot->spread[i] == NULL || paper_column_index(plot->table, plot->spread[i]) >= 0);
        json_array_append_new(list, json_string(plot->spread[i] != NULL ? plot->spread[i] : ""));
    }
    return list;
}

void paper_plot_add(paper *p, const paper_plot *plot)
{
    const json_t *tables = json_object_get(p->result, "tables");
    json_t *y = json_array();
    int table = -1;
    for (size_t t = 0; t < json_array_size(tables); t++) {
        table = json_array_get(tables, t) == plot->table ? (int)t : table;
    }
    LS_ASSERT(table >= 0 && paper_column_index(plot->table, plot->x) >= 0);
    for (int i = 0; i < 6 && plot->y[i] != NULL; i++) {
        LS_ASSERT(paper_column_index(plot->table, plot->y[i]) >= 0);
        json_array_append_new(y, json_string(plot->y[i]));
    }
    json_array_append_new(json_object_get(p->result, "plots"),
                          json_pack("{s:s, s:s, s:i, s:s, s:o, s:o, s:s*, s:s*, s:s, s:s*, s:s, "
                                    "s:s, s:s, s:[]}",
                                    "title", plot->title, "kind", plot->kind, "table", table, "x",
                                    plot->x, "y", y, "spread", spreads_of(plot), "area", plot->area,
                                    "part", plot->part, "says", saying_of(plot), "group",
                                    plot->group, "x_label", plot->x_label, "y_label", plot->y_label,
                                    "log", plot->log, "files"));
}

int paper_column_index(const json_t *table, const char *key)
{
    const json_t *columns = json_object_get(table, "columns");
    for (size_t c = 0; c < json_array_size(columns); c++) {
        if (strcmp(paper_text(json_array_get(columns, c), "key"), key) == 0) {
            return (int)c;
        }
    }
    return -1;
}

/* A number as the column's format says, "-" where there is none. */
const char *paper_cell(const json_t *table, size_t row, size_t column, char out[64])
{
    const json_t *cell =
        json_array_get(json_array_get(json_object_get(table, "rows"), row), column);
    const char *format = json_string_value(
        json_object_get(json_array_get(json_object_get(table, "columns"), column), "format"));
    if (json_is_string(cell)) {
        return json_string_value(cell);
    }
    if (!json_is_number(cell) || format == NULL) {
        return "-";
    }
    const int digits = atoi(format + strcspn(format, ".") + (strchr(format, '.') != NULL));
    if (format[strlen(format) - 1] == 'g') {
        (void)snprintf(out, 64, "%.*g", digits, json_number_value(cell));
    } else {
        (void)snprintf(out, 64, "%.*f", digits, json_number_value(cell));
    }
    return out;
}

/* A plot as a script of gnuplot, with its data in it. The terminal is set by whoever runs it. */
#include <stdio.h>
#include <string.h>

#include "paper.h"
#include "tools/cli/cli.h"

enum { GROUPS = 32 };

static const json_t *rows_of(const json_t *table)
{
    return json_object_get(table, "rows");
}

static const json_t *cell_of(const json_t *table, size_t row, const char *key)
{
    return json_array_get(json_array_get(rows_of(table), row),
                          (size_t)paper_column_index(table, key));
}

/* The text of a cell, as gnuplot's string. */
static const char *label_of(const json_t *table, size_t row, const char *key, char out[64])
{
    const char *text = paper_cell(table, row, (size_t)paper_column_index(table, key), out);
    char copy[64];
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *at = copy; *at != '\0'; at++) {
        *at = *at == '"' || *at == '\\' ? '\'' : *at;
    }
    memcpy(out, copy, 64);
    return out;
}

typedef struct groups { /* values of the group's column, in the order of the rows */
    char names[GROUPS][64];
    int count;
} groups;

static groups groups_of(const json_t *plot, const json_t *table)
{
    groups g = {.count = 0};
    const char *key = paper_text(plot, "group");
    char label[64];
    for (size_t r = 0; r < json_array_size(rows_of(table)); r++) {
        const char *name = key[0] != '\0' ? label_of(table, r, key, label) : "";
        bool known = false;
        for (int i = 0; i < g.count; i++) {
            known = known || strcmp(g.names[i], name) == 0;
        }
        if (!known && g.count < GROUPS) {
            (void)snprintf(g.names[g.count++], 64, "%s", name);
        }
    }
    return g;
}

static bool in_group(const json_t *plot, const json_t *table, size_t row, const char *name)
{
    char label[64];
    const char *key = paper_text(plot, "group");
    return key[0] == '\0' || strcmp(label_of(table, row, key, label), name) == 0;
}

static void lines(FILE *out, const json_t *plot, const json_t *table, const groups *g)
{
    const char *y = json_string_value(json_array_get(json_object_get(plot, "y"), 0));
    for (int i = 0; i < g->count; i++) {
        fprintf(out, "$d%d << EOD\n", i);
        for (size_t r = 0; r < json_array_size(rows_of(table)); r++) {
            const json_t *x = cell_of(table, r, paper_text(plot, "x")), *v = cell_of(table, r, y);
            if (in_group(plot, table, r, g->names[i]) && json_is_number(x) && json_is_number(v)) {
                fprintf(out, "%.9g %.9g\n", json_number_value(x), json_number_value(v));
            }
        }
        fprintf(out, "EOD\n");
    }
    for (int i = 0; i < g->count; i++) {
        fprintf(out, "%s$d%d using 1:2 with linespoints pointtype 7 title \"%s\"",
                i == 0 ? "plot " : ", ", i, g->names[i]);
    }
    fprintf(out, "\n");
}

/* A box for each row, groups beside each other; its list's quartiles, ends and outliers. */
static void boxes(FILE *out, const json_t *plot, const json_t *table, const groups *g)
{
    const char *y = json_string_value(json_array_get(json_object_get(plot, "y"), 0));
    const size_t rows = json_array_size(rows_of(table));
    char label[64];
    for (size_t r = 0; r < rows; r++) {
        const json_t *list = cell_of(table, r, y);
        fprintf(out, "$d%zu << EOD\n", r);
        for (size_t i = 0; i < json_array_size(list); i++) {
            fprintf(out, "%.9g\n", json_number_value(json_array_get(list, i)));
        }
        fprintf(out, "EOD\n");
    }
    fprintf(out, "set style fill solid 0.3\nset xtics (");
    for (size_t r = 0; r < rows; r++) {
        fprintf(out, "%s\"%s\" %zu", r > 0 ? ", " : "",
                label_of(table, r, paper_text(plot, "x"), label), r + 1);
    }
    fprintf(out, ") rotate by -30\nset xrange [0.3:%zu.7]\n", rows);
    for (size_t r = 0, first = 0; r < rows; r++) {
        int group = 0;
        while (group < g->count - 1 && !in_group(plot, table, r, g->names[group])) {
            group++;
        }
        const bool new_group = !(first >> group & 1u);
        first |= (size_t)1 << group;
        fprintf(out, "%s$d%zu using (%zu):1 with boxplot linecolor %d %s\"%s\"",
                r == 0 ? "plot " : ", ", r, r + 1, group + 1, new_group ? "title " : "notitle ",
                new_group ? g->names[group] : "");
    }
    fprintf(out, "\n");
}

/* Of each row the values on each other, or beside each other. */
static void stacks(FILE *out, const json_t *plot, const json_t *table, const char *style)
{
    const json_t *keys = json_object_get(plot, "y");
    char label[64];
    fprintf(out,
            "set style data histograms\nset style histogram %s\nset style fill solid 0.8\n"
            "set boxwidth 0.7\nset xtics rotate by -30\n$d << EOD\n",
            style);
    for (size_t r = 0; r < json_array_size(rows_of(table)); r++) {
        fprintf(out, "\"%s\"", label_of(table, r, paper_text(plot, "x"), label));
        for (size_t k = 0; k < json_array_size(keys); k++) {
            fprintf(
                out, " %.9g",
                json_number_value(cell_of(table, r, json_string_value(json_array_get(keys, k)))));
        }
        fprintf(out, "\n");
    }
    fprintf(out, "EOD\n");
    for (size_t k = 0; k < json_array_size(keys); k++) {
        fprintf(out, "%s$d using %zu:xtic(1) title \"%s\"", k == 0 ? "plot " : ", ", k + 2,
                json_string_value(json_array_get(keys, k)));
    }
    fprintf(out, "\n");
}

/* Whether the table shows this column: else its name is no word for readers. */
static bool is_shown(const json_t *table, const char *key)
{
    const int at = paper_column_index(table, key);
    const json_t *columns = json_object_get(table, "columns");
    return at >= 0 &&
           strcmp(paper_text(json_array_get(columns, (size_t)at), "format"), "list") != 0;
}

bool paper_script(const json_t *plot, const json_t *table, const char *path)
{
    FILE *out = cli_create(path);
    const groups g = groups_of(plot, table);
    const char *log = paper_text(plot, "log"), *kind = paper_text(plot, "kind");
    const bool is_boxes = strcmp(kind, "boxes") == 0; /* their spread is to be seen */
    if (out == NULL) {
        return false;
    }
    if (is_shown(table, paper_text(plot, "group"))) {
        fprintf(out, "set key title \"%s\" noenhanced\n", paper_text(plot, "group"));
    }
    fprintf(out, "set linetype 5 linecolor rgb '#8c564b'\n"); /* yellow is not seen on white */
    fprintf(out,
            "set title \"%s\" noenhanced\nset xlabel \"%s%s\"\nset ylabel \"%s\"\nset grid ytics\n"
            "set key noenhanced %s\nset xtics noenhanced\n%s%s\n%s",
            paper_text(plot, "title"), paper_text(plot, "x_label"),
            g.count > 1 ? "\\n " : "", /* room above the key */
            paper_text(plot, "y_label"),
            g.count > 1 ? "center bmargin horizontal maxcols 2" : "outside right top",
            log[0] != '\0' ? "set logscale "
            : is_boxes     ? ""
                           : "set yrange [0:*]",
            log, strchr(log, 'x') != NULL ? "set format x '%.0s%c'\n" : "");
    if (strcmp(kind, "lines") == 0) {
        lines(out, plot, table, &g);
    } else if (is_boxes) {
        boxes(out, plot, table, &g);
    } else {
        stacks(out, plot, table, strcmp(kind, "bars") == 0 ? "clustered gap 1" : "rowstacked");
    }
    return fclose(out) == 0;
}

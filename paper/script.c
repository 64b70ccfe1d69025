/* SPDX-License-Identifier: Apache-2.0 */
/* A plot as a script of gnuplot, with its data in it. The terminal is set by whoever runs it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "paper.h"
#include "tools/cli/cli.h"

enum { GROUPS = 32, TICS_WIDTH = 100 /* letters below the x axis */ };

static const json_t *rows_of(const json_t *table)
{
    return json_object_get(table, "rows");
}

static const json_t *cell_of(const json_t *table, size_t row, const char *key)
{
    return json_array_get(json_array_get(rows_of(table), row),
                          (size_t)paper_column_index(table, key));
}

/* The k-th of a list of keys of the plot, "" if there is none. */
static const char *key_of(const json_t *plot, const char *list, size_t k)
{
    const char *key = json_string_value(json_array_get(json_object_get(plot, list), k));
    return key != NULL ? key : "";
}

/* A text within gnuplot's double quotes. */
static void text_to(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\n') {
            fputs("\\n", out);
        } else {
            (void)fputc(strchr("\"\\`", *text) != NULL ? '\'' : *text, out);
        }
    }
}

static const char *label_of(const json_t *table, size_t row, const char *key, char out[64])
{
    char cell[64];
    (void)snprintf(out, 64, "%s",
                   paper_cell(table, row, (size_t)paper_column_index(table, key), cell));
    return out;
}

/* The lowest and the highest number of a list; a single one where there is no list. */
static void ends_of(const json_t *list, double single, double ends[2])
{
    ends[0] = ends[1] = single;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const double number = json_number_value(json_array_get(list, i));
        ends[0] = i == 0 ? number : fmin(ends[0], number);
        ends[1] = i == 0 ? number : fmax(ends[1], number);
    }
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

/* ---- lines ----------------------------------------------------------------------------------- */

typedef struct curve { /* the k-th y of a group */
    const json_t *plot, *table;
    const char *group;
    size_t k, ys;
    int id, color;
} curve;

static bool has_area(const curve *c)
{
    return paper_text(c->plot, "area")[0] != '\0' && c->k + 1 == c->ys;
}

/* Whether the line ends before this row: another seed's begins. */
static bool is_new_part(const curve *c, size_t row, char part[64])
{
    char label[64];
    const char *key = paper_text(c->plot, "part");
    if (key[0] == '\0') {
        return false;
    }
    const bool changed = part[0] != '\0' && strcmp(label_of(c->table, row, key, label), part) != 0;
    (void)label_of(c->table, row, key, part);
    return changed;
}

/* x, y, and the ends of its spread or area. */
static void curve_to(FILE *out, const curve *c)
{
    char part[64] = "";
    const char *key = key_of(c->plot, "y", c->k);
    const char *list = has_area(c) ? paper_text(c->plot, "area") : key_of(c->plot, "spread", c->k);
    fprintf(out, "$d%d << EOD\n", c->id);
    for (size_t r = 0; r < json_array_size(rows_of(c->table)); r++) {
        const json_t *x = cell_of(c->table, r, paper_text(c->plot, "x"));
        const json_t *y = cell_of(c->table, r, key);
        if (in_group(c->plot, c->table, r, c->group) && json_is_number(x) && json_is_number(y)) {
            double ends[2];
            ends_of(list[0] != '\0' ? cell_of(c->table, r, list) : NULL, json_number_value(y),
                    ends);
            fprintf(out, "%s%.9g %.9g %.9g %.9g\n", is_new_part(c, r, part) ? "\n" : "",
                    json_number_value(x), json_number_value(y), ends[0], ends[1]);
        }
    }
    fputs("EOD\n", out);
}

static void title_to(FILE *out, const curve *c)
{
    const char *key = c->ys > 1 ? key_of(c->plot, "y", c->k) : "";
    fputs(" title \"", out);
    text_to(out, c->group);
    text_to(out, c->group[0] != '\0' && key[0] != '\0' ? ", " : "");
    text_to(out, key);
    fputs("\"", out);
}

/* The line: with bars, above its area, or plain. */
static void line_to(FILE *out, const curve *c, bool first)
{
    fputs(first ? "plot " : ", ", out);
    if (has_area(c)) {
        fprintf(out,
                "$d%d using 1:3:4 with filledcurves linecolor %d fillstyle transparent solid 0.15 "
                "noborder notitle, $d%d using 1:2 with lines linecolor %d linewidth 2 dashtype %d",
                c->id, c->color, c->id, c->color, c->ys > 1 ? 2 : 1);
    } else if (key_of(c->plot, "spread", c->k)[0] != '\0') {
        fprintf(out, "$d%d using 1:2:3:4 with yerrorlines linecolor %d pointtype 7 pointsize 0.7",
                c->id, c->color);
    } else if (paper_text(c->plot, "part")[0] != '\0') {
        fprintf(out, "$d%d using 1:2 with lines linecolor %d", c->id, c->color);
    } else {
        fprintf(out, "$d%d using 1:2 with linespoints linecolor %d pointtype 7 pointsize 0.7",
                c->id, c->color);
    }
    title_to(out, c);
}

static void lines(FILE *out, const json_t *plot, const json_t *table, const groups *g)
{
    const size_t ys = json_array_size(json_object_get(plot, "y"));
    for (int pass = 0; pass < 2; pass++) { /* data, then what is drawn of it */
        for (int i = 0; i < g->count * (int)ys; i++) {
            const int group = i / (int)ys, k = i % (int)ys;
            const curve c = {
                plot, table, g->names[group], (size_t)k, ys, i, g->count > 1 ? group + 1 : k + 1};
            if (pass == 0) {
                curve_to(out, &c);
            } else {
                line_to(out, &c, i == 0);
            }
        }
    }
    fputs("\n", out);
}

/* ---- rows beside each other ------------------------------------------------------------------ */

/* Letters of the longest line of a label that is broken after its commas. */
static size_t width_of(const char *label)
{
    size_t width = 0;
    for (const char *at = label; at != NULL;) {
        const char *end = strstr(at, ", ");
        const size_t letters = end != NULL ? (size_t)(end - at) + 1 : strlen(at);
        width = letters > width ? letters : width;
        at = end != NULL ? end + 2 : NULL;
    }
    return width;
}

/* The rows' names below the axis: broken after commas if they fit so, else aslant. */
static void tics_to(FILE *out, const json_t *plot, const json_t *table, size_t first)
{
    const size_t rows = json_array_size(rows_of(table));
    char label[64];
    size_t width = 0;
    for (size_t r = 0; r < rows; r++) {
        const size_t its = width_of(label_of(table, r, paper_text(plot, "x"), label));
        width = its > width ? its : width;
    }
    const bool fits = rows * (width + 1) <= TICS_WIDTH;
    fputs("set xtics (", out);
    for (size_t r = 0; r < rows; r++) {
        (void)label_of(table, r, paper_text(plot, "x"), label);
        for (char *at = label; fits && (at = strstr(at, ", ")) != NULL;) {
            at[1] = '\n';
        }
        fputs(r > 0 ? ", \"" : "\"", out);
        text_to(out, label);
        fprintf(out, "\" %zu", r + first);
    }
    fputs(fits ? ")\n" : ") rotate by -30\n", out);
}

/* A box for each row, groups beside each other; its list's quartiles, ends and outliers. */
static void boxes(FILE *out, const json_t *plot, const json_t *table, const groups *g)
{
    const char *y = key_of(plot, "y", 0);
    const size_t rows = json_array_size(rows_of(table));
    for (size_t r = 0; r < rows; r++) {
        const json_t *list = cell_of(table, r, y);
        fprintf(out, "$d%zu << EOD\n", r);
        for (size_t i = 0; i < json_array_size(list); i++) {
            fprintf(out, "%.9g\n", json_number_value(json_array_get(list, i)));
        }
        fprintf(out, "EOD\n");
    }
    fputs("set style fill solid 0.3\n", out);
    tics_to(out, plot, table, 1);
    fprintf(out, "set xrange [0.3:%zu.7]\n", rows);
    for (size_t r = 0, first = 0; r < rows; r++) {
        int group = 0;
        while (group < g->count - 1 && !in_group(plot, table, r, g->names[group])) {
            group++;
        }
        const bool new_group = !(first >> group & 1u);
        first |= (size_t)1 << group;
        fprintf(out, "%s$d%zu using (%zu):1 with boxplot linecolor %d %s\"",
                r == 0 ? "plot " : ", ", r, r + 1, group + 1, new_group ? "title " : "notitle ");
        text_to(out, new_group ? g->names[group] : "");
        fputs("\"", out);
    }
    fputs("\n", out);
}

/* Of each row the values, each with the ends of its spread. The axis goes to the highest of these
 * ends and, for stacks, of the sums: gnuplot leaves the ends out. */
static void values_to(FILE *out, const json_t *plot, const json_t *table, bool stacked)
{
    const size_t ys = json_array_size(json_object_get(plot, "y"));
    double most = 0.0;
    fputs("$d << EOD\n", out);
    for (size_t r = 0; r < json_array_size(rows_of(table)); r++) {
        double sum = 0.0;
        for (size_t k = 0; k < ys; k++) {
            const double y = json_number_value(cell_of(table, r, key_of(plot, "y", k)));
            const char *spread = key_of(plot, "spread", k);
            double ends[2];
            ends_of(spread[0] != '\0' ? cell_of(table, r, spread) : NULL, y, ends);
            fprintf(out, "%s%.9g %.9g %.9g", k > 0 ? " " : "", y, ends[0], ends[1]);
            sum = stacked ? sum + y : 0.0;
            most = fmax(most, fmax(sum, ends[1]));
        }
        fputs("\n", out);
    }
    fprintf(out, "EOD\nset yrange [0:%.9g]\n", most > 0.0 ? 1.05 * most : 1.0);
}

/* The values beside each other, each with its bar. */
static void bars(FILE *out, const json_t *plot, const json_t *table)
{
    fputs("set style data histograms\nset style histogram errorbars gap 1 lw 1\n"
          "set style fill solid 0.6\n",
          out);
    tics_to(out, plot, table, 0);
    values_to(out, plot, table, false);
    for (size_t k = 0; k < json_array_size(json_object_get(plot, "y")); k++) {
        fprintf(out, "%s$d using %zu:%zu:%zu title \"", k == 0 ? "plot " : ", ", 3 * k + 1,
                3 * k + 2, 3 * k + 3);
        text_to(out, key_of(plot, "y", k));
        fputs("\"", out);
    }
    fputs("\n", out);
}

/* The values on each other, and a bar for the spread of the whole. */
static void stacks(FILE *out, const json_t *plot, const json_t *table)
{
    const size_t ys = json_array_size(json_object_get(plot, "y"));
    fputs("set style data histograms\nset style histogram rowstacked\nset style fill solid 0.8\n"
          "set boxwidth 0.7\n",
          out);
    tics_to(out, plot, table, 0);
    values_to(out, plot, table, true);
    for (size_t k = 0; k < ys; k++) {
        fprintf(out, "%s$d using %zu title \"", k == 0 ? "plot " : ", ", 3 * k + 1);
        text_to(out, key_of(plot, "y", k));
        fputs("\"", out);
    }
    fputs(", $d using 0:2:(0):($3-$2) with vectors heads size graph 0.01,90 linecolor rgb 'black' "
          "title \"turns\"\n",
          out);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Whether the table shows this column: else its name is no word for readers. */
static bool is_shown(const json_t *table, const char *key)
{
    const int at = paper_column_index(table, key);
    const json_t *columns = json_object_get(table, "columns");
    return at >= 0 &&
           strcmp(paper_text(json_array_get(columns, (size_t)at), "format"), "list") != 0;
}

static void frame_to(FILE *out, const json_t *plot, const json_t *table, const groups *g,
                     const char *below)
{
    const char *log = paper_text(plot, "log");
    const bool is_boxes = strcmp(paper_text(plot, "kind"), "boxes") == 0;
    if (is_shown(table, paper_text(plot, "group"))) {
        fprintf(out, "set key title \"%s\" noenhanced\n", paper_text(plot, "group"));
    }
    fputs("set linetype 5 linecolor rgb '#8c564b'\n" /* yellow is not seen on white */
          "set size 1,0.9\nset origin 0,0.1\nset label 1 \"",
          out);
    text_to(out, below);
    fputs("\" at screen 0.01,0.06 font \",9\" textcolor rgb '#555555' noenhanced\nset title \"",
          out);
    text_to(out, paper_text(plot, "title"));
    fprintf(out,
            "\" noenhanced\nset xlabel \"%s%s\"\nset ylabel \"%s\"\nset grid ytics\n"
            "set key noenhanced %s\nset xtics noenhanced\n%s%s\n%s",
            paper_text(plot, "x_label"), g->count > 1 ? "\\n " : "", /* room above the key */
            paper_text(plot, "y_label"),
            g->count > 1 ? "center bmargin horizontal maxcols 2" : "outside right top",
            log[0] != '\0' ? "set logscale "
            : is_boxes     ? "" /* their spread is to be seen */
                           : "set yrange [0:*]",
            log, strchr(log, 'x') != NULL ? "set format x '%.0s%c'\n" : "");
}

bool paper_script(const json_t *plot, const json_t *table, const char *below, const char *path)
{
    FILE *out = cli_create(path);
    const groups g = groups_of(plot, table);
    const char *kind = paper_text(plot, "kind");
    if (out == NULL) {
        return false;
    }
    frame_to(out, plot, table, &g, below);
    if (strcmp(kind, "lines") == 0) {
        lines(out, plot, table, &g);
    } else if (strcmp(kind, "boxes") == 0) {
        boxes(out, plot, table, &g);
    } else if (strcmp(kind, "bars") == 0) {
        bars(out, plot, table);
    } else {
        stacks(out, plot, table);
    }
    return fclose(out) == 0;
}

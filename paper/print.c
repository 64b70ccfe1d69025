/* SPDX-License-Identifier: Apache-2.0 */
/* Results as text, Markdown, CSV and JSON on the standard output. */
#include <stdio.h>
#include <string.h>

#include "paper.h"

typedef struct grid { /* a table as it is printed: with its header, transposed or not */
    const json_t *table;
    size_t shown[64]; /* columns of the table that are printed */
    size_t rows, columns;
    bool transposed;
} grid;

static grid grid_of(const json_t *table)
{
    grid g = {.table = table, .transposed = json_is_true(json_object_get(table, "transposed"))};
    const json_t *columns = json_object_get(table, "columns");
    for (size_t c = 0; c < json_array_size(columns) && g.columns < 64; c++) {
        const char *format =
            json_string_value(json_object_get(json_array_get(columns, c), "format"));
        if (format == NULL || strcmp(format, "list") != 0) {
            g.shown[g.columns++] = c;
        }
    }
    g.rows = json_array_size(json_object_get(table, "rows")) + 1;
    if (g.transposed) {
        const size_t rows = g.rows;
        g.rows = g.columns;
        g.columns = rows;
    }
    return g;
}

static const char *at(const grid *g, size_t row, size_t column, char out[64])
{
    const size_t r = g->transposed ? column : row, c = g->shown[g->transposed ? row : column];
    if (r > 0) {
        return paper_cell(g->table, r - 1, c, out);
    }
    const json_t *head = json_array_get(json_object_get(g->table, "columns"), c);
    const char *unit = paper_text(head, "unit");
    (void)snprintf(out, 64, unit[0] != '\0' ? "%s (%s)" : "%s", paper_text(head, "key"), unit);
    return out;
}

/* Characters of UTF-8. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text != '\0'; text++) {
        width += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return width;
}

/* Texts; numbers, and columns of both, have their ends below each other. */
static bool left_aligned(const grid *g, size_t column)
{
    const json_t *columns = json_object_get(g->table, "columns");
    return column == 0 ||
           (!g->transposed &&
            json_object_get(json_array_get(columns, g->shown[column]), "format") == NULL);
}

static void print_table(const json_t *table, bool markdown)
{
    const grid g = grid_of(table);
    char cell[64];
    if (g.columns == 0 || json_array_size(json_object_get(table, "rows")) == 0) {
        return; /* it is only plotted, or nothing of it was measured */
    }
    printf(markdown ? "\n### %s\n\n" : "\n%s\n", paper_text(table, "title"));
    for (size_t r = 0; r < g.rows; r++) {
        for (size_t c = 0; c < g.columns; c++) {
            int width = 0;
            for (size_t other = 0; other < g.rows && !markdown; other++) {
                const int its = width_of(at(&g, other, c, cell));
                width = its > width ? its : width;
            }
            const char *text = at(&g, r, c, cell);
            const int blanks = width > width_of(text) ? width - width_of(text) : 0;
            if (markdown) {
                printf("| %s ", text);
            } else if (left_aligned(&g, c)) {
                printf("  %s%*s", text, c + 1 < g.columns ? blanks : 0, "");
            } else {
                printf("  %*s%s", blanks, "", text);
            }
        }
        puts(markdown ? "|" : "");
        for (size_t c = 0; c < g.columns && markdown && r == 0; c++) {
            printf(c + 1 < g.columns ? "| --- " : "| --- |\n");
        }
    }
}

/* A field in quotes if it has to be (RFC 4180). */
static void print_field(const char *text)
{
    if (strpbrk(text, ",\"\n") == NULL) {
        fputs(text, stdout);
        return;
    }
    putchar('"');
    for (; *text != '\0'; text++) {
        printf(*text == '"' ? "\"\"" : "%c", *text);
    }
    putchar('"');
}

static void print_csv(const json_t *table)
{
    const grid g = grid_of(table);
    char cell[64];
    if (g.columns == 0) {
        return;
    }
    for (size_t r = 0; r < g.rows; r++) {
        for (size_t c = 0; c < g.columns; c++) {
            print_field(at(&g, r, c, cell));
            putchar(c + 1 < g.columns ? ',' : '\n');
        }
    }
}

static void print_claim(const json_t *claim)
{
    const double factor = paper_number(claim, "factor"), turns = paper_number(claim, "turns");
    char times[32] = "", in[64];
    if (factor != 1.0) {
        (void)snprintf(times, sizeof times, "%g x ", factor);
    }
    if (json_is_true(json_object_get(claim, "counted"))) {
        (void)snprintf(in, sizeof in, "counted");
    } else if (turns > 1.0) {
        (void)snprintf(in, sizeof in, "%.3f to %.3f in %.0f turns", paper_number(claim, "lowest"),
                       paper_number(claim, "highest"), turns);
    } else {
        (void)snprintf(in, sizeof in, "one turn, which decides nothing");
    }
    printf("\nclaim: %s\n       %s %s %s%s: %s, ratio %.3f (%s)\n", paper_text(claim, "claim"),
           paper_text(claim, "left"), paper_text(claim, "relation"), times,
           paper_text(claim, "right"), paper_text(claim, "verdict"), paper_number(claim, "ratio"),
           in);
}

void paper_print(const json_t *result, const char *format)
{
    const bool markdown = strcmp(format, "markdown") == 0;
    char conditions[PAPER_CONDITIONS];
    size_t i;
    const json_t *item;
    if (strcmp(format, "json") == 0) {
        (void)json_dumpf(result, stdout, JSON_INDENT(2));
        puts("");
        return;
    }
    if (strcmp(format, "csv") == 0) {
        json_array_foreach(json_object_get(result, "tables"), i, item)
        {
            printf(i > 0 ? "\n" : "");
            print_csv(item);
        }
        return;
    }
    printf("%s%s: %s (%s)\n", markdown ? "## " : "", paper_text(result, "experiment"),
           paper_text(result, "about"), paper_text(result, "place"));
    const json_t *machine = json_object_get(result, "machine");
    printf("%sMachine: %s, %.0f cores, %s %s\n", markdown ? "\n" : "", paper_text(machine, "cpu"),
           paper_number(machine, "cores"), paper_text(machine, "system"),
           paper_text(machine, "release"));
    printf("%s%s\n", markdown ? "\n" : "", paper_conditions(result, conditions));
    if (json_object_get(result, "incomplete") != NULL) {
        printf("%sINCOMPLETE: %s\n", markdown ? "\n" : "", paper_text(result, "incomplete"));
    }
    json_array_foreach(json_object_get(result, "tables"), i, item)
    {
        print_table(item, markdown);
    }
    json_array_foreach(json_object_get(result, "claims"), i, item)
    {
        print_claim(item);
    }
    json_array_foreach(json_object_get(result, "notes"), i, item)
    {
        printf("\n%s\n", json_string_value(item));
    }
}

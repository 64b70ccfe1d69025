/* SPDX-License-Identifier: Apache-2.0 */
/* The report of `lockstep paper all`: one HTML file with the tables, the claims and the plots in
 * it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "paper.h"
#include "tools/cli/cli.h"

enum { SHORT = 32 }; /* letters of a cell that stay on one line */

static void escaped(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        default:
            (void)fputc(*text, out);
        }
    }
}

static void element(FILE *out, const char *name, const char *text)
{
    fprintf(out, "<%s>", name);
    escaped(out, text);
    fprintf(out, "</%s>\n", name);
}

/* A note: what stands between backticks is code. */
static void note_to(FILE *out, const char *text)
{
    char part[1024];
    bool code = false;
    fputs("<p>", out);
    for (size_t bytes; *text != '\0'; text += bytes + (text[bytes] == '`'), code = !code) {
        bytes = strcspn(text, "`");
        (void)snprintf(part, sizeof part, "%.*s", (int)bytes, text);
        fputs(code ? "<code>" : "", out);
        escaped(out, part);
        fputs(code ? "</code>" : "", out);
    }
    fputs("</p>\n", out);
}

/* A cell of a number, or of a text, which is not broken if it is short. */
static void cell_to(FILE *out, const char *format, const char *text)
{
    const char *kind = format[0] != '\0' ? "n" : strlen(text) <= SHORT ? "s" : "l";
    fprintf(out, "<td class=\"%s\">", kind);
    escaped(out, text);
    fputs("</td>", out);
}

static bool is_only_plotted(const json_t *columns)
{
    bool only = true;
    for (size_t c = 0; c < json_array_size(columns); c++) {
        only = only && strcmp(paper_text(json_array_get(columns, c), "format"), "list") == 0;
    }
    return only;
}

static void table_to(FILE *out, const json_t *table)
{
    const json_t *columns = json_object_get(table, "columns");
    char cell[64];
    if (is_only_plotted(columns) || json_array_size(json_object_get(table, "rows")) == 0) {
        return;
    }
    element(out, "h3", paper_text(table, "title"));
    fputs("<div class=\"wide\"><table>\n<tr>", out);
    for (size_t c = 0; c < json_array_size(columns); c++) {
        const json_t *column = json_array_get(columns, c);
        if (strcmp(paper_text(column, "format"), "list") != 0) {
            fputs("<th>", out);
            escaped(out, paper_text(column, "key"));
            fprintf(out, "<br><small>%s</small></th>", paper_text(column, "unit"));
        }
    }
    fputs("</tr>\n", out);
    for (size_t r = 0; r < json_array_size(json_object_get(table, "rows")); r++) {
        fputs("<tr>", out);
        for (size_t c = 0; c < json_array_size(columns); c++) {
            const char *format = paper_text(json_array_get(columns, c), "format");
            if (strcmp(format, "list") != 0) {
                cell_to(out, format, paper_cell(table, r, c, cell));
            }
        }
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
}

static void claim_to(FILE *out, const json_t *claim)
{
    const char *verdict = paper_text(claim, "verdict");
    fprintf(out, "<p class=\"%s\"><b>%s</b>: ", verdict, verdict);
    escaped(out, paper_text(claim, "claim"));
    fputs(" (", out);
    escaped(out, paper_text(claim, "left"));
    fprintf(out, " %s ", paper_text(claim, "relation")[0] == '<' ? "&lt;" : "&gt;");
    if (paper_number(claim, "factor") != 1.0) {
        fprintf(out, "%g &times; ", paper_number(claim, "factor"));
    }
    escaped(out, paper_text(claim, "right"));
    fprintf(out, ": ratio %.3f", paper_number(claim, "ratio"));
    if (json_is_true(json_object_get(claim, "counted"))) {
        fputs(", counted)</p>\n", out);
    } else if (paper_number(claim, "turns") > 1.0) {
        fprintf(out, ", %.3f to %.3f in %.0f turns)</p>\n", paper_number(claim, "lowest"),
                paper_number(claim, "highest"), paper_number(claim, "turns"));
    } else {
        fputs(" in one turn, which decides nothing)</p>\n", out);
    }
}

/* The SVG itself, so that the page needs no other file. */
static void plot_to(FILE *out, const json_t *plot, const char *folder)
{
    char path[600], part[4096];
    const char *file = json_string_value(json_array_get(json_object_get(plot, "files"), 0));
    if (file == NULL) {
        return;
    }
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *in = cli_open(path, "r");
    bool inside = false; /* past the XML declaration, which HTML does not have */
    while (in != NULL && fgets(part, sizeof part, in) != NULL) {
        inside = inside || strstr(part, "<svg") != NULL;
        fputs(inside ? part : "", out);
    }
    if (in != NULL) {
        (void)fclose(in);
    }
}

static void result_to(FILE *out, const json_t *result, const char *folder)
{
    char conditions[PAPER_CONDITIONS];
    size_t i;
    const json_t *item;
    fprintf(out, "<section id=\"%s\">\n<h2>%s: ", paper_text(result, "experiment"),
            paper_text(result, "experiment"));
    escaped(out, paper_text(result, "about"));
    fputs("</h2>\n", out);
    element(out, "p", paper_text(result, "place"));
    element(out, "pre", paper_text(result, "command"));
    if (json_object_get(result, "incomplete") != NULL) {
        fputs("<p class=\"fails\"><b>incomplete</b>: ", out);
        escaped(out, paper_text(result, "incomplete"));
        fputs("</p>\n", out);
    }
    fputs(paper_is_quiet(result) ? "<p>" : "<p class=\"fails\"><b>", out);
    escaped(out, paper_conditions(result, conditions));
    fputs(paper_is_quiet(result) ? "</p>\n" : "</b></p>\n", out);
    json_array_foreach(json_object_get(result, "plots"), i, item)
    {
        plot_to(out, item, folder);
    }
    json_array_foreach(json_object_get(result, "claims"), i, item)
    {
        claim_to(out, item);
    }
    json_array_foreach(json_object_get(result, "tables"), i, item)
    {
        table_to(out, item);
    }
    json_array_foreach(json_object_get(result, "notes"), i, item)
    {
        note_to(out, json_string_value(item));
    }
    fputs("</section>\n", out);
}

/* Its claims by their verdicts, or why there are none. */
static void verdicts_to(FILE *out, const paper_entry *entry)
{
    static const char *const verdicts[] = {"holds", "fails", "undecided"};
    const json_t *result = entry->result;
    if (result == NULL) {
        fputs("<td colspan=\"3\" class=\"fails\"><b>no result</b>: ", out);
        escaped(out, entry->why);
        fputs("</td><td></td>", out);
        return;
    }
    const bool any = json_array_size(json_object_get(result, "claims")) > 0;
    for (int v = 0; v < 3; v++) {
        const int count = paper_verdicts(result, verdicts[v]);
        if (any) {
            fprintf(out, "<td class=\"n\">%d</td>", count);
        } else {
            fputs("<td class=\"n\">-</td>", out);
        }
    }
    fprintf(out, "<td>%s%s</td>",
            json_object_get(result, "incomplete") != NULL ? "<b>incomplete</b> " : "",
            paper_is_quiet(result) ? "" : "<b>not quiet</b>");
}

/* A line for each experiment, whether it has a result or not. */
static void contents_to(FILE *out, const paper_entry *entries, int count)
{
    fputs("<table>\n<tr><th>experiment</th><th></th><th>claims that hold here</th><th>that "
          "fail</th><th>undecided</th><th></th></tr>\n",
          out);
    for (int i = 0; i < count; i++) {
        const char *name = entries[i].experiment->name;
        if (entries[i].result != NULL) {
            fprintf(out, "<tr><td><a href=\"#%s\">%s</a></td><td>", name, name);
        } else {
            fprintf(out, "<tr><td>%s</td><td>", name);
        }
        escaped(out, entries[i].experiment->about);
        fputs("</td>", out);
        verdicts_to(out, &entries[i]);
        fputs("</tr>\n", out);
    }
    fputs(
        "</table>\n<p>A claim holds if it does in every turn, and fails if it does in none. Where "
        "turns differ, or there is one alone, it is undecided: measure more turns "
        "(<code>--turns</code>) while nothing else runs.</p>\n",
        out);
}

/* The machine of the first result, the versions and the dates. */
static void machine_to(FILE *out, const paper_entry *entries, int count)
{
    const json_t *first = NULL, *last = NULL;
    int busy = 0;
    for (int i = 0; i < count; i++) {
        const json_t *result = entries[i].result;
        first = first == NULL ? result : first;
        last = result != NULL ? result : last;
        busy += result != NULL && !paper_is_quiet(result);
    }
    if (first == NULL) {
        return;
    }
    const json_t *machine = json_object_get(first, "machine");
    fprintf(out, "<p>Lockstep %s on ", paper_text(first, "version"));
    escaped(out, paper_text(machine, "cpu"));
    fprintf(out, ", %.0f cores, %s %s; %s to %s.", paper_number(machine, "cores"),
            paper_text(machine, "system"), paper_text(machine, "release"),
            paper_text(first, "date"), paper_text(last, "date"));
    if (busy > 0) {
        fprintf(out, " <b>Other programs ran during %d of the experiments.</b>", busy);
    }
    fputs("</p>\n", out);
}

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Lockstep: the paper's "
    "experiments</title>\n"
    "<style>\nbody{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 "
    "1em;color:#222;background:#fff}\n"
    "table{border-collapse:collapse}td,th{padding:.15em .6em;border-bottom:1px solid "
    "#ddd;text-align:left}\n"
    ".n{text-align:right}.n,.s{white-space:nowrap}.wide{overflow-x:auto}.holds b{color:#070}.fails "
    "b{color:#a00}.undecided b{color:#850}svg{max-width:100%;height:auto}\n"
    "</style></head><body>\n<h1>PyTorch Distributed (Li et al., VLDB 2020) on this machine</h1>\n";

bool paper_page(const paper_entry *entries, int count, const char *path)
{
    char folder[512], beside[520];
    (void)snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    (void)snprintf(beside, sizeof beside, "%.510s.part", path);
    FILE *out = cli_create(beside);
    if (out != NULL) {
        fputs(head, out);
        machine_to(out, entries, count);
        contents_to(out, entries, count);
        for (int i = 0; i < count; i++) {
            if (entries[i].result != NULL) {
                result_to(out, entries[i].result, folder);
            }
        }
        fputs("</body></html>\n", out);
    }
    if (out == NULL || fclose(out) != 0 || rename(beside, path) != 0) {
        fprintf(stderr, "lockstep paper: \"%s\" cannot be written: %s\n", path, strerror(errno));
        return false;
    }
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The page of `lockstep report`: a table of the runs, plots of their logs beside each other, and
 * the ranks of each trace. The file needs no other one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/version.h>

#include "tools/report.h"

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width\"><title>Lockstep runs</title>\n"
    "<style>\nbody{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 "
    "1em;color:#222;background:#fff}\n"
    "table{border-collapse:collapse}td,th{padding:.15em .6em;border-bottom:1px solid "
    "#ddd;text-align:left}\n"
    ".n{text-align:right}.wide{overflow-x:auto}svg{width:100%;height:auto}"
    ".k{display:inline-block;width:.8em;height:.8em;margin-right:.4em}\n"
    "</style></head><body>\n<h1>Runs</h1>\n";

void html_text(FILE *out, const char *text)
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

/* ---- the table ------------------------------------------------------------------------------ */

/* A cell of a number, a dash if it is not known. */
static void number_cell(FILE *out, double value, double scale, int digits, const char *unit)
{
    if (!report_is_known(value)) {
        fputs("<td class=\"n\">&ndash;</td>", out);
    } else {
        fprintf(out, "<td class=\"n\">%.*f%s</td>", digits, value * scale, unit);
    }
}

static void slowest_cell(FILE *out, const report_summary *s)
{
    if (s->slowest < 0 || !report_is_known(s->slowest_ms) || !report_is_known(s->mean_ms)) {
        fputs("<td>&ndash;</td>", out);
    } else {
        fprintf(out, "<td>rank %d: %.1f ms, mean %.1f</td>", s->slowest, s->slowest_ms, s->mean_ms);
    }
}

static void run_row(FILE *out, const report_run *run, int number)
{
    const report_summary s = report_summarise(run);
    const double mib = 1.0 / (1 << 20);
    fprintf(out, "<tr><td><span class=\"k\" style=\"background:%s\"></span>", report_color(number));
    html_text(out, report_name(run));
    fprintf(out, "</td><td class=\"n\">%lld</td>", (long long)s.steps);
    number_cell(out, s.last_loss, 1.0, 4, "");
    number_cell(out, s.best_held_out, 1.0, 4, "");
    number_cell(out, s.step_seconds, 1e3, 2, " ms");
    number_cell(out, s.per_second, 1.0, 0, "");
    number_cell(out, s.exposed, 100.0, 1, " %");
    slowest_cell(out, &s);
    number_cell(out, s.peak_bytes, mib, 1, " MiB");
    number_cell(out, s.estimate_bytes, mib, 1, " MiB");
    fputs("</tr>\n", out);
}

static void run_table(FILE *out, const report_run *runs, int count)
{
    fputs("<div class=\"wide\"><table>\n<tr><th>run</th><th>steps</th><th>last loss</th>"
          "<th>best held-out</th><th>step</th><th>per second</th><th>exposed</th>"
          "<th>slowest rank</th><th>peak memory</th><th>estimate</th></tr>\n",
          out);
    for (int i = 0; i < count; i++) {
        run_row(out, &runs[i], i);
    }
    fputs(
        "</table></div>\n<p>Times and speeds are medians over the steps but the first. Exposed is "
        "the share of the time in which ranks waited for communication. The slowest rank works "
        "longest in a step, by the trace. Peak memory is that of the rank with most; the estimate "
        "is what the trainer expected a rank to need.</p>\n",
        out);
}

/* ---- plots ---------------------------------------------------------------------------------- */

typedef double value_of(const report_run *run, int64_t i);

static double loss_at(const report_run *run, int64_t i)
{
    return run->rows[i].loss;
}

static double speed_at(const report_run *run, int64_t i)
{
    return run->rows[i].per_second;
}

static double exposed_at(const report_run *run, int64_t i)
{
    const report_row *row = &run->rows[i];
    return row->seconds > 0.0 ? 100.0 * row->exposed / row->seconds : NAN;
}

static double held_out_at(const report_run *run, int64_t i)
{
    return run->scores[i].loss;
}

/* Two arrays in one block; .x is NULL without values or memory. */
static report_curve curve_of(const report_run *run, int number, value_of *value, bool scores)
{
    const int64_t count = scores ? run->score_count : run->count;
    double *block = count > 0 ? calloc(2 * (size_t)count, sizeof *block) : NULL;
    bool any = false;
    for (int64_t i = 0; block != NULL && i < count; i++) {
        block[i] = (double)(scores ? run->scores[i].step : run->rows[i].step);
        block[count + i] = value(run, i);
        any = any || !isnan(block[count + i]);
    }
    if (!any) {
        free(block);
        return (report_curve){.count = 0};
    }
    return (report_curve){
        .x = block, .y = block + count, .count = count, .color = number, .points = scores};
}

/* `scores` NULL: no points. Nothing is drawn without a value. */
static void plot_of(FILE *out, const char *title, const char *label, const report_run *runs,
                    int count, value_of *rows, value_of *scores)
{
    report_curve curves[2 * REPORT_RUNS_MAX];
    int drawn = 0;
    for (int i = 0; i < count; i++) {
        curves[drawn] = curve_of(&runs[i], i, rows, false);
        drawn += curves[drawn].count > 0;
    }
    for (int i = 0; i < count && scores != NULL; i++) {
        curves[drawn] = curve_of(&runs[i], i, scores, true);
        drawn += curves[drawn].count > 0;
    }
    if (drawn > 0) {
        report_plot(out, title, label, curves, drawn);
    }
    for (int i = 0; i < drawn; i++) {
        free((void *)(uintptr_t)curves[i].x);
    }
}

/* "tokens a second" if all runs count the same, else "units a second". */
static void speed_label(const report_run *runs, int count, char *out, size_t bytes)
{
    const char *unit = runs[0].unit;
    for (int i = 1; i < count; i++) {
        unit = strcmp(runs[i].unit, unit) == 0 ? unit : "units";
    }
    (void)snprintf(out, bytes, "%.31s a second", unit[0] != '\0' ? unit : "units");
    for (char *c = out; *c != '\0'; c++) { /* it stands in the SVG as it is */
        *c = strchr("abcdefghijklmnopqrstuvwxyz_ ", *c) != NULL ? *c : '?';
    }
}

/* ---- traces --------------------------------------------------------------------------------- */

static void rank_row(FILE *out, const char *name, const trace_mean *m)
{
    fprintf(out, "<tr><td>%s</td>", name);
    number_cell(out, m->ms, 1.0, 2, "");
    for (int p = 0; p < TRACE_PARTS; p++) {
        number_cell(out, m->part[p], 1.0, 2, "");
    }
    number_cell(out, m->wire_ms, 1.0, 2, "");
    number_cell(out, trace_hidden(m), 100.0, 0, " %");
    fputs("</tr>\n", out);
}

static void trace_table(FILE *out, const trace *t)
{
    char name[32];
    fputs("<div class=\"wide\"><table>\n<tr><th>ms of a step</th><th>step</th>", out);
    for (int p = 0; p < TRACE_PARTS; p++) {
        fprintf(out, "<th>%s</th>", trace_part_names[p]);
    }
    fputs("<th>wire</th><th>hidden</th></tr>\n", out);
    for (int r = 0; r < t->world_size; r++) {
        const trace_mean m = trace_mean_of(t, r, -1);
        (void)snprintf(name, sizeof name, "rank %d", r);
        if (m.steps > 0) {
            rank_row(out, name, &m);
        }
    }
    const trace_mean all = trace_mean_of(t, -1, -1);
    rank_row(out, "mean", &all);
    fputs("</table></div>\n", out);
}

/* The parts of a step of each rank as a bar. */
static void trace_bars(FILE *out, const trace *t)
{
    static const char *const colors[TRACE_PARTS] = {"#4c78a8", "#54a24b", "#d04a35",
                                                    "#e9a23b", "#8d6cab", "#bbbbbb"};
    const double left = 76, width = 732;
    double most = 0.0;
    int rows = 0;
    for (int r = 0; r < t->world_size; r++) {
        const trace_mean m = trace_mean_of(t, r, -1);
        most = m.ms > most ? m.ms : most;
        rows += m.steps > 0;
    }
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 820 %d\" role=\"img\" "
            "aria-label=\"parts of a step by rank\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n",
            30 + 22 * rows);
    for (int p = 0; p < TRACE_PARTS; p++) {
        fprintf(out,
                "<rect x=\"%g\" y=\"6\" width=\"10\" height=\"10\" fill=\"%s\"/>"
                "<text x=\"%g\" y=\"15\">%s</text>\n",
                left + 110 * p, colors[p], left + 110 * p + 14, trace_part_names[p]);
    }
    const bool drawn = most > 0.0 && report_is_known(most);
    for (int r = 0, row = 0; r < t->world_size && drawn; r++) {
        const trace_mean m = trace_mean_of(t, r, -1);
        double x = left;
        if (m.steps == 0 || !report_is_known(m.ms)) {
            continue;
        }
        fprintf(out, "<text x=\"4\" y=\"%d\">rank %d</text>\n", 40 + 22 * row, r);
        for (int p = 0; p < TRACE_PARTS; p++) {
            fprintf(out, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"16\" fill=\"%s\"/>\n",
                    x, 28 + 22 * row, m.part[p] / most * width, colors[p]);
            x += m.part[p] / most * width;
        }
        row++;
    }
    fputs("</svg>\n", out);
}

static void trace_to(FILE *out, const report_run *run)
{
    fputs("<h2>Ranks of ", out);
    html_text(out, report_name(run));
    fputs("</h2>\n", out);
    trace_bars(out, run->trace);
    trace_table(out, run->trace);
    if (run->trace->cut) {
        fputs("<p>The trace ends in the middle.</p>\n", out);
    }
}

/* ---- all ------------------------------------------------------------------------------------ */

static void damage_to(FILE *out, const report_run *run)
{
    if (run->damaged > 0) {
        fputs("<p>", out);
        html_text(out, run->log);
        fprintf(out, ": %lld of %lld lines are damaged and left out.</p>\n",
                (long long)run->damaged, (long long)run->lines);
    }
}

bool report_page(FILE *out, const char *command, const report_run *runs, int count)
{
    char label[64];
    fputs(head, out);
    run_table(out, runs, count);
    for (int i = 0; i < count; i++) {
        damage_to(out, &runs[i]);
    }
    speed_label(runs, count, label, sizeof label);
    plot_of(out, "loss", "line: of the steps; circles: held-out", runs, count, loss_at,
            held_out_at);
    plot_of(out, "speed", label, runs, count, speed_at, NULL);
    plot_of(out, "exposed communication", "% of the time of a step", runs, count, exposed_at, NULL);
    for (int i = 0; i < count; i++) {
        if (runs[i].trace != NULL) {
            trace_to(out, &runs[i]);
        }
    }
    fputs("<p><code>", out);
    html_text(out, command);
    fprintf(out, "</code>, lockstep %s</p>\n</body></html>\n", ls_version());
    return ferror(out) == 0;
}

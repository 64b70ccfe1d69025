/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep report`: runs as one page.
 *
 *     report_read.c reads logs and traces  ▸  cmd_report.c prints the summary
 *                                          ▸  report_page.c, report_plot.c write the page
 */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <lockstep/status.h>

#include "tools/trace.h"

#define REPORT_RUNS_MAX 8
#define REPORT_NUMBER_MAX 1e30 /* a number beyond it counts as missing, which is NAN */

/* What the log says of a step. Missing numbers are NAN. */
typedef struct report_row {
    int64_t step;
    double loss, seconds, exposed, per_second;
} report_row;

/* What it says of an evaluation. */
typedef struct report_score {
    int64_t step;
    double loss, peak_bytes, estimate_bytes;
} report_score;

typedef struct report_run {
    const char *log, *trace_file; /* NULL: it has none; borrowed */
    report_row *rows;             /* by step, each once */
    int64_t count, room;
    report_score *scores;
    int64_t score_count, score_room;
    int64_t lines, damaged; /* of the log; those that are left out */
    char unit[32];          /* of per_second: "tokens"; "": unknown */
    trace *trace;           /* NULL: it has none */
} report_run;

/* Reads files in their order: a log begins a run, a trace belongs to the log before it or is a run
 * of its own. `runs` must be zero. Fills *count also on failure; report_free releases them. */
ls_status report_read(char *const *files, int file_count, report_run *runs, int *count);
void report_free(report_run *runs, int count);

/* Whether a number can be shown: it is known, and of a size that a run can have. */
static inline bool report_is_known(double value)
{
    return value >= -REPORT_NUMBER_MAX && value <= REPORT_NUMBER_MAX;
}

/* What is said of a run; NAN and -1: unknown. */
typedef struct report_summary {
    int64_t steps; /* lines of steps; of a trace without a log, its steps */
    double last_loss, best_held_out;
    double per_second;          /* median */
    double step_seconds;        /* median */
    double exposed;             /* share of the time of all steps but the first */
    int slowest;                /* rank */
    double slowest_ms, mean_ms; /* work of a step */
    double peak_bytes, estimate_bytes;
} report_summary;
report_summary report_summarise(const report_run *run);
/* The name of a run: its log, or else its trace. */
const char *report_name(const report_run *run);

/* ---- the page ------------------------------------------------------------------------------- */

typedef struct report_curve {
    const double *x, *y; /* [count]; NAN: nothing is drawn there */
    int64_t count;
    int color;   /* of its run */
    bool points; /* instead of a line */
} report_curve;

/* Writes one <svg>. */
void report_plot(FILE *out, const char *title, const char *y_label, const report_curve *curves,
                 int count);
const char *report_color(int run);

/* False: the file cannot be written, with errno. */
bool report_page(FILE *out, const char *command, const report_run *runs, int count);
/* Text as HTML shows it, as it is. */
void html_text(FILE *out, const char *text);

#endif

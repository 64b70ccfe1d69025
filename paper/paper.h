/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep paper NAME`: figures and tables of "PyTorch Distributed: Experiences on Accelerating
 * Data Parallel Training" (Li et al., VLDB 2020) and of the lectures that teach it, measured on
 * this machine.
 *
 * An experiment fills a result: tables, claims, plots. All else is made from the result:
 *
 *     experiment  ▸  result.c (JSON)  ▸  print.c (text, Markdown, CSV)
 *     (a file each)                   ▸  plot.c, script.c (gnuplot: SVG, PNG)
 *                                     ▸  page.c (the report of `paper all`)
 *
 * Experiments do not measure themselves: measure.c runs `lockstep bench` and returns its rows, over
 * a link of link.c if one is asked for, and conditions.c watches what else runs meanwhile.
 */
#ifndef PAPER_PAPER_H
#define PAPER_PAPER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct paper paper;

typedef struct paper_experiment {
    const char *name;      /* "fig7" */
    const char *place;     /* "figure 7, section 5.2"; of the paper unless it says otherwise */
    const char *about;     /* "step time against bucket size" */
    bool (*run)(paper *p); /* false after it printed why */
} paper_experiment;

typedef struct paper_options {
    const char *format;    /* "text", "markdown", "csv", "json" */
    const char *out;       /* folder of the files; NULL: none are written */
    const char *transport; /* "shm", "tcp", "mpi"; NULL: the experiment's own */
    const char *link;      /* "100mbit", "1gbit", "10gbit"; NULL: none */
    bool full;             /* the paper's networks instead of smaller ones */
    bool quick;            /* one medium, fewer turns and data: two minutes at most */
    const char *model;     /* only this network, of `lockstep bench ddp`; NULL: the experiment's */
    const char *sizes;     /* of all_reduce: "1M,10M" */
    const char *compute;   /* "measured", "replay"; NULL: the experiment's own */
    double speed;          /* a replayed network computes this many times as fast; 0: as recorded */
    int64_t parameters;    /* of fig2, in all; 0: the paper's */
    int steps, turns;      /* timed steps of a turn, turns; 0: the experiment's own */
    int workers;           /* of server; 0: the experiment's */
} paper_options;

typedef struct paper_mpi {        /* an MPI that jobs can be started under */
    const char *title, *launcher; /* "Open MPI", "mpirun.openmpi" */
    bool open_mpi;
} paper_mpi;

struct paper { /* an experiment in progress */
    const paper_experiment *experiment;
    const paper_options *options;
    const char *transport, *link; /* of the measurement: the options', or paper_next_medium's */
    bool star;                    /* with a link: each rank on a host of its own, at a switch */
    paper_mpi mpi;                /* of the transport "mpi" */
    int medium;                   /* how many paper_next_medium has seen */
    json_t *skipped;              /* the table of media that are not measured; NULL: none yet */
    json_t *result;
};

/* ---- the result (result.c) ------------------------------------------------------------------- */

typedef struct paper_column {
    const char *key;    /* "step_time_avg_s" */
    const char *unit;   /* "ms"; "" */
    const char *format; /* of a number: "%.3f"; NULL: a text; "list": a list, which only plots
                           use */
} paper_column;

json_t *paper_result_new(const paper_experiment *e, const paper_options *o, const char *command);
/* Whether any table has a row. */
bool paper_has_rows(const json_t *result);
/* Why it is not all that the experiment measures: "interrupted". The first reason stays. */
void paper_set_incomplete(json_t *result, const char *why);
/* Returns the table, which belongs to the result. */
json_t *paper_table(paper *p, const char *title, const paper_column *columns, int count);
/* Rows become columns where the table is printed, as the course's notebook prints it. */
void paper_transpose(json_t *table);
/* A row: jansson's format of a list with as many values as columns, "[s, f, o]". */
void paper_row(json_t *table, const char *format, ...);
void paper_note(paper *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A claim of the paper, as an inequality of two rows of measured times: left / right is below (or
 * above) `factor`. The lists have a number for each turn. It holds if it does in every turn, fails
 * if it does in none, and is undecided if turns differ or if there is one alone. */
typedef struct paper_claim {
    const char *text; /* "overlap makes a step faster (section 5.1)" */
    const char *left, *right;
    const json_t *left_turns, *right_turns;
    bool above;
    double factor;
    bool counted; /* bytes: they have no spread, so one number decides */
} paper_claim;
void paper_claim_add(paper *p, const paper_claim *claim);
/* How many claims have this verdict: "holds", "fails", "undecided". */
int paper_verdicts(const json_t *result, const char *verdict);

typedef struct paper_plot {
    const char *title;
    const char *kind;     /* "lines", "boxes" (y is a list), "stacks" or "bars" beside each other */
    const json_t *table;  /* of this result */
    const char *x, *y[6]; /* keys of columns; NULL ends them */
    /* Of each y a column of lists, drawn as a bar from the lowest to the highest number; of stacks
     * the first one is that of the whole. NULL: none. */
    const char *spread[6];
    const char *area;  /* lines: a column of lists, drawn as an area around the last y */
    const char *part;  /* lines: a curve is a line for each value of this column ("seed") */
    const char *says;  /* of its spread, or why there is none; NULL: bars, or boxes, are turns */
    const char *group; /* lines, boxes: a curve for each value of this column; NULL: one */
    const char *x_label, *y_label;
    const char *log; /* axes with a logarithmic scale, and its base if not 10: "x", "xy", "x 2",
                        "" */
} paper_plot;
void paper_plot_add(paper *p, const paper_plot *plot);

/* The index of a column; -1: there is none. */
int paper_column_index(const json_t *table, const char *key);
/* The cell as it is printed. */
const char *paper_cell(const json_t *table, size_t row, size_t column, char out[64]);

/* ---- what is made from a result -------------------------------------------------------------- */

void paper_print(const json_t *result, const char *format); /* print.c */
/* Writes the plot to a file, with `below` under it; false: it cannot be written. script.c */
bool paper_script(const json_t *plot, const json_t *table, const char *below, const char *path);
/* False after it printed why. */
bool paper_make_folder(const char *out); /* plot.c */
/* Writes OUT/NAME.json and the plots; names the files in the result. False after it printed why. */
bool paper_write(json_t *result, const char *out); /* plot.c */
/* Writes OUT/NAME.json with the rows so far, if there are any, in case nothing more is written. */
void paper_keep(json_t *result, const char *out); /* plot.c */

typedef struct paper_entry { /* of the report */
    const paper_experiment *experiment;
    json_t *result; /* NULL: none */
    char why[512];  /* there is none */
} paper_entry;
bool paper_page(const paper_entry *entries, int count, const char *path); /* page.c */

/* ---- conditions (conditions.c) --------------------------------------------------------------- */

typedef struct paper_watch {
    double at, busy, own; /* seconds: the clock's, of all cores, of this program and its children */
} paper_watch;
paper_watch paper_watch_begin(void);
/* Adds what has passed since then to the conditions of the result; the seconds. */
double paper_watch_end(const paper_watch *w, json_t *result);
json_t *paper_date(void);
bool paper_is_quiet(const json_t *result); /* other programs kept no core busy */
/* "Measured 2026-11-29 20:04 UTC in 62 s by Lockstep 0.2.0; nothing else ran". */
enum { PAPER_CONDITIONS = 256 };
const char *paper_conditions(const json_t *result, char out[PAPER_CONDITIONS]);

/* ---- measuring (measure.c) ------------------------------------------------------------------- */

/* `lockstep bench ARGS… -n RANKS`, whose rows are returned (a new reference); NULL after it printed
 * why. `what` is shown while it runs. The last argument is NULL. Where a signal ends it, the rows
 * of the turns that it had measured, and from then on NULL; the result says that it is incomplete.
 */
json_t *paper_bench(paper *p, int ranks, const char *what, const char *const *arguments);
/* Why an experiment failed: what the measurement said first, or what was set; "": not known. */
const char *paper_reason(void);
void paper_set_reason(const char *why);
/* The row in which all of these keys have these values, numbers as "%.9g"; NULL: there is none. The
 * last is NULL. */
const json_t *paper_find(const json_t *rows, const char *key, const char *value, ...);
/* row[key].mean_ms, .deviation_ms; row[key]. */
double paper_mean(const json_t *row, const char *key);
double paper_deviation(const json_t *row, const char *key);
double paper_number(const json_t *row, const char *key);
const char *paper_text(const json_t *row, const char *key);
/* Means of a part ("step") over the steps of each turn of a row; a new list. */
json_t *paper_turns(const json_t *row, const char *part);

/* ---- results of earlier experiments (earlier.c) ---------------------------------------------- */

/* The rows of OUT/NAME.json, an object each (a new reference), of those tables that have the first
 * of the columns. A column is "s:network" (a text), "n:step" (a number above 0), "l:steps" (a list
 * of such) or "t:medium" (what the table's title says of the medium); NULL ends them. Notes which
 * command made the file. An empty list: there is no such file, or no --out; NULL after it printed
 * how the file is damaged. */
json_t *paper_earlier(paper *p, const char *name, const char *const *columns);

/* ---- media (media.c) ------------------------------------------------------------------------- */

/* Sets the next medium of the measurements: the one that was asked for, else shared memory, TCP at
 * 1 Gbit/s and MPI, where this machine has them; notes why it has not. False after the last. */
bool paper_next_medium(paper *p);
/* "shared memory", "TCP of one host", "TCP at 1gbit/s", "MPI (Open MPI)". */
const char *paper_medium(const paper *p, char out[64]);
/* Whether links can be made here; else it printed why. */
bool paper_can_link(void);
/* False with the reason. */
bool paper_mpi_find(paper_mpi *out, char why[256]);
/* Why NCCL is not measured: notes it, and returns a word of it for a cell. */
const char *paper_note_nccl(paper *p);
void paper_skip_nccl(paper *p); /* the same as a row of the table of what is not measured */

/* ---- links (link.c) -------------------------------------------------------------------------- */

/* Hosts, which are network namespaces, with links that carry no more than `rate` each way: two with
 * one between them, or each with one to a switch. */
enum { PAPER_HOSTS_MAX = 16 };
typedef struct paper_link {
    char names[PAPER_HOSTS_MAX + 1][48]; /* the hosts', and the switch's */
    int hosts;
} paper_link;
/* False after it printed why: needs root, ip and tc. */
bool paper_link_make(paper_link *link, const char *rate);
bool paper_star_make(paper_link *link, const char *rate, int hosts);
void paper_link_remove(paper_link *link);

/* Runs a program and waits: its exit status, -1 after it printed why it could not be started or was
 * stopped by a signal. Its standard output goes nowhere. argv[argc] is NULL. */
int paper_run(const char *const *argv);
/* Starts one; -1 after it printed why. Its standard error goes to the file `said`; NULL: to that of
 * this program. */
int paper_start(const char *const *argv, const char *said);
int paper_wait(int pid);
/* Runs one to its end, whatever signal has come: its exit status, -1. */
int paper_finish(const char *const *argv);
/* A signal asked this program to end. */
bool paper_stopped(void);

/* ---- experiments ----------------------------------------------------------------------------- */

bool paper_alpa(paper *p);
bool paper_arithmetic(paper *p);
bool paper_asynchrony(paper *p);
bool paper_backends(paper *p);
bool paper_breakdown(paper *p);  /* fig6 */
bool paper_buckets(paper *p);    /* fig7, fig8 */
bool paper_call_sizes(paper *p); /* fig2 */
bool paper_compression(paper *p);
bool paper_convergence(paper *p); /* fig11 */
bool paper_cs336(paper *p);
bool paper_experts(paper *p); /* moe */
bool paper_pipeline(paper *p);
bool paper_questions(paper *p);
bool paper_round_robin(paper *p); /* fig12 */
bool paper_scaling(paper *p);     /* fig9 */
bool paper_server(paper *p);
bool paper_skipping(paper *p); /* fig10 */
bool paper_taxonomy(paper *p);
bool paper_tradeoff(paper *p);
bool paper_variance(paper *p);

extern const paper_experiment paper_experiments[];
extern const int paper_experiment_count;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Figure 2. Left: the time of summing 60 million parameters against the parameters of a call. All
 * calls are started before any is waited for, as DDP does with buckets. Right: when the first
 * n of a network's gradients are ready, from its recorded timeline. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/timeline.h"
#include "paper.h"

#define TIMELINE "resnet152"
#define PARAMETERS 60000000
#define QUICK 6000000
#define NEAR 1.1 /* of the best time: the knee is the smallest size within it */

static const paper_column columns[] = {
    {"backend", "", NULL}, {"algorithm", "", NULL}, {"ranks", "", "%.0f"}, {"per call", "", "%.0f"},
    {"calls", "", "%.0f"}, {"time", "ms", "%.2f"},  {"turns", "", "list"}, {"curve", "", "list"},
};

static const paper_column knee_columns[] = {
    {"backend", "", NULL},
    {"algorithm", "", NULL},
    {"ranks", "", "%.0f"},
    {"knee", "per call", "%.0f"},
    {"time there", "ms", "%.2f"},
    {"best", "per call", "%.0f"},
    {"time of the best", "ms", "%.2f"},
};

/* Sizes of calls up to all parameters, "10000,20000". */
static const char *sizes_up_to(int64_t parameters, bool few, char out[256])
{
    static const int64_t sizes[] = {10000,   20000,   50000,   100000,   200000,  500000,
                                    1000000, 2000000, 5000000, 10000000, 20000000};
    out[0] = '\0';
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const bool left_out = few && s % 5 != 0;
        if (sizes[s] <= parameters && !left_out) {
            (void)snprintf(out + strlen(out), 256 - strlen(out), "%s%lld", s > 0 ? "," : "",
                           (long long)sizes[s]);
        }
    }
    return out;
}

static json_t *rows_of(paper *p, int ranks, const char *algorithm, const char *what)
{
    const int64_t asked = p->options->parameters, parameters = asked > 0           ? asked
                                                               : p->options->quick ? QUICK
                                                                                   : PARAMETERS;
    char total[32], sizes[256], turns[16];
    (void)snprintf(total, sizeof total, "%lld", (long long)parameters);
    (void)snprintf(turns, sizeof turns, "%d", p->options->turns > 0 ? p->options->turns : 3);
    const char *const arguments[] = {"pieces",
                                     "--total",
                                     total,
                                     "--pieces",
                                     sizes_up_to(parameters, ranks > 2, sizes),
                                     "--rounds",
                                     turns,
                                     algorithm != NULL ? "--algorithm" : NULL,
                                     algorithm,
                                     NULL};
    return paper_bench(p, ranks, what, arguments);
}

/* The row of the knee; *best: that of the least time. */
static const json_t *knee_of(const json_t *rows, const json_t **best)
{
    *best = json_array_get(rows, 0);
    for (size_t i = 1; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        *best = paper_number(row, "time_ms") < paper_number(*best, "time_ms") ? row : *best;
    }
    for (size_t i = 0; i < json_array_size(rows); i++) { /* in the order of their sizes */
        const json_t *row = json_array_get(rows, i);
        if (paper_number(row, "time_ms") <= NEAR * paper_number(*best, "time_ms")) {
            return row;
        }
    }
    return *best;
}

/* A curve and its knee. */
static void add(paper *p, json_t *tables[2], const char *algorithm, const json_t *rows)
{
    char medium[64], curve[128];
    const json_t *best, *knee = knee_of(rows, &best);
    const int ranks = (int)paper_number(knee, "ranks");
    (void)paper_medium(p, medium);
    (void)snprintf(curve, sizeof curve, "%s, %s, %d ranks", medium, algorithm, ranks);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        paper_row(tables[0], "[s, s, i, f, f, f, O, s]", medium, algorithm, ranks,
                  paper_number(row, "elements"), paper_number(row, "calls"),
                  paper_number(row, "time_ms"), json_object_get(row, "round_ms"), curve);
    }
    paper_row(tables[1], "[s, s, i, f, f, f, f]", medium, algorithm, ranks,
              paper_number(knee, "elements"), paper_number(knee, "time_ms"),
              paper_number(best, "elements"), paper_number(best, "time_ms"));
}

static void claim_size(paper *p, const json_t *rows)
{
    const json_t *best, *large = knee_of(rows, &best), *first = json_array_get(rows, 0);
    const bool has_knee = large != first;
    large = has_knee ? large : json_array_get(rows, json_array_size(rows) - 1);
    char medium[64], left[160], right[64];
    (void)snprintf(left, sizeof left, "%s, %.0f parameters a call (%s)", paper_medium(p, medium),
                   paper_number(large, "elements"),
                   has_knee ? "the knee" : "the largest; the smallest are as fast");
    (void)snprintf(right, sizeof right, "%.0f a call", paper_number(first, "elements"));
    paper_claim_add(p,
                    &(paper_claim){.text = "few large all-reduces are faster than many small ones",
                                   .left = left,
                                   .right = right,
                                   .left_turns = json_object_get(large, "round_ms"),
                                   .right_turns = json_object_get(first, "round_ms"),
                                   .factor = 1.0});
}

static bool medium(paper *p, json_t *tables[2])
{
    json_t *rows = rows_of(p, 2, NULL, "calls of each size");
    if (json_array_size(rows) > 0) {
        add(p, tables, "chosen", rows);
        claim_size(p, rows);
    }
    const bool measured = rows != NULL;
    json_decref(rows);
    return measured;
}

static void claim_tree(paper *p, const char *left, const json_t *tree, const json_t *chosen)
{
    paper_claim_add(
        p, &(paper_claim){.text = "a tree reduce by stages (Spark) is slower than an all-reduce "
                                  "without a root (the lecture's)",
                          .left = left,
                          .right = "chosen",
                          .left_turns = json_object_get(tree, "round_ms"),
                          .right_turns = json_object_get(chosen, "round_ms"),
                          .above = true,
                          .factor = 1.0});
}

/* The lecture's: partial sums go up a tree in stages, and the root sends the result to everyone.
 * Each rank has a host of its own, and there are enough ranks for two stages. */
static bool tree(paper *p, json_t *tables[2])
{
    p->transport = "tcp";
    p->link = NULL;
    json_t *chosen = rows_of(p, 4, NULL, "calls of each size");
    json_t *tree = chosen != NULL ? rows_of(p, 4, "tree_stages", "tree reduce") : NULL;
    const size_t count = json_array_size(tree);
    if (json_array_size(chosen) > 0) {
        add(p, tables, "chosen", chosen);
    }
    if (count > 0) {
        add(p, tables, "tree_stages", tree);
        claim_tree(p, "tree_stages, largest calls", json_array_get(tree, count - 1),
                   json_array_get(chosen, count - 1));
    }
    if (count > 1) {
        claim_tree(p, "tree_stages, smallest calls", json_array_get(tree, 0),
                   json_array_get(chosen, 0));
    }
    json_decref(chosen);
    json_decref(tree);
    return count > 0;
}

/* ---- the right half -------------------------------------------------------------------------- */

static const paper_column ready_columns[] = {
    {"ready parameters", "M", "%.2f"}, {"gradients", "", "%.0f"}, {"time", "ms", "%.1f"}};

/* A row at each twentieth of the parameters. */
static bool ready(paper *p)
{
    char title[400];
    ls__timeline t;
    double parameters = 0.0;
    if (ls__timeline_read(TIMELINE, &t) != LS_OK) {
        fprintf(stderr, "lockstep paper: %s\n", ls_error_message());
        ls__timeline_free(&t);
        return false;
    }
    (void)snprintf(title, sizeof title,
                   "Ready gradients of %.60s since backward began, recorded on %.250s", t.title,
                   t.recorded);
    json_t *table = paper_table(p, title, ready_columns, 3);
    ls__timeline_sort(&t);
    for (int i = 0, part = 1; i < t.count; i++) {
        parameters += (double)t.gradients[i].elements;
        if (parameters >= t.parameters * part / 20.0 || i == t.count - 1) {
            paper_row(table, "[f, i, f]", parameters * 1e-6, i + 1, t.gradients[i].ready_s * 1e3);
            while (part < 20 && parameters >= t.parameters * part / 20.0) {
                part++;
            }
        }
    }
    (void)snprintf(title, sizeof title, "Ready gradients of %.60s, as recorded", t.title);
    paper_plot_add(p, &(paper_plot){.title = title,
                                    .kind = "lines",
                                    .table = table,
                                    .x = "ready parameters",
                                    .y = {"time"},
                                    .says = "the recording has medians of steps, without spread",
                                    .x_label = "millions of parameters with a gradient",
                                    .y_label = "ms since backward began",
                                    .log = ""});
    ls__timeline_free(&t);
    return true;
}

bool paper_call_sizes(paper *p)
{
    json_t *tables[2] = {paper_table(p, "All-reduce of all parameters; medians", columns,
                                     (int)(sizeof columns / sizeof *columns)),
                         paper_table(p, "Knees: the smallest calls within 10 % of the best time",
                                     knee_columns,
                                     (int)(sizeof knee_columns / sizeof *knee_columns))};
    paper_plot_add(p, &(paper_plot){.title = "All-reduce against parameters per call",
                                    .kind = "lines",
                                    .table = tables[0],
                                    .x = "per call",
                                    .y = {"time"},
                                    .spread = {"turns"},
                                    .group = "curve",
                                    .x_label = "parameters per call",
                                    .y_label = "ms",
                                    .log = "xy"});
    while (paper_next_medium(p)) {
        if (!medium(p, tables)) {
            return false;
        }
    }
    if (!tree(p, tables)) {
        return false;
    }
    paper_note(
        p, "Computed on this machine: float32, all calls in flight at once; chosen: the library's "
           "algorithm (MPI's own over MPI). The paper (section 3.2, figure 2): 60 M parameters "
           "take less time the larger the calls are, over NCCL and over Gloo.");
    return ready(p);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The paper's shared entitlement: ranks whose processors others use, too, so that each step of each
 * rank takes longer by a random share (lockstep bench replay --noise). Steps that synchronise last
 * as long as the slowest rank's: with shares from an exponential distribution the mean of the
 * largest of n is 1 + 1/2 + … + 1/n times the mean share. */
#include <stdio.h>
#include <string.h>

#include "ddp_rows.h"

static const paper_column columns[] = {
    {"network", "", NULL},     {"noise", "", NULL},         {"reduction", "", NULL},
    {"step", "ms", "%.2f"},    {"deviation", "ms", "%.2f"}, {"median", "ms", "%.2f"},
    {"longest", "ms", "%.2f"}, {"expected", "ms", "%.2f"},  {"steps", "", "list"},
    {"box", "", "list"},
};
static const char *const levels[] = {"0", "0.1", "0.3"};
static const char *const modes[] = {"local", "overlap", "naive"};
enum { LEVELS = sizeof levels / sizeof *levels, MODES = sizeof modes / sizeof *modes, RANKS = 4 };

/* Mean of the local step without noise, longer by the mean share of one rank, or of the slowest. */
static double expected(const json_t *quiet, double noise, bool local)
{
    double share = 0.0;
    for (int rank = 1; rank <= (local ? 1 : RANKS); rank++) {
        share += noise / rank;
    }
    return (paper_mean(quiet, "forward") + paper_mean(quiet, "backward")) * (1.0 + share) +
           paper_mean(quiet, "optimizer");
}

static void add(json_t *table, const paper_network *n, const json_t *row, const char *level,
                const json_t *quiet)
{
    char box[64];
    const json_t *steps = json_object_get(json_object_get(row, "samples_ms"), "step");
    const char *mode = paper_text(row, "mode");
    (void)snprintf(box, sizeof box, "%s, %s", mode, level);
    paper_row(table, "[s, s, s, f, f, f, f, f, o, s]", n->title, level, mode,
              paper_mean(row, "step"), paper_deviation(row, "step"), paper_quantile(steps, 0.5),
              paper_quantile(steps, 1.0),
              expected(quiet, strtod(level, NULL), strcmp(mode, "local") == 0),
              paper_list(row, "step"), box);
}

static void claim(paper *p, const char *text, const paper_network *n, const json_t *overlap,
                  const char *right, const json_t *other, bool above)
{
    char left[96];
    (void)snprintf(left, sizeof left, "%s, overlap, noise of 30 %%", n->title);
    paper_claim_add(p, &(paper_claim){.text = text,
                                      .left = left,
                                      .right = right,
                                      .left_turns = json_object_get(overlap, "round_ms"),
                                      .right_turns = json_object_get(other, "round_ms"),
                                      .above = above,
                                      .factor = 1.0});
}

static bool measure(paper *p, json_t *table, const paper_network *n)
{
    json_t *quiet = NULL, *rows = NULL;
    for (int level = 0; level < LEVELS; level++) {
        const char *const more[] = {"--noise", levels[level], NULL};
        rows = paper_replayed_rows(p, n, RANKS, "naive,overlap,local", "25", more);
        if (rows == NULL) {
            json_decref(quiet);
            return false;
        }
        quiet = quiet == NULL ? json_incref(rows) : quiet;
        for (int m = 0; m < MODES; m++) {
            add(table, n, paper_find(rows, "mode", modes[m], NULL), levels[level],
                paper_find(quiet, "mode", "local", NULL));
        }
        if (level == LEVELS - 1) {
            const json_t *overlap = paper_find(rows, "mode", "overlap", NULL);
            claim(p, "ranks that synchronise wait for the slowest of them", n, overlap, "local",
                  paper_find(rows, "mode", "local", NULL), true);
            claim(p, "overlap is faster than one all-reduce for each gradient, under noise, too", n,
                  overlap, "naive", paper_find(rows, "mode", "naive", NULL), false);
        }
        json_decref(rows);
    }
    json_decref(quiet);
    return true;
}

bool paper_variance(paper *p)
{
    paper_over of;
    char title[160], medium[64];
    const paper_network *network;
    (void)paper_over_medium(p, 0, 3, &of);
    (void)snprintf(title, sizeof title, "Step times under noise, %d ranks, %s, replayed", RANKS,
                   paper_medium(&of.p, medium));
    json_t *table = paper_table(p, title, columns, (int)(sizeof columns / sizeof *columns));
    (void)snprintf(title, sizeof title, "Step time, %d ranks, %s, replayed", RANKS, medium);
    paper_plot_add(p, &(paper_plot){.title = title,
                                    .kind = "boxes",
                                    .table = table,
                                    .x = "box",
                                    .y = {"steps"},
                                    .group = "network",
                                    .x_label = "reduction, mean noise",
                                    .y_label = "ms a step",
                                    .log = ""});
    for (int k = 0; (network = paper_network_at(p, k)) != NULL; k++) {
        if (!measure(&of.p, table, network)) {
            return false;
        }
    }
    paper_note(p,
               "Noise is made: forward and backward of each step of each rank are longer by a "
               "random share, exponentially distributed with the mean shown (--seed 1), the same "
               "for each reduction. `expected` is without communication: for local the mean rank's "
               "step, else that of the slowest of %d ranks.",
               RANKS);
    return true;
}

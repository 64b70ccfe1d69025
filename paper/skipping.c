/* SPDX-License-Identifier: Apache-2.0 */
/* Figure 10: the mean step when only every n-th one synchronises; replayed, so that 8 ranks run on
 * few cores. */
#include <stdio.h>

#include "ddp_rows.h"

static const paper_column columns[] = {
    {"network", "", NULL},  {"ranks", "", "%.0f"},       {"every", "steps", "%.0f"},
    {"step", "ms", "%.2f"}, {"deviation", "ms", "%.2f"}, {"exposed", "ms", "%.2f"},
    {"saved", "%", "%.1f"}, {"series", "", "list"},      {"steps", "", "list"},
    {"turns", "", "list"},
};
static const char *const intervals[] = {"1", "2", "4", "8"};
enum { INTERVALS = sizeof intervals / sizeof *intervals, RANKS_MAX = 8 };

static void claim(paper *p, const paper_network *n, const json_t *eighth, const json_t *each)
{
    char left[96], right[64], medium[64];
    (void)snprintf(left, sizeof left, "%s, %d ranks, every 8th", n->title, RANKS_MAX);
    (void)snprintf(right, sizeof right, "every step (%s)", paper_medium(p, medium));
    paper_claim_add(p,
                    &(paper_claim){.text = "steps that skip synchronisation make the mean shorter",
                                   .left = left,
                                   .right = right,
                                   .left_turns = json_object_get(eighth, "round_ms"),
                                   .right_turns = json_object_get(each, "round_ms"),
                                   .factor = 1.0});
}

static bool measure(paper *p, json_t *table, const paper_network *n, int ranks)
{
    const char *const more[] = {"--skip", "1,2,4,8", NULL};
    char series[96];
    json_t *rows = paper_replayed_rows(p, n, ranks, "overlap", "25", more);
    const json_t *each = paper_find(rows, "skip", "1", NULL), *row = NULL;
    (void)snprintf(series, sizeof series, "%s, %d ranks", n->title, ranks);
    for (int i = 0; i < INTERVALS && rows != NULL; i++) {
        row = paper_find(rows, "skip", intervals[i], NULL);
        paper_row(table, "[s, i, f, f, f, f, f, s, o, o]", n->title, ranks,
                  paper_number(row, "skip"), paper_mean(row, "step"), paper_deviation(row, "step"),
                  paper_mean(row, "exposed"),
                  100.0 * (1.0 - paper_mean(row, "step") / paper_mean(each, "step")), series,
                  paper_list(row, "step"), paper_turns(row, "step"));
    }
    if (row != NULL && ranks == RANKS_MAX) {
        claim(p, n, row, each);
    }
    json_decref(rows);
    return rows != NULL;
}

static bool over(paper *p)
{
    char title[160], medium[64];
    const paper_network *network;
    (void)snprintf(title, sizeof title,
                   "Mean step, synchronised every n-th step, %s, replayed; buckets of 25 MB",
                   paper_medium(p, medium));
    json_t *table = paper_table(p, title, columns, (int)(sizeof columns / sizeof *columns));
    (void)snprintf(title, sizeof title, "Mean step, %s, replayed", medium);
    paper_plot_add(p, &(paper_plot){.title = title,
                                    .kind = "lines",
                                    .table = table,
                                    .x = "every",
                                    .y = {"step"},
                                    .spread = {"turns"},
                                    .group = "series",
                                    .x_label = "every n-th step synchronises",
                                    .y_label = "ms a step",
                                    .log = "x 2"});
    for (int k = 0; (network = paper_network_at(p, k)) != NULL; k++) {
        for (int ranks = 2; ranks <= RANKS_MAX; ranks *= 2) {
            if (!measure(p, table, network, ranks)) {
                return false;
            }
        }
    }
    return true;
}

bool paper_skipping(paper *p)
{
    if (!paper_over_media(p, 3, over)) {
        return false;
    }
    paper_note(
        p, "Times are means over n steps, n - 1 of which send nothing; every step has its "
           "optimizer. `saved` is against every step. The paper (section 5.3, figure 10): the "
           "mean step becomes shorter with every n up to 8, over Gloo more than over NCCL. What "
           "is saved is what backward does not hide: `exposed` of every step.");
    return true;
}

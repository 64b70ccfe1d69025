/* SPDX-License-Identifier: Apache-2.0 */
/* Figure 12: buckets that take turns on several groups, so that several all-reduces are in flight
 * at once. */
#include <stdio.h>

#include "ddp_rows.h"

static const paper_column columns[] = {
    {"network", "", NULL},        {"groups", "", NULL},        {"buckets", "", "%.0f"},
    {"step", "ms", "%.2f"},       {"deviation", "ms", "%.2f"}, {"exposed", "ms", "%.2f"},
    {"hidden share", "", "%.2f"}, {"steps", "", "list"},
};
static const char *const counts[] = {"1", "3", "5"};
enum { COUNTS = sizeof counts / sizeof *counts, RANKS = 4 };

static void claim(paper *p, const paper_network *n, const json_t *three, const json_t *one)
{
    char left[96], right[64], medium[64];
    (void)snprintf(left, sizeof left, "%s, 3 groups", n->title);
    (void)snprintf(right, sizeof right, "1 group (%s)", paper_medium(p, medium));
    paper_claim_add(p, &(paper_claim){.text = "three groups in turns are faster than one group",
                                      .left = left,
                                      .right = right,
                                      .left_turns = json_object_get(three, "round_ms"),
                                      .right_turns = json_object_get(one, "round_ms"),
                                      .factor = 1.0});
}

static bool measure(paper *p, json_t *table, const paper_network *n)
{
    const char *const more[] = {"--groups", "1,3,5", NULL};
    json_t *rows = paper_replayed_rows(p, n, RANKS, "overlap", "5", more);
    for (int i = 0; i < COUNTS && rows != NULL; i++) {
        const json_t *row = paper_find(rows, "groups", counts[i], NULL);
        paper_row(table, "[s, s, i, f, f, f, f, o]", n->title, counts[i],
                  (int)json_array_size(json_object_get(row, "bucket_bytes")),
                  paper_mean(row, "step"), paper_deviation(row, "step"), paper_mean(row, "exposed"),
                  paper_number(row, "hidden_share"), paper_list(row, "step"));
    }
    if (rows != NULL) {
        claim(p, n, paper_find(rows, "groups", "3", NULL), paper_find(rows, "groups", "1", NULL));
    }
    json_decref(rows);
    return rows != NULL;
}

static bool over(paper *p)
{
    char title[160], medium[64];
    const paper_network *network;
    (void)snprintf(title, sizeof title,
                   "Step time with groups in turns, %d ranks, %s, replayed; buckets of 5 MB", RANKS,
                   paper_medium(p, medium));
    json_t *table = paper_table(p, title, columns, (int)(sizeof columns / sizeof *columns));
    (void)snprintf(title, sizeof title, "Step time, %d ranks, %s, replayed", RANKS, medium);
    paper_plot_add(p, &(paper_plot){.title = title,
                                    .kind = "boxes",
                                    .table = table,
                                    .x = "groups",
                                    .y = {"steps"},
                                    .group = "network",
                                    .x_label = "groups",
                                    .y_label = "ms a step",
                                    .log = ""});
    for (int k = 0; (network = paper_network_at(p, k)) != NULL; k++) {
        if (!measure(p, table, network)) {
            return false;
        }
    }
    return true;
}

bool paper_round_robin(paper *p)
{
    if (!paper_over_media(p, 5, over)) {
        return false;
    }
    paper_note(
        p, "The paper (section 5.4, figure 12): three groups do not change ResNet-50 over NCCL, "
           "and make it faster over Gloo, and BERT over NCCL. Groups help where one all-reduce "
           "cannot fill the link; here one processor's copies often do.");
    return true;
}

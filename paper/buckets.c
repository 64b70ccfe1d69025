/* SPDX-License-Identifier: Apache-2.0 */
/* Figures 7 and 8: step time against bucket size, on 2 and 4 ranks. */
#include <stdio.h>
#include <string.h>

#include "ddp_rows.h"

static const struct {
    const char *size,
        *shown; /* of `lockstep bench ddp`, in MB; 1 byte: a bucket for each parameter */
} sizes[] = {{"1e-06", "0"}, {"1", "1"},   {"5", "5"},      {"10", "10"},
             {"25", "25"},   {"50", "50"}, {"auto", "auto"}};
enum { ONE_MB = 1, DEFAULT = 4, SIZES = sizeof sizes / sizeof *sizes, AUTO = SIZES - 1 };

static const paper_column columns[] = {
    {"network", "", NULL},        {"bucket", "MB", NULL},      {"buckets", "", "%.0f"},
    {"step", "ms", "%.2f"},       {"deviation", "ms", "%.2f"}, {"exposed", "ms", "%.2f"},
    {"hidden share", "", "%.2f"}, {"steps", "", "list"},
};

static void claim(paper *p, const char *text, const paper_network *n, const char *left,
                  const json_t *a, const char *right, const json_t *b, double factor)
{
    char named[160], medium[64];
    (void)snprintf(named, sizeof named, "%s, %s, %s", paper_medium(p, medium), n->title, left);
    paper_claim_add(p, &(paper_claim){.text = text,
                                      .left = named,
                                      .right = right,
                                      .left_turns = json_object_get(a, "round_ms"),
                                      .right_turns = json_object_get(b, "round_ms"),
                                      .factor = factor});
}

static void add(json_t *table, const paper_network *n, const char *shown, const json_t *row)
{
    paper_row(table, "[s, s, i, f, f, f, f, o]", n->title, shown,
              (int)json_array_size(json_object_get(row, "bucket_bytes")), paper_mean(row, "step"),
              paper_deviation(row, "step"), paper_mean(row, "exposed"),
              paper_number(row, "hidden_share"), paper_list(row, "step"));
}

/* Whether it is measured. 4 ranks beside other media go without two sizes, since each one costs 20
 * s over three media; with --quick without every second one. */
static bool is_measured(const paper *p, int size, int ranks)
{
    const bool all = ranks == 2 || p->options->transport != NULL || p->options->link != NULL;
    const bool few = ranks > 2 && p->options->quick;
    return few ? size % 2 == 0 && size != AUTO : all || (size != ONE_MB && size != AUTO);
}

static void note_steps(paper *p, const json_t *row)
{
    char text[160];
    (void)snprintf(text, sizeof text,
                   "Each row: %.0f turns of %.0f untimed and %.0f timed steps, after at least %.0f "
                   "steps of warm-up.",
                   paper_number(row, "rounds"), paper_number(row, "untimed"),
                   paper_number(row, "steps"), paper_number(row, "warmup"));
    paper_note_once(p, text);
}

static json_t *rows_of(paper *p, const paper_network *n, int ranks)
{
    char list[128] = "";
    for (int s = 0; s < SIZES; s++) {
        if (is_measured(p, s, ranks)) {
            (void)snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s",
                           list[0] != '\0' ? "," : "", sizes[s].size);
        }
    }
    return paper_ddp_rows(p, n, ranks, "overlap", list);
}

static void add_claims(paper *p, const paper_network *n, const json_t *const row[SIZES])
{
    char right[64];
    int best = DEFAULT;
    for (int s = ONE_MB; s < AUTO; s++) {
        if (row[s] != NULL && paper_mean(row[s], "step") < paper_mean(row[best], "step")) {
            best = s;
        }
    }
    claim(p, "gradients in buckets are faster than one all-reduce for each parameter", n, "25 MB",
          row[DEFAULT], "0 MB", row[0], 1.0);
    (void)snprintf(right, sizeof right, "%s MB, the best", sizes[best].shown);
    if (row[AUTO] != NULL) {
        claim(p, "buckets of automatic size are within 3 % of the best size (Lockstep's claim)", n,
              "auto", row[AUTO], right, row[best], 1.03);
    }
}

static bool measure(paper *p, json_t *table, const paper_network *n, int ranks)
{
    const json_t *row[SIZES] = {NULL};
    json_t *rows = rows_of(p, n, ranks);
    for (int s = 0; s < SIZES; s++) {
        if (is_measured(p, s, ranks)) {
            row[s] = paper_find(rows, "mode", "overlap", "buckets", sizes[s].size, NULL);
            if (row[s] == NULL) {
                json_decref(rows);
                return false;
            }
            add(table, n, sizes[s].shown, row[s]);
        }
    }
    note_steps(p, row[0]);
    add_claims(p, n, row);
    json_decref(rows);
    return true;
}

/* A table and a plot of one medium. */
static bool medium(paper *p, int ranks)
{
    char title[160], named[64];
    (void)snprintf(title, sizeof title, "Step time against bucket size, %d ranks, %s, %s; means",
                   ranks, paper_medium(p, named), paper_computed(p));
    json_t *table = paper_table(p, title, columns, (int)(sizeof columns / sizeof *columns));
    paper_plot_add(p, &(paper_plot){.title = title,
                                    .kind = "boxes",
                                    .table = table,
                                    .x = "bucket",
                                    .y = {"steps"},
                                    .group = "network",
                                    .x_label = "bucket, MB",
                                    .y_label = "ms a step",
                                    .log = ""});
    const paper_network *network;
    for (int k = 0; (network = paper_network_at(p, k)) != NULL; k++) {
        if (!measure(p, table, network, ranks)) {
            return false;
        }
    }
    return true;
}

bool paper_buckets(paper *p)
{
    const int ranks = strcmp(p->experiment->name, "fig8") == 0 ? 4 : 2;
    while (paper_next_medium(p)) {
        if (!medium(p, ranks)) {
            return false;
        }
    }
    if (p->options->quick && ranks > 2) {
        paper_note(p, "Buckets of 0, 5 and 25 MB alone (--quick).");
    }
    paper_note(p,
               "0 MB: a bucket for each parameter; auto: Lockstep's choice, measured over the "
               "first medium. fig8 measures 1 MB and auto only with --transport or --link. "
               "The paper (section 5.2): ResNet-50 over NCCL is fastest with 10 to 25 MB; (section "
               "6.1): the best size lies between the extremes and grows with the network.");
    return true;
}

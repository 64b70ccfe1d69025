/* Figures 7 and 8: step time against bucket size, on 2 and 4 ranks. */
#include <stdio.h>
#include <string.h>

#include "ddp_rows.h"

static const struct {
    const char *size,
        *shown; /* of `lockstep bench ddp`, in MB; 1 byte: a bucket for each parameter */
} sizes[] = {{"1e-06", "0"}, {"1", "1"},   {"5", "5"},      {"10", "10"},
             {"25", "25"},   {"50", "50"}, {"auto", "auto"}};
enum { SIZES = sizeof sizes / sizeof *sizes };

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

static bool measure(paper *p, json_t *table, const paper_network *n, int ranks)
{
    char list[128] = "", right[64];
    int best = 1;
    const json_t *row[SIZES];
    /* The search for automatic sizes takes more steps than all else: not over every medium, nor on 4 ranks beside
     * other media. */
    const bool asked = p->options->transport != NULL || p->options->link != NULL;
    const bool automatic = p->medium == 1 && (asked || ranks == 2);
    const int count = automatic ? SIZES : SIZES - 1;
    for (int s = 0; s < count; s++) {
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", s > 0 ? "," : "",
                       sizes[s].size);
    }
    json_t *rows = paper_ddp_rows(p, n, ranks, "overlap", list);
    for (int s = 0; s < count; s++) {
        row[s] = paper_find(rows, "mode", "overlap", "buckets", sizes[s].size, NULL);
        if (row[s] == NULL) {
            json_decref(rows);
            return false;
        }
        add(table, n, sizes[s].shown, row[s]);
        if (s > 1 && s < SIZES - 1 && paper_mean(row[s], "step") < paper_mean(row[best], "step")) {
            best = s;
        }
    }
    claim(p, "gradients in buckets are faster than one all-reduce for each parameter", n, "25 MB",
          row[4], "0 MB", row[0], 1.0);
    (void)snprintf(right, sizeof right, "%s MB, the best", sizes[best].shown);
    if (automatic) {
        claim(p, "buckets of automatic size are within 3 % of the best size (Lockstep's claim)", n,
              "auto", row[SIZES - 1], right, row[best], 1.03);
    }
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
    const paper_network *network;
    for (int k = 0; (network = paper_network_at(p, k)) != NULL; k++) {
        if (!measure(p, table, network, ranks)) {
            return false;
        }
    }
    paper_plot_add(p, &(paper_plot){.title = title,
                                    .kind = "boxes",
                                    .table = table,
                                    .x = "bucket",
                                    .y = {"steps"},
                                    .group = "network",
                                    .x_label = "bucket, MB",
                                    .y_label = "ms a step",
                                    .log = ""});
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
    paper_note(
        p,
        "0 MB: a bucket for each parameter; auto: Lockstep's "
        "choice, measured over the first medium (fig8: only with --transport or --link). The paper "
        "(16 and 32 GPUs): ResNet-50 is fastest with 10 to 25 MB over NCCL and about 5 "
        "MB over Gloo, BERT with "
        "50 MB and more (5 and 50 MB are quoted from memory).");
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Figure 11: what skipping synchronisation does to training, for the paper's two pairs of batch and
 * learning rate, on digits. */
#include <stdio.h>

#include "paper.h"

#define ITERATIONS 400
#define HARM 1.25 /* of the loss without skipping, at the end */
enum { POINTS = 40, SEEDS = 3, QUICK_SEEDS = 2, SEEDS_MAX = 10, SKIPS = 4 };

static const struct {
    const char *batch, *lr, *title;
} pairs[] = {{"8", "0.02", "batch 8, learning rate 0.02"},
             {"256", "0.06", "batch 256, learning rate 0.06"}};

static const char *const skips[SKIPS] = {"1", "2", "4", "8"};

static const paper_column columns[] = {
    {"pair", "", NULL},
    {"every", "iterations", NULL},
    {"loss at the end", "", "%.4f"},
    {"lowest", "", "%.4f"},
    {"highest", "", "%.4f"},
    {"accuracy", "%", "%.2f"},
    {"losses at the end", "", "list"},
};
static const paper_column curve_columns[] = {/* only plotted */
                                             {"iteration", "", "list"},
                                             {"loss", "", "list"},
                                             {"every", "", "list"},
                                             {"seeds", "", "list"}};

/* The skip-th rows of all seeds. */
typedef struct runs {
    json_t *rows[SEEDS_MAX];
    int count;
} runs;

static json_t *finals_of(const runs *r, int s)
{
    json_t *list = json_array();
    for (int k = 0; k < r->count; k++) {
        json_array_append_new(
            list, json_real(paper_number(json_array_get(r->rows[k], (size_t)s), "final")));
    }
    return list;
}

static void add(json_t *table, const char *pair, const runs *r, int s)
{
    double loss = 0.0, accuracy = 0.0, lowest = 0.0, highest = 0.0;
    json_t *finals = finals_of(r, s);
    for (int k = 0; k < r->count; k++) {
        const double its = json_number_value(json_array_get(finals, (size_t)k));
        loss += its / r->count;
        accuracy += paper_number(json_array_get(r->rows[k], (size_t)s), "accuracy") / r->count;
        lowest = k == 0 || its < lowest ? its : lowest;
        highest = k == 0 || its > highest ? its : highest;
    }
    paper_row(table, "[s, s, f, f, f, f, o]", pair, skips[s], loss, lowest, highest,
              accuracy * 100.0, finals);
}

/* Means over a fortieth of the iterations, as single ones hide each other: of each seed, and over
 * the seeds. */
static void add_curve(json_t *table, const runs *r, int s)
{
    const json_t *first = json_object_get(json_array_get(r->rows[0], (size_t)s), "losses");
    const size_t count = json_array_size(first), width = count > POINTS ? count / POINTS : 1;
    for (size_t at = 0; at + width <= count; at += width) {
        json_t *seeds = json_array();
        double all = 0.0;
        for (int k = 0; k < r->count; k++) {
            const json_t *losses = json_object_get(json_array_get(r->rows[k], (size_t)s), "losses");
            double sum = 0.0;
            for (size_t i = 0; i < width; i++) {
                sum += json_number_value(json_array_get(losses, at + i));
            }
            json_array_append_new(seeds, json_real(sum / (double)width));
            all += sum / (double)width;
        }
        paper_row(table, "[f, f, s, o]", (double)at + 0.5 * (double)(width + 1), all / r->count,
                  skips[s], seeds);
    }
}

static void claim(paper *p, const char *pair, const runs *r, bool harm)
{
    char left[96];
    json_t *most = finals_of(r, SKIPS - 1), *none = finals_of(r, 0);
    (void)snprintf(left, sizeof left, "%s, every 8 iterations", pair);
    paper_claim_add(
        p, &(paper_claim){.text = harm ? "with large batches skipping harms the loss at the end"
                                       : "with small batches skipping does little harm",
                          .left = left,
                          .right = "every iteration",
                          .left_turns = most,
                          .right_turns = none,
                          .above = harm,
                          .factor = HARM});
    json_decref(most);
    json_decref(none);
}

static json_t *train(paper *p, int pair, int seed)
{
    char iterations[16], number[16];
    const int steps = p->options->steps;
    (void)snprintf(iterations, sizeof iterations, "%d", steps > 0 ? steps : ITERATIONS);
    (void)snprintf(number, sizeof number, "%d", seed);
    const char *const arguments[] = {
        "digits", "--batch", pairs[pair].batch, "--lr",     pairs[pair].lr,
        "--seed", number,    "--iterations",    iterations, NULL};
    return paper_bench(p, 2, pairs[pair].title, arguments);
}

static void tabulate(paper *p, json_t *table, int pair, const runs *r)
{
    char title[128];
    json_t *curves = paper_table(p, pairs[pair].title, curve_columns, 4);
    for (int s = 0; s < SKIPS; s++) {
        add(table, pairs[pair].title, r, s);
        add_curve(curves, r, s);
    }
    claim(p, pairs[pair].title, r, pair == 1);
    (void)snprintf(title, sizeof title, "%s, synchronised every n-th iteration", pairs[pair].title);
    paper_plot_add(p, &(paper_plot){.title = title,
                                    .kind = "lines",
                                    .table = curves,
                                    .x = "iteration",
                                    .y = {"loss"},
                                    .area = "seeds",
                                    .says = "lines: means over the seeds; areas: lowest to highest",
                                    .group = "every",
                                    .x_label = "iteration",
                                    .y_label = "training loss",
                                    .log = "y"});
}

/* With the seeds that were trained, where not all were. */
static bool measure(paper *p, json_t *table, int pair)
{
    runs r = {.count = 0};
    const paper_options *o = p->options;
    const int seeds = o->turns > 0 ? o->turns : o->quick ? QUICK_SEEDS : SEEDS;
    bool good = true;
    while (good && r.count < seeds && r.count < SEEDS_MAX) {
        json_t *rows = train(p, pair, r.count + 1);
        good = json_array_size(rows) == SKIPS;
        if (good) {
            r.rows[r.count++] = rows;
        } else {
            json_decref(rows);
        }
    }
    if (r.count > 0) {
        tabulate(p, table, pair, &r);
    }
    for (int k = 0; k < r.count; k++) {
        json_decref(r.rows[k]);
    }
    return good;
}

bool paper_convergence(paper *p)
{
    json_t *table = paper_table(p, "Training on digits, 2 ranks; means over the seeds", columns,
                                (int)(sizeof columns / sizeof *columns));
    p->transport = NULL; /* the sums have the same bits over all of them */
    p->link = NULL;
    if (!measure(p, table, 0) || !measure(p, table, 1)) {
        return false;
    }
    paper_note(p, "Computed on this machine: a network of two convolutions on 8 x 8 images of "
                  "digits; the paper "
                  "trains a ResNet on MNIST. Gradients add up between synchronisations (no_sync), "
                  "and the optimizer steps "
                  "after each. The loss at the end is the mean of the last tenth of the "
                  "iterations; a turn of a "
                  "claim is a seed. The losses have the same bits in every run.");
    return true;
}

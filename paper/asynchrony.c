/* SPDX-License-Identifier: Apache-2.0 */
/* One worker of four is twice as slow as the others: which way of training reaches a held-out loss
 * first? The lectures' answer is asynchrony: no worker waits, and gradients are of older versions.
 * The same where all are alike, in which plain DDP should win. */
#include <stdio.h>
#include <string.h>

#include "to_loss.h"

#define PLAIN "ddp"
#define CLAIMED "async"
enum { SEEDS = 3, QUICK_SEEDS = 2, STEPS = 600, QUICK_STEPS = 500, WORKERS = 4, PACE_MS = 10 };

static const char modes[] = PLAIN " sync backup=1 " CLAIMED " stale=2 local=8 diloco=8";
static const double slowness[] = {2.0, 1.0};

static const paper_column columns[] = {
    {"mode", "", NULL},        {"time", "s", "%.2f"},        {"lowest", "s", "%.2f"},
    {"highest", "s", "%.2f"},  {"reached", "seeds", "%.0f"}, {"steps", "a second", "%.1f"},
    {"stale", "mean", "%.2f"}, {"stalest", "", "%.0f"},      {"dropped", "", "%.0f"},
    {"ratio", "", "%.2f"},     {"sooner", "", NULL},         {"loss", "", "%.3f"},
    {"times", "", "list"},
};
/* Shares of the pushes; only plotted. */
static const paper_column stale_columns[] = {{"missed", "", "list"},
                                             {CLAIMED, "", "list"},
                                             {"stale=2", "", "list"},
                                             {"its seeds", "", "list"},
                                             {"the other's seeds", "", "list"}};

/* ---- staleness ------------------------------------------------------------------------------ */

enum { STALE_MAX = 65 };

typedef struct histogram { /* of the pushes of all seeds */
    double pushes[STALE_MAX], all;
    int count; /* the largest staleness, and 1 */
} histogram;

static histogram histogram_of(const paper_trainings *t)
{
    histogram h = {.count = 0};
    for (int k = 0; k < t->count; k++) {
        const json_t *stale = json_object_get(t->row[k], "stale");
        for (int i = 0; i < (int)json_array_size(stale) && i < STALE_MAX; i++) {
            const double pushes = json_number_value(json_array_get(stale, (size_t)i));
            h.pushes[i] += pushes;
            h.all += pushes;
            h.count = i + 1 > h.count ? i + 1 : h.count;
        }
    }
    return h;
}

static double mean_of(const histogram *h)
{
    double sum = 0.0;
    for (int i = 0; i < h->count; i++) {
        sum += i * h->pushes[i];
    }
    return h->all > 0.0 ? sum / h->all : 0.0;
}

/* The share of the pushes of each seed that missed i versions. */
static json_t *shares_of(const paper_trainings *t, int i)
{
    json_t *list = json_array();
    for (int k = 0; k < t->count; k++) {
        const paper_trainings one = {.row = {t->row[k]}, .count = 1};
        const histogram h = histogram_of(&one);
        json_array_append_new(list, json_real(h.pushes[i] / (h.all > 0.0 ? h.all : 1.0)));
    }
    return list;
}

static void draw_staleness(paper *p, const json_t *rows, const char *title)
{
    histogram h[2];
    paper_trainings t[2];
    json_t *table = paper_table(p, title, stale_columns, 5);
    for (int m = 0; m < 2; m++) {
        t[m] = paper_trainings_of(rows, "mode", stale_columns[m + 1].key);
        h[m] = histogram_of(&t[m]);
    }
    for (int i = 0; i < h[0].count || i < h[1].count; i++) {
        paper_row(table, "[i, f, f, o, o]", i, h[0].pushes[i] / (h[0].all > 0.0 ? h[0].all : 1.0),
                  h[1].pushes[i] / (h[1].all > 0.0 ? h[1].all : 1.0), shares_of(&t[0], i),
                  shares_of(&t[1], i));
    }
    paper_plot_add(p, &(paper_plot){.title = title,
                                    .kind = "bars",
                                    .table = table,
                                    .x = "missed",
                                    .y = {CLAIMED, "stale=2"},
                                    .spread = {"its seeds", "the other's seeds"},
                                    .says = "all seeds together; bars: lowest to highest seed",
                                    .x_label = "versions between the read and the push",
                                    .y_label = "share of the pushes",
                                    .log = ""});
}

/* ---- rows ----------------------------------------------------------------------------------- */

static double dropped_by(const paper_trainings *t)
{
    double dropped = 0.0;
    for (int k = 0; k < t->count; k++) {
        dropped += paper_number(t->row[k], "dropped");
    }
    return dropped;
}

static double steps_a_second(const paper_trainings *t)
{
    double rates[PAPER_SEEDS_MAX] = {0};
    for (int k = 0; k < t->count; k++) {
        rates[k] = paper_number(t->row[k], "steps") / paper_number(t->row[k], "trained_seconds");
    }
    return paper_at_share(rates, t->count, 0.5);
}

static void add(json_t *table, const char *mode, const paper_trainings *t,
                const paper_trainings *plain)
{
    const bool itself = strcmp(mode, PLAIN) == 0;
    const histogram h = histogram_of(t);
    const paper_beside beside = paper_compare(t, mode, plain, PLAIN);
    paper_row(table, "[s, o, o, o, i, f, o, o, o, o, s, o, o]", mode,
              paper_number_if(t->reached, paper_at_share(t->seconds, t->count, 0.5)),
              paper_number_if(t->reached, paper_at_share(t->seconds, t->count, 0.0)),
              paper_number_if(t->reached, paper_at_share(t->seconds, t->count, 1.0)), t->reaching,
              steps_a_second(t), paper_number_if(h.count > 0, mean_of(&h)),
              paper_number_if(h.count > 0, h.count - 1),
              paper_number_if(h.count > 0, dropped_by(t)),
              paper_number_if(beside.both && !itself, beside.ratio), itself ? "-" : beside.sooner,
              paper_number_if(t->finite, paper_median_of(t, "loss")), paper_seconds_of(t));
}

static void claim(paper *p, double slow, const paper_trainings *t, const paper_trainings *plain)
{
    char left[64];
    json_t *its = paper_seconds_of(t), *plains = paper_seconds_of(plain);
    (void)snprintf(left, sizeof left, "%s, the last worker %g times as slow", CLAIMED, slow);
    paper_claim_add(
        p, &(paper_claim){.text = slow > 1.0
                                      ? "with a slow worker asynchronous training reaches a loss "
                                        "sooner than plain DDP (Dean et al. 2012)"
                                      : "where workers are alike plain DDP reaches it sooner",
                          .left = left,
                          .right = PLAIN,
                          .left_turns = its,
                          .right_turns = plains,
                          .above = slow <= 1.0,
                          .factor = 1.0});
    json_decref(its);
    json_decref(plains);
}

/* ---- measuring ------------------------------------------------------------------------------ */

static const char *task_of(const paper *p)
{
    return p->options->model != NULL && strcmp(p->options->model, "text") == 0 ? "text" : "digits";
}

static json_t *train(paper *p, double slow)
{
    char slower[16], pace[16], seconds[16], seeds[16];
    const paper_options *o = p->options;
    (void)snprintf(slower, sizeof slower, "%g", slow);
    (void)snprintf(pace, sizeof pace, "%d", PACE_MS);
    const int steps = o->steps > 0 ? o->steps : o->quick ? QUICK_STEPS : STEPS;
    (void)snprintf(seconds, sizeof seconds, "%g",
                   1e-3 * PACE_MS * steps * (slow > 1.0 ? 1.0 : 0.5));
    (void)snprintf(seeds, sizeof seeds, "%d",
                   o->turns > 0 ? o->turns
                   : o->quick   ? QUICK_SEEDS
                                : SEEDS);
    const char *const arguments[] = {"straggler", task_of(p), "--modes", modes,       "--slow",
                                     slower,      "--pace",   pace,      "--seconds", seconds,
                                     "--seeds",   seeds,      NULL};
    return paper_bench(p, WORKERS + 1, task_of(p), arguments);
}

static void tabulate(paper *p, double slow, const json_t *rows)
{
    char title[256], medium[64];
    const json_t *first = json_array_get(rows, 0);
    const paper_trainings plain = paper_trainings_of(rows, "mode", PLAIN);
    (void)snprintf(title, sizeof title,
                   "%s (%s): time to a held-out loss of %g, %d workers, the last %g times as slow, "
                   "%s",
                   task_of(p), paper_text(first, "about"), paper_number(first, "target"), WORKERS,
                   slow, paper_medium(p, medium));
    json_t *table = paper_table(p, title, columns, (int)(sizeof columns / sizeof *columns));
    json_t *curves = paper_curves(p, title, "mode");
    for (size_t i = 0; i < json_array_size(rows); i += (size_t)plain.count) {
        const char *mode = paper_text(json_array_get(rows, i), "mode");
        const paper_trainings t = paper_trainings_of(rows, "mode", mode);
        add(table, mode, &t, &plain);
        paper_curve_add(curves, &t, mode);
        if (strcmp(mode, CLAIMED) == 0 && t.reached && plain.reached) {
            claim(p, slow, &t, &plain);
        }
    }
    (void)snprintf(title, sizeof title, "%s, the last worker %g times as slow", task_of(p), slow);
    paper_curves_plot(p, curves, title, "mode");
    draw_staleness(p, rows, title);
}

static void add_notes(paper *p)
{
    paper_note(
        p,
        "Medians over the seeds, and the lowest and highest of them; `ratio` is the median of the "
        "seeds' times by those of plain DDP, and `sooner` says which reaches the loss first with "
        "every seed. No time: not every seed reached the loss in the time given. `steps` are those "
        "of all workers together; `stale`: versions made between a push and the read before it; "
        "`dropped`: pushes that came after their step was over. Servers that step on each "
        "gradient, async and stale, have the learning rate of plain DDP divided by the number of "
        "workers, the others have its own.");
    paper_note(p, "Measured by `lockstep bench straggler` with --modes \"%s\".", modes);
    paper_note(p,
               "Limits: workers compute little and sleep %d ms in a step, the slow one longer, so "
               "that they do not compete for the cores of this host; on networks that compute for "
               "as long, communication is a smaller part of a step.",
               PACE_MS);
}

bool paper_asynchrony(paper *p)
{
    if (p->link != NULL) {
        paper_note(p, "SKIP: the workers are ranks of one host; leave --link out.");
        return true;
    }
    for (size_t i = 0; i < sizeof slowness / sizeof *slowness; i++) {
        json_t *rows = train(p, slowness[i]);
        const bool good = json_array_size(rows) > 0;
        if (good) {
            tabulate(p, slowness[i], rows);
        }
        json_decref(rows);
        if (!good) {
            return false;
        }
    }
    add_notes(p);
    return true;
}

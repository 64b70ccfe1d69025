/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient compression: the time to a held-out loss with each communication hook beside plain DDP,
 * on slow links and in shared memory, where plain DDP should win. */
#include <stdio.h>
#include <string.h>

#include "to_loss.h"

#define CLAIMED "powersgd:rank=4"
enum { SEEDS = 3, QUICK_SEEDS = 2, STEPS = 300, RANKS = 2 };

static const char hooks[] = "plain bf16 fp16 int8 one_bit:start=50 powersgd:rank=4 "
                            "top_k:density=0.05 random_k:density=0.1";
static const char *const tasks[] = {"digits", "text"};
static const char *const rates[] = {"1gbit", "100mbit"};
enum { TASKS = sizeof tasks / sizeof *tasks, RATES = sizeof rates / sizeof *rates };

static const paper_column columns[] = {
    {"hook", "", NULL},       {"time", "s", "%.2f"},         {"lowest", "s", "%.2f"},
    {"highest", "s", "%.2f"}, {"reached", "seeds", "%.0f"},  {"steps", "", "%.0f"},
    {"a step", "ms", "%.2f"}, {"sent", "KB a step", "%.1f"}, {"ratio", "", "%.2f"},
    {"sooner", "", NULL},     {"loss", "", "%.3f"},          {"times", "", "list"},
};

/* ---- rows ---------------------------------------------------------------------------------- */

static double step_ms(const paper_trainings *t)
{
    double ms[PAPER_SEEDS_MAX] = {0};
    for (int k = 0; k < t->count; k++) {
        ms[k] = 1e3 * t->seconds[k] / paper_number(t->row[k], "steps");
    }
    return paper_at_share(ms, t->count, 0.5);
}

/* In shared memory peers read in place, and nothing is sent. */
static bool is_sent(const paper *p)
{
    char medium[64];
    return strcmp(paper_medium(p, medium), "shared memory") != 0;
}

static void add(const paper *p, json_t *table, const char *hook, const paper_trainings *t,
                const paper_trainings *plain)
{
    const bool itself = strcmp(hook, "plain") == 0;
    const paper_beside beside = paper_compare(t, "hook", plain, "plain");
    paper_row(table, "[s, o, o, o, i, o, f, o, o, s, o, o]", hook,
              paper_number_if(t->reached, paper_at_share(t->seconds, t->count, 0.5)),
              paper_number_if(t->reached, paper_at_share(t->seconds, t->count, 0.0)),
              paper_number_if(t->reached, paper_at_share(t->seconds, t->count, 1.0)), t->reaching,
              paper_number_if(t->reached, paper_median_of(t, "steps")), step_ms(t),
              paper_number_if(is_sent(p), 1e-3 * paper_median_of(t, "sent_bytes")),
              paper_number_if(beside.both && !itself, beside.ratio), itself ? "-" : beside.sooner,
              paper_number_if(t->finite, paper_median_of(t, "loss")), paper_seconds_of(t));
}

static void claim(paper *p, const char *task, const paper_trainings *t,
                  const paper_trainings *plain)
{
    char left[64], right[96], medium[64];
    json_t *its = paper_seconds_of(t), *plains = paper_seconds_of(plain);
    (void)snprintf(left, sizeof left, "%s, %s", task, CLAIMED);
    (void)snprintf(right, sizeof right, "plain (%s)", paper_medium(p, medium));
    paper_claim_add(
        p, &(paper_claim){.text = p->link != NULL
                                      ? "on a slow link PowerSGD reaches a loss sooner than plain "
                                        "DDP (Vogels et al. 2019)"
                                      : "where the link is not slow plain DDP reaches it sooner",
                          .left = left,
                          .right = right,
                          .left_turns = its,
                          .right_turns = plains,
                          .above = p->link == NULL,
                          .factor = 1.0});
    json_decref(its);
    json_decref(plains);
}

/* ---- measuring ----------------------------------------------------------------------------- */

static json_t *train(paper *p, const char *task)
{
    char steps[16], seeds[16];
    const paper_options *o = p->options;
    (void)snprintf(steps, sizeof steps, "%d", o->steps > 0 ? o->steps : STEPS);
    (void)snprintf(seeds, sizeof seeds, "%d",
                   o->turns > 0 ? o->turns
                   : o->quick   ? QUICK_SEEDS
                                : SEEDS);
    const char *const arguments[] = {"learn", task,      "--comm", hooks, "--steps",
                                     steps,   "--seeds", seeds,    NULL};
    return paper_bench(p, RANKS, task, arguments);
}

static void tabulate(paper *p, const char *task, const json_t *rows)
{
    char title[256], medium[64];
    const json_t *first = json_array_get(rows, 0);
    const paper_trainings plain = paper_trainings_of(rows, "comm", "plain");
    (void)snprintf(title, sizeof title, "%s (%s): time to a held-out loss of %g, %d ranks, %s",
                   task, paper_text(first, "about"), paper_number(first, "target"), RANKS,
                   paper_medium(p, medium));
    json_t *table = paper_table(p, title, columns, (int)(sizeof columns / sizeof *columns));
    json_t *curves = paper_curves(p, title, "hook");
    for (size_t i = 0; i < json_array_size(rows); i += (size_t)plain.count) {
        const char *hook = paper_text(json_array_get(rows, i), "comm");
        const paper_trainings t = paper_trainings_of(rows, "comm", hook);
        add(p, table, hook, &t, &plain);
        paper_curve_add(curves, &t, hook);
        if (strcmp(hook, CLAIMED) == 0 && t.reached && plain.reached) {
            claim(p, task, &t, &plain);
        }
    }
    (void)snprintf(title, sizeof title, "%s, %s", task, medium);
    paper_curves_plot(p, curves, title, "hook");
}

/* --model digits, or text: that one alone. */
static bool is_left_out(const paper *p, const char *task)
{
    bool any = false;
    for (int t = 0; t < TASKS && p->options->model != NULL; t++) {
        any = any || strcmp(tasks[t], p->options->model) == 0;
    }
    return any && strcmp(task, p->options->model) != 0;
}

static bool over(paper *p)
{
    for (int t = 0; t < TASKS; t++) {
        if (is_left_out(p, tasks[t])) {
            continue;
        }
        json_t *rows = train(p, tasks[t]);
        if (json_array_size(rows) == 0) {
            json_decref(rows);
            return false;
        }
        tabulate(p, tasks[t], rows);
        json_decref(rows);
    }
    return true;
}

static bool over_links(paper *p)
{
    for (int r = 0; r < RATES; r++) {
        paper next = *p;
        next.link = rates[r];
        if (!over(&next)) {
            return false;
        }
    }
    return true;
}

bool paper_compression(paper *p)
{
    const bool asked = p->transport != NULL || p->link != NULL || p->options->quick,
               links = !asked && paper_can_link();
    if (!over(p) || (links && !over_links(p))) {
        return false;
    }
    if (!asked && !links) {
        paper_note(p, "SKIP 1 Gbit/s and 100 Mbit/s: network namespaces cannot be made here; it "
                      "needs root, ip, tc and nsenter.");
    }
    paper_note(
        p,
        "Medians over the seeds, and the lowest and highest of them; `ratio` is the median of "
        "the seeds' times by those of plain DDP, and `sooner` says who reaches the loss first "
        "with every seed. No time: not every seed reached the loss in that many steps. The clock "
        "stops while held-out losses are computed, every 5 steps. All hooks have the learning "
        "rate of plain DDP.");
    paper_note(p, "Measured by `lockstep bench learn` with --comm \"%s\".", hooks);
    paper_note(p, "Limits: a link is a pair of network namespaces of this host, with `tc tbf` at "
                  "both ends: its rate, bursts of 32 KB (16 KB at 100 Mbit/s) that pass at once, "
                  "20 ms of queue. Data between hosts are encrypted. Both ranks share the cores of "
                  "this host. The networks are small: a step computes for some milliseconds.");
    return true;
}

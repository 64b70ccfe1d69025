/* SPDX-License-Identifier: Apache-2.0 */
/* Figure 9: training steps on 1 to 8 ranks, replayed, and on 16 to 256 by a model: the recorded
 * timeline, and all-reduces that take alpha for each step of their program and beta for each byte
 * that a rank sends. Alpha and beta are fitted to two all-reduces of 2 ranks on the same medium,
 * and the model stands beside the replayed steps.
 *
 * Weak: a rank has 64 samples. Strong: all ranks together have 256. So that a step takes no
 * minutes, 64 samples take as long as those of the timeline did, as on processors that are faster
 * by that factor. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env_posix.h"
#include "base/error.h"
#include "bench/timeline.h"
#include "cost/collective.h"
#include "cost/simulate.h"
#include "ddp_rows.h"

#define BUCKETS "25"
#define BUCKET_BYTES 25e6
#define FIRST_BUCKET_BYTES 1048576.0
#define SMALL 1000.0 /* elements of the two all-reduces */
#define LARGE 4000000.0
enum { REPLAYED_MAX = 8, MODELLED_MAX = 256, SAMPLES = 64, STRONG_SAMPLES = 256 };

typedef struct figures {
    double alpha, beta; /* seconds a step, seconds a byte */
} figures;

static const paper_column columns[] = {
    {"network", "", NULL},          {"scaling", "", NULL},   {"ranks", "", "%.0f"},
    {"step is", "", NULL},          {"step", "ms", "%.2f"},  {"model", "ms", "%.2f"},
    {"model is off by", "%", NULL}, {"speedup", "", "%.2f"}, {"curve", "", "list"},
    {"replayed", "ms", "list"},     {"turns", "", "list"},   {"model's error", "", "list"},
};

/* ---- the model ------------------------------------------------------------------------------- */

/* By halving and doubling. */
static ls__collective_cost cost_of(int ranks)
{
    return ls__collective_all_reduce(ranks, true);
}

/* Milliseconds of one all-reduce of 2 ranks; below 0: failed. */
static double one_call(paper *p, double elements)
{
    char count[32];
    (void)snprintf(count, sizeof count, "%.0f", elements);
    const char *const arguments[] = {"pieces", "--total",  count, "--pieces",
                                     count,    "--rounds", "5",   NULL};
    json_t *rows = paper_bench(p, 2, "one all-reduce", arguments);
    const double ms = rows != NULL ? paper_number(json_array_get(rows, 0), "time_ms") : -1.0;
    json_decref(rows);
    return ms;
}

static bool fit(paper *p, figures *out)
{
    char medium[64];
    const ls__collective_cost cost = cost_of(2);
    const double small = one_call(p, SMALL), large = one_call(p, LARGE);
    if (small < 0.0 || large < 0.0) {
        return false;
    }
    const double slope = (large - small) * 1e-3 / ((LARGE - SMALL) * sizeof(float) * cost.sent);
    out->beta = slope > 0.0 ? slope : 0.0;
    const double rest = small * 1e-3 - out->beta * SMALL * sizeof(float) * cost.sent;
    out->alpha = rest > 0.0 ? rest / cost.messages : 0.0;
    paper_note(p, "%s, fitted: alpha %.1f us a step, beta %.3f ns a byte.", paper_medium(p, medium),
               out->alpha * 1e6, out->beta * 1e9);
    return true;
}

/* Buckets are filled as gradients become ready. The timeline is sorted by time. */
static int sums_of(const ls__timeline *t, const figures *f, ls__collective_cost cost,
                   ls__sim_reduction *out)
{
    double filled = 0.0, room = FIRST_BUCKET_BYTES;
    int count = 0;
    for (int i = 0; i < t->count && cost.messages > 0; i++) {
        filled += (double)t->gradients[i].elements * (double)ls_dtype_size(t->gradients[i].dtype);
        if (filled >= room || i == t->count - 1) {
            const double seconds = ls__collective_seconds(cost, f->alpha, f->beta, filled);
            out[count++] = (ls__sim_reduction){
                .after = fmin(t->gradients[i].ready_s / t->backward_s, 1.0),
                .route = {.resource = {LS__SIM_NONE, LS__SIM_NONE}, .latency = seconds}};
            filled = 0.0;
            room = BUCKET_BYTES;
        }
    }
    return count;
}

/* A step of one rank, whose sums follow each other beside backward (cost/simulate.h). */
static ls_status simulate(const ls__timeline *t, const ls__sim_reduction *sums, int count,
                          double speed, double *ms)
{
    ls__schedule *s;
    ls__sim_result result;
    const ls__stage_times times = {.forward = t->forward_s / speed,
                                   .backward = t->backward_s / speed};
    const ls__sim_spec spec = {.times = &times, .reductions = sums, .reduction_count = count};
    LS_TRY(ls__schedule_new(ls__env_posix(), "1f1b",
                            &(ls__schedule_spec){.ranks = 1, .micro_batches = 1}, &s));
    const ls_status status = ls__simulate(s, &spec, &result);
    *ms = status < 0 ? 0.0 : 1e3 * (fmax(result.makespan, result.reduced) + t->optimizer_s / speed);
    ls__schedule_free(s);
    return status;
}

/* Milliseconds of a step; below 0: failed. */
static double modelled_ms(const ls__timeline *t, const figures *f, ls__collective_cost cost,
                          double speed)
{
    double ms = -1.0;
    ls__sim_reduction *sums = calloc((size_t)t->count + 1, sizeof *sums);
    if (sums == NULL || simulate(t, sums, sums_of(t, f, cost, sums), speed, &ms) < 0) {
        fprintf(stderr, "lockstep paper: no memory\n");
        ms = -1.0;
    }
    free(sums);
    return ms;
}

/* ---- rows ------------------------------------------------------------------------------------ */

typedef struct series { /* one network, one kind of scaling */
    paper *p;
    json_t *table;
    const paper_network *network;
    const ls__timeline *timeline;
    const figures *figures;
    bool strong;
} series;

/* Of a rank beside one with SAMPLES samples. */
static double speed_of(const series *s, int ranks)
{
    return s->strong ? (double)ranks * SAMPLES / STRONG_SAMPLES : 1.0;
}

/* `row`: of lockstep bench replay; NULL: only modelled, and for one rank as recorded. */
static bool add(const series *s, int ranks, const json_t *row)
{
    char curve[160], off[32] = "-";
    const char *kind = s->strong ? "strong" : "weak";
    const double model = modelled_ms(s->timeline, s->figures, cost_of(ranks), speed_of(s, ranks));
    const double one = modelled_ms(s->timeline, s->figures, cost_of(1), speed_of(s, 1));
    const double shown = row != NULL ? paper_mean(row, "step") : model;
    if (row != NULL) {
        (void)snprintf(off, sizeof off, "%+.0f", (model / shown - 1.0) * 100.0);
    }
    (void)snprintf(curve, sizeof curve, "%s, %s", s->network->title, kind);
    paper_row(s->table, "[s, s, i, s, f, f, s, f, s, o, o, []]", s->network->title, kind, ranks,
              row != NULL  ? "replayed"
              : ranks == 1 ? "recorded"
                           : "modelled",
              shown, model, off, one / shown * (s->strong ? 1.0 : ranks), curve,
              row != NULL ? json_real(shown) : json_null(), paper_turns(row, "step"));
    return model >= 0.0 && one >= 0.0;
}

/* Where steps of the series were replayed, the model was off by factors; as far it may be off
 * elsewhere. `first` is the series' first row, of one rank, where nothing is off. */
static void add_errors(const series *s, size_t first)
{
    json_t *rows = json_object_get(s->table, "rows");
    const size_t step = (size_t)paper_column_index(s->table, "replayed"),
                 model = (size_t)paper_column_index(s->table, "model"),
                 error = (size_t)paper_column_index(s->table, "model's error");
    double least = 1.0, most = 1.0;
    for (size_t r = first; r < json_array_size(rows); r++) {
        const json_t *row = json_array_get(rows, r);
        const double ratio = json_number_value(json_array_get(row, step)) /
                             json_number_value(json_array_get(row, model));
        least = ratio > 0.0 ? fmin(least, ratio) : least;
        most = fmax(most, ratio);
    }
    for (size_t r = first; r < json_array_size(rows); r++) {
        json_t *row = json_array_get(rows, r);
        const double ms = json_number_value(json_array_get(row, model));
        json_array_set_new(row, error, json_pack("[f, f]", ms * least, ms * most));
    }
}

static void claim(const series *s, const json_t *rows)
{
    char left[96], right[96], medium[64];
    (void)snprintf(left, sizeof left, "%s, %d ranks", s->network->title, REPLAYED_MAX);
    (void)snprintf(right, sizeof right, "a step without communication (%s)",
                   paper_medium(s->p, medium));
    paper_claim_add(
        s->p,
        &(paper_claim){
            .text = "with 64 samples a rank, a step takes less than twice the local one",
            .left = left,
            .right = right,
            .left_turns = json_object_get(paper_find(rows, "mode", "overlap", NULL), "round_ms"),
            .right_turns = json_object_get(paper_find(rows, "mode", "local", NULL), "round_ms"),
            .factor = 2.0});
}

/* Replays one number of ranks. */
static bool replay(const series *s, int ranks)
{
    const double given = s->p->options->speed;
    paper_options options = *s->p->options;
    paper other = *s->p; /* the same result, computing at another speed */
    options.speed = (given > 0.0 ? given : 1.0) * speed_of(s, ranks);
    other.options = &options;
    const bool claims = ranks == REPLAYED_MAX && !s->strong;
    json_t *rows = paper_replayed_rows(&other, s->network, ranks,
                                       claims ? "overlap,local" : "overlap", BUCKETS, NULL);
    const json_t *overlap = paper_find(rows, "mode", "overlap", NULL);
    const bool good = overlap != NULL && add(s, ranks, overlap);
    if (good && claims) {
        claim(s, rows);
    }
    json_decref(rows);
    return good;
}

static bool measure(const series *s)
{
    const size_t first = json_array_size(json_object_get(s->table, "rows"));
    bool good = add(s, 1, NULL);
    for (int ranks = 2; ranks <= REPLAYED_MAX && good; ranks *= 2) {
        good = replay(s, ranks);
    }
    for (int ranks = 2 * REPLAYED_MAX; ranks <= MODELLED_MAX && good; ranks *= 2) {
        good = add(s, ranks, NULL);
    }
    add_errors(s, first);
    return good;
}

static bool both(paper *p, json_t *table, const paper_network *n, const figures *f)
{
    ls__timeline timeline;
    const double speed = p->options->speed > 0.0 ? p->options->speed : 1.0;
    bool good = ls__timeline_read(n->model, &timeline) == LS_OK;
    if (good) {
        ls__timeline_sort(&timeline);
        for (int i = 0; i < timeline.count; i++) {
            timeline.gradients[i].ready_s /= speed;
        }
        timeline.forward_s /= speed;
        timeline.backward_s /= speed;
        timeline.optimizer_s /= speed;
        paper_note(p, "%s: processors are %g times as fast as the recorded one.", n->title,
                   speed * SAMPLES / timeline.batch);
        const series weak = {p, table, n, &timeline, f, false},
                     strong = {p, table, n, &timeline, f, true};
        good = measure(&weak) && measure(&strong);
    } else {
        fprintf(stderr, "lockstep paper: %s\n", ls_error_message());
        paper_set_reason(ls_error_message());
    }
    ls__timeline_free(&timeline);
    return good;
}

static bool over(paper *p)
{
    char title[160], medium[64];
    figures f;
    const paper_network *network;
    (void)snprintf(
        title, sizeof title,
        "Scaling, %s, replayed and modelled; weak: 64 samples a rank, strong: 256 in all",
        paper_medium(p, medium));
    json_t *table = paper_table(p, title, columns, (int)(sizeof columns / sizeof *columns));
    if (!fit(p, &f)) {
        return false;
    }
    (void)snprintf(title, sizeof title, "Scaling, %s", medium);
    paper_plot_add(p, &(paper_plot){.title = title,
                                    .kind = "lines",
                                    .table = table,
                                    .x = "ranks",
                                    .y = {"replayed", "model"},
                                    .spread = {"turns"},
                                    .area = "model's error",
                                    .says = "bars: lowest to highest turn; areas: the model, off "
                                            "by as much as where steps were replayed",
                                    .group = "curve",
                                    .x_label = "ranks",
                                    .y_label = "ms a step",
                                    .log = "x 2; set logscale y"});
    for (int k = 0; (network = paper_network_at(p, k)) != NULL; k++) {
        if (!both(p, table, network, &f)) {
            return false;
        }
    }
    return true;
}

bool paper_scaling(paper *p)
{
    while (paper_next_medium(p)) {
        if (!over(p)) {
            return false;
        }
    }
    paper_note(p, "speedup: samples a second, of one rank's; one rank takes the recorded time. "
                  "Replayed ranks share the cores of this machine for what they communicate with, "
                  "and a link if there is one; the model gives each rank a connection of its own, "
                  "as servers have, and reduces by halving and doubling. Beyond 8 ranks nothing "
                  "was replayed: the areas of the plot go as far as the model was off up to 8. The "
                  "paper (section 5.3, figure 9): up to 256 GPUs steps become longer, over Gloo "
                  "more than over NCCL, BERT's more than ResNet-50's.");
    return true;
}

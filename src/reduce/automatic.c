/* Sizes of buckets that Lockstep chooses (docs/design.md, D9), unless the caller did.
 *
 *     tried    A B C  C B A  …          25 MiB, a quarter of a region, a sixteenth
 *     compared A B C D E  E D C B A …   with two that the times of the first stage lead to
 *              A D  D A  …              those that were not clearly slower; then one stays
 *
 * A round is a backward with each division, and the next round goes back, so that a slow moment of the
 * machine meets all of them, and one that becomes slower is no advantage to the first. The tried divisions are there to be measured: when each cell becomes ready, and how
 * long all-reduces of different sizes take. From these, brought together over the ranks of a domain,
 * every rank computes the same boundaries (boundaries.c). The model knows nothing of the cores and of the
 * memory that backward and all-reduce share; so all divisions are then compared by the time from begin to
 * end, round by round. Boundaries move without moving gradients and change no bit of a sum (D5), so all
 * of these steps count in training.
 *
 * A cell is ready when it is on the last rank, and a division's all-reduces take as long as on the rank
 * that saw the least of them, since the others waited for that rank. What one more all-reduce costs is
 * also measured by itself, because it drowns in the noise where the wire is busy.
 *
 * A domain's regions are divided together, at the same moments, and each domain by itself: ranks that
 * share one domain may have different others.
 */
#include "reduce/automatic.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "reduce/plan.h"

#define TAG "sizes of buckets"
/* So much of a division's time takes the one that replaces it. Above, that is noise, and a division
 * that was searched for stays. */
#define FASTER 0.985f
#define SMALL 9 /* all-reduces of one number that are timed */

static const int parts[LS__TRIED] = {0, 4, 16};

/* What is searched for: links may be slower than measured, since they have worse moments, and by a part
 * of the predicted end it may be later with fewer buckets, hence less work. */
static const struct {
    double margin, slack;
} searches[LS__FOUND] = {{1.25, 0.005}, {1.0, 0.05}};

/* Rounds of a stage that count, and by what ratio a division is slower than the fastest if it takes
 * part in no further stage. */
static const struct {
    int rounds;
    double slower;
} stages[] = {
    {LS__DIVISION_SAMPLES, 0.0}, {LS__DIVISION_SAMPLES, 1.05}, {LS__COMPARED_SAMPLES, 1.0}};
enum { STAGES = sizeof stages / sizeof *stages };

/* ---- measuring ----------------------------------------------------------------------------- */

static void *take(ls_reducer *r, size_t count, size_t bytes, bool *failed)
{
    void *memory = ls__arena_alloc(&r->arena, (count + 1) * bytes);
    *failed = *failed || memory == NULL;
    return memory;
}

ls_status ls__automatic_start(ls_reducer *r)
{
    ls__automatic *a = &r->automatic;
    const size_t n = (size_t)r->plan.cell_count;
    bool failed = false;
    if (!a->on) {
        return LS_OK;
    }
    *a = (ls__automatic){.on = true};
    for (int t = 0; t < LS__TRIED; t++) {
        a->kept[t] = true;
    }
    a->tried = take(r, (size_t)r->domain_count, sizeof *a->tried, &failed);
    a->ready = take(r, n, sizeof *a->ready, &failed);
    for (int f = 0; f < LS__FOUND; f++) {
        a->ends[f] = take(r, n, sizeof *a->ends[f], &failed);
    }
    a->places = take(r, n, sizeof *a->places, &failed);
    a->cells = take(r, n, sizeof *a->cells, &failed);
    a->place_ends = take(r, n, sizeof *a->place_ends, &failed);
    a->latest = take(r, n, sizeof *a->latest, &failed);
    a->shared = take(r, n + LS__TRIED + 1, sizeof *a->shared, &failed);
    if (failed) {
        a->on = false;
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for the plan of %d parameters",
                        r->name, r->param_count);
    }
    return LS_OK;
}

static float since_begin(const ls_reducer *r, uint64_t ns)
{
    return ns > r->begin_ns ? (float)((double)(ns - r->begin_ns) * 1e-9) : 0.0f;
}

/* A parameter that was not reached is ready from the start. */
static void record_ready(ls_reducer *r, int sample)
{
    for (int c = 0; c < r->plan.cell_count; c++) {
        const ls__reduce_cell *cell = &r->plan.cells[c];
        uint64_t last = 0;
        for (int i = 0; i < cell->count; i++) {
            const uint64_t ready = r->params[r->plan.order[cell->first + i]].ready_ns;
            last = ready > last ? ready : last;
        }
        r->automatic.ready[c][sample] = since_begin(r, last);
    }
}

/* An all-reduce has the wire for itself once the one before it has ended. */
static void record_buckets(ls_reducer *r, int sample)
{
    ls__automatic *a = &r->automatic;
    uint64_t free_ns = 0;
    for (int d = 0; d < r->domain_count; d++) {
        a->tried[d].buckets[a->division] = 0;
        a->tried[d].seconds[a->division][sample] = 0.0f;
    }
    for (int b = 0; b < r->plan.count; b++) {
        const ls__reduce_bucket *bucket = &r->plan.buckets[b];
        ls__tried *tried = &a->tried[r->plan.regions[bucket->region].key.domain];
        const uint64_t start = bucket->launched_ns > free_ns ? bucket->launched_ns : free_ns;
        tried->buckets[a->division]++;
        if (bucket->launched_ns != 0 && bucket->reduced_ns > start) {
            tried->seconds[a->division][sample] +=
                (float)((double)(bucket->reduced_ns - start) * 1e-9);
        }
        free_ns = bucket->reduced_ns > free_ns ? bucket->reduced_ns : free_ns;
    }
}

/* Of up to LS__COMPARED_SAMPLES. */
static float median(const float *samples, int count)
{
    float sorted[LS__COMPARED_SAMPLES];
    for (int i = 0; i < count; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > samples[i]; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = samples[i];
    }
    return sorted[count / 2];
}

/* ---- searching ----------------------------------------------------------------------------- */

static int by_last(const void *a, const void *b)
{
    const ls__cell_place *x = a, *y = b;
    return (x->last > y->last) - (x->last < y->last);
}

/* Lists the domain's cells in the order in which they become ready; returns how many. */
static int list_cells(ls_reducer *r, int d)
{
    ls__automatic *a = &r->automatic;
    int count = 0;
    for (int c = 0; c < r->plan.cell_count; c++) {
        const ls__reduce_cell *cell = &r->plan.cells[c];
        if (r->plan.regions[cell->region].key.domain == d) {
            a->places[count++] = (ls__cell_place){cell->last, c};
        }
    }
    qsort(a->places, (size_t)count, sizeof *a->places, by_last);
    return count;
}

/* Times all-reduces of one number: what one costs where the wire is idle. */
static ls_status time_small(ls_reducer *r, int d, float *seconds)
{
    const ls__env *env = r->runtime->env;
    float samples[SMALL], number = 0.0f;
    for (int i = 0; i < SMALL; i++) {
        const uint64_t begin = env->now_ns(env);
        LS_TRY(ls_all_reduce(r->domains[d].group, &number, &number, 1, LS_FLOAT32, LS_SUM,
                             LS_OPTIONS(ls_collective_options, .tag = TAG), NULL));
        samples[i] = (float)((double)(env->now_ns(env) - begin) * 1e-9);
    }
    *seconds = median(samples + SMALL - LS__DIVISION_SAMPLES,
                      LS__DIVISION_SAMPLES); /* the first ones meet late ranks */
    return LS_OK;
}

/* Brings together what the domain's ranks measured: shared[] is when each of its `cells` is ready, then
 * what a small all-reduce costs, then the seconds, negative, of each tried division. */
static ls_status share(ls_reducer *r, int d, int cells)
{
    ls__automatic *a = &r->automatic;
    for (int k = 0; k < cells; k++) {
        a->shared[k] = median(a->ready[a->places[k].cell], LS__DIVISION_SAMPLES);
    }
    LS_TRY(time_small(r, d, &a->shared[cells]));
    for (int t = 0; t < LS__TRIED; t++) {
        a->shared[cells + 1 + t] = -median(a->tried[d].seconds[t], LS__DIVISION_SAMPLES);
    }
    return LS__AS_CONTROL(ls_all_reduce(r->domains[d].group, a->shared, a->shared,
                                        cells + 1 + LS__TRIED, LS_FLOAT32, LS_MAX,
                                        LS_OPTIONS(ls_collective_options, .tag = TAG), NULL));
}

/* What an all-reduce of the domain costs. `shared`: behind the cells. */
static ls__boundary_cost fit(const ls_reducer *r, int d, const float *shared)
{
    double buckets[LS__TRIED], seconds[LS__TRIED], bytes = 0.0;
    for (int t = 0; t < LS__TRIED; t++) {
        buckets[t] = r->automatic.tried[d].buckets[t];
        seconds[t] = -(double)shared[1 + t];
    }
    for (int i = 0; i < r->plan.region_count; i++) {
        const ls__reduce_region *region = &r->plan.regions[i];
        bytes += region->key.domain == d ? (double)region->bytes : 0.0;
    }
    return ls__boundaries_fit(buckets, seconds, LS__TRIED, bytes, (double)shared[0]);
}

/* Where a run of the domain's cells ends, so does a bucket in each of its regions. */
static void mark_ends(ls_reducer *r, int cells, bool *ends)
{
    ls__automatic *a = &r->automatic;
    for (int i = 0; i < r->plan.region_count; i++) {
        a->latest[i] = -1;
    }
    for (int k = 0; k < cells; k++) {
        const int cell = a->places[k].cell;
        ends[cell] = false;
        a->latest[r->plan.cells[cell].region] = cell;
        for (int i = 0; a->place_ends[k] && i < r->plan.region_count; i++) {
            if (a->latest[i] >= 0) {
                ends[a->latest[i]] = true;
                a->latest[i] = -1;
            }
        }
    }
}

static int regions_of(const ls_reducer *r, int d)
{
    int count = 0;
    for (int i = 0; i < r->plan.region_count; i++) {
        count += r->plan.regions[i].key.domain == d;
    }
    return count;
}

/* Finds the domain's boundaries. Collective over the domain. */
static ls_status find(ls_reducer *r, int d)
{
    ls__automatic *a = &r->automatic;
    const int count = list_cells(r, d);
    LS_TRY(share(r, d, count));
    const ls__boundary_cost cost = fit(r, d, a->shared + count);
    for (int k = 0; k < count; k++) {
        a->cells[k] = (ls__boundary_cell){(double)a->shared[k],
                                          (double)r->plan.cells[a->places[k].cell].bytes};
    }
    for (int f = 0; f < LS__FOUND; f++) {
        const ls__boundary_cost slower = {searches[f].margin * cost.each * regions_of(r, d),
                                          searches[f].margin * cost.byte};
        (void)ls__boundaries_find(a->cells, count, &slower, searches[f].slack, a->place_ends);
        mark_ends(r, count, a->ends[f]);
    }
    a->cost = d == 0 ? cost : a->cost;
    return LS_OK;
}

/* ---- comparing ----------------------------------------------------------------------------- */

/* By what the division's backwards take longer than another's: the median over pairs of rounds, there
 * and back. */
static float ratio(const float *took, const float *other, int rounds)
{
    float ratios[LS__COMPARED_SAMPLES / 2];
    for (int s = 0; s < rounds / 2; s++) {
        const float whole = other[2 * s] + other[2 * s + 1];
        ratios[s] = whole > 0.0f ? (took[2 * s] + took[2 * s + 1]) / whole : 1.0f;
    }
    return median(ratios, rounds / 2);
}

/* The first of the kept divisions from this one on, up or down; -1: there is none. */
static int kept_from(const ls__automatic *a, int division, int step)
{
    while (division >= 0 && division < LS__DIVISIONS && !a->kept[division]) {
        division += step;
    }
    return division < LS__DIVISIONS ? division : -1;
}

static void report(const ls_reducer *r, int rounds)
{
    const ls__automatic *a = &r->automatic;
    if (r->rank == 0) {
        LS__INFO("reducer \"%s\": buckets of division %d stay, with %.3f ms from begin to end; an "
                 "all-reduce takes %.3f ms and %.3f ms a MB",
                 r->name, a->next + 1, (double)median(a->took[a->next], rounds) * 1e3,
                 a->cost.each * 1e3, a->cost.byte * 1e9);
    }
}

/* Chooses among the kept divisions. In each backward the rank that began last counts, which had to wait
 * for nobody. Collective. */
static ls_status compare(ls_reducer *r)
{
    ls__automatic *a = &r->automatic;
    const int rounds = stages[a->stage].rounds;
    LS_TRY(LS__AS_CONTROL(ls_all_reduce(r->group, a->took, a->took,
                                        LS__DIVISIONS * LS__COMPARED_SAMPLES, LS_FLOAT32, LS_MIN,
                                        LS_OPTIONS(ls_collective_options, .tag = TAG), NULL)));
    int best = kept_from(a, LS__TRIED, 1), kept = 0;
    best = best >= 0 ? best : kept_from(a, 0, 1);
    for (int t = 0; t < LS__DIVISIONS; t++) {
        best = a->kept[t] && ratio(a->took[t], a->took[best], rounds) < FASTER ? t : best;
    }
    for (int t = 0; t < LS__DIVISIONS; t++) {
        a->kept[t] = a->kept[t] &&
                     ((double)ratio(a->took[t], a->took[best], rounds) <= stages[a->stage].slower ||
                      t == best);
        kept += a->kept[t];
    }
    a->settled = a->stage == STAGES - 1 || kept == 1;
    if (a->settled) {
        a->next = best;
        report(r, rounds);
    }
    return LS_OK;
}

/* ---- stages -------------------------------------------------------------------------------- */

/* All rounds are done. */
static ls_status end_stage(ls_reducer *r)
{
    ls__automatic *a = &r->automatic;
    if (a->stage > 0) {
        LS_TRY(compare(r));
    }
    for (int d = 0; d < r->domain_count && a->stage == 0; d++) {
        LS_TRY(find(r, d));
    }
    for (int t = LS__TRIED; t < LS__DIVISIONS && a->stage == 0; t++) {
        a->kept[t] = true;
    }
    a->stage++;
    a->round = 0;
    return LS_OK;
}

/* All ranks count the same backwards, so they come to the exchanges together. The first round of a stage
 * is left out: in the first backward with a division memory and programs of new sizes are made. */
ls_status ls__automatic_measure(ls_reducer *r)
{
    ls__automatic *a = &r->automatic;
    if (!a->on || a->settled) {
        return LS_OK;
    }
    const int sample = a->round - 1;
    if (sample >= 0) {
        a->took[a->division][sample] = since_begin(r, r->ended_ns);
    }
    if (sample >= 0 && a->stage == 0) {
        record_ready(r, sample);
        record_buckets(r, sample);
    }
    const int step = a->round % 2 == 0 ? 1 : -1;
    a->next = kept_from(a, a->division + step, step);
    if (a->next >= 0) {
        return LS_OK;
    }
    a->next = a->division; /* the next round goes back */
    if (++a->round <= stages[a->stage].rounds) {
        return LS_OK;
    }
    LS_TRY(end_stage(r));
    a->next = a->settled ? a->next : kept_from(a, 0, 1);
    return LS_OK;
}

void ls__automatic_divide(ls_reducer *r)
{
    ls__automatic *a = &r->automatic;
    if (!a->on || a->next == a->division) {
        return;
    }
    a->division = a->next;
    if (a->division >= LS__TRIED) {
        ls__reducer_divide(r, &(ls__reduce_division){.ends = a->ends[a->division - LS__TRIED]});
    } else {
        ls__reducer_divide(r, &(ls__reduce_division){.parts = parts[a->division],
                                                     .first_bytes = r->options.first_bucket_bytes,
                                                     .bytes = r->options.bucket_bytes});
    }
}

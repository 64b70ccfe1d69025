/* Sizes of buckets that Lockstep chooses (docs/design.md, D9), unless the caller did.
 *
 *     tried      25 MiB, a quarter of a region, a sixteenth: each in turn (turns.c)
 *     found      two others, from what the tried ones measured (boundaries.c)
 *     compared   all of them, each in turn; then one stays
 *
 * The tried divisions are there to be measured: when each cell becomes ready, and how long all-reduces of
 * different sizes take. From these, brought together over the ranks of a domain, every rank computes the
 * same boundaries. The model knows nothing of the cores and of the memory that backward and all-reduce
 * share; so all divisions are then compared by the time from begin to end. Boundaries move without moving
 * gradients and change no bit of a sum (D5), so all of these steps count in training.
 *
 * A cell is ready when it is on the last rank, and a division's all-reduces take as long as on the rank
 * that saw the least of them, since the others waited for that rank. What one more all-reduce costs is
 * also measured by itself, because it drowns in the noise where the wire is busy.
 *
 * A domain's regions are divided together, at the same moments, and each domain by itself: ranks that
 * share one domain may have different others.
 */
#include "reduce/automatic.h"
#include "comm/api/control.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "reduce/plan.h"

#define TAG "sizes of buckets"
#define SMALL 9 /* all-reduces of one number that are timed */

static const int parts[LS__TRIED] = {0, 4, 16};

/* Each search takes links for `margin` times as slow as measured, since they have worse moments, and
 * accepts an end that is later by the part `slack` if it needs fewer buckets, hence less work. */
static const struct {
    double margin, slack;
} searches[LS__FOUND] = {{1.25, 0.005}, {1.0, 0.05}};

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
    ls__turns_start(&a->turns);
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
    *seconds = ls__samples_median(samples + SMALL - LS__DIVISION_SAMPLES,
                                  LS__DIVISION_SAMPLES); /* the first ones meet late ranks */
    return LS_OK;
}

/* Brings together what the domain's ranks measured: shared[] is when each of its `cells` is ready, then
 * what a small all-reduce costs, then the seconds, negative, of each tried division. */
static ls_status share(ls_reducer *r, int d, int cells)
{
    ls__automatic *a = &r->automatic;
    for (int k = 0; k < cells; k++) {
        a->shared[k] = ls__samples_median(a->ready[a->places[k].cell], LS__DIVISION_SAMPLES);
    }
    LS_TRY(time_small(r, d, &a->shared[cells]));
    for (int t = 0; t < LS__TRIED; t++) {
        a->shared[cells + 1 + t] =
            -ls__samples_median(a->tried[d].seconds[t], LS__DIVISION_SAMPLES);
    }
    return ls__control_all_reduce(r->domains[d].group, a->shared, cells + 1 + LS__TRIED, LS_FLOAT32,
                                  LS_MAX, LS_OPTIONS(ls_collective_options, .tag = TAG));
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

/* ---- stages -------------------------------------------------------------------------------- */

static void report(const ls_reducer *r)
{
    const ls__automatic *a = &r->automatic;
    if (r->rank == 0) {
        LS__INFO(
            "reducer \"%s\": buckets of division %d stay, with %.3f ms from begin to end; an "
            "all-reduce takes %.3f ms and %.3f ms a MB; the search took %d backwards and %.1f ms "
            "longer than as many with this division",
            r->name, a->turns.division + 1, (double)ls__turns_median(&a->turns) * 1e3,
            a->cost.each * 1e3, a->cost.byte * 1e9, a->turns.backwards,
            ls__turns_cost(&a->turns) * 1e3);
    }
}

/* In each backward the rank that began last counts, which had to wait for nobody. Collective. */
static ls_status end_stage(ls_reducer *r)
{
    ls__automatic *a = &r->automatic;
    if (a->turns.stage > 0) {
        LS_TRY(ls__control_all_reduce(r->group, a->turns.took, LS__DIVISIONS * LS__COMPARED_SAMPLES,
                                      LS_FLOAT32, LS_MIN,
                                      LS_OPTIONS(ls_collective_options, .tag = TAG)));
    }
    for (int d = 0; d < r->domain_count && a->turns.stage == 0; d++) {
        LS_TRY(find(r, d));
    }
    ls__turns_choose(&a->turns);
    if (a->turns.settled) {
        report(r);
    }
    return LS_OK;
}

/* All ranks count the same backwards, so they come to the exchanges together. */
ls_status ls__automatic_measure(ls_reducer *r)
{
    ls__automatic *a = &r->automatic;
    if (!a->on || a->turns.settled) {
        return LS_OK;
    }
    const int sample = ls__turns_sample(&a->turns);
    if (sample >= 0 && a->turns.stage == 0) {
        record_ready(r, sample);
        record_buckets(r, sample);
    }
    return ls__turns_took(&a->turns, since_begin(r, r->ended_ns)) ? end_stage(r) : LS_OK;
}

void ls__automatic_divide(ls_reducer *r)
{
    ls__automatic *a = &r->automatic;
    const int next = a->turns.division;
    if (!a->on || next == a->division) {
        return;
    }
    a->division = next;
    if (next >= LS__TRIED) {
        ls__reducer_divide(r, &(ls__reduce_division){.ends = a->ends[next - LS__TRIED]});
    } else {
        ls__reducer_divide(r, &(ls__reduce_division){.parts = parts[next],
                                                     .first_bytes = r->options.first_bucket_bytes,
                                                     .bytes = r->options.bucket_bytes});
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The program of inter.h. Devices are counted in units of their shapes' greatest common divisor. */
#include "plan/inter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/assert.h"
#include "base/error.h"

#define CHUNK_BYTES ((size_t)64 << 10)

/* F, and the first stage with which it is reached. */
typedef struct cell {
    double sum; /* INFINITY: impossible */
    int end, shape;
} cell;

typedef struct search {
    const ls__inter_spec *spec;
    ls__arena arena;
    ls__inter_cost *cost; /* [parts, parts + 1, shapes] */
    double *values;       /* of t_max, ascending */
    int value_count;
    cell *cells; /* [stages + 1, parts, units + 1] */
    int stages;  /* at most */
    int unit, units;
    ls__inter_plan *out;
} search;

/* ---- a stage --------------------------------------------------------------------------------- */

int ls__inter_held(const ls__inter_spec *spec, int devices, int stages_after, int devices_after)
{
    const int64_t ahead = (int64_t)spec->warm_up * stages_after + 1;
    switch (spec->live) {
    case LS__LIVE_STAGES:
        return ahead < spec->micro_batches ? (int)ahead : spec->micro_batches;
    case LS__LIVE_TURNS:
        return ls__partition_held(devices, devices_after);
    default:
        return spec->micro_batches;
    }
}

static ls__inter_cost *cost_at(const search *s, int first, int end, int shape)
{
    const ls__inter_spec *spec = s->spec;
    return &s->cost[((size_t)first * (size_t)(spec->parts + 1) + (size_t)end) *
                        (size_t)spec->shapes +
                    (size_t)shape];
}

static bool stage_fits(const search *s, const ls__inter_cost *c, int shape, int stages_after,
                       int devices_after)
{
    const ls__inter_spec *spec = s->spec;
    return spec->memory_bytes <= 0.0 ||
           c->fixed + c->kept *
                          ls__inter_held(spec, spec->shape[shape], stages_after, devices_after) <=
               spec->memory_bytes;
}

static double cut_after(const search *s, int end)
{
    return end < s->spec->parts ? s->spec->cut[end - 1] : 0.0;
}

/* ---- the program ----------------------------------------------------------------------------- */

static cell *cell_at(const search *s, int stages, int first, int units)
{
    return &s->cells[((size_t)stages * (size_t)s->spec->parts + (size_t)first) *
                         (size_t)(s->units + 1) +
                     (size_t)units];
}

/* First stages of parts first … end - 1 on one shape; stages - 1 follow on the other devices. */
static void try_shape(const search *s, double t_max, int stages, int first, int units, int shape)
{
    const ls__inter_spec *spec = s->spec;
    const int left = units - spec->shape[shape] / s->unit;
    cell *best = cell_at(s, stages, first, units);
    if (stages == 1 ? left != 0 : left < stages - 1) {
        return;
    }
    const int from = stages == 1 ? spec->parts : first + 1;
    const int to = spec->parts - (stages - 1);
    for (int end = from; end <= to; end++) {
        const ls__inter_cost *c = cost_at(s, first, end, shape);
        const double cut = cut_after(s, end);
        const double rest = stages == 1 ? 0.0 : cell_at(s, stages - 1, end, left)->sum;
        const double sum = c->seconds + cut + rest;
        if (c->every <= t_max && cut <= t_max && sum < best->sum &&
            stage_fits(s, c, shape, stages - 1, left * s->unit)) {
            *best = (cell){sum, end, shape};
        }
    }
}

/* With a single shape the number of units follows from the number of stages. */
static int from_units(const search *s, int stages)
{
    return s->spec->shapes == 1 ? stages * (s->spec->shape[0] / s->unit) : stages;
}

static int to_units(const search *s, int stages)
{
    const int needed = from_units(s, stages);
    return s->spec->shapes == 1 && needed < s->units ? needed : s->units;
}

/* Parts with which the first of `stages` stages may begin, where their number is given: each stage
 * before it has one at least, and there are none before the first one of all. */
static int from_part(const search *s, int stages)
{
    return s->spec->stages > 0 ? s->stages - stages : 0;
}

static int to_part(const search *s, int stages)
{
    return s->spec->stages == stages ? 0 : s->spec->parts - stages;
}

/* From the last stage to the first, so the cells that try_shape reads are filled. */
static void fill_cells(const search *s, double t_max)
{
    for (int stages = 1; stages <= s->stages; stages++) {
        for (int first = to_part(s, stages); first >= from_part(s, stages); first--) {
            for (int units = from_units(s, stages); units <= to_units(s, stages); units++) {
                *cell_at(s, stages, first, units) = (cell){INFINITY, 0, 0};
                for (int shape = 0; shape < s->spec->shapes; shape++) {
                    try_shape(s, t_max, stages, first, units, shape);
                }
            }
        }
    }
}

/* Follows the cells from the first stage to the last. */
static void trace_plan(const search *s, int stages, int units)
{
    ls__inter_plan *out = s->out;
    out->stages = 0;
    out->devices = units * s->unit;
    for (int first = 0; stages > 0; stages--) {
        const cell *c = cell_at(s, stages, first, units);
        LS_ASSERT(c->sum < INFINITY && c->end > first);
        out->first[out->stages] = first;
        out->shape[out->stages++] = c->shape;
        first = c->end;
        units -= s->spec->shape[c->shape] / s->unit;
    }
    LS_ASSERT(units == 0); /* of the plan's devices none is left */
}

/* The least sum of plans whose maximum is at most t_max; INFINITY: there are none. *stages and
 * *units become the plan's. */
static double least_sum(const search *s, double t_max, int *stages, int *units)
{
    double least = INFINITY;
    fill_cells(s, t_max);
    for (int n = s->spec->stages > 0 ? s->spec->stages : 1; n <= s->stages; n++) {
        const int from = s->spec->may_leave ? from_units(s, n) : s->units;
        for (int u = from; u <= s->units && u >= from_units(s, n) && u <= to_units(s, n); u++) {
            const double sum = cell_at(s, n, 0, u)->sum;
            if (sum < least) {
                least = sum;
                *stages = n;
                *units = u;
            }
        }
    }
    return least;
}

/* ---- values of t_max ------------------------------------------------------------------------- */

static int compare_values(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Each value once. */
static void collect_values(search *s)
{
    const ls__inter_spec *spec = s->spec;
    int count = 0, kept = 0;
    for (int first = 0; first < spec->parts; first++) {
        for (int end = first + 1; end <= spec->parts; end++) {
            for (int shape = 0; shape < spec->shapes; shape++) {
                const double every = cost_at(s, first, end, shape)->every;
                if (every < INFINITY) {
                    s->values[count++] = every;
                }
            }
        }
        if (first + 1 < spec->parts) {
            s->values[count++] = spec->cut[first];
        }
    }
    qsort(s->values, (size_t)count, sizeof *s->values, compare_values);
    for (int i = 0; i < count; i++) {
        if (kept == 0 || s->values[i] > s->values[kept - 1]) {
            s->values[kept++] = s->values[i];
        }
    }
    s->value_count = kept;
}

/* Every part is in some stage, so t_max is at least the best stage's that has it. */
static double least_value(const search *s)
{
    const ls__inter_spec *spec = s->spec;
    double least = 0.0;
    for (int part = 0; part < spec->parts; part++) {
        double best = INFINITY;
        for (int first = 0; first <= part; first++) {
            for (int end = part + 1; end <= spec->parts; end++) {
                for (int shape = 0; shape < spec->shapes; shape++) {
                    best = fmin(best, cost_at(s, first, end, shape)->every);
                }
            }
        }
        least = fmax(least, best);
    }
    return least;
}

/* The index of the first value, from `low` on, with which there is a plan, as there then is with
 * all that follow. */
static int first_possible(const search *s, int low)
{
    int high = s->value_count - 1, stages, units;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (least_sum(s, s->values[middle], &stages, &units) < INFINITY) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* A plan whose maximum is below t_max was found at that maximum. */
static void try_values(const search *s)
{
    const double least = least_value(s);
    int stages = 0, units = 0, i = 0;
    const double sum = least_sum(s, INFINITY, &stages, &units),
                 further = s->spec->micro_batches - 1;
    s->out->seconds = INFINITY;
    while (i < s->value_count && s->values[i] < least) {
        i++;
    }
    if (isinf(sum)) {
        return;
    }
    for (i = first_possible(s, i);
         i < s->value_count && sum + further * s->values[i] < s->out->seconds; i++) {
        const double all = least_sum(s, s->values[i], &stages, &units) + further * s->values[i];
        if (all < s->out->seconds) {
            s->out->seconds = all;
            trace_plan(s, stages, units);
        }
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int common_divisor(int a, int b)
{
    while (b != 0) {
        const int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static bool prepare_search(search *s)
{
    const ls__inter_spec *spec = s->spec;
    const size_t parts = (size_t)spec->parts, shapes = (size_t)spec->shapes;
    const size_t ranges = parts * (parts + 1) * shapes;
    s->unit = spec->devices;
    for (int i = 0; i < spec->shapes; i++) {
        s->unit = common_divisor(s->unit, spec->shape[i]);
    }
    s->units = spec->devices / s->unit;
    s->stages = spec->stages > 0 ? spec->stages : spec->parts < s->units ? spec->parts : s->units;
    s->cost = ls__arena_alloc(&s->arena, ranges * sizeof *s->cost);
    s->values = ls__arena_alloc(&s->arena, (ranges + parts) * sizeof *s->values);
    s->cells = ls__arena_alloc(&s->arena, ((size_t)s->stages + 1) * parts * ((size_t)s->units + 1) *
                                              sizeof *s->cells);
    if (s->cost == NULL || s->values == NULL || s->cells == NULL) {
        return false;
    }
    for (int first = 0; first < spec->parts; first++) {
        for (int end = first + 1; end <= spec->parts; end++) {
            for (int i = 0; i < spec->shapes; i++) {
                spec->cost(spec->arg, first, end, i, cost_at(s, first, end, i));
            }
        }
    }
    return true;
}

ls_status ls__inter_find(const ls__env *env, const ls__inter_spec *spec, ls__inter_plan *out)
{
    search s = {.spec = spec, .out = out};
    LS_ASSERT(spec->parts >= 1 && spec->devices >= 1 && spec->micro_batches >= 1);
    LS_ASSERT(spec->devices <= LS__SCHEDULE_RANKS_MAX || spec->stages > 0);
    *out = (ls__inter_plan){.seconds = INFINITY};
    if (spec->stages > spec->parts) {
        return ls__fail(LS_ERR_LIMIT, "plan: %d parts are fewer than %d stages", spec->parts,
                        spec->stages);
    }
    ls__arena_init(&s.arena, env, CHUNK_BYTES);
    const bool enough = prepare_search(&s);
    if (enough) {
        collect_values(&s);
        try_values(&s);
    }
    ls__arena_fini(&s.arena);
    return !enough ? ls__fail(LS_ERR_MEMORY, "plan: no memory to find it")
           : out->stages > 0
               ? LS_OK
               : ls__fail(LS_ERR_LIMIT, "plan: no stages fit into %.0f bytes of each worker",
                          spec->memory_bytes);
}

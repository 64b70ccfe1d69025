/* SPDX-License-Identifier: Apache-2.0 */
/* The dynamic program of partition.h. A column holds the best times of the ranges that end at one
 * part: cell (i, m) is A(i … end, m). */
#include "plan/partition.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/assert.h"
#include "base/error.h"
#include "cost/collective.h"

#define CHUNK_BYTES ((size_t)64 << 10)

typedef struct cell {
    double seconds; /* INFINITY: impossible */
    int end;        /* of the first stage: one past its last part */
    int replicas;
} cell;

typedef struct search {
    const ls__chain *chain;
    const ls__partition_spec *spec;
    ls__arena arena;
    double *compute, *weights, *kept; /* [parts + 1] sums of the parts before */
    int *next; /* [shared, parts + 1] the first part from i on that uses it */
    double *component[LS__LEVELS_MAX]; /* [parts, parts + 1] A of a whole component */
    ls__partition *out;
} search;

/* ---- a stage --------------------------------------------------------------------------------- */

static double weights_of(const search *s, int first, int end)
{
    double sum = s->weights[end] - s->weights[first];
    for (int k = 0; k < s->chain->shared_count; k++) {
        const bool used = s->next[k * (s->chain->parts + 1) + first] < end;
        sum += used ? s->chain->shared[k].bytes : 0.0;
    }
    return sum;
}

/* What is sent and what is received share the bandwidth. */
static double all_reduce_seconds(double bytes, int replicas, double bandwidth)
{
    return ls__collective_seconds(ls__collective_all_reduce(replicas, false), 0.0, 2.0 / bandwidth,
                                  bytes);
}

int ls__partition_held(int replicas, int after)
{
    return (after + 2 * replicas - 1) / replicas;
}

/* Inputs are held as long as the activations made from them. */
static double memory_of(const search *s, int first, int end, int replicas, int after)
{
    const double arrives = first > 0 ? s->chain->forward[first - 1] : 0.0;
    return s->spec->copies * weights_of(s, first, end) +
           ls__partition_held(replicas, after) * (s->kept[end] - s->kept[first] + arrives);
}

/* Seconds of a stage of `replicas` components of the level below; later stages have `after` of
 * them. */
static double stage_seconds(const search *s, int level, int first, int end, int replicas, int after)
{
    const ls__partition_spec *spec = s->spec;
    if (level == 0 && (spec->memory_bytes > 0.0 || spec->kind == LS__PARTITION_SMALLEST)) {
        const double bytes = memory_of(s, first, end, replicas, after);
        if (spec->kind == LS__PARTITION_SMALLEST) {
            return bytes;
        }
        if (bytes > spec->memory_bytes) {
            return INFINITY;
        }
    }
    const double inner = level == 0 ? s->compute[end] - s->compute[first]
                                    : s->component[level - 1][first * (s->chain->parts + 1) + end];
    const double sum =
        all_reduce_seconds(weights_of(s, first, end), replicas, spec->levels[level].bandwidth);
    return fmax(inner, sum) / replicas;
}

static double transfer_seconds(const search *s, int level, int end)
{
    const double bytes = s->chain->forward[end - 1] + s->chain->backward[end - 1];
    return s->spec->kind == LS__PARTITION_SMALLEST ? 0.0 : bytes / s->spec->levels[level].bandwidth;
}

/* ---- the program ----------------------------------------------------------------------------- */

static cell *cell_at(const search *s, int level, cell *column, int first, int components)
{
    return &column[first * (s->spec->levels[level].count + 1) + components];
}

/* The best first stage of `replicas` components for the range first … end - 1 with m components.
 * The time of a stage on workers grows with its parts, so the search ends where it alone is too
 * long. That of components need not: all their workers have to be used, and a longer range may have
 * a cheaper cut. */
static void try_replicas(const search *s, int level, cell *column, int first, int end, int m,
                         int replicas)
{
    cell *best = cell_at(s, level, column, first, m);
    const bool last = replicas == m;
    for (int e = last ? end : first + 1; last ? e == end : e < end; e++) {
        const double own = stage_seconds(s, level, first, e, replicas, m - replicas);
        if (own >= best->seconds && level == 0) {
            break;
        }
        const double rest = last ? 0.0 : cell_at(s, level, column, e, m - replicas)->seconds;
        const double cut = last ? 0.0 : transfer_seconds(s, level, e);
        const double all = fmax(own, fmax(rest, cut));
        if (all < best->seconds) {
            *best = (cell){all, e, replicas};
        }
    }
}

static bool may_have(const search *s, int m, int replicas)
{
    switch (s->spec->kind) {
    case LS__PARTITION_DATA:
        return replicas == m;
    case LS__PARTITION_STRAIGHT:
        return replicas == 1;
    default:
        return true;
    }
}

/* Of equal plans the one with the most replicas in its first stage, and so the fewest stages, is
 * found first and kept. */
static void fill_column(const search *s, int level, int end, cell *column)
{
    const int count = s->spec->levels[level].count;
    for (int first = end - 1; first >= 0; first--) {
        for (int m = 1; m <= count; m++) {
            *cell_at(s, level, column, first, m) = (cell){INFINITY, 0, 0};
            for (int r = m; r >= 1; r--) {
                if (may_have(s, m, r)) {
                    try_replicas(s, level, column, first, end, m, r);
                }
            }
        }
    }
}

static cell *new_column(search *s, int level)
{
    const size_t count = (size_t)s->spec->levels[level].count + 1;
    return ls__arena_alloc(&s->arena, (size_t)s->chain->parts * count * sizeof(cell));
}

/* A of whole components of this level, for all ranges of parts. */
static bool fill_level(search *s, int level)
{
    const int parts = s->chain->parts, count = s->spec->levels[level].count;
    cell *column = new_column(s, level);
    s->component[level] =
        ls__arena_alloc(&s->arena, (size_t)parts * (size_t)(parts + 1) * sizeof(double));
    if (column == NULL || s->component[level] == NULL) {
        return false;
    }
    for (int end = 1; end <= parts; end++) {
        fill_column(s, level, end, column);
        for (int first = 0; first < end; first++) {
            s->component[level][first * (parts + 1) + end] =
                cell_at(s, level, column, first, count)->seconds;
        }
    }
    return true;
}

/* ---- the plan found -------------------------------------------------------------------------- */

/* A range of parts on some equal components of a level, with what the levels above have decided. */
typedef struct range {
    int level; /* of the components, -1: workers */
    int first, end;
    int copies;        /* components that have this range */
    const int *base;   /* [copies] the first worker of each */
    double all_reduce; /* the longest of the levels above, for each micro-batch */
    double sum_seconds;
} range;

static void add_stage(search *s, const range *r)
{
    ls__partition *out = s->out;
    LS_ASSERT(out->workers + r->copies <= LS__SCHEDULE_RANKS_MAX);
    out->stage[out->stages++] = (ls__partition_stage){
        .first = r->first,
        .count = r->end - r->first,
        .replicas = r->copies,
        .compute = (s->compute[r->end] - s->compute[r->first]) / r->copies,
        .all_reduce = r->all_reduce,
        .weight_bytes = weights_of(s, r->first, r->end),
        .sum_seconds = r->sum_seconds,
    };
    memcpy(&out->worker[out->workers], r->base, (size_t)r->copies * sizeof *r->base);
    out->workers += r->copies;
}

static int workers_of(const search *s, int level)
{
    int workers = 1;
    for (int k = 0; k <= level; k++) {
        workers *= s->spec->levels[k].count;
    }
    return workers;
}

/* The first workers of the components that have a stage: `replicas` in each copy, from the
 * component `offset` on. Replica k of all is in copy k mod copies. */
static int *bases_of(search *s, const range *r, int offset, int replicas)
{
    const int size = workers_of(s, r->level - 1), all = r->copies * replicas;
    int *base = ls__arena_alloc(&s->arena, (size_t)all * sizeof *base);
    for (int k = 0; base != NULL && k < all; k++) {
        base[k] = r->base[k % r->copies] + (offset + k / r->copies) * size;
    }
    return base;
}

/* Adds the stages of the range, those of each component in turn. As deep as there are levels. */
static bool trace_range(search *s, const range *r)
{
    if (r->level < 0) {
        add_stage(s, r);
        return true;
    }
    const ls__level *level = &s->spec->levels[r->level];
    cell *column = new_column(s, r->level);
    if (column == NULL) {
        return false;
    }
    fill_column(s, r->level, r->end, column);
    for (int first = r->first, left = level->count; left > 0;) {
        const cell *best = cell_at(s, r->level, column, first, left);
        LS_ASSERT(best->end > first && best->end <= r->end && best->replicas <= left);
        const double bytes = weights_of(s, first, best->end);
        const double sum = all_reduce_seconds(bytes, best->replicas, level->bandwidth);
        const int replicas = r->copies * best->replicas;
        const range inner = {.level = r->level - 1,
                             .first = first,
                             .end = best->end,
                             .copies = replicas,
                             .base = bases_of(s, r, level->count - left, best->replicas),
                             .all_reduce = fmax(r->all_reduce, sum / replicas),
                             .sum_seconds = r->sum_seconds + sum};
        if (inner.base == NULL || !trace_range(s, &inner)) {
            return false;
        }
        if (best->end < r->end) {
            ls__partition_stage *last = &s->out->stage[s->out->stages - 1];
            last->transfer = transfer_seconds(s, r->level, best->end) / r->copies;
            last->bandwidth = level->bandwidth;
        }
        first = best->end;
        left -= best->replicas;
    }
    return true;
}

/* From the last stage on: how many micro-batches a stage holds depends on the workers after it. */
static void measure_memory(const search *s)
{
    int after = 0;
    for (int i = s->out->stages - 1; i >= 0; i--) {
        ls__partition_stage *stage = &s->out->stage[i];
        stage->memory_bytes =
            memory_of(s, stage->first, stage->first + stage->count, stage->replicas, after);
        after += stage->replicas;
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

static double *sums_of(search *s, const double *values)
{
    double *sums = ls__arena_alloc(&s->arena, ((size_t)s->chain->parts + 1) * sizeof *sums);
    for (int i = 0; sums != NULL && i < s->chain->parts; i++) {
        sums[i + 1] = sums[i] + values[i];
    }
    return sums;
}

static bool prepare_search(search *s)
{
    const ls__chain *c = s->chain;
    const int row = c->parts + 1;
    s->compute = sums_of(s, c->compute);
    s->weights = sums_of(s, c->weights);
    s->kept = sums_of(s, c->kept);
    s->next = ls__arena_alloc(&s->arena, ((size_t)c->shared_count + 1) * (size_t)row * sizeof(int));
    for (int k = 0; s->next != NULL && k < c->shared_count; k++) {
        s->next[k * row + c->parts] = c->parts;
        for (int i = c->parts - 1; i >= 0; i--) {
            s->next[k * row + i] = c->shared[k].used_by[i] ? i : s->next[k * row + i + 1];
        }
    }
    return s->compute != NULL && s->weights != NULL && s->kept != NULL && s->next != NULL;
}

static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "plan: no memory to find it");
}

static ls_status find_partition(search *s)
{
    static const int origin[1] = {0};
    const int top = s->spec->level_count - 1;
    bool enough = prepare_search(s);
    for (int level = 0; enough && level < top; level++) {
        enough = fill_level(s, level);
    }
    cell *column = enough ? new_column(s, top) : NULL;
    if (column == NULL) {
        return no_memory();
    }
    fill_column(s, top, s->chain->parts, column);
    s->out->seconds = cell_at(s, top, column, 0, s->spec->levels[top].count)->seconds;
    if (isinf(s->out->seconds)) {
        return s->spec->kind == LS__PARTITION_STRAIGHT && s->spec->memory_bytes == 0.0
                   ? ls__fail(LS_ERR_INVALID, "plan: %d parts are fewer than %d stages",
                              s->chain->parts, workers_of(s, top))
                   : ls__fail(LS_ERR_LIMIT, "plan: no stages fit into %.0f bytes of each worker",
                              s->spec->memory_bytes);
    }
    const range all = {.level = top, .end = s->chain->parts, .copies = 1, .base = origin};
    if (!trace_range(s, &all)) {
        return no_memory();
    }
    measure_memory(s);
    return LS_OK;
}

ls_status ls__partition_find(const ls__env *env, const ls__chain *chain,
                             const ls__partition_spec *spec, ls__partition *out)
{
    search s = {.chain = chain, .spec = spec, .out = out};
    LS_ASSERT(chain->parts >= 1 && chain->shared_count <= LS__SHARED_MAX);
    LS_ASSERT(spec->level_count >= 1 && spec->level_count <= LS__LEVELS_MAX);
    LS_ASSERT(workers_of(&s, spec->level_count - 1) <= LS__SCHEDULE_RANKS_MAX);
    memset(out, 0, sizeof *out);
    if (spec->level_count > 1 &&
        (spec->memory_bytes > 0.0 || spec->kind == LS__PARTITION_SMALLEST)) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "plan: a limit of memory with %d levels was asked for; it is for one level",
                        spec->level_count);
    }
    ls__arena_init(&s.arena, env, CHUNK_BYTES);
    const ls_status status = find_partition(&s);
    ls__arena_fini(&s.arena);
    return status;
}

/* ---- a plan that was found elsewhere --------------------------------------------------------- */

static void describe_partition(search *s, int stages, const int *first, const int *replicas)
{
    const double bandwidth = s->spec->levels[0].bandwidth;
    ls__partition *out = s->out;
    for (int i = 0, worker = 0; i < stages; i++) {
        const int end = i + 1 < stages ? first[i + 1] : s->chain->parts, r = replicas[i];
        const double sum = all_reduce_seconds(weights_of(s, first[i], end), r, bandwidth);
        const bool last = i + 1 == stages;
        ls__partition_stage *stage = &out->stage[out->stages++];
        *stage = (ls__partition_stage){.first = first[i],
                                       .count = end - first[i],
                                       .replicas = r,
                                       .compute = (s->compute[end] - s->compute[first[i]]) / r,
                                       .all_reduce = sum / r,
                                       .transfer = last ? 0.0 : transfer_seconds(s, 0, end),
                                       .weight_bytes = weights_of(s, first[i], end),
                                       .bandwidth = last ? 0.0 : bandwidth,
                                       .sum_seconds = sum};
        out->seconds =
            fmax(out->seconds, fmax(stage->compute, fmax(stage->all_reduce, stage->transfer)));
        for (int k = 0; k < r; k++, worker++) {
            out->worker[worker] = worker;
        }
        out->workers += r;
    }
    measure_memory(s);
}

ls_status ls__partition_of(const ls__env *env, const ls__chain *chain,
                           const ls__partition_spec *spec, int stages, const int *first,
                           const int *replicas, ls__partition *out)
{
    search s = {.chain = chain, .spec = spec, .out = out};
    memset(out, 0, sizeof *out);
    ls__arena_init(&s.arena, env, CHUNK_BYTES);
    const bool enough = prepare_search(&s);
    if (enough) {
        describe_partition(&s, stages, first, replicas);
    }
    ls__arena_fini(&s.arena);
    return enough ? LS_OK : no_memory();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Fills the table of a group: for each operation and size the algorithm that the model expects to
 * be fastest, among those whose programs by messages are order-preserving for this layout (D5).
 * Sizes are tried in powers of two, and neighbours with the same winner form a range. */
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "comm/algorithm/registry.h"
#include "comm/tune/tune.h"

#define CANDIDATES_MAX 16   /* algorithms of one operation */
#define FROM_BYTES 64       /* the smallest size tried; smaller operations use its winner */
#define SIZES 25            /* each twice the one before: up to 1 GiB; larger ones use the last */
#define ONE_SHOT_BYTES 4096 /* the largest payload that an announcement carries */
/* An algorithm replaces that of the smaller sizes only if it is cheaper by this factor: the figures
 * are not more precise, and fewer ranges are easier to read. */
#define WORTH 0.95

typedef struct candidate {
    int index; /* in the registry */
    ls__counts counts;
} candidate;

/* Collects and counts the admitted algorithms of an operation, in the order of the registry, which
 * is the same on all ranks. An algorithm without a program for this layout is left out. */
static ls_status find_candidates(ls__operation operation, const ls__layout *layout,
                                 const ls__env *env, candidate *out, int *found)
{
    int count = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    *found = 0;
    for (int i = 0; i < count && *found < CANDIDATES_MAX; i++) {
        if (algorithms[i]->operation != operation ||
            (algorithms[i]->memories & LS__IN_MESSAGES) == 0) {
            continue;
        }
        candidate *c = &out[*found];
        c->index = i;
        const ls_status status = ls__tune_count(algorithms[i], layout, env, &c->counts);
        if (status == LS_ERR_MEMORY) {
            return status;
        }
        *found += status == LS_OK && c->counts.exact ? 1 : 0;
    }
    return LS_OK;
}

/* Names the algorithms that are timed, with their counts; times are still 0. */
ls_status ls__timings_init(ls__timings *timings, const ls__layout *layout, const ls__env *env)
{
    candidate c[CANDIDATES_MAX];
    int count = 0, algorithms = 0;
    const ls__algorithm *const *all = ls__algorithms(&algorithms);
    memset(timings, 0, sizeof *timings);
    LS_TRY(find_candidates(LS__OP_ALL_REDUCE, layout, env, c, &count));
    for (int i = 0; i < count && i < LS__TUNE_TIMED_MAX; i++) {
        timings->of[i].algorithm = all[c[i].index];
        timings->of[i].counts = c[i].counts;
        timings->count++;
    }
    return LS_OK;
}

/* The measurements that decide. */
typedef struct basis {
    const ls__timings *timings;
    const ls__figures *figures;
} basis;

/* Nanoseconds by the model, corrected by what was measured. Only all_reduce was measured. */
static double expected(const basis *b, const candidate *c, double bytes)
{
    int count = 0;
    const ls__algorithm *algorithm = ls__algorithms(&count)[c->index];
    const double excess = algorithm->operation == LS__OP_ALL_REDUCE
                              ? ls__tune_excess(b->timings, b->figures, algorithm, bytes)
                              : 1.0;
    return excess * ls__tune_ns(b->figures, &c->counts, bytes);
}

/* The winner at one size; `before` is the winner at the size before it, or -1. */
static int cheapest(const candidate *c, int count, int before, const basis *b, double bytes)
{
    LS_ASSERT(count > 0 && before < count);
    int best = before >= 0 ? before : 0;
    double least = expected(b, &c[best], bytes) * (before >= 0 ? WORTH : 1.0);
    for (int i = 0; i < count; i++) {
        const double ns = expected(b, &c[i], bytes);
        if (ns < least) {
            best = i;
            least = ns;
        }
    }
    return best;
}

/* At most LS__TUNE_RANGES_MAX ranges: the last one then serves all larger sizes. */
static void decide_one(const candidate *c, int count, const basis *b, ls__operation operation,
                       ls__tune_table *out)
{
    int before = -1, ranges = 0;
    ls__range *range = out->of[operation].range;
    for (int s = 0; s < SIZES; s++) {
        const int64_t bytes = (int64_t)FROM_BYTES << s;
        const int best = cheapest(c, count, before, b, (double)bytes);
        if (best != before && ranges == LS__TUNE_RANGES_MAX) {
            break;
        }
        if (best != before) {
            if (ranges > 0) { /* the boundary lies in the middle of the last two sizes */
                range[ranges - 1].below = bytes - bytes / 4;
            }
            range[ranges++] = (ls__range){.below = INT64_MAX, .algorithm = c[best].index};
            before = best;
        }
    }
    out->of[operation].count = ranges;
}

/* Small data may travel with the announcement, which is sent to every member: a full exchange. */
static void decide_one_shot(const candidate *c, int count, const basis *b, ls__tune_table *out)
{
    const int exchange =
        ls__algorithm_index(ls__algorithm_find(LS__OP_ALL_REDUCE, "full_exchange"));
    out->one_shot = -1;
    for (int i = 0; i < count; i++) {
        for (int32_t bytes = FROM_BYTES; c[i].index == exchange && bytes <= ONE_SHOT_BYTES;
             bytes *= 2) {
            const int best = cheapest(c, count, i, b, bytes);
            out->one_shot = best == i ? bytes : out->one_shot;
        }
    }
}

/* An operation with one candidate needs no entry: the default is that candidate. */
ls_status ls__tune_decide(const ls__layout *layout, const ls__timings *timings,
                          const ls__figures *figures, const ls__env *env, ls__tune_table *out)
{
    candidate candidates[CANDIDATES_MAX];
    memset(out, 0, sizeof *out);
    out->figures = *figures;
    const basis b = {.timings = timings, .figures = &out->figures};
    for (int o = 0; o < LS__OP_COUNT; o++) {
        int count = 0;
        if (ls__operation_is_v((ls__operation)o) || o == LS__OP_BARRIER) {
            continue; /* ranks do not know each other's sizes, or a size does not exist */
        }
        LS_TRY(find_candidates((ls__operation)o, layout, env, candidates, &count));
        if (count > 1) {
            decide_one(candidates, count, &b, (ls__operation)o, out);
        }
        if (o == LS__OP_ALL_REDUCE) {
            decide_one_shot(candidates, count, &b, out);
        }
    }
    return LS_OK;
}

/* The table may come from another process (`lockstep tune` prints one), hence the checks. */
const ls__algorithm *ls__tune_find(const ls__tune_table *table, ls__operation operation,
                                   int64_t bytes)
{
    int algorithms = 0;
    const ls__algorithm *const *all = ls__algorithms(&algorithms);
    for (int i = 0; i < table->of[operation].count && i < LS__TUNE_RANGES_MAX; i++) {
        const ls__range *range = &table->of[operation].range[i];
        if (bytes < range->below && range->algorithm >= 0 && range->algorithm < algorithms &&
            all[range->algorithm]->operation == operation) {
            return all[range->algorithm];
        }
    }
    return NULL;
}

/* In the largest unit that divides the size, as LOCKSTEP_ALGORITHM reads it back. */
static void print_size(int64_t bytes, ls__text *out)
{
    static const char *const units[] = {"", "Ki", "Mi", "Gi"};
    int unit = 0;
    while (unit < 3 && bytes % 1024 == 0 && bytes > 0) {
        bytes /= 1024;
        unit++;
    }
    ls__text_add(out, "%lld%s", (long long)bytes, units[unit]);
}

/* In the syntax of LOCKSTEP_ALGORITHM, so that a user can copy a line and change it. */
void ls__tune_print(const ls__tune_table *table, ls__text *out)
{
    int algorithms = 0;
    const ls__algorithm *const *all = ls__algorithms(&algorithms);
    for (int o = 0; o < LS__OP_COUNT; o++) {
        int64_t from = 0;
        for (int i = 0; i < table->of[o].count && i < LS__TUNE_RANGES_MAX; i++) {
            const ls__range *range = &table->of[o].range[i];
            if (range->algorithm < 0 || range->algorithm >= algorithms) {
                break;
            }
            if (i == 0) {
                ls__text_add(out, "  %-15s ", ls__operation_name((ls__operation)o));
            }
            ls__text_add(out, "%s", i > 0 ? "," : "");
            print_size(from, out);
            ls__text_add(out, "-");
            if (range->below != INT64_MAX) {
                print_size(range->below, out);
            }
            ls__text_add(out, ":%s", all[range->algorithm]->name);
            from = range->below;
        }
        if (table->of[o].count > 0) {
            ls__text_add(out, "\n");
        }
    }
}

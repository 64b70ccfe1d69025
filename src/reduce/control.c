/* SPDX-License-Identifier: Apache-2.0 */
/* The control exchange (docs/design.md, D7): the one small collective with which a synchronising
 * backward begins, in each domain. Each rank sends its weight, its plan's version and a bitmap of
 * the domain's parameters whose gradients will hold a contribution; every rank combines the parts
 * alike. So buckets that no rank uses are not sent, and a parameter that no rank uses keeps its
 * gradient absent. Weights, versions and settings are read in domain 0, which has all ranks.
 */
#include "reduce/internal.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "comm/api/collective.h"
#include "comm/core/collective.h"
#include "kernel/reduce/reduce.h"
#include "reduce/compare.h"
#include "reduce/domain.h"
#include "reduce/reducer.h"
#include "reduce/table.h"

/* Rank's part of a domain's exchange; this rank writes only its own. */
static ls__reduce_control *part_of(const ls__reduce_domain *domain, int rank)
{
    return (ls__reduce_control *)(void *)(domain->control + (size_t)rank * domain->control_bytes);
}

/* Of the reducer's whole group. */
static const ls__reduce_control *part(const ls_reducer *r, int rank)
{
    return part_of(&r->domains[0], rank);
}

/* The bitmap after a rank's part: bit i is parameter i of the domain. */
static uint8_t *bitmap(const ls__reduce_domain *domain, int rank)
{
    return (uint8_t *)(part_of(domain, rank) + 1);
}

/* The bitmaps of the domain's tables follow it, in the order of the parameters. */
static uint8_t *table_bitmaps(const ls__reduce_domain *domain, int rank)
{
    return bitmap(domain, rank) + ((size_t)domain->param_count + 7) / 8;
}

static void put_tables(const ls_reducer *r, const ls__reduce_domain *domain)
{
    uint8_t *bits = table_bitmaps(domain, domain->rank);
    for (int i = 0; i < domain->param_count; i++) {
        ls__reduce_table *table = r->params[domain->params[i]].table;
        if (table != NULL) {
            ls__table_put(table, bits);
            bits += ls__table_bytes(table);
        }
    }
}

/* Seconds that this rank has worked since the last backward ended, and in that backward. */
static double busy_seconds(const ls_reducer *r)
{
    return r->ended_ns == 0
               ? 0.0
               : (double)(r->begin_ns - r->ended_ns) * 1e-9 + r->stats.backward_seconds;
}

static uint64_t own_agreement(const ls_reducer *r)
{
    return atomic_load_explicit(&r->runtime->agreement, memory_order_relaxed);
}

/* Starts an all_gather in place: `own` is already where the output expects it. */
static ls_status start_in(ls_reducer *r, ls__reduce_domain *domain)
{
    ls__reduce_control *own = part_of(domain, domain->rank);
    *own = (ls__reduce_control){.weight = r->weight,
                                .plan_version = r->plan.version,
                                .weighted = r->weighted,
                                .reductions = r->stats.reductions,
                                .settings = ls__config_change_hash(),
                                .stop = ls__stop_wanted(r->runtime),
                                .flags = r->pass.flags,
                                .agreement = own_agreement(r),
                                .busy_seconds = busy_seconds(r),
                                .replica = ls__replica_hash(r, domain)};
    uint8_t *bits = bitmap(domain, domain->rank);
    memset(bits, 0, ((size_t)domain->param_count + 7) / 8);
    for (int i = 0; i < domain->param_count; i++) {
        if (r->params[domain->params[i]].local) {
            bits[i / 8] = (uint8_t)(bits[i / 8] | 1u << (i % 8));
        }
    }
    put_tables(r, domain);
    const ls_collective_options options = {.size = sizeof options,
                                           .tag = "a synchronised backward begins"};
    const ls__collective args = {.operation = LS__OP_ALL_GATHER,
                                 .input = own,
                                 .output = domain->control,
                                 .count = (int64_t)domain->control_bytes,
                                 .dtype = LS_UINT8,
                                 .control = true,
                                 .anywhere = true, /* ls_backward or ls_ddp_join */
                                 .options = &options,
                                 .done = ls__reducer_control_done,
                                 .arg = r};
    ls__captured_notice(r);
    return ls__collective_start(domain->group, &args, &domain->control_work);
}

/* Completion calls ls__reducer_control_done, possibly before this function returns. */
ls_status ls__control_start(ls_reducer *r)
{
    for (int d = 0; d < r->domain_count; d++) {
        LS_TRY(start_in(r, &r->domains[d]));
    }
    return LS_OK;
}

/* Every exchange that was started; returns the first error. */
ls_status ls__control_wait(ls_reducer *r)
{
    ls_status first = LS_OK;
    for (int d = 0; d < r->domain_count; d++) {
        if (r->domains[d].control_work != NULL) {
            const ls_status status = ls_work_wait(r->domains[d].control_work);
            r->domains[d].control_work = NULL;
            first = first < 0 ? first : status;
        }
    }
    return first;
}

static bool has_joined(const ls__reduce_control *of)
{
    return (of->flags & LS__REDUCE_JOINED) != 0;
}

/* A rank that has joined may still have gradients that it accumulated before. */
static bool has_data(const ls__reduce_control *of)
{
    return !has_joined(of) || of->weight > 0.0;
}

/* ---- what all ranks must have alike ------------------------------------------------------- */

/* Checks a rank's part. A rank that has run out of data has no kind of backward, and the others may
 * add up different numbers only where weights make the mean exact. */
static void list_part(ls__facts *to, int rank, const void *arg)
{
    static const char *const truth[] = {"false", "true"};
    const ls__reduce_control *of = part_of(arg, rank);
    if (has_data(of)) {
        ls__facts_text(to, "the kind of backward", of->weighted ? "a weighted one" : "a plain one",
                       "use ls_backward_weighted on all ranks or on none");
    }
    if (!has_joined(of) && !of->weighted) {
        ls__facts_number(to, "the number of backward passes in this step", of->weight,
                         "give every rank the same number (no_sync for all but the last), or use "
                         "ls_backward_weighted, whose mean is exact for any");
    }
    if (has_joined(of)) {
        ls__facts_text(to, "divide_by_initial_world_size of ls_ddp_join",
                       truth[(of->flags & LS__REDUCE_LIVE) == 0], "give every rank the same");
    }
    ls__facts_text(to, "ls_ddp_set_local", truth[(of->flags & LS__REDUCE_DIFFER) != 0],
                   "call it on all ranks alike");
    ls__facts_number(to, "the number of synchronised backwards", (double)of->reductions,
                     "run the same number of backwards on every rank");
    ls__facts_number(to, "the plan of the buckets", of->plan_version,
                     "run the same number of backwards on every rank");
    ls__facts_text(to, "the check of the parameters in this step", of->replica ? "one" : "none",
                   "give every rank the same check_every");
}

static bool is_plain(const ls__reduce_control *of)
{
    return !has_joined(of) && !of->weighted;
}

/* Whether the lists of two ranks have no difference; this allocates nothing. */
static bool fit(const ls__reduce_control *a, const ls__reduce_control *b)
{
    const uint32_t differing = a->flags ^ b->flags;
    const bool data = has_data(a) && has_data(b), joined = has_joined(a) && has_joined(b);
    const bool plain = is_plain(a) && is_plain(b);
    return a->reductions == b->reductions && a->plan_version == b->plan_version &&
           (a->replica == 0) == (b->replica == 0) && (differing & LS__REDUCE_DIFFER) == 0 &&
           (!data || a->weighted == b->weighted) && (!plain || a->weight == b->weight) &&
           (!joined || (differing & LS__REDUCE_LIVE) == 0);
}

/* All ranks see the same parts and find the same error, so no rank is left waiting. Those that have
 * joined lack some facts, as stages of a pipeline may: each part is compared with the first that
 * has each of its facts. */
static ls_status compare_parts(const ls_reducer *r, const ls__reduce_domain *domain)
{
    ls__agree_peers peers = ls__domain_peers(r, domain);
    const ls__reduce_control *first[] = {part_of(domain, 0), NULL, NULL, NULL};
    bool all = true;
    for (int rank = 0; rank < domain->size; rank++) {
        const ls__reduce_control *of = part_of(domain, rank);
        const bool has[] = {true, has_data(of), is_plain(of), has_joined(of)};
        for (int i = 0; i < 4; i++) {
            first[i] = first[i] == NULL && has[i] ? of : first[i];
            all = all && (!has[i] || fit(of, first[i]));
        }
    }
    peers.stages = true;
    return all ? LS_OK : ls__agree_here(&peers, list_part, domain);
}

/* Settings and parameters by their hashes. Which one differs is found when the backward has ended
 * (compare.c), in an exchange that all ranks of the domain enter: here only the engine may be
 * running. */
static void compare_hashes(ls_reducer *r, ls__reduce_domain *domain)
{
    bool seen = true;
    domain->differs = false;
    for (int rank = 0; rank < domain->size; rank++) {
        const ls__reduce_control *first = part_of(domain, 0), *other = part_of(domain, rank);
        seen = seen && other->replica > LS__REPLICA_UNSEEN;
        domain->differs = domain->differs || other->replica != first->replica;
        r->pass.settings_differ =
            r->pass.settings_differ || (r->agrees && other->settings != first->settings);
    }
    domain->differs = domain->differs && seen;
}

/* Which ranks had data, for the caller and for the next backward. */
static void count_live(ls_reducer *r)
{
    r->stats.live_ranks = 0;
    r->first_live = 0;
    for (int rank = r->size - 1; rank >= 0; rank--) {
        if (has_data(part(r, rank))) {
            r->stats.live_ranks++;
            r->first_live = rank;
        }
    }
}

/* Adds the weights of a batch's ranks in the canonical order of summation, so that the divisor is
 * bitwise identical on every rank. */
static double global_weight(const ls_reducer *r, const ls__reduce_batch *batch)
{
    const void *src[LS__REDUCE_OPERANDS_MAX];
    double sum = 0.0;
    void *dst = &sum;
    for (int i = 0; i < batch->size; i++) {
        src[i] = &part(r, batch->ranks[i])->weight;
    }
    const ls__reduce_args args = {.dst = &dst,
                                  .dst_count = 1,
                                  .src = src,
                                  .src_count = batch->size,
                                  .count = 1,
                                  .dtype = LS_FLOAT64,
                                  .op = LS_SUM};
    ls__reduce(&args);
    return sum;
}

/* The ranks of the batch, or those of them that have data. */
static double count_ranks(const ls_reducer *r, const ls__reduce_batch *batch, bool live)
{
    int count = 0;
    for (int i = 0; i < batch->size; i++) {
        count += !live || has_data(part(r, batch->ranks[i]));
    }
    return (double)count;
}

/* By what the sums of each batch are divided. */
static ls_status find_divisors(ls_reducer *r)
{
    bool weighted = false, live = false;
    for (int rank = 0; rank < r->size; rank++) { /* compare_parts: the same on all that say it */
        weighted = weighted || (has_data(part(r, rank)) && part(r, rank)->weighted);
        live = live || (part(r, rank)->flags & LS__REDUCE_LIVE) != 0;
    }
    for (int b = 0; b < r->batch_count; b++) {
        ls__reduce_batch *batch = &r->batches[b];
        const double of_rank = r->shards.of_rank > 0 ? r->shards.of_rank : 1.0;
        const double weight =
            weighted ? global_weight(r, batch) : count_ranks(r, batch, live) * of_rank;
        if (!isfinite(weight) || weight < 0.0) {
            return ls__fail(
                LS_ERR_INVALID,
                "reducer \"%s\": the weights of all ranks add up to %g; give finite weights"
                " >= 0",
                r->name, weight);
        }
        batch->divisor = weight > 0.0 ? weight : 1.0; /* no data: all gradients are zero */
    }
    return LS_OK;
}

/* The rank that the others have to wait for. */
static void find_slowest(ls_reducer *r)
{
    ls_reducer_stats *stats = &r->stats;
    stats->slowest_rank = 0;
    stats->slowest_seconds = stats->fastest_seconds = part(r, 0)->busy_seconds;
    for (int rank = 1; rank < r->size; rank++) {
        const double busy = part(r, rank)->busy_seconds;
        if (busy > stats->slowest_seconds) {
            stats->slowest_rank = rank;
            stats->slowest_seconds = busy;
        }
        stats->fastest_seconds = busy < stats->fastest_seconds ? busy : stats->fastest_seconds;
    }
}

/* Which parameters any rank of the domain uses. */
static void combine_used(ls_reducer *r, const ls__reduce_domain *domain)
{
    for (int i = 0; i < domain->param_count; i++) {
        bool used = false;
        for (int rank = 0; rank < domain->size && !used; rank++) {
            used = bitmap(domain, rank)[i / 8] >> (i % 8) & 1;
        }
        r->params[domain->params[i]].used = used;
    }
}

/* Which rows of its tables any rank of the domain reaches. */
static void combine_tables(ls_reducer *r, const ls__reduce_domain *domain)
{
    const uint8_t *bits = table_bitmaps(domain, 0);
    for (int i = 0; i < domain->param_count; i++) {
        ls__reduce_table *table = r->params[domain->params[i]].table;
        if (table != NULL) {
            ls__table_take(table, bits, domain->control_bytes, domain->size);
            bits += ls__table_bytes(table);
        }
    }
}

/* Note [Agreement]: all ranks find the same. */
static bool all_agree_here(const ls_reducer *r)
{
    bool all = true;
    for (int rank = 0; rank < r->size; rank++) {
        all = all && part(r, rank)->agreement == r->agreement;
    }
    return all;
}

/* A stop request is sent along, so that all ranks stop after the same step. */
static void agree_on_stop(ls_reducer *r)
{
    uint32_t stop = 0;
    for (int rank = 0; rank < r->size && r->agrees; rank++) {
        stop = part(r, rank)->stop > stop ? part(r, rank)->stop : stop;
    }
    if (stop != 0) { /* never withdrawn */
        atomic_store_explicit(&r->runtime->stop_agreed, stop, memory_order_relaxed);
    }
}

/* Called under the reducer's lock; all results depend only on the exchanged parts, so every rank
 * computes the same. */
ls_status ls__control_finish(ls_reducer *r)
{
    r->agrees = all_agree_here(r);
    for (int d = 0; d < r->domain_count; d++) {
        LS_TRY(compare_parts(r, &r->domains[d]));
        compare_hashes(r, &r->domains[d]);
        combine_used(r, &r->domains[d]);
        combine_tables(r, &r->domains[d]);
    }
    count_live(r);
    agree_on_stop(r);
    find_slowest(r);
    return find_divisors(r);
}

/* The control exchange (docs/design.md, D7): the one small collective with which a synchronising
 * backward begins, in each domain. Each rank sends its weight, its plan's version and a bitmap of
 * the domain's parameters whose gradients will hold a contribution; every rank combines the parts
 * alike. So buckets that no rank uses are not sent, and a parameter that no rank uses keeps its
 * gradient absent. Weights, versions and settings are read in domain 0, which has all ranks.
 */
#include "reduce/control.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "comm/api/collective.h"
#include "comm/core/collective.h"
#include "kernel/reduce/reduce.h"
#include "reduce/domain.h"
#include "reduce/reducer.h"
#include "reduce/replica.h"
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

/* The bitmap behind a rank's part: bit i of the domain's parameters. */
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

/* What this rank did since the last backward ended, and in that backward. */
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
                                .settings = ls__config_change_hash(&r->runtime->config),
                                .stop = ls__stop_wanted(r->runtime),
                                .flags = r->flags,
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
                                 .options = &options,
                                 .done = ls__reducer_control_done,
                                 .arg = r};
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

/* The rank that says whether this backward is weighted: the lowest that has not joined, else the
 * lowest that has data; 0: there is nothing to reduce. */
static int leader(const ls_reducer *r)
{
    int with_data = 0;
    for (int rank = r->size - 1; rank >= 0; rank--) {
        with_data = has_data(part(r, rank)) ? rank : with_data;
    }
    for (int rank = 0; rank < r->size; rank++) {
        if (!has_joined(part(r, rank))) {
            return rank;
        }
    }
    return with_data;
}

/* Of the ranks that have data; in plain backwards they add up equally many micro-batches, unless
 * one has run out of data meanwhile. */
static ls_status compare_weights(const ls_reducer *r)
{
    const int lead = leader(r);
    const ls__reduce_control *first = part(r, lead);
    for (int rank = 0; rank < r->size; rank++) {
        const ls__reduce_control *other = part(r, rank);
        if (has_data(other) && other->weighted != first->weighted) {
            return ls__fail(LS_ERR_MISMATCH,
                            "reducer \"%s\": rank %d runs a weighted backward and rank %d a plain"
                            " one; use ls_backward_weighted on all ranks or on none",
                            r->name, ls__reducer_rank(r, other->weighted ? rank : lead),
                            ls__reducer_rank(r, other->weighted ? lead : rank));
        }
        if (!first->weighted && !has_joined(other) && other->weight != first->weight) {
            return ls__fail(
                LS_ERR_MISMATCH,
                "reducer \"%s\": rank %d adds up %.0f backward passes in this step and "
                "rank %d %.0f; give every rank the same number (no_sync for all but the "
                "last), or use ls_backward_weighted, whose mean is exact for any",
                r->name, ls__reducer_rank(r, lead), first->weight, ls__reducer_rank(r, rank),
                other->weight);
        }
    }
    return LS_OK;
}

/* By which number the ranks that have joined want to divide: *live becomes whether by that of the
 * ranks with data. */
static ls_status compare_joined(const ls_reducer *r, bool *live)
{
    int first = -1;
    *live = false;
    for (int rank = 0; rank < r->size; rank++) {
        if (!has_joined(part(r, rank))) {
            continue;
        }
        const bool wants = (part(r, rank)->flags & LS__REDUCE_LIVE) != 0;
        if (first >= 0 && wants != *live) {
            return ls__fail(LS_ERR_MISMATCH,
                            "reducer \"%s\": rank %d has joined with "
                            "divide_by_initial_world_size %s and rank %d with %s; give every rank "
                            "the same",
                            r->name, ls__reducer_rank(r, first), *live ? "false" : "true",
                            ls__reducer_rank(r, rank), wants ? "false" : "true");
        }
        first = first < 0 ? rank : first;
        *live = wants;
    }
    return LS_OK;
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

/* Checks the values that every rank must have in common at this point. All ranks see the same parts
 * and find the same error, so no rank is left waiting. */
static ls_status compare_parts(const ls_reducer *r)
{
    const ls__reduce_control *first = part(r, 0);
    LS_TRY(compare_weights(r));
    for (int rank = 1; rank < r->size; rank++) {
        const ls__reduce_control *other = part(r, rank);
        if (((other->flags ^ first->flags) & LS__REDUCE_DIFFER) != 0) {
            return ls__fail(
                LS_ERR_MISMATCH,
                "reducer \"%s\": rank %d has said that the replicas may differ and "
                "rank %d has not; call ls_ddp_set_local on all ranks alike",
                r->name, ls__reducer_rank(r, (other->flags & LS__REDUCE_DIFFER) != 0 ? rank : 0),
                ls__reducer_rank(r, (other->flags & LS__REDUCE_DIFFER) != 0 ? 0 : rank));
        }
        if (other->plan_version != first->plan_version || other->reductions != first->reductions) {
            return ls__fail(LS_ERR_MISMATCH,
                            "reducer \"%s\": rank %d is at synchronised backward %llu (plan %u),"
                            " rank %d at %llu (plan %u); every rank must run the same number",
                            r->name, ls__reducer_rank(r, rank),
                            (unsigned long long)other->reductions, other->plan_version,
                            ls__reducer_rank(r, 0), (unsigned long long)first->reductions,
                            first->plan_version);
        }
    }
    return LS_OK;
}

/* Settings that may change in the run, such as the learning rate. Which one differs is found out
 * when the backward has ended (config_check.c): here only the engine may be running. */
static void compare_settings(ls_reducer *r)
{
    for (int rank = 1; rank < r->size && r->agrees; rank++) {
        r->settings_differ = r->settings_differ || part(r, rank)->settings != part(r, 0)->settings;
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
    const bool weighted = part(r, leader(r))->weighted != 0;
    bool live;
    LS_TRY(compare_joined(r, &live));
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

/* Whether the parameters themselves differ; ls__replica_check names them when the backward has
 * ended, in an exchange that all ranks of the domain must enter. */
static ls_status compare_replicas(const ls_reducer *r, ls__reduce_domain *domain)
{
    const uint64_t first = part_of(domain, 0)->replica;
    domain->differs = false;
    for (int rank = 1; rank < domain->size; rank++) {
        const uint64_t other = part_of(domain, rank)->replica;
        if ((first == 0) != (other == 0)) {
            return ls__fail(
                LS_ERR_MISMATCH,
                "reducer \"%s\": rank %d compares the replicas' parameters in this step "
                "and rank %d does not; give every rank the same check_every",
                r->name, ls__domain_rank(domain, first != 0 ? 0 : rank),
                ls__domain_rank(domain, first != 0 ? rank : 0));
        }
        domain->differs = domain->differs || other != first;
    }
    return LS_OK;
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
    LS_TRY(compare_parts(r));
    count_live(r);
    r->agrees = all_agree_here(r);
    compare_settings(r);
    agree_on_stop(r);
    find_slowest(r);
    for (int d = 0; d < r->domain_count; d++) {
        combine_used(r, &r->domains[d]);
        combine_tables(r, &r->domains[d]);
        LS_TRY(compare_replicas(r, &r->domains[d]));
    }
    return find_divisors(r);
}

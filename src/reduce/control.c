/* The control exchange (docs/design.md, D7): the one small collective with which a synchronising
 * backward begins. Each rank sends its weight, its plan's version and a bitmap of the parameters
 * whose gradients will hold a contribution; every rank combines the parts alike. So buckets that no
 * rank uses are not sent, and a parameter that no rank uses keeps its gradient absent.
 */
#include "reduce/control.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "comm/api/collective.h"
#include "kernel/reduce/reduce.h"
#include "reduce/reducer.h"

/* Rank's part of the exchange; this rank writes only its own. */
static ls__reduce_control *part(const ls_reducer *r, int rank)
{
    return (ls__reduce_control *)(void *)(r->control + (size_t)rank * r->control_bytes);
}

/* The bitmap behind a rank's part: bit i of the parameters. */
static uint8_t *bitmap(const ls_reducer *r, int rank)
{
    return (uint8_t *)(part(r, rank) + 1);
}

/* Starts an all_gather in place: `own` is already where the output expects it. Completion calls
 * ls__reducer_control_done, possibly before this function returns. */
ls_status ls__control_start(ls_reducer *r)
{
    ls__reduce_control *own = part(r, r->rank);
    *own = (ls__reduce_control){.weight = r->weight,
                                .plan_version = r->plan.version,
                                .weighted = r->weighted,
                                .reductions = r->stats.reductions,
                                .settings = ls__config_change_hash(&r->runtime->config),
                                .stop = ls__stop_wanted(r->runtime)};
    uint8_t *bits = bitmap(r, r->rank);
    memset(bits, 0, ((size_t)r->param_count + 7) / 8);
    for (int i = 0; i < r->param_count; i++) {
        if (r->params[i].local) {
            bits[i / 8] = (uint8_t)(bits[i / 8] | 1u << (i % 8));
        }
    }
    const ls_collective_options options = {.size = sizeof options,
                                           .tag = "a synchronised backward begins"};
    const ls__collective args = {.operation = LS__OP_ALL_GATHER,
                                 .input = own,
                                 .output = r->control,
                                 .count = (int64_t)r->control_bytes,
                                 .dtype = LS_UINT8,
                                 .options = &options,
                                 .done = ls__reducer_control_done,
                                 .arg = r};
    return ls__collective_start(r->group, &args, &r->control_work);
}

/* Checks the values that every rank must have in common at this point. All ranks see the same parts
 * and find the same error, so no rank is left waiting. */
static ls_status compare_parts(const ls_reducer *r)
{
    const ls__reduce_control *first = part(r, 0);
    for (int rank = 1; rank < r->size; rank++) {
        const ls__reduce_control *other = part(r, rank);
        if (other->weighted != first->weighted) {
            return ls__fail(LS_ERR_MISMATCH,
                            "reducer \"%s\": rank %d runs a weighted backward and rank %d a plain"
                            " one; use ls_backward_weighted on all ranks or on none",
                            r->name, other->weighted ? rank : 0, other->weighted ? 0 : rank);
        }
        if (!first->weighted && other->weight != first->weight) {
            return ls__fail(
                LS_ERR_MISMATCH,
                "reducer \"%s\": rank 0 adds up %.0f backward passes in this step and "
                "rank %d %.0f; give every rank the same number (no_sync for all but the "
                "last), or use ls_backward_weighted, whose mean is exact for any",
                r->name, first->weight, rank, other->weight);
        }
        if (other->plan_version != first->plan_version || other->reductions != first->reductions) {
            return ls__fail(LS_ERR_MISMATCH,
                            "reducer \"%s\": rank %d is at synchronised backward %llu (plan %u),"
                            " rank 0 at %llu (plan %u); every rank must run the same number",
                            r->name, rank, (unsigned long long)other->reductions,
                            other->plan_version, (unsigned long long)first->reductions,
                            first->plan_version);
        }
    }
    return LS_OK;
}

/* Settings that may change in the run, such as the learning rate. Which one differs is found out
 * when the backward has ended (config_check.c): here only the engine may be running. */
static void compare_settings(ls_reducer *r)
{
    for (int rank = 1; rank < r->size && r->size == r->runtime->world_size; rank++) {
        r->settings_differ = r->settings_differ || part(r, rank)->settings != part(r, 0)->settings;
    }
}

/* Adds the weights of all ranks in the canonical order of summation, so that the divisor is bitwise
 * identical on every rank. */
static double global_weight(const ls_reducer *r)
{
    const void *src[LS__REDUCE_OPERANDS_MAX];
    double sum = 0.0;
    void *dst = &sum;
    for (int rank = 0; rank < r->size; rank++) {
        src[rank] = &part(r, rank)->weight;
    }
    const ls__reduce_args args = {.dst = &dst,
                                  .dst_count = 1,
                                  .src = src,
                                  .src_count = r->size,
                                  .count = 1,
                                  .dtype = LS_FLOAT64,
                                  .op = LS_SUM};
    ls__reduce(&args);
    return sum;
}

/* A stop request is sent along, so that all ranks stop after the same step. It counts only when the
 * group is the whole world: ranks outside the group would go on. */
static void agree_on_stop(ls_reducer *r)
{
    uint32_t stop = 0;
    for (int rank = 0; rank < r->size && r->size == r->runtime->world_size; rank++) {
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
    compare_settings(r);
    agree_on_stop(r);
    for (int i = 0; i < r->param_count; i++) {
        bool used = false;
        for (int rank = 0; rank < r->size && !used; rank++) {
            used = bitmap(r, rank)[i / 8] >> (i % 8) & 1;
        }
        r->params[i].used = used;
    }
    double weight = r->weighted ? global_weight(r) : (double)r->size;
    if (!isfinite(weight) || weight < 0.0) {
        return ls__fail(LS_ERR_INVALID,
                        "reducer \"%s\": the weights of all ranks add up to %g; give finite weights"
                        " >= 0",
                        r->name, weight);
    }
    r->divisor = weight > 0.0 ? weight : 1.0; /* all weights 0: all gradients are zero */
    LS_ASSERT(r->divisor > 0.0);
    return LS_OK;
}

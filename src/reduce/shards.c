/* SPDX-License-Identifier: Apache-2.0 */
/* The subtree of a rank's shards; the idea is in shards.h. */
#include "reduce/shards.h"

#include <string.h>

#include "base/assert.h"
#include "comm/algorithm/rules.h"
#include "kernel/reduce/reduce.h"

/* ---- making ------------------------------------------------------------------------------- */

static bool power_of_two(int n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static ls_status check_number(const ls_reducer *r, int shards)
{
    if (!power_of_two(shards) || shards > LS__SHARDS_MAX) {
        return ls__fail(
            LS_ERR_INVALID,
            "reducer \"%s\": %d shards; give a power of two up to %d, the same for every "
            "number of ranks",
            r->name, shards, LS__SHARDS_MAX);
    }
    if (shards % r->size != 0) {
        return ls__fail(
            LS_ERR_INVALID,
            "reducer \"%s\": %d shards cannot be divided evenly among %d ranks; start a "
            "power of two of ranks, at most as many as shards",
            r->name, shards, r->size);
    }
    return LS_OK;
}

/* 16-bit sums are rounded once for a rank, so their bits depend on the number of ranks. The wrapper
 * has refused groups of single parameters. */
static ls_status check_params(const ls_reducer *r)
{
    for (int i = 0; i < r->param_count; i++) {
        const ls__reduce_param *param = &r->params[i];
        if (param->key.dtype != LS_FLOAT32 && param->key.dtype != LS_FLOAT64) {
            return ls__fail(
                LS_ERR_UNSUPPORTED,
                "reducer \"%s\": parameter %s is %s, whose sums are rounded once for each "
                "rank; with shards give float32 (LS_AUTOCAST computes in bfloat16)",
                r->name, param->name, ls_dtype_name(param->key.dtype));
        }
        LS_ASSERT(param->key.domain == 0 && param->key.batch == 0 && param->user == NULL);
    }
    return LS_OK;
}

/* An algorithm chosen by name may add in another order. */
static ls_status check_algorithms(const ls_reducer *r)
{
    ls__rules rules;
    LS_TRY(ls__rules_read(&rules));
    for (int i = 0; i < rules.count[LS__OP_ALL_REDUCE]; i++) {
        const ls__algorithm *algorithm = rules.rule[LS__OP_ALL_REDUCE][i].algorithm;
        if (!algorithm->exact) {
            return ls__fail(
                LS_ERR_UNSUPPORTED,
                "reducer \"%s\": LOCKSTEP_ALGORITHM selects \"%s\" for all_reduce, which "
                "adds in an order of its own; with shards select one that is exact "
                "(docs/algorithms.md), or none",
                r->name, algorithm->name);
        }
    }
    return LS_OK;
}

/* Offsets are those of registration: bucket layouts may change between steps. */
static ls_status allocate(ls_reducer *r)
{
    ls__reduce_shards *s = &r->shards;
    const size_t count = (size_t)r->param_count + 1;
    s->offset = ls__arena_alloc(&r->arena, count * sizeof *s->offset);
    s->held = ls__arena_alloc(&r->arena, count);
    for (int i = 0; s->offset != NULL && i < r->param_count; i++) {
        s->offset[i] = s->bytes;
        s->bytes += (r->params[i].bytes + LS__PARAM_ALIGN - 1) / LS__PARAM_ALIGN * LS__PARAM_ALIGN;
    }
    for (int n = s->of_rank; n > 1; n /= 2) {
        s->levels++;
    }
    if (s->levels > 0 && s->bytes > 0) {
        s->sums = r->runtime->env->allocate(r->runtime->env, (size_t)s->levels * s->bytes);
    }
    if (s->offset == NULL || s->held == NULL ||
        (s->sums == NULL && s->levels > 0 && s->bytes > 0)) {
        return ls__fail(LS_ERR_MEMORY,
                        "reducer \"%s\": no memory for %d sums of %zu bytes of shards' gradients; "
                        "start more ranks, or give fewer shards",
                        r->name, s->levels, s->bytes);
    }
    memset(s->held, 0, count);
    return LS_OK;
}

ls_status ls__shards_set(ls_reducer *r, int shards)
{
    LS_ASSERT(r->shards.of_rank == 0 && r->stats.reductions == 0);
    LS_TRY(check_number(r, shards));
    LS_TRY(check_params(r));
    LS_TRY(check_algorithms(r));
    r->shards.of_rank = shards / r->size;
    return allocate(r);
}

void ls__shards_free(ls_reducer *r)
{
    ls__reduce_shards *s = &r->shards;
    if (s->sums != NULL) {
        r->arena.env->release(r->arena.env, s->sums, (size_t)s->levels * s->bytes);
        s->sums = NULL;
    }
}

/* ---- a step ------------------------------------------------------------------------------- */

bool ls__shards_first(const ls_reducer *r)
{
    return r->shards.done == 0;
}

bool ls__shards_last(const ls_reducer *r)
{
    return r->shards.done + 1 == r->shards.of_rank;
}

int ls__shards_done(const ls_reducer *r)
{
    return r->shards.done;
}

int ls__shards_of_rank(const ls_reducer *r)
{
    return r->shards.of_rank;
}

ls_status ls__shards_check(const ls_reducer *r)
{
    for (int i = 0; i < r->param_count && r->shards.of_rank > 0; i++) {
        if (r->params[i].present) {
            return ls__fail(
                LS_ERR_STATE,
                "reducer \"%s\": a step begins, but parameter %s has a gradient already; "
                "with shards call ls_optim_zero_grad after each step",
                r->name, r->params[i].name);
        }
    }
    return LS_OK;
}

static char *sum_at(const ls_reducer *r, int level, int param)
{
    LS_ASSERT(level < r->shards.levels);
    return r->shards.sums + (size_t)level * r->shards.bytes + r->shards.offset[param];
}

/* The levels at which a shard completes a subtree: one for each set bit at the end of its
 * number. */
static int complete_levels(int shard)
{
    int levels = 0;
    while (shard >> levels & 1) {
        levels++;
    }
    return levels;
}

/* grad + the sums of levels 0 … levels - 1, each the left neighbour of all that was added
 * before. */
static void add_sums(const ls_reducer *r, int param, void *grad, int levels)
{
    for (int level = 0; level < levels; level++) {
        ls__reduce_into(grad, sum_at(r, level, param), r->params[param].count,
                        r->params[param].key.dtype, LS_SUM);
    }
}

void ls__shards_keep(ls_reducer *r)
{
    ls__reduce_shards *s = &r->shards;
    LS_ASSERT(s->done + 1 < s->of_rank);
    const int levels = complete_levels(s->done);
    for (int i = 0; i < r->param_count; i++) {
        ls__reduce_param *param = &r->params[i];
        void *grad = r->plan.regions[param->region].memory + param->offset;
        if (!param->present) {
            ls__elements_zero(grad, param->bytes);
        }
        add_sums(r, i, grad, levels);
        ls__elements_copy(sum_at(r, levels, i), grad, param->bytes);
        s->held[i] = s->held[i] || param->present;
        param->present = false;
    }
    double weight = r->weight;
    for (int level = 0; level < levels; level++) {
        weight = s->weights[level] + weight;
    }
    s->weights[levels] = weight;
    s->done++;
}

double ls__shards_weight(const ls_reducer *r, double last)
{
    for (int level = 0; level < r->shards.levels; level++) {
        last = r->shards.weights[level] + last;
    }
    return last;
}

bool ls__shards_held(const ls_reducer *r, int param)
{
    return r->shards.of_rank > 0 && r->shards.held[param];
}

void ls__shards_add(const ls_reducer *r, int param, void *grad)
{
    if (r->shards.of_rank > 0) {
        LS_ASSERT(ls__shards_last(r));
        if (!r->params[param].present) {
            ls__elements_zero(grad, r->params[param].bytes);
        }
        add_sums(r, param, grad, r->shards.levels);
    }
}

void ls__shards_forget(ls_reducer *r)
{
    if (r->shards.of_rank > 0) {
        r->shards.done = 0;
        memset(r->shards.held, 0, (size_t)r->param_count);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* All ranks of these algorithms do alike, so one program is counted (collective.h). */
#include "comm/tune/collective.h"

#include "comm/algorithm/registry.h"
#include "comm/program/program.h"

static const struct {
    ls__operation operation;
    const char *algorithm;
} algorithms[] = {
    [LS__COLLECTIVE_HALF] = {LS__OP_REDUCE_SCATTER, "ring"},
    [LS__COLLECTIVE_ALL_REDUCE] = {LS__OP_ALL_REDUCE, "ring"},
    [LS__COLLECTIVE_DOUBLING] = {LS__OP_ALL_REDUCE, "halving_doubling"},
    [LS__COLLECTIVE_EXCHANGE] = {LS__OP_ALL_TO_ALL, "pairwise"},
};

/* Messages of an exchange do not depend on each other by their data, but go one after the other. */
static int sends_of(const ls__program *program)
{
    int sends = 0;
    for (int s = 0; s < program->step_count; s++) {
        sends += program->steps[s].kind == LS__STEP_SEND;
    }
    return sends;
}

bool ls__collective_counted(const ls__env *env, ls__collective_kind kind, int n,
                            ls__collective_cost *out)
{
    ls__program *program = NULL;
    ls__program_cost cost;
    const ls__program_spec spec = {
        .operation = algorithms[kind].operation, .memory = LS__MEMORY_MESSAGES, .size = n};
    const bool folds = kind == LS__COLLECTIVE_DOUBLING && (n & (n - 1)) != 0;
    if (n > LS__COLLECTIVE_COUNTED_MAX || folds ||
        ls__algorithm_find(algorithms[kind].operation, algorithms[kind].algorithm)
                ->generate(&spec, env, &program) < 0) {
        return false;
    }
    ls__program_cost_count(program, &cost);
    *out = (ls__collective_cost){kind == LS__COLLECTIVE_EXCHANGE ? sends_of(program) : cost.steps,
                                 cost.sent};
    ls__program_free(program);
    return true;
}

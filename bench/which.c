/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm ran? The engine counts the bytes each rank reads and writes, and a program's cost
 * says how many they should be: the algorithm whose cost fits is the one. */
#include <math.h>

#include "base/env.h"
#include "bench.h"
#include "comm/algorithm/registry.h"
#include "comm/program/program.h"

static bool fits(double buffers, uint64_t bytes, const ls__bench_row *row, int ranks)
{
    /* chunks end on cache lines, so a small buffer is not cut quite evenly */
    const double slack = 0.01 * (double)row->bytes + 64.0 * ranks;
    return fabs(buffers * (double)row->bytes - (double)bytes) <= slack;
}

static bool costs(const ls__algorithm *algorithm, ls__memory memory, int rank, int ranks,
                  ls__program_cost *cost)
{
    const ls__program_spec spec = {algorithm->operation, memory, rank, ranks, 0, false, NULL};
    ls__program *program = NULL;
    if (algorithm->generate(&spec, ls__env_posix(), &program) != LS_OK) {
        return false;
    }
    ls__program_cost_count(program, cost);
    ls__program_free(program);
    return true;
}

const char *ls__bench_which(const ls__bench_options *options, const ls__bench_row *row, int rank,
                            uint64_t sent, uint64_t received)
{
    int count = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    const ls__operation operation = options->operation->operation;
    if (options->operation->uneven) { /* all move every block once, straight to its place */
        return ls__algorithm_find(operation, "direct")->name;
    }
    for (int a = 0; a < count && row->bytes > 0; a++) {
        for (int memory = LS__MEMORY_MESSAGES; memory <= LS__MEMORY_STAGED; memory++) {
            ls__program_cost cost;
            if (algorithms[a]->operation == operation &&
                costs(algorithms[a], (ls__memory)memory, rank, options->ranks, &cost) &&
                fits(cost.sent, sent, row, options->ranks) &&
                fits(cost.received, received, row, options->ranks)) {
                return algorithms[a]->name;
            }
        }
    }
    return operation == LS__OP_SEND ? "messages" : "unknown";
}

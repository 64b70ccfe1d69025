/* SPDX-License-Identifier: Apache-2.0 */
/* Closed forms are what is counted from the programs. */
#include "cost/collective.h"

#include <math.h>

#include "base/env_posix.h"
#include "comm/algorithm/registry.h"
#include "comm/program/program.h"
#include "comm/tune/collective.h"
#include "test.h"

static void check(ls__operation operation, const char *name, int size, ls__collective_cost form)
{
    ls__program *program = NULL;
    ls__program_cost cost;
    const ls__program_spec spec = {
        .operation = operation, .memory = LS__MEMORY_MESSAGES, .size = size};
    CHECK_OK(ls__algorithm_find(operation, name)->generate(&spec, ls__env_posix(), &program));
    ls__program_cost_count(program, &cost);
    if (cost.steps != form.messages) {
        test_fail(__FILE__, __LINE__, "%s of %d ranks: %d messages counted, %d by the form", name,
                  size, cost.steps, form.messages);
    }
    CHECK_NEAR(cost.sent, form.sent, 1e-12);
    ls__program_free(program);
}

TEST(rings_send_what_is_counted_from_their_programs)
{
    for (int n = 1; n <= 64; n += n < 17 ? 1 : 13) {
        check(LS__OP_ALL_REDUCE, "ring", n, ls__collective_all_reduce(n, false));
        check(LS__OP_REDUCE_SCATTER, "ring", n, ls__collective_half(n));
        check(LS__OP_ALL_GATHER, "ring", n, ls__collective_half(n));
    }
}

TEST(halving_and_doubling_sends_what_is_counted_from_its_program)
{
    for (int n = 1; n <= 1024; n *= 2) {
        check(LS__OP_ALL_REDUCE, "halving_doubling", n, ls__collective_all_reduce(n, true));
    }
}

/* What the simulator counts up to 1,024 ranks, and its closed forms beyond. */
TEST(counts_of_programs_are_the_closed_forms)
{
    const int sizes[] = {2, 3, 8, 24, 64, 100, 256, 1000, 1024};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int kind = LS__COLLECTIVE_HALF; kind <= LS__COLLECTIVE_EXCHANGE; kind++) {
            const int n = sizes[i];
            ls__collective_cost counted,
                form = ls__collective_of((ls__collective_kind)kind, n, NULL, NULL);
            const bool folds = kind == LS__COLLECTIVE_DOUBLING && (n & (n - 1)) != 0;
            CHECK(ls__collective_counted(ls__env_posix(), (ls__collective_kind)kind, n, &counted) ==
                  !folds);
            CHECK(folds || counted.messages == form.messages);
            CHECK(folds || fabs(counted.sent - form.sent) < 1e-9);
        }
    }
    ls__collective_cost none;
    CHECK(!ls__collective_counted(ls__env_posix(), LS__COLLECTIVE_HALF, 1025, &none));
    none = ls__collective_of(LS__COLLECTIVE_HALF, 2048, ls__collective_counted, ls__env_posix());
    CHECK_INT(none.messages, 2047);
}

/* Where a number of ranks is no power of two, it is a ring. */
TEST(other_numbers_of_ranks_go_around_a_ring)
{
    CHECK_INT(ls__collective_all_reduce(6, true).messages, 10);
    CHECK_INT(ls__collective_all_reduce(8, true).messages, 6);
    CHECK_INT(ls__collective_all_reduce(8, false).messages, 14);
    CHECK_NEAR(ls__collective_seconds(ls__collective_half(4), 1.0, 0.5, 16.0), 9.0, 0.0);
}

TEST_MAIN

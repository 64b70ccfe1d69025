/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: whether operations run in one shot, alike on all ranks. */
#include <stdio.h>

#include "comm/algorithm/registry.h"
#include "comm/core/plan.h"
#include "sets.h"

/* Where "one_shot" would be the same program, only "direct" exists; as in select.c. */
static const ls__algorithm *small_one(ls__operation operation)
{
    const ls__algorithm *one_shot = ls__algorithm_find(operation, "one_shot");
    return one_shot != NULL ? one_shot : find(operation, "direct");
}

static void check_all(ls__operation operation, int size, int root, uint64_t in_place)
{
    ls__program *programs[RANKS_MAX];
    CHECK(generate_bound(small_one(operation), LS__MEMORY_STAGED, size, root, in_place, NULL,
                         programs));
    for (int r = 0; r < size; r++) {
        ls__plan plan;
        ls__plan_init(&plan, programs[r], true);
        if (!plan.one_shot) {
            printf("# %s, rank %d of %d, root %d\n", ls__operation_name(operation), r, size, root);
        }
        CHECK(plan.one_shot);
        CHECK_INT(plan.first_step > 0, size > 1);
        ls__plan_init(&plan, programs[r], false);
        CHECK(!plan.one_shot && plan.first_step == 0);
    }
    free_all(programs, size);
}

TEST(small_operations_run_in_one_shot_on_every_rank)
{
    for (int o = 0; o < LS__OP_COUNT; o++) {
        const ls__operation operation = (ls__operation)o;
        const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 17, 64};
        for (int i = 0;
             i < 10 && !ls__operation_is_p2p(operation) && !ls__operation_is_v(operation); i++) {
            const int roots = ls__operation_has_root(operation) && sizes[i] <= 8 ? sizes[i] : 1;
            for (int root = 0; root < roots; root++) {
                check_all(operation, sizes[i], root, 0);
                check_all(operation, sizes[i], root, UINT64_MAX);
            }
        }
    }
}

static ls__plan plan_of(const char *name, ls__memory memory, ls__operation operation)
{
    ls__program *programs[RANKS_MAX];
    CHECK(generate(find(operation, name), memory, 4, 0, programs));
    ls__plan plan;
    ls__plan_init(&plan, programs[1], true);
    free_all(programs, 4);
    plan.program = NULL;
    return plan;
}

TEST(what_needs_more_than_one_fence_or_partial_sums_does_not_run_in_one_shot)
{
    CHECK(!plan_of("direct", LS__MEMORY_STAGED, LS__OP_ALL_REDUCE).one_shot);
    CHECK(!plan_of("direct", LS__MEMORY_REGISTERED, LS__OP_ALL_REDUCE).one_shot);
    CHECK(!plan_of("ring", LS__MEMORY_MESSAGES, LS__OP_ALL_REDUCE).one_shot);
    CHECK(!plan_of("direct", LS__MEMORY_STAGED, LS__OP_ALL_GATHER_V).one_shot);
}

TEST_MAIN

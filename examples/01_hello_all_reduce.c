/* SPDX-License-Identifier: Apache-2.0 */
/* Hello: every worker has three integers; all_reduce gives every worker their sums.
 *
 *     lockstep run -n 4 ./01_hello_all_reduce     four workers
 *     ./01_hello_all_reduce                             one process, a world of one
 *
 *     rank 0 before: [3, 7, 1]
 *     rank 1 before: [0, 2, 9]         each its own random integers from 0 to 9
 *     ...
 *     rank 0 after:  [9, 14, 21]
 *     rank 1 after:  [9, 14, 21]       everywhere the same
 *     ...
 */
#include <stdio.h>

#include <lockstep/comm.h>
#include <lockstep/random.h>

enum { COUNT = 3, SEED = 2020 };

/* Integer i of a rank, from the rank's own random stream. */
static int32_t draw(int rank, int i)
{
    return (int32_t)(10.0f * ls_random_uniform(SEED, (uint64_t)rank, (uint64_t)i));
}

/* Prints one line a rank, in rank order: everyone waits until rank r has printed. */
static void print_in_turn(ls_group *group, const char *when, const int32_t *x)
{
    for (int r = 0; r < ls_group_size(group); r++) {
        if (r == ls_group_rank(group)) {
            printf("rank %d %s [%d, %d, %d]\n", r, when, x[0], x[1], x[2]);
            fflush(stdout);
        }
        LS_CHECK(ls_barrier(group, NULL, NULL));
    }
}

/* Random streams need no messages, so any rank can work out what the sum must be. */
static bool is_right(const int32_t *x, int ranks)
{
    for (int i = 0; i < COUNT; i++) {
        int32_t want = 0;
        for (int r = 0; r < ranks; r++) {
            want += draw(r, i);
        }
        if (x[i] != want) {
            return false;
        }
    }
    return true;
}

int main(void)
{
    LS_CHECK(ls_init(NULL));
    ls_group *world = ls_world();
    int32_t x[COUNT];
    for (int i = 0; i < COUNT; i++) {
        x[i] = draw(ls_rank(), i);
    }

    print_in_turn(world, "before:", x);
    LS_CHECK(ls_all_reduce(world, x, x, COUNT, LS_INT32, LS_SUM, NULL, NULL));
    print_in_turn(world, "after: ", x);

    int32_t right = is_right(x, ls_world_size());
    LS_CHECK(ls_all_reduce(world, &right, &right, 1, LS_INT32, LS_SUM, NULL, NULL));
    if (ls_rank() == 0) {
        printf("%d of %d ranks hold the right sums\n", right, ls_world_size());
    }
    const int failed = right != ls_world_size();
    LS_CHECK(ls_finalize());
    return failed;
}

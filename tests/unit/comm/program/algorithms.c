/* SPDX-License-Identifier: Apache-2.0 */
/* The algorithms beside direct ones: what they cost, what the checker says of wide and of rooted
 * programs, and of bugs planted in them. That every one is right for 1 to 64 ranks: programs.c. */
#include <stdio.h>

#include "comm/algorithm/registry.h"
#include "sets.h"

/* ---- costs -------------------------------------------------------------------------------- */

static int ceil_log2(int n)
{
    int log = 0;
    while (1 << log < n) {
        log++;
    }
    return log;
}

/* Most bits set in a number below n: a rank's place in the binomial tree has one bit for each
 * message from the root to it. */
static int most_bits_below(int n)
{
    int most = 0;
    for (int i = 0; i < n; i++) {
        const int bits = __builtin_popcount((unsigned)i);
        most = bits > most ? bits : most;
    }
    return most;
}

/* The steps of a set over messages; its costs must be those of `cost`, on every rank. */
static int steps_of(ls__operation operation, const char *name, int size, ls__program_cost *cost)
{
    ls__program *programs[RANKS_MAX];
    CHECK(generate(find(operation, name), LS__MEMORY_MESSAGES, size, 0, programs));
    for (int r = 0; r < size && cost != NULL; r++) {
        ls__program_cost counted;
        ls__program_cost_count(programs[r], &counted);
        CHECK_NEAR(counted.sent, cost->sent, 1e-9);
        CHECK_NEAR(counted.received, cost->received, 1e-9);
        CHECK_NEAR(counted.wide, cost->wide, 1e-9);
        CHECK_INT(counted.steps, cost->steps);
    }
    const int steps = ls__programs_steps(programs, size);
    free_all(programs, size);
    return steps;
}

TEST(a_ring_sends_the_fewest_bytes_in_a_step_for_each_neighbour)
{
    for (int n = 2; n <= RANKS_MAX; n++) {
        const double half = (n - 1.0) / n;
        ls__program_cost cost = {2 * (n - 1), 2 * half, 2 * half, half};
        CHECK_INT(steps_of(LS__OP_ALL_REDUCE, "ring", n, &cost), 2 * (n - 1));
        cost = (ls__program_cost){n - 1, half, half, half};
        CHECK_INT(steps_of(LS__OP_REDUCE_SCATTER, "ring", n, &cost), n - 1);
        cost.wide = 0;
        CHECK_INT(steps_of(LS__OP_ALL_GATHER, "ring", n, &cost), n - 1);
    }
}

TEST(recursive_doubling_takes_log2_n_steps_and_at_most_twice_that_off_powers_of_two)
{
    for (int n = 2; n <= RANKS_MAX; n++) {
        const int log = ceil_log2(n);
        if (n == 1 << log) {
            ls__program_cost cost = {log, log, log, log};
            CHECK_INT(steps_of(LS__OP_ALL_REDUCE, "recursive_doubling", n, &cost), log);
        } else {
            const int steps = steps_of(LS__OP_ALL_REDUCE, "recursive_doubling", n, NULL);
            CHECK(steps >= log && steps <= 2 * log);
        }
    }
}

TEST(trees_and_rooted_operations_take_the_steps_of_their_closed_forms)
{
    for (int n = 2; n <= RANKS_MAX; n++) {
        CHECK_INT(steps_of(LS__OP_BROADCAST, "binomial", n, NULL), most_bits_below(n));
        CHECK_INT(steps_of(LS__OP_BROADCAST, "direct", n, NULL), 1);
        CHECK_INT(steps_of(LS__OP_REDUCE, "direct", n, NULL), 2);
        CHECK_INT(steps_of(LS__OP_GATHER, "direct", n, NULL), 1);
        CHECK_INT(steps_of(LS__OP_SCATTER, "direct", n, NULL), 1);
        CHECK_INT(steps_of(LS__OP_ALL_REDUCE, "direct", n, NULL), 2);
    }
}

static void check_cost(const ls__program *p, double sent, double received)
{
    ls__program_cost cost;
    ls__program_cost_count(p, &cost);
    CHECK_NEAR(cost.sent, sent, 1e-9);
    CHECK_NEAR(cost.received, received, 1e-9);
}

TEST(rooted_operations_move_what_their_pages_say)
{
    for (int n = 2; n <= 17; n++) {
        const double most = (n - 1.0) / n, one = 1.0 / n;
        ls__program *p[RANKS_MAX];
        CHECK(generate(find(LS__OP_REDUCE, "direct"), LS__MEMORY_MESSAGES, n, 0, p));
        check_cost(p[0], most, 2 * most);
        check_cost(p[1], most + one, most);
        free_all(p, n);
        CHECK(generate(find(LS__OP_REDUCE, "direct"), LS__MEMORY_REGISTERED, n, 0, p));
        check_cost(p[0], 0, most);
        check_cost(p[1], one, most);
        free_all(p, n);
        CHECK(generate(find(LS__OP_REDUCE, "one_shot"), LS__MEMORY_STAGED, n, 0, p));
        check_cost(p[0], 0, n - 1);
        check_cost(p[1], 0, 0);
        free_all(p, n);
        CHECK(generate(find(LS__OP_GATHER, "direct"), LS__MEMORY_STAGED, n, 0, p));
        check_cost(p[0], 0, most);
        free_all(p, n);
        CHECK(generate(find(LS__OP_BROADCAST, "binomial"), LS__MEMORY_MESSAGES, n, 0, p));
        check_cost(p[0], ceil_log2(n), 0);
        check_cost(p[n - 1], 0, 1);
        free_all(p, n);
        CHECK(generate(find(LS__OP_SCATTER, "direct"), LS__MEMORY_MESSAGES, n, 0, p));
        check_cost(p[0], most, 0);
        check_cost(p[1], 0, one);
        free_all(p, n);
    }
}

/* ---- planted bugs ------------------------------------------------------------------------- */

TEST(a_ring_that_claims_to_be_exact_is_caught)
{
    for (int n = 2; n <= 9; n++) {
        planted p = plant(LS__OP_ALL_REDUCE, "ring", LS__MEMORY_MESSAGES, n);
        for (int r = 0; r < n; r++) {
            p.programs[r]->exact = true;
        }
        expect(&p, "another association than the canonical tree");
    }
}

TEST(recursive_doubling_with_swapped_halves_is_caught)
{
    planted p = plant(LS__OP_ALL_REDUCE, "recursive_doubling", LS__MEMORY_MESSAGES, 6);
    ls__step *step = step_of(&p, 1, LS__STEP_REDUCE, 1);
    const ls__ref first = *src_of(&p, 1, step, 0);
    *src_of(&p, 1, step, 0) = *src_of(&p, 1, step, 1);
    *src_of(&p, 1, step, 1) = first;
    expect(&p, "another association");
}

/* Without wide partial sums the same programs round 16-bit floats at every step. */
TEST(recursive_doubling_that_is_not_wide_rounds_more_than_once)
{
    planted p = plant(LS__OP_ALL_REDUCE, "recursive_doubling", LS__MEMORY_MESSAGES, 4);
    for (int r = 0; r < 4; r++) {
        p.programs[r]->wide = false;
    }
    expect(&p, "more than once");
}

TEST(a_wide_message_into_memory_that_is_not_wide_is_caught)
{
    planted p = plant(LS__OP_ALL_REDUCE, "recursive_doubling", LS__MEMORY_MESSAGES, 2);
    *dst_of(&p, 1, step_of(&p, 1, LS__STEP_RECV, 0), 0) = (ls__ref){LS__BUFFER_OUTPUT, 1, 0};
    expect(&p, "is wide, its place is not");

    p = plant(LS__OP_ALL_REDUCE, "ring", LS__MEMORY_MESSAGES, 3);
    *src_of(&p, 1, step_of(&p, 1, LS__STEP_SEND, 0), 0) = (ls__ref){LS__BUFFER_INPUT, 1, 0};
    expect(&p, "is of the operation's dtype, its place is not");
}

TEST(a_result_that_takes_part_in_another_sum_is_caught)
{
    /* the sum of ranks 0 and 1 goes through OUTPUT, where it is divided and rounded */
    planted p = plant(LS__OP_ALL_REDUCE, "recursive_doubling", LS__MEMORY_MESSAGES, 4);
    const ls__ref out = {LS__BUFFER_OUTPUT, 2, 0};
    *dst_of(&p, 2, step_of(&p, 2, LS__STEP_REDUCE, 0), 0) = out;
    *src_of(&p, 2, step_of(&p, 2, LS__STEP_REDUCE, 1), 1) = out;
    expect(&p, "rounded (and divided) already");
}

TEST(a_wide_sum_that_is_copied_to_the_output_is_caught)
{
    planted p = plant(LS__OP_ALL_REDUCE, "recursive_doubling", LS__MEMORY_MESSAGES, 2);
    step_of(&p, 1, LS__STEP_REDUCE, 1)->kind = LS__STEP_COPY; /* it would never be divided */
    expect(&p, "only a reduce divides and rounds");
}

TEST(a_ring_slot_that_is_used_again_before_it_was_sent_is_caught)
{
    planted p = plant(LS__OP_ALL_REDUCE, "ring", LS__MEMORY_MESSAGES, 5);
    step_of(&p, 2, LS__STEP_RECV, 1)->wait_lane = -1;
    expect(&p, "race on scratch[2]");
}

TEST(scratch_that_is_said_to_hold_another_chunk_is_caught)
{
    planted p = plant(LS__OP_ALL_REDUCE, "ring", LS__MEMORY_MESSAGES, 4);
    ls__ref *dst = dst_of(&p, 1, step_of(&p, 1, LS__STEP_RECV, 0), 0);
    dst->chunk += dst->chunk % 4 == 3 ? -1 : 1;
    expect(&p, "another chunk");
}

TEST(buffers_that_only_the_root_has_are_known)
{
    planted p = plant(LS__OP_REDUCE, "direct", LS__MEMORY_MESSAGES, 3);
    *dst_of(&p, 2, step_of(&p, 2, LS__STEP_REDUCE, 0), 0) = (ls__ref){LS__BUFFER_OUTPUT, 2, 2};
    expect(&p, "direct reduce (3 ranks, messages, ");

    p = plant(LS__OP_SCATTER, "direct", LS__MEMORY_REGISTERED, 3);
    src_of(&p, 1, step_of(&p, 1, LS__STEP_PEER_COPY, 0), 0)->rank = 2;
    expect(&p, "only the root has");

    p = plant(LS__OP_GATHER, "direct", LS__MEMORY_STAGED, 3);
    src_of(&p, 0, step_of(&p, 0, LS__STEP_PEER_COPY, 0), 0)->rank = 2; /* its STAGE.1 is empty */
    expect(&p, "gather (3 ranks, staged, ");
}

TEST(blocks_that_reach_the_wrong_rank_are_caught)
{
    planted p = plant(LS__OP_SCATTER, "direct", LS__MEMORY_MESSAGES, 4);
    src_of(&p, 0, step_of(&p, 0, LS__STEP_SEND, 0), 0)->chunk = 2;
    expect(&p, "rank 1 ends chunk 1 without the data of rank 0");

    p = plant(LS__OP_REDUCE, "direct", LS__MEMORY_REGISTERED, 4);
    ls__step *step = step_of(&p, 2, LS__STEP_PEER_REDUCE, 0);
    *src_of(&p, 2, step, 3) = *src_of(&p, 2, step, 1);
    expect(&p, "contribution of rank 1 counted 2 times");

    p = plant(LS__OP_BROADCAST, "binomial", LS__MEMORY_MESSAGES, 6);
    remove_step(&p, 4, step_of(&p, 4, LS__STEP_SEND, 0));
    expect(&p, "no message comes from rank 4");
}

/* ---- all_to_all and scans ----------------------------------------------------------------- */

TEST(all_to_all_and_scans_take_the_steps_they_promise)
{
    for (int n = 2; n <= RANKS_MAX; n++) {
        const double others = (n - 1.0) / n;
        ls__program_cost cost = {.steps = 1, .sent = others, .received = others};
        CHECK_INT(steps_of(LS__OP_ALL_TO_ALL, "direct", n, &cost), 1);
        CHECK_INT(steps_of(LS__OP_ALL_TO_ALL, "pairwise", n, &cost), 1); /* of data; not in time */
        CHECK_INT(steps_of(LS__OP_ALL_TO_ALL, "bruck", n, NULL), most_bits_below(n));
        CHECK_INT(steps_of(LS__OP_SCAN, "direct", n, NULL), 1);
        CHECK_INT(steps_of(LS__OP_EXSCAN, "direct", n, NULL), 1);
        CHECK_INT(steps_of(LS__OP_SCAN, "recursive_doubling", n, NULL), ceil_log2(n));
    }
}

TEST(checker_rejects_blocks_for_another_rank)
{
    for (size_t m = 0; m < 3; m++) {
        planted p = plant(LS__OP_ALL_TO_ALL, "direct", memories[m], 5);
        ls__step *step = step_of(&p, 2, m == 0 ? LS__STEP_SEND : LS__STEP_PEER_COPY, 1);
        src_of(&p, 2, step, 0)->chunk = m == 0 ? 2 : 1;
        expect(&p, "without the data of rank");
    }
    planted p = plant(LS__OP_ALL_TO_ALL, "pairwise", LS__MEMORY_MESSAGES, 6);
    dst_of(&p, 3, step_of(&p, 3, LS__STEP_RECV, 0), 0)->chunk = 3;
    expect(&p, "rank 3 ends with nothing in chunk 2");

    p = plant(LS__OP_ALL_TO_ALL, "bruck", LS__MEMORY_MESSAGES, 7);
    ls__step *step = step_of(&p, 4, LS__STEP_SEND, 0);
    *src_of(&p, 4, step, 0) = *src_of(&p, 4, step_of(&p, 4, LS__STEP_COPY, 1), 0);
    expect(&p, "where scratch is said to hold another chunk");
}

TEST(checker_rejects_bruck_that_overwrites_what_it_sends_and_what_did_not_wait)
{
    planted p = plant(LS__OP_ALL_TO_ALL, "bruck", LS__MEMORY_MESSAGES, 8);
    for (int i = 0; i < 12; i++) {
        ls__step *recv = step_of(&p, 5, LS__STEP_RECV, i);
        if (recv->wait_lane >= 0 && recv->wait_lane != recv->lane) {
            recv->wait_lane = -1;
            expect(&p, "race on scratch[5]");
            return;
        }
    }
    test_fail(__FILE__, __LINE__, "no receive waits for a send");
}

TEST(checker_rejects_all_to_all_in_place_that_receives_over_what_is_still_to_be_sent)
{
    static const char *const names[] = {"direct", "pairwise"};
    for (int i = 0; i < 2; i++) {
        planted p = {.size = 5};
        CHECK(generate_bound(find(LS__OP_ALL_TO_ALL, names[i]), LS__MEMORY_MESSAGES, 5, 0,
                             UINT64_MAX, NULL, p.programs));
        CHECK_OK(ls__program_check(p.programs, 5, 0));
        ls__ref *place = dst_of(&p, 1, step_of(&p, 1, LS__STEP_RECV, 0), 0);
        *place = (ls__ref){LS__BUFFER_OUTPUT, 1, place->chunk / 5};
        expect(&p, i == 0 ? "race on" : "another chunk"); /* sends on what it has received */
    }
    planted p = plant(LS__OP_ALL_TO_ALL, "direct", LS__MEMORY_STAGED, 4);
    remove_step(&p, 2, step_of(&p, 2, LS__STEP_FENCE, 0));
    expect(&p, "before fence 0");
    p = plant(LS__OP_ALL_TO_ALL, "direct", LS__MEMORY_REGISTERED, 4);
    for (int r = 0; r < 4; r++) {
        p.programs[r]->fits[1] = true; /* as if it were for in place, too */
    }
    expect(&p, "race on");
}

TEST(checker_rejects_scans_with_other_terms_or_in_another_order)
{
    for (size_t m = 0; m < 3; m++) {
        planted p = plant(LS__OP_SCAN, "direct", memories[m], 5);
        step_of(&p, 3, m == 1 || m == 2 ? LS__STEP_PEER_REDUCE : LS__STEP_REDUCE, 0)->src_count--;
        expect(&p, "contribution of rank 3 counted 0 times");
        p = plant(LS__OP_EXSCAN, "direct", memories[m], 5);
        ls__step *step = step_of(&p, 4, m == 0 ? LS__STEP_REDUCE : LS__STEP_PEER_REDUCE, 0);
        const ls__ref first = *src_of(&p, 4, step, 0);
        *src_of(&p, 4, step, 0) = *src_of(&p, 4, step, 1);
        *src_of(&p, 4, step, 1) = first;
        expect(&p, "another association than the canonical tree over ranks 0 to 3");
    }
    planted p = plant(LS__OP_SCAN, "recursive_doubling", LS__MEMORY_MESSAGES, 6);
    ls__step *step = step_of(&p, 5, LS__STEP_REDUCE, 0);
    const ls__ref left = *src_of(&p, 5, step, 0);
    *src_of(&p, 5, step, 0) = *src_of(&p, 5, step, 1);
    *src_of(&p, 5, step, 1) = left;
    expect(&p, "canonical tree over ranks 0 to 5");

    p = plant(LS__OP_EXSCAN, "recursive_doubling", LS__MEMORY_MESSAGES, 4);
    step_of(&p, 3, LS__STEP_REDUCE, 0)->src_count--;
    expect(&p, "contribution of rank 2 counted 0 times");

    p = plant(LS__OP_SCAN, "recursive_doubling", LS__MEMORY_MESSAGES, 8);
    for (int r = 0; r < 8; r++) {
        p.programs[r]->wide = false;
    }
    expect(&p, "rounds chunk 0 more than once");

    p = plant(LS__OP_EXSCAN, "direct", LS__MEMORY_STAGED, 3);
    *dst_of(&p, 0, step_of(&p, 0, LS__STEP_COPY, 0), 0) = (ls__ref){LS__BUFFER_OUTPUT, 0, 0};
    expect(&p, "exscan of rank 0 has no result");
}

/* ---- trees, hosts, pairs ------------------------------------------------------------------- */

TEST(a_double_tree_that_claims_to_be_exact_or_loses_a_subtree_is_caught)
{
    planted p = plant(LS__OP_ALL_REDUCE, "double_tree", LS__MEMORY_MESSAGES, 6);
    for (int r = 0; r < 6; r++) {
        p.programs[r]->exact = true;
    }
    expect(&p, "another association than the canonical tree");
    p = plant(LS__OP_ALL_REDUCE, "double_tree", LS__MEMORY_MESSAGES, 6);
    step_of(&p, 4, LS__STEP_REDUCE, 0)->src_count--; /* without the upper half */
    expect(&p, "without the contribution of rank 5");
    p = plant(LS__OP_ALL_REDUCE, "double_tree", LS__MEMORY_MESSAGES, 5);
    for (int i = 0; i < p.programs[0]->step_count; i++) {
        p.programs[0]->steps[i].wait_lane = -1; /* the root hands out what it has not summed */
    }
    CHECK_STATUS(ls__program_check(p.programs, p.size, 1), LS_ERR_MISMATCH);
    free_all(p.programs, p.size);
}

TEST(hosts_of_three_ranks_are_no_part_of_the_canonical_tree)
{
    static const int host[] = {0, 0, 0, 1, 1, 1};
    planted p = {.size = 6};
    CHECK(generate_bound(find(LS__OP_ALL_REDUCE, "hierarchical"), LS__MEMORY_MESSAGES, 6, 0, 0,
                         host, p.programs));
    CHECK(!p.programs[0]->exact);
    for (int r = 0; r < 6; r++) {
        p.programs[r]->exact = true;
    }
    expect(&p, "another association than the canonical tree");
}

TEST(pairwise_sums_wait_for_the_last_block)
{
    planted p = plant(LS__OP_REDUCE_SCATTER, "pairwise", LS__MEMORY_MESSAGES, 5);
    for (int nth = 0; nth < 4; nth++) {
        step_of(&p, 2, LS__STEP_RECV, nth)->wait_lane = -1;
    }
    CHECK_STATUS(ls__program_check(p.programs, p.size, 1), LS_ERR_MISMATCH);
    free_all(p.programs, p.size);
    p = plant(LS__OP_REDUCE_SCATTER, "pairwise", LS__MEMORY_MESSAGES, 5);
    ls__step *step = step_of(&p, 3, LS__STEP_REDUCE, 0);
    *src_of(&p, 3, step, 1) = *src_of(&p, 3, step, 0);
    expect(&p, "contribution of rank 0 counted 2 times");
}

static void *no_memory(const ls__env *env, size_t bytes)
{
    (void)env;
    (void)bytes;
    return NULL;
}

TEST(a_program_without_memory_is_an_error_of_its_generator)
{
    ls__env poor = *ls__env_posix();
    poor.allocate = no_memory;
    for (int o = 0; o < LS__OP_COUNT; o++) {
        const ls__algorithm *direct = ls__algorithm_find((ls__operation)o, "direct");
        const ls__program_spec spec = {(ls__operation)o, LS__MEMORY_MESSAGES, 0, 2, 0, false, NULL};
        ls__program *program = NULL;
        if (direct != NULL) {
            CHECK_STATUS(direct->generate(&spec, &poor, &program), LS_ERR_MEMORY);
            CHECK(program == NULL);
        }
    }
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* Every algorithm, for every number of ranks, proven by the checker; planted bugs are rejected in
 * the right words; costs equal their closed forms. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/algorithm/registry.h"
#include "says.h"
#include "sets.h"

static int check_every_memory(const ls__algorithm *algorithm, int size, int root, int capacity)
{
    int checked = 0;
    for (size_t m = 0; m < sizeof memories / sizeof *memories; m++) {
        ls__program *programs[RANKS_MAX];
        const bool made = generate(algorithm, memories[m], size, root, programs);
        CHECK_INT(made, (algorithm->memories >> memories[m]) & 1u);
        if (made) {
            CHECK(programs[0]->exact || !algorithm->exact);
            CHECK_OK(ls__program_check(programs, size, capacity));
            free_all(programs, size);
            checked++;
        }
    }
    return checked;
}

TEST(every_algorithm_is_right_for_1_to_64_ranks_with_room_for_one_message)
{
    int count = 0, checked = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    for (int a = 0; a < count; a++) {
        for (int size = 1; size <= RANKS_MAX; size++) {
            checked += check_every_memory(algorithms[a], size, (size * 7 / 3) % size, 1);
        }
    }
    printf("# %d sets of programs\n", checked);
    /* eight operations directly in three memories, four one_shot, five over messages only */
    CHECK(checked >= 33 * RANKS_MAX);
}

/* Where programs differ in place. Registered memory has none in place then. */
TEST(programs_for_ranks_in_place_are_right_on_all_ranks_and_on_some_with_and_without_room)
{
    static const uint64_t in_place[] = {UINT64_MAX, 0x5555555555555555, 1, 0xf0f0f0f0f0f0f0f2};
    int count = 0, checked = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    for (int i = 0; i < count * RANKS_MAX; i++) {
        const ls__algorithm *algorithm = algorithms[i / RANKS_MAX];
        const int size = 1 + i % RANKS_MAX,
                  m = LS__MEMORY_MESSAGES + (size % 2 == 0 ? 0 : size % 3);
        ls__program *programs[RANKS_MAX];
        if (!ls__operation_reads_ahead(algorithm->operation) || m == LS__MEMORY_REGISTERED ||
            !generate_bound(algorithm, (ls__memory)m, size, 0, in_place[size / 2 % 4], NULL,
                            programs)) {
            continue;
        }
        CHECK_OK(ls__program_check(programs, size, size < 24 ? 0 : 1));
        free_all(programs, size);
        checked++;
    }
    CHECK(checked >= 7 * RANKS_MAX / 2);
}

/* The ranks of a host, by pattern: neighbours in sixes, in eights, every third one, in fours but
 * for the first, by the square of their number. */
static int host_of(int pattern, int rank)
{
    switch (pattern) {
    case 0:
        return rank / 6;
    case 1:
        return rank / 8;
    case 2:
        return rank % 3;
    case 3:
        return (rank + 3) / 4;
    default:
        return rank * rank % 7;
    }
}

TEST(hierarchies_are_right_on_hosts_of_any_shape_and_exact_where_they_are_aligned)
{
    const ls__algorithm *algorithm = find(LS__OP_ALL_REDUCE, "hierarchical");
    for (int i = 0; i < 5 * RANKS_MAX; i++) {
        const int size = 1 + i / 5, pattern = i % 5;
        int host[RANKS_MAX];
        ls__program *programs[RANKS_MAX];
        for (int r = 0; r < size; r++) {
            host[r] = host_of(pattern, r);
        }
        CHECK(generate_bound(algorithm, LS__MEMORY_MESSAGES, size, 0, 0, host, programs));
        CHECK_OK(ls__program_check(programs, size, i % 2));
        CHECK(programs[0]->exact || pattern != 1); /* the checker has proven it */
        CHECK(!programs[0]->exact || pattern != 0 || size <= 6);
        free_all(programs, size);
    }
}

/* A message that is larger than any buffer is one that is taken only when it is received. A
 * barrier's messages are empty and always fit. */
TEST(every_algorithm_but_barrier_is_right_without_room_for_any_message)
{
    int count = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    for (int a = 0; a < count; a++) {
        for (int size = 1; size <= 24 && algorithms[a]->operation != LS__OP_BARRIER; size++) {
            (void)check_every_memory(algorithms[a], size, size - 1, 0);
        }
    }
}

TEST(rooted_operations_are_right_with_every_root)
{
    int count = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    for (int size = 1; size <= 9; size++) {
        for (int i = 0; i < count * size; i++) {
            if (ls__operation_has_root(algorithms[i / size]->operation)) {
                (void)check_every_memory(algorithms[i / size], size, i % size, 1);
            }
        }
    }
}

TEST(registry_names_each_algorithm_once_and_has_a_default_for_every_collective)
{
    int count = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    for (int a = 0; a < count; a++) {
        CHECK(ls__algorithm_find(algorithms[a]->operation, algorithms[a]->name) == algorithms[a]);
    }
    for (int operation = LS__OP_ALL_REDUCE; operation < LS__OP_COUNT; operation++) {
        const bool letter = operation == LS__OP_SEND || operation == LS__OP_RECV;
        CHECK((ls__algorithm_find((ls__operation)operation, "direct") != NULL) == !letter);
    }
    CHECK(ls__algorithm_find(LS__OP_ALL_REDUCE, "ring of power") == NULL);
    CHECK(strcmp(ls__operation_name(LS__OP_REDUCE_SCATTER), "reduce_scatter") == 0);
    CHECK(strcmp(ls__operation_name(LS__OP_RECV), "recv") == 0);
    CHECK(strcmp(ls__operation_name((ls__operation)99), "invalid") == 0);
}

/* ---- planted bugs ------------------------------------------------------------------------- */

TEST(checker_rejects_swapped_operands)
{
    for (size_t m = 0; m < 3; m++) {
        planted p = plant(LS__OP_ALL_REDUCE, "direct", memories[m], 5);
        ls__step *step = step_of(&p, 2, m == 0 ? LS__STEP_REDUCE : LS__STEP_PEER_REDUCE, 0);
        const ls__ref first = *src_of(&p, 2, step, 0);
        *src_of(&p, 2, step, 0) = *src_of(&p, 2, step, 1);
        *src_of(&p, 2, step, 1) = first;
        expect(&p, "another association than the canonical tree");
    }
}

TEST(checker_rejects_a_contribution_that_counts_twice_and_one_that_is_missing)
{
    planted p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_REGISTERED, 4);
    ls__step *step = step_of(&p, 1, LS__STEP_PEER_REDUCE, 0);
    *src_of(&p, 1, step, 3) = *src_of(&p, 1, step, 2);
    expect(&p, "contribution of rank 2 counted 2 times");

    p = plant(LS__OP_REDUCE_SCATTER, "direct", LS__MEMORY_STAGED, 4);
    step_of(&p, 3, LS__STEP_PEER_REDUCE, 0)->src_count--;
    expect(&p, "without the contribution of rank 3");

    p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_MESSAGES, 4);
    src_of(&p, 0, step_of(&p, 0, LS__STEP_SEND, 0), 0)->chunk = 2;
    expect(&p, "another chunk");
}

TEST(checker_rejects_a_dropped_fence)
{
    /* one rank drops its last fence: the others wait for ever */
    planted p = plant(LS__OP_SCATTER, "direct", LS__MEMORY_REGISTERED, 3);
    remove_step(&p, 1, step_of(&p, 1, LS__STEP_FENCE, 1));
    expect(&p, "deadlock: fence 1 is never reached by rank 1");

    /* … and its peers still touch its buffers when it is done */
    p = plant(LS__OP_BROADCAST, "direct", LS__MEMORY_REGISTERED, 3);
    remove_step(&p, 1, step_of(&p, 1, LS__STEP_FENCE, 1));
    expect(&p, "race on output[1].0: rank 0 (lane 0) may still touch it when rank 1 is done");
    p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_REGISTERED, 3);
    remove_step(&p, 1, step_of(&p, 1, LS__STEP_FENCE, 1));
    expect(&p, "race on input[1].0: rank 0 (lane 0) may still touch it when rank 1 is done");

    /* all ranks drop the first: peers are touched before descriptors were compared */
    p = plant(LS__OP_ALL_GATHER, "direct", LS__MEMORY_REGISTERED, 3);
    for (int r = 0; r < 3; r++) {
        remove_step(&p, r, step_of(&p, r, LS__STEP_FENCE, 0));
        step_of(&p, r, LS__STEP_FENCE, 0)->fence = 0;
        p.programs[r]->fences = 1;
    }
    expect(&p, "before fence 0");

    /* all ranks drop the last: a peer may still read what the user thinks is his again */
    p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_REGISTERED, 3);
    for (int r = 0; r < 3; r++) {
        remove_step(&p, r, step_of(&p, r, LS__STEP_FENCE, 1));
    }
    expect(&p, "ends with nothing in chunk"); /* the first to be done lacks the others' chunks */

    p = plant(LS__OP_REDUCE_SCATTER, "direct", LS__MEMORY_REGISTERED, 3);
    for (int r = 0; r < 3; r++) {
        remove_step(&p, r, step_of(&p, r, LS__STEP_FENCE, 1));
    }
    expect(&p, "race on input");

    p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_STAGED, 2);
    for (int r = 0; r < 2; r++) {
        remove_step(&p, r, step_of(&p, r, LS__STEP_FENCE, 1));
    }
    expect(&p, "without the contribution of rank"); /* it copies out what nobody wrote yet */
}

TEST(checker_rejects_fences_out_of_order)
{
    planted p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_REGISTERED, 3);
    step_of(&p, 2, LS__STEP_FENCE, 0)->fence = 1;
    expect(&p, "fence 1 is reached as number 0");
}

TEST(checker_rejects_waits_in_a_circle)
{
    planted p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_MESSAGES, 4);
    ls__step *first = &p.programs[1]->steps[0];
    first->wait_lane = 1; /* the reduce waits for lane 0's result and is what lane 1 waits for */
    first->wait_step = (int32_t)(p.programs[1]->lane_start[2] - p.programs[1]->lane_start[1] - 1);
    expect(&p, "deadlock");
}

TEST(checker_rejects_two_ranks_that_both_receive_first)
{
    planted p = plant(LS__OP_BARRIER, "direct", LS__MEMORY_MESSAGES, 2);
    for (int r = 0; r < 2; r++) {
        const ls__step send = p.programs[r]->steps[0];
        p.programs[r]->steps[0] = p.programs[r]->steps[1];
        p.programs[r]->steps[1] = send;
    }
    expect(&p, "deadlock: no message comes from rank 1");
}

TEST(checker_rejects_messages_nobody_receives_or_sends)
{
    planted p = plant(LS__OP_BROADCAST, "direct", LS__MEMORY_MESSAGES, 3);
    p.programs[2]->lane_start[1] = 0;
    for (int lane = 1; lane <= LS__PROGRAM_LANES_MAX; lane++) {
        p.programs[2]->lane_start[lane] = 0;
    }
    expect(&p, "rank 2 ends with nothing in chunk 0");

    p = plant(LS__OP_BARRIER, "direct", LS__MEMORY_MESSAGES, 4);
    remove_step(&p, 3, step_of(&p, 3, LS__STEP_RECV, 1));
    expect(&p, "rank 3 leaves without knowing that rank");

    p = plant(LS__OP_ALL_GATHER, "direct", LS__MEMORY_MESSAGES, 3);
    remove_step(&p, 0, step_of(&p, 0, LS__STEP_SEND, 1));
    expect(&p, "no message comes from rank 0");
}

TEST(checker_rejects_a_missing_wait_between_lanes)
{
    planted p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_MESSAGES, 4);
    step_of(&p, 2, LS__STEP_REDUCE, 0)->wait_lane = -1;
    CHECK_STATUS(ls__program_check(p.programs, p.size, 1), LS_ERR_MISMATCH);
    free_all(p.programs, p.size);

    /* the result is sent on lane 1 before it stands */
    p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_MESSAGES, 4);
    for (int nth = 0; nth < 6; nth++) {
        ls__step *step = step_of(&p, 2, LS__STEP_SEND, nth);
        if (step->lane == 1) {
            step->wait_lane = -1;
        }
    }
    CHECK_STATUS(ls__program_check(p.programs, p.size, 1), LS_ERR_MISMATCH);
    free_all(p.programs, p.size);
}

TEST(checker_rejects_a_stage_slot_that_is_used_again_too_early)
{
    /* without any second fence a rank may write slot 0 in slice 2 only since it passed the fence of
     * slice 1; a program that stages *after* its fence has no such excuse */
    planted p = plant(LS__OP_BROADCAST, "one_shot", LS__MEMORY_STAGED, 3);
    ls__program *root = p.programs[0];
    int copy = 0, fence = 0;
    for (int s = 0; s < root->step_count; s++) {
        const ls__step *step = &root->steps[s];
        if (step->kind == LS__STEP_COPY && step->dst_count == 1 &&
            root->refs[step->first_dst].buffer == LS__BUFFER_STAGE) {
            copy = s;
        } else if (step->kind == LS__STEP_FENCE) {
            fence = s;
        }
    }
    const ls__step staged = root->steps[copy];
    root->steps[copy] = root->steps[fence];
    root->steps[fence] = staged;
    expect(&p, "stage[0].0");
}

TEST(checker_rejects_writing_to_an_input_that_is_only_read)
{
    planted p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_REGISTERED, 3);
    ls__step *step = step_of(&p, 0, LS__STEP_PEER_REDUCE, 0);
    dst_of(&p, 0, step, 1)->buffer = LS__BUFFER_INPUT;
    expect(&p, "read-only");
}

TEST(checker_rejects_a_race_between_fences)
{
    /* rank 0 also writes rank 1's chunk, which rank 1 combines at the same time */
    planted p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_REGISTERED, 3);
    ls__step *step = step_of(&p, 0, LS__STEP_PEER_REDUCE, 0);
    dst_of(&p, 0, step, 2)->chunk = 1;
    expect(&p, "race on output[2].1");
}

TEST(checker_rejects_memory_that_a_rank_cannot_see)
{
    planted p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_STAGED, 3);
    ls__step *step = step_of(&p, 0, LS__STEP_PEER_REDUCE, 0);
    src_of(&p, 0, step, 1)->buffer = LS__BUFFER_INPUT;
    expect(&p, "memory that it cannot access");

    p = plant(LS__OP_ALL_GATHER, "direct", LS__MEMORY_REGISTERED, 3);
    src_of(&p, 0, step_of(&p, 0, LS__STEP_PEER_COPY, 0), 0)->chunk = 0;
    expect(&p, "does not exist");
}

/* A ring with a rounded partial sum at every hop: right as a sum, but not the canonical one. */
static ls__program *ring(int rank, int size, bool exact)
{
    const ls__program_spec spec = {
        LS__OP_REDUCE_SCATTER, LS__MEMORY_MESSAGES, rank, size, 0, false, NULL};
    ls__builder *b = ls__builder_new(&spec, ls__env_posix(), "ring");
    ls__builder_chunks(b, size, size + 1); /* the last slot: what was received */
    const int16_t me = (int16_t)rank;
    for (int c = 0; c < size; c++) { /* a copy to work on: the input is read-only */
        (void)ls__builder_copy(b, 0, (ls__ref){LS__BUFFER_SCRATCH, me, c * size + c},
                               (ls__ref){LS__BUFFER_INPUT, me, c});
    }
    for (int k = 1; k < size; k++) {
        const int out = (rank - k + size) % size, in = (rank - k - 1 + 2 * size) % size;
        (void)ls__builder_send(b, 0, (ls__ref){LS__BUFFER_SCRATCH, me, out * size + out},
                               (rank + 1) % size);
        const ls__ref sum = {LS__BUFFER_SCRATCH, me, in * size + in},
                      received = {LS__BUFFER_SCRATCH, me, size * size + in};
        (void)ls__builder_recv(b, 0, received, (rank - 1 + size) % size);
        (void)ls__builder_reduce(b, 0, &sum, 1, (ls__ref[]){sum, received}, 2);
    }
    (void)ls__builder_copy(b, 0, (ls__ref){LS__BUFFER_OUTPUT, me, rank},
                           (ls__ref){LS__BUFFER_SCRATCH, me, rank * size + rank});
    ls__program *program = NULL;
    CHECK_OK(ls__builder_finish(b, exact, &program));
    return program;
}

TEST(checker_takes_a_ring_that_gives_up_the_canonical_order_and_no_ring_that_claims_it)
{
    for (int size = 2; size <= 9; size++) {
        ls__program *programs[RANKS_MAX];
        for (int r = 0; r < size; r++) {
            programs[r] = ring(r, size, false);
        }
        CHECK_OK(ls__program_check(programs, size, 1));
        ls__program_cost cost;
        ls__program_cost_count(programs[0], &cost);
        CHECK_INT(cost.steps, size - 1);
        CHECK_NEAR(cost.sent, (size - 1.0) / size, 1e-12);
        free_all(programs, size);
        for (int r = 0; r < size; r++) {
            programs[r] = ring(r, size, true);
        }
        CHECK_STATUS(ls__program_check(programs, size, 1), LS_ERR_MISMATCH);
        free_all(programs, size);
    }
}

/* ((0+1) stored) + 2 is the canonical tree of three, but rounded twice. */
TEST(checker_rejects_a_partial_sum_that_was_rounded)
{
    planted p = {.size = 3};
    for (int r = 0; r < 3; r++) {
        const ls__program_spec spec = {LS__OP_ALL_REDUCE, LS__MEMORY_STAGED, r, 3, 0, false, NULL};
        ls__builder *b = ls__builder_new(&spec, ls__env_posix(), "twice");
        ls__builder_chunks(b, 1, 1);
        const int16_t me = (int16_t)r;
        (void)ls__builder_copy(b, 0, (ls__ref){LS__BUFFER_STAGE, me, 0},
                               (ls__ref){LS__BUFFER_INPUT, me, 0});
        (void)ls__builder_fence(b, 0);
        const ls__ref scratch = {LS__BUFFER_SCRATCH, me, 0}, out = {LS__BUFFER_OUTPUT, me, 0};
        (void)ls__builder_reduce(
            b, 0, &scratch, 1, (ls__ref[]){{LS__BUFFER_STAGE, 0, 0}, {LS__BUFFER_STAGE, 1, 0}}, 2);
        (void)ls__builder_reduce(b, 0, &out, 1, (ls__ref[]){scratch, {LS__BUFFER_STAGE, 2, 0}}, 2);
        CHECK_OK(ls__builder_finish(b, true, &p.programs[r]));
    }
    expect(&p, "more than once");
}

/* ---- costs and text ----------------------------------------------------------------------- */

typedef struct closed_form {
    ls__operation operation;
    const char *name;
    ls__memory memory;
    int steps;
    double sent, received; /* times (n-1)/n */
    bool whole;            /* … or times n-1 */
} closed_form;

static const closed_form forms[] = {
    {LS__OP_ALL_REDUCE, "direct", LS__MEMORY_MESSAGES, 2, 2, 2, false},
    {LS__OP_ALL_REDUCE, "direct", LS__MEMORY_REGISTERED, 1, 1, 1, false},
    {LS__OP_ALL_REDUCE, "direct", LS__MEMORY_STAGED, 1, 1, 1, false},
    {LS__OP_ALL_REDUCE, "one_shot", LS__MEMORY_STAGED, 1, 0, 1, true},
    {LS__OP_REDUCE_SCATTER, "direct", LS__MEMORY_MESSAGES, 1, 1, 1, false},
    {LS__OP_REDUCE_SCATTER, "direct", LS__MEMORY_REGISTERED, 1, 0, 1, false},
    {LS__OP_REDUCE_SCATTER, "direct", LS__MEMORY_STAGED, 1, 0, 1, false},
    {LS__OP_ALL_GATHER, "direct", LS__MEMORY_MESSAGES, 1, 1, 1, false},
    {LS__OP_ALL_GATHER, "direct", LS__MEMORY_REGISTERED, 1, 0, 1, false},
    {LS__OP_ALL_GATHER, "direct", LS__MEMORY_STAGED, 1, 0, 1, false},
    {LS__OP_BROADCAST, "direct", LS__MEMORY_MESSAGES, 1, 1, 0, true},
    {LS__OP_BROADCAST, "direct", LS__MEMORY_REGISTERED, 1, 1, 0, false},
    {LS__OP_BARRIER, "direct", LS__MEMORY_REGISTERED, 0, 0, 0, false},
};

TEST(counted_costs_equal_their_closed_forms)
{
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        for (int size = 2; size <= 17; size++) {
            ls__program *programs[RANKS_MAX];
            CHECK(generate(find(forms[f].operation, forms[f].name), forms[f].memory, size, 0,
                           programs));
            ls__program_cost cost;
            ls__program_cost_count(programs[0], &cost);
            const double unit = forms[f].whole ? size - 1.0 : (size - 1.0) / size;
            CHECK_INT(cost.steps, forms[f].steps);
            CHECK_NEAR(cost.sent, forms[f].sent * unit, 1e-12);
            CHECK_NEAR(cost.received, forms[f].received * unit, 1e-12);
            free_all(programs, size);
        }
    }
}

TEST(programs_print_one_step_a_line)
{
    char text[4096];
    planted p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_REGISTERED, 3);
    CHECK_OK(ls__program_print(p.programs[2], text, sizeof text));
    CHECK_CONTAINS(text, "direct all_reduce: rank 2 of 3, 3 chunks, 3 steps\n");
    CHECK_CONTAINS(text, "lane 0: fence 0\n"
                         "lane 0: peer_reduce output[*].2 = input[0].2 + input[1].2 + input[2].2\n"
                         "lane 0: fence 1\n");
    CHECK_STATUS(ls__program_print(p.programs[2], text, 20), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "the program's text has %zu bytes, room is for %zu");
    free_all(p.programs, 3);
    p = plant(LS__OP_ALL_REDUCE, "direct", LS__MEMORY_MESSAGES, 2);
    CHECK_OK(ls__program_print(p.programs[0], text, sizeof text));
    CHECK_CONTAINS(text, "lane 0: send input[0].1 to 1\n");
    CHECK_CONTAINS(text, "lane 1: recv scratch[0].1 from 1\n");
    CHECK_CONTAINS(text, "(after lane 1 step 0)\n");
    CHECK_SAYS(text, " (after lane %d step %d)");
    free_all(p.programs, 2);
}

/* What an algorithm says of memory for which it has no program. */
static const char *refusal_of(ls__operation operation, const char *name, bool in_place)
{
    const ls__algorithm *algorithm = ls__algorithm_find(operation, name);
    const ls__program_spec spec = {operation, LS__MEMORY_REGISTERED, 0, 2, 0, in_place, NULL};
    ls__program *program = NULL;
    CHECK(algorithm != NULL);
    CHECK_STATUS(algorithm->generate(&spec, ls__env_posix(), &program), LS_ERR_UNSUPPORTED);
    CHECK(program == NULL);
    return ls_error_message();
}

TEST(algorithms_refuse_memory_for_which_they_have_no_program)
{
    CHECK_SAYS(refusal_of(LS__OP_ALL_GATHER, "one_shot", false),
               "all_gather one_shot runs through staged memory only");
    CHECK_SAYS(refusal_of(LS__OP_ALL_REDUCE, "one_shot", false),
               "all_reduce one_shot runs through staged memory only");
    CHECK_SAYS(refusal_of(LS__OP_BROADCAST, "one_shot", false),
               "broadcast one_shot runs through staged memory only");
    CHECK_SAYS(refusal_of(LS__OP_REDUCE, "one_shot", false),
               "reduce one_shot runs through staged memory only");
    CHECK_SAYS(refusal_of(LS__OP_ALL_TO_ALL, "direct", true), "all_to_all in place is staged");
    CHECK_SAYS(refusal_of(LS__OP_SCAN, "direct", true), "%s in place is staged");
}

static void *no_memory(const ls__env *env, size_t bytes)
{
    (void)env;
    (void)bytes;
    return NULL;
}

TEST(programs_of_too_many_steps_are_not_counted)
{
    enum { SIZE = 200 };
    static ls__program *programs[SIZE];
    static ls__program_totals totals;
    const ls__algorithm *ring = ls__algorithm_find(LS__OP_ALL_REDUCE, "ring");
    for (int r = 0; r < SIZE; r++) {
        const ls__program_spec spec = {
            LS__OP_ALL_REDUCE, LS__MEMORY_MESSAGES, r, SIZE, 0, false, NULL};
        CHECK_OK(ring->generate(&spec, ls__env_posix(), &programs[r]));
    }
    CHECK_STATUS(ls__programs_count(programs, SIZE, &totals), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "%s %s of %d ranks has %d steps; at most %d are counted");
    ls__env poor = *ls__env_posix();
    poor.allocate = no_memory;
    programs[0]->env = &poor;
    CHECK_STATUS(ls__programs_count(programs, SIZE, &totals), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), "no memory to count a program of %d ranks");
    for (int r = 0; r < SIZE; r++) {
        ls__program_free(programs[r]);
    }
}

/* ---- the builder -------------------------------------------------------------------------- */

static const ls__program_spec pair = {LS__OP_ALL_REDUCE, LS__MEMORY_MESSAGES, 0, 2, 0, false, NULL};
static const ls__ref own = {LS__BUFFER_INPUT, 0, 0}, remote = {LS__BUFFER_INPUT, 1, 0};

/* What finishing says of the mistake of a builder, whose program there is none of. */
static const char *mistake_of(ls__builder *b, ls_status want)
{
    ls__program *program = NULL;
    CHECK_STATUS(ls__builder_finish(b, true, &program), want);
    CHECK(program == NULL);
    return ls_error_message();
}

static ls__builder *wrong(void)
{
    return ls__builder_new(&pair, ls__env_posix(), "wrong");
}

TEST(builder_keeps_the_first_mistake_until_the_end)
{
    ls__builder *b = wrong();
    (void)ls__builder_send(b, 0, own, 0);
    (void)ls__builder_copy(b, 0, own, remote);
    CHECK_SAYS(mistake_of(b, LS_ERR_INTERNAL), "rank %d of %d exchanges a message with rank %d");
}

TEST(builder_names_refs_to_what_a_step_may_not_touch)
{
    ls__builder *b = wrong();
    (void)ls__builder_copy(b, 0, own, remote);
    CHECK_SAYS(mistake_of(b, LS_ERR_INTERNAL), "a step of rank %d names memory of rank %d");
    b = wrong();
    (void)ls__builder_copy(b, 0, own, (ls__ref){LS__BUFFER_INPUT, 0, 1});
    CHECK_SAYS(mistake_of(b, LS_ERR_INTERNAL), "a ref names chunk %d of %lld");
    b = wrong();
    (void)ls__builder_copy(b, 0, own, (ls__ref){LS__BUFFER_INPUT, 2, 0});
    CHECK_SAYS(mistake_of(b, LS_ERR_INTERNAL), "a ref names buffer %d of rank %d of %d");
    b = wrong();
    (void)ls__builder_peer_copy(b, 0, own, own);
    CHECK_SAYS(mistake_of(b, LS_ERR_INTERNAL), "peer_copy of rank %d names memory of no peer");
    b = wrong();
    (void)ls__builder_reduce(b, 0, &own, 1, NULL, 0);
    CHECK_SAYS(mistake_of(b, LS_ERR_INTERNAL), "reduce of %d operands to %d places");
}

TEST(builder_names_waits_for_steps_that_are_not_there)
{
    ls__builder *b = wrong();
    (void)ls__builder_copy(b, 0, own, own);
    ls__builder_after(b, 0, 1, 0);
    CHECK_SAYS(mistake_of(b, LS_ERR_INTERNAL),
               "lane %d waits for step %d of lane %d, which has %d");
    b = wrong();
    (void)ls__builder_copy(b, 0, own, own);
    ls__builder_after(b, 0, 0, 0);
    CHECK_SAYS(mistake_of(b, LS_ERR_INTERNAL), "lane %d cannot wait for step %d of lane %d");
    b = wrong(); /* the last step of a lane may be waited for */
    ls__program *program = NULL;
    (void)ls__builder_copy(b, 1, own, own);
    (void)ls__builder_copy(b, 0, own, own);
    ls__builder_after(b, 0, 1, 0);
    CHECK_OK(ls__builder_finish(b, true, &program));
    ls__program_free(program);
}

TEST(builder_names_sizes_that_no_program_has)
{
    const ls__program_spec outside = {LS__OP_ALL_REDUCE, LS__MEMORY_MESSAGES, 2, 2, 0, false, NULL};
    ls__builder *b = ls__builder_new(&outside, ls__env_posix(), "wrong");
    CHECK_SAYS(mistake_of(b, LS_ERR_INVALID),
               "rank %d and root %d of %d ranks: at most %d ranks, counted from 0");
    b = wrong();
    ls__builder_chunks(b, 0, 0);
    CHECK_SAYS(mistake_of(b, LS_ERR_INVALID), "%d chunks and %d scratch slots");
}

TEST_MAIN

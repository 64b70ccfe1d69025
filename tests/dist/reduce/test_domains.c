/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that are summed over one group and divided by another's size, against a plain twin:
 * every rank knows what every other rank's gradients were and adds them up by itself in float64.
 *
 *     ranks 0 1 2 3 (4 5 6 7)      rows 01 23 (45 67)      columns 02(46) 13(57): one expert each
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/reducer.h>

#include "comm/core/round_robin.h"
#include "number.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "says.h"
#include "test.h"

enum { DENSE, NORM, EXPERT, GATE, TIED, BIAS, PARAMS };
static const int64_t COUNTS[PARAMS] = {3000, 65, 1000, 7, 20000, 5};

typedef struct mesh {
    ls_group *column;
    ls_reducer *reducer;
    ls_reducer_param params[PARAMS];
    char names[PARAMS][16];
} mesh;

static int column_of(int rank)
{
    return rank % 2;
}

static bool in_column(int i)
{
    return i == EXPERT || i == GATE || i == TIED;
}

/* What is added up on `rank` for parameter i: over its column or over the world. */
static bool adds(int i, int rank)
{
    return !in_column(i) || column_of(rank) == column_of(ls_rank());
}

static void describe(mesh *m)
{
    static const char *const names[PARAMS] = {"dense", "norm", "expert", "gate", "tied", "bias"};
    memset(m, 0, sizeof *m);
    CHECK_OK(ls_group_split(ls_world(), column_of(ls_rank()), ls_rank(), "column", &m->column));
    for (int i = 0; i < PARAMS; i++) {
        snprintf(m->names[i], sizeof m->names[i], in_column(i) ? "%s%d" : "%s", names[i],
                 column_of(ls_rank()));
        m->params[i] = (ls_reducer_param){.name = m->names[i],
                                          .count = COUNTS[i],
                                          .dtype = LS_FLOAT32,
                                          .reduce_group = in_column(i) ? m->column : NULL};
    }
    m->params[NORM].batch_group = m->column;
    m->params[GATE].divisor = 3;
    m->params[TIED].batch_group = m->column;
}

static void open_mesh(mesh *m, size_t bucket_bytes)
{
    describe(m);
    CHECK_OK(ls_reducer_new(ls_world(), m->params, PARAMS,
                            LS_OPTIONS(ls_reducer_options, .bucket_bytes = bucket_bytes),
                            &m->reducer));
}

static void close_mesh(mesh *m)
{
    CHECK_OK(ls_reducer_free(m->reducer));
    CHECK_OK(ls_group_free(m->column));
}

static double divisor_of(int i)
{
    return i == GATE ? 3.0 : i == NORM || i == TIED ? ls_world_size() / 2.0 : ls_world_size();
}

static float number(int rank, int round, int i, int64_t k)
{
    return test_number((uint64_t)rank + 1, (uint64_t)(round * PARAMS + i), (uint64_t)k);
}

/* One backward of the parameters that `used` says (NULL: all), each rank in an order of its own. */
static void run(mesh *m, int round, const uint8_t *used, double weight)
{
    CHECK_OK(ls_reducer_begin(m->reducer, LS_OPTIONS(ls_reducer_begin_options, .used = used,
                                                     .weighted = weight > 0, .weight = weight)));
    for (int p = 0; p < PARAMS; p++) {
        const int i = (p * 5 + ls_rank() + round) % PARAMS;
        float *grad = m->params[i].grad;
        for (int64_t k = 0; k < COUNTS[i] && (used == NULL || used[i]); k++) {
            grad[k] += number(ls_rank(), round, i, k);
        }
        if (used == NULL || used[i]) {
            CHECK_OK(ls_reducer_ready(m->reducer, i, NULL));
        }
    }
    CHECK_OK(ls_reducer_wait(m->reducer));
}

/* Parameter i holds the sums of rounds first … last over `divisor`. */
static void check_sum(const mesh *m, int i, int first, int last, double divisor)
{
    const float *grad = m->params[i].grad;
    for (int64_t k = 0; k < COUNTS[i]; k++) {
        double want = 0;
        for (int round = first; round <= last; round++) {
            for (int rank = 0; rank < ls_world_size(); rank++) {
                want += adds(i, rank) ? (double)number(rank, round, i, k) : 0.0;
            }
        }
        want /= divisor;
        if (!(fabs((double)grad[k] - want) <= 2e-6 * (1.0 + fabs(want)))) {
            test_fail(__FILE__, __LINE__, "%s[%lld] is %.9g, want %.9g", m->names[i], (long long)k,
                      (double)grad[k], want);
        }
    }
}

static void two_groups_and_three_divisors(void)
{
    for (size_t bytes = 0; bytes <= 80000; bytes += 20000) {
        mesh m;
        open_mesh(&m, bytes);
        for (int round = 0; round < 6; round++) {
            run(&m, round, NULL, 0);
            for (int i = 0; i < PARAMS; i++) { /* odd rounds add to the even ones before */
                check_sum(&m, i, round - round % 2, round, divisor_of(i));
            }
            if (round % 2 == 1) {
                CHECK_OK(ls_reducer_zero(m.reducer));
            }
        }
        close_mesh(&m);
    }
}

DIST_TEST(sums_over_two_groups_have_three_divisors_on_4_ranks, 4)
{
    two_groups_and_three_divisors();
}

DIST_TEST(sums_over_two_groups_have_three_divisors_on_8_ranks, 8)
{
    two_groups_and_three_divisors();
}

/* Ranks of a row have the same batch, so both columns have the same weights. */
DIST_TEST(weights_are_added_over_the_batch_group, 4)
{
    mesh m;
    open_mesh(&m, 4096);
    const double weight = 1 + ls_rank() / 2;
    run(&m, 0, NULL, weight);
    for (int i = 0; i < PARAMS; i++) { /* column: 1 + 2, world: 1 + 1 + 2 + 2 */
        check_sum(&m, i, 0, 0, i == GATE ? 3 : i == NORM || i == TIED ? 3 : 6);
    }
    close_mesh(&m);
}

/* Only the first column uses its expert, and nobody uses the norm. */
DIST_TEST(a_group_learns_of_its_own_unused_parameters, 4)
{
    mesh m;
    open_mesh(&m, 4096);
    uint8_t used[PARAMS] = {1, 0, column_of(ls_rank()) == 0, 1, 1, 1};
    run(&m, 0, used, 0);
    for (int i = 0; i < PARAMS; i++) {
        CHECK(ls_reducer_used(m.reducer, i) == (used[i] != 0));
        if (used[i]) {
            check_sum(&m, i, 0, 0, divisor_of(i));
        }
    }
    close_mesh(&m);
}

/* ---- the layout --------------------------------------------------------------------------- */

static void save(void *arg, int param, void *memory)
{
    mesh *m = arg;
    memcpy(memory, m->params[param].grad, (size_t)COUNTS[param] * sizeof(float));
    m->params[param].grad = memory;
}

DIST_TEST(the_observed_order_is_that_of_each_groups_first_rank, 4)
{
    mesh m;
    open_mesh(&m, 4096);
    run(&m, 0, NULL, 0);
    CHECK_OK(ls__reducer_replan(m.reducer, save, &m));
    for (int i = 0; i < PARAMS; i++) {
        check_sum(&m, i, 0, 0, divisor_of(i));
    }
    CHECK_OK(ls_reducer_zero(m.reducer));
    run(&m, 1, NULL, 0);
    for (int i = 0; i < PARAMS; i++) {
        check_sum(&m, i, 1, 1, divisor_of(i));
    }
    close_mesh(&m);
}

/* Sums do not depend on the size; every bucket can be divided evenly among its ranks. */
DIST_TEST(buckets_of_all_sizes_have_the_same_sums, 4)
{
    static const size_t caps[] = {0, 1 << 20, 5000, LS_BUCKET_BYTES_AUTO};
    int counts[4];
    for (int c = 0; c < 4; c++) {
        mesh m;
        ls_reducer_stats stats = {.size = sizeof stats};
        open_mesh(&m, caps[c]);
        run(&m, c, NULL, 0);
        for (int i = 0; i < PARAMS; i++) {
            check_sum(&m, i, c, c, divisor_of(i));
        }
        CHECK_OK(ls_reducer_get_stats(m.reducer, &stats));
        counts[c] = stats.buckets;
        for (int r = 0; r < ls__reducer_regions(m.reducer); r++) {
            const size_t ranks = (size_t)ls_group_size(ls__reducer_region_group(m.reducer, r));
            CHECK(ls__reducer_region_bytes(m.reducer, r) % (64 * ranks) == 0);
        }
        close_mesh(&m);
    }
    CHECK(counts[0] > counts[1] && counts[1] == 5 && counts[2] > counts[1] && counts[3] == 5);
}

DIST_TEST(buckets_are_those_of_the_callers_map, 2)
{
    ls_reducer_param params[4];
    float *grads[4];
    ls_reducer *reducer = NULL;
    for (int i = 0; i < 4; i++) { /* 0 and 3 together, however large */
        params[i] = (ls_reducer_param){.name = (const char *[]){"a", "b", "c", "d"}[i],
                                       .count = 5000,
                                       .dtype = LS_FLOAT32,
                                       .bucket = (int[]){2, 1, 3, 2}[i]};
    }
    CHECK_OK(ls_reducer_new(ls_world(), params, 4,
                            LS_OPTIONS(ls_reducer_options, .bucket_bytes = 100), &reducer));
    ls_reducer_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_reducer_get_stats(reducer, &stats));
    CHECK(stats.buckets == 3);
    const size_t a = ls__reducer_place(reducer, 0).offset, d = ls__reducer_place(reducer, 3).offset;
    CHECK((a > d ? a - d : d - a) <= 5000 * sizeof(float) + 128); /* neighbours */
    CHECK_OK(ls_reducer_begin(reducer, NULL));
    for (int i = 0; i < 4; i++) {
        grads[i] = params[i].grad;
        grads[i][4999] = (float)(i + 10 * ls_rank());
        CHECK_OK(ls_reducer_ready(reducer, i, NULL));
    }
    CHECK_OK(ls_reducer_wait(reducer));
    for (int i = 0; i < 4; i++) {
        CHECK_NEAR(grads[i][4999], (float)i + 5, 0);
    }
    CHECK_OK(ls_reducer_free(reducer));
}

/* Collectives in turn over three groups, as in section 3.3 of the paper. */
DIST_TEST(a_round_robin_group_keeps_its_turns, 4)
{
    ls_group *groups[3] = {NULL}, *turns = NULL;
    ls_reducer *reducer = NULL;
    ls_reducer_param params[9];
    char names[9][4];
    for (int g = 0; g < 3; g++) {
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &groups[g]));
    }
    CHECK_OK(ls_group_round_robin(groups, 3, "turns", &turns));
    for (int i = 0; i < 9; i++) {
        snprintf(names[i], sizeof names[i], "p%d", i);
        params[i] = (ls_reducer_param){.name = names[i], .count = 100, .dtype = LS_FLOAT32};
    }
    CHECK_OK(ls_reducer_new(turns, params, 9, LS_OPTIONS(ls_reducer_options, .bucket_bytes = 0),
                            &reducer));
    CHECK(ls__round_robin_count(ls__reducer_group(reducer)) == 3);
    for (int round = 0; round < 4; round++) {
        CHECK_OK(ls_reducer_begin(reducer, NULL));
        for (int i = 0; i < 9; i++) {
            *(float *)params[i].grad = (float)(ls_rank() + i + round);
            CHECK_OK(ls_reducer_ready(reducer, i, NULL));
        }
        CHECK_OK(ls_reducer_wait(reducer));
        for (int i = 0; i < 9; i++) {
            CHECK_NEAR(*(float *)params[i].grad, 1.5 + i + round, 0);
        }
        CHECK_OK(ls_reducer_zero(reducer));
    }
    for (int g = 0; g < 3; g++) { /* 40 operations in turn */
        ls_counters counters = {.size = sizeof counters};
        CHECK_OK(
            ls_group_get_counters(ls__round_robin_at(ls__reducer_group(reducer), g), &counters));
        CHECK(counters.operations >= 12);
    }
    CHECK_OK(ls_reducer_free(reducer));
    CHECK_OK(ls_group_free(turns));
    for (int g = 0; g < 3; g++) {
        CHECK_OK(ls_group_free(groups[g]));
    }
}

/* Whether all buckets were launched after the last gradient was ready. */
static bool is_held(const mesh *m)
{
    double ready = 0, launched = 1e9;
    for (int i = 0; i < PARAMS; i++) {
        ls_reducer_event event = {.size = sizeof event};
        CHECK_OK(ls_reducer_get_event(m->reducer, i, &event));
        ready = event.ready > ready ? event.ready : ready;
        launched = event.launched < launched ? event.launched : launched;
    }
    return launched >= ready;
}

/* The mode decides on the pieces and on the moment, not on the sums. */
DIST_TEST(modes_have_the_same_bits, 4)
{
    static const int buckets[] = {6, 6, 5, PARAMS};
    static const ls_reduce_mode modes[] = {LS_REDUCE_OVERLAP, LS_REDUCE_BUCKETED, LS_REDUCE_FLAT,
                                           LS_REDUCE_NAIVE};
    static float first[20000];
    for (int k = 0; k < 4; k++) {
        mesh m;
        ls_reducer_stats stats = {.size = sizeof stats};
        describe(&m);
        CHECK_OK(ls_reducer_new(
            ls_world(), m.params, PARAMS,
            LS_OPTIONS(ls_reducer_options, .bucket_bytes = 4096, .mode = modes[k]), &m.reducer));
        CHECK_OK(ls_reducer_get_stats(m.reducer, &stats));
        CHECK_INT(stats.buckets, buckets[k]);
        CHECK_OK(ls_reducer_begin(m.reducer, NULL));
        for (int i = 0; i < PARAMS; i++) {
            float *grad = m.params[i].grad;
            for (int64_t e = 0; e < COUNTS[i]; e++) {
                grad[e] = number(ls_rank(), 0, i, e);
            }
            CHECK_OK(ls_reducer_ready(m.reducer, i, NULL));
        }
        CHECK_OK(ls_reducer_wait(m.reducer));
        CHECK(modes[k] == LS_REDUCE_OVERLAP || is_held(&m));
        const size_t bytes = (size_t)COUNTS[TIED] * sizeof(float);
        if (k == 0) {
            memcpy(first, m.params[TIED].grad, bytes);
        }
        CHECK(memcmp(first, m.params[TIED].grad, bytes) == 0);
        for (int i = 0; i < PARAMS; i++) {
            check_sum(&m, i, 0, 0, divisor_of(i));
        }
        close_mesh(&m);
    }
}

/* ---- mistakes ----------------------------------------------------------------------------- */

DIST_TEST(a_difference_in_one_column_is_named_on_all_ranks, 4)
{
    mesh m;
    describe(&m);
    m.params[EXPERT].count += ls_rank() == 2;
    CHECK_STATUS(ls_reducer_new(ls_world(), m.params, PARAMS, NULL, &m.reducer), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "rank 0 has expert0 float32[1000]");
    CHECK_CONTAINS(ls_error_message(), "rank 2 has expert0 float32[1001]");
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* the caller's groups are usable */
    CHECK_OK(ls_group_free(m.column));
}

DIST_TEST(different_divisors_are_a_difference, 4)
{
    mesh m;
    describe(&m);
    m.params[GATE].divisor = ls_rank() == 3 ? 4 : 3;
    CHECK_STATUS(ls_reducer_new(ls_world(), m.params, PARAMS, NULL, &m.reducer), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "rank 1 has gate1 float32[7], divided by 3 ");
    CHECK_SAYS(ls_error_message(), ", divided by %.9g");
    CHECK_OK(ls_group_free(m.column));
}

/* Rank 3 divides the norm by all ranks and puts the last parameter into a bucket of its own. */
DIST_TEST(other_batch_groups_and_buckets_are_a_difference, 4)
{
    mesh m;
    describe(&m);
    m.params[NORM].batch_group = ls_rank() == 3 ? NULL : m.column;
    CHECK_STATUS(ls_reducer_new(ls_world(), m.params, PARAMS, NULL, &m.reducer), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "rank 0 has norm float32[65], divided by 2 ranks (3 ");
    CHECK_CONTAINS(ls_error_message(), "rank 3 has norm float32[65] (3 ");
    CHECK_SAYS(ls_error_message(), ", divided by %d ranks");
    CHECK_OK(ls_group_free(m.column));
    ls_reducer_param param = {
        .name = "p", .count = 1, .dtype = LS_FLOAT32, .bucket = ls_rank() == 3};
    CHECK_STATUS(ls_reducer_new(ls_world(), &param, 1, NULL, &m.reducer), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "rank 3 has p float32[1], in bucket 1 ");
    CHECK_SAYS(ls_error_message(), ", in bucket %d");
}

/* The sums of the columns' weights differ, so the norm, which both share, has no one divisor. */
DIST_TEST(weights_that_differ_between_columns_are_a_mismatch, 4)
{
    mesh m;
    open_mesh(&m, 4096);
    CHECK_OK(ls_reducer_begin(m.reducer, LS_OPTIONS(ls_reducer_begin_options, .weighted = true,
                                                    .weight = 1 + ls_rank())));
    for (int i = 0; i < PARAMS; i++) {
        CHECK_OK(ls_reducer_ready(m.reducer, i, NULL));
    }
    CHECK_STATUS(ls_reducer_wait(m.reducer), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "divided by 4");
    CHECK_CONTAINS(ls_error_message(), "divided by 6");
    CHECK_CONTAINS(ls_error_message(), "norm");
    (void)ls_reducer_free(m.reducer); /* tells of the failure once more */
    CHECK_OK(ls_group_free(m.column));
}

/* Whether a reducer with the second parameter like this is refused; says so. */
static const char *refusal(ls_group *group, ls_reducer_param param)
{
    ls_reducer_param params[2] = {{.name = "first", .count = 4, .dtype = LS_FLOAT32}, param};
    ls_reducer *reducer = NULL;
    params[1].name = "second";
    params[1].count = 4;
    CHECK_STATUS(ls_reducer_new(group, params, 2, NULL, &reducer), LS_ERR_INVALID);
    CHECK(reducer == NULL);
    return ls_error_message();
}

DIST_TEST(impossible_groups_divisors_and_buckets_are_refused, 4)
{
    ls_group *column = NULL, *const world = ls_world();
    CHECK_OK(ls_group_split(world, column_of(ls_rank()), ls_rank(), "column", &column));
    const char *said = refusal(column, (ls_reducer_param){.reduce_group = world});
    CHECK_SAYS(said,
               "reducer \"%s\": parameter %s has the group \"%s\", whose rank %d (rank %d of the "
               "world) is not in the reducer's group; make the reducer over a group that has all "
               "ranks of the parameters' groups");
    said = refusal(column, (ls_reducer_param){.batch_group = world});
    CHECK_CONTAINS(said, "is not in the reducer's group");
    said = refusal(world, (ls_reducer_param){.divisor = -1});
    CHECK_SAYS(said,
               "reducer \"%s\": parameter %s has the divisor %g; give a positive number, or 0 for "
               "that of its batch group");
    said = refusal(world, (ls_reducer_param){.divisor = (double)NAN});
    CHECK_CONTAINS(said, "divisor nan");
    said = refusal(world, (ls_reducer_param){.bucket = 3});
    CHECK_SAYS(said,
               "reducer \"%s\": parameter %s is in bucket %d; number buckets from 1 to at most %d, "
               "or give 0 for all parameters and let Lockstep choose");
    said = refusal(world, (ls_reducer_param){.bucket = 1});
    CHECK_SAYS(said,
               "reducer \"%s\": parameter %s is in bucket %d and parameter %s in bucket %d (0: "
               "Lockstep chooses); give buckets for all parameters or for none");
    CHECK_OK(ls_group_free(column));
    ls_reducer *reducer = NULL;
    ls_reducer_param param = {.name = "p", .count = 1, .dtype = LS_FLOAT32};
    CHECK_STATUS(ls_reducer_new(world, &param, 1,
                                LS_OPTIONS(ls_reducer_options, .mode = (ls_reduce_mode)4),
                                &reducer),
                 LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_reducer_new: mode is %d; give one of LS_REDUCE_OVERLAP, LS_REDUCE_BUCKETED, "
               "LS_REDUCE_FLAT and LS_REDUCE_NAIVE");
}

/* A reducer keeps a table of its groups. */
DIST_TEST(more_groups_than_a_reducer_can_have_are_refused, 2)
{
    enum { GROUPS = 64 };
    ls_group *groups[GROUPS];
    ls_reducer_param params[GROUPS];
    ls_reducer *reducer = NULL;
    for (int i = 0; i < GROUPS; i++) {
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &groups[i]));
        params[i] = (ls_reducer_param){
            .name = "p", .count = 1, .dtype = LS_FLOAT32, .reduce_group = groups[i]};
    }
    CHECK_STATUS(ls_reducer_new(ls_world(), params, GROUPS, NULL, &reducer), LS_ERR_LIMIT);
    CHECK_SAYS(
        ls_error_message(),
        "reducer \"%s\": parameter %s has one more group than the %d that a reducer can have; "
        "give parameters that are reduced alike the same ls_group");
    for (int i = 0; i < GROUPS; i++) {
        CHECK_OK(ls_group_free(groups[i]));
    }
}

/* The caller's own memory, set aside, in a bucket that no rank uses afterwards. */
DIST_TEST(an_average_in_the_callers_memory_outlives_a_backward_without_it, 2)
{
    float first[3] = {0}, second[100] = {0};
    ls_reducer *reducer = NULL;
    ls_reducer_param params[2] = {
        {.name = "first", .count = 3, .dtype = LS_FLOAT32, .grad = first},
        {.name = "second", .count = 100, .dtype = LS_FLOAT32, .grad = second}};
    CHECK_OK(ls_reducer_new(ls_world(), params, 2,
                            LS_OPTIONS(ls_reducer_options, .bucket_bytes = 0), &reducer));
    for (int backward = 0; backward < 2; backward++) {
        const uint8_t used[2] = {backward == 0, 1};
        CHECK_OK(ls_reducer_begin(reducer, LS_OPTIONS(ls_reducer_begin_options, .used = used)));
        for (int i = backward; i < 2; i++) {
            *(float *)params[i].grad += (float)ls_rank() + 1;
            CHECK_OK(ls_reducer_ready(reducer, i, NULL));
        }
        CHECK_OK(ls_reducer_wait(reducer));
    }
    CHECK_NEAR(first[0], 1.5, 0);
    CHECK_NEAR(second[0], 3.0, 0);
    CHECK_OK(ls_reducer_free(reducer));
}

TEST_MAIN

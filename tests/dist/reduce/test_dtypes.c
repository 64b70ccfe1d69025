/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of every float type in one reducer, in the bucket's memory and in the caller's, against
 * sums in float64. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/random.h>
#include <lockstep/reducer.h>

#include "base/half.h"
#include "says.h"
#include "test.h"

enum { PARAMS = 9 };

/* In turns of type, so that buckets of several are open at once; odd sizes, and none. */
static const struct {
    ls_dtype dtype;
    int64_t count;
    bool own; /* the caller's memory */
} KINDS[PARAMS] = {
    {LS_FLOAT32, 1001, false}, {LS_BFLOAT16, 333, false}, {LS_FLOAT64, 77, true},
    {LS_FLOAT16, 1, false},    {LS_FLOAT32, 3, true},     {LS_BFLOAT16, 2049, true},
    {LS_FLOAT64, 1023, false}, {LS_FLOAT16, 511, true},   {LS_BFLOAT16, 0, false},
};

typedef struct job {
    ls_reducer *reducer;
    ls_reducer_param params[PARAMS];
    char names[PARAMS][16];
} job;

static double get(ls_dtype dtype, const void *at, int64_t k)
{
    switch (dtype) {
    case LS_FLOAT64:
        return ((const double *)at)[k];
    case LS_FLOAT16:
        return (double)ls__float16_widen(((const uint16_t *)at)[k]);
    case LS_BFLOAT16:
        return (double)ls__bfloat16_widen(((const uint16_t *)at)[k]);
    default:
        return (double)((const float *)at)[k];
    }
}

static void put(ls_dtype dtype, void *at, int64_t k, double value)
{
    switch (dtype) {
    case LS_FLOAT64:
        ((double *)at)[k] = value;
        return;
    case LS_FLOAT16:
        ((uint16_t *)at)[k] = ls__float16_round((float)value);
        return;
    case LS_BFLOAT16:
        ((uint16_t *)at)[k] = ls__bfloat16_round((float)value);
        return;
    default:
        ((float *)at)[k] = (float)value;
    }
}

/* How far one rounding, and a sum in float32 before it, may be off. */
static double tolerance(ls_dtype dtype)
{
    return dtype == LS_FLOAT64   ? 1e-14
           : dtype == LS_FLOAT32 ? 2e-6
           : dtype == LS_FLOAT16 ? ldexp(1.01, -11)
                                 : ldexp(1.01, -8);
}

/* Element k of gradient i on `rank`, as its type holds it. */
static double number(int rank, int round, int i, int64_t k)
{
    char room[8];
    const uint64_t stream = (uint64_t)(round * PARAMS + i);
    put(KINDS[i].dtype, room, 0,
        (double)ls_random_normal((uint64_t)rank + 1, stream, (uint64_t)k) + 0.25);
    return get(KINDS[i].dtype, room, 0);
}

static void job_new(job *j, int64_t bucket_bytes)
{
    memset(j, 0, sizeof *j);
    for (int i = 0; i < PARAMS; i++) {
        (void)snprintf(j->names[i], sizeof j->names[i], "p%d", i);
        j->params[i] = (ls_reducer_param){
            .name = j->names[i], .count = KINDS[i].count, .dtype = KINDS[i].dtype};
        if (KINDS[i].own) {
            j->params[i].grad = calloc((size_t)KINDS[i].count, ls_dtype_size(KINDS[i].dtype));
            CHECK(j->params[i].grad != NULL);
        }
    }
    CHECK_OK(ls_reducer_new(ls_world(), j->params, PARAMS,
                            LS_OPTIONS(ls_reducer_options, .bucket_bytes = (size_t)bucket_bytes,
                                       .first_bucket_bytes = (size_t)bucket_bytes / 2),
                            &j->reducer));
}

static void job_free(job *j)
{
    CHECK_OK(ls_reducer_free(j->reducer));
    for (int i = 0; i < PARAMS; i++) {
        if (KINDS[i].own) {
            free(j->params[i].grad);
        }
    }
}

/* A backward whose gradients become ready in another order on each rank. */
static void run_backward(job *j, int round, const ls_reducer_begin_options *options)
{
    CHECK_OK(ls_reducer_begin(j->reducer, options));
    for (int p = 0; p < PARAMS; p++) {
        const int i = (p * 4 + ls_rank() + round) % PARAMS;
        for (int64_t k = 0; k < KINDS[i].count; k++) {
            put(KINDS[i].dtype, j->params[i].grad, k, number(ls_rank(), round, i, k));
        }
        CHECK_OK(ls_reducer_ready(j->reducer, i, NULL));
    }
    CHECK_OK(ls_reducer_wait(j->reducer));
}

static void check_mean(const job *j, int round, double divisor)
{
    for (int i = 0; i < PARAMS; i++) {
        for (int64_t k = 0; k < KINDS[i].count; k++) {
            const double got = get(KINDS[i].dtype, j->params[i].grad, k);
            double want = 0.0, size = 0.0;
            for (int rank = 0; rank < ls_world_size(); rank++) {
                want += number(rank, round, i, k) / divisor;
                size += fabs(number(rank, round, i, k) / divisor);
            }
            const double sums = KINDS[i].dtype == LS_FLOAT64 ? 1e-14 : 1e-6;
            if (!(fabs(got - want) <= tolerance(KINDS[i].dtype) * fabs(want) + sums * size)) {
                test_fail(__FILE__, __LINE__, "p%d[%lld] is %.9g, want %.9g", i, (long long)k, got,
                          want);
            }
        }
    }
}

DIST_TESTS(gradients_of_every_float_type_are_averaged_over_, _ranks, 1, 2, 3, 4)
{
    for (int64_t bucket_bytes = 0; bucket_bytes < 20000; bucket_bytes += 4500) {
        job j;
        job_new(&j, bucket_bytes);
        for (int round = 0; round < 3; round++) {
            run_backward(&j, round, NULL);
            check_mean(&j, round, ls_world_size());
            CHECK_OK(ls_reducer_zero(j.reducer));
        }
        const double weight = 3.0; /* of each rank */
        run_backward(&j, 3,
                     LS_OPTIONS(ls_reducer_begin_options, .weighted = true, .weight = weight));
        check_mean(&j, 3, weight * ls_world_size());
        job_free(&j);
    }
}

/* ---- one element that is not finite ---------------------------------------------------------- */

static char warned[1024];

static void keep_warning(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == LS_LOG_WARN) {
        (void)snprintf(warned, sizeof warned, "%s", text);
    }
}

/* Element `bad` of gradient `which` on rank 1 alone is NaN or infinite. */
static void check_found(int which, int64_t bad, double value)
{
    char part[128];
    job j;
    warned[0] = '\0';
    job_new(&j, 4500);
    CHECK_OK(ls_reducer_begin(j.reducer, NULL));
    for (int i = 0; i < PARAMS; i++) {
        for (int64_t k = 0; k < KINDS[i].count; k++) {
            put(KINDS[i].dtype, j.params[i].grad, k,
                i == which && k == bad && ls_rank() == 1 ? value : -2.0);
        }
        CHECK_OK(ls_reducer_ready(j.reducer, i, NULL));
    }
    CHECK_OK(ls_reducer_wait(j.reducer));
    (void)snprintf(part, sizeof part,
                   "gradient of p%d is not finite on rank 1 (element %lld of %lld)", which,
                   (long long)bad, (long long)KINDS[which].count);
    CHECK(test_contains(warned, part) == (ls_rank() == 1));
    job_free(&j);
}

static int find_every_one(void *arg)
{
    (void)arg;
    setenv("LOCKSTEP_CHECK", "strict", 1);
    CHECK_OK(ls_init(NULL));
    ls_set_log_callback(keep_warning, NULL);
    for (int i = 0; i < PARAMS; i++) {
        for (int64_t k = 0; k < KINDS[i].count; k += 1 + KINDS[i].count / 5) {
            check_found(i, k, NAN);
            check_found(i, KINDS[i].count - 1 - k, k % 2 == 0 ? INFINITY : -INFINITY);
        }
    }
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(one_element_that_is_not_finite_is_found_wherever_it_lies_where_checks_are_strict)
{
    CHECK_OK(ls_spawn(find_every_one, NULL, 2));
}

/* One row, or one column, of a matrix as rank 1 alone computes it. */
static void check_line(ls_dtype dtype, int row, int column)
{
    enum { ROWS = 70, COLUMNS = 50 };
    char part[128];
    const int64_t first = row >= 0 ? row * COLUMNS : column;
    ls_reducer *r = NULL;
    ls_reducer_param param = {
        .name = "matrix", .shape = "[70,5,10]", .count = ROWS * COLUMNS, .dtype = dtype};
    CHECK_OK(ls_reducer_new(ls_world(), &param, 1, NULL, &r));
    warned[0] = '\0';
    CHECK_OK(ls_reducer_begin(r, NULL));
    for (int64_t k = 0; k < param.count; k++) {
        const bool bad = k / COLUMNS == row || k % COLUMNS == column;
        put(dtype, param.grad, k, bad && ls_rank() == 1 ? NAN : 1.0);
    }
    CHECK_OK(ls_reducer_ready(r, 0, NULL));
    CHECK_OK(ls_reducer_wait(r));
    (void)snprintf(part, sizeof part,
                   "gradient of matrix is not finite on rank 1 (element %lld of 3500)",
                   (long long)first);
    CHECK(test_contains(warned, part) == (ls_rank() == 1));
    CHECK_OK(ls_reducer_free(r));
}

DIST_TEST(a_row_or_a_column_that_is_not_finite_is_found_wherever_it_lies, 2)
{
    const ls_dtype types[] = {LS_FLOAT64, LS_BFLOAT16, LS_FLOAT16, LS_FLOAT32};
    ls_set_log_callback(keep_warning, NULL);
    for (int t = 0; t < 4; t++) {
        for (int at = 0; at < 50; at += 7) {
            check_line(types[t], at + 20, -1);
            check_line(types[t], -1, at);
        }
    }
}

/* Whatever lay reduced in a bucket is added back after the new part was reduced, in its type. */
DIST_TEST(a_reduced_gradient_of_any_type_is_carried_over_the_next_backward, 2)
{
    ls_reducer *r = NULL;
    const ls_dtype types[] = {LS_FLOAT64, LS_BFLOAT16, LS_FLOAT16, LS_FLOAT32};
    ls_reducer_param params[4];
    for (int i = 0; i < 4; i++) {
        params[i] = (ls_reducer_param){.name = "w", .count = 5, .dtype = types[i]};
    }
    params[1].name = "x", params[2].name = "y", params[3].name = "z";
    CHECK_OK(ls_reducer_new(ls_world(), params, 4, NULL, &r));
    for (int round = 0; round < 2; round++) {
        CHECK_OK(ls_reducer_begin(r, NULL));
        for (int i = 0; i < 4; i++) {
            for (int64_t k = 0; k < 5; k++) { /* small whole numbers: no type rounds them */
                put(types[i], params[i].grad, k,
                    get(types[i], params[i].grad, k) + (double)(2 * ls_rank() + 3 * round + k));
            }
            CHECK_OK(ls_reducer_ready(r, i, NULL));
        }
        CHECK_OK(ls_reducer_wait(r));
    }
    for (int i = 0; i < 4; i++) {
        for (int64_t k = 0; k < 5; k++) {
            CHECK_NEAR(get(types[i], params[i].grad, k), (double)(1 + k) + (double)(4 + k), 0.0);
        }
    }
    ls_reducer_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_reducer_get_stats(r, &stats));
    CHECK_INT(stats.buckets, 4); /* one of each type */
    CHECK_OK(ls_reducer_free(r));
}

/* An entry that is longer than this library knows, and steps that no entry has. */
DIST_TEST(entries_may_be_longer_and_not_shorter, 1)
{
    struct {
        ls_reducer_param param;
        void *later[2];
    } params[2] = {{{.name = "a", .count = 3, .dtype = LS_FLOAT32}, {NULL, NULL}},
                   {{.name = "b", .count = 2, .dtype = LS_FLOAT64}, {NULL, NULL}}};
    ls_reducer *r = NULL;
    CHECK_OK(ls_reducer_new(ls_world(), &params[0].param, 2,
                            LS_OPTIONS(ls_reducer_options, .param_bytes = sizeof params[0]), &r));
    CHECK(params[0].param.grad != NULL && params[1].param.grad != NULL);
    CHECK(params[0].later[0] == NULL && params[0].later[1] == NULL);
    CHECK_OK(ls_reducer_free(r));
    CHECK_STATUS(ls_reducer_new(ls_world(), &params[0].param, 1,
                                LS_OPTIONS(ls_reducer_options, .param_bytes = 8), &r),
                 LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "param_bytes is 8");
    ls_reducer_param whole = {.name = "i", .count = 3, .dtype = LS_INT32};
    CHECK_STATUS(ls_reducer_new(ls_world(), &whole, 1, NULL, &r), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "int32");
}

/* The sum overflows though every contribution is finite: the first rank says so, once. */
DIST_TEST(a_sum_that_overflows_is_reported, 3)
{
    ls_reducer *r = NULL;
    ls_reducer_param param = {.name = "steep", .count = 3, .dtype = LS_FLOAT32};
    CHECK_OK(ls_reducer_new(ls_world(), &param, 1, NULL, &r));
    ls_set_log_callback(keep_warning, NULL);
    for (int round = 0; round < 2; round++) {
        warned[0] = '\0';
        CHECK_OK(ls_reducer_begin(r, NULL));
        for (int64_t k = 0; k < 3; k++) {
            put(LS_FLOAT32, param.grad, k, k == 2 ? 2e38 : 1.0);
        }
        CHECK_OK(ls_reducer_ready(r, 0, NULL));
        CHECK_OK(ls_reducer_wait(r));
        CHECK(isinf(((const float *)param.grad)[2]));
        CHECK(test_contains(warned, "gradient of steep is not finite (element 2 of 3)") ==
              (ls_rank() == 0 && round == 0));
        if (warned[0] != '\0') {
            CHECK_SAYS(
                warned,
                "reducer \"%s\": the averaged gradient of %.200s is not finite (element %lld "
                "of %lld) in synchronised backward %llu, and that of rank %d was finite "
                "before: another rank reports its own, or the sum over the ranks overflowed");
        }
        CHECK_OK(ls_reducer_zero(r));
    }
    CHECK_OK(ls_reducer_free(r));
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer against a plain twin: every rank knows what every other rank's gradients were (they
 * are drawn from a counter), so it can add them up by itself in float64. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/reducer.h>

#include "base/env.h"
#include "comm/runtime/init.h"
#include "number.h"
#include "reduce/reducer.h"
#include "test.h"

enum { PARAMS = 9 };
static const int64_t COUNTS[PARAMS] = {17, 1, 1024, 0, 3000, 5, 64, 1023, 129};

typedef struct job {
    ls_reducer *reducer;
    ls_reducer_param params[PARAMS];
    char names[PARAMS][16];
} job;

static void job_new(job *j, size_t bucket_bytes)
{
    memset(j, 0, sizeof *j);
    for (int i = 0; i < PARAMS; i++) {
        snprintf(j->names[i], sizeof j->names[i], "p%d", i);
        j->params[i] =
            (ls_reducer_param){.name = j->names[i], .count = COUNTS[i], .dtype = LS_FLOAT32};
    }
    CHECK_OK(ls_reducer_new(ls_world(), j->params, PARAMS,
                            LS_OPTIONS(ls_reducer_options, .bucket_bytes = bucket_bytes,
                                       .first_bucket_bytes = bucket_bytes / 2),
                            &j->reducer));
}

/* Element k of parameter i's gradient on `rank` in `round`. */
static float number(int rank, int round, int i, int64_t k)
{
    return test_number((uint64_t)rank + 1, (uint64_t)(round * PARAMS + i), (uint64_t)k);
}

static void add_grad(job *j, int round, int i)
{
    float *grad = j->params[i].grad;
    for (int64_t k = 0; k < COUNTS[i]; k++) {
        grad[k] += number(ls_rank(), round, i, k);
    }
}

/* Order in which a rank's gradients become ready: a different one on each rank and round. */
static int order(int position, int round)
{
    return (position * 4 + ls_rank() + round) % PARAMS;
}

static void run_backward(job *j, int round)
{
    for (int p = 0; p < PARAMS; p++) {
        int i = order(p, round);
        add_grad(j, round, i);
        CHECK_OK(ls_reducer_ready(j->reducer, i, NULL));
    }
}

/* The mean over ranks and the sum over rounds first … last, in float64. */
static void check_mean(const job *j, int first, int last, const char *what)
{
    for (int i = 0; i < PARAMS; i++) {
        const float *grad = j->params[i].grad;
        for (int64_t k = 0; k < COUNTS[i]; k++) {
            double want = 0.0;
            for (int round = first; round <= last; round++) {
                for (int rank = 0; rank < ls_world_size(); rank++) {
                    want += (double)number(rank, round, i, k);
                }
            }
            want /= ls_world_size();
            if (!(fabs((double)grad[k] - want) <= 2e-6 * (1.0 + fabs(want)))) {
                test_fail(__FILE__, __LINE__, "%s: p%d[%lld] is %.9g, want %.9g", what, i,
                          (long long)k, (double)grad[k], want);
            }
        }
    }
}

DIST_TESTS(averages_in_any_ready_order_over_, _ranks, 1, 2, 3, 4, 5, 6, 7, 8)
{
    for (size_t bucket_bytes = 0; bucket_bytes < 40000; bucket_bytes += 6000) {
        job j;
        job_new(&j, bucket_bytes);
        for (int round = 0; round < 4; round++) {
            CHECK_OK(ls_reducer_begin(j.reducer, NULL));
            run_backward(&j, round);
            CHECK_OK(ls_reducer_wait(j.reducer));
            check_mean(&j, round, round, "after one backward");
            CHECK_OK(ls_reducer_zero(j.reducer));
        }
        CHECK_OK(ls_reducer_free(j.reducer));
    }
}

/* ---- the size of buckets changes no bit ---------------------------------------------------- */

enum { ROUNDS = 4, ELEMENTS = 17 + 1 + 1024 + 3000 + 5 + 64 + 1023 + 129 };

/* All gradients after each of some steps: of plain means, or of sums over uneven shares, of which
 * the last rank's is empty now and then. Buckets are made anew in ready order after the first. */
static void record_steps(size_t bucket_bytes, bool weighted, float *out)
{
    job j;
    job_new(&j, bucket_bytes);
    for (int round = 0; round < ROUNDS; round++) {
        const bool empty = ls_rank() == ls_world_size() - 1 && round % 2 == 1;
        CHECK_OK(ls_reducer_begin(
            j.reducer, LS_OPTIONS(ls_reducer_begin_options, .weighted = weighted,
                                  .weight = empty ? 0.0 : 3.0 + 4.0 * ls_rank() + round)));
        run_backward(&j, round);
        CHECK_OK(ls_reducer_wait(j.reducer));
        for (int i = 0; i < PARAMS; i++) {
            memcpy(out, j.params[i].grad, (size_t)COUNTS[i] * sizeof *out);
            out += COUNTS[i];
        }
        CHECK_OK(ls_reducer_zero(j.reducer));
    }
    CHECK_OK(ls_reducer_free(j.reducer));
}

DIST_TESTS(bucket_size_changes_no_bit_of_any_step_over_, _ranks, 2, 3, 4, 5)
{
    static const size_t sizes[] = {0, 100, 5000, 12000, 1 << 20};
    static float first[ROUNDS * ELEMENTS], other[ROUNDS * ELEMENTS];
    for (int weighted = 0; weighted < 2; weighted++) {
        record_steps(sizes[0], weighted != 0, first);
        for (size_t s = 1; s < sizeof sizes / sizeof *sizes; s++) {
            record_steps(sizes[s], weighted != 0, other);
            for (int e = 0; e < ROUNDS * ELEMENTS; e++) {
                if (memcmp(&first[e], &other[e], sizeof first[e]) != 0) {
                    test_fail(__FILE__, __LINE__, "step %d, element %d: %a, in buckets of %zu: %a",
                              e / ELEMENTS, e % ELEMENTS, (double)first[e], sizes[s],
                              (double)other[e]);
                }
            }
        }
    }
}

DIST_TEST(local_backwards_add_up_and_the_synchronising_one_averages_all, 3)
{
    job j;
    job_new(&j, 4096);
    for (int step = 0; step < 2; step++) {
        int first = 3 * step;
        for (int micro = 0; micro < 2; micro++) {
            CHECK_OK(
                ls_reducer_begin(j.reducer, LS_OPTIONS(ls_reducer_begin_options, .local = true)));
            run_backward(&j, first + micro);
            CHECK_OK(ls_reducer_wait(j.reducer));
        }
        CHECK_OK(ls_reducer_begin(j.reducer, NULL));
        run_backward(&j, first + 2);
        CHECK_OK(ls_reducer_wait(j.reducer));
        check_mean(&j, first, first + 2, "three micro-batches");
        CHECK_OK(ls_reducer_zero(j.reducer));
    }
    CHECK_OK(ls_reducer_free(j.reducer));
}

DIST_TEST(a_reduced_gradient_that_was_not_zeroed_is_not_reduced_again, 4)
{
    job j;
    job_new(&j, 8192);
    for (int round = 0; round < 3; round++) {
        CHECK_OK(ls_reducer_begin(j.reducer, NULL));
        run_backward(&j, round);
        CHECK_OK(ls_reducer_wait(j.reducer));
        check_mean(&j, 0, round, "without zero_grad");
    }
    CHECK_OK(ls_reducer_free(j.reducer));
}

DIST_TEST(weighted_means_are_exact_however_uneven_the_shares, 4)
{
    job j;
    job_new(&j, 8192);
    double weight = ls_rank() == 2 ? 0.0 : ls_rank() + 1.0; /* rank 2 is out of data */
    uint8_t none[PARAMS] = {0};
    CHECK_OK(ls_reducer_begin(j.reducer,
                              LS_OPTIONS(ls_reducer_begin_options, .weighted = true,
                                         .weight = weight, .used = ls_rank() == 2 ? none : NULL)));
    for (int i = 0; i < PARAMS && ls_rank() != 2; i++) {
        float *grad = j.params[i].grad;
        for (int64_t k = 0; k < COUNTS[i]; k++) {
            grad[k] = (float)(weight * (double)number(ls_rank(), 0, i, k));
        }
        CHECK_OK(ls_reducer_ready(j.reducer, i, NULL));
    }
    CHECK_OK(ls_reducer_wait(j.reducer));
    for (int i = 0; i < PARAMS; i++) {
        for (int64_t k = 0; k < COUNTS[i]; k++) {
            double want = (1.0 * (double)number(0, 0, i, k) + 2.0 * (double)number(1, 0, i, k) +
                           4.0 * (double)number(3, 0, i, k)) /
                          7.0;
            CHECK_NEAR(((float *)j.params[i].grad)[k], want, 2e-6);
        }
    }
    CHECK_OK(ls_reducer_free(j.reducer));
}

/* Its weight must stay with the step, though it left no gradient behind. */
DIST_TEST(a_micro_batch_that_reaches_no_parameter_counts_in_the_mean, 2)
{
    job j;
    job_new(&j, 8192);
    uint8_t none[PARAMS] = {0};
    if (ls_rank() == 1) {
        CHECK_OK(
            ls_reducer_begin(j.reducer, LS_OPTIONS(ls_reducer_begin_options, .local = true,
                                                   .used = none, .weighted = true, .weight = 3.0)));
        CHECK_OK(ls_reducer_wait(j.reducer));
    }
    CHECK_OK(ls_reducer_begin(
        j.reducer, LS_OPTIONS(ls_reducer_begin_options, .weighted = true, .weight = 1.0)));
    for (int i = 0; i < PARAMS; i++) {
        float *grad = j.params[i].grad;
        for (int64_t k = 0; k < COUNTS[i]; k++) {
            grad[k] = number(ls_rank(), 0, i, k);
        }
        CHECK_OK(ls_reducer_ready(j.reducer, i, NULL));
    }
    CHECK_OK(ls_reducer_wait(j.reducer));
    for (int i = 0; i < PARAMS; i++) {
        for (int64_t k = 0; k < COUNTS[i]; k++) {
            const double want = ((double)number(0, 0, i, k) + (double)number(1, 0, i, k)) / 5.0;
            CHECK_NEAR(((float *)j.params[i].grad)[k], want, 2e-6);
        }
    }
    CHECK_OK(ls_reducer_free(j.reducer));
}

DIST_TEST(a_parameter_unused_on_one_rank_counts_as_zero_and_unused_everywhere_as_absent, 3)
{
    job j;
    job_new(&j, 0); /* a bucket per parameter */
    uint8_t used[PARAMS] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    used[2] = 0;              /* nowhere */
    used[4] = ls_rank() != 1; /* not on rank 1 */
    CHECK_OK(ls_reducer_begin(j.reducer, LS_OPTIONS(ls_reducer_begin_options, .used = used)));
    for (int i = 0; i < PARAMS; i++) {
        if (used[i]) {
            add_grad(&j, 0, i);
            CHECK_OK(ls_reducer_ready(j.reducer, i, NULL));
        }
    }
    CHECK_OK(ls_reducer_wait(j.reducer));
    CHECK(!ls_reducer_used(j.reducer, 2));
    CHECK(ls_reducer_used(j.reducer, 4));
    for (int64_t k = 0; k < COUNTS[4]; k++) {
        double want = ((double)number(0, 0, 4, k) + (double)number(2, 0, 4, k)) / 3.0;
        CHECK_NEAR(((float *)j.params[4].grad)[k], want, 2e-6);
    }
    ls_reducer_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_reducer_get_stats(j.reducer, &stats));
    CHECK(stats.gradient_bytes <= stats.bucket_bytes - 4096); /* p2 was not sent */
    CHECK_OK(ls_reducer_free(j.reducer));
}

/* The divisor of a plain backward is the number of ranks, also of those that used nothing. */
DIST_TEST(ranks_that_use_no_parameter_count_in_the_mean, 4)
{
    static const uint8_t none[PARAMS] = {0};
    job j;
    job_new(&j, 8192);
    const bool idle = ls_rank() % 2 == 1;
    CHECK_OK(ls_reducer_begin(j.reducer,
                              LS_OPTIONS(ls_reducer_begin_options, .used = idle ? none : NULL)));
    for (int i = 0; i < PARAMS && !idle; i++) {
        add_grad(&j, 0, i);
        CHECK_OK(ls_reducer_ready(j.reducer, i, NULL));
    }
    CHECK_OK(ls_reducer_wait(j.reducer));
    for (int i = 0; i < PARAMS; i++) {
        CHECK(ls_reducer_used(j.reducer, i));
        for (int64_t k = 0; k < COUNTS[i]; k++) {
            const double want = ((double)number(0, 0, i, k) + (double)number(2, 0, i, k)) / 4.0;
            CHECK_NEAR(((float *)j.params[i].grad)[k], want, 2e-6);
        }
    }
    CHECK_OK(ls_reducer_free(j.reducer));
}

DIST_TEST(gradients_in_the_callers_own_memory_are_copied_both_ways, 2)
{
    static float own[3000];
    ls_reducer_param params[2] = {
        {.name = "own", .count = 3000, .dtype = LS_FLOAT32, .grad = own},
        {.name = "ours", .count = 10, .dtype = LS_FLOAT32},
    };
    ls_reducer *r;
    CHECK_OK(ls_reducer_new(ls_world(), params, 2, NULL, &r));
    CHECK(params[0].grad == own);
    for (int i = 0; i < 3000; i++) {
        own[i] = (float)(i + 1000 * ls_rank());
    }
    CHECK_OK(ls_reducer_begin(r, NULL));
    CHECK_OK(ls_reducer_ready(r, 0, NULL));
    CHECK_OK(ls_reducer_ready(r, 1, NULL));
    CHECK_OK(ls_reducer_wait(r));
    for (int i = 0; i < 3000; i++) {
        CHECK_NEAR(own[i], i + 500.0, 0.0);
    }
    CHECK_OK(ls_reducer_free(r));
}

DIST_TEST(user_collectives_on_the_group_interleave_freely, 4)
{
    job j;
    job_new(&j, 2048);
    for (int round = 0; round < 5; round++) {
        CHECK_OK(ls_reducer_begin(j.reducer, NULL));
        for (int p = 0; p < PARAMS; p++) {
            int i = order(p, round);
            add_grad(&j, round, i);
            CHECK_OK(ls_reducer_ready(j.reducer, i, NULL));
            int one = 1;
            CHECK_OK(ls_all_reduce(ls_world(), &one, &one, 1, LS_INT32, LS_SUM, NULL, NULL));
            CHECK_INT(one, 4);
        }
        CHECK_OK(ls_reducer_wait(j.reducer));
        check_mean(&j, round, round, "interleaved");
        CHECK_OK(ls_reducer_zero(j.reducer));
    }
    CHECK_OK(ls_reducer_free(j.reducer));
}

DIST_TEST(a_bucket_is_reduced_while_backward_still_runs, 4)
{
#if defined(__SANITIZE_THREAD__)
    SKIP("it looks at memory that is being reduced, on purpose");
#endif
    job j;
    job_new(&j, 0); /* a bucket per parameter; bucket 0 holds the last one registered */
    int first = PARAMS - 1;
    CHECK_OK(ls_reducer_begin(j.reducer, NULL));
    add_grad(&j, 0, first);
    float own = ((float *)j.params[first].grad)[0], mean = own;
    CHECK_OK(ls_all_reduce(ls_world(), &mean, &mean, 1, LS_FLOAT32, LS_AVG, NULL, NULL));
    CHECK_OK(ls_reducer_ready(j.reducer, first, NULL));
    const volatile float *element = j.params[first].grad;
    for (double start = ls_time(); *element == own && ls_time() - start < 10.0;) {
        /* nobody calls into the library: the engine's own thread does it */
    }
    CHECK_NEAR(*element, mean, 1e-6);
    CHECK(mean != own);
    for (int i = 0; i < PARAMS - 1; i++) {
        CHECK_OK(ls_reducer_ready(j.reducer, i, NULL));
    }
    CHECK_OK(ls_reducer_wait(j.reducer));
    CHECK_OK(ls_reducer_free(j.reducer));
}

DIST_TEST(another_shape_on_one_rank_is_named_on_both_sides, 3)
{
    ls_reducer_param params[2] = {
        {.name = "fc1.weight", .shape = "[8,4]", .count = 32, .dtype = LS_FLOAT32},
        {.name = "fc2.weight", .shape = "[2,8]", .count = 16, .dtype = LS_FLOAT32},
    };
    if (ls_rank() == 1) {
        params[1].shape = "[3,8]";
        params[1].count = 24;
    }
    ls_reducer *r = NULL;
    CHECK_STATUS(ls_reducer_new(ls_world(), params, 2, NULL, &r), LS_ERR_MISMATCH);
    CHECK(r == NULL);
    CHECK_CONTAINS(ls_error_message(), "rank 0 has fc2.weight float32[2,8]");
    CHECK_CONTAINS(ls_error_message(), "rank 1 has fc2.weight float32[3,8]");
}

DIST_TEST(one_parameter_more_on_one_rank_is_named, 2)
{
    ls_reducer_param params[2] = {
        {.name = "a", .count = 3, .dtype = LS_FLOAT32},
        {.name = "b", .count = 3, .dtype = LS_FLOAT32},
    };
    ls_reducer *r = NULL;
    CHECK_STATUS(ls_reducer_new(ls_world(), params, 1 + ls_rank(), NULL, &r), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "differ in parameter 1: rank 0 has none, rank 1 has ");
    CHECK_CONTAINS(ls_error_message(), "rank 1 has b float32[3] (2 parameters in all)");
}

DIST_TEST(ready_twice_names_the_parameter, 1)
{
    job j;
    job_new(&j, 4096);
    CHECK_OK(ls_reducer_begin(j.reducer, NULL));
    CHECK_OK(ls_reducer_ready(j.reducer, 4, NULL));
    CHECK_STATUS(ls_reducer_ready(j.reducer, 4, NULL), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "p4 became ready twice");
    CHECK_STATUS(ls_reducer_ready(j.reducer, PARAMS, NULL), LS_ERR_INVALID);
    (void)ls_reducer_free(j.reducer);
}

DIST_TEST(waiting_for_a_gradient_that_was_never_ready_fails_on_all_ranks, 2)
{
    job j;
    job_new(&j, 4096);
    CHECK_OK(ls_reducer_begin(j.reducer, NULL));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* both have begun before one fails */
    for (int i = 0; i < PARAMS; i++) {
        if (ls_rank() == 0 || i != 5) {
            CHECK_OK(ls_reducer_ready(j.reducer, i, NULL));
        }
    }
    ls_status status = ls_reducer_wait(j.reducer);
    CHECK(status < 0);
    CHECK_CONTAINS(ls_error_message(), "parameter p5 (and maybe others) was never ready");
    (void)ls_reducer_free(j.reducer);
}

DIST_TEST(weighted_on_one_rank_and_plain_on_another_is_a_mismatch, 2)
{
    job j;
    job_new(&j, 4096);
    CHECK_OK(ls_reducer_begin(j.reducer, LS_OPTIONS(ls_reducer_begin_options,
                                                    .weighted = ls_rank() == 1, .weight = 1.0)));
    for (int i = 0; i < PARAMS; i++) {
        (void)ls_reducer_ready(j.reducer, i, NULL);
    }
    CHECK_STATUS(ls_reducer_wait(j.reducer), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "the ranks differ in the kind of backward: rank 0 has "
                                       "a plain one, rank 1 has a weighted one; ");
    (void)ls_reducer_free(j.reducer);
}

/* ---- after the end ------------------------------------------------------------------------ */

static _Atomic long long held; /* bytes of the env's memory that are not given back */

static void *count_allocate(const ls__env *env, size_t bytes)
{
    (void)env;
    void *memory = ls__env_posix()->allocate(ls__env_posix(), bytes);
    atomic_fetch_add(&held, memory != NULL ? (long long)bytes : 0);
    return memory;
}

static void count_release(const ls__env *env, void *memory, size_t bytes)
{
    (void)env;
    atomic_fetch_sub(&held, memory != NULL ? (long long)bytes : 0);
    ls__env_posix()->release(ls__env_posix(), memory, bytes);
}

/* Also the gradients that it has set aside. */
TEST(a_reducer_that_is_freed_after_finalize_leaves_no_memory)
{
    ls__env counting = *ls__env_posix();
    ls_reducer_param param = {.name = "w", .count = 5, .dtype = LS_FLOAT32};
    ls_reducer *r = NULL;
    counting.allocate = count_allocate;
    counting.release = count_release;
    CHECK_OK(ls__init_with(&counting, NULL));
    CHECK_OK(ls_reducer_new(ls_world(), &param, 1, NULL, &r));
    for (int round = 0; round < 2; round++) {
        CHECK_OK(ls_reducer_begin(r, NULL));
        CHECK_OK(ls_reducer_ready(r, 0, NULL));
        CHECK_OK(ls_reducer_wait(r));
    }
    CHECK_OK(ls_finalize());
    CHECK(held > 0);
    CHECK_OK(ls_reducer_free(r));
    CHECK_INT(held, 0);
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* float32 gradients that travel as bfloat16, against sums in float64. */
#include <math.h>
#include <string.h>

#include <lockstep/ddp.h>
#include <lockstep/ops.h>
#include <lockstep/random.h>

#include "number.h"
#include "says.h"
#include "test.h"

enum { PARAMS = 4 };
static const int64_t COUNTS[PARAMS] = {1001, 3, 0, 40000};
/* The unit roundoffs of bfloat16 and float32. */
#define U_BF16 0x1p-8
#define U_F32 0x1p-24

static float gradient(int rank, int param, int64_t k, int round)
{
    return test_number(11, (uint64_t)(100 * rank + 10 * param + round), (uint64_t)k);
}

static ls_reducer *make(ls_reducer_param params[PARAMS], ls_dtype wire, size_t bucket_bytes,
                        ls_reduce_mode mode, float *own)
{
    static const char *const NAMES[PARAMS] = {"a", "b", "c", "d"};
    ls_reducer *r = NULL;
    for (int p = 0; p < PARAMS; p++) {
        params[p] =
            (ls_reducer_param){.name = NAMES[p], .count = COUNTS[p], .grad = p == 1 ? own : NULL};
    }
    CHECK_OK(ls_reducer_new(ls_world(), params, PARAMS,
                            LS_OPTIONS(ls_reducer_options, .bucket_bytes = bucket_bytes,
                                       .first_bucket_bytes = bucket_bytes / 4, .mode = mode,
                                       .wire_dtype = wire),
                            &r));
    return r;
}

/* One backward: parameters are ready from the last to the first. */
static void backward(ls_reducer *r, ls_reducer_param params[PARAMS], int round, double weight)
{
    for (int p = 0; p < PARAMS; p++) {
        for (int64_t k = 0; k < COUNTS[p]; k++) {
            ((float *)params[p].grad)[k] = (float)weight * gradient(ls_rank(), p, k, round);
        }
    }
    CHECK_OK(ls_reducer_begin(
        r, LS_OPTIONS(ls_reducer_begin_options, .weighted = true, .weight = weight)));
    for (int p = PARAMS - 1; p >= 0; p--) {
        CHECK_OK(ls_reducer_ready(r, p, NULL));
    }
    CHECK_OK(ls_reducer_wait(r));
}

/* Each contribution is rounded once, their sum in float32, the average once. Returns the largest
 * error in roundoffs of float32. */
static double check_near(const ls_reducer_param params[PARAMS], int round, double unit)
{
    double largest = 0.0;
    const int ranks = ls_world_size();
    for (int p = 0; p < PARAMS; p++) {
        for (int64_t k = 0; k < COUNTS[p]; k++) {
            double sum = 0.0, size = 0.0, weights = 0.0;
            for (int r = 0; r < ranks; r++) {
                const double g = (double)((float)(1 + r) * gradient(r, p, k, round));
                sum += g;
                size += fabs(g);
                weights += 1 + r;
            }
            const double got = (double)((const float *)params[p].grad)[k];
            const double bound =
                (unit * (size + fabs(sum)) * (1 + unit) + ranks * U_F32 * size) / weights;
            CHECK_NEAR(got, sum / weights, bound);
            const double error = fabs(got - sum / weights) / (fabs(sum / weights) + 1e-30);
            largest = error > largest ? error : largest;
        }
    }
    return largest / U_F32;
}

/* The ranks' bytes are equal. */
static void check_equal(const ls_reducer_param params[PARAMS])
{
    for (int p = 0; p < PARAMS; p++) {
        uint64_t sum = 14695981039346656037u, all[16];
        for (size_t i = 0; i < (size_t)COUNTS[p] * sizeof(float); i++) {
            sum = (sum ^ ((const uint8_t *)params[p].grad)[i]) * 1099511628211u;
        }
        CHECK_OK(ls_all_gather(ls_world(), &sum, all, 1, LS_UINT64, NULL, NULL));
        for (int r = 0; r < ls_world_size(); r++) {
            CHECK(all[r] == sum);
        }
    }
}

DIST_TESTS(averages_of_, _ranks_are_rounded_to_bfloat16_alike, 1, 2, 3, 4, 5, 8)
{
    ls_reducer_param params[PARAMS];
    float own[3];
    const bool several = ls_world_size() > 1;
    for (int mode = LS_REDUCE_OVERLAP; mode <= LS_REDUCE_NAIVE; mode++) {
        ls_reducer *r = make(params, LS_BFLOAT16, 8192, (ls_reduce_mode)mode, own);
        ls_reducer_stats stats = {.size = sizeof stats};
        for (int round = 0; round < 3; round++) {
            CHECK_OK(ls_reducer_zero(r));
            backward(r, params, round, 1 + ls_rank());
            const double error = check_near(params, round, several ? U_BF16 : U_F32);
            CHECK((error > 1000.0) == several); /* it did travel as bfloat16 */
            check_equal(params);
        }
        CHECK_OK(ls_reducer_get_stats(r, &stats));
        CHECK_INT(stats.gradient_bytes, stats.bucket_bytes / (several ? 2 : 1));
        CHECK_OK(ls_reducer_free(r));
    }
}

/* What is summed on the rank, before and after the average, stays float32: 1 + 2^-12 would be 1. */
DIST_TEST(sums_in_memory_stay_float32, 2)
{
    ls_reducer_param param = {.name = "w", .count = 70};
    ls_reducer *r = NULL;
    CHECK_OK(ls_reducer_new(ls_world(), &param, 1,
                            LS_OPTIONS(ls_reducer_options, .wire_dtype = LS_BFLOAT16), &r));
    for (int round = 0; round < 2; round++) { /* the first average is set aside */
        for (int k = 0; k < 70 && round == 0; k++) {
            ((float *)param.grad)[k] = 1.0f;
        }
        CHECK_OK(ls_reducer_begin(r, NULL));
        if (round == 1) {
            for (int k = 0; k < 70; k++) {
                CHECK(((float *)param.grad)[k] == 0.0f);
                ((float *)param.grad)[k] = 0x1p-12f;
            }
        }
        CHECK_OK(ls_reducer_ready(r, 0, NULL));
        CHECK_OK(ls_reducer_wait(r));
    }
    CHECK(((float *)param.grad)[69] == 1.0f + 0x1p-12f);
    CHECK_OK(ls_reducer_free(r));
}

/* Under DDP: the replicas stay equal, which every step checks, and learn what float32 learns. */
DIST_TEST(a_model_learns_with_bfloat16_on_the_wire, 4)
{
    double last[2];
    for (int wire = 0; wire < 2; wire++) {
        CHECK_OK(ls_manual_seed(1));
        ls_module *layers[] = {ls_linear_new(6, 32, NULL), ls_relu_new(),
                               ls_linear_new(32, 1, NULL)};
        ls_module *net =
            ls_ddp_new(ls_sequential_new(layers, 3), ls_world(),
                       LS_OPTIONS(ls_ddp_options, .bucket_bytes = 256, .check_every = 1,
                                  .wire_dtype = wire == 1 ? LS_BFLOAT16 : LS_FLOAT32));
        CHECK_OK(ls_module_status(net));
        ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 1e-2));
        for (int step = 0; step < 60; step++) {
            LS_SCOPE;
            float x[8 * 6], t[8];
            for (int i = 0; i < 48; i++) {
                x[i] = ls_random_normal(5, (uint64_t)(4 * step + ls_rank()), (uint64_t)i);
            }
            for (int i = 0; i < 8; i++) {
                t[i] = x[6 * i] + 0.5f * x[6 * i + 1];
            }
            ls_tensor *e = ls_sub(ls_forward(net, ls_from_data(x, LS_SHAPE(8, 6), LS_FLOAT32)),
                                  ls_from_data(t, LS_SHAPE(8, 1), LS_FLOAT32));
            ls_tensor *loss = ls_mean(ls_mul(e, e));
            CHECK_OK(ls_backward(loss));
            CHECK_OK(ls_optim_step(optim));
            ls_optim_zero_grad(optim);
            CHECK_OK(ls_item(loss, &last[wire]));
            CHECK_OK(ls_metric_mean(ls_world(), last[wire], 1, &last[wire]));
        }
        ls_optim_free(optim);
        ls_module_free(net);
    }
    CHECK(last[0] < 0.1 && last[0] != last[1]);
    CHECK_NEAR(last[1], last[0], 0.1 * last[0]);
}

/* ---- mistakes ------------------------------------------------------------------------------ */

DIST_TEST(another_type_on_the_wire_is_refused, 1)
{
    ls_reducer_param param = {.name = "w", .count = 1};
    ls_reducer *r = NULL;
    CHECK_STATUS(ls_reducer_new(ls_world(), &param, 1,
                                LS_OPTIONS(ls_reducer_options, .wire_dtype = LS_INT8), &r),
                 LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_reducer_new: wire_dtype is %s; give LS_BFLOAT16, or LS_FLOAT32 for no change");
}

DIST_TEST(a_rank_with_another_type_on_the_wire_is_named, 3)
{
    ls_reducer_param param = {.name = "w", .count = 1};
    ls_reducer *r = NULL;
    CHECK_STATUS(ls_reducer_new(ls_world(), &param, 1,
                                LS_OPTIONS(ls_reducer_options,
                                           .wire_dtype = ls_rank() == 2 ? LS_BFLOAT16 : LS_FLOAT32),
                                &r),
                 LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "the ranks differ in wire_dtype: rank 0 has float32, as ");
    CHECK_CONTAINS(ls_error_message(), "rank 2 has bfloat16; give every rank the same");
}

TEST_MAIN

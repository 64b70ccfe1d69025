/* SPDX-License-Identifier: Apache-2.0 */
/* The hooks of compression.h on gradients of whole numbers, whose sums are exact: whatever a hook
 * does not deliver must lie in the residuals, to the last bit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/compression.h>
#include <lockstep/random.h>

#include "says.h"
#include "test.h"

enum { PARAMS = 5, ELEMENTS_MAX = 6144, STEPS = 6 };
static const struct {
    const char *name, *shape;
    int64_t count;
} SHAPES[PARAMS] = {{"table", "[96,64]", 6144},
                    {"bias", "[17]", 17},
                    {"conv", "[8,4,3,3]", 288},
                    {"empty", "[0]", 0},
                    {"vector", NULL, 2500}};

typedef struct job {
    ls_reducer *reducer;
    ls_reducer_param params[PARAMS];
    ls_comm_hook hook; /* borrowed: the reducer owns the state */
} job;

static size_t bucket_bytes = 8192, first_bucket_bytes = 2048;

static job open_job(const char *hook, ls_dtype dtype)
{
    job j = {.hook.size = sizeof j.hook};
    for (int p = 0; p < PARAMS; p++) {
        j.params[p] = (ls_reducer_param){.name = SHAPES[p].name,
                                         .shape = SHAPES[p].shape,
                                         .count = SHAPES[p].count,
                                         .dtype = dtype};
    }
    CHECK_OK(ls_reducer_new(ls_world(), j.params, PARAMS,
                            LS_OPTIONS(ls_reducer_options, .bucket_bytes = bucket_bytes,
                                       .first_bucket_bytes = first_bucket_bytes),
                            &j.reducer));
    CHECK_OK(ls_comm_hook_parse(hook, &j.hook));
    if (j.hook.before != NULL) {
        CHECK_OK(ls_reducer_set_hook(j.reducer, &j.hook));
    }
    return j;
}

/* As splitmix64. */
static uint64_t hash_of(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int64_t period = INT64_MAX; /* after which elements repeat: rows of a matrix are alike */

/* A whole number of 1/256, at most 3.5: nearly normal, as the sum of four even numbers. */
static double gradient(int rank, int step, int p, int64_t k)
{
    const uint64_t one = (uint64_t)((100 * rank + step) * PARAMS + p + 1) << 32;
    const uint64_t bits = hash_of(one + (uint64_t)(k % period));
    uint64_t sum = 0;
    for (int part = 0; part < 4; part++) {
        sum += bits >> (16 * part) & 0xffff;
    }
    return rint(((double)sum / 65536.0 - 2.0) * sqrt(3.0) * 256.0) / 256.0;
}

static void put(const job *j, int p, int64_t k, double x)
{
    if (j->params[p].dtype == LS_FLOAT64) {
        ((double *)j->params[p].grad)[k] = x;
    } else {
        ((float *)j->params[p].grad)[k] = (float)x;
    }
}

static double get(const job *j, int p, int64_t k)
{
    return j->params[p].dtype == LS_FLOAT64 ? ((double *)j->params[p].grad)[k]
                                            : (double)((float *)j->params[p].grad)[k];
}

static int64_t nan_at = -1; /* element of the first parameter; -1: none */

/* One backward with these gradients, times `factor`; `unused`: a parameter that no rank reaches. */
static ls_status backward(const job *j, int step, double factor, int unused)
{
    uint8_t used[PARAMS];
    CHECK_OK(ls_reducer_zero(j->reducer));
    for (int p = 0; p < PARAMS; p++) {
        used[p] = p != unused;
        for (int64_t k = 0; k < SHAPES[p].count && p != unused; k++) {
            put(j, p, k, factor * gradient(ls_rank(), step, p, k));
        }
    }
    if (nan_at >= 0) {
        put(j, 0, nan_at, NAN);
    }
    CHECK_OK(ls_reducer_begin(j->reducer, LS_OPTIONS(ls_reducer_begin_options, .used = used)));
    for (int p = PARAMS - 1; p >= 0; p--) {
        if (p != unused) {
            CHECK_OK(ls_reducer_ready(j->reducer, p, NULL));
        }
    }
    return ls_reducer_wait(j->reducer);
}

/* ---- residuals, as a checkpoint sees them ---------------------------------------------------- */

typedef struct shown {
    double residual[PARAMS][ELEMENTS_MAX];
    int tensors;
} shown;

static ls_status take_tensor(void *self, const char *name, const ls_state_tensor *t)
{
    shown *to = self;
    to->tensors++;
    for (int p = 0; p < PARAMS; p++) {
        char want[64];
        (void)snprintf(want, sizeof want, "hook.residual.%s", SHAPES[p].name);
        if (strcmp(name, want) == 0) {
            CHECK_INT(t->global[0], ls_world_size());
            CHECK_INT(t->start[0], ls_rank());
            CHECK_INT(t->local[1], SHAPES[p].count);
            for (int64_t k = 0; k < t->local[1]; k++) {
                to->residual[p][k] = t->dtype == LS_FLOAT64 ? ((const double *)t->data)[k]
                                                            : (double)((const float *)t->data)[k];
            }
        }
    }
    return LS_OK;
}

static void show(const job *j, shown *to)
{
    const ls_state_visitor visitor = {.size = sizeof visitor, .self = to, .tensor = take_tensor};
    memset(to, 0, sizeof *to);
    if (ls_world_size() > 1) { /* a group of one opens no hook */
        CHECK_OK(j->hook.visit(j->hook.state, "hook", &visitor));
    }
}

/* The sum over the ranks. */
static void sum_residuals(const job *j, shown *to)
{
    show(j, to);
    CHECK_OK(ls_all_reduce(ls_world(), to->residual, to->residual, PARAMS * ELEMENTS_MAX,
                           LS_FLOAT64, LS_SUM, NULL, NULL));
}

static void check_equal_on_all(const job *j)
{
    for (int p = 0; p < PARAMS; p++) {
        uint64_t hash = 14695981039346656037U, all[16];
        for (size_t i = 0; i < (size_t)SHAPES[p].count * ls_dtype_size(j->params[p].dtype); i++) {
            hash = (hash ^ ((const uint8_t *)j->params[p].grad)[i]) * 1099511628211U;
        }
        CHECK_OK(ls_all_gather(ls_world(), &hash, all, 1, LS_UINT64, NULL, NULL));
        for (int r = 0; r < ls_world_size(); r++) {
            CHECK(all[r] == hash);
        }
    }
}

/* Over all steps: the sum of the gradients is the sum of what was delivered and of what is left. */
static void check_conservation(const char *hook, double tolerance)
{
    static double sent[PARAMS][ELEMENTS_MAX], given[PARAMS][ELEMENTS_MAX];
    static shown left;
    job j = open_job(hook, LS_FLOAT32);
    memset(sent, 0, sizeof sent);
    memset(given, 0, sizeof given);
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(backward(&j, step, 1.0, -1));
        check_equal_on_all(&j);
        for (int p = 0; p < PARAMS; p++) {
            for (int64_t k = 0; k < SHAPES[p].count; k++) {
                sent[p][k] += ls_world_size() * get(&j, p, k);
                for (int r = 0; r < ls_world_size(); r++) {
                    given[p][k] += gradient(r, step, p, k);
                }
            }
        }
        sum_residuals(&j, &left);
        for (int p = 0; p < PARAMS; p++) {
            for (int64_t k = 0; k < SHAPES[p].count; k++) {
                CHECK_NEAR(sent[p][k] + left.residual[p][k], given[p][k], tolerance);
            }
        }
    }
    CHECK_OK(ls_reducer_free(j.reducer));
}

static const char *const LOSSY[] = {"top_k:density=0.05", "random_k:density=0.05,seed=3", "int8",
                                    "one_bit"};

/* Of 2, 4 and 8 ranks the division is exact, too. */
DIST_TESTS(sent_and_residuals_of_, _ranks_are_the_gradients, 1, 2, 4, 8)
{
    for (size_t i = 0; i < sizeof LOSSY / sizeof *LOSSY; i++) {
        check_conservation(LOSSY[i], 0.0);
    }
    check_conservation("powersgd:rank=2,start=1", 2e-4);
}

DIST_TESTS(sent_and_residuals_of_odd_, _ranks_are_the_gradients, 3, 5)
{
    for (size_t i = 0; i < sizeof LOSSY / sizeof *LOSSY; i++) {
        check_conservation(LOSSY[i], 2e-4);
    }
}

/* ---- PowerSGD -------------------------------------------------------------------------------- */

static void check_mean(const job *j, int step, double tolerance)
{
    for (int p = 0; p < PARAMS; p++) {
        for (int64_t k = 0; k < SHAPES[p].count; k++) {
            double mean = 0.0;
            for (int r = 0; r < ls_world_size(); r++) {
                mean += gradient(r, step, p, k) / ls_world_size();
            }
            CHECK_NEAR(get(j, p, k), mean, tolerance);
        }
    }
}

DIST_TESTS(a_full_rank_over_, _ranks_is_the_exact_mean, 1, 2, 3, 5, 8)
{
    static const struct {
        ls_dtype dtype;
        double tolerance;
    } cases[] = {{LS_FLOAT32, 2e-5}, {LS_FLOAT64, 1e-12}};
    for (int i = 0; i < 2; i++) {
        job j = open_job("powersgd:rank=128,start=0,min=0", cases[i].dtype);
        for (int step = 0; step < 3; step++) {
            CHECK_OK(backward(&j, step, 1.0, -1));
            check_mean(&j, step, cases[i].tolerance);
        }
        CHECK_OK(ls_reducer_free(j.reducer));
    }
}

/* Hooks without loss, and lossy ones before their first step. */
/* A matrix of rank 1, or of zeros, spans one direction of P and Q or none: the others must not be
 * lost for the steps that follow. */
DIST_TEST(a_full_rank_is_the_exact_mean_after_gradients_of_low_rank, 3)
{
    job j = open_job("powersgd:rank=128,start=0,min=0", LS_FLOAT32);
    for (int step = 0; step < 6; step++) {
        period = step < 3 ? 64 : INT64_MAX;
        CHECK_OK(backward(&j, step, step == 1 ? 0.0 : 1.0, -1));
        if (step != 1) {
            check_mean(&j, step, 1e-5);
        }
    }
    CHECK_OK(ls_reducer_free(j.reducer));
}

/* Squares of such elements are no float32 numbers. */
DIST_TEST(a_full_rank_is_the_exact_mean_of_large_and_of_small_gradients, 2)
{
    static const double factors[] = {0x1p100, 0x1p-110};
    for (int f = 0; f < 2; f++) {
        job j = open_job("powersgd:rank=128,start=0,min=0,feedback=0", LS_FLOAT32);
        for (int step = 0; step < 2; step++) {
            CHECK_OK(backward(&j, step, factors[f], -1));
            for (int64_t k = 0; k < SHAPES[0].count; k++) {
                const double sum = gradient(0, step, 0, k) + gradient(1, step, 0, k);
                CHECK_NEAR(get(&j, 0, k) / factors[f], sum / 2.0, 1e-5);
            }
        }
        CHECK_OK(ls_reducer_free(j.reducer));
    }
}

DIST_TESTS(hooks_that_lose_nothing_average_over_, _ranks, 1, 2, 3, 8)
{
    static const struct {
        const char *hook;
        double tolerance;
    } cases[] = {{"plain", 1e-6},
                 {"fp16", 8e-3},
                 {"bf16", 7e-2},
                 {"top_k:density=1", 1e-6},
                 {"random_k:density=1", 1e-6},
                 {"top_k:start=9", 1e-6},
                 {"random_k:start=9", 1e-6},
                 {"int8:start=9", 1e-6},
                 {"one_bit:start=9", 1e-6},
                 {"powersgd", 1e-6}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job j = open_job(cases[i].hook, LS_FLOAT32);
        for (int step = 0; step < 2; step++) {
            CHECK_OK(backward(&j, step, 1.0, -1));
            check_mean(&j, step, cases[i].tolerance);
            check_equal_on_all(&j);
        }
        CHECK_OK(ls_reducer_free(j.reducer));
    }
}

/* Zero columns, then numbers again: nothing becomes NaN. */
DIST_TEST(gradients_of_zero_stay_zero, 3)
{
    static const char *const hooks[] = {"powersgd:rank=4,start=0", "top_k", "random_k", "int8",
                                        "one_bit"};
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        job j = open_job(hooks[i], LS_FLOAT32);
        for (int step = 0; step < 4; step++) {
            CHECK_OK(backward(&j, step, step < 2 ? 0.0 : 1.0, -1));
            for (int p = 0; p < PARAMS; p++) {
                for (int64_t k = 0; k < SHAPES[p].count; k++) {
                    CHECK(step >= 2 ? isfinite(get(&j, p, k)) : get(&j, p, k) == 0.0);
                }
            }
        }
        CHECK_OK(ls_reducer_free(j.reducer));
    }
}

/* A step whose gradient is not finite is one that trainers skip or end at; the next is sound. */
DIST_TEST(a_gradient_that_is_not_finite_leaves_no_trace, 2)
{
    static const char *const hooks[] = {"powersgd:rank=4,start=0", "top_k", "random_k:density=0.5",
                                        "int8", "one_bit"};
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        job j = open_job(hooks[i], LS_FLOAT32);
        CHECK_OK(backward(&j, 0, 1.0, -1));
        CHECK_OK(backward(&j, 1, ls_rank() == 1 ? (double)INFINITY : 1.0, -1));
        bool found = false;
        for (int64_t k = 0; k < SHAPES[0].count; k++) {
            found = found || !isfinite(get(&j, 0, k));
        }
        CHECK(found);
        CHECK_OK(backward(&j, 2, 1.0, -1));
        for (int p = 0; p < PARAMS; p++) {
            for (int64_t k = 0; k < SHAPES[p].count; k++) {
                CHECK(isfinite(get(&j, p, k)));
            }
        }
        CHECK_OK(ls_reducer_free(j.reducer));
    }
}

/* Wherever it lies, and whatever of the gradient is sent. */
DIST_TEST(a_single_element_that_is_not_finite_is_seen_by_all, 3)
{
    static const char *const hooks[] = {"powersgd:rank=4,start=0",
                                        "top_k",
                                        "random_k",
                                        "random_k:feedback=0",
                                        "int8",
                                        "one_bit",
                                        "bf16"};
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        for (int64_t at = 1; at < SHAPES[0].count; at += 613) {
            job j = open_job(hooks[i], LS_FLOAT32);
            nan_at = ls_rank() == 1 ? at : -1;
            CHECK_OK(backward(&j, 0, 1.0, -1));
            nan_at = -1;
            bool found = false;
            for (int64_t k = 0; k < SHAPES[0].count; k++) {
                found = found || !isfinite(get(&j, 0, k));
            }
            CHECK(found);
            CHECK_OK(ls_reducer_free(j.reducer));
        }
    }
}

DIST_TEST(a_parameter_that_is_unused_keeps_its_residual, 2)
{
    static shown before, after;
    for (size_t i = 0; i < sizeof LOSSY / sizeof *LOSSY; i++) {
        job j = open_job(LOSSY[i], LS_FLOAT32);
        CHECK_OK(backward(&j, 0, 1.0, -1));
        for (int unused = 0; unused < PARAMS; unused += 2) {
            show(&j, &before);
            CHECK_OK(backward(&j, 1 + unused, 1.0, unused));
            show(&j, &after);
            CHECK(memcmp(before.residual[unused], after.residual[unused],
                         sizeof before.residual[unused]) == 0);
            CHECK(memcmp(before.residual[(unused + 2) % 6], after.residual[(unused + 2) % 6],
                         sizeof before.residual[0]) != 0);
            for (int64_t k = 0; k < SHAPES[unused].count; k++) {
                CHECK(get(&j, unused, k) == 0.0);
            }
        }
        CHECK_OK(ls_reducer_free(j.reducer));
    }
}

/* ---- bytes, state, mistakes ------------------------------------------------------------------ */

static uint64_t bytes_of(const char *hook)
{
    job j = open_job(hook, LS_FLOAT32);
    ls_reducer_stats stats = {.size = sizeof stats};
    CHECK_OK(backward(&j, 0, 1.0, -1));
    CHECK_OK(ls_reducer_get_stats(j.reducer, &stats));
    CHECK_OK(ls_reducer_free(j.reducer));
    return stats.gradient_bytes;
}

/* Elements: 6144 as [96,64], 17, 288 as [8,36], 2500. */
DIST_TEST(the_bytes_of_a_step_follow_from_the_shapes, 2)
{
    CHECK_INT(bytes_of("top_k:density=0.01"), 8 * (62 + 1 + 3 + 25));
    CHECK_INT(bytes_of("random_k:density=0.01"), 4 * (62 + 1 + 3 + 25));
    CHECK_INT(bytes_of("powersgd:rank=2,start=0"), 4 * (2 * (96 + 64) + 17 + 2 * (8 + 36) + 2500));
    CHECK(bytes_of("int8") < bytes_of("plain") / 2 + 1024);
    CHECK(bytes_of("one_bit") < bytes_of("plain") / 15 + 256);
    CHECK_INT(bytes_of("bf16"), bytes_of("plain") / 2);
}

typedef struct saved {
    char names[32][64];
    char *data[32];
    size_t bytes[32];
    int count;
    bool load;
} saved;

static ls_status keep_tensor(void *self, const char *name, const ls_state_tensor *t)
{
    saved *s = self;
    size_t bytes = ls_dtype_size(t->dtype);
    for (int d = 0; d < t->ndim; d++) {
        bytes *= (size_t)t->local[d];
    }
    for (int i = 0; i < s->count && s->load; i++) {
        if (strcmp(s->names[i], name) == 0) {
            CHECK_INT(s->bytes[i], bytes);
            memcpy(t->data, s->data[i], bytes);
            return LS_OK;
        }
    }
    CHECK(!s->load && s->count < 32);
    (void)snprintf(s->names[s->count], sizeof s->names[0], "%s", name);
    s->data[s->count] = malloc(bytes + 1);
    s->bytes[s->count] = bytes;
    memcpy(s->data[s->count++], t->data, bytes);
    return LS_OK;
}

static ls_status keep_int64(void *self, const char *name, int64_t *value)
{
    return keep_tensor(
        self, name, &(ls_state_tensor){.dtype = LS_INT64, .ndim = 1, .local = {1}, .data = value});
}

/* A copy of the gradients. */
static void copy_of(const job *j, float *to)
{
    for (int p = 0; p < PARAMS; p++) {
        memcpy(to, j->params[p].grad, (size_t)SHAPES[p].count * sizeof *to);
        to += SHAPES[p].count;
    }
}

ls_status ls__reducer_hook_state(ls_reducer *r, const char *prefix, const ls_state_visitor *v);

DIST_TEST(a_run_goes_on_from_the_state_of_its_hook, 3)
{
    static float whole[16384], again[16384];
    static const char *const hooks[] = {"powersgd:rank=2,start=1", "top_k", "random_k", "int8",
                                        "one_bit"};
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        saved s = {0};
        ls_state_visitor visitor = {
            .size = sizeof visitor, .self = &s, .tensor = keep_tensor, .int64 = keep_int64};
        job first = open_job(hooks[i], LS_FLOAT32), second = open_job(hooks[i], LS_FLOAT32);
        for (int step = 0; step < 3; step++) {
            CHECK_OK(backward(&first, step, 1.0, -1));
        }
        CHECK_OK(ls__reducer_hook_state(first.reducer, "hook", &visitor));
        CHECK(s.count > 1);
        s.load = true;
        CHECK_OK(ls__reducer_hook_state(second.reducer, "hook", &visitor));
        CHECK_OK(backward(&first, 3, 1.0, -1));
        CHECK_OK(backward(&second, 3, 1.0, -1));
        copy_of(&first, whole);
        copy_of(&second, again);
        CHECK(memcmp(whole, again, sizeof whole) == 0);
        for (int k = 0; k < s.count; k++) {
            free(s.data[k]);
        }
        CHECK_OK(ls_reducer_free(first.reducer));
        CHECK_OK(ls_reducer_free(second.reducer));
    }
}

/* A run that goes on from a checkpoint has other buckets in its first step. */
DIST_TESTS(averages_over_, _ranks_do_not_depend_on_buckets, 2, 3)
{
    static float one[16384], other[16384];
    static const char *const hooks[] = {
        "powersgd:rank=2,start=1", "top_k", "random_k", "int8", "one_bit", "bf16"};
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        job first = open_job(hooks[i], LS_FLOAT32);
        bucket_bytes = first_bucket_bytes = 1 << 20;
        job second = open_job(hooks[i], LS_FLOAT32);
        bucket_bytes = 8192;
        first_bucket_bytes = 2048;
        for (int step = 0; step < 4; step++) {
            CHECK_OK(backward(&first, step, 1.0, -1));
            CHECK_OK(backward(&second, step, 1.0, -1));
            copy_of(&first, one);
            copy_of(&second, other);
            CHECK(memcmp(one, other, sizeof one) == 0);
        }
        CHECK_OK(ls_reducer_free(first.reducer));
        CHECK_OK(ls_reducer_free(second.reducer));
    }
}

DIST_TEST(ranks_with_different_settings_are_named, 3)
{
    ls_reducer_param param = {.name = "w", .count = 10};
    ls_reducer *r = NULL;
    ls_comm_hook hook = {.size = sizeof hook};
    CHECK_OK(ls_reducer_new(ls_world(), &param, 1, NULL, &r));
    CHECK_OK(ls_comm_hook_parse(ls_rank() == 2 ? "top_k:density=0.5" : "top_k", &hook));
    CHECK_STATUS(ls_reducer_set_hook(r, &hook), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(), "the settings of the communication hook");
    CHECK_CONTAINS(ls_error_message(), "rank 2 has density=0.5");
    (void)ls_reducer_free(r);
}

DIST_TEST(texts_that_are_no_hook_are_refused, 1)
{
    static const char *const refused[] = {"",
                                          "power",
                                          "top_k:rank=2",
                                          "top_k:",
                                          "top_k:density",
                                          "top_k:density=0",
                                          "int8:start",
                                          "top_k:density=2",
                                          "powersgd:rank=0",
                                          "powersgd:rank=1.5",
                                          "int8:feedback=2",
                                          "fp16:x=1",
                                          "one_bit:start=-1"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ls_comm_hook hook = {.size = sizeof hook};
        const ls_status status = ls_comm_hook_parse(refused[i], &hook);
        CHECK((status == LS_OK) == (strcmp(refused[i], "top_k:") == 0));
        if (status == LS_OK) {
            hook.free(hook.state);
        }
    }
    ls_comm_hook hook = {.size = sizeof hook};
    CHECK_STATUS(ls_comm_hook_parse("power", &hook), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "communication hook \"%s\" is unknown; give plain, fp16, bf16, "
               "powersgd, top_k, random_k, int8 or one_bit, with settings after "
               "a colon: powersgd:rank=4,start=100");
    CHECK_STATUS(ls_comm_hook_parse("int8:density=1", &hook), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "communication hook \"%s\": \"%s\" is not understood; %s%s");
    CHECK_SAYS(ls_error_message(), "give NAME=NUMBER of: ");
    CHECK_SAYS(ls_error_message(), "start feedback");
    CHECK_STATUS(ls_comm_hook_parse("powersgd:x=1", &hook), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "rank start min feedback seed");
    CHECK_STATUS(ls_comm_hook_parse("top_k:x=1", &hook), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "density start feedback");
    CHECK_STATUS(ls_comm_hook_parse("random_k:x=1", &hook), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "density start feedback seed");
    CHECK_STATUS(ls_comm_hook_parse("fp16:x=1", &hook), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "this hook has no settings");
    CHECK_STATUS(ls_comm_hook_parse("top_k:density=2", &hook), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "give a density above 0 and at most 1, a step >= 0, and a place for the hook");
    CHECK_STATUS(ls_comm_hook_parse("powersgd:rank=0", &hook), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "give a rank from 1 to %d, a step >= 0, a factor >= 0, and a place for the hook");
    CHECK_STATUS(ls_quantize_new(LS_OPTIONS(ls_quantize_options, .bits = 4), &hook),
                 LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "give 1 or 8 bits, a step >= 0, and a place for the hook");
    CHECK_STATUS(ls_cast_hook_new(LS_INT8, &hook), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "give LS_FLOAT16 or LS_BFLOAT16, and a place for the hook");
    CHECK_STATUS(ls_comm_hook_parse(NULL, &hook), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_comm_hook_parse: the %s is NULL; give a text and a place for the hook");
}

TEST_MAIN

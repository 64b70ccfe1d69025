/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the kernel tests: random inputs, comparison with the plain twin, the variants that this
 * machine can run. */
#ifndef KERNEL_TEST_H
#define KERNEL_TEST_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/cpu/onednn.h"
#include "kernel/cpu/tables.h"
#include "kernel/cpu/tiles.h"
#include "kernel/kernels.h"
#include "test.h"

#ifdef TEST_CUDA
/* The tests once more (tests/cuda): the CUDA device's table takes the place of the fast ones. */
const ls__kernels *cuda_table(void);
#define ls__kernels_cpu cuda_table
#define ls__kernels_set_threads(threads) ((void)(threads))
#define TEST_BFLOAT16_PATHS

static inline const ls__kernels *variant(int isa)
{
    return isa == 0 ? cuda_table() : NULL;
}
#else
/* The fast table of `isa`, or NULL where the build or the processor has none. */
static inline const ls__kernels *variant(int isa)
{
    const ls__variant *found = ls__variant_of_isa((ls__isa)isa);
    return found != NULL && isa <= (int)ls__cpu_best() ? found->kernels : NULL;
}

/* Each program says which instruction sets it did not test. */
static inline void check_variant_is_there(ls__isa isa, const char *reason)
{
    CHECK(ls__variant_of_isa(LS__ISA_BASE) != NULL);
    if (variant((int)isa) == NULL) {
        SKIP(reason);
    }
    CHECK_STR(variant((int)isa)->name + strlen("cpu "), isa == LS__ISA_V3 ? "v3" : "v4");
}

TEST(the_variant_for_avx2_is_tested)
{
    check_variant_is_there(LS__ISA_V3, "no AVX2 here: its kernels did not run");
}

TEST(the_variant_for_avx512_is_tested)
{
    check_variant_is_there(LS__ISA_V4, "no AVX-512 here: its kernels did not run");
}

/* In programs whose kernels have paths of their own for bfloat16. */
#define TEST_BFLOAT16_PATHS                                                                        \
    TEST(products_of_bfloat16_instructions_are_tested)                                             \
    {                                                                                              \
        if (!ls__onednn_has_bf16()) {                                                              \
            SKIP("no AVX-512 BF16 here, or no oneDNN: its products did not run");                  \
        }                                                                                          \
        CHECK(ls__cpu_best() == LS__ISA_V4);                                                       \
    }                                                                                              \
    TEST(matrix_tiles_are_tested)                                                                  \
    {                                                                                              \
        if (!ls__tiles_usable()) {                                                                 \
            SKIP("no AMX here, or no oneDNN: matrix tiles did not run");                           \
        }                                                                                          \
        CHECK(ls__cpu_best_level() == LS__CPU_AMX);                                                \
    }

#endif

/* Mean cross-entropy without smoothing, over all rows. */
static inline double cross_entropy_of(const ls__kernels *k, float *dlogits, const float *logits,
                                      const void *target, size_t index_bytes, int64_t rows,
                                      int64_t n)
{
    float loss;
    const ls__cross_entropy a = {&loss, dlogits, logits, target, index_bytes, rows,
                                 n,     0.0,     0.0,    -1,     NULL};
    k->cross_entropy(&a, NULL);
    return (double)loss;
}

static inline void *allocate(size_t bytes)
{
    void *out = aligned_alloc(64, (bytes + 64) / 64 * 64);
    CHECK(out != NULL);
    return out;
}

/* A generator of its own, so that the inputs owe nothing to the code under test. */
static inline float random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) * 0x1p-24f * 2.0f - 1.0f; /* [-1,1) */
}

static inline float *random_floats(int64_t count, uint64_t seed)
{
    float *out = allocate((size_t)count * sizeof(float));
    uint64_t state = test_seed() * 1000003u + seed;
    for (int64_t i = 0; i < count; i++) {
        out[i] = random_next(&state);
    }
    return out;
}

/* Fails at the first element off by more than rtol*|want| + atol; NaN equals NaN only. */
static inline void check_close(const char *what, const float *got, const float *want, int64_t count,
                               double rtol, double atol)
{
    for (int64_t i = 0; i < count; i++) {
        double g = (double)got[i], w = (double)want[i];
        bool same = g == w || (isnan(g) && isnan(w)) || fabs(g - w) <= rtol * fabs(w) + atol;
        if (!same) {
            test_fail(__FILE__, __LINE__, "%s: element %lld of %lld: got %.9g, want %.9g", what,
                      (long long)i, (long long)count, g, w);
        }
    }
}

static inline void check_same_bits(const char *what, const float *got, const float *want,
                                   int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (memcmp(&got[i], &want[i], sizeof(float)) != 0) {
            test_fail(__FILE__, __LINE__, "%s: element %lld of %lld: got %a, want %a", what,
                      (long long)i, (long long)count, (double)got[i], (double)want[i]);
        }
    }
}

#endif

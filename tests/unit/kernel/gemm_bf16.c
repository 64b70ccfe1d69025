/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bfloat16 matrices against the plain twin: every transposition, odd shapes, rows
 * longer than the matrix, batches, bias, C of both types, beta 0 and 1. Tolerance: products are
 * exact in float32, their sum is rounded k times, and a bfloat16 result once more: a neighbour at
 * most. */
#include "kernel_test.h"

typedef struct product {
    ls__gemm_bf16 g;
    ls__bfloat16 *a, *b;
    float *bias;
    void *c, *want;
    int64_t c_count;
} product;

static ls__bfloat16 *random_halves(int64_t count, uint64_t seed)
{
    float *full = random_floats(count, seed);
    ls__bfloat16 *out = allocate((size_t)count * 2);
    ls__kernels_ref()->bfloat16_narrow(out, full, count, 0.0f, NULL);
    free(full);
    return out;
}

static product product_new(const int64_t size[3], int trans, int64_t batch, int64_t gap)
{
    int64_t m = size[0], n = size[1], k = size[2];
    product p = {.g = {.m = m, .n = n, .k = k, .batch = batch}};
    p.g.trans_a = (trans & 1) != 0;
    p.g.trans_b = (trans & 2) != 0;
    p.g.lda = (p.g.trans_a ? m : k) + gap;
    p.g.ldb = (p.g.trans_b ? k : n) + gap;
    p.g.ldc = n + gap;
    p.g.stride_a = (p.g.trans_a ? k : m) * p.g.lda + gap;
    p.g.stride_b = (p.g.trans_b ? n : k) * p.g.ldb;
    p.g.stride_c = m * p.g.ldc;
    p.g.a = p.a = random_halves(batch * p.g.stride_a, 1);
    p.g.b = p.b = random_halves(batch * p.g.stride_b, 2);
    p.bias = random_floats(n, 3);
    p.c_count = batch * p.g.stride_c;
    p.c = allocate((size_t)p.c_count * 4);
    p.want = allocate((size_t)p.c_count * 4);
    return p;
}

static void product_free(product *p)
{
    free(p->a), free(p->b), free(p->bias), free(p->c), free(p->want);
}

static float get(const product *p, const void *c, int64_t i)
{
    float out = 0.0f;
    if (!p->g.half) {
        return ((const float *)c)[i];
    }
    ls__kernels_ref()->bfloat16_widen(&out, (const ls__bfloat16 *)c + i, 1, 0.0f, NULL);
    return out;
}

/* NaN within C where beta is 0, a mark outside it. */
static void start_c(const product *p, void *c)
{
    for (int64_t i = 0; i < p->c_count; i++) {
        bool inside = i % p->g.ldc < p->g.n;
        float value = inside ? (p->g.beta == 0.0f ? NAN : 0.5f) : 1234.0f;
        if (p->g.half) {
            ls__kernels_ref()->bfloat16_narrow((ls__bfloat16 *)c + i, &value, 1, 0.0f, NULL);
        } else {
            ((float *)c)[i] = value;
        }
    }
}

static void check_c(const product *p, const char *name)
{
    double atol = 6e-8 * (double)p->g.k + 1e-6, rtol = p->g.half ? 0x1p-7 : 1e-6;
    for (int64_t i = 0; i < p->c_count; i++) {
        double got = (double)get(p, p->c, i), want = (double)get(p, p->want, i);
        if (!(fabs(got - want) <= rtol * fabs(want) + atol)) {
            test_fail(__FILE__, __LINE__,
                      "%s %c%c %lldx%lldx%lld batch %lld %s beta %g bias %d: element %lld is %g, "
                      "not %g",
                      name, p->g.trans_a ? 'T' : 'N', p->g.trans_b ? 'T' : 'N', (long long)p->g.m,
                      (long long)p->g.n, (long long)p->g.k, (long long)p->g.batch,
                      p->g.half ? "bfloat16" : "float32", (double)p->g.beta, p->g.bias != NULL,
                      (long long)i, got, want);
        }
    }
}

static void run(product *p, const ls__kernels *k, void *c)
{
    start_c(p, c);
    p->g.c = c;
    p->g.workspace = allocate(k->gemm_bf16_workspace(&p->g));
    k->gemm_bf16(&p->g, NULL);
    free(p->g.workspace);
}

static void run_builtin(product *p, int isa)
{
    start_c(p, p->c);
    p->g.c = p->c;
    ls__gemm_bf16 one = p->g;
    for (int64_t i = 0; i < p->g.batch; i++) {
        one.a = p->g.a + i * p->g.stride_a;
        one.b = p->g.b + i * p->g.stride_b;
        one.c = (char *)p->c + i * p->g.stride_c * (p->g.half ? 2 : 4);
        ls__variant_of_isa((ls__isa)isa)->gemm_bf16_builtin(&one);
    }
}

static void check_all(product *p)
{
    run(p, ls__kernels_ref(), p->want);
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        if (variant(isa) != NULL) {
            run(p, variant(isa), p->c);
            check_c(p, variant(isa)->name);
            run_builtin(p, isa);
            check_c(p, "built-in");
        }
    }
}

TEST(products_of_bfloat16_agree_for_every_transposition_and_odd_shapes)
{
    const int64_t sizes[][3] = {{1, 1, 1},    {1, 17, 3},    {17, 1, 31},  {3, 5, 0},
                                {0, 3, 5},    {8, 32, 16},   {9, 33, 17},  {31, 63, 64},
                                {64, 10, 97}, {33, 48, 300}, {7, 515, 37}, {130, 31, 257}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int kind = 0; kind < 32; kind++) {
            product p = product_new(sizes[s], kind & 3, 1 + (int64_t)(s % 3), s % 2 == 0 ? 0 : 5);
            p.g.half = (kind & 4) != 0;
            p.g.beta = (kind & 8) != 0 ? 1.0f : 0.0f;
            p.g.bias = (kind & 16) != 0 ? p.bias : NULL;
            check_all(&p);
            product_free(&p);
        }
    }
}

/* Cut along rows and columns, with and without a rest, and batches that threads share. */
TEST(products_of_bfloat16_do_not_depend_on_the_number_of_threads)
{
    ls__plans *plans = ls__plans_new(ls__env_posix());
    CHECK(plans != NULL);
    const int64_t sizes[][4] = {{1100, 200, 320, 1}, {130, 1536, 384, 1}, {1024, 64, 1030, 1},
                                {256, 256, 130, 9},  {96, 256, 4096, 1},  {129, 1, 640, 3}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int kind = 0; kind < 8; kind++) {
            product p = product_new(sizes[s], kind & 3, sizes[s][3], 3);
            p.g.half = (kind & 4) != 0;
            p.g.plans = s % 2 == 0 ? plans : NULL;
            for (int threads = 1; threads <= 4; threads++) {
                ls__kernels_set_threads(threads);
                run(&p, ls__kernels_cpu(), threads == 1 ? p.want : p.c);
                size_t bytes = (size_t)p.c_count * (p.g.half ? 2 : 4);
                CHECK(threads == 1 || memcmp(p.c, p.want, bytes) == 0);
            }
            product_free(&p);
        }
    }
    ls__kernels_set_threads(1);
    ls__plans_free(plans);
}

TEST(a_cut_product_of_bfloat16_agrees_with_the_plain_twin)
{
    const int64_t sizes[][3] = {{1030, 260, 260}, {257, 1100, 245}};
    for (int kind = 0; kind < 8; kind++) {
        product p = product_new(sizes[kind & 1], kind >> 1, 1, kind & 1);
        p.g.bias = p.bias;
        p.g.half = (kind & 2) != 0;
        check_all(&p);
        product_free(&p);
    }
}

TEST_BFLOAT16_PATHS

TEST_MAIN

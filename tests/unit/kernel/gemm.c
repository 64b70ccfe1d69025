/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: every transposition, odd shapes, rows longer than the matrix, beta 0 and 1;
 * elements outside C stay. Tolerance: partial sums grow
 * as sqrt(k)/3 and are rounded k times, so the largest error of many elements is near 4e-8 k. */
#include "kernel/cpu/gemm_cut.h"
#include "kernel_test.h"

typedef struct product {
    ls__gemm g;
    float *a, *b, *c, *want;
    int64_t c_count;
} product;

static product product_new(int64_t m, int64_t n, int64_t k, int trans, float beta, int64_t gap)
{
    product p = {.g = {.m = m, .n = n, .k = k, .beta = beta}};
    p.g.trans_a = (trans & 1) != 0;
    p.g.trans_b = (trans & 2) != 0;
    p.g.lda = (p.g.trans_a ? m : k) + gap;
    p.g.ldb = (p.g.trans_b ? k : n) + gap;
    p.g.ldc = n + gap;
    p.g.a = p.a = random_floats((p.g.trans_a ? k : m) * p.g.lda, 1);
    p.g.b = p.b = random_floats((p.g.trans_b ? n : k) * p.g.ldb, 2);
    p.c_count = m * p.g.ldc;
    p.c = allocate((size_t)p.c_count * 4);
    p.want = allocate((size_t)p.c_count * 4);
    return p;
}

static void product_free(product *p)
{
    free(p->a), free(p->b), free(p->c), free(p->want);
}

/* NaN within C where beta is 0, a mark outside it. */
static void start_c(const product *p, float *c)
{
    for (int64_t i = 0; i < p->c_count; i++) {
        bool inside = i % p->g.ldc < p->g.n;
        c[i] = inside ? (p->g.beta == 0.0f ? NAN : 0.5f) : 1234.0f;
    }
}

static void check_c(const product *p, const char *name)
{
    char what[128];
    snprintf(what, sizeof what, "%s %c%c %lldx%lldx%lld beta %g", name, p->g.trans_a ? 'T' : 'N',
             p->g.trans_b ? 'T' : 'N', (long long)p->g.m, (long long)p->g.n, (long long)p->g.k,
             (double)p->g.beta);
    check_close(what, p->c, p->want, p->c_count, 1e-6, 6e-8 * (double)p->g.k + 1e-6);
}

static void check_variant(product *p, int isa)
{
    p->g.c = p->c;
    start_c(p, p->c);
    variant(isa)->gemm(&p->g, NULL);
    check_c(p, variant(isa)->name);
    if (p->g.k > 0) {
        start_c(p, p->c);
        ls__variant_of_isa((ls__isa)isa)->gemm_builtin(&p->g);
        check_c(p, "built-in");
    }
}

static void check_all(int64_t m, int64_t n, int64_t k, int trans, float beta, int64_t gap)
{
    product p = product_new(m, n, k, trans, beta, gap);
    start_c(&p, p.want);
    p.g.c = p.want;
    ls__kernels_ref()->gemm(&p.g, NULL);
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        if (variant(isa) != NULL) {
            check_variant(&p, isa);
        }
    }
    product_free(&p);
}

TEST(products_agree_for_every_transposition_and_odd_shapes)
{
    const int64_t sizes[][3] = {{1, 1, 1},     {1, 17, 3},   {17, 1, 31},   {3, 5, 0},
                                {0, 3, 5},     {8, 32, 16},  {9, 33, 17},   {31, 63, 64},
                                {64, 10, 97},  {10, 64, 96}, {33, 48, 300}, {7, 1023, 5},
                                {100, 31, 257}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int trans = 0; trans < 4; trans++) {
            for (int kind = 0; kind < 4; kind++) {
                check_all(sizes[s][0], sizes[s][1], sizes[s][2], trans, (float)(kind & 1),
                          (kind & 2) != 0 ? 5 : 0);
            }
        }
    }
}

/* Shapes for which oneDNN cuts the sum over k among its threads, and the largest of a small model.
 */
TEST(products_do_not_depend_on_the_number_of_threads)
{
    const int64_t sizes[][3] = {{96, 256, 4096},  {1, 48, 1024},   {129, 1, 640},  {31, 288, 4096},
                                {1024, 320, 160}, {300, 700, 333}, {64, 1500, 512}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int trans = 0; trans < 4; trans++) {
            product p = product_new(sizes[s][0], sizes[s][1], sizes[s][2], trans, 0.0f, 3);
            for (int threads = 1; threads <= 4; threads++) {
                float *c = threads == 1 ? p.want : p.c;
                start_c(&p, c);
                p.g.c = c;
                ls__kernels_set_threads(threads);
                ls__kernels_cpu()->gemm(&p.g, NULL);
                check_same_bits("gemm", c, p.want, p.c_count);
            }
            product_free(&p);
        }
    }
}

TEST(a_split_product_agrees_with_the_plain_twin)
{
    for (int trans = 0; trans < 4; trans++) {
        check_all(1030, 260, 130, trans, 1.0f, 1);
        check_all(257, 1100, 125, trans, 0.0f, 0);
        check_all(300, 420, 333, trans, 1.0f, 2); /* pieces of A along k, too */
    }
}

/* The parts that each of two threads gets, as OpenMP's static schedule shares them. */
static void check_halves(int64_t side, int64_t parts, int64_t middle)
{
    CHECK_INT(parts % 2, 0);
    if (llabs(2 * middle - side) > (parts + 1) * LS__CUT_UNIT) {
        test_fail(__FILE__, __LINE__, "%lld in %lld parts: one thread has %lld", (long long)side,
                  (long long)parts, (long long)middle);
    }
}

TEST(two_threads_have_the_same_to_do_at_any_size)
{
    for (int64_t side = LS__PART_MIN + 1; side < 9000; side++) {
        for (int transposed = 0; transposed < 2; transposed++) {
            const int64_t parts = ls__parts_of(side, transposed);
            check_halves(side, parts, ls__part_from(side, parts, parts / 2));
            for (int64_t i = 0; i < parts; i++) {
                const int64_t of =
                    ls__part_from(side, parts, i + 1) - ls__part_from(side, parts, i);
                CHECK(of > 0 && of <= (transposed ? LS__PART_MIN : LS__PART_MAX) + LS__CUT_UNIT);
            }
        }
        const ls__gemm_bf16 g = {.batch = 1, .m = side, .n = 512, .k = 1024};
        const ls__gemm_cut cut = ls__gemm_cut_of(&g);
        if (side > LS__CUT_MIN) {
            check_halves(side, cut.parts, cut.parts / 2 * cut.step);
            CHECK(cut.step <= LS__CUT_MAX && (cut.parts - 1) * cut.step < side);
        }
    }
}

TEST(a_batch_is_its_products_one_by_one)
{
    const int64_t m = 33, n = 40, k = 65, batch = 600; /* enough to go parallel */
    float *a = random_floats(batch * m * k, 1), *b = random_floats(k * n, 2);
    float *c = allocate((size_t)(batch * m * n) * 4), *one = allocate((size_t)(m * n) * 4);
    ls__gemm g = {.m = m, .n = n, .k = k, .a = a, .lda = k, .b = b, .ldb = n, .c = c, .ldc = n};
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        const ls__kernels *table = variant(isa);
        for (int threads = 1; table != NULL && threads <= 2; threads++) {
            ls__kernels_set_threads(threads);
            table->gemm_batch(&g, batch, m * k, 0, m * n, NULL);
            for (int64_t i = 0; i < batch; i += 7) {
                ls__gemm single = g;
                single.a = a + i * m * k;
                single.c = one;
                table->gemm(&single, NULL);
                check_same_bits("gemm_batch", c + i * m * n, one, m * n);
            }
        }
    }
    free(a), free(b), free(c), free(one);
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* Products with weights of bfloat16 and int8 against float64 sums of the same rounded weights, of
 * this file and of the plain twin: odd sizes, rests of the vectors, of the tiles and of the blocks,
 * bias, functions. Tolerance: products of 8 bits are rounded once, and their sum k times, to
 * float32: 6e-8 of the sum of the sizes, which are 1 or less. */
#include "base/half.h"
#include "kernel_test.h"

typedef struct product {
    ls__linear_rounded l;
    float *x, *scale, *bias, *y, *want;
    void *w;
} product;

static product product_new(const int64_t size[3], bool is_int8)
{
    const int64_t m = size[0], n = size[1], k = size[2];
    product p = {.l = {.m = m, .n = n, .k = k}};
    float *weights = random_floats(n * k, 1);
    p.w = allocate((size_t)(n * k) * 2);
    for (int64_t i = 0; i < n * k; i++) {
        if (is_int8) {
            ((int8_t *)p.w)[i] = (int8_t)lrintf(weights[i] * 127.0f);
        } else {
            ((uint16_t *)p.w)[i] = ls__bfloat16_round(weights[i]);
        }
    }
    free(weights);
    p.x = random_floats(m * k, 2);
    p.scale = random_floats(n, 3);
    p.bias = random_floats(n, 4);
    for (int64_t j = 0; j < n; j++) {
        p.scale[j] = (1.0f + fabsf(p.scale[j])) / 127.0f;
    }
    p.y = allocate((size_t)(m * n) * sizeof(float));
    p.want = allocate((size_t)(m * n) * sizeof(float));
    p.l.x = p.x, p.l.w = p.w, p.l.scale = is_int8 ? p.scale : NULL;
    return p;
}

static void product_free(product *p)
{
    free(p->x), free(p->scale), free(p->bias), free(p->y), free(p->want), free(p->w);
}

static double weight_of(const product *p, int64_t j, int64_t at)
{
    return p->l.scale != NULL ? (double)p->l.scale[j] * (double)((const int8_t *)p->w)[at]
                              : (double)ls__bfloat16_widen(((const uint16_t *)p->w)[at]);
}

/* relu(x w^T + bias), in float64. */
static void expect(product *p)
{
    for (int64_t i = 0; i < p->l.m; i++) {
        for (int64_t j = 0; j < p->l.n; j++) {
            double sum = p->l.bias != NULL ? (double)p->l.bias[j] : 0.0;
            for (int64_t q = 0; q < p->l.k; q++) {
                sum += (double)p->x[i * p->l.k + q] * weight_of(p, j, j * p->l.k + q);
            }
            p->want[i * p->l.n + j] = (float)(p->l.activates && sum < 0.0 ? 0.0 : sum);
        }
    }
}

static void run(product *p, const ls__kernels *k, float *y)
{
    for (int64_t i = 0; i < p->l.m * p->l.n; i++) {
        y[i] = NAN;
    }
    p->l.y = y;
    k->linear_rounded(&p->l, NULL);
}

static void check_on(product *p, const ls__kernels *k)
{
    char what[128];
    snprintf(what, sizeof what, "%s of %s, [%lld,%lld,%lld] bias %d relu %d",
             p->l.scale != NULL ? "int8" : "bfloat16", k->name, (long long)p->l.m,
             (long long)p->l.n, (long long)p->l.k, p->l.bias != NULL, p->l.activates);
    run(p, k, p->y);
    check_close(what, p->y, p->want, p->l.m * p->l.n, 1e-6, 1.2e-7 * (double)p->l.k + 1e-7);
}

static void check_all(product *p)
{
    expect(p);
    check_on(p, ls__kernels_ref());
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        if (variant(isa) != NULL) {
            check_on(p, variant(isa));
        }
    }
}

TEST(products_with_rounded_weights_agree_for_odd_shapes)
{
    const int64_t sizes[][3] = {
        {1, 1, 1},    {1, 17, 3},  {2, 5, 16},    {3, 16, 15},  {4, 33, 64},  {5, 15, 65},
        {7, 31, 130}, {8, 1, 257}, {9, 48, 63},   {1, 50, 300}, {17, 19, 79}, {6, 7, 0},
        {0, 3, 5},    {1, 0, 4},   {1, 257, 127}, {33, 3, 511}, {1, 16, 768}, {4, 100, 192}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int kind = 0; kind < 8; kind++) {
            product p = product_new(sizes[s], (kind & 1) != 0);
            p.l.bias = (kind & 2) != 0 ? p.bias : NULL;
            p.l.activates = (kind & 4) != 0;
            p.l.op = LS__UNARY_RELU;
            check_all(&p);
            product_free(&p);
        }
    }
}

TEST(the_largest_and_the_least_weights_keep_their_signs)
{
    const int64_t size[3] = {1, 2, 70};
    product p = product_new(size, true);
    memset(p.w, -128, 70);
    memset((char *)p.w + 70, 127, 70);
    check_all(&p);
    CHECK(p.want[0] != 0.0f);
    product_free(&p);
}

/* A text read whole or token by token has the same logits, as far as products go. */
TEST(a_row_has_the_same_bits_beside_others_and_on_any_number_of_threads)
{
    const int64_t sizes[][3] = {{9, 515, 770}, {1, 3000, 128}};
    for (int kind = 0; kind < 4; kind++) {
        product p = product_new(sizes[kind >> 1], (kind & 1) != 0);
        p.l.bias = p.bias;
        p.l.activates = true;
        p.l.op = LS__UNARY_GELU_TANH;
        ls__kernels_set_threads(1);
        run(&p, ls__kernels_cpu(), p.want);
        for (int threads = 2; threads <= 4; threads++) {
            ls__kernels_set_threads(threads);
            run(&p, ls__kernels_cpu(), p.y);
            check_same_bits("threads", p.y, p.want, p.l.m * p.l.n);
        }
        ls__kernels_set_threads(1);
        const int64_t m = p.l.m;
        p.l.m = 1;
        for (int64_t i = 0; i < m; i++) {
            p.l.x = p.x + i * p.l.k;
            run(&p, ls__kernels_cpu(), p.y);
            check_same_bits("one row", p.y, p.want + i * p.l.n, p.l.n);
        }
        product_free(&p);
    }
}

TEST_MAIN

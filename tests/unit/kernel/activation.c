/* SPDX-License-Identifier: Apache-2.0 */
/* Bias and activation at the end of a product, and the gradient of both, against the plain twin,
 * and bit for bit against the kernels one by one. */
#include "base/half.h"
#include "kernel_test.h"

static const ls__unary all[] = {LS__UNARY_RELU, LS__UNARY_GELU_ERF, LS__UNARY_GELU_TANH,
                                LS__UNARY_SILU, LS__UNARY_TANH};
enum { ALL = sizeof all / sizeof *all };

typedef struct product {
    int64_t m, n, k;
    float *a, *b, *bias, *c[2], *out[2]; /* [0] the twin's */
    ls__bfloat16 *half_a, *half_b;
    ls__unary op;
    bool apart; /* the result is not to take C's place */
} product;

static ls__bfloat16 *halves_of(const float *x, int64_t count)
{
    ls__bfloat16 *out = allocate((size_t)count * 2);
    ls__kernels_ref()->bfloat16_narrow(out, x, count, 0.0f, NULL);
    return out;
}

static product product_new(const int64_t size[3])
{
    product p = {.m = size[0], .n = size[1], .k = size[2]};
    p.a = random_floats(p.m * p.k, 1);
    p.b = random_floats(p.k * p.n, 2);
    p.bias = random_floats(p.n, 3);
    p.half_a = halves_of(p.a, p.m * p.k);
    p.half_b = halves_of(p.b, p.k * p.n);
    for (int i = 0; i < 2; i++) {
        p.c[i] = allocate((size_t)(p.m * (p.n + 3)) * 4);
        p.out[i] = allocate((size_t)(p.m * (p.n + 3)) * 4);
    }
    return p;
}

static void product_free(product *p)
{
    free(p->a), free(p->b), free(p->bias), free(p->half_a), free(p->half_b);
    for (int i = 0; i < 2; i++) {
        free(p->c[i]), free(p->out[i]);
    }
}

static ls__activation then_of(const product *p, int side)
{
    return (ls__activation){.on = true, .op = p->op, .out = p->apart ? p->out[side] : NULL};
}

static void run_full(const product *p, const ls__kernels *k, int side)
{
    const ls__gemm g = {.m = p->m,
                        .n = p->n,
                        .k = p->k,
                        .a = p->a,
                        .lda = p->k,
                        .b = p->b,
                        .ldb = p->n,
                        .c = p->c[side],
                        .ldc = p->n + 3,
                        .bias = p->bias,
                        .then = then_of(p, side)};
    k->gemm(&g, NULL);
}

static void run_half(const product *p, const ls__kernels *k, int side)
{
    ls__gemm_bf16 g = {.m = p->m,
                       .n = p->n,
                       .k = p->k,
                       .a = p->half_a,
                       .lda = p->k,
                       .b = p->half_b,
                       .ldb = p->n,
                       .c = p->c[side],
                       .ldc = p->n + 3,
                       .half = true,
                       .bias = p->bias,
                       .then = then_of(p, side),
                       .batch = 1};
    g.workspace = allocate(k->gemm_bf16_workspace(&g));
    k->gemm_bf16(&g, NULL);
    free(g.workspace);
}

/* Both sides of [m,n] with rows of n + 3, as float32. */
static void check_sides(const product *p, float *const side[2], bool half, const char *name)
{
    float *row[2] = {allocate((size_t)p->n * 4), allocate((size_t)p->n * 4)};
    char what[96];
    snprintf(what, sizeof what, "%s %s then %d, %lldx%lldx%lld", name, half ? "bf16" : "f32",
             (int)p->op, (long long)p->m, (long long)p->n, (long long)p->k);
    for (int64_t i = 0; i < p->m; i++) {
        for (int s = 0; s < 2; s++) {
            const void *at = (char *)side[s] + i * (p->n + 3) * (half ? 2 : 4);
            if (half) {
                ls__kernels_ref()->bfloat16_widen(row[s], at, p->n, 0.0f, NULL);
            } else {
                memcpy(row[s], at, (size_t)p->n * 4);
            }
        }
        /* a bfloat16 sum may round to a neighbour, and its function once more */
        check_close(what, row[1], row[0], p->n, half ? 0x1p-6 : 2e-6,
                    2e-7 * (double)p->k + (half ? 0x1p-8 : 1e-6));
    }
    free(row[0]), free(row[1]);
}

static void check_product(product *p, const ls__kernels *k)
{
    for (int half = 0; half < 2; half++) {
        for (int side = 0; side < 2; side++) {
            const ls__kernels *table = side == 0 ? ls__kernels_ref() : k;
            half ? run_half(p, table, side) : run_full(p, table, side);
        }
        check_sides(p, p->c, half != 0, k->name);
        if (p->apart) {
            check_sides(p, p->out, half != 0, k->name);
        }
    }
}

TEST(a_product_ends_with_bias_and_activation_as_the_plain_twin_has_it)
{
    const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 0},    {9, 33, 17},   {31, 63, 64},
                                {0, 3, 5}, {64, 10, 97}, {33, 48, 300}, {260, 530, 260}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        product p = product_new(sizes[s]);
        for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
            bool large = p.m * p.n * p.k > 1000000;
            for (int i = 0; variant(isa) != NULL && i < (large ? 1 : 2 * ALL); i++) {
                p.op = all[i % ALL];
                p.apart = i < ALL;
                check_product(&p, variant(isa));
            }
        }
        product_free(&p);
    }
}

/* The parts that threads share, cut along rows and along columns. */
TEST(what_a_product_ends_with_is_what_the_kernels_give_one_by_one)
{
    const int64_t sizes[][3] = {{600, 300, 300}, {130, 1100, 300}, {1100, 260, 260}};
    const ls__kernels *k = ls__kernels_cpu();
    for (int i = 0; i < 3 * ALL; i++) {
        product p = product_new(sizes[i % 3]);
        p.op = all[i / 3];
        p.apart = i % 2 == 0;
        const ls__gemm plain = {.m = p.m,
                                .n = p.n,
                                .k = p.k,
                                .a = p.a,
                                .lda = p.k,
                                .b = p.b,
                                .ldb = p.n,
                                .c = p.c[0],
                                .ldc = p.n};
        k->gemm(&plain, NULL);
        k->add_rows(p.c[0], p.bias, p.m, p.n, NULL);
        k->unary(p.op, p.out[0], p.c[0], p.m * p.n, NULL);
        for (int threads = 1; threads <= 3; threads++) {
            ls__kernels_set_threads(threads);
            run_full(&p, k, 1);
            for (int64_t row = 0; row < p.m; row++) {
                const float *got = (p.apart ? p.out[1] : p.c[1]) + row * (p.n + 3);
                check_same_bits("product", got, p.out[0] + row * p.n, p.n);
                if (p.apart) {
                    check_same_bits("before", p.c[1] + row * (p.n + 3), p.c[0] + row * p.n, p.n);
                }
            }
        }
        ls__kernels_set_threads(1);
        product_free(&p);
    }
}

/* ---- gradients ---------------------------------------------------------------------------- */

typedef struct gradient {
    ls__activation_grad g;
    float *dy, *z, *dz[2], *db[2];
    void *half_dy, *half_z;
} gradient;

static gradient gradient_new(int64_t rows, int64_t n, bool half)
{
    int64_t count = rows * n;
    gradient d = {.dy = random_floats(count, 4), .z = random_floats(count, 5)};
    d.half_dy = halves_of(d.dy, count), d.half_z = halves_of(d.z, count);
    for (int i = 0; i < 2; i++) {
        d.dz[i] = allocate((size_t)count * 4);
        d.db[i] = allocate((size_t)n * 4);
    }
    d.g = (ls__activation_grad){.half = half, .rows = rows, .n = n};
    d.g.dy = half ? d.half_dy : d.dy;
    d.g.x = d.g.y = half ? d.half_z : (void *)d.z;
    return d;
}

static void gradient_free(gradient *d)
{
    free(d->dy), free(d->z), free(d->half_dy), free(d->half_z);
    for (int i = 0; i < 2; i++) {
        free(d->dz[i]), free(d->db[i]);
    }
}

static void run_gradient(gradient *d, const ls__kernels *k, int side, bool sums)
{
    for (int64_t j = 0; j < d->g.n; j++) {
        d->db[side][j] = d->g.beta == 0.0f ? NAN : 0.5f;
    }
    d->g.dz = d->dz[side];
    d->g.db = sums ? d->db[side] : NULL;
    d->g.workspace = allocate(k->activation_backward_workspace(&d->g));
    k->activation_backward(&d->g, NULL);
    free(d->g.workspace);
}

static void check_gradient(gradient *d, const ls__kernels *k)
{
    int64_t count = d->g.rows * d->g.n;
    float *wide[2] = {allocate((size_t)count * 4), allocate((size_t)count * 4)};
    for (int i = 0; i < 2; i++) {
        run_gradient(d, i == 0 ? ls__kernels_ref() : k, i, true);
        if (d->g.half) {
            ls__kernels_ref()->bfloat16_widen(wide[i], (ls__bfloat16 *)(void *)d->dz[i], count,
                                              0.0f, NULL);
        } else {
            memcpy(wide[i], d->dz[i], (size_t)count * 4);
        }
    }
    double place = d->g.half ? 0x1p-7 : 2e-6;
    check_close(k->name, wide[1], wide[0], count, place, 1e-6);
    check_close(k->name, d->db[1], d->db[0], d->g.n, 1e-6, (double)d->g.rows * place * 0.25 + 1e-6);
    free(wide[0]), free(wide[1]);
}

TEST(the_gradient_of_an_activation_and_its_sum_agree_with_the_plain_twin)
{
    const int64_t sizes[][2] = {{1, 1}, {17, 5}, {133, 300}, {100, 257}, {0, 4}, {50, 5000}};
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        for (int i = 0; variant(isa) != NULL && i < 6 * 4 * ALL; i++) {
            const int64_t *size = sizes[i % 6];
            gradient d = gradient_new(size[0], size[1], (i / 6 & 1) != 0);
            d.g.beta = (i / 12 & 1) != 0 ? 1.0f : 0.0f;
            d.g.op = all[i / 24];
            check_gradient(&d, variant(isa));
            gradient_free(&d);
        }
    }
}

/* dy's own memory takes dz, too. */
TEST(the_gradient_of_an_activation_is_that_of_the_kernels_one_by_one)
{
    const ls__kernels *k = ls__kernels_cpu();
    for (int i = 0; i < 2 * ALL; i++) {
        gradient d = gradient_new(300, i % 2 == 0 ? 3000 : 256, false);
        int64_t count = d.g.rows * d.g.n;
        d.g.op = all[i / 2];
        k->unary_backward(d.g.op, d.dz[0], d.dy, d.z, d.z, count, 0.0f, NULL);
        k->sum_rows(d.db[0], d.dz[0], d.g.rows, d.g.n, 0.0f, NULL);
        for (int threads = 1; threads <= 3; threads++) {
            ls__kernels_set_threads(threads);
            run_gradient(&d, k, 1, threads < 3);
            check_same_bits("dz", d.dz[1], d.dz[0], count);
            check_same_bits("db", threads < 3 ? d.db[1] : d.db[0], d.db[0], d.g.n);
        }
        ls__kernels_set_threads(1);
        memcpy(d.dz[1], d.dy, (size_t)count * 4);
        d.g.dy = d.dz[1];
        run_gradient(&d, k, 1, true);
        check_same_bits("dz in place", d.dz[1], d.dz[0], count);
        gradient_free(&d);
    }
}

TEST_BFLOAT16_PATHS

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels on bfloat16 against their plain twins: the same float32 function, rounded once. The two
 * may land on either side of a rounding, so they agree to one place of bfloat16. */
#include "base/half.h"
#include "kernel_test.h"

#define COUNT 70001  /* several tasks and blocks, and a rest */
#define PLACE 0.0079 /* of a bfloat16 relative to itself: 2^-7 */

static ls__bfloat16 *random_halves(int64_t count, uint64_t seed, float scale, float shift)
{
    ls__bfloat16 *out = allocate((size_t)count * 2);
    uint64_t state = test_seed() * 1000003u + seed;
    for (int64_t i = 0; i < count; i++) {
        out[i] = ls__bfloat16_round(random_next(&state) * scale + shift);
    }
    return out;
}

static void check_halves(const char *what, const ls__bfloat16 *got, const ls__bfloat16 *want,
                         int64_t count, double atol)
{
    for (int64_t i = 0; i < count; i++) {
        float g = ls__bfloat16_widen(got[i]), w = ls__bfloat16_widen(want[i]);
        check_close(what, &g, &w, 1, PLACE, atol);
    }
}

typedef struct sides { /* what the plain twin and the fast kernel write, alike before */
    ls__bfloat16 *want, *got;
} sides;

static sides sides_new(int64_t count)
{
    sides s = {random_halves(count, 9, 1.0f, 0.0f), allocate((size_t)count * 2)};
    memcpy(s.got, s.want, (size_t)count * 2);
    return s;
}

static void sides_free(sides *s)
{
    free(s->want), free(s->got);
}

static void unary_once(const ls__kernels *k, ls__unary op, int64_t count, float beta)
{
    const bool positive = op == LS__UNARY_LOG || op == LS__UNARY_SQRT || op == LS__UNARY_XLOGX;
    ls__bfloat16 *x = random_halves(count, 1, positive ? 1.0f : 4.0f, positive ? 2.0f : 0.0f);
    ls__bfloat16 *dy = random_halves(count, 2, 1.0f, 0.0f);
    sides y = sides_new(count), dx = sides_new(count);
    char what[64];
    snprintf(what, sizeof what, "%s unary %d of %lld", k->name, (int)op, (long long)count);
    ls__kernels_ref()->unary_bf16(op, y.want, x, count, NULL);
    k->unary_bf16(op, y.got, x, count, NULL);
    check_halves(what, y.got, y.want, count, 1e-30);
    ls__kernels_ref()->unary_backward_bf16(op, dx.want, dy, x, y.want, count, beta, NULL);
    k->unary_backward_bf16(op, dx.got, dy, x, y.want, count, beta, NULL);
    check_halves(what, dx.got, dx.want, count, 1e-6);
    sides_free(&y), sides_free(&dx);
    free(x), free(dy);
}

TEST(functions_of_bfloat16_agree_with_the_plain_twin)
{
    const int64_t counts[] = {1, 17, 2049};
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        for (int op = 0; variant(isa) != NULL && op < LS__UNARY_COUNT; op++) {
            for (int i = 0; i < 6; i++) {
                unary_once(variant(isa), (ls__unary)op, counts[i % 3], (float)(i / 3));
            }
        }
    }
    ls__kernels_set_threads(3);
    unary_once(ls__kernels_cpu(), LS__UNARY_GELU_ERF, COUNT, 0.0f);
    ls__kernels_set_threads(1);
}

/* All eight pairings of types; results of float32 must have the twin's bits. */
static void binary_once(const ls__kernels *k, ls__binary op, int64_t count, unsigned types)
{
    float *wide[2] = {random_floats(count, 1), random_floats(count, 2)};
    ls__bfloat16 *half[2] = {random_halves(count, 3, 1.0f, 3.0f),
                             random_halves(count, 4, 1.0f, 3.0f)};
    float *want = allocate((size_t)count * 4), *got = allocate((size_t)count * 4);
    sides out = sides_new(count);
    ls__real in[2];
    for (int i = 0; i < 2; i++) {
        in[i].half = (types >> i & 1) != 0;
        in[i].at = in[i].half ? (void *)half[i] : (void *)wide[i];
    }
    bool narrow = (types >> 2 & 1) != 0;
    ls__real to = {narrow ? (void *)out.want : (void *)want, narrow};
    ls__kernels_ref()->binary_bf16(op, to, in[0], in[1], count, NULL);
    to.at = narrow ? (void *)out.got : (void *)got;
    k->binary_bf16(op, to, in[0], in[1], count, NULL);
    if (narrow) {
        check_halves(k->name, out.got, out.want, count, 0.0);
    } else {
        check_close(k->name, got, want, count, 1e-6, 1e-7);
    }
    sides_free(&out);
    free(wide[0]), free(wide[1]), free(half[0]), free(half[1]), free(want), free(got);
}

TEST(operands_of_either_type_agree_with_the_plain_twin)
{
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        for (unsigned i = 0; variant(isa) != NULL && i < 8 * LS__BINARY_COUNT; i++) {
            binary_once(variant(isa), (ls__binary)(i / 8), 2051, i % 8);
        }
    }
    for (int threads = 1; threads <= 3; threads++) {
        ls__kernels_set_threads(threads);
        binary_once(ls__kernels_cpu(), LS__BINARY_ADD, COUNT, 2);
    }
    ls__kernels_set_threads(1);
}

TEST(scaled_sums_and_dropout_of_bfloat16_agree_with_the_plain_twin)
{
    ls__bfloat16 *a = random_halves(COUNT, 1, 1.0f, 0.0f);
    for (int i = 0; i < LS__ISA_COUNT * 2; i++) {
        const ls__kernels *k = variant(i / 2), *ref = ls__kernels_ref();
        const float beta = (float)(i % 2);
        sides sum = sides_new(COUNT), kept = sides_new(COUNT);
        if (k != NULL) {
            ref->axpby_bf16(sum.want, a, COUNT, -1.5f, beta, NULL);
            k->axpby_bf16(sum.got, a, COUNT, -1.5f, beta, NULL);
            check_halves(k->name, sum.got, sum.want, COUNT, 1e-7);
            const ls__drop drop = {.p = 0.25,
                                   .seed = 5,
                                   .stream_id = 6,
                                   .first = 3,
                                   .run = i < LS__ISA_COUNT ? 0 : 700,
                                   .stride = 1400};
            ref->dropout_bf16(kept.want, a, COUNT, &drop, beta, NULL);
            k->dropout_bf16(kept.got, a, COUNT, &drop, beta, NULL);
            check_halves(k->name, kept.got, kept.want, COUNT, 1e-7);
        }
        sides_free(&sum), sides_free(&kept);
    }
    free(a);
}

TEST(sums_over_rows_of_bfloat16_agree_with_the_plain_twin)
{
    const int64_t shapes[][2] = {{1, 1}, {17, 5}, {16, 256}, {100, 700}, {513, 300}};
    for (int i = 0; i < LS__ISA_COUNT * 10; i++) {
        const ls__kernels *k = variant(i / 10);
        int64_t rows = shapes[i % 5][0], n = shapes[i % 5][1];
        float beta = (float)(i / 5 % 2);
        if (k == NULL) {
            continue;
        }
        ls__bfloat16 *x = random_halves(rows * n, 1, 1.0f, 0.0f);
        float *want = random_floats(n, 2), *got = random_floats(n, 2);
        ls__kernels_ref()->sum_rows_bf16(want, x, rows, n, beta, NULL);
        k->sum_rows_bf16(got, x, rows, n, beta, NULL);
        check_close(k->name, got, want, n, 1e-5, 1e-5);
        free(x), free(want), free(got);
    }
}

static void cross_entropy_once(const ls__kernels *k, int64_t rows, int64_t n, double smoothing)
{
    ls__bfloat16 *x = random_halves(rows * n, 1, 5.0f, 0.0f);
    int32_t *target = allocate((size_t)rows * 4);
    for (int64_t i = 0; i < rows; i++) {
        target[i] = i % 5 == 3 ? -100 : (int32_t)(i * 7 % n);
    }
    ls__cross_entropy args = {.target = target, .index_bytes = 4, .rows = rows, .n = n};
    args.smoothing = smoothing, args.z_loss = smoothing / 10.0, args.ignore = -100;
    sides dx = sides_new(rows * n);
    float want, got, alone;
    args.loss = &want;
    ls__kernels_ref()->cross_entropy_bf16(dx.want, x, &args, NULL);
    args.loss = &got;
    k->cross_entropy_bf16(dx.got, x, &args, NULL);
    args.loss = &alone;
    k->cross_entropy_bf16(NULL, x, &args, NULL);
    check_halves(k->name, dx.got, dx.want, rows * n, 1e-8);
    CHECK(fabsf(got - want) <= 1e-5f * want);
    CHECK(fabsf(alone - want) <= 1e-5f * want);
    sides_free(&dx);
    free(x), free(target);
}

TEST(losses_of_bfloat16_logits_agree_with_the_plain_twin)
{
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        for (int i = 0; variant(isa) != NULL && i < 6; i++) {
            cross_entropy_once(variant(isa), i < 4 ? 1 + i : 100, i < 4 ? 1 + 9 * i : 700,
                               i % 2 * 0.1);
        }
    }
    cross_entropy_once(ls__kernels_cpu(), 3, LS__HALF_LOGITS_MAX, 0.0);
}

/* Of a part of the classes, whose `max` and `sums` the twin makes for both. */
static void vocab_loss_once(const ls__kernels *k, int64_t rows, int64_t n, double smoothing)
{
    const ls__kernels *ref = ls__kernels_ref();
    ls__bfloat16 *x = random_halves(rows * n, 1, 5.0f, 0.0f);
    int32_t *target = allocate((size_t)rows * 4);
    float *want = allocate((size_t)rows * 16), *got = allocate((size_t)rows * 16);
    for (int64_t i = 0; i < rows; i++) {
        target[i] = i % 5 == 3 ? -100 : (int32_t)(i * 7 % (2 * n));
    }
    ls__vocab_loss args = {.logits = {x, true}, .target = target, .index_bytes = 4, .rows = rows};
    args.n = n, args.first = n / 2, args.classes = 2 * n, args.ignore = -100;
    args.smoothing = smoothing, args.z_loss = smoothing / 10.0;
    for (int i = 0; i < 2; i++) {
        args.max = i == 0 ? want : got, args.sums = args.max + rows;
        (i == 0 ? ref : k)->vocab_max(&args, NULL);
        (i == 0 ? ref : k)->vocab_sums(&args, NULL);
    }
    check_close(k->name, got, want, (smoothing > 0.0 ? 4 : 3) * rows, 1e-5, 1e-4);
    sides dx = sides_new(rows * n);
    const float dloss = -2.0f;
    ref->vocab_loss_backward(dx.want, &args, &dloss, NULL);
    k->vocab_loss_backward(dx.got, &args, &dloss, NULL);
    check_halves(k->name, dx.got, dx.want, rows * n, 1e-8);
    sides_free(&dx);
    free(x), free(target), free(want), free(got);
}

TEST(losses_of_a_part_of_the_classes_agree_with_the_plain_twin)
{
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        for (int i = 0; variant(isa) != NULL && i < 6; i++) {
            vocab_loss_once(variant(isa), i < 4 ? 1 + i : 20, i < 4 ? 1 + 9 * i : 5000,
                            i % 2 * 0.1);
        }
    }
}

static void softmax_once(const ls__kernels *k, int64_t rows, int64_t n, bool log, float beta)
{
    const ls__kernels *ref = ls__kernels_ref();
    ls__bfloat16 *x = random_halves(rows * n, 1, 4.0f, 0.0f);
    ls__bfloat16 *dy = random_halves(rows * n, 2, 1.0f, 0.0f);
    sides y = sides_new(rows * n), dx = sides_new(rows * n);
    ref->softmax_bf16(y.want, x, rows, n, log, NULL);
    k->softmax_bf16(y.got, x, rows, n, log, NULL);
    check_halves(k->name, y.got, y.want, rows * n, 1e-30);
    ref->softmax_backward_bf16(dx.want, dy, y.want, rows, n, log, beta, NULL);
    k->softmax_backward_bf16(dx.got, dy, y.want, rows, n, log, beta, NULL);
    check_halves(k->name, dx.got, dx.want, rows * n, 1e-5);
    sides_free(&y), sides_free(&dx);
    free(x), free(dy);
}

static void layer_norm_once(const ls__kernels *k, int64_t rows, int64_t n, int kind)
{
    const ls__kernels *ref = ls__kernels_ref();
    const float beta = (float)(kind & 1);
    ls__bfloat16 *x = random_halves(rows * n, 1, 2.0f, 1.0f);
    ls__bfloat16 *dy = random_halves(rows * n, 2, 1.0f, 0.0f);
    float *w = (kind & 2) != 0 ? random_floats(n, 3) : NULL, *mean = random_floats(rows, 4);
    float *rstd = random_floats(rows, 5), *want = random_floats(2 * n, 6);
    float *got = random_floats(2 * n, 6);
    void *workspace = allocate(k->layer_norm_workspace(rows, n));
    sides y = sides_new(rows * n), dx = sides_new(rows * n);
    ref->layer_norm_bf16(y.want, mean, rstd, x, w, w, rows, n, 1e-5f, NULL);
    k->layer_norm_bf16(y.got, mean, rstd, x, w, w, rows, n, 1e-5f, NULL);
    check_halves(k->name, y.got, y.want, rows * n, 1e-5);
    ref->layer_norm_backward_bf16(dx.want, beta, want, want + n, beta, dy, x, mean, rstd, w, rows,
                                  n, workspace, NULL);
    k->layer_norm_backward_bf16(dx.got, beta, got, got + n, beta, dy, x, mean, rstd, w, rows, n,
                                workspace, NULL);
    check_halves(k->name, dx.got, dx.want, rows * n, 1e-4);
    check_close(k->name, got, want, 2 * n, 1e-4, 1e-4);
    sides_free(&y), sides_free(&dx);
    free(x), free(dy), free(w), free(mean), free(rstd), free(want), free(got), free(workspace);
}

static void rms_norm_once(const ls__kernels *k, int64_t rows, int64_t n, int kind)
{
    const ls__kernels *ref = ls__kernels_ref();
    const float beta = (float)(kind & 1);
    ls__bfloat16 *x = random_halves(rows * n, 1, 2.0f, 1.0f);
    ls__bfloat16 *dy = random_halves(rows * n, 2, 1.0f, 0.0f);
    float *w = (kind & 2) != 0 ? random_floats(n, 3) : NULL, *rstd = random_floats(2 * rows, 4);
    float *want = random_floats(n, 6), *got = random_floats(n, 6);
    void *workspace = allocate(k->layer_norm_workspace(rows, n));
    sides y = sides_new(rows * n), dx = sides_new(rows * n);
    ref->rms_norm_bf16(y.want, rstd, x, w, rows, n, 1e-5f, NULL);
    k->rms_norm_bf16(y.got, rstd + rows, x, w, rows, n, 1e-5f, NULL);
    check_halves(k->name, y.got, y.want, rows * n, 1e-5);
    check_close(k->name, rstd + rows, rstd, rows, 1e-5, 0.0);
    ref->rms_norm_backward_bf16(dx.want, beta, want, beta, dy, x, rstd, w, rows, n, workspace,
                                NULL);
    k->rms_norm_backward_bf16(dx.got, beta, got, beta, dy, x, rstd, w, rows, n, workspace, NULL);
    check_halves(k->name, dx.got, dx.want, rows * n, 1e-4);
    check_close(k->name, got, want, n, 1e-4, 1e-4);
    k->rms_norm_backward_bf16(NULL, 0.0f, got, 0.0f, dy, x, rstd, w, rows, n, workspace, NULL);
    k->rms_norm_backward_bf16(dx.got, 0.0f, NULL, 0.0f, dy, x, rstd, w, rows, n, workspace, NULL);
    sides_free(&y), sides_free(&dx);
    free(x), free(dy), free(w), free(rstd), free(want), free(got), free(workspace);
}

TEST(rows_of_bfloat16_are_normalised_as_by_the_plain_twin)
{
    const int64_t shapes[][2] = {{1, 1}, {3, 17}, {40, 257}, {1, LS__HALF_ROW_MAX}};
    for (int i = 0; i < LS__ISA_COUNT * 16; i++) {
        const ls__kernels *k = variant(i / 16);
        const int64_t *s = shapes[i / 4 % 4];
        if (k != NULL) {
            softmax_once(k, s[0], s[1], (i & 1) != 0, (float)(i >> 1 & 1));
            layer_norm_once(k, s[0] + 1, s[1] == 1 ? 2 : s[1], i % 4);
            rms_norm_once(k, s[0], s[1], i % 4);
        }
    }
}

/* q, k and v beside each other in rows of one tensor, as a fused projection leaves them. */
typedef struct attention_case {
    ls__attention a;
    ls__bfloat16 *x, *d_o, *o, *dx;
    float *lse;
    void *workspace;
    int64_t row, rows;
} attention_case;

static attention_case attention_new(const ls__kernels *k, int64_t heads, int64_t kv_heads,
                                    int64_t time, int64_t dim)
{
    const int64_t batch = 2;
    attention_case c = {.row = (heads + 2 * kv_heads) * dim, .rows = batch * time};
    ls__attention *a = &c.a;
    *a = (ls__attention){.batch = batch, .heads = heads, .kv_heads = kv_heads, .half = true};
    a->time = a->keys = time, a->dim = dim, a->causal = true, a->scale = 0.3f;
    a->q_b = a->k_b = a->v_b = time * c.row;
    a->q_t = a->k_t = a->v_t = c.row;
    a->q_h = a->k_h = a->v_h = a->o_h = dim;
    a->o_b = time * heads * dim, a->o_t = heads * dim;
    c.x = random_halves(c.rows * c.row, 1, 1.0f, 0.0f);
    c.d_o = random_halves(c.rows * heads * dim, 2, 1.0f, 0.0f);
    c.o = random_halves(c.rows * heads * dim, 3, 1.0f, 0.0f);
    c.dx = random_halves(c.rows * c.row, 4, 1.0f, 0.0f);
    c.lse = random_floats(c.rows * heads, 5);
    a->q = (void *)c.x, a->k = (void *)(c.x + heads * dim);
    a->v = (void *)(c.x + (heads + kv_heads) * dim);
    a->o = (void *)c.o, a->lse = c.lse;
    c.workspace = allocate(k->attention_workspace(a, true) + k->attention_workspace(a, false));
    a->workspace = c.workspace;
    return c;
}

static void attention_run(const ls__kernels *k, attention_case *c)
{
    ls__attention *a = &c->a;
    k->attention(a, NULL);
    a->d_o = (void *)c->d_o, a->dq = (void *)c->dx;
    a->dk = (void *)(c->dx + a->heads * a->dim);
    a->dv = (void *)(c->dx + (a->heads + a->kv_heads) * a->dim);
    k->attention_backward(a, NULL);
}

static void attention_free(attention_case *c)
{
    free(c->x), free(c->d_o), free(c->o), free(c->dx), free(c->lse), free(c->workspace);
}

/* Bits of `kind`: not causal, masked, dropped, fewer queries than keys. */
static void attention_vary(attention_case *c, int kind, const float *mask)
{
    ls__attention *a = &c->a;
    a->causal = (kind & 1) == 0;
    a->mask = (kind & 2) != 0 ? mask : NULL;
    a->m_h = a->keys;
    a->dropout = (kind & 4) != 0 ? 0.25 : 0.0, a->seed = 5, a->stream_id = 77, a->first = 1001;
    a->w_t = a->keys, a->w_h = a->time * a->keys, a->w_b = a->heads * a->w_h + 1;
    a->time -= (kind & 8) != 0 ? a->time / 4 : 0;
}

static void attention_once(const ls__kernels *k, const int64_t *s, int kind)
{
    const ls__kernels *ref = ls__kernels_ref();
    attention_case want = attention_new(ref, s[0], s[1], s[2], s[3]);
    attention_case got = attention_new(k, s[0], s[1], s[2], s[3]);
    float *mask = random_floats(s[0] * s[2], 6); /* [1,H,1,S] */
    for (int64_t i = 0; i < s[0] * s[2]; i++) {
        mask[i] = i < s[2] || i % 3 == 1 ? -INFINITY : mask[i]; /* head 0 sees nothing */
    }
    attention_vary(&want, kind, mask);
    attention_vary(&got, kind, mask);
    attention_run(ref, &want);
    attention_run(k, &got);
    check_close(k->name, got.lse, want.lse, want.rows * s[0], 1e-5, 1e-5);
    check_halves(k->name, got.o, want.o, want.rows * s[0] * s[3], 4e-3);
    check_halves(k->name, got.dx, want.dx, want.rows * want.row, 2e-2);
    attention_free(&want), attention_free(&got);
    free(mask);
}

TEST(attention_of_bfloat16_agrees_with_the_plain_twin)
{
    const int64_t shapes[][4] = {{1, 1, 1, 1},   {4, 2, 37, 5},  {3, 3, 64, 16},
                                 {2, 1, 33, 24}, {2, 2, 90, 64}, {4, 1, 49, 33}};
    for (int i = 0; i < LS__ISA_COUNT * 6 * 16; i++) {
        const ls__kernels *k = variant(i / 96);
        if (k != NULL) {
            attention_once(k, shapes[i / 16 % 6], i % 16);
        }
    }
}

TEST(attention_of_bfloat16_does_not_depend_on_the_number_of_threads)
{
    const ls__kernels *k = ls__kernels_cpu();
    attention_case want = attention_new(k, 4, 2, 70, 40);
    attention_run(k, &want);
    for (int threads = 2; threads <= 5; threads++) {
        attention_case got = attention_new(k, 4, 2, 70, 40);
        ls__kernels_set_threads(threads);
        attention_run(k, &got);
        CHECK(memcmp(got.o, want.o, (size_t)(want.rows * 4 * 40) * 2) == 0);
        CHECK(memcmp(got.dx, want.dx, (size_t)(want.rows * want.row) * 2) == 0);
        attention_free(&got);
    }
    ls__kernels_set_threads(1);
    attention_free(&want);
}

TEST_MAIN

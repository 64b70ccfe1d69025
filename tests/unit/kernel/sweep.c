/* SPDX-License-Identifier: Apache-2.0 */
/* Every kernel over shapes, layouts and beta: the fast tables against the plain twin, each variant
 * this processor runs, and one thread against two and three to the bit.
 *
 * The plain twin rounds once from float64, the fast one accumulates n terms in float32 in vectors
 * and trees, so rtol covers some roundings and atol the cancellation of sums of n terms within
 * [-1,1]. Of the inputs, index holds `rows` numbers below n.
 */
#include "sweep.h"

static int64_t add_rows(const ls__kernels *k, const inputs *in, float *out)
{
    memcpy(out, in->x, (size_t)(in->rows * in->n) * 4);
    k->add_rows(out, in->y, in->rows, in->n, NULL);
    return in->rows * in->n;
}

static int64_t sums(const ls__kernels *k, const inputs *in, float *out)
{
    k->sum_rows(out, in->x, in->rows, in->n, in->beta, NULL);
    k->sum_cols(out + in->n, in->x, in->rows, in->n, in->beta, NULL);
    float *last = out + in->n + in->rows;
    double squares;
    k->sum(&last[0], in->x, in->rows * in->n, 1.0, NULL);
    k->sum(&last[1], in->x, in->rows * in->n, 3.0, NULL);
    k->mean_squares(&last[2], in->x, in->rows * in->n, NULL);
    k->sum_squares(&squares, in->x, in->rows * in->n, NULL);
    last[3] = (float)squares;
    return in->n + in->rows + 4;
}

static int64_t sum_dims(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t at = 0;
    for (int mask = 0; mask < 16; mask++) {
        const int64_t shape[4] = {in->rows, 1 + mask % 3, 2, in->n % 50};
        uint8_t keep[4];
        int64_t outputs = 1;
        for (int d = 0; d < 4; d++) {
            keep[d] = (mask >> d & 1) != 0;
            outputs *= keep[d] ? shape[d] : 1;
        }
        k->sum_dims(out + at, in->x, 4, shape, keep, in->beta, NULL);
        at += outputs;
    }
    return at;
}

static int64_t unary(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t count = in->rows * in->n;
    float *x = allocate((size_t)count * 4);
    for (int op = 0; op < LS__UNARY_COUNT; op++) {
        bool positive = op == LS__UNARY_LOG || op == LS__UNARY_SQRT || op == LS__UNARY_XLOGX;
        for (int64_t i = 0; i < count; i++) {
            x[i] = positive ? fabsf(in->x[i]) + 0.01f : 4.0f * in->x[i];
        }
        k->unary((ls__unary)op, out + op * count, x, count, NULL);
    }
    free(x);
    return LS__UNARY_COUNT * count;
}

static int64_t unary_backward(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t count = in->rows * in->n;
    float *x = allocate((size_t)count * 4), *y = allocate((size_t)count * 4);
    for (int op = 0; op < LS__UNARY_COUNT; op++) {
        bool positive = op == LS__UNARY_LOG || op == LS__UNARY_SQRT || op == LS__UNARY_XLOGX;
        for (int64_t i = 0; i < count; i++) {
            x[i] = positive ? fabsf(in->x[i]) + 0.01f : 4.0f * in->x[i];
        }
        ls__kernels_ref()->unary((ls__unary)op, y, x, count, NULL);
        k->unary_backward((ls__unary)op, out + op * count, in->y, x, y, count, in->beta, NULL);
    }
    free(x), free(y);
    return LS__UNARY_COUNT * count;
}

static int64_t binary(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->rows, n = in->n, shape[3] = {rows, 1, n}, at = 0;
    const ls__strided layouts[] = {{{n, n, 1}}, {{0, 0, 1}},    {{1, 0, 0}},
                                   {{0, 0, 0}}, {{1, 7, rows}}, {{2 * n, 0, 2}}};
    for (int op = 0; op < LS__BINARY_COUNT; op++) {
        for (int l = 0; l < 6; l += op < LS__BINARY_MAX ? 1 : 3) {
            k->binary((ls__binary)op, out + at, in->x, layouts[l], in->y, layouts[(l + op) % 6], 3,
                      shape, NULL);
            at += rows * n;
        }
    }
    k->binary(LS__BINARY_SUB, out + at, in->x, layouts[0], in->y, layouts[0], 0, shape, NULL);
    return at + 1;
}

static int64_t simple(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t count = in->rows * in->n;
    memcpy(out, in->z, (size_t)count * 4);
    k->axpby(out, in->x, count, 0.5f, -2.0f, NULL);
    k->axpby(out + count, in->x, count, 2.0f, 0.0f, NULL);
    k->add_scalar(out + 2 * count, in->x, count, 0.25f, NULL);
    k->fill(out + 3 * count, count, 7.0f, NULL);
    return 4 * count;
}

static int64_t layout(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->rows, n = in->n, count = rows * n;
    const int64_t shape[4] = {n, 3, rows, 1};
    const ls__strided permuted = {{3, 1, 3 * n, 5}}; /* of [rows,n,3,1] */
    k->gather(out, in->x, permuted, 4, shape, 4, NULL);
    for (int64_t i = 0; i < 3 * count; i++) {
        out[3 * count + i] = in->y[i];
    }
    k->scatter(out + 3 * count, permuted, in->x, 4, shape, 4, in->beta, NULL);
    const int64_t flat[2] = {rows, n};
    k->gather(out + 6 * count, in->x, (ls__strided){{n + 1, 1}}, 2, flat, 4, NULL);
    return 7 * count;
}

static int64_t layout_bytes(const ls__kernels *k, const inputs *in, float *out)
{
    const int64_t shape[2] = {in->n, in->rows};
    const ls__strided transposed = {{1, in->n}};
    int64_t bytes_max = in->rows * in->n * 8;
    uint8_t *moved = allocate((size_t)bytes_max), *back = allocate((size_t)bytes_max);
    int64_t at = 0;
    for (size_t bytes = 1; bytes <= 8; bytes *= 2) {
        int64_t total = in->rows * in->n * (int64_t)bytes;
        k->gather(moved, in->x, transposed, 2, shape, bytes, NULL);
        k->scatter(back, transposed, moved, 2, shape, bytes, 0.0f, NULL);
        CHECK(memcmp(back, in->x, (size_t)total) == 0);
        for (int64_t i = 0; i < total; i++) {
            out[at++] = (float)moved[i];
        }
    }
    free(moved), free(back);
    return at;
}

static int64_t softmax(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t count = in->rows * in->n;
    k->softmax(out, in->x, in->rows, in->n, false, NULL);
    k->softmax(out + count, in->x, in->rows, in->n, true, NULL);
    return 2 * count;
}

static int64_t softmax_backward(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t count = in->rows * in->n;
    float *y = allocate((size_t)count * 4);
    for (int log = 0; log < 2; log++) {
        ls__kernels_ref()->softmax(y, in->x, in->rows, in->n, log, NULL);
        k->softmax_backward(out + log * count, in->y, y, in->rows, in->n, log, in->beta, NULL);
    }
    free(y);
    return 2 * count;
}

static int64_t layer_norm(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->rows, count = rows * in->n, at = 0;
    for (int have = 0; have < 4; have++) {
        k->layer_norm(out + at + 2 * rows, out + at, out + at + rows, in->x,
                      (have & 1) != 0 ? in->w : NULL, (have & 2) != 0 ? in->z : NULL, rows, in->n,
                      0.1f, NULL);
        at += 2 * rows + count;
    }
    return at;
}

static int64_t layer_norm_backward(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->rows, n = in->n, count = rows * n;
    float *y = allocate((size_t)count * 4), *mean = allocate((size_t)rows * 4);
    float *rstd = allocate((size_t)rows * 4);
    ls__kernels_ref()->layer_norm(y, mean, rstd, in->x, NULL, NULL, rows, n, 0.1f, NULL);
    void *workspace = allocate(k->layer_norm_workspace(rows, n));
    k->layer_norm_backward(out, in->beta, out + count, out + count + n, in->beta, in->y, in->x,
                           mean, rstd, in->w, rows, n, workspace, NULL);
    float *second = out + count + 2 * n; /* without w, b, db */
    k->layer_norm_backward(second, in->beta, second + count, NULL, in->beta, in->y, in->x, mean,
                           rstd, NULL, rows, n, workspace, NULL);
    k->layer_norm_backward(NULL, 0.0f, NULL, second + count + n, in->beta, in->y, in->x, mean, rstd,
                           in->w, rows, n, workspace, NULL);
    free(y), free(mean), free(rstd), free(workspace);
    return 2 * count + 4 * n;
}

static int64_t embedding(const ls__kernels *k, const inputs *in, float *out)
{
    const int64_t dim = 19;
    int64_t rows = in->rows, n = in->n, at = 2 * rows * dim;
    const ls__lookup at8 = {in->index, 8, rows, dim, 0, n}, at4 = {in->index32, 4, rows, dim, 0, n};
    k->embedding(out, in->x, &at8, NULL);
    k->embedding(out + rows * dim, in->x, &at4, NULL);
    for (int64_t i = 0; i < 2 * n * dim; i++) {
        out[at + i] = in->w[i];
    }
    k->embedding_backward(out + at, in->y, &at8, NULL);
    k->embedding_backward(out + at + n * dim, in->y, &at4, NULL);
    return at + 2 * n * dim;
}

/* Of a table of which the middle third is here. */
static int64_t embedding_part(const ls__kernels *k, const inputs *in, float *out)
{
    const ls__lookup at = {in->index, 8, in->rows, 7, in->n / 3, (in->n + 2) / 3};
    float *dweight = out + at.count * at.dim;
    k->embedding(out, in->x, &at, NULL);
    memcpy(dweight, in->w, (size_t)(at.vocab * at.dim) * sizeof *dweight);
    k->embedding_backward(dweight, in->y, &at, NULL);
    return (at.count + at.vocab) * at.dim;
}

/* A part of the classes in passes; the others are represented by what these already summed. */
static int64_t vocab_loss(const ls__kernels *k, const inputs *in, float *out)
{
    const int64_t rows = in->rows, count = rows * in->n;
    float *at = out;
    for (int i = 0; i < 2; i++, at += count) {
        ls__vocab_loss args = {.logits = {.at = (void *)(uintptr_t)in->x},
                               .target = i == 0 ? (const void *)in->index : in->index32,
                               .index_bytes = i == 0 ? 8 : 4,
                               .rows = rows,
                               .n = in->n,
                               .first = i == 0 ? 0 : in->n / 2,
                               .classes = 2 * in->n,
                               .smoothing = i == 0 ? 0.0 : 0.1,
                               .z_loss = i == 0 ? 0.0 : 0.01,
                               .ignore = i == 0 ? 0 : -100};
        args.max = at;
        args.sums = at + rows;
        k->vocab_max(&args, NULL);
        k->vocab_sums(&args, NULL);
        at += (i == 0 ? 3 : 4) * rows;
        k->vocab_loss(at, &args, NULL);
        *at = isnan(*at) ? 0.0f : *at; /* where no row counts */
        const float dloss = 1.5f;
        k->vocab_loss_backward(at + 1, &args, &dloss, NULL);
        at++;
    }
    return at - out;
}

static int64_t cross_entropy(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t count = in->rows * in->n;
    float *second = out + count + 3; /* in place */
    memcpy(second, in->x, (size_t)count * 4);
    out[count] = (float)cross_entropy_of(k, out, in->x, in->index, 8, in->rows, in->n);
    out[count + 1] = (float)cross_entropy_of(k, NULL, in->x, in->index32, 4, in->rows, in->n);
    out[count + 2] = (float)cross_entropy_of(k, second, second, in->index32, 4, in->rows, in->n);
    return 2 * count + 3;
}

/* With and without a c before. */
static int64_t lstm(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->rows, n = in->n, count = rows * n;
    for (int i = 0; i < 2; i++, out += 6 * count) {
        memcpy(out, in->x, (size_t)(4 * count) * sizeof *out);
        k->lstm_step(out, out + 4 * count, out + 5 * count, i == 0 ? in->y : NULL, rows, n, NULL);
    }
    return 12 * count;
}

static int64_t lstm_backward(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->rows, n = in->n, count = rows * n;
    float *gates = allocate((size_t)count * 16), *h = allocate((size_t)count * 4);
    float *c_next = allocate((size_t)count * 4);
    for (int i = 0; i < 2; i++, out += 5 * count) {
        const float *c = i == 0 ? in->y : NULL;
        memcpy(gates, in->x, (size_t)count * 16);
        memcpy(out + 4 * count, in->z, (size_t)count * 4);
        ls__kernels_ref()->lstm_step(gates, h, c_next, c, rows, n, NULL);
        k->lstm_step_backward(out, out + 4 * count, in->w, gates, c_next, c, rows, n, NULL);
    }
    free(gates), free(h), free(c_next);
    return 10 * count;
}

/* With and without an h before. */
static int64_t gru(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->rows, n = in->n, count = rows * n;
    for (int i = 0; i < 2; i++, out += 5 * count) {
        memcpy(out, in->x, (size_t)(3 * count) * sizeof *out);
        k->gru_step(out, out + 3 * count, out + 4 * count, in->w, i == 0 ? in->y : NULL, rows, n,
                    NULL);
    }
    return 10 * count;
}

static int64_t gru_backward(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->rows, n = in->n, count = rows * n;
    float *gates = allocate((size_t)count * 12), *h = allocate((size_t)count * 4);
    float *fresh = allocate((size_t)count * 4);
    for (int i = 0; i < 2; i++, out += 7 * count) {
        const float *before = i == 0 ? in->y : NULL;
        memcpy(gates, in->x, (size_t)count * 12);
        memcpy(out + 6 * count, in->z, (size_t)count * 4);
        ls__kernels_ref()->gru_step(gates, h, fresh, in->w, before, rows, n, NULL);
        k->gru_step_backward(out, out + 3 * count, out + 6 * count, gates, fresh, before, rows, n,
                             NULL);
    }
    free(gates), free(h), free(fresh);
    return 14 * count;
}

static int64_t dropout(const ls__kernels *k, const inputs *in, float *out)
{
    const double probabilities[] = {0.0, 0.1, 0.5, 1.0};
    const uint64_t firsts[] = {0, 1, 5, (1ull << 34) - 6};
    int64_t count = in->rows * in->n;
    for (int i = 0; i < 20; i++) { /* the last four of a part */
        const ls__drop drop = {.p = probabilities[i % 4],
                               .seed = 0x123456789abcdu,
                               .stream_id = 77ull << 30,
                               .first = firsts[i / 4 % 4],
                               .run = i < 16 ? 0 : in->n,
                               .stride = (uint64_t)(3 * in->n + 1)};
        k->dropout(out + i * count, in->x, count, &drop, in->beta, NULL);
    }
    return 20 * count;
}

static int64_t random_values(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t count = in->n;
    k->random_uniform(out, count, 3, -2.0, 5.0, 1, 2, NULL);
    k->random_normal(out + count, count, 3, 1.0, 0.02, 1, 2, NULL);
    return 2 * count;
}

static int64_t adamw(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t count = in->rows * in->n, at = 0;
    for (int decoupled = 0; decoupled < 2; decoupled++, at += 3 * count) {
        float *param = out + at, *m = param + count, *v = m + count;
        for (int64_t i = 0; i < count; i++) {
            param[i] = in->x[i];
            m[i] = 0.1f * in->y[i];
            v[i] = 0.01f + 0.01f * fabsf(in->z[i]);
        }
        ls__step_part part = {.count = count, .param = param, .state = {m, v}};
        part.grad.at = (void *)(uintptr_t)in->w;
        part.lr = 1e-2, part.weight_decay = 0.1, part.step = 7;
        ls__adamw_args args = {.parts = &part, .part_count = 1, .decoupled = decoupled != 0};
        args.beta1 = 0.9, args.beta2 = 0.95, args.eps = 1e-8;
        k->adamw(&args, NULL);
    }
    return at;
}

static int64_t sgd(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t count = in->rows * in->n, at = 0;
    for (int kind = 0; kind < 5; kind++, at += 2 * count) {
        float *param = out + at, *buffer = param + count;
        for (int64_t i = 0; i < count; i++) {
            param[i] = in->x[i];
            buffer[i] = kind == 3 ? NAN : in->y[i]; /* first: not read */
        }
        ls__step_part part = {.count = count, .param = param, .lr = 0.1, .weight_decay = 0.01};
        part.grad.at = (void *)(uintptr_t)in->w;
        part.state[0] = kind == 0 ? NULL : buffer, part.step = kind == 3 ? 1 : 2;
        ls__sgd_args args = {.parts = &part, .part_count = 1, .nesterov = kind == 4};
        args.momentum = 0.9, args.dampening = kind == 2 ? 0.5 : 0.0;
        k->sgd(&args, NULL);
    }
    return at;
}

/* Plain, with momentum, centered, and both. */
static int64_t rmsprop(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t count = in->rows * in->n, at = 0;
    for (int kind = 0; kind < 4; kind++, at += 4 * count) {
        float *param = out + at, *v = param + count, *m = v + count, *buffer = m + count;
        for (int64_t i = 0; i < count; i++) {
            param[i] = in->x[i];
            m[i] = 0.1f * in->y[i];
            v[i] = 0.01f + m[i] * m[i] + 0.01f * fabsf(in->z[i]);
            buffer[i] = in->y[i];
        }
        const bool centered = kind >= 2;
        ls__step_part part = {.count = count, .param = param, .state = {v, centered ? m : NULL}};
        part.state[centered ? 2 : 1] = kind % 2 == 1 ? buffer : NULL;
        part.grad.at = (void *)(uintptr_t)in->w;
        part.lr = 0.01, part.weight_decay = 0.1, part.step = 3;
        ls__rmsprop_args args = {.parts = &part, .part_count = 1, .centered = centered};
        args.alpha = 0.95, args.eps = 1e-8, args.momentum = 0.9;
        k->rmsprop(&args, NULL);
    }
    return at;
}

/* One output each for one product; shapes are those of a linear layer and its gradients. */
static int64_t products(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t m = in->rows, n = in->n, depth = 33, at = 0;
    for (int trans = 0; trans < 4; trans++, at += m * n) {
        ls__gemm g = {.trans_a = (trans & 1) != 0, .trans_b = (trans & 2) != 0};
        g.m = m, g.n = n, g.k = depth, g.beta = in->beta;
        g.a = in->x, g.lda = g.trans_a ? m : depth;
        g.b = in->y, g.ldb = g.trans_b ? depth : n;
        g.c = out + at, g.ldc = n;
        k->gemm(&g, NULL);
    }
    return at;
}

static const sweep_case cases[] = {
    {"add_rows", add_rows, 1e-7, 1e-7},
    {"sums", sums, 2e-6, 2e-6},
    {"sum_dims", sum_dims, 2e-6, 2e-6},
    {"unary", unary, 2e-6, 1e-9},
    {"unary_backward", unary_backward, 4e-6, 5e-7},
    {"binary", binary, 1e-7, 0},
    {"axpby, add_scalar, fill", simple, 2e-7, 2e-7},
    {"gather, scatter", layout, 1e-7, 1e-7},
    {"gather, scatter of bytes", layout_bytes, 0, 0},
    {"softmax", softmax, 4e-6, 0},
    {"softmax_backward", softmax_backward, 4e-6, 2e-7},
    {"layer_norm", layer_norm, 4e-6, 1e-6},
    {"layer_norm_backward", layer_norm_backward, 4e-6, 1e-6},
    {"embedding", embedding, 2e-6, 2e-6},
    {"embedding_part", embedding_part, 2e-6, 2e-6},
    {"vocab_loss", vocab_loss, 4e-6, 1e-6},
    {"cross_entropy", cross_entropy, 4e-6, 1e-9},
    {"lstm", lstm, 4e-6, 1e-6},
    {"lstm_backward", lstm_backward, 4e-6, 1e-6},
    {"gru", gru, 4e-6, 1e-6},
    {"gru_backward", gru_backward, 4e-6, 1e-6},
    {"dropout", dropout, 1e-6, 2e-7}, /* a fused multiply-add with beta */
    {"random", random_values, 0, 0},
    {"adamw", adamw, 4e-6, 1e-7},
    {"sgd", sgd, 1e-6, 1e-7},
    {"rmsprop", rmsprop, 1e-5, 1e-6},
    /* 33 products below 1: what is rounded are partial sums, however small their end is */
    {"gemm", products, 1e-6, 4e-6},
};

#ifdef TEST_CUDA /* a grid on the processor takes its time */
static const int64_t shapes[][2] = {{1, 1}, {17, 3}, {33, 34}, {7, 300}, {2, 2000}};
#define SMALL_SHAPES 3
#else
static const int64_t shapes[][2] = {{1, 1},   {3, 17},   {17, 3},   {1, 1023}, {64, 1},   {65, 64},
                                    {33, 96}, {100, 31}, {7, 4097}, {700, 96}, {513, 129}};

#define SMALL_SHAPES 9 /* the last two are large enough for threads */
#endif

static inputs inputs_new(void)
{
    inputs in = {.x = random_floats(CAPACITY, 1), .y = random_floats(CAPACITY, 2)};
    in.z = random_floats(CAPACITY, 3);
    in.w = random_floats(CAPACITY, 4);
    return in;
}

static void set_shape(inputs *in, int64_t rows, int64_t n)
{
    in->rows = rows;
    in->n = n;
    int64_t *index = realloc((void *)(uintptr_t)in->index, (size_t)(rows + 1) * 8);
    int32_t *index32 = realloc((void *)(uintptr_t)in->index32, (size_t)(rows + 1) * 4);
    CHECK(index != NULL && index32 != NULL);
    for (int64_t i = 0; i < rows; i++) {
        index[i] = i * 7919 % n;
        index32[i] = (int32_t)(i * 104729 % n);
    }
    in->index = index;
    in->index32 = index32;
}

static void sweep(size_t first_shape, size_t end_shape)
{
    static inputs in; /* static: held until the test's process ends */
    static float *want, *got, *again;
    in = inputs_new();
    want = allocate(CAPACITY * 4);
    got = allocate(CAPACITY * 4);
    again = allocate(CAPACITY * 4);
    for (size_t s = first_shape; s < end_shape; s++) {
        set_shape(&in, shapes[s][0], shapes[s][1]);
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            for (int beta = 0; beta < 2; beta++) {
                in.beta = (float)beta;
                compare(&cases[c], &in, want, got, again);
            }
        }
    }
}

TEST(fast_kernels_agree_with_the_plain_twin)
{
    sweep(0, SMALL_SHAPES);
}

TEST(fast_kernels_agree_with_the_plain_twin_on_many_rows_whatever_the_threads)
{
    sweep(SMALL_SHAPES, SMALL_SHAPES + 1);
}

TEST(fast_kernels_agree_with_the_plain_twin_on_long_rows_whatever_the_threads)
{
    sweep(SMALL_SHAPES + 1, sizeof shapes / sizeof *shapes);
}

TEST(empty_operands_touch_nothing)
{
    const int64_t none[2] = {0, 3};
    const ls__strided flat = {{3, 1}};
    for (int isa = 0; isa <= LS__ISA_COUNT; isa++) {
        const ls__kernels *k = isa == LS__ISA_COUNT ? ls__kernels_ref() : variant(isa);
        if (k == NULL) {
            continue;
        }
        float one[4] = {1, 2, 3, 4};
        k->unary(LS__UNARY_EXP, one, one, 0, NULL);
        k->binary(LS__BINARY_ADD, one, one, flat, one, flat, 2, none, NULL);
        k->gather(one, one, flat, 2, none, 4, NULL);
        k->softmax(one, one, 0, 3, false, NULL);
        k->layer_norm(one, one, one, one, NULL, NULL, 0, 3, 1e-5f, NULL);
        k->add_rows(one, one, 0, 3, NULL);
        k->dropout(one, one, 0, &(ls__drop){.p = 0.5, .seed = 1}, 0.0f, NULL);
        k->embedding(one, one, &(ls__lookup){.index_bytes = 8, .dim = 3}, NULL);
        CHECK(one[0] == 1 && one[1] == 2 && one[2] == 3 && one[3] == 4);
        float nothing = 1.0f;
        k->sum(&nothing, one, 0, 1.0, NULL);
        CHECK(nothing == 0.0f);
        k->copy(one, NULL, 0, NULL);
        k->zero(NULL, 0, NULL);
        CHECK(isnan(cross_entropy_of(k, NULL, one, NULL, 8, 0, 3)));
        k->sum_rows(one, one, 0, 2, 1.0f, NULL); /* nothing is added */
        CHECK(one[0] == 1 && one[1] == 2);
        k->sum_rows(one, one, 0, 2, 0.0f, NULL); /* an empty sum */
        CHECK(one[0] == 0 && one[1] == 0);
    }
}

TEST_MAIN

/* SPDX-License-Identifier: Apache-2.0 */
/* Times the fast kernels on the shapes of a small GPT, on one thread: median thread CPU time of
 * several runs, one line a kernel. Copies of it that run at the same time show what the ranks of a
 * host get. With `cold` above 0 operands come from beyond the caches that hold less, as they do in
 * training: that many bytes are written before each run of a kernel that memory limits, and
 * products take turns with copies of their operands. Products run one after another, as in
 * training: a processor that rests between them is faster.
 *
 *     build/bench/dev/kernels [rows dim context cold]      rows = batch * context
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernel/kernels.h"

#define REPEATS 15
#define COPIES 8 /* of the operands of products, which take turns where they are to be cold */

typedef struct bench {
    const ls__kernels *k;
    int64_t rows, dim, context, heads, vocab;
    float *x, *y, *z, *w, *out, *out2;
    int64_t *index;
    void *workspace;
    int64_t most; /* elements of an operand; each has `copies` */
    int copies;
    float *cold;
    int64_t cold_bytes;
} bench;

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *floats(int64_t count)
{
    float *x = aligned_alloc(64, ((size_t)count * 4 + 63) / 64 * 64);
    for (int64_t i = 0; x != NULL && i < count; i++) {
        x[i] = 0.01f * (float)(i * 7919 % 401 - 200);
    }
    return x;
}

#define TIME(b, label, flops, call)                                                                \
    do {                                                                                           \
        double took[REPEATS];                                                                      \
        for (int repeat = 0; repeat < REPEATS; repeat++) {                                         \
            if ((flops) == 0) {                                                                    \
                memset((b)->cold, repeat, (size_t)(b)->cold_bytes);                                \
            }                                                                                      \
            double start = thread_seconds();                                                       \
            call;                                                                                  \
            took[repeat] = thread_seconds() - start;                                               \
        }                                                                                          \
        report(label, flops, took);                                                                \
    } while (0)

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *label, double flops, double *took)
{
    qsort(took, REPEATS, sizeof *took, compare);
    const double seconds = took[REPEATS / 2];
    if (flops > 0.0) {
        printf("%-34s %10.1f us %8.1f GF/s\n", label, seconds * 1e6, flops / seconds * 1e-9);
    } else {
        printf("%-34s %10.1f us\n", label, seconds * 1e6);
    }
}

/* The product of other copies of its operands than those of the run before. */
static void multiply(const bench *b, ls__gemm g, int repeat)
{
    const int64_t copy = repeat % b->copies * b->most;
    g.a += copy, g.b += copy, g.c += copy;
    b->k->gemm(&g, NULL);
}

/* Linear with weight [out,in]: forward, gradient of the input, gradient of the weight. */
static void linear(const bench *b, const char *name, int64_t in, int64_t out)
{
    double flops = 2.0 * (double)(b->rows * in * out);
    char label[64];
    ls__gemm forward = {false, true, b->rows, out, in,   b->x, in,
                        b->w,  in,   b->y,    out, 0.0f, NULL, {0}};
    ls__gemm dx = {false, false, b->rows, in, out,  b->y, out,
                   b->w,  in,    b->out,  in, 0.0f, NULL, {0}};
    ls__gemm dw = {true, false, out, in, b->rows, b->y, out, b->x, in, b->out, in, 1.0f, NULL, {0}};
    snprintf(label, sizeof label, "%s forward", name);
    TIME(b, label, flops, multiply(b, forward, repeat));
    snprintf(label, sizeof label, "%s dX", name);
    TIME(b, label, flops, multiply(b, dx, repeat));
    snprintf(label, sizeof label, "%s dW", name);
    TIME(b, label, flops, multiply(b, dw, repeat));
}

/* q, k and v interleaved in one [B,T,3,H,D] tensor, as a fused projection leaves them. */
static void attention(const bench *b)
{
    int64_t d = b->dim / b->heads, t = b->context, row = 3 * b->dim;
    ls__attention a = {.batch = b->rows / t, .heads = b->heads, .time = t, .dim = d};
    a.kv_heads = b->heads;
    a.keys = t;
    a.q = b->x;
    a.k = b->x + b->dim;
    a.v = b->x + 2 * b->dim;
    a.q_b = a.k_b = a.v_b = t * row;
    a.q_t = a.k_t = a.v_t = row;
    a.q_h = a.k_h = a.v_h = d;
    a.o = b->out;
    a.o_b = t * b->dim;
    a.o_t = b->dim;
    a.o_h = d;
    a.lse = b->y;
    a.causal = true;
    a.scale = 1.0f / sqrtf((float)d);
    a.workspace = b->workspace;
    double pairs = (double)(a.batch * a.heads * t * (t + 1) / 2);
    TIME(b, "attention forward", 4.0 * pairs * (double)d, b->k->attention(&a, NULL));
    a.d_o = b->z;
    a.dq = b->out2;
    a.dk = b->out2 + b->dim;
    a.dv = b->out2 + 2 * b->dim;
    TIME(b, "attention backward", 10.0 * pairs * (double)d, b->k->attention_backward(&a, NULL));
}

static void activations(const bench *b)
{
    const ls__kernels *k = b->k;
    int64_t n = b->rows * 4 * b->dim, rows = b->rows, dim = b->dim;
    const ls__drop drop = {.p = 0.1, .seed = 1, .stream_id = 2};
    TIME(b, "gelu erf forward", 0, k->unary(LS__UNARY_GELU_ERF, b->out, b->x, n, NULL));
    TIME(b, "gelu erf backward", 0,
         k->unary_backward(LS__UNARY_GELU_ERF, b->out, b->y, b->x, NULL, n, 0.0f, NULL));
    TIME(b, "gelu tanh forward", 0, k->unary(LS__UNARY_GELU_TANH, b->out, b->x, n, NULL));
    TIME(b, "gelu tanh backward", 0,
         k->unary_backward(LS__UNARY_GELU_TANH, b->out, b->y, b->x, NULL, n, 0.0f, NULL));
    TIME(b, "exp", 0, k->unary(LS__UNARY_EXP, b->out, b->x, n, NULL));
    TIME(b, "tanh", 0, k->unary(LS__UNARY_TANH, b->out, b->x, n, NULL));
    TIME(b, "relu", 0, k->unary(LS__UNARY_RELU, b->out, b->x, n, NULL));
    TIME(b, "dropout [rows,4dim]", 0, k->dropout(b->out, b->x, n, &drop, 0.0f, NULL));
    TIME(b, "random normal [rows,4dim]", 0, k->random_normal(b->out, n, 0, 0.0, 1.0, 1, 2, NULL));
    TIME(b, "bias [rows,4dim]", 0, k->add_rows(b->out, b->w, rows, 4 * dim, NULL));
    TIME(b, "bias gradient [rows,4dim]", 0, k->sum_rows(b->out, b->x, rows, 4 * dim, 0, NULL));
    ls__strided flat = {{dim, 1}};
    int64_t shape[2] = {rows, dim};
    TIME(b, "add [rows,dim]", 0,
         k->binary(LS__BINARY_ADD, b->out, b->x, flat, b->y, flat, 2, shape, NULL));
    TIME(b, "axpby [rows,dim]", 0, k->axpby(b->out, b->x, rows * dim, 1.0f, 1.0f, NULL));
    int64_t one[2] = {1, 8};
    TIME(b, "add [8] (call overhead)", 0,
         k->binary(LS__BINARY_ADD, b->out, b->x, flat, b->y, flat, 2, one, NULL));
    TIME(b, "layer norm", 0,
         k->layer_norm(b->out, b->y, b->z, b->x, b->w, b->w, rows, dim, 1e-5f, NULL));
    TIME(b, "layer norm backward", 0,
         k->layer_norm_backward(b->out, 0.0f, b->out2, b->out2 + dim, 0.0f, b->x, b->x, b->y, b->z,
                                b->w, rows, dim, b->workspace, NULL));
}

static void rest(const bench *b)
{
    const ls__kernels *k = b->k;
    int64_t rows = b->rows, dim = b->dim, vocab = b->vocab;
    TIME(b, "softmax [rows,vocab]", 0, k->softmax(b->out, b->x, rows, vocab, false, NULL));
    float mean;
    const ls__cross_entropy loss = {&mean, b->out, b->x, b->index, 8, rows, vocab, 0.0, 0.0, -1};
    const ls__lookup at = {b->index, 8, rows, dim, 0, vocab};
    TIME(b, "cross-entropy with gradient", 0, k->cross_entropy(&loss, NULL));
    ls__vocab_loss part_loss = {.logits = {.at = b->x}, .target = b->index, .index_bytes = 8};
    part_loss.rows = rows, part_loss.n = vocab, part_loss.classes = vocab, part_loss.ignore = -1;
    part_loss.max = b->y, part_loss.sums = b->y + rows;
    TIME(b, "cross-entropy of a part, largest", 0, k->vocab_max(&part_loss, NULL));
    TIME(b, "cross-entropy of a part, sums", 0, k->vocab_sums(&part_loss, NULL));
    mean = 1.0f;
    TIME(b, "cross-entropy of a part, gradient", 0,
         k->vocab_loss_backward(b->out, &part_loss, &mean, NULL));
    TIME(b, "embedding", 0, k->embedding(b->out, b->x, &at, NULL));
    TIME(b, "embedding backward", 0, k->embedding_backward(b->out, b->x, &at, NULL));
    ls__step_part part = {.count = rows * 4 * dim, .param = b->out, .state = {b->y, b->z}};
    part.grad.at = b->x, part.lr = 1e-3, part.weight_decay = 0.1, part.step = 3;
    ls__adamw_args adam = {&part, 1, 0.9, 0.95, 1e-8, true};
    TIME(b, "AdamW [rows*4dim]", 0, k->adamw(&adam, NULL));
    double squares;
    TIME(b, "sum of squares [rows*dim]", 0, k->sum_squares(&squares, b->x, rows * dim, NULL));
}

static int64_t argument(int argc, char **argv, int i, int64_t otherwise)
{
    int64_t value = argc > i ? strtoll(argv[i], NULL, 10) : otherwise;
    return value > 0 ? value : otherwise;
}

int main(int argc, char **argv)
{
    bench b = {.k = ls__kernels_cpu(), .heads = 4, .vocab = 256};
    b.rows = argument(argc, argv, 1, 512);
    b.dim = argument(argc, argv, 2, 128);
    b.context = argument(argc, argv, 3, 128);
    b.cold_bytes = argument(argc, argv, 4, 0);
    b.copies = b.cold_bytes > 0 ? COPIES : 1;
    b.most = b.rows * (4 * b.dim + b.vocab) + 16 * b.dim * b.dim;
    const int64_t all = b.copies * b.most;
    b.x = floats(all), b.y = floats(all), b.z = floats(b.most), b.w = floats(all);
    b.out = floats(all), b.out2 = floats(b.most), b.workspace = floats(1 << 24);
    b.cold = floats(b.cold_bytes / 4 + 1);
    b.index = malloc((size_t)b.rows * 8);
    if (b.x == NULL || b.y == NULL || b.z == NULL || b.w == NULL || b.out == NULL ||
        b.out2 == NULL || b.workspace == NULL || b.index == NULL || b.cold == NULL) {
        return 1;
    }
    for (int64_t i = 0; i < b.rows; i++) {
        b.index[i] = i * 31 % b.vocab;
    }
    ls__kernels_set_threads(1);
    ls__kernel_path path[LS__KERNEL_PATHS];
    (void)ls__kernels_paths(path);
    printf("# %s, products by %s; rows %lld, dim %lld, context %lld, heads %lld\n", b.k->name,
           path[0].path, (long long)b.rows, (long long)b.dim, (long long)b.context,
           (long long)b.heads);
    linear(&b, "qkv", b.dim, 3 * b.dim);
    linear(&b, "proj", b.dim, b.dim);
    linear(&b, "ff1", b.dim, 4 * b.dim);
    linear(&b, "ff2", 4 * b.dim, b.dim);
    linear(&b, "head", b.dim, b.vocab);
    attention(&b);
    activations(&b);
    rest(&b);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over raw memory: which loop runs on what, in the canonical order.
 *
 * Work goes in blocks that stay in the nearest cache. Within a block the tree is evaluated from
 * the left with a stack, as one counts in binary: operand i is pushed as a tree of one leaf, and
 * while the two topmost trees are of equal size they are combined. In the end the trees left
 * (sizes falling powers of two) are combined from the top. For 7 operands:
 *
 *     0  01  01 2  0123  0123 4  0123 45  0123 45 6  ->  0123 456  ->  0123456
 *
 * 16-bit floats are widened to float32 when they are pushed and rounded once when the root is
 * stored; averages are divided at the root. Since elements are combined on their own, neither
 * the block size nor the part of the data that a rank or a thread works on changes a bit. */
#include "kernel/reduce/reduce.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/half.h"
#include "base/planted.h"
#include "kernel/reduce/loops.h"

#define BLOCK 256    /* elements; 12 blocks of 8-byte elements are 24 KiB */
#define DEPTH_MAX 12 /* trees on the stack: log2(LS__REDUCE_OPERANDS_MAX) + 2 */
#define BLOCK_BYTES (BLOCK * sizeof(double))

/* NULL when this processor lacks the instructions; tests ask for every table. */
const ls__reduce_kernels *ls__reduce_kernels_of(ls__isa isa)
{
    if (isa > ls__cpu_best()) {
        return NULL;
    }
    switch (isa) {
#if defined(__x86_64__)
    case LS__ISA_V4:
        return &ls__reduce_kernels_v4;
    case LS__ISA_V3:
        return &ls__reduce_kernels_v3;
#endif
    case LS__ISA_BASE:
        return &ls__reduce_kernels_base;
    default:
        return NULL;
    }
}

/* The table of the instruction set in use. Reads the environment, so callers keep the answer. */
const ls__reduce_kernels *ls__reduce_kernels_get(void)
{
    return ls__reduce_kernels_of(ls__cpu_isa());
}

/* LS_AVG and LS_PREMUL_SUM have no loop of their own: they need a sum and a scale. */
bool ls__reduce_supported(ls_dtype dtype, ls_reduce_op op)
{
    if ((unsigned)dtype >= LS_DTYPE_COUNT || (unsigned)op >= LS_REDUCE_OP_COUNT) {
        return false;
    }
    const ls__reduce_loops *loops = &ls__reduce_kernels_base.dtype[dtype];
    return op == LS_AVG || op == LS_PREMUL_SUM ? dtype != LS_BOOL : loops->combine[op] != NULL;
}

/* The type of partial sums: float32 for 16-bit floats, so that they are rounded only at the end. */
ls_dtype ls__reduce_accumulator(ls_dtype dtype)
{
    return dtype == LS_FLOAT16 || dtype == LS_BFLOAT16 ? LS_FLOAT32 : dtype;
}

/* Sums of integers that are to be divided are added in a wider type. */
static const ls__reduce_loops *loops_of(const ls__reduce_kernels *table, ls_dtype dtype,
                                        bool averages)
{
    const ls__reduce_loops *wider = &table->average[dtype];
    return averages && wider->size > 0 ? wider : &table->dtype[dtype];
}

size_t ls__accumulator_bytes(ls_dtype dtype, bool averages)
{
    return loops_of(&ls__reduce_kernels_base, dtype, averages)->accumulator_size;
}

bool ls__reduce_widens(ls_dtype dtype)
{
    return ls__reduce_kernels_base.average[dtype].size > 0;
}

/* Multiplies instead of dividing where that is exact: the reciprocal of a power of two, as long as
 * it is a normal number, also in float32. */
static ls__reduce_scale scale_of(double divisor)
{
    if (divisor == 0.0) {
        return (ls__reduce_scale){0};
    }
    int exponent = 0;
    const double mantissa = frexp(fabs(divisor), &exponent);
    const bool exact = mantissa == 0.5 && exponent > -100 && exponent < 100;
    return (ls__reduce_scale){.divisor = divisor, .factor = exact ? 1.0 / divisor : 0.0};
}

/* ---- the tree over one block -------------------------------------------------------------- */

typedef struct tree { /* the evaluation of one block; lies on the calling thread's stack */
    const ls__reduce_args *args;
    const ls__reduce_loops *loops;
    ls__reduce_scale scale;
    int64_t first, count; /* the block's elements */
    int depth;
    struct {
        const void *value; /* a source's block, or this level's memory */
        int leaves;
    } stack[DEPTH_MAX];
    _Alignas(64) unsigned char memory[DEPTH_MAX][BLOCK_BYTES];
} tree;

/* Whether operand s comes in the accumulator's type, as the partial results of algorithms do; it
 * is then not widened. */
static bool is_wide(const ls__reduce_args *args, int s)
{
    return args->src_wide != NULL && args->src_wide[s];
}

/* Pushes operand s as a tree of one leaf, widened where its type is narrower than the
 * accumulator's. An operand that needs no widening is used in place and not copied. */
static void push_leaf(tree *t, int s)
{
    LS_ASSERT(t->depth < DEPTH_MAX);
    const bool wide = is_wide(t->args, s);
    const unsigned char *src = t->args->src[s];
    const void *value =
        src + (size_t)t->first * (wide ? t->loops->accumulator_size : t->loops->size);
    if (t->loops->widen != NULL && !wide) {
        t->loops->widen(t->memory[t->depth], value, t->count);
        value = t->memory[t->depth];
    }
    t->stack[t->depth].value = value;
    t->stack[t->depth].leaves = 1;
    t->depth++;
}

/* Combines the two topmost trees into the memory of the lower level. The left operand has the lower
 * rank, which matters to operators of users that do not commute. */
static void combine_top(tree *t)
{
    LS_ASSERT(t->depth >= 2);
    t->depth--;
    const int level = t->depth - 1;
    const void *left = t->stack[level].value, *right = t->stack[level + 1].value;
    if (t->args->user.fn == NULL) {
        const bool planted = LS__PLANTED(OPERATOR) && t->args->dtype == LS_INT16;
        t->loops->combine[planted && t->args->op == LS_MAX ? LS_MIN : t->args->op](
            t->memory[level], left, right, t->count);
    } else {
        if (left != t->memory[level]) {
            memcpy(t->memory[level], left, (size_t)t->count * t->loops->accumulator_size);
        }
        t->args->user.fn(t->memory[level], right, t->count, ls__reduce_accumulator(t->args->dtype),
                         t->args->user.arg);
    }
    t->stack[level].value = t->memory[level];
    t->stack[level].leaves += t->stack[level + 1].leaves;
}

/* Whether the two topmost trees have as many leaves: they are then siblings in the canonical
 * tree. */
static bool top_is_even(const tree *t)
{
    return t->depth >= 2 && t->stack[t->depth - 1].leaves == t->stack[t->depth - 2].leaves;
}

/* Divides once, narrows and writes to every destination. A destination may be a source: all
 * operands of the block have been read by now. */
static void store_root(tree *t)
{
    const size_t bytes = (size_t)t->count * t->loops->accumulator_size;
    if (t->scale.divisor != 0.0) {
        if (t->stack[0].value != t->memory[0]) { /* one operand: still the source itself */
            memcpy(t->memory[0], t->stack[0].value, bytes);
            t->stack[0].value = t->memory[0];
        }
        t->loops->scale(t->memory[0], t->count, &t->scale);
    }
    const bool wide = t->args->dst_wide;
    for (int d = 0; d < t->args->dst_count; d++) {
        unsigned char *dst = t->args->dst[d];
        dst += (size_t)t->first * (wide ? t->loops->accumulator_size : t->loops->size);
        if (t->loops->narrow != NULL && !wide) {
            t->loops->narrow(dst, t->stack[0].value, t->count);
        } else if (dst != t->stack[0].value) {
            memcpy(dst, t->stack[0].value, bytes);
        }
    }
}

/* See the drawing at the top of this file. */
static void reduce_block(tree *t)
{
    t->depth = 0;
    for (int s = 0; s < t->args->src_count; s++) {
        push_leaf(t, s);
        while (top_is_even(t)) {
            combine_top(t);
        }
    }
    while (t->depth > 1) {
        combine_top(t);
    }
    LS_ASSERT(t->depth == 1);
    store_root(t);
}

/* ---- the calls ---------------------------------------------------------------------------- */

/* One operand and no division is a copy: bits are kept, even those of a signalling NaN. Types
 * are alike, which the caller has checked. */
static void copy_all(const ls__reduce_args *args, size_t size)
{
    for (int d = 0; d < args->dst_count; d++) {
        if (args->dst[d] != args->src[0] && args->count > 0) {
            memcpy(args->dst[d], args->src[0], (size_t)args->count * size);
        }
    }
}

/* The stack of trees lies on the thread's stack, 24 KiB, and stays in the nearest cache. */
static void reduce_blocks(const ls__reduce_args *args, const ls__reduce_loops *loops,
                          ls__reduce_scale scale)
{
    tree t;
    t.args = args;
    t.loops = loops;
    t.scale = scale;
    const int64_t most = (int64_t)(BLOCK_BYTES / loops->accumulator_size);
    const int64_t block = most < BLOCK ? most : BLOCK;
    for (t.first = 0; t.first < args->count; t.first += block) {
        t.count = args->count - t.first < block ? args->count - t.first : block;
        reduce_block(&t);
    }
}

/* Every path gives the same bits: the fused sums evaluate the same tree. Never allocates, so it may
 * run on the engine's thread. */
void ls__reduce(const ls__reduce_args *args)
{
    LS_ASSERT(args->op != LS_AVG && args->op != LS_PREMUL_SUM &&
              ls__reduce_supported(args->dtype, args->op));
    LS_ASSERT(args->src_count >= 1 && args->src_count <= LS__REDUCE_OPERANDS_MAX);
    LS_ASSERT(args->divisor == 0.0 || args->dtype <= LS_BFLOAT16 ||
              (args->averages && ls__reduce_supported(args->dtype, LS_AVG)));
    const ls__reduce_kernels *table = args->table ? args->table : ls__reduce_kernels_get();
    const ls__reduce_loops *loops = loops_of(table, args->dtype, args->averages);
    const ls__reduce_scale scale = scale_of(args->divisor);
    const bool alike = loops->widen == NULL || is_wide(args, 0) == args->dst_wide;
    if (args->src_count == 1 && args->divisor == 0.0 && alike) {
        copy_all(args, args->dst_wide ? loops->accumulator_size : loops->size);
    } else if (args->dtype == LS_FLOAT32 && args->op == LS_SUM && args->user.fn == NULL &&
               args->src_count <= LS__REDUCE_FUSED_MAX && args->src_count > 1) {
        table->sum_float32[args->src_count](args, &scale);
    } else {
        reduce_blocks(args, loops, scale);
    }
}

/* dst = dst op src; the order of the two operands is kept. */
void ls__reduce_into(void *dst, const void *src, int64_t count, ls_dtype dtype, ls_reduce_op op)
{
    ls__reduce(&(ls__reduce_args){.dst = (void *const[]){dst},
                                  .dst_count = 1,
                                  .src = (const void *const[]){dst, src},
                                  .src_count = 2,
                                  .count = count,
                                  .dtype = dtype,
                                  .op = op});
}

void ls__round(void *to, const void *from, int64_t count, ls_dtype dtype)
{
    ls__reduce(&(ls__reduce_args){.dst = &to,
                                  .dst_count = 1,
                                  .src = &from,
                                  .src_count = 1,
                                  .count = count,
                                  .dtype = dtype,
                                  .op = LS_SUM,
                                  .src_wide = (const bool[]){true}});
}

void ls__widen(void *to, const void *from, int64_t count, ls_dtype dtype)
{
    ls__reduce(&(ls__reduce_args){.dst = &to,
                                  .dst_count = 1,
                                  .src = &from,
                                  .src_count = 1,
                                  .count = count,
                                  .dtype = dtype,
                                  .op = LS_SUM,
                                  .dst_wide = true});
}

/* A reduction of one operand, so that averages are rounded alike everywhere. A sum of integers may
 * have overflowed by now. */
void ls__divide(void *x, int64_t count, ls_dtype dtype, double divisor)
{
    LS_ASSERT(divisor != 0.0 && !ls__reduce_widens(dtype));
    ls__reduce(&(ls__reduce_args){.dst = (void *const[]){x},
                                  .dst_count = 1,
                                  .src = (const void *const[]){x},
                                  .src_count = 1,
                                  .count = count,
                                  .dtype = dtype,
                                  .op = LS_SUM,
                                  .divisor = divisor});
}

/* ---- premultiplying ----------------------------------------------------------------------- */

#define SCALE(type, expression)                                                                    \
    do {                                                                                           \
        type *out = to;                                                                            \
        const type *in = from;                                                                     \
        for (int64_t i = 0; i < count; i++) {                                                      \
            out[i] = (type)(expression);                                                           \
        }                                                                                          \
    } while (0)

/* `to` may be `from`. Integers are multiplied modulo their size by the whole part of the factor. */
void ls__scale(void *to, const void *from, int64_t count, ls_dtype dtype, double factor)
{
    const float single = (float)factor;
    const uint64_t whole = dtype >= LS_INT8 ? (uint64_t)(int64_t)factor : 0; /* wraps */
    LS_ASSERT(dtype != LS_BOOL);
    switch (dtype) {
    case LS_FLOAT32:
        SCALE(float, (double)in[i] * factor);
        break;
    case LS_FLOAT64:
        SCALE(double, in[i] * factor);
        break;
    case LS_FLOAT16:
        SCALE(uint16_t, ls__float16_round(ls__float16_widen(in[i]) * single));
        break;
    case LS_BFLOAT16:
        SCALE(uint16_t, ls__bfloat16_round(ls__bfloat16_widen(in[i]) * single));
        break;
    case LS_INT8:
        SCALE(int8_t, (uint64_t)in[i] * whole);
        break;
    case LS_UINT8:
        SCALE(uint8_t, (uint64_t)in[i] * whole);
        break;
    case LS_INT32:
        SCALE(int32_t, (uint64_t)in[i] * whole);
        break;
    case LS_INT64:
        SCALE(int64_t, (uint64_t)in[i] * whole);
        break;
    case LS_INT16:
        SCALE(int16_t, (uint64_t)in[i] * whole);
        break;
    case LS_UINT16:
        SCALE(uint16_t, (uint64_t)in[i] * whole);
        break;
    case LS_UINT32:
        SCALE(uint32_t, (uint64_t)in[i] * whole);
        break;
    case LS_UINT64:
        SCALE(uint64_t, in[i] * whole);
        break;
    case LS_BOOL:
    case LS_DTYPE_COUNT:
        break;
    }
}

/* One place, so that a device's memory needs another one only here. */
void ls__elements_copy(void *to, const void *from, size_t bytes)
{
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
}

void ls__elements_zero(void *to, size_t bytes)
{
    if (bytes > 0) {
        memset(to, 0, bytes);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer steps over many parts in one call: the bits are those of a call for each part, for any
 * number of threads and any cut into ranges; bfloat16 parameters with master copies have the bits
 * of the float32 loops. */
#include "kernel_test.h"

enum { PARTS = 9, ELEMENTS = 140003 };

/* Odd lengths, so that no part begins on a cache line, and one beyond every share. */
static const int64_t lengths[PARTS] = {70001, 1, 33, 384, 5, 0, 52000, 17, ELEMENTS - 122441};

typedef struct memory { /* of all parts, one behind the other */
    float *param, *state[LS__STEP_STATE_MAX], *grad;
    ls__bfloat16 *rounded, *half_grad;
} memory;

static void check_lengths(void)
{
    int64_t sum = 0;
    for (int i = 0; i < PARTS; i++) {
        sum += lengths[i];
    }
    CHECK_INT(sum, ELEMENTS);
}

static memory memory_new(uint64_t seed)
{
    memory m = {.param = random_floats(ELEMENTS, seed),
                .state = {random_floats(ELEMENTS, seed + 1), random_floats(ELEMENTS, seed + 2),
                          random_floats(ELEMENTS, seed + 4)},
                .grad = random_floats(ELEMENTS, seed + 3),
                .rounded = allocate(ELEMENTS * sizeof(ls__bfloat16)),
                .half_grad = allocate(ELEMENTS * sizeof(ls__bfloat16))};
    for (int64_t i = 0; i < ELEMENTS; i++) {
        m.state[0][i] *= 0.1f;
        m.state[1][i] = fabsf(m.state[1][i]);
    }
    ls__kernels_ref()->bfloat16_narrow(m.half_grad, m.grad, ELEMENTS, 0.0f, NULL);
    ls__kernels_ref()->bfloat16_narrow(m.rounded, m.param, ELEMENTS, 0.0f, NULL);
    return m;
}

static void memory_free(memory *m)
{
    free(m->param), free(m->state[0]), free(m->state[1]), free(m->state[2]), free(m->grad);
    free(m->rounded), free(m->half_grad);
}

static void check_same(const char *what, const memory *got, const memory *want)
{
    check_same_bits(what, got->param, want->param, ELEMENTS);
    check_same_bits(what, got->state[0], want->state[0], ELEMENTS);
    check_same_bits(what, got->state[1], want->state[1], ELEMENTS);
    check_same_bits(what, got->state[2], want->state[2], ELEMENTS);
    CHECK(memcmp(got->rounded, want->rounded, ELEMENTS * sizeof(ls__bfloat16)) == 0);
}

typedef enum kind { ADAMW, ADAM, SGD, MOMENTUM, NESTEROV, RMSPROP, CENTERED, KINDS } kind;

/* Elements [at, at + count) of the memory. Learning rate, decay and step differ from part to
 * part. */
static ls__step_part part_at(const memory *m, kind what, bool half, int part, int64_t at,
                             int64_t count)
{
    ls__step_part p = {.count = count, .param = m->param + at, .step = part % 3 + 1};
    p.grad = half ? (ls__real){m->half_grad + at, true} : (ls__real){m->grad + at, false};
    p.rounded = half ? m->rounded + at : NULL;
    p.lr = 0.01 * (part + 1), p.weight_decay = part % 2 == 0 ? 0.1 : 0.0;
    p.state[0] = what == SGD ? NULL : m->state[0] + at;
    p.state[1] = what <= ADAM ? m->state[1] + at : NULL;
    if (what >= RMSPROP) { /* the square first */
        p.state[0] = m->state[1] + at;
        p.state[1] = what == CENTERED ? m->state[0] + at : NULL;
        p.state[2] = what == CENTERED ? m->state[2] + at : NULL;
    }
    return p;
}

static void step(const ls__kernels *k, kind what, const ls__step_part *parts, int64_t count)
{
    if (what <= ADAM) {
        ls__adamw_args args = {.parts = parts, .part_count = count, .decoupled = what == ADAMW};
        args.beta1 = 0.9, args.beta2 = 0.95, args.eps = 1e-8;
        k->adamw(&args, NULL);
        return;
    }
    if (what >= RMSPROP) {
        ls__rmsprop_args args = {.parts = parts, .part_count = count, .centered = what == CENTERED};
        args.alpha = 0.9, args.eps = 1e-8, args.momentum = 0.9;
        k->rmsprop(&args, NULL);
        return;
    }
    ls__sgd_args args = {.parts = parts, .part_count = count, .nesterov = what == NESTEROV};
    args.momentum = 0.9, args.dampening = what == MOMENTUM ? 0.3 : 0.0;
    k->sgd(&args, NULL);
}

/* One call for each part, on one thread. */
static void step_by_part(const ls__kernels *k, const memory *m, kind what, bool half)
{
    ls__kernels_set_threads(1);
    for (int64_t i = 0, at = 0; i < PARTS; at += lengths[i], i++) {
        const ls__step_part part = part_at(m, what, half, (int)i, at, lengths[i]);
        step(k, what, &part, 1);
    }
}

/* One call; each part is cut into ranges of `range` elements. */
static void step_at_once(const ls__kernels *k, const memory *m, kind what, bool half, int threads,
                         int64_t range)
{
    ls__step_part *parts = allocate((ELEMENTS / (size_t)range + 2 * PARTS) * sizeof *parts);
    int64_t count = 0, at = 0;
    for (int i = 0; i < PARTS; at += lengths[i], i++) {
        for (int64_t from = 0; from < lengths[i]; from += range) {
            const int64_t left = lengths[i] - from;
            parts[count++] = part_at(m, what, half, i, at + from, left < range ? left : range);
        }
    }
    ls__kernels_set_threads(threads);
    step(k, what, parts, count);
    ls__kernels_set_threads(1);
    free(parts);
}

static void compare(const ls__kernels *k, kind what, bool half)
{
    static const struct {
        int threads;
        int64_t range;
    } ways[] = {{1, ELEMENTS}, {2, ELEMENTS}, {3, ELEMENTS}, {4, ELEMENTS}, {5, ELEMENTS},
                {7, ELEMENTS}, {1, 4099},     {3, 4099},     {1, 1},        {2, 37}};
    memory want = memory_new(7);
    step_by_part(k, &want, what, half);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        memory got = memory_new(7);
        step_at_once(k, &got, what, half, ways[i].threads, ways[i].range);
        check_same(k->name, &got, &want);
        memory_free(&got);
    }
    memory_free(&want);
}

TEST(a_step_has_the_same_bits_for_any_threads_and_ranges)
{
    check_lengths();
    for (int i = 0; i < LS__ISA_COUNT * KINDS * 2; i++) {
        const ls__kernels *k = variant(i / KINDS / 2);
        if (k != NULL) {
            compare(k, (kind)(i / 2 % KINDS), i % 2 != 0);
        }
    }
}

/* ---- bfloat16 parameters -------------------------------------------------------------------- */

/* The gradient in float32, of the value that bfloat16 holds. */
static void widen_gradients(const memory *m)
{
    ls__kernels_ref()->bfloat16_widen(m->grad, m->half_grad, ELEMENTS, 0.0f, NULL);
}

TEST(a_master_copy_takes_the_steps_and_the_parameter_is_its_rounded_value)
{
    for (int i = 0; i < LS__ISA_COUNT * KINDS; i++) {
        const ls__kernels *k = variant(i / KINDS);
        const kind what = (kind)(i % KINDS);
        if (k == NULL) {
            continue;
        }
        memory master = memory_new(3), plain = memory_new(3);
        widen_gradients(&plain);
        for (int repeat = 0; repeat < 3; repeat++) {
            step_by_part(k, &master, what, true);
            step_by_part(k, &plain, what, false);
        }
        check_same_bits(k->name, master.param, plain.param, ELEMENTS);
        ls__kernels_ref()->bfloat16_narrow(plain.rounded, plain.param, ELEMENTS, 0.0f, NULL);
        check_same(k->name, &master, &plain);
        memory_free(&master), memory_free(&plain);
    }
}

/* As before the first step, where the master copy is zero, and after a load of weights. */
TEST(a_master_copy_that_does_not_round_to_its_parameter_becomes_the_parameter)
{
    for (int i = -1; i < LS__ISA_COUNT; i++) {
        const ls__kernels *k = i < 0 ? ls__kernels_ref() : variant(i);
        if (k == NULL) {
            continue;
        }
        memory zero = memory_new(5), exact = memory_new(5);
        memset(zero.param, 0, ELEMENTS * sizeof(float));
        ls__kernels_ref()->bfloat16_widen(exact.param, exact.rounded, ELEMENTS, 0.0f, NULL);
        step_by_part(k, &zero, ADAMW, true);
        step_by_part(k, &exact, ADAMW, true);
        check_same(k->name, &zero, &exact);
        memory_free(&zero), memory_free(&exact);
    }
}

TEST(bfloat16_steps_agree_with_the_plain_twin)
{
    for (int i = 0; i < LS__ISA_COUNT * KINDS; i++) {
        const ls__kernels *k = variant(i / KINDS);
        if (k == NULL) {
            continue;
        }
        memory got = memory_new(9), want = memory_new(9);
        step_by_part(k, &got, (kind)(i % KINDS), true);
        step_by_part(ls__kernels_ref(), &want, (kind)(i % KINDS), true);
        check_close(k->name, got.param, want.param, ELEMENTS, 4e-6, 1e-7);
        check_close(k->name, got.state[0], want.state[0], ELEMENTS, 4e-6, 1e-7);
        memory_free(&got), memory_free(&want);
    }
}

TEST_MAIN

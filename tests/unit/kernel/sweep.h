/* SPDX-License-Identifier: Apache-2.0 */
/* A case of a sweep computes from the inputs into `out` and returns how many floats it wrote. It is
 * run on the plain twin, then on each variant that this processor has, on one thread and, where
 * there is enough to share, on two and three, whose bits must be those of one. Outputs start as NaN
 * where beta is 0, so that a kernel which reads them, or leaves one out, is seen; and so is one
 * that writes behind them. */
#ifndef KERNEL_SWEEP_H
#define KERNEL_SWEEP_H

#include "kernel_test.h"

#define CAPACITY (1 << 21)
#define GUARD 16           /* floats behind a case's outputs */
#define SERIAL_BELOW 60000 /* elements; not shared among threads anyway */

typedef struct inputs {
    int64_t rows, n;
    float beta;
    const float *x, *y, *z, *w; /* CAPACITY random floats each */
    const int64_t *index;
    const int32_t *index32;
    void *workspace;
} inputs;

typedef struct sweep_case {
    const char *name;
    int64_t (*run)(const ls__kernels *k, const inputs *in, float *out);
    double rtol, atol; /* atol is multiplied by sqrt(the longest sum) */
} sweep_case;

/* As many as any case writes for this shape. */
static inline int64_t outputs_max(const inputs *in)
{
    int64_t count = 40 * (in->rows * in->n + in->rows + in->n) + 8192;
    return count < CAPACITY ? count : CAPACITY;
}

static inline float start_value(const inputs *in, int64_t i)
{
    return in->beta == 0.0f ? NAN : 0.5f - (float)(i % 7) * 0.1f;
}

/* Runs one case on one table, whose outputs are `room` floats at most. */
static inline int64_t run_case(const sweep_case *c, const ls__kernels *k, const inputs *in,
                               float *out, int64_t room, int threads)
{
    for (int64_t i = 0; i < room; i++) {
        out[i] = start_value(in, i);
    }
    ls__kernels_set_threads(threads);
    return c->run(k, in, out);
}

static inline void check_guard(const char *what, const inputs *in, const float *out, int64_t count)
{
    for (int64_t i = count; i < count + GUARD; i++) {
        float start = start_value(in, i);
        check_same_bits(what, &out[i], &start, 1);
    }
}

/* `want`, `got`, `again`: CAPACITY floats each. */
static inline void compare(const sweep_case *c, const inputs *in, float *want, float *got,
                           float *again)
{
    int64_t count = run_case(c, ls__kernels_ref(), in, want, outputs_max(in), 1);
    double longest = sqrt((double)(in->rows > in->n ? in->rows : in->n));
    CHECK(count + GUARD <= outputs_max(in));
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        const ls__kernels *k = variant(isa);
        if (k == NULL) {
            continue;
        }
        char what[128];
        snprintf(what, sizeof what, "%s of %s [%lld,%lld] beta %g", c->name, k->name,
                 (long long)in->rows, (long long)in->n, (double)in->beta);
        CHECK_INT(run_case(c, k, in, got, count + GUARD, 1), count);
        check_close(what, got, want, count, c->rtol, c->atol * longest);
        check_guard(what, in, got, count);
        for (int threads = 2; threads <= 3 && in->rows * in->n >= SERIAL_BELOW; threads++) {
            run_case(c, k, in, again, count + GUARD, threads);
            check_same_bits(what, again, got, count);
        }
    }
}

#endif

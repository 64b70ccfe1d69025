/* SPDX-License-Identifier: Apache-2.0 */
/* Mean and variance of many numbers, as norms need them: right to float32's last digits whatever
 * the mean is beside the deviation. Sums are float32 by lanes within a block and float64 over the
 * blocks, in the order of memory.
 *
 * Pass one adds x less the first element, so equal elements add up to exactly 0; pass two adds the
 * squares about that mean as float32 has it, and corrects both by the sum of what is left. */
#ifndef LS_KERNEL_CPU_MOMENTS_H
#define LS_KERNEL_CPU_MOMENTS_H

#include "kernel/cpu/isa.h"

#define LS__SUM_BLOCK 512 /* elements whose float32 sum keeps its digits, also without vectors */

typedef struct ls__moments {
    double mean, variance; /* the biased one */
} ls__moments;

/* Sums of x - about and of their squares over at most LS__SUM_BLOCK elements. */
LS__INLINE void ls__add_about(double *sum, double *squares, const float *x, int64_t count,
                              float about)
{
    float s = 0.0f, q = 0.0f;
#pragma omp simd reduction(+ : s, q)
    for (int64_t i = 0; i < count; i++) {
        float d = x[i] - about;
        s += d;
        q += d * d;
    }
    *sum += (double)s;
    *squares += (double)q;
}

/* The same over n elements. A sum that the caller does not use costs nothing. */
LS__INLINE void ls__sum_about(double *sum, double *squares, const float *x, int64_t n, float about)
{
    *sum = *squares = 0.0;
    for (int64_t i = 0; i < n; i += LS__SUM_BLOCK) {
        ls__add_about(sum, squares, x + i, ls__min(LS__SUM_BLOCK, n - i), about);
    }
}

/* Of at least one element. */
LS__INLINE ls__moments ls__moments_of(const float *x, int64_t n)
{
    const double count = (double)n;
    double sum, squares, unused;
    ls__sum_about(&sum, &unused, x, n, x[0]);
    const float near = (float)((double)x[0] + sum / count);
    ls__sum_about(&sum, &squares, x, n, near);
    const double off = sum / count, variance = squares / count - off * off;
    return (ls__moments){(double)near + off, variance < 0.0 ? 0.0 : variance};
}

#endif

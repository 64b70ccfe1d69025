/* SPDX-License-Identifier: Apache-2.0 */
/* Multiply-adds in registers, as many as the processor can begin: compiled for each instruction set
 * (LS__BENCH_PEAK_LOOP names them, LS__BENCH_PEAK_BYTES is its vector). Twelve chains are more than
 * two units of four cycles' latency need. */
#include <stdint.h>

/* Operations done. */
double LS__BENCH_PEAK_LOOP(int64_t rounds, float times, float plus);

#define CHAINS 12

typedef float vector __attribute__((vector_size(LS__BENCH_PEAK_BYTES)));

double LS__BENCH_PEAK_LOOP(int64_t rounds, float times, float plus)
{
    vector x[CHAINS], a, b;
    const int lanes = (int)(sizeof a / sizeof(float));
    for (int i = 0; i < lanes; i++) {
        a[i] = times;
        b[i] = plus;
    }
    for (int c = 0; c < CHAINS; c++) {
        x[c] = b * (float)c;
    }
    vector x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3], x4 = x[4], x5 = x[5], x6 = x[6], x7 = x[7],
           x8 = x[8], x9 = x[9], x10 = x[10], x11 = x[11];
    for (int64_t r = 0; r < rounds; r++) {
        x0 = x0 * a + b, x1 = x1 * a + b, x2 = x2 * a + b, x3 = x3 * a + b;
        x4 = x4 * a + b, x5 = x5 * a + b, x6 = x6 * a + b, x7 = x7 * a + b;
        x8 = x8 * a + b, x9 = x9 * a + b, x10 = x10 * a + b, x11 = x11 * a + b;
    }
    const vector sum = x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7 + x8 + x9 + x10 + x11;
    float total = 0.0f;
    for (int i = 0; i < lanes; i++) {
        total += sum[i];
    }
    /* The sum goes into the count by nothing, so that it has to be made. */
    return 2.0 * CHAINS * lanes * (double)rounds + (total > 0.0f ? 0.0 : 1e-9);
}

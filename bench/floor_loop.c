/* SPDX-License-Identifier: Apache-2.0 */
/* The memory floor's loops, compiled for each instruction set (LS__BENCH_FLOOR_LOOP names them).
 *
 * They have the shape of a reduction that everyone sees at once, a = b = a + b: every element of
 * every stream is read once and written once. Nothing else happens: no calls, no waiting, no
 * checks, and no care for the order of the sum. They are written apart from the library's own
 * kernel, which may not be its own yardstick.
 */
#include <stdint.h>

void LS__BENCH_FLOOR_LOOP(float *const *x, int n, int64_t count);

#define STREAM(k) float *const s##k = x[k];
#define STREAMS_2 STREAM(0) STREAM(1)
#define STREAMS_3 STREAMS_2 STREAM(2)
#define STREAMS_4 STREAMS_3 STREAM(3)
#define STREAMS_5 STREAMS_4 STREAM(4)
#define STREAMS_6 STREAMS_5 STREAM(5)
#define STREAMS_7 STREAMS_6 STREAM(6)
#define STREAMS_8 STREAMS_7 STREAM(7)
#define SUM_2 (s0[i] + s1[i])
#define SUM_3 (SUM_2 + s2[i])
#define SUM_4 (SUM_2 + (s2[i] + s3[i]))
#define SUM_5 (SUM_4 + s4[i])
#define SUM_6 (SUM_4 + (s4[i] + s5[i]))
#define SUM_7 (SUM_6 + s6[i])
#define SUM_8 (SUM_6 + (s6[i] + s7[i]))
#define STORE_2 s0[i] = s1[i] = sum;
#define STORE_3 STORE_2 s2[i] = sum;
#define STORE_4 STORE_3 s3[i] = sum;
#define STORE_5 STORE_4 s4[i] = sum;
#define STORE_6 STORE_5 s5[i] = sum;
#define STORE_7 STORE_6 s6[i] = sum;
#define STORE_8 STORE_7 s7[i] = sum;

#define LOOP(n)                                                                                    \
    static void loop_##n(float *const *x, int64_t count)                                           \
    {                                                                                              \
        STREAMS_##n _Pragma("omp simd") for (int64_t i = 0; i < count; i++)                        \
        {                                                                                          \
            const float sum = SUM_##n;                                                             \
            STORE_##n                                                                              \
        }                                                                                          \
    }
LOOP(2)
LOOP(3)
LOOP(4)
LOOP(5)
LOOP(6)
LOOP(7)
LOOP(8)

/* More streams than a processor follows at once: pairs of them into one block, which stays in the
 * nearest cache, and from there into all. */
static void loop_many(float *const *x, int n, int64_t count)
{
    enum { BLOCK = 256 };
    float sum[BLOCK];
    for (int64_t first = 0; first < count; first += BLOCK) {
        const int64_t m = count - first < BLOCK ? count - first : BLOCK;
        for (int64_t i = 0; i < m; i++) {
            sum[i] = n % 2 ? x[n - 1][first + i] : 0.0f;
        }
        for (int s = 0; s + 1 < n; s += 2) {
            const float *a = x[s] + first, *b = x[s + 1] + first;
            _Pragma("omp simd") for (int64_t i = 0; i < m; i++)
            {
                sum[i] += a[i] + b[i];
            }
        }
        for (int s = 0; s < n; s++) {
            float *out = x[s] + first;
            _Pragma("omp simd") for (int64_t i = 0; i < m; i++)
            {
                out[i] = sum[i];
            }
        }
    }
}

void LS__BENCH_FLOOR_LOOP(float *const *x, int n, int64_t count)
{
    static void (*const loops[])(float *const *,
                                 int64_t) = {[2] = loop_2, [3] = loop_3, [4] = loop_4, [5] = loop_5,
                                             [6] = loop_6, [7] = loop_7, [8] = loop_8};
    if (n >= 2 && n <= 8) {
        loops[n](x, count);
    } else {
        loop_many(x, n, count);
    }
}

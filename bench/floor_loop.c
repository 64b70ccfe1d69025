/* The memory floor's loop, compiled for each instruction set (LS__BENCH_FLOOR_LOOP names it).
 *
 * It is the shape of a reduction that everyone sees at once, a = b = a + b: every element of every
 * stream is read once and written once. Nothing else happens: no calls, no waiting, no checks. It
 * is written apart from the library's own kernel, which may not be its own yardstick.
 */
#include <stdint.h>

void LS__BENCH_FLOOR_LOOP(float *const *x, int n, int64_t count);

static void two(float *a, float *b, int64_t count)
{
    _Pragma("omp simd") for (int64_t i = 0; i < count; i++)
    {
        const float sum = a[i] + b[i];
        a[i] = sum;
        b[i] = sum;
    }
}

/* Half a kilobyte at a time, so that the sum stays in registers or the nearest cache. */
static void many(float *const *x, int n, int64_t count)
{
    enum { BLOCK = 128 };
    float sum[BLOCK];
    for (int64_t first = 0; first < count; first += BLOCK) {
        const int64_t m = count - first < BLOCK ? count - first : BLOCK;
        for (int64_t i = 0; i < m; i++) {
            sum[i] = x[0][first + i];
        }
        for (int s = 1; s < n; s++) {
            const float *in = x[s] + first;
            for (int64_t i = 0; i < m; i++) {
                sum[i] += in[i];
            }
        }
        for (int s = 0; s < n; s++) {
            float *out = x[s] + first;
            for (int64_t i = 0; i < m; i++) {
                out[i] = sum[i];
            }
        }
    }
}

void LS__BENCH_FLOOR_LOOP(float *const *x, int n, int64_t count)
{
    if (n == 2) {
        two(x[0], x[1], count);
    } else {
        many(x, n, count);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The floor on the best instruction set this processor has. */
#include "bench.h"

#include "base/cpu.h"

void ls__bench_floor_base(float *const *x, int n, int64_t count);
void ls__bench_floor_v3(float *const *x, int n, int64_t count);
void ls__bench_floor_v4(float *const *x, int n, int64_t count);

void ls__bench_floor(float *const *x, int n, int64_t count)
{
    switch (ls__cpu_best()) {
#if defined(__x86_64__)
    case LS__ISA_V4:
        ls__bench_floor_v4(x, n, count);
        break;
    case LS__ISA_V3:
        ls__bench_floor_v3(x, n, count);
        break;
#endif
    default:
        ls__bench_floor_base(x, n, count);
        break;
    }
}

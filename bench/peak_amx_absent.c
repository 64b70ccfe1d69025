/* SPDX-License-Identifier: Apache-2.0 */
/* A compiler or a processor's family without tiles. */
#include "peak.h"

bool ls__bench_amx_allowed(void)
{
    return false;
}

double ls__bench_peak_amx(int64_t rounds)
{
    (void)rounds;
    return 0.0;
}

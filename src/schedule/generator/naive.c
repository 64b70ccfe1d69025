/* SPDX-License-Identifier: Apache-2.0 */
/* Naive model parallelism: one micro-batch at a time, and one rank works at a time.
 *
 *     rank 0   F0         B0 F1         B1
 *     rank 1      F0   B0       F1   B1
 *     rank 2         F0/B0         F1/B1
 */
#include "schedule/generator/generator.h"

ls_status ls__generate_naive(ls__schedule *s, const ls__schedule_spec *spec)
{
    (void)spec;
    for (int m = 0; m < s->micro_batches; m++) {
        for (int stage = 0; stage < s->stages; stage++) {
            ls__generate(s, LS__FORWARD, stage, m);
            ls__generate(s, LS__BACKWARD, stage, m);
        }
    }
    return LS_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.1): 1F1B whose
 * backward is split. Its input part, for which the rank before waits, runs at once; its weight part
 * runs r micro-batches later on rank r and fills the time in which 1F1B would wait at the end.
 * Every rank holds at most P micro-batches, as the first rank of 1F1B does.
 *
 *     rank 0 of 3   F0 F1 F2             I0 W0 F3 I1 W1    I2 W2    I3 W3
 *     rank 1           F0 F1       I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
 *     rank 2              F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
 */
#include "schedule/generator/generator.h"

ls_status ls__generate_zb_h1(ls__schedule *s, const ls__schedule_spec *spec)
{
    (void)spec;
    for (int stage = 0; stage < s->stages; stage++) {
        const int ahead = s->stages - 1 - stage, count = s->micro_batches;
        for (int m = 0; m < count + ahead + stage; m++) {
            const int input = m - ahead, weight = input - stage;
            if (m < count) {
                ls__generate(s, LS__FORWARD, stage, m);
            }
            if (input >= 0 && input < count) {
                ls__generate(s, LS__INPUT_PART, stage, input);
            }
            if (weight >= 0) {
                ls__generate(s, LS__WEIGHT_PART, stage, weight);
            }
        }
    }
    return LS_OK;
}

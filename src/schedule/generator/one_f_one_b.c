/* One forward, one backward (PipeDream-Flush: Narayanan et al., ICML 2021, section 3.2). The last
 * rank alternates from the beginning, each rank before it runs one forward more ahead, so rank r
 * holds the activations of at most P-r micro-batches.
 *
 *     rank 0   F0 F1 F2          B0 F3       B1  ...
 *     rank 1      F0 F1       B0 F2    B1 F3
 *     rank 2         F0 B0 F1 B1   F2 B2   F3 B3
 */
#include "schedule/generator/generator.h"

ls_status ls__generate_1f1b(ls__schedule *s, const ls__schedule_spec *spec)
{
    (void)spec;
    for (int stage = 0; stage < s->stages; stage++) {
        const int ahead = s->stages - 1 - stage;
        for (int m = 0; m < s->micro_batches + ahead; m++) {
            if (m < s->micro_batches) {
                ls__generate(s, LS__FORWARD, stage, m);
            }
            if (m >= ahead) {
                ls__generate(s, LS__BACKWARD, stage, m - ahead);
            }
        }
    }
    return LS_OK;
}

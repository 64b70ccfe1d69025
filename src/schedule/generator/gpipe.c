/* SPDX-License-Identifier: Apache-2.0 */
/* GPipe (Huang et al., NeurIPS 2019, section 2.2): all forwards, then all backwards.
 *
 *     rank 0   F0 F1 F2 F3          B0 B1 B2 B3
 *     rank 1      F0 F1 F2 F3    B0 B1 B2 B3
 *     rank 2         F0 F1 F2 F3 B0 B1 B2 B3
 *
 * In the paper and in torchgpipe the backwards run in descending order. Here they ascend, as in
 * PyTorch, so that the gradients are summed as in every other schedule; all activations are alive
 * between the two phases in either case.
 */
#include "schedule/generator/generator.h"

ls_status ls__generate_gpipe(ls__schedule *s, const ls__schedule_spec *spec)
{
    (void)spec;
    for (int stage = 0; stage < s->stages; stage++) {
        for (int m = 0; m < s->micro_batches; m++) {
            ls__generate(s, LS__FORWARD, stage, m);
        }
        for (int m = 0; m < s->micro_batches; m++) {
            ls__generate(s, LS__BACKWARD, stage, m);
        }
    }
    return LS_OK;
}

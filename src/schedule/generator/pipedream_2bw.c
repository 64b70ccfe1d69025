/* SPDX-License-Identifier: Apache-2.0 */
/* PipeDream-2BW (Narayanan et al., ICML 2021, section 3.1): 1F1B without a flush, in which a step
 * sums per_step micro-batches. With at least P of them, two versions are enough: all stages are one
 * step behind, the newest weights are used by the batch to come and their predecessor by the one
 * under way.
 */
#include "base/error.h"
#include "schedule/generator/generator.h"

ls_status ls__generate_pipedream_2bw(ls__schedule *s, const ls__schedule_spec *spec)
{
    const int per_step = spec->per_step > 0 ? spec->per_step : spec->ranks;
    if (per_step < spec->ranks || spec->micro_batches % per_step != 0) {
        return ls__fail(LS_ERR_INVALID,
                        "schedule pipedream-2bw: %d micro-batches, %d a step, on %d ranks; a step "
                        "needs one for each rank at least, and all steps equally many",
                        spec->micro_batches, per_step, spec->ranks);
    }
    s->per_step = per_step;
    s->delay = 1;
    return ls__generate_1f1b(s, spec);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* PipeDream (Narayanan et al., SOSP 2019): 1F1B without a flush. Each backward is followed by a
 * step of its stage, so a forward reads weights that lack the last steps, and the weights that it
 * read are stashed for its backward (section 3.3). Stage s is P-1-s steps behind; with vertical
 * sync every stage is P-1 behind, the version that the first stage has used.
 */
#include "schedule/generator/generator.h"

ls_status ls__generate_pipedream(ls__schedule *s, const ls__schedule_spec *spec)
{
    s->per_step = 1;
    s->delay = spec->vertical_sync ? s->stages - 1 : LS__DELAY_BY_STAGE;
    return ls__generate_1f1b(s, spec);
}

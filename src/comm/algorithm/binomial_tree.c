/* SPDX-License-Identifier: Apache-2.0 */
/* The canonical tree of a team climbed towards its first member, with whole buffers: at level d the
 * member at place p+d hands the sum of its subtree to that at p. A stage is complete before the
 * next one reads it. */
#include "comm/algorithm/algorithm.h"

void ls__team_of_all(const ls__program_spec *spec, ls__team *team)
{
    team->size = spec->size;
    team->place = spec->rank;
    for (int r = 0; r < spec->size; r++) {
        team->rank[r] = (int16_t)r;
    }
}

int ls__emit_team_tree(ls__builder *b, const ls__program_spec *spec, const ls__team *team)
{
    const int me = team->place;
    const ls__ref sum = ls__ref_scratch(spec, 1, 0, 0), other = ls__ref_scratch(spec, 1, 1, 0);
    ls__builder_chunks(b, 1, 2);
    ls__builder_wide(b);
    int last = ls__builder_copy(b, 0, sum, ls__ref_of(LS__BUFFER_INPUT, spec->rank, 0));
    for (int d = 1; d < team->size; d *= 2) {
        if (me % (2 * d) == d) {
            return ls__builder_send(b, 0, sum, team->rank[me - d]);
        }
        if (me + d < team->size) {
            (void)ls__builder_recv(b, 0, other, team->rank[me + d]);
            last = ls__builder_reduce(b, 0, &sum, 1, (ls__ref[]){sum, other}, 2);
        }
    }
    return last;
}

void ls__emit_tree(ls__builder *b, const ls__program_spec *spec)
{
    ls__team all;
    ls__team_of_all(spec, &all);
    (void)ls__emit_team_tree(b, spec, &all);
}

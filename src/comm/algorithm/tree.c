/* The canonical tree climbed towards rank 0, with whole buffers: at level d rank r+d hands the sum
 * of its subtree to rank r. A stage is complete before the next one reads it. */
#include "comm/algorithm/algorithm.h"

void ls__emit_tree(ls__builder *b, const ls__program_spec *spec)
{
    const int n = spec->size, me = spec->rank;
    const ls__ref sum = ls__ref_scratch(spec, 1, 0, 0), other = ls__ref_scratch(spec, 1, 1, 0);
    ls__builder_chunks(b, 1, 2);
    ls__builder_wide(b);
    (void)ls__builder_copy(b, 0, sum, ls__ref_of(LS__BUFFER_INPUT, me, 0));
    for (int d = 1; d < n; d *= 2) {
        if (me % (2 * d) == d) {
            (void)ls__builder_send(b, 0, sum, me - d);
            return;
        }
        if (me + d < n) {
            (void)ls__builder_recv(b, 0, other, me + d);
            (void)ls__builder_reduce(b, 0, &sum, 1, (ls__ref[]){sum, other}, 2);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of other stages are freed when the model is cut. With LOCKSTEP_CHECK=strict they are
 * kept until the first step, whose first micro-batch shows whether the parts compute the same as
 * forward. */
#include <stdlib.h>

#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/core/group.h"
#include "nn/parts.h"
#include "parallel/pipeline/internal.h"

/* Calls `keep` with the parts of this rank's stages. */
static ls_status keep_own(ls_pipeline *p,
                          ls_status (*keep)(ls_module *module, const int *list, int count))
{
    int *list = malloc((size_t)p->first[p->stages] * sizeof *list), count = 0;
    if (list == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_pipeline_new: no memory");
    }
    for (int i = 0; i < p->own_count; i++) {
        for (int k = 0; k < p->own[i].count; k++) {
            list[count++] = p->own[i].first + k;
        }
    }
    const ls_status status = keep(p->net, list, count);
    free(list);
    return status;
}

ls_status ls__pipeline_cut(ls_pipeline *p)
{
    const bool strict = p->group->comm->strict;
    LS_TRY(keep_own(p, strict ? ls__parts_set_aside : ls_module_keep_parts));
    p->parts_aside = strict;
    return LS_OK;
}

/* Whether this rank has all inputs of the module: their number, or 0. */
static int inputs_of(const ls_pipeline *p, const ls_micro_batch *micro)
{
    ls_stage_edges edges;
    int inputs = 0;
    if (ls_module_stage_edges(p->net, 0, p->first[p->stages], &edges) < 0) {
        return 0;
    }
    for (int i = 0; i < edges.in_count; i++) {
        const int number = -1 - edges.in[i]; /* LS_PART_INPUT */
        if (number >= LS_PART_FROM_MAX || micro->inputs[number] == NULL) {
            return 0;
        }
        inputs = number >= inputs ? number + 1 : inputs;
    }
    return inputs;
}

ls_status ls__pipeline_check_parts(ls_pipeline *p, const ls_micro_batch *micro)
{
    if (!p->parts_aside) {
        return LS_OK;
    }
    p->parts_aside = false;
    ls__parts_bring_back(p->net);
    const int inputs = inputs_of(p, &micro[0]);
    const ls_status checked =
        inputs > 0 ? ls_module_check_parts(p->net, micro[0].inputs, inputs) : LS_OK;
    const ls_status kept = keep_own(p, ls__parts_keep);
    return checked < 0 ? checked : kept;
}

void ls__pipeline_forget_parts(ls_pipeline *p)
{
    if (p->parts_aside) {
        p->parts_aside = false;
        ls__parts_bring_back(p->net);
        (void)keep_own(p, ls__parts_keep);
    }
}

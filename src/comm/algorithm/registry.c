/* SPDX-License-Identifier: Apache-2.0 */
/* The registry: every algorithm there is, in pinned order (an index travels in descriptors). The
 * first one of an operation is its default. */
#include <string.h>

#include "base/assert.h"
#include "base/text.h"
#include "comm/algorithm/algorithm.h"
#include "comm/algorithm/registry.h"
#include "comm/program/program.h"

static const ls__algorithm *const algorithms[] = {
    &ls__all_reduce_direct,
    &ls__all_reduce_one_shot,
    &ls__reduce_scatter_direct,
    &ls__all_gather_direct,
    &ls__all_gather_one_shot,
    &ls__broadcast_direct,
    &ls__broadcast_one_shot,
    &ls__barrier_direct,
    &ls__reduce_direct,
    &ls__reduce_one_shot,
    &ls__gather_direct,
    &ls__scatter_direct,
    &ls__all_reduce_ring,
    &ls__all_reduce_doubling,
    &ls__reduce_scatter_ring,
    &ls__all_gather_ring,
    &ls__broadcast_binomial,
    &ls__all_to_all_direct,
    &ls__all_to_all_pairwise,
    &ls__all_to_all_bruck,
    &ls__scan_direct,
    &ls__scan_doubling,
    &ls__exscan_direct,
    &ls__exscan_doubling,
    &ls__all_reduce_root,
    &ls__all_reduce_full_exchange,
    &ls__all_reduce_halving,
    &ls__all_reduce_tree_stages,
    &ls__reduce_scatter_halving,
    &ls__all_gather_doubling,
    &ls__all_gather_bruck,
    &ls__reduce_binomial,
    &ls__gather_binomial,
    &ls__scatter_binomial,
    &ls__broadcast_scatter_gather,
    &ls__broadcast_chain,
    &ls__all_reduce_double_tree,
    &ls__all_reduce_hierarchical,
    &ls__reduce_scatter_pairwise,
    &ls__all_to_all_v_direct,
    &ls__all_to_all_v_pairwise,
    &ls__all_gather_v_direct,
    &ls__reduce_scatter_v_direct,
    &ls__gather_v_direct,
    &ls__scatter_v_direct,
};

/* In pinned order; the array is static. */
const ls__algorithm *const *ls__algorithms(int *count)
{
    *count = (int)(sizeof algorithms / sizeof algorithms[0]);
    return algorithms;
}

/* NULL: the operation has no algorithm of this name. */
const ls__algorithm *ls__algorithm_find(ls__operation operation, const char *name)
{
    for (size_t i = 0; i < sizeof algorithms / sizeof algorithms[0]; i++) {
        if (algorithms[i]->operation == operation && strcmp(algorithms[i]->name, name) == 0) {
            return algorithms[i];
        }
    }
    return NULL;
}

/* Descriptors carry the index plus one, so entries are only appended. */
int ls__algorithm_index(const ls__algorithm *algorithm)
{
    int index = 0;
    while (algorithms[index] != algorithm) {
        index++;
        LS_ASSERT(index < (int)(sizeof algorithms / sizeof algorithms[0]));
    }
    return index;
}

/* For error texts and documentation; cut if it does not fit. */
void ls__algorithm_names(ls__operation operation, char *out, size_t bytes)
{
    ls__text text = {.at = out, .room = bytes};
    ls__text_add(&text, "%s", "");
    for (size_t i = 0; i < sizeof algorithms / sizeof algorithms[0]; i++) {
        if (algorithms[i]->operation == operation) {
            ls__text_add(&text, "%s\"%s\"", text.at > out ? ", " : "", algorithms[i]->name);
        }
    }
    if (text.at == out) {
        ls__text_add(&text, "none");
    }
}

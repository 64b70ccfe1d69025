/* SPDX-License-Identifier: Apache-2.0 */
/* For tests in which all ranks must end with the same model. */
#ifndef LS_TEST_REPLICAS_H
#define LS_TEST_REPLICAS_H

#include <lockstep/lockstep.h>

#include "test.h"

/* The hash of parameters and buffers, which must be the same on all ranks. Collective. */
static inline uint64_t equal_replicas(ls_module *net, ls_group *group)
{
    int identical = 0;
    uint64_t hash = 0;
    CHECK_OK(ls_replicas_identical(net, group, &identical, &hash));
    CHECK_INT(identical, ls_group_size(group));
    return hash;
}

#endif

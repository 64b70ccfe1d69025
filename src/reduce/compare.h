/* SPDX-License-Identifier: Apache-2.0 */
/* Whether all ranks of a domain registered the same gradients, and whether their replicas are still
 * equal; see compare.c. */
#ifndef LS_REDUCE_COMPARE_H
#define LS_REDUCE_COMPARE_H

#include "dist/agree.h"
#include "reduce/internal.h"

/* The ranks of a domain, among whom this one compares. */
ls__agree_peers ls__domain_peers(const ls_reducer *r, const ls__reduce_domain *domain);

/* Collective over the domain; LS_ERR_MISMATCH names the first difference. */
ls_status ls__reducer_compare(const ls_reducer *r, const ls__reduce_domain *domain);

enum {
    LS__REPLICA_NOT_NOW, /* this step does not look at the parameters */
    LS__REPLICA_UNSEEN   /* it does, but not all of them are on this rank */
};
/* Of the domain's parameters, or one of the values above. */
uint64_t ls__replica_hash(const ls_reducer *r, const ls__reduce_domain *domain);
/* After a backward: names the setting, or the parameter, in which the ranks differ, if their hashes
 * in the control exchange did. Collective then. */
ls_status ls__changes_check(ls_reducer *r);
ls_status ls__replica_check(ls_reducer *r);

#endif

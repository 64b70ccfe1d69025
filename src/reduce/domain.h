/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of a reducer; see domain.c. */
#ifndef LS_REDUCE_DOMAIN_H
#define LS_REDUCE_DOMAIN_H

#include "reduce/internal.h"

/* Makes domain 0, over `group`, and batch 0, of its ranks. Collective. */
ls_status ls__domains_init(ls_reducer *r, ls_group *group);
/* The number of the domain, and of the batch, that stands for the caller's group (NULL: the
 * reducer's own); notes it when it is new. Local. */
ls_status ls__domain_find(ls_reducer *r, const char *param, ls_group *given, int *out);
ls_status ls__batch_find(ls_reducer *r, const char *param, const ls_group *given, int *out);
/* Makes the groups of the domains after domain 0. Collective over each of them. */
ls_status ls__domains_open(ls_reducer *r);
/* Makes the groups for the phases after the first, if they do not exist. Collective over each
 * domain. */
ls_status ls__domains_add_phases(ls_reducer *r, int phases);
/* The group on which phase `phase` of the domain's buckets runs; NULL: not made. */
ls_group *ls__domain_phase_group(const ls__reduce_domain *domain, int phase);
/* Lists each domain's parameters, and allocates its part of the control exchange. */
ls_status ls__domains_fill(ls_reducer *r);
/* Collective over each domain; returns the first error. */
ls_status ls__domains_free(ls_reducer *r);

/* Rank `rank` of the domain, in the world: error texts say no other. */
int ls__domain_rank(const ls__reduce_domain *domain, int rank);
/* The same of a rank of the reducer's group. */
int ls__reducer_rank(const ls_reducer *r, int rank);

/* Fails all groups of the reducer: peers of any of them would wait. */
void ls__reducer_fail(ls_reducer *r, ls_status status, const char *text);

#endif

/* Whether all ranks registered the same gradients; see compare.c. */
#ifndef LS_REDUCE_COMPARE_H
#define LS_REDUCE_COMPARE_H

#include "reduce/internal.h"

/* Collective over the domain; LS_ERR_MISMATCH names the first difference. */
ls_status ls__reducer_compare(ls_reducer *r, const ls__reduce_domain *domain);

#endif

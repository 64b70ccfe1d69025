/* Whether all ranks have the same seed, samplers and optimizers; see config_check.c. */
#ifndef LS_REDUCE_CONFIG_CHECK_H
#define LS_REDUCE_CONFIG_CHECK_H

#include "reduce/internal.h"

/* Collective, once; LS_ERR_MISMATCH names the first difference. */
ls_status ls__config_check(ls_reducer *r);

#endif

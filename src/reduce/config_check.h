/* Whether all ranks have the same seed, samplers and optimizers; see config_check.c. */
#ifndef LS_REDUCE_CONFIG_CHECK_H
#define LS_REDUCE_CONFIG_CHECK_H

#include "reduce/internal.h"

/* Collective, once; LS_ERR_MISMATCH names the first difference. */
ls_status ls__config_check(ls_reducer *r);
/* Names the setting of which the control exchange found that it differs. Collective; returns
 * LS_ERR_MISMATCH, or the failure of the exchange. */
ls_status ls__config_name_change(const ls_reducer *r);

#endif

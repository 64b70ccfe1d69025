/* Devices whose kernels do not reach memory of the program. Backward then writes gradients to
 * memory of the device; each is copied to its bucket when it is final, and its average back. */
#ifndef LS_DDP_APART_H
#define LS_DDP_APART_H

#include "ddp/wrapper.h"

bool ls__ddp_is_apart(const ls_tensor *param);
/* The gradient of parameter i, if it is present, to its bucket. */
ls_status ls__ddp_carry_out(const ls__ddp *d, int i);
/* From the buckets, those of params[count], or of all for NULL, that are present there. */
ls_status ls__ddp_carry_back(const ls__ddp *d, const int *params, int count);

#endif

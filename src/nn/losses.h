/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of layers in the middle of a model; see losses.c. */
#ifndef LS_NN_LOSSES_H
#define LS_NN_LOSSES_H

#include <lockstep/nn.h>

/* Of `module` and all below it, as if none had run. */
void ls__losses_forget(ls_module *module);

#endif

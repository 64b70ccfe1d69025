/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks on the forward of modules; see hooks.c. */
#ifndef LS_NN_HOOKS_H
#define LS_NN_HOOKS_H

#include "nn/module.h"

/* Those before (outputs NULL) or after the forward of `module`. */
ls_status ls__module_hooks_run(ls_module *module, ls_tensor **inputs, int input_count,
                               ls_tensor **outputs, int output_count);
void ls__module_hooks_free(ls_module *module);

#endif

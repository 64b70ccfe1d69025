/* SPDX-License-Identifier: Apache-2.0 */
/* AlexNet in one column (Krizhevsky 2014), as torchvision builds and names it: five convolutions,
 * three linear layers, 61 million parameters. */
#ifndef LOCKSTEP_MODELS_ALEXNET_H
#define LOCKSTEP_MODELS_ALEXNET_H

#include <lockstep/lockstep.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x [N,3,H,W], H and W at least 63 -> logits [N,classes]; torchvision's dropout is 0.5. NULL with
 * ls_error_message on failure. */
LS_API ls_module *ls_alexnet_new(int64_t classes, double dropout);

#ifdef __cplusplus
}
#endif
#endif

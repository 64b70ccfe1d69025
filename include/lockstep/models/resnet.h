/* SPDX-License-Identifier: Apache-2.0 */
/* Residual networks (He et al. 2016), as torchvision builds and names them: basic blocks for depth
 * 18 and 34, bottlenecks with the stride on the 3 x 3 convolution ("v1.5") for 50, 101 and 152. */
#ifndef LOCKSTEP_MODELS_RESNET_H
#define LOCKSTEP_MODELS_RESNET_H

#include <lockstep/lockstep.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x [N,3,H,W] -> logits [N,classes]. The stem is ImageNet's (7 x 7 with stride 2, then pooling), or
 * with cifar_stem a 3 x 3 convolution that keeps the size. NULL with ls_error_message on failure,
 * for example for another depth. */
LS_API ls_module *ls_resnet_new(int depth, int64_t classes, bool cifar_stem);

#ifdef __cplusplus
}
#endif
#endif

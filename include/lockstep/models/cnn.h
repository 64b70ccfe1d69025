/* SPDX-License-Identifier: Apache-2.0 */
/* A small convolutional network for small images: two convolutions, batch norm, ReLU, one linear
 * layer. */
#ifndef LOCKSTEP_MODELS_CNN_H
#define LOCKSTEP_MODELS_CNN_H

#include <lockstep/lockstep.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x [N,channels,H,W] of any size -> logits [N,classes]. NULL with ls_error_message on failure. */
LS_API ls_module *ls_cnn_new(int64_t channels, int64_t classes);

#ifdef __cplusplus
}
#endif
#endif

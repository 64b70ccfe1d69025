/* SPDX-License-Identifier: Apache-2.0 */
/* A perceptron with one hidden layer: linear, ReLU, linear. */
#ifndef LOCKSTEP_MODELS_MLP_H
#define LOCKSTEP_MODELS_MLP_H

#include <lockstep/lockstep.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x [B,in] -> logits [B,out]. NULL with ls_error_message on failure. */
LS_API ls_module *ls_mlp_new(int64_t in, int64_t hidden, int64_t out);

#ifdef __cplusplus
}
#endif
#endif

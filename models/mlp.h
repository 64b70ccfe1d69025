/* A perceptron with one hidden layer: linear, ReLU, linear. */
#ifndef MODELS_MLP_H
#define MODELS_MLP_H

#include <lockstep/lockstep.h>

/* x [B,in] -> logits [B,out]. NULL with ls_error_message on failure. */
ls_module *mlp_new(int64_t in, int64_t hidden, int64_t out);

#endif

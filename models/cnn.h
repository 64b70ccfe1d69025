/* A small convolutional network for small images: two convolutions, batch norm, ReLU, one linear
 * layer. */
#ifndef MODELS_CNN_H
#define MODELS_CNN_H

#include <lockstep/lockstep.h>

/* x [N,channels,H,W] of any size -> logits [N,classes]. NULL with ls_error_message on failure. */
ls_module *cnn_new(int64_t channels, int64_t classes);

#endif

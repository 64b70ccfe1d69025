/* SPDX-License-Identifier: Apache-2.0 */
/* The nets that are trained beside PyTorch. */
#ifndef NETS_H
#define NETS_H

#include "reference.h"

extern const reference_net mlp_net, gpt_net, lstm_net, bert_net, cnn_net, resnet_net;

#endif

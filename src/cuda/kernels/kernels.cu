/* SPDX-License-Identifier: Apache-2.0 */
/* One module of all kernels but those of random.cu, whose rounding differs. */
#include "attention.cu"
#include "elementwise.cu"
#include "image.cu"
#include "loss.cu"
#include "move.cu"
#include "optim.cu"
#include "rows.cu"
#include "sums.cu"

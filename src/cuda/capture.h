/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this thread's work is being captured, for what then goes another way. */
#ifndef LS_CUDA_CAPTURE_H
#define LS_CUDA_CAPTURE_H

#include "device/device.h"

extern const ls__device_capture ls__cuda_capture;

bool ls__cuda_capturing(void);
/* Notes an error of the capture, in place of one of the device. */
void ls__cuda_capture_fail(const char *what, const char *why);
/* What kernels of optimizers look at: NaN, and no step is made. NULL: nothing. */
const float *ls__cuda_capture_gate(void);

#endif

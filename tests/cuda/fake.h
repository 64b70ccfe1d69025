/* A CUDA driver for tests, libcuda.so.1 by its name: streams are threads that run late, kernels
 * the emulated ones (emulator.h), and memory traps where the program touches it. And cuBLASLt
 * for it. */
#ifndef TEST_CUDA_FAKE_H
#define TEST_CUDA_FAKE_H

#include <stddef.h>
#include <stdint.h>

#define FAKE_PUBLIC __attribute__((visibility("default")))

FAKE_PUBLIC void fake_cuda_limit(size_t bytes); /* of memory; from now on */
FAKE_PUBLIC size_t fake_cuda_used(void);        /* bytes that were taken and not given back */
FAKE_PUBLIC uint64_t fake_cuda_launched(void);  /* kernels so far, and products */
FAKE_PUBLIC void fake_cuda_fail_next(int code); /* the next start of a kernel fails so */
/* Holds what was put into `stream` back until it is released. */
FAKE_PUBLIC void fake_cuda_hold(void *stream, int holds);

/* For the fake cuBLASLt. */
FAKE_PUBLIC void fake_cuda_enqueue(void *stream, void (*run)(void *args), const void *args,
                                   size_t bytes);

#endif

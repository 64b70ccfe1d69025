/* A device: memory for the elements of tensors, and the kernels that compute there.
 *
 * Note [Devices]
 * Every storage lies on one device. Operations look their kernels up by it and start them on its
 * stream, in the order of the program; what a kernel gives (a loss, a norm, whether an index is
 * within its table) is written to the device's memory. Only code of the device reads or writes
 * elements: the program and the layers above have pointers that only kernels follow, until
 * ls__device_read waits for the stream and copies. The host is a device whose kernels have ended
 * when their call returns and whose memory anybody may read, so that a read is a copy and no wait.
 *
 * Memory is given back when its last tensor is freed, though kernels that were started may still
 * use it: what takes it next is started on the same stream, and so runs after them.
 */
#ifndef LS_DEVICE_DEVICE_H
#define LS_DEVICE_DEVICE_H

#include "kernel/kernels.h"

typedef struct ls__device ls__device;
struct ls__device {
    const char *name; /* for messages */
    const ls__kernels *kernels;
    ls_stream *stream;     /* on which operations start; NULL: the host's */
    const ls__env *memory; /* whose allocate and release give memory for elements */
    bool host;             /* the program may read and write elements */
    /* Waits until all that was started has ended. NULL: it has. */
    void (*synchronize)(const ls__device *device);
};

/* The processor: kernels for it, memory of `env`. */
ls__device ls__device_host(const ls__env *env);
void ls__device_wait(const ls__device *device);
/* Between the program's memory and the device's; waits, so `from` may change and `to` be read. */
void ls__device_read(const ls__device *device, void *to, const void *from, size_t bytes);
void ls__device_write(const ls__device *device, void *to, const void *from, size_t bytes);

#endif

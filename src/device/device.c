/* The processor as a device, and the ways across. */
#include "device/device.h"

/* Reads the environment, as ls__kernels_cpu does. */
ls__device ls__device_host(const ls__env *env)
{
    return (ls__device){.name = "cpu", .kernels = ls__kernels_cpu(), .memory = env, .host = true};
}

void ls__device_wait(const ls__device *device)
{
    if (device->synchronize != NULL) {
        device->synchronize(device);
    }
}

void ls__device_read(const ls__device *device, void *to, const void *from, size_t bytes)
{
    device->kernels->copy(to, from, bytes, device->stream);
    ls__device_wait(device);
}

/* The wait is for the caller, who may change `from` afterwards. */
void ls__device_write(const ls__device *device, void *to, const void *from, size_t bytes)
{
    device->kernels->copy(to, from, bytes, device->stream);
    ls__device_wait(device);
}

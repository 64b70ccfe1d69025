/* SPDX-License-Identifier: Apache-2.0 */
/* The processor as a device, and the ways across. */
#include "device/device.h"

#include "base/error.h"

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

ls_status ls__device_status(const ls__device *device)
{
    const char *why = device->failure != NULL ? device->failure(device) : NULL;
    return why == NULL
               ? LS_OK
               : ls__fail(LS_ERR_SYSTEM, "device \"%s\" has failed: %.400s", device->name, why);
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

void ls__device_carry(const ls__device *to, void *data, const ls__device *from,
                      const void *elements, size_t bytes)
{
    if (bytes > 0 && from->host) {
        ls__device_write(to, data, elements, bytes);
    } else if (bytes > 0) {
        ls__device_read(from, data, elements, bytes);
    }
}

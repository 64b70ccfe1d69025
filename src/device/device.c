/* SPDX-License-Identifier: Apache-2.0 */
/* The processor as a device, and the ways across. */
#include "device/device.h"

#include "base/error.h"
#include "base/log.h"
#include "device/captured.h"

/* Reads the environment, as ls__kernels_cpu does. */
ls__device ls__device_host(const ls__env *env)
{
    return (ls__device){.name = "cpu", .kernels = ls__kernels_cpu(), .memory = env, .host = true};
}

/* While a step is recorded the device refuses to wait, and the capture is lost. */
void ls__device_wait(const ls__device *device)
{
    if (device->synchronize != NULL) {
        ls__captured_refuse("it waits for the device");
        device->synchronize(device);
    }
}

static void pass_on_notice(const ls__device *device)
{
    char text[LS__DEVICE_ERROR_MAX];
    if (device->notice != NULL && device->notice(device, text)) {
        LS__WARN("device \"%s\": %s", device->name, text);
    }
}

ls_status ls__device_status(const ls__device *device)
{
    if (ls__captured_records() && ls__self.captured->why[0] != '\0') {
        return ls__fail(LS_ERR_STATE,
                        "a captured step does in this run what it did not in the run before, and "
                        "what cannot be captured: %s; let its runs be alike",
                        ls__self.captured->why);
    }
    pass_on_notice(device);
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

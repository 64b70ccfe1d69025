/* SPDX-License-Identifier: Apache-2.0 */
/* A plug-in of the version of this library, and of other structs. */
#include "device/device.h"

#include <stdlib.h>

#include <lockstep/version.h>

static const ls__device *open_device(int number, char error[])
{
    (void)number, (void)error;
    abort(); /* its device is not of the library's layout */
}

__attribute__((visibility("default"))) const ls__device_plugin *ls__device_plugin_get(void);

const ls__device_plugin *ls__device_plugin_get(void)
{
    static ls__device_plugin plugin = {.version = LS_VERSION, .open = open_device};
    plugin.interface = ls__device_interface() + 1;
    return &plugin;
}

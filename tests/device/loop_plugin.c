/* SPDX-License-Identifier: Apache-2.0 */
/* The loop device as a plug-in, for programs: --device loop, ls_device_use("loop"). It is apart, as
 * a GPU is, and ranks have other delays. LOOP_SEED=N gives them others; with an odd one kernels
 * reach memory of the program. */
#include "loop.h"

#include <stdio.h>
#include <stdlib.h>

#include <lockstep/version.h>

static const ls__device *open_device(int number, char error[])
{
    static bool open;
    if (open || number < 0) {
        snprintf(error, LS__DEVICE_ERROR_MAX, "one device a process");
        return NULL;
    }
    open = true;
    const char *seed = getenv("LOOP_SEED");
    return loop_new(2 * (uint64_t)(number + 1) + (seed != NULL ? strtoull(seed, NULL, 10) : 0));
}

__attribute__((visibility("default"))) const ls__device_plugin *ls__device_plugin_get(void);

const ls__device_plugin *ls__device_plugin_get(void)
{
    static ls__device_plugin plugin = {.version = LS_VERSION, .open = open_device};
    plugin.interface = ls__device_interface();
    return &plugin;
}

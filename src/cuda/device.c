/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device as a plug-in of the library (device/device.h, Note [Device plug-ins]). It is C
 * that loads the driver, cuBLASLt and the compiled kernels, ls_device_cuda.fatbin beside it,
 * when it is opened; so it is built and tested on machines without any of them. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "cuda/blas.h"
#include "cuda/capture.h"
#include "cuda/driver.h"
#include "cuda/launch.h"
#include "cuda/memory.h"

#define DRIVER_MIN 12000 /* CUDA 12.0 */

static void synchronize(const ls__device *device)
{
    ls__cuda_enter();
    ls__cuda_check(ls__cu_driver.cuStreamSynchronize((void *)device->stream),
                   "cuStreamSynchronize");
}

static bool failed(int code, const char *what, char *error)
{
    if (code != LS__CU_SUCCESS) {
        snprintf(error, LS__DEVICE_ERROR_MAX, "%s: %s", what, ls__cu_text(code));
    }
    return code != LS__CU_SUCCESS;
}

static bool find_device(int number, int *device, char *error)
{
    int count = 0, version = 0;
    if (failed(ls__cu_driver.cuInit(0), "cuInit", error) ||
        failed(ls__cu_driver.cuDriverGetVersion(&version), "cuDriverGetVersion", error) ||
        failed(ls__cu_driver.cuDeviceGetCount(&count), "cuDeviceGetCount", error)) {
        return false;
    }
    if (version < DRIVER_MIN) {
        snprintf(error, LS__DEVICE_ERROR_MAX,
                 "the driver is for CUDA %d.%d; install one for CUDA %d.0 or newer", version / 1000,
                 version % 1000 / 10, DRIVER_MIN / 1000);
        return false;
    }
    if (count == 0) {
        snprintf(error, LS__DEVICE_ERROR_MAX,
                 "the driver shows no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES");
        return false;
    }
    if (number >= count) {
        snprintf(
            error, LS__DEVICE_ERROR_MAX,
            "the driver shows %d of them, from cuda:0 on; give one of those, and start no more "
            "ranks on a host",
            count);
        return false;
    }
    return !failed(ls__cu_driver.cuDeviceGet(device, number), "cuDeviceGet", error);
}

/* A file beside this plug-in, with another ending. */
static bool load_module(const char *ending, void **module, char *error)
{
    Dl_info info = {0};
    char path[4096 + 16] = "";
    (void)dladdr((const void *)&ls__cuda_self, &info);
    snprintf(path, sizeof path - 16, "%s", info.dli_fname != NULL ? info.dli_fname : "");
    char *dot = strrchr(path, '.');
    snprintf(dot != NULL ? dot : path + strlen(path), 16, "%s", ending);
    const int code = ls__cu_driver.cuModuleLoad(module, path);
    if (code == LS__CU_FILE_NOT_FOUND) {
        snprintf(error, LS__DEVICE_ERROR_MAX,
                 "%.300s is not there; build Lockstep with nvcc (meson setup -Dcuda=enabled)",
                 path);
        return false;
    }
    return !failed(code, path, error);
}

static bool load_kernels(char *error)
{
    static const char *const names[] = {
#define X(name, together) "cuda_" #name,
        CUDA_KERNELS(X)
#undef X
    };
    void *module = NULL, *exact = NULL;
    if (!load_module(".fatbin", &module, error) || !load_module("_exact.fatbin", &exact, error)) {
        return false;
    }
    for (int i = 0; i < CUDA_KERNEL_COUNT; i++) {
        void **function = &ls__cuda_self.functions[i];
        int code = ls__cu_driver.cuModuleGetFunction(function, module, names[i]);
        code = code == LS__CU_NOT_FOUND
                   ? ls__cu_driver.cuModuleGetFunction(function, exact, names[i])
                   : code;
        if (failed(code, names[i], error)) {
            return false;
        }
    }
    return true;
}

/* On failure the process may ask for another device. */
static const ls__device *refused(void)
{
    ls__cuda_self.context = NULL;
    return NULL;
}

static const ls__device *open_device(int number, char error[])
{
    ls__cuda *self = &ls__cuda_self;
    int device = 0;
    void *stream = NULL;
    if (self->context != NULL) {
        snprintf(error, LS__DEVICE_ERROR_MAX,
                 "this process computes on %.20s already; start one rank for each GPU", self->name);
        return NULL;
    }
    if (!ls__cu_load(error, LS__DEVICE_ERROR_MAX) || !find_device(number, &device, error) ||
        failed(ls__cu_driver.cuDevicePrimaryCtxRetain(&self->context, device),
               "cuDevicePrimaryCtxRetain", error)) {
        return refused();
    }
    ls__cuda_enter();
    if (!load_kernels(error) || !ls__cuda_blas_open(error, LS__DEVICE_ERROR_MAX) ||
        failed(ls__cu_driver.cuStreamCreate(&stream, LS__CU_STREAM_NON_BLOCKING), "cuStreamCreate",
               error)) {
        return refused();
    }
    self->memory.allocate = ls__cuda_memory_get;
    self->memory.release = ls__cuda_memory_put;
    self->workspace = ls__cuda_memory_get(NULL, LS__CUDA_WORKSPACE);
    if (self->workspace == NULL) {
        snprintf(error, LS__DEVICE_ERROR_MAX, "no memory for %zu bytes of workspace",
                 LS__CUDA_WORKSPACE);
        return refused();
    }
    ls__cuda_table(&self->table);
    snprintf(self->name, sizeof self->name, "cuda:%d", number);
    self->device = (ls__device){.name = self->name,
                                .kernels = &self->table,
                                .stream = (ls_stream *)stream,
                                .memory = &self->memory,
                                .apart = true,
                                .backend = "nccl",
                                .synchronize = synchronize,
                                .failure = ls__cuda_failure,
                                .notice = ls__cuda_notice,
                                .capture = &ls__cuda_capture};
    return &self->device;
}

__attribute__((visibility("default"))) const ls__device_plugin *ls__device_plugin_get(void);

const ls__device_plugin *ls__device_plugin_get(void)
{
    static ls__device_plugin plugin = {.version = LS_VERSION, .open = open_device};
    plugin.interface = ls__device_interface();
    return &plugin;
}

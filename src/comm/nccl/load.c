/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the driver's library and NCCL. What is missing is named with what to install, since this
 * is where a first attempt on a new machine ends. */
#include "comm/nccl/plugin.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_US 50

ls__cuda_library ls__cuda;
ls__nccl_library ls__nccl;

ls_status ls__nccl_fail(ls_status status, char *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error, LS_BACKEND_ERROR_MAX, format, arguments);
    va_end(arguments);
    return status;
}

ls_status ls__cuda_check(int result, const char *call, char *error)
{
    const char *name = NULL;
    if (result == LS__CUDA_OK) {
        return LS_OK;
    }
    (void)ls__cuda.error_name(result, &name);
    return ls__nccl_fail(LS_ERR_SYSTEM, error, "%s: %s (%d)", call,
                         name != NULL ? name : "an unknown error", result);
}

ls_status ls__nccl_check(int result, const char *call, ls__nccl_comm comm, char *error)
{
    if (result == LS__NCCL_OK || result == LS__NCCL_IN_PROGRESS) {
        return LS_OK;
    }
    const char *last = ls__nccl.last_text(comm);
    return ls__nccl_fail(result == LS__NCCL_REMOTE_ERROR ? LS_ERR_PEER : LS_ERR_SYSTEM, error,
                         "%s: %s%s%.300s; NCCL_DEBUG=INFO prints more", call,
                         ls__nccl.error_text(result), last != NULL && last[0] != '\0' ? ": " : "",
                         last != NULL ? last : "");
}

typedef struct wanted {
    const char *symbol;
    size_t offset; /* of the pointer in the table */
} wanted;

#define OF_CUDA(name, symbol, arguments) {#symbol, offsetof(ls__cuda_library, name)},
#define OF_NCCL(name, symbol, arguments) {#symbol, offsetof(ls__nccl_library, name)},

static const wanted cuda_wanted[] = {LS__CUDA_FUNCTIONS(OF_CUDA)};
static const wanted nccl_wanted[] = {
    LS__NCCL_FUNCTIONS(OF_NCCL){"ncclGetErrorString", offsetof(ls__nccl_library, error_text)},
    {"ncclGetLastError", offsetof(ls__nccl_library, last_text)}};

/* One library and where it comes from. */
typedef struct library {
    const char *name, *setting, *remedy;
    const wanted *functions;
    size_t count;
    void *table;
} library;

/* The library stays in memory: it leaves threads behind. */
static ls_status load(const library *l, char *error)
{
    const char *given = getenv(l->setting);
    const char *path = given != NULL && given[0] != '\0' ? given : l->name;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        return ls__nccl_fail(LS_ERR_NOT_FOUND, error, "%.250s; %s, or give its path in %s",
                             dlerror(), l->remedy, l->setting);
    }
    for (size_t i = 0; i < l->count; i++) {
        void *symbol = dlsym(handle, l->functions[i].symbol);
        if (symbol == NULL) {
            return ls__nccl_fail(LS_ERR_UNSUPPORTED, error,
                                 "%.200s lacks %s, so it is too old or only a part; %s, or give "
                                 "the path of another in %s",
                                 path, l->functions[i].symbol, l->remedy, l->setting);
        }
        memcpy((char *)l->table + l->functions[i].offset, &symbol, sizeof symbol);
    }
    return LS_OK;
}

static ls_status check_version(char *error)
{
    int version = 0;
    (void)ls__nccl.version(&version);
    return version >= LS__NCCL_VERSION_MIN
               ? LS_OK
               : ls__nccl_fail(LS_ERR_UNSUPPORTED, error,
                               "NCCL has version %d, and 2.19 (21900) or later is needed; install "
                               "libnccl2 or the wheel nvidia-nccl-cu13, or give the path of "
                               "another libnccl.so.2 in LOCKSTEP_NCCL",
                               version);
}

static ls_status check_devices(char *error)
{
    int count = 0;
    ls_status status = ls__cuda_check(ls__cuda.init(0), "cuInit", error);
    if (status == LS_OK) {
        status = ls__cuda_check(ls__cuda.device_count(&count), "cuDeviceGetCount", error);
    }
    return status != LS_OK || count > 0
               ? status
               : ls__nccl_fail(LS_ERR_NOT_FOUND, error,
                               "the driver shows no GPU; look at nvidia-smi and "
                               "CUDA_VISIBLE_DEVICES");
}

static ls_status load_all(char *error)
{
    const library cuda = {"libcuda.so.1",
                          "LOCKSTEP_CUDA",
                          "install NVIDIA's driver",
                          cuda_wanted,
                          sizeof cuda_wanted / sizeof *cuda_wanted,
                          &ls__cuda};
    const library nccl = {"libnccl.so.2",
                          "LOCKSTEP_NCCL",
                          "install NCCL 2.19 or later (libnccl2, or the wheel nvidia-nccl-cu13)",
                          nccl_wanted,
                          sizeof nccl_wanted / sizeof *nccl_wanted,
                          &ls__nccl};
    ls_status status = load(&cuda, error);
    status = status != LS_OK ? status : load(&nccl, error);
    status = status != LS_OK ? status : check_version(error);
    return status != LS_OK ? status : check_devices(error);
}

ls_status ls__nccl_describe(ls_backend_capabilities *out, char *error)
{
    const ls_status status = load_all(error);
    if (status != LS_OK) {
        return status;
    }
    const uint32_t kinds = (1u << (LS_BACKEND_SCATTER_V + 1)) - 1;
    /* It has no scans, and 4 is the barrier. */
    const uint32_t lacks = 1u << 4 | 1u << LS_BACKEND_SCAN | 1u << LS_BACKEND_EXSCAN;
    out->flags =
        LS_BACKEND_ABORTABLE | LS_BACKEND_REGISTERED | LS_BACKEND_STREAMS | LS_BACKEND_SCALES;
    out->memory = LS_BACKEND_DEVICE;
    out->operations = kinds & ~lacks;
    out->dtypes = 1u << LS_FLOAT32 | 1u << LS_FLOAT64 | 1u << LS_FLOAT16 | 1u << LS_BFLOAT16 |
                  1u << LS_INT8 | 1u << LS_UINT8 | 1u << LS_INT32 | 1u << LS_UINT32 |
                  1u << LS_INT64 | 1u << LS_UINT64;
    out->reduce_ops = 1u << LS_SUM | 1u << LS_PRODUCT | 1u << LS_MIN | 1u << LS_MAX;
    out->poll_us = POLL_US;
    out->address_bytes = sizeof(ls__nccl_address);
    return LS_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Loading the driver and other libraries of NVIDIA: nothing is linked. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

ls__cu ls__cu_driver;

bool ls__cuda_library(const char *const *names, const char *const *symbols, void **table,
                      char *error, size_t bytes)
{
    void *library = NULL;
    for (int i = 0; library == NULL && names[i] != NULL; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    }
    if (library == NULL) {
        snprintf(error, bytes, "%s is not there (%.200s)", names[0], dlerror());
        return false;
    }
    for (int i = 0; symbols[i] != NULL; i++) {
        table[i] = dlsym(library, symbols[i]);
        if (table[i] == NULL) {
            snprintf(error, bytes, "%s has no %s; install a newer one", names[0], symbols[i]);
            return false;
        }
    }
    return true;
}

bool ls__cu_load(char *error, size_t bytes)
{
    static const char *const names[] = {"libcuda.so.1", NULL};
    static const char *const symbols[] = {
#define X(name, arguments) #name,
        LS__CU_FUNCTIONS(X)
#undef X
            NULL};
    void *table[sizeof symbols / sizeof *symbols - 1];
    char why[400];
    if (!ls__cuda_library(names, symbols, table, why, sizeof why)) {
        snprintf(error, bytes, "NVIDIA's driver: %.350s; install a driver for CUDA 12.0 or newer",
                 why);
        return false;
    }
    _Static_assert(sizeof table == sizeof ls__cu_driver, "a pointer for each function");
    memcpy(&ls__cu_driver, table, sizeof table); /* ISO C does not convert them */
    return true;
}

const char *ls__cu_text(int code)
{
    const char *text = NULL;
    return ls__cu_driver.cuGetErrorString(code, &text) == LS__CU_SUCCESS && text != NULL
               ? text
               : "unknown error";
}

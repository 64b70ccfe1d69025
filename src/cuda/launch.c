/* SPDX-License-Identifier: Apache-2.0 */
/* Starting kernels, and the one failure that the device remembers: kernels report to nobody, so the
 * library asks after every operation (tensor/op.c). */
#include "cuda/launch.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "cuda/capture.h"
#include "cuda/driver.h"

ls__cuda ls__cuda_self;

static _Atomic int failures; /* Sync: the first one writes `failure`, and sets `failed` */
static _Atomic bool failed;
static char failure[256];

static pthread_mutex_t notice_lock = PTHREAD_MUTEX_INITIALIZER; /* of both */
static char notice[LS__DEVICE_ERROR_MAX];
static _Atomic bool noticed; /* Sync: atomic; the text is guarded by the lock, so relaxed will do */

void ls__cuda_fail(const char *what, const char *why)
{
    if (ls__cuda_capturing()) {
        ls__cuda_capture_fail(what, why);
        return;
    }
    if (atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed) == 0) {
        snprintf(failure, sizeof failure, "%s: %s", what, why);
        /* Pairs with the acquire below. */
        atomic_store_explicit(&failed, true, memory_order_release);
    }
}

const char *ls__cuda_failure(const ls__device *device)
{
    (void)device;
    return atomic_load_explicit(&failed, memory_order_acquire) ? failure : NULL;
}

void ls__cuda_note(const char *format, ...)
{
    va_list arguments;
    pthread_mutex_lock(&notice_lock);
    if (!atomic_load_explicit(&noticed, memory_order_relaxed)) {
        va_start(arguments, format);
        (void)vsnprintf(notice, sizeof notice, format, arguments);
        va_end(arguments);
        atomic_store_explicit(&noticed, true, memory_order_relaxed);
    }
    pthread_mutex_unlock(&notice_lock);
}

bool ls__cuda_notice(const ls__device *device, char text[])
{
    (void)device;
    if (!atomic_load_explicit(&noticed, memory_order_relaxed)) {
        return false;
    }
    pthread_mutex_lock(&notice_lock);
    memcpy(text, notice, sizeof notice);
    const bool given = atomic_exchange_explicit(&noticed, false, memory_order_relaxed);
    pthread_mutex_unlock(&notice_lock);
    return given;
}

void ls__cuda_check(int code, const char *what)
{
    if (code != LS__CU_SUCCESS) {
        ls__cuda_fail(what, ls__cu_text(code));
    }
}

void ls__cuda_enter(void)
{
    static _Thread_local bool entered;
    if (!entered) {
        ls__cuda_check(ls__cu_driver.cuCtxSetCurrent(ls__cuda_self.context), "cuCtxSetCurrent");
        entered = true;
    }
}

static const char *const names[] = {
#define X(name, together) #name,
    CUDA_KERNELS(X)
#undef X
};

void ls__cuda_launch(ls__cuda_kernel kernel, ls__cuda_grid grid, const void *args,
                     ls_stream *stream)
{
    void *arguments[] = {(void *)(uintptr_t)args};
    if (grid.blocks <= 0) {
        return;
    }
    ls__cuda_enter();
    const int code = ls__cu_driver.cuLaunchKernel(
        ls__cuda_self.functions[kernel], (unsigned)grid.blocks, 1, 1, (unsigned)grid.threads, 1, 1,
        0, (void *)stream, arguments, NULL);
    ls__cuda_check(code, names[kernel]);
}

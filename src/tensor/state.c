/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor layer's state of one runtime: made at first use, freed by ls_finalize. It holds the
 * pools of records, storages and scopes, the kernel table and the plans of kernels. All memory
 * comes from the runtime's env table, behind a counter that tests read. */
#include "tensor/tensor.h"

#include "base/assert.h"
#include "base/log.h"
#include "kernel/cpu/spin.h"

/* Tests compare the count before and after a step: a steady loop must not ask the system for
 * memory. */
static void *counted_allocate(const ls__env *env, size_t bytes)
{
    ls__counted_env *counted = (ls__counted_env *)(uintptr_t)env; /* its first member */
    atomic_fetch_add_explicit(&counted->calls, 1, memory_order_relaxed);
    return counted->real->allocate(counted->real, bytes);
}

/* Only allocations are counted: a steady loop must have none. */
static void counted_release(const ls__env *env, void *memory, size_t bytes)
{
    const ls__counted_env *counted = (const ls__counted_env *)(const void *)env;
    counted->real->release(counted->real, memory, bytes);
}

/* Called by ls_finalize. Tensors that are alive are not freed one by one: the pools give all
 * memory back, and handles of this runtime become invalid. */
static void tensors_free(ls_runtime *runtime, void *data)
{
    ls__tensors *tensors = data;
    int64_t kept = 0;
    LS__LIST_EACH (at, &tensors->kept) {
        kept++;
    }
    if (kept > 0) {
        LS__DEBUG("finalize: %lld kept tensors had not been freed", (long long)kept);
    }
    ls__spin_limit_free(runtime->env, tensors->spin);
    if (tensors->other.device != NULL) {
        ls__device_wait(tensors->other.device); /* before its memory goes */
    }
    ls__scopes_fini(tensors);
    ls__storages_fini(tensors);
    ls__records_fini(tensors);
    ls__plans_free(tensors->plans);
    pthread_mutex_destroy(&tensors->lock);
    runtime->env->release(runtime->env, tensors, sizeof *tensors);
    ls__self.scope = NULL;
}

/* A pool of `device`'s memory. */
static void pool_init(ls__pool *pool, ls__tensors *tensors, const ls__device *device)
{
    *pool = (ls__pool){
        .tensors = tensors, .device = device, .k = device->kernels, .stream = device->stream};
    ls__regions_init(&pool->own.regions, &tensors->env.table, device->memory);
}

/* The kernel table is chosen here, once for each runtime; ls__kernels_cpu reads the environment. */
static ls__tensors *tensors_new(ls_runtime *runtime)
{
    ls__tensors *tensors = runtime->env->allocate(runtime->env, sizeof *tensors);
    if (tensors == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "the first tensor: out of memory");
        return NULL;
    }
    *tensors = (ls__tensors){.runtime = runtime};
    tensors->env = (ls__counted_env){.table = *runtime->env, .real = runtime->env};
    tensors->env.table.allocate = counted_allocate;
    tensors->env.table.release = counted_release;
    tensors->plans = ls__plans_new(&tensors->env.table);
    pthread_mutex_init(&tensors->lock, NULL);
    ls__list_init(&tensors->free_records);
    ls__list_init(&tensors->kept);
    tensors->cpu = ls__device_host(&tensors->env.table);
    pool_init(&tensors->host, tensors, &tensors->cpu);
    tensors->made = &tensors->host;
    ls__list_init(&tensors->scopes);
    ls__kernels_set_threads(runtime->threads);
    return tensors;
}

/* The pools of this thread's runtime. The loser of a race between two first tensors frees its
 * own and uses the other's. NULL with the error set where there is no runtime or no memory. */
ls__tensors *ls__tensors_get(const char *what)
{
    ls_runtime *runtime = ls__runtime_get(what);
    if (LS__UNLIKELY(runtime == NULL)) {
        return NULL;
    }
    void **slot = &runtime->layer[LS__LAYER_TENSOR].data;
    /* Acquire pairs with the exchange below: two threads may make their first tensor at once. */
    void *data = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (LS__LIKELY(data != NULL)) {
        return data;
    }
    ls__tensors *made = tensors_new(runtime);
    void *expected = NULL;
    if (made == NULL) {
        return NULL;
    }
    if (!__atomic_compare_exchange_n(slot, &expected, made, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE)) {
        ls__plans_free(made->plans);
        pthread_mutex_destroy(&made->lock);
        runtime->env->release(runtime->env, made, sizeof *made);
        return expected;
    }
    made->spin = ls__spin_limit_new(runtime->env, runtime->threads);
    runtime->layer[LS__LAYER_TENSOR].free = tensors_free;
    return made;
}

/* For tests: calls to the system's allocator so far. */
uint64_t ls__tensor_allocations(ls_runtime *runtime)
{
    ls__tensors *tensors = runtime->layer[LS__LAYER_TENSOR].data;
    return tensors != NULL ? atomic_load_explicit(&tensors->env.calls, memory_order_relaxed) : 0;
}

/* For tests, which run operations on the plain twins. No operation may run meanwhile. */
ls_status ls__tensor_use_kernels(const ls__kernels *kernels)
{
    ls__tensors *tensors = ls__tensors_get("tensor_use_kernels");
    if (tensors == NULL) {
        return ls__self.status;
    }
    tensors->cpu.kernels = kernels;
    tensors->host.k = kernels;
    return LS_OK;
}

ls__pool *ls__tensors_pool(ls__tensors *tensors, const ls__device *device)
{
    if (device == NULL) {
        return &tensors->host;
    }
    pthread_mutex_lock(&tensors->lock);
    if (tensors->other.device == NULL) {
        pool_init(&tensors->other, tensors, device);
    }
    const ls__device *used = tensors->other.device;
    pthread_mutex_unlock(&tensors->lock);
    if (used != device) {
        (void)ls__fail(LS_ERR_UNSUPPORTED,
                       "device \"%s\": this process computes on device \"%s\" already; start one "
                       "rank for each device",
                       device->name, used->name);
        return NULL;
    }
    return &tensors->other;
}

ls_status ls__tensor_use_device(const ls__device *device)
{
    ls__tensors *tensors = ls__tensors_get("device_use");
    ls__pool *pool = tensors != NULL ? ls__tensors_pool(tensors, device) : NULL;
    if (pool == NULL) {
        return ls__self.status;
    }
    tensors->made = pool;
    return LS_OK;
}

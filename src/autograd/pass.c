/* SPDX-License-Identifier: Apache-2.0 */
/* Autograd's state of one runtime, made by its first pass, and arrays that grow. */
#include "autograd/pass.h"

#include <string.h>

#define PILE_FIRST 256

/* Runs when the runtime is finalized; observers were removed with their modules. */
static void autograd_free(ls_runtime *runtime, void *data)
{
    runtime->env->release(runtime->env, data, sizeof(ls__autograd));
}

/* Lock-free: two threads may run their first pass at once, and the slower one frees what it
 * made. */
ls__autograd *ls__autograd_get(const char *what)
{
    ls_runtime *runtime = ls__runtime_get(what);
    if (runtime == NULL) {
        return NULL;
    }
    void **slot = &runtime->layer[LS__LAYER_AUTOGRAD].data;
    /* Acquire pairs with the exchange below. */
    void *expected = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (LS__LIKELY(expected != NULL)) {
        return expected;
    }
    ls__autograd *made = runtime->env->allocate(runtime->env, sizeof *made);
    if (made == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "%s: out of memory", what);
        return NULL;
    }
    atomic_init(&made->passes, 0);
    ls__list_init(&made->observers);
    if (!__atomic_compare_exchange_n(slot, &expected, made, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE)) {
        runtime->env->release(runtime->env, made, sizeof *made);
        return expected;
    }
    runtime->layer[LS__LAYER_AUTOGRAD].free = autograd_free;
    return made;
}

uint64_t ls__autograd_number(ls__autograd *autograd)
{
    /* Relaxed: numbers only have to differ. */
    return atomic_fetch_add_explicit(&autograd->passes, 1, memory_order_relaxed) + 1;
}

/* Grows by doubling, in cached memory, so that the same walk in the next step allocates nothing
 * new. */
ls_status ls__pile_grow(ls__tensors *tensors, ls__storage **memory, int64_t count, int64_t *room,
                        size_t bytes)
{
    if (count < *room) {
        return LS_OK;
    }
    const int64_t more = *room > 0 ? 2 * *room : PILE_FIRST;
    ls__storage *grown = ls__storage_new(&tensors->host, (size_t)more * bytes);
    if (grown == NULL) {
        return ls__self.status;
    }
    if (count > 0) {
        memcpy(grown->data, (*memory)->data, (size_t)count * bytes);
    }
    ls__storage_unref(*memory);
    *memory = grown;
    *room = more;
    return LS_OK;
}

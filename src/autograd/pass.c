/* Autograd's state of one runtime, made by its first pass. */
#include "autograd/pass.h"

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

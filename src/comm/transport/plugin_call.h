/* SPDX-License-Identifier: Apache-2.0 */
/* Calls into a plug-in are counted, so that other threads see one that does not return:
 * core/plugin_watch.c. */
#ifndef LS_COMM_TRANSPORT_PLUGIN_CALL_H
#define LS_COMM_TRANSPORT_PLUGIN_CALL_H

#include <stdatomic.h>
#include <stdint.h>

/* progress lock; before and after a call, so the count is odd during one. */
static inline void ls__plugin_count_call(_Atomic uint32_t *calls)
{
    const uint32_t count = atomic_load_explicit(calls, memory_order_relaxed);
    atomic_store_explicit(calls, count + 1, memory_order_relaxed);
}

#endif

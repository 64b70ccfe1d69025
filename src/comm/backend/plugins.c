/* SPDX-License-Identifier: Apache-2.0 */
/* The plug-ins of the runtime: each is loaded at its first use and unloaded with the runtime. */
#include <string.h>

#include "comm/backend/plugin_group.h"
#include "comm/core/comm.h"

ls_status ls__plugin_of(ls__comm *comm, const char *asked, ls__plugin **out)
{
    LS__LIST_EACH (at, &comm->plugins.list) {
        ls__plugin *p = LS__LIST_ITEM(at, ls__plugin, link);
        if (strcmp(p->asked, asked) == 0) {
            *out = p;
            return LS_OK;
        }
    }
    ls__plugin *made = comm->env->allocate(comm->env, sizeof *made);
    if (made == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for backend \"%s\"", asked);
    }
    const ls_status status = ls__plugin_load(asked, made);
    if (status != LS_OK) {
        comm->env->release(comm->env, made, sizeof *made);
        return status;
    }
    ls__list_push_back(&comm->plugins.list, &made->link);
    const uint64_t poll_ns = (uint64_t)made->can.poll_us * 1000;
    if (comm->plugins.poll_ns == 0 || poll_ns < comm->plugins.poll_ns) {
        atomic_store_explicit(&comm->plugins.poll_ns, poll_ns, memory_order_relaxed);
    }
    *out = made;
    return LS_OK;
}

void ls__plugins_unload(ls__comm *comm, bool failed)
{
    for (ls__list *at = ls__list_pop_front(&comm->plugins.list); at != NULL;
         at = ls__list_pop_front(&comm->plugins.list)) {
        ls__plugin *p = LS__LIST_ITEM(at, ls__plugin, link);
        ls__plugin_unload(p, failed);
        comm->env->release(comm->env, p, sizeof *p);
    }
}

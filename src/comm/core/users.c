/* SPDX-License-Identifier: Apache-2.0 */
/* The objects that borrow a group. While there is one the group is not freed: its next step would
 * read freed memory. */
#include "base/assert.h"
#include "base/error.h"
#include "comm/core/group.h"

void ls__group_use(ls_group *group, ls__group_user user, int change)
{
    const int before = atomic_fetch_add_explicit(&group->users[user], change, memory_order_relaxed);
    LS_ASSERT(before + change >= 0);
}

ls_status ls__group_check_unused(const ls_group *group, const char *caller)
{
    static const char *const text[LS__GROUP_USERS] = {
        [LS__USER_REDUCER] = "a DDP wrapper or a reducer; free that first",
        [LS__USER_ROUND_ROBIN] = "a handle of ls_group_round_robin; free that first",
        [LS__USER_MESH] = "a mesh; call ls_mesh_free first"};
    for (int u = 0; u < LS__GROUP_USERS; u++) {
        if (atomic_load_explicit(&group->users[u], memory_order_relaxed) > 0) {
            return ls__fail(LS_ERR_STATE, "%s: group \"%s\" is still used by %s", caller,
                            group->name, text[u]);
        }
    }
    return LS_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a group whose data a plug-in moves. Announcements, matching and answers are native
 * (p2p.h); once a send and a receive have met, the bytes are the plug-in's:
 *
 *     sender                              receiver
 *     ANNOUNCE (without bytes)
 *                     ◀── ACCEPT          matched: starts RECV
 *     starts SEND
 *                     ◀── DONE            RECV has ended
 *     ends when SEND has ended and DONE has come
 */
#include "comm/backend/plugin_group.h"
#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/core/message_state.h"
#include "comm/operation/mismatch.h"

#include <stdio.h>

/* The peer waits for this rank, so the failure is the group's. */
static void fail_message(ls_work *work, ls_status status)
{
    char text[LS__FAILURE_MAX], operation[256];
    ls__operation_text(work->group, &work->descriptor, operation, sizeof operation);
    snprintf(text, sizeof text, "%s failed on rank %d: %s", operation,
             work->group->comm->runtime->rank, ls_error_message());
    ls__plugin_cause(work->group, status, text);
}

bool ls__plugin_message(ls_work *work)
{
    ls_group *group = work->group;
    const ls_status status = ls__plugin_start(group, work);
    if (status != LS_OK) {
        fail_message(work, status);
        return false;
    }
    work->plugin.carried = true;
    group->p2p->carried++;
    ls__list_push_back(&group->p2p->in_plugin, &work->turn);
    return true;
}

bool ls__plugin_messages(ls_group *group, void (*ended)(ls_work *work))
{
    bool moved = false;
    LS__LIST_EACH (at, &group->p2p->in_plugin) {
        ls_work *work = LS__LIST_ITEM(at, ls_work, turn);
        const ls_status status = ls__plugin_test_message(work);
        if (status == LS_IN_PROGRESS) {
            continue;
        }
        work->plugin.carried = false;
        group->p2p->carried--;
        ls__list_remove(&work->turn);
        moved = true;
        if (status != LS_OK) {
            fail_message(work, status);
            return true;
        }
        ended(work);
    }
    return moved;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Sending to remote ranks: a message goes out at once if the transport has a slot and no older one
 * waits, else a copy is queued. So the messages to each rank keep their order, and a sender never
 * waits. */
#include <string.h>

#include "comm/core/group.h"
#include "comm/core/remote_rank.h"
#include "comm/core/unexpected.h"
#include "comm/remote/remote.h"

/* Control stays on TCP where MPI carries the data. BYE is not control: it follows the data. */
static bool is_control(uint32_t kind)
{
    return ls__remote_kind(kind) && kind != LS__MESSAGE_POST && kind != LS__MESSAGE_FINISHED &&
           kind != LS__MESSAGE_BYE && kind != LS__MESSAGE_BYE_SEEN;
}

/* Copies head and payload into a slot of the transport. False: no slot now. */
bool ls__remote_put(ls__comm *comm, int peer, const ls__message *head, const void *payload)
{
    ls__transport *t =
        comm->remote->is[peer] && is_control(head->kind) ? comm->remote->net : comm->transport;
    ls__message *message = t->reserve(t, peer);
    if (message == NULL) {
        return false;
    }
    memcpy(message, head, sizeof *message);
    if (head->bytes > 0 && payload != NULL) {
        memcpy(message->payload, payload, head->bytes);
    }
    t->commit(t, peer);
    return true;
}

/* Sends the message now, or keeps it until there is room; a message to a broken connection is
 * dropped. False: there is neither a slot nor memory, so the caller tries again at its next
 * turn. */
bool ls__remote_send(ls__comm *comm, int peer, const ls__message *head, const void *payload)
{
    ls__list *waiting = &comm->remote->rank[peer].waiting;
    if (comm->transport->broken(comm->transport, peer) != NULL) {
        return true; /* no one can receive it */
    }
    if (ls__list_empty(waiting) && ls__remote_put(comm, peer, head, payload)) {
        return true;
    }
    ls__unexpected *kept = ls__unexpected_keep_parts(comm, peer, head, payload);
    if (kept != NULL) {
        ls__list_push_back(waiting, &kept->link);
    }
    return kept != NULL;
}

/* Sends kept messages in their order; whether any went out. */
bool ls__remote_send_waiting(ls__comm *comm, int peer)
{
    ls__list *waiting = &comm->remote->rank[peer].waiting;
    bool moved = false;
    LS__LIST_EACH (at, waiting) {
        ls__unexpected *kept = LS__LIST_ITEM(at, ls__unexpected, link);
        if (comm->transport->broken(comm->transport, peer) == NULL &&
            !ls__remote_put(comm, peer, kept->message, kept->message->payload)) {
            break;
        }
        ls__list_remove(&kept->link);
        ls__unexpected_drop(comm, kept);
        moved = true;
    }
    return moved;
}

/* False: at least one member could be neither sent to nor queued for. Sending again to the others
 * is harmless: receivers take only what is newer than their copy. */
bool ls__remote_send_members(ls_group *group, const ls__message *head, const void *payload)
{
    bool all = true;
    for (int r = 0; r < group->size; r++) {
        if (group->member[r].remote) {
            all = ls__remote_send(group->comm, group->member[r].world_rank, head, payload) && all;
        }
    }
    return all;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The message state of a group: made with the group, and freed with it. */
#include "comm/backend/plugin_group.h"
#include "comm/core/group.h"
#include "comm/core/message_state.h"
#include "comm/core/progress_lock.h"
#include "comm/core/unexpected.h"
#include "comm/p2p/p2p.h"

/* Called while a group is made; the state of messages needs memory, the streams are allocated when
 * the first program uses messages. */
ls_status ls__p2p_open(ls_group *group)
{
    const ls__env *env = group->comm->env;
    ls__p2p *p2p = env->allocate(env, sizeof *p2p);
    ls__list *ready = env->allocate(env, (size_t)group->size * sizeof *ready);
    if (p2p == NULL || ready == NULL) {
        if (p2p != NULL) {
            env->release(env, p2p, sizeof *p2p);
        }
        return ls__fail(LS_ERR_MEMORY, "no memory for a group of %d ranks", group->size);
    }
    *p2p = (ls__p2p){.next = 1, .ready = ready};
    ls__list_init(&p2p->sends);
    ls__list_init(&p2p->recvs);
    ls__list_init(&p2p->announced);
    ls__list_init(&p2p->credits_due);
    ls__list_init(&p2p->in_plugin);
    for (int i = 0; i < LS__TAG_BUCKETS; i++) {
        ls__list_init(&p2p->open[i]);
        ls__list_init(&p2p->kept[i]);
    }
    for (int r = 0; r < group->size; r++) {
        ls__list_init(&ready[r]);
    }
    group->p2p = p2p;
    return LS_OK;
}

/* Every work of the group has ended. Unexpected messages that no receive ever matched return to the
 * runtime's free list. */
void ls__p2p_close(ls_group *group)
{
    ls__p2p *p2p = group->p2p;
    const ls__env *env = group->comm->env;
    if (p2p == NULL) {
        return;
    }
    ls__unexpected_drop_all(group->comm, &p2p->announced);
    const size_t streams = ls__stream_count(group);
    for (size_t i = 0; p2p->streams != NULL && i < streams; i++) {
        ls__unexpected_drop_all(group->comm, &p2p->streams[i].early);
    }
    if (p2p->streams != NULL) {
        env->release(env, p2p->streams, streams * sizeof *p2p->streams);
    }
    env->release(env, p2p->ready, (size_t)group->size * sizeof *p2p->ready);
    env->release(env, p2p, sizeof *p2p);
    group->p2p = NULL;
}

/* Only small messages come along with their announcements. */
void ls__messages_prepare(ls_group *group, int count, int peer, size_t bytes)
{
    ls__transport *t = group->comm->transport;
    const bool along = bytes <= t->payload_max(t, group->member[peer].world_rank) &&
                       !ls__plugin_carries(group, LS__OP_SEND, false);
    ls__progress_take(group->comm);
    ls__unexpected_prepare(group->comm, count, along ? bytes : 0);
    ls__progress_release(group->comm);
}

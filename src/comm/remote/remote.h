/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on other hosts: their cached state, and the messages that keep it up to date.
 *
 * Inside a host, members of a group read each other's control blocks in shared memory. Of a
 * *remote* member this process keeps **cached state**: a private control block, heap header and
 * board record, which the member keeps up to date by messages. So all code that reads peers
 * (stamps, descriptors, room, claims, lives, reports) is the same for local and remote members;
 * only what a rank *writes* is sent to the remote ones, too:
 *
 *     POST      a stamp with its descriptor: at once for a one-shot operation, whose data comes
 *               along; of an operation that runs by messages, which carry the descriptor
 *               themselves, only when it has stalled, so that both sides can be compared and named
 *     FINISHED  every few operations: room for new ones (Note [Room] in post.c)
 *     CLAIM     to member 0: "let this failure be the group's root cause"
 *     FAILED    from the winner of the claim (or from member 0 on its behalf): the root cause
 *     QUIET, LEFT   the tables of reclaim.c
 *     BEAT      the heartbeat with a rank's activity, twice a second; a silent rank is stopped or
 *               cut off
 *     BYE       a rank leaves, with its failure if it has one; it waits for a moment until its
 *               peers have answered, so that all its data has arrived: closing a socket with unread
 *               bytes sends a reset, which overtakes data
 *
 * A group with a remote member runs its operations by messages, small ones in one shot; memory is
 * never shared across hosts. Everything here belongs to the holder of the progress lock unless
 * said otherwise.
 */
#ifndef LS_COMM_REMOTE_REMOTE_H
#define LS_COMM_REMOTE_REMOTE_H

#include "comm/core/group.h"
#include "comm/core/remote_rank.h"

#define LS__REMOTE_SMALL                                                                           \
    ((size_t)4096) /* bytes of a one-shot contribution that travels with POST */
#define LS__REMOTE_ANNOUNCE_NS 300000000u /* a stalled operation is posted after this */
#define LS__REMOTE_BEAT_NS 500000000u
#define LS__REMOTE_SILENT_NS 2500000000u /* silence of a rank before a warning */
#define LS__REMOTE_BYE_NS 2000000000u    /* how long leaving waits for answers */

/* remote_send.c. All need the progress lock.
 *
 * Sends a message if the transport has a slot now. */
bool ls__remote_put(ls__comm *comm, int peer, const ls__message *head, const void *payload);
/* Sends it or queues a copy. False: neither a slot nor memory; the caller tries again later. */
bool ls__remote_send(ls__comm *comm, int peer, const ls__message *head, const void *payload);
/* The same to all remote members of the group. */
bool ls__remote_send_members(ls_group *group, const ls__message *head, const void *payload);
/* Sends queued messages to this rank; whether any went out. */
bool ls__remote_send_waiting(ls__comm *comm, int peer);

/* A message of a program has arrived from this member, which therefore has called the operation. */
void ls__remote_record_call(ls_group *group, int member, const ls__message *message);

/* Sends all that is due. Whether anything went out. */
bool ls__remote_turn(ls__comm *comm);
/* Takes a message that concerns the rank as a whole; false: no memory for it now. */
bool ls__remote_take(ls__comm *comm, int from, const ls__message *message);
/* Takes a message of a group that this rank knows; false: no memory for it now. */
bool ls__remote_take_group(ls_group *group, int from, const ls__message *message);
/* Whether messages of this kind are taken here. */
static inline bool ls__remote_kind(uint32_t kind)
{
    return kind >= LS__MESSAGE_POST;
}
/* Kinds that concern no open group. */
static inline bool ls__remote_rank_kind(uint32_t kind)
{
    return kind >= LS__MESSAGE_QUIET;
}

/* To all remote members, if there are any. */
void ls__remote_post(ls_group *group, uint64_t sequence); /* an operation that has stalled */
void ls__remote_send_finished(ls_group *group);
void ls__remote_send_blocked(ls__comm *comm, const ls__blocked *blocked);
void ls__remote_send_left(ls_group *group, ls__message_kind kind); /* QUIET, LEFT */
void ls__remote_send_bye(ls__comm *comm);
/* remote_check.c. A heartbeat has come. */
void ls__remote_take_beat(ls__comm *comm, int from, const ls__message *message);
/* Sends beats and looks for silence and broken connections; called ten times a second. */
void ls__remote_check(ls__comm *comm, uint64_t now_ns);
/* Whether data from this remote rank arrived damaged, so that no more is read from it. */
bool ls__remote_is_damaged(const ls__comm *comm, int rank);

#endif

/* Ranks on other hosts: what this process keeps of them, and what they are told.
 *
 * Inside a host, members of a group read each other's control blocks in shared memory. Of a *far*
 * member this process keeps a **mirror**: a private control block, heap header and board record
 * that the member keeps up to date by messages. So all that reads peers (stamps, descriptors, room,
 * claims, lives, reports) is the same code for near and far; only what a rank *writes* is told to
 * the far ones, too:
 *
 *     POST      a stamp with its descriptor: at once for a one-shot operation, whose data comes
 *               along; of an operation that runs by messages, which carry the descriptor
 *               themselves, only when it has stalled, so that both sides can be compared and named
 *     FINISHED  every few operations: room for new ones (Note [Room] in post.c)
 *     CLAIM     to member 0: "let this failure be the group's first cause"
 *     FAILED    from who won the claim (or from member 0 on its behalf): the first cause
 *     QUIET, LEFT   the tables of past.c
 *     BEAT      what a rank is doing, twice a second; silence is what a stopped or cut-off rank is
 *               known by
 *     BYE       a rank leaves; it waits, for a moment, until its peers have seen it, so that all it
 *               sent has arrived: closing a socket with unread bytes sends a reset, which overtakes
 *               data
 *
 * A group with a far member runs its operations by messages, small ones in one shot; memory is
 * never shared across. Everything here belongs to the holder of the progress token unless said
 * otherwise.
 */
#ifndef LS_COMM_REMOTE_REMOTE_H
#define LS_COMM_REMOTE_REMOTE_H

#include "comm/group/group.h"

#define LS__REMOTE_SMALL ((size_t)4096) /* bytes of a one-shot contribution that is sent to each */
#define LS__REMOTE_ANNOUNCE_NS 300000000u /* a stalled operation is posted after this */
#define LS__REMOTE_BEAT_NS 500000000u
#define LS__REMOTE_SILENT_NS 2500000000u /* a rank unheard of for so long is warned about */
#define LS__REMOTE_BYE_NS 2000000000u    /* leaving waits so long once all is sent */

typedef struct ls__remote_rank {
    unsigned char *mirror;  /* heap header and the world's control block */
    ls__board_rank *record; /* of its board */
    char host[64];
    int first;                   /* the lowest rank of its host */
    ls__list waiting;            /* notes that found no room yet */
    uint64_t broken_ns, left_ns; /* since when; 0: not */
    bool silent, given_up, bye_seen;
} ls__remote_rank;

struct ls__remote {
    int count;             /* far ranks */
    bool *is;              /* [world size] */
    ls__remote_rank *rank; /* [world size]; of near ranks empty */
    ls__transport *net;
    int *bell; /* [board ranks] events that wake the ranks of this host */
    uint64_t next_beat_ns;
};

/* far_open.c. After the own heap is made and before the peers' are mapped: finds out who is far,
 * makes the mirrors. comm->remote stays NULL where nobody is. */
ls_status ls__remote_open(ls__comm *comm);
/* Connects, and makes comm->transport, which takes `host` over. */
ls_status ls__remote_connect(ls__comm *comm, ls__transport *host);
void ls__remote_say_bye(ls__comm *comm);
void ls__remote_leave(ls__comm *comm); /* says BYE; any thread without the token */
void ls__remote_close(ls__comm *comm);

/* A member's message of a program has come: so it has called that operation. */
void ls__remote_heard(ls_group *group, int member, const ls__message *message);

/* Sends what is due. Whether anything went out. */
bool ls__remote_turn(ls__comm *comm);
/* A message for this layer; false: there is no memory for it now. */
bool ls__remote_take(ls__comm *comm, int from, const ls__message *message);
/* A message of a group that this rank knows. */
bool ls__remote_take_group(ls_group *group, int from, const ls__message *message);
static inline bool ls__remote_kind(uint32_t kind)
{
    return kind >= LS__MESSAGE_POST;
}
/* Kinds that concern no open group. */
static inline bool ls__remote_rank_kind(uint32_t kind)
{
    return kind >= LS__MESSAGE_QUIET;
}

/* To all far members, if there are any. */
void ls__remote_post(ls_group *group, uint64_t sequence); /* an operation that has stalled */
void ls__remote_tell_finished(ls_group *group);
void ls__remote_tell_blocked(ls__comm *comm, const ls__blocked *blocked);
void ls__remote_tell_past(ls_group *group, ls__message_kind kind); /* QUIET or LEFT */
/* Silence, broken connections; now and then. */
void ls__remote_check(ls__comm *comm, uint64_t now_ns);

#endif

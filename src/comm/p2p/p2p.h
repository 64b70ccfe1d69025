/* SPDX-License-Identifier: Apache-2.0 */
/* Point-to-point messages, and the messages of programs (core/message_state.h). Everything here
 * needs the progress lock unless said otherwise. */
#ifndef LS_COMM_P2P_P2P_H
#define LS_COMM_P2P_P2P_H

#include "comm/core/message_state.h"
#include "comm/operation/exec.h"

/* Callback of the transport: where the payload of a message from `from` belongs; NULL: not known
 * yet. The head is not verified: a corrupt one must not lead outside the user's buffer. */
void *ls__message_place(void *comm, int from, const ls__message *head);

/* program_stream.c */

/* One step's message, in pieces that fit the transport. */
ls__result ls__stream_send(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane);
/* Receives what came early and may be received now; whether there was any. */
bool ls__stream_drain(ls_group *group, ls__run *run);
ls__result ls__stream_recv(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane);

size_t ls__stream_count(const ls_group *group);
/* Takes a piece of a program. False: no memory to keep it. `payload` is where it lies now. */
bool ls__stream_take(ls_group *group, int from, const ls__message *message, const void *payload);
/* ls__message_place for a piece of a program. */
void *ls__stream_place(ls_group *group, int peer, const ls__message *head);
void ls__stream_credit(ls_group *group, int from, const ls__message *message);
bool ls__stream_flush(ls_group *group); /* returns due credits; whether any was sent */

/* p2p_open.c. Room for `count` messages of `bytes` from `peer` that come before their receives.
 * Takes the progress lock; without memory it prepares fewer. */
void ls__messages_prepare(ls_group *group, int count, int peer, size_t bytes);
ls_status ls__p2p_open(ls_group *group);
void ls__p2p_close(ls_group *group);

/* p2p.c */
/* Takes what has arrived and sends what has room, without waiting; whether anything moved. The
 * caller holds the progress lock. */
bool ls__p2p_turn(ls__comm *comm);

#endif

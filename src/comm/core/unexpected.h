/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that arrive before the receive or step that will take them; see unexpected.c. */
#ifndef LS_COMM_CORE_UNEXPECTED_H
#define LS_COMM_CORE_UNEXPECTED_H

#include "comm/core/comm.h"

typedef struct ls__unexpected { /* a message without a receive or step yet */
    ls__list link;
    ls__list same; /* of an announcement: in p2p->kept */
    int from;      /* group rank; of orphans and stream pieces the world rank */
    size_t room;   /* bytes behind this struct, where `message` lies */
    ls__message *message;
} ls__unexpected;

/* Allocates room for `count` messages of `bytes` each in advance, as far as memory allows. */
void ls__unexpected_prepare(ls__comm *comm, int count, size_t bytes);
/* A copy of the message; NULL: no memory. The caller owns it until ls__unexpected_drop. */
ls__unexpected *ls__unexpected_keep(ls__comm *comm, int from, const ls__message *message);
/* The same with room for the largest message of the transport, so that it fits any later one. */
ls__unexpected *ls__unexpected_keep_large(ls__comm *comm, int from, const ls__message *message);
/* The same of a head and a payload that lies elsewhere. */
ls__unexpected *ls__unexpected_keep_parts(ls__comm *comm, int from, const ls__message *head,
                                          const void *payload);
void ls__unexpected_drop(ls__comm *comm, ls__unexpected *kept);
void ls__unexpected_drop_all(ls__comm *comm, ls__list *all); /* empties a list of them */
/* When the runtime closes: frees the memory of all that are unused, waiting or orphaned. */
void ls__unexpected_release(ls__comm *comm);

#endif

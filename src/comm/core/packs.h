/* SPDX-License-Identifier: Apache-2.0 */
/* Packs: memory of a group for one operation, registered if possible. */
#ifndef LS_COMM_CORE_PACKS_H
#define LS_COMM_CORE_PACKS_H

#include "comm/core/group.h"

typedef struct ls__pack ls__pack;

struct ls__pack {
    ls__list link; /* in group->packs while it is not in use */
    ls_group *group;
    size_t bytes; /* of the memory behind the lists */
    int room;     /* entries of the lists */
    int count;
    bool heap; /* the memory is registered */
    unsigned char *memory;
    void **buf;   /* [room] */
    size_t *part; /* [room] bytes of each */
};

void ls__packs_free(ls_group *group); /* all that are not in use */
/* A pack with at least `bytes` of memory and lists of `room` entries; NULL: no memory. */
ls__pack *ls__pack_take(ls_group *group, size_t bytes, int room);
void *ls__pack_memory(const ls__pack *p);
void ls__pack_give(ls__pack *p); /* any thread, without the lock */

#endif

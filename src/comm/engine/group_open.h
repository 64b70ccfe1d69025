/* A group's life on this rank: made, joined, closed, forgotten. No rank waits for another here. */
#ifndef LS_COMM_ENGINE_GROUP_OPEN_H
#define LS_COMM_ENGINE_GROUP_OPEN_H

#include "comm/core/group.h"

typedef struct ls__group_spec {
    const char *name;
    uint32_t id;
    int rank, size;
    const int *world_rank;   /* [size] */
    const uint64_t *control; /* [size] offsets in each member's heap */
} ls__group_spec;
/* Allocates all memory of a group; uses rank, size and world_rank of the spec. Without `caches` the
 * control blocks of remote members are those at `control`. */
ls_status ls__group_make(ls__comm *comm, const ls__group_spec *spec, bool caches, ls_group **out);
void ls__group_unmake(ls_group *group); /* frees one that was not joined; NULL is allowed */
/* Gives it number and members; the engine moves its operations from then on. */
void ls__group_join(ls_group *group, const ls__group_spec *spec);
/* Local: unlinks and frees; the struct itself lives until its last handle is gone. */
void ls__group_close(ls_group *group);
void ls__group_forget(ls_group *group); /* frees the struct */

#endif

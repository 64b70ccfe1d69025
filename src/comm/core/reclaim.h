/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a peer may still touch: deferred reclamation. */
#ifndef LS_COMM_CORE_RECLAIM_H
#define LS_COMM_CORE_RECLAIM_H

#include "comm/core/group.h"

typedef enum ls__reclaim_kind {
    LS__RECLAIM_FAILED, /* freed memory stays in quarantine until all are quiet */
    LS__RECLAIM_LEFT    /* until all have left it: then the control block is freed */
} ls__reclaim_kind;
typedef struct ls__reclaim {
    ls__list link;
    ls__reclaim_kind kind;
    uint32_t id;
    void *control; /* LEFT: the block to free; FAILED: NULL */
    int size;
    int member[]; /* world ranks */
} ls__reclaim;
/* Records the group. Without memory for the record all freed memory stays in quarantine for ever,
 * since nothing shows when it is safe to reuse. */
void ls__reclaim_add(ls_group *group, ls__reclaim_kind kind, void *control);
/* Frees all memory that no member touches any more. Returns whether a failed group still holds
 * data. */
bool ls__reclaim_settle(ls__comm *comm);
void ls__reclaim_clear(ls__comm *comm); /* drops all records, whatever peers do */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A backend carries the operations of a group (docs/design.md, D13). This release has
 * one backend, `native`, which runs programs over shared memory and message transports. */
#ifndef LS_COMM_CORE_BACKEND_H
#define LS_COMM_CORE_BACKEND_H

#include <string.h>

#include <lockstep/comm.h>

#define LS__BACKEND_NATIVE "native"

typedef struct ls__backend {
    const char *name;
    ls_status (*open)(ls_group *group); /* its state for a new group */
    void (*close)(ls_group *group);
    /* Called under the submission lock before the operation has a number: may choose how it runs.
     * An error is the caller's alone; no peer has heard of the operation. */
    ls_status (*prepare)(ls_group *group, ls_work *work);
    /* Called under the submission lock, in call order: may announce the operation early. Returns
     * true when all members are there already, so that a thread must drive it now. */
    bool (*submit)(ls_group *group, ls_work *work);
    /* Called by the holder of the progress lock: moves the group's first operation on. Returns
     * whether anything changed. */
    bool (*advance)(ls_group *group);
    /* Forgets the operation in progress after a failure; peers' memory is not touched again. */
    void (*reset)(ls_group *group);
} ls__backend;

extern const ls__backend ls__backend_native;

/* Whether `asked` means the native backend: NULL, "" or "native". */
static inline bool ls__backend_is_native(const char *asked)
{
    return asked == NULL || asked[0] == '\0' || strcmp(asked, LS__BACKEND_NATIVE) == 0;
}

#endif

/* A backend carries the operations of a group (docs/design.md, D13). It declares its guarantees; the
 * engine refuses or reports an operation that needs others. This release has one backend, `native`,
 * which runs programs over shared memory and message transports. */
#ifndef LS_COMM_ENGINE_BACKEND_H
#define LS_COMM_ENGINE_BACKEND_H

#include <lockstep/comm.h>

typedef enum ls__capability {
    LS__CAN_RUN_PROGRAMS = 1 << 0,  /* executes ls__program, so algorithms can be chosen */
    LS__CAN_ORDER_SUMS = 1 << 1,    /* keeps the canonical association */
    LS__CAN_ABORT = 1 << 2,         /* an operation in flight can be given up */
    LS__CAN_COMPARE_FIRST = 1 << 3, /* descriptors are compared before data is combined */
    LS__CAN_REGISTER = 1 << 4       /* ls_group_alloc gives memory that peers reach in place */
} ls__capability;

typedef enum ls__memory_kind { LS__KIND_HOST = 1 << 0 } ls__memory_kind;

typedef struct ls__backend {
    const char *name;
    uint32_t capabilities;              /* ls__capability */
    uint32_t memory_kinds;              /* ls__memory_kind */
    ls_status (*open)(ls_group *group); /* its state for a new group */
    void (*close)(ls_group *group);
    /* Called under the submission lock before the operation has a number: may choose how it runs.
     * An error is the caller's alone; no peer has heard of the operation. */
    ls_status (*prepare)(ls_group *group, ls_work *work);
    /* Called under the submission lock, in call order: may announce the operation early. Returns
     * true when all members are there already, so that somebody must drive it now. */
    bool (*submit)(ls_group *group, ls_work *work);
    /* Called by the holder of the progress token: moves the group's first operation on. Returns
     * whether anything changed. */
    bool (*advance)(ls_group *group);
    /* Forgets the operation in progress after a failure; peers' memory is not touched again. */
    void (*reset)(ls_group *group);
} ls__backend;

extern const ls__backend ls__backend_native;

#endif

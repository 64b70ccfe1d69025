/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own exchanges on a group: control, which no backend of the group moves. Each
 * blocks, and is otherwise as the function of comm.h with the same name; `options` NULL:
 * defaults. */
#ifndef LS_COMM_API_CONTROL_H
#define LS_COMM_API_CONTROL_H

#include <lockstep/comm.h>

/* In place. */
ls_status ls__control_all_reduce(ls_group *group, void *values, int64_t count, ls_dtype dtype,
                                 ls_reduce_op op, const ls_collective_options *options);
ls_status ls__control_all_gather(ls_group *group, const void *own, void *all, int64_t count,
                                 ls_dtype dtype, const ls_collective_options *options);
ls_status ls__control_broadcast(ls_group *group, void *values, int64_t count, ls_dtype dtype,
                                int root, const ls_collective_options *options);
/* Bytes, with tag `tag`. */
ls_status ls__control_send(ls_group *group, const void *bytes, size_t count, int peer, int tag,
                           const ls_collective_options *options);
ls_status ls__control_recv(ls_group *group, void *bytes, size_t count, int peer, int tag,
                           const ls_collective_options *options);
/* A receive by a rank that serves others: `peer` may be LS_ANY_SOURCE, and however long the others
 * compute, no warning says that it waits. A backend may move the bytes. */
ls_status ls__serve_recv(ls_group *group, void *bytes, size_t count, int peer, int tag,
                         const ls_collective_options *options, ls_work **work);
/* As ls_recv_any. */
ls_status ls__serve_recv_any(ls_group *group, void *bytes, size_t count, int tag,
                             const ls_collective_options *options, int *source);

#endif

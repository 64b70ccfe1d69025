/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing the descriptors of an operation on different ranks. */
#ifndef LS_COMM_OPERATION_MISMATCH_H
#define LS_COMM_OPERATION_MISMATCH_H

#include "comm/core/group.h"

/* Compares the announcements of all members that have reached fence 0. True: they differ, and the
 * group fails. The caller holds the progress lock, as for the following functions. */
bool ls__mismatch_check(ls_group *group, const ls_work *work);
/* The same for this rank and a remote member whose announcement has just arrived. */
void ls__mismatch_check_member(ls_group *group, int member, uint64_t sequence);
bool ls__descriptor_equal(const ls__comm *comm, const ls__descriptor *a, const ls__descriptor *b);
/* All that is compared of an operation of a group, in one word; 0 if it does not fit. */
uint64_t ls__descriptor_key(const ls__comm *comm, const ls__descriptor *d);
/* "all_reduce #17 on group "world" disagrees: rank 0 …, rank 1 …; give every rank the same …" */
void ls__mismatch_text(const ls_group *group, const ls__descriptor *a, int rank_a,
                       const ls__descriptor *b, int rank_b, char *out, size_t bytes);
/* "all_reduce #17 (bucket 3) on group "world"" */
void ls__operation_text(const ls_group *group, const ls__descriptor *d, char *out, size_t bytes);
/* Fails the group: member `from` sends a block of a v-variant in another length than expected. */
void ls__mismatch_block(ls_group *group, int from, const ls__descriptor *sender, int64_t sent,
                        int64_t expected);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The root cause of a group's failure: proposing one, and reporting it. */
#ifndef LS_COMM_CORE_CAUSE_H
#define LS_COMM_CORE_CAUSE_H

#include "comm/core/group.h"

/* Records a failure of this rank on the board: the launcher reads it if the rank then ends. */
void ls__comm_record_failure(const ls__comm *comm, ls_status status, const char *text);
/* The same of a failure that this rank detected and rank `by` of the world caused. */
void ls__comm_record_failure_by(const ls__comm *comm, ls_status status, const char *text, int by);
/* The status of the failure that the rank of this record has detected and not survived; its text is
 * in `failed_text`. LS_OK: none. */
ls_status ls__comm_failure_of(const ls__board_rank *record);
/* Proposes a root cause for the group, wakes all members, and returns; any thread. This rank caused
 * it, unless the text is that of a failure that was reported to it. */
void ls__group_cause(ls_group *group, ls_status status, const char *text);
/* The same; rank `by` of the world caused it. */
void ls__group_cause_by(ls_group *group, ls_status status, const char *text, int by);
/* Records a failure that this rank detected in the group and rank `by` of the world caused. */
void ls__group_record_failure_by(ls_group *group, ls_status status, const char *text, int by);
/* The text of the group's root cause, which is about to be reported to the user's program. If
 * another rank caused it, the board records the report: should this rank end now, its end is a
 * consequence. */
const char *ls__group_report_cause(const ls_group *group);
/* Records on the board that the failure of rank `by` was reported to this rank's program. */
void ls__comm_record_report(const ls__comm *comm, ls_status status, int by, const char *text);
/* All ranks have found the same failure of rank `rank` of the world: records it on the board, as
 * this rank's own or as one that was reported to its program. */
void ls__comm_record_found(const ls__comm *comm, ls_status status, int rank, const char *text);
/* Any thread: prepares the cause for members on other hosts. False: another was prepared before. */
bool ls__remote_claim(ls_group *group, ls_status status, const char *text, int by);

/* Records a failure that this rank detected: the launcher reports it if the rank then ends. The
 * first one counts, unless the program survived it. Any thread. */
void ls__group_record_failure(ls_group *group, ls_status status, const char *text);
/* The same of a gradient of this rank that is not finite. The program goes on: the ranks find out
 * later, when a norm is not finite. */
void ls__group_record_gradient(ls_group *group, const char *text);
/* All ranks of the group return an error because a norm is not finite. The cause is a rank with a
 * gradient that it has recorded lately; without any, the one rank that has `found` the norm. */
void ls__group_record_norm(ls_group *group, bool found, const char *text);
/* The text with which the group of a rank that fails with `message` is to fail: "rank 2 failed: …"
 * if the failure is this rank's own. */
void ls__group_failure_say(const ls_group *group, const char *message, char *out, size_t bytes);

/* The text with which `group` failed, for the status `done` was given; "" while it has not. */
const char *ls__group_failure(const ls_group *group);

#endif

/* The root cause of a group's failure: proposing one, and reporting it. */
#ifndef LS_COMM_DIAGNOSE_CAUSE_H
#define LS_COMM_DIAGNOSE_CAUSE_H

#include "comm/group/group.h"

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
/* Any thread: prepares the cause for members on other hosts. False: another was prepared before. */
bool ls__remote_claim(ls_group *group, ls_status status, const char *text, int by);

#endif

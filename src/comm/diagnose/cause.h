/* The root cause of a group's failure: proposing one, and reporting it. */
#ifndef LS_COMM_DIAGNOSE_CAUSE_H
#define LS_COMM_DIAGNOSE_CAUSE_H

#include "comm/group/group.h"

void ls__comm_tell_board(const ls__comm *comm, ls_status status, const char *text);
/* Proposes a root cause for the group, wakes all members, and returns; any thread. */
void ls__group_cause(ls_group *group, ls_status status, const char *text);
/* The same with rank `by` of the world as the culprit. */
void ls__group_cause_by(ls_group *group, ls_status status, const char *text, int by);
/* The text of the group's root cause, which the user's program learns now. If the culprit is
 * another rank, the board records it, because an end that follows is a consequence. */
const char *ls__group_hear(const ls_group *group);
void ls__comm_note_told(const ls__comm *comm, ls_status status, int by, const char *text);
/* Any thread: prepares the cause for members on other hosts. False: there was one already. */
bool ls__remote_claim(ls_group *group, ls_status status, const char *text, int by);

#endif

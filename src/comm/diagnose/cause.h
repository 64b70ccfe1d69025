/* The first cause of a group's failure: proposing one, and telling it. */
#ifndef LS_COMM_DIAGNOSE_CAUSE_H
#define LS_COMM_DIAGNOSE_CAUSE_H

#include "comm/group/group.h"

void ls__comm_tell_board(const ls__comm *comm, ls_status status, const char *text);
/* Proposes a first cause for the group, tells all members, and returns; any thread. */
void ls__group_cause(ls_group *group, ls_status status, const char *text);
/* The same, of what rank `by` of the world has done. */
void ls__group_cause_by(ls_group *group, ls_status status, const char *text, int by);
/* The group's first cause, told to the user now: an end that follows is a consequence, which the
 * board says if it is another's doing. */
const char *ls__group_hear(const ls_group *group);
void ls__comm_note_told(const ls__comm *comm, ls_status status, int by, const char *text);
/* Any thread: notes the cause for members on other hosts. False: one was noted before. */
bool ls__remote_claim(ls_group *group, ls_status status, const char *text, int by);

#endif

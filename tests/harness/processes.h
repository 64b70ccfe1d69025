/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for processes with a deadline, and finding those that a test left behind. */
#ifndef PROCESSES_H
#define PROCESSES_H

#include <stdbool.h>
#include <sys/types.h>

double process_seconds(void); /* monotonic */

/* Reaps pid; false when it still runs after deadline_ms. */
bool process_wait(pid_t pid, int deadline_ms, int *status);

/* Kills and reaps every child of this process, among them orphans it was given. */
void processes_kill_children(void);

/* Gives the children of this process grace_ms to end, kills the rest, returns how many those were.
 */
int processes_end_orphans(int grace_ms);

#endif

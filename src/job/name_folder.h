/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of one user on one host connect to each other by the names of sockets in a folder: who
 * is at the other end, and the error message when the folder cannot be used. */
#ifndef LS_JOB_NAME_FOLDER_H
#define LS_JOB_NAME_FOLDER_H

#include <stdbool.h>

#include <lockstep/status.h>

#include "base/env.h"

/* Call it after -EPERM of host_listen or host_connect. Sets the message, which names the owner of
 * the folder and the remedy; `within` is its subject, such as "ls_init". Returns LS_ERR_SYSTEM. */
ls_status ls__name_folder_fail(const ls__env *env, const char *within);

/* Whether the process at the other end is this user's, which the kernel attests: another user's
 * could have taken the name. */
bool ls__name_peer_is_own(const ls__env *env, int fd);

#endif

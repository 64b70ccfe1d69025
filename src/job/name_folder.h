/* The error message for the folder of the sockets through which processes of one user on one host
 * connect to each other by name, when the folder cannot be used. */
#ifndef LS_JOB_NAME_FOLDER_H
#define LS_JOB_NAME_FOLDER_H

#include <lockstep/status.h>

#include "base/env.h"

/* Call it after -EPERM of host_listen or host_connect. Sets the message, which names the owner of
 * the folder and the remedy; `within` is its subject, such as "ls_init". Returns LS_ERR_SYSTEM. */
ls_status ls__name_folder_fail(const ls__env *env, const char *within);

#endif

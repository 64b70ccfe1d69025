/* The words for names of this host that cannot be used: somebody else holds their folder. */
#ifndef LS_JOB_NAME_FOLDER_H
#define LS_JOB_NAME_FOLDER_H

#include <lockstep/status.h>

#include "base/env.h"

/* After -EPERM of host_listen or host_connect: whose the folder is, and the remedy. */
ls_status ls__name_folder_fail(const ls__env *env, const char *within);

#endif

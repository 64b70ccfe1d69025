/* SPDX-License-Identifier: Apache-2.0 */
/* The regular files below a folder. */
#ifndef LS_DATA_PATHS_H
#define LS_DATA_PATHS_H

#include "base/env.h"
#include <lockstep/status.h>

typedef struct ls__paths {
    char **path; /* each malloc'ed; a caller that takes one leaves NULL */
    int count, capacity;
} ls__paths;

/* Adds all regular files below `root`, sorted by their paths; symbolic links are skipped. Errors
 * begin with `what`. */
ls_status ls__paths_find(const ls__env *env, const char *what, const char *root, ls__paths *files);
/* Takes `path`; NULL, as a failed copy, is LS_ERR_MEMORY. */
ls_status ls__paths_add(ls__paths *list, const char *what, char *path);
void ls__paths_free(ls__paths *list);

/* "folder/name", to be freed; NULL without memory. */
char *ls__paths_join(const char *folder, const char *name);
/* Behind the last '/'. */
const char *ls__paths_name(const char *path);

#endif

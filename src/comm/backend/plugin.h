/* SPDX-License-Identifier: Apache-2.0 */
/* Plug-ins (lockstep/backend.h): finding, loading and checking one. */
#ifndef LS_COMM_BACKEND_PLUGIN_H
#define LS_COMM_BACKEND_PLUGIN_H

#include <lockstep/backend.h>

#include "base/list.h"
#include "base/trusted.h"
#include "comm/core/backend.h"

#define LS__BACKEND_NAME_MAX 32
#define LS__BACKEND_PATH_MAX 512
#define LS__BACKEND_FILE "ls_backend_%.31s.so"
#define LS__BACKEND_POLL_MIN_US 50
#define LS__BACKEND_POLL_MAX_US 200

typedef struct ls__plugin {
    ls__list link;           /* comm->plugins.list; lock */
    const ls_backend *table; /* `filled` */
    ls_backend filled;       /* the plug-in's, and NULL where its version ends earlier */
    ls_backend_capabilities can;
    char asked[LS__BACKEND_PATH_MAX]; /* the name or path by which it was asked for */
    char path[LS__BACKEND_PATH_MAX];
} ls__plugin;

/* What the native backend promises: everything but streams and memory of devices. */
extern const ls_backend_capabilities ls__native_can;

/* Loads the plug-in of this name ("mpi": that of the MPI under which the process runs) or path,
 * checks its table and asks what it can do. Errors name the file and say what to do:
 * LS_ERR_NOT_FOUND, LS_ERR_UNSUPPORTED, LS_ERR_INVALID, or the plug-in's. */
ls_status ls__plugin_load(const char *asked, ls__plugin *out);
void ls__plugin_unload(ls__plugin *plugin, bool failed);

/* Writes the i-th folder in which plug-ins are looked for; false: there are no more. */
bool ls__plugin_folder(int i, char *out, size_t bytes);

/* Whether only root, this user and the owner of this code can change the file or folder `path`;
 * `real` is its path without links. LS_ERR_SYSTEM names the folder and the remedy. `what` is the
 * subject of errors: backend "mpi". */
ls_status ls__plugin_check_place(const char *what, const char *path,
                                 char real[LS__TRUSTED_PATH_MAX]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Whether other users could change what a path leads to.
 *
 * Code that is loaded, a secret, and files that the library keeps for itself are read only from
 * places that this user and root alone can change. Every folder from the root to the file, every
 * symbolic link on the way, and the file
 *
 *   - belong to root or to this user (or to the owner of the running program, where the caller says
 *     so: whoever can change the program needs no other file), and
 *   - cannot be written by others. A group may write where it is the owner's private one, which has
 *     the owner's number. Everybody may write to a folder with the sticky bit, as /tmp: there only
 *     the owner of an entry can replace it, so an entry of this user or of root is as safe as
 *     elsewhere.
 *
 * In a user namespace without a root of its own, as in some containers, files of all users but this
 * one seem to be one user's. The owner of "/" counts as root there, but for entries of sticky
 * folders. */
#ifndef LS_BASE_TRUSTED_H
#define LS_BASE_TRUSTED_H

#include <lockstep/status.h>

#include "base/env.h"

#define LS__TRUSTED_PATH_MAX 4096

typedef struct ls__untrusted { /* the place that another user could change */
    char path[LS__TRUSTED_PATH_MAX];
    uid_t uid;
    int mode;
} ls__untrusted;

/* Writes to `real` the path without symbolic links, which is the one to be opened: nobody else can
 * exchange any part of it. `also`: one more user to be trusted; this user's: none. -EPERM with
 * *why, or another -errno, such as -ENOENT. */
int ls__trusted_path(const ls__env *env, const char *path, uid_t also,
                     char real[LS__TRUSTED_PATH_MAX], ls__untrusted *why);

/* The same for another file of the program whose file is `program`. The folders above that are not
 * looked at, since whoever can change them can exchange the program itself, and their owners are
 * trusted; but for sticky folders, where others can make files beside it. */
int ls__trusted_beside(const ls__env *env, const char *path, const char *program,
                       char real[LS__TRUSTED_PATH_MAX], ls__untrusted *why);

/* The error for -EPERM, LS_ERR_SYSTEM: `what` is its subject, such as "--secret-file". */
ls_status ls__untrusted_fail(const ls__env *env, const char *what, const char *path,
                             const ls__untrusted *why);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Another user may have created the folder first, by accident or to intercept connections. The
 * message names that user and the remedy. */
#include "job/name_folder.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

ls_status ls__name_folder_fail(const ls__env *env, const char *within)
{
    ls__env_folder folder;
    const int error = env->name_folder(env, &folder);
    if (error != -EPERM) {
        return ls__fail(
            LS_ERR_SYSTEM,
            "%s: the folder %s, which holds the socket names of this user, cannot be used: %s",
            within, folder.path, strerror(-error));
    }
    return ls__fail(
        LS_ERR_SYSTEM,
        "%s: the folder %s, which holds the socket names of this user (uid %ld), belongs "
        "to uid %ld and has mode %04o; it must belong to this user and have mode 0700: "
        "remove it, or set XDG_RUNTIME_DIR to a folder of this user for all ranks",
        within, folder.path, (long)env->uid(env), (long)folder.uid, (unsigned)folder.mode);
}

bool ls__name_peer_is_own(const ls__env *env, int fd)
{
    uid_t uid;
    return env->peer_uid(env, fd, &uid) == 0 && uid == env->uid(env);
}

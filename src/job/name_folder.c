/* Another user may have made the folder first: that is said at once, with the user and the remedy. */
#include "job/name_folder.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

ls_status ls__name_folder_fail(const ls__env *env, const char *within)
{
    ls__env_folder folder;
    const int error = env->name_folder(env, &folder);
    if (error != -EPERM) {
        return ls__fail(LS_ERR_SYSTEM,
                        "%s: the folder %s, in which processes of this user meet: %s", within,
                        folder.path, strerror(-error));
    }
    return ls__fail(LS_ERR_SYSTEM,
                    "%s: processes of this user (uid %ld) meet in the folder %s, but it belongs to "
                    "uid %ld with mode %04o, where mode 0700 of this user is needed: remove it, or "
                    "set XDG_RUNTIME_DIR to a folder of this user's own for all ranks",
                    within, (long)env->uid(env), folder.path, (long)folder.uid,
                    (unsigned)folder.mode);
}

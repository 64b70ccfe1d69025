/* SPDX-License-Identifier: Apache-2.0 */
/* The error text apart from the walk, which the env table itself uses. */
#include "base/error.h"
#include "base/trusted.h"

ls_status ls__untrusted_fail(const ls__env *env, const char *what, const char *path,
                             const ls__untrusted *why)
{
    return ls__fail(LS_ERR_SYSTEM,
                    "%s: %s is not used, since another user could change it: %s belongs to uid %ld "
                    "and has mode %04o; it must belong to root or to this user (uid %ld), and "
                    "others must not be able to write there: correct this by chown and chmod go-w, "
                    "or move the file to a folder of this user",
                    what, path, why->path, (long)why->uid, (unsigned)why->mode,
                    (long)env->uid(env));
}

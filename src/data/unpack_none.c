/* SPDX-License-Identifier: Apache-2.0 */
/* The build without zlib. */
#include "base/error.h"
#include "data/unpack.h"

ls_status ls__unpack(const ls__env *env, const char *what, const char *path, ls__file *file)
{
    (void)env;
    return !ls__is_packed(file->data, file->bytes)
               ? LS_OK
               : ls__fail(
                     LS_ERR_UNSUPPORTED,
                     "%s: \"%s\" is compressed by gzip, and this build has no zlib; run gunzip "
                     "first, or install zlib1g-dev and build again",
                     what, path);
}

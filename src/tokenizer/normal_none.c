/* SPDX-License-Identifier: Apache-2.0 */
/* The build without utf8proc: no tokenizer that needs it is opened. */
#include "base/assert.h"
#include "base/error.h"
#include "tokenizer/normal.h"

ls_status ls__normal_available(const char *path)
{
    return ls__fail(
        LS_ERR_UNSUPPORTED,
        "tokenizer: \"%s\" has the normalizer NFC, and this build has no utf8proc; install "
        "libutf8proc-dev and build again",
        path);
}

ls_status ls__normal_make(const char *text, size_t bytes, char **out, size_t *out_bytes)
{
    (void)text;
    (void)bytes;
    (void)out_bytes;
    *out = NULL;
    LS_ASSERT(false);
    return LS_OK;
}

ls_status ls__normal_check(const char *text, size_t bytes, bool *normal)
{
    (void)text;
    (void)bytes;
    *normal = true;
    return LS_OK;
}

bool ls__normal_may_cut(const char *text, size_t bytes, size_t at)
{
    (void)text;
    (void)bytes;
    (void)at;
    return true;
}

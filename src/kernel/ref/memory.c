/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of any type: copied, cleared, looked at. */
#include <string.h>

#include "base/nonfinite.h"
#include "kernel/ref/ref.h"

/* Nothing is read through a NULL of no bytes. */
void ls__ref_copy(void *out, const void *in, size_t bytes, ls_stream *stream)
{
    (void)stream;
    if (bytes > 0) {
        memcpy(out, in, bytes);
    }
}

/* Zero is all bits clear in every type. */
void ls__ref_zero(void *out, size_t bytes, ls_stream *stream)
{
    (void)stream;
    if (bytes > 0) {
        memset(out, 0, bytes);
    }
}

void ls__ref_increment(int64_t *number, ls_stream *stream)
{
    (void)stream;
    *number += 1;
}

void ls__ref_nonfinite(int64_t *first, const void *x, ls_dtype dtype, int64_t from, int64_t to,
                       ls_stream *stream)
{
    (void)stream;
    *first = ls__nonfinite_find(x, dtype, from, to);
}

/* first[0] = -1 where all are within, and first[1] is not written. */
void ls__ref_outside(const ls__index_check *c, ls_stream *stream)
{
    (void)stream;
    c->first[0] = -1;
    for (int64_t i = 0; i < c->count; i++) {
        const int64_t at = ls__ref_index(c->index, c->index_bytes, i);
        if ((at < 0 || at >= c->n) && !(c->may_ignore && at == c->ignore)) {
            c->first[0] = i;
            c->first[1] = at;
            return;
        }
    }
}

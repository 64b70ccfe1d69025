/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of any type: copied, cleared, looked at. */
#include <string.h>

#include "base/nonfinite.h"
#include "kernel/cpu/isa.h"

/* Nothing is read through a NULL of no bytes. */
void LS__K(copy)(void *out, const void *in, size_t bytes, ls_stream *stream)
{
    (void)stream;
    if (bytes > 0) {
        memcpy(out, in, bytes);
    }
}

/* Zero is all bits clear in every type, so whole words go through `fill`, which uses all
 * threads. */
void LS__K(zero)(void *out, size_t bytes, ls_stream *stream)
{
    const size_t words = bytes / sizeof(float), rest = bytes % sizeof(float);
    if ((uintptr_t)out % sizeof(float) != 0) {
        memset(out, 0, bytes);
        return;
    }
    LS__K(fill)(out, (int64_t)words, 0.0f, stream);
    if (rest > 0) {
        memset((char *)out + bytes - rest, 0, rest);
    }
}

void LS__K(increment)(int64_t *number, ls_stream *stream)
{
    (void)stream;
    *number += 1;
}

void LS__K(nonfinite)(int64_t *first, const void *x, ls_dtype dtype, int64_t from, int64_t to,
                      ls_stream *stream)
{
    (void)stream;
    *first = ls__nonfinite_find(x, dtype, from, to);
}

static int64_t index_at(const ls__index_check *c, int64_t i)
{
    return c->index_bytes == 4 ? ((const int32_t *)c->index)[i] : ((const int64_t *)c->index)[i];
}

/* first[0] = -1 where all are within, and first[1] is not written. */
void LS__K(outside)(const ls__index_check *c, ls_stream *stream)
{
    (void)stream;
    c->first[0] = -1;
    for (int64_t i = 0; i < c->count; i++) {
        const int64_t at = index_at(c, i);
        if ((at < 0 || at >= c->n) && !(c->may_ignore && at == c->ignore)) {
            c->first[0] = i;
            c->first[1] = at;
            return;
        }
    }
}

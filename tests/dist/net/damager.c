/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of two hosts, of which rank 0 damages what it sends to the other host, after checksums and
 * encryption: a bit of a large piece on its way. All then reduce until they hear of it. */
#include <string.h>
#include <sys/types.h>

#include <lockstep/lockstep.h>

#include "base/env.h"
#include "comm/runtime/init.h"

enum { COUNT = 100000, LARGE = 4096 };

static bool armed;

/* What comes before the piece goes first and alone, as if the network took no more. */
static ssize_t send_damaged(const ls__env *env, int fd, const ls__env_span *spans, int count)
{
    static unsigned char copy[1 << 16];
    const ls__env *real = ls__env_posix();
    int i = 0;
    (void)env;
    while (i < count && spans[i].bytes < LARGE) {
        i++;
    }
    if (!armed || i == count || i > 0) {
        return real->send_spans(real, fd, spans, armed && i < count ? i : count);
    }
    const ls__env_span changed = {copy,
                                  spans[0].bytes < sizeof copy ? spans[0].bytes : sizeof copy};
    memcpy(copy, spans[0].at, changed.bytes);
    copy[LARGE / 2] ^= 4;
    armed = false;
    return real->send_spans(real, fd, &changed, 1);
}

int main(void)
{
    static float x[COUNT];
    ls__env damaging = *ls__env_posix();
    damaging.send_spans = send_damaged;
    LS_CHECK(ls__init_with(&damaging, NULL));
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    armed = ls_rank() == 0;
    for (;;) {
        LS_CHECK(ls_all_reduce(ls_world(), x, x, COUNT, LS_FLOAT32, LS_SUM, NULL, NULL));
    }
}

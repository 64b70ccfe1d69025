/* SPDX-License-Identifier: Apache-2.0 */
/* ls_spawn: the launcher from inside a program. */
#include <lockstep/runtime.h>

#include <stdio.h>

#include "base/runtime.h"
#include "job/board.h"
#include "launch/launch.h"

/* The ranks inherit standard output and error. Buffered output is flushed first, because every
 * rank would write its copy again. */
ls_status ls_spawn(int (*fn)(void *arg), void *arg, int n)
{
    if (fn == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_spawn: fn is NULL; give the function that the ranks run");
    }
    if (n < 1 || n > LS__BOARD_RANKS_MAX) {
        return ls__fail(LS_ERR_INVALID, "ls_spawn: %d ranks; a host runs 1 to %d", n,
                        LS__BOARD_RANKS_MAX);
    }
    if (ls__self.runtime != NULL) {
        return ls__fail(LS_ERR_STATE, "ls_spawn: this process has joined a world already; call it "
                                      "before ls_init or after ls_finalize");
    }
    (void)fflush(NULL);
    ls__job job = {.ranks = n, .fn = fn, .arg = arg};
    ls__job_result result;
    LS_TRY(ls__job_run(ls__env_posix(), &job, &result));
    return result.code != 0 ? ls__fail(LS_ERR_PEER, "ls_spawn: %s", result.cause) : LS_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Bootstrap: how a process finds its world (docs/design.md, D12). A small table of methods, tried
 * in order; the first that applies wins: our launcher's descriptors (launcher.c), the variables of
 * another launcher (detect.c, join.c), or none (a world of one).
 *
 * Our launcher. `lockstep run` and ls_spawn give each rank, besides torchrun's variables,
 *     LOCKSTEP_BOOTSTRAP=v1:STORE_FD:BOARD_FD:SECRET_FD
 * a connected AF_UNIX stream to the store, the board's memfd and a sealed memfd with 32 secret
 * bytes. The first frame on the stream must carry the secret; the launcher parses nothing before
 * it. ls_init reads the secret and closes that descriptor; all three are close-on-exec from then
 * on.
 *
 * Another launcher. The ranks of a host find each other by the job's name (local_rendezvous.h);
 * local rank 0 runs the host agent as a thread (agent_thread.c). Hosts find each other as under our
 * launcher (job/nodes). In ls_finalize local rank 0 waits for the ranks that its agent serves.
 */
#ifndef LS_JOB_BOOTSTRAP_BOOTSTRAP_H
#define LS_JOB_BOOTSTRAP_BOOTSTRAP_H

#include <lockstep/store.h>

#include "base/runtime.h"
#include "job/board.h"

#define LS__SECRET_BYTES 32

typedef struct ls__boot {
    int rank, world_size, local_rank, local_size;
    ls_store *store;    /* owned; of one rank: in memory */
    ls__board *board;   /* owned mapping */
    bool board_private; /* not shared: a world of one */
    /* For connections to ranks of other hosts. */
    uint8_t secret[LS__SECRET_BYTES];
    bool plain; /* --data-plane plain: links that leave the host are not encrypted */
    char address[LS__ADDRESS_MAX]; /* of this host, as others reach it; "": all are here */
    /* Under other launchers; owned. */
    struct ls__agent_thread *agent; /* of local rank 0 */
    struct ls__parent_watch *watch; /* of the other ranks, over local rank 0 */
} ls__boot;

/* Fills *out or fails with a message that says what the environment holds and what to do. */
ls_status ls__bootstrap(const ls__env *env, int64_t timeout_ms, ls__boot *out);
void ls__bootstrap_close(const ls__env *env, ls__boot *boot);

#endif

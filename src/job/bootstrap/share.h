/* SPDX-License-Identifier: Apache-2.0 */
/* What the hosts of a job need to meet, if nobody has set it: rank 0 draws a secret, finds a free
 * port, and shares both with its addresses through the launcher that started the ranks.
 *
 *     PMIx, PMI            a broadcast through the process manager                   job/pmi
 *     srun without either  a file that only this user can read, in the home folder   share_file.c
 *
 * LOCKSTEP_RENDEZVOUS and LOCKSTEP_SECRET_FILE go before what is shared; if both are set, nothing
 * is. */
#ifndef LS_JOB_BOOTSTRAP_SHARE_H
#define LS_JOB_BOOTSTRAP_SHARE_H

#include "base/env.h"
#include "job/bootstrap/detect.h"
#include "job/pmi/pmi.h"

/* Fills in the rendezvous and the secret of a job on several hosts. Every rank of the job calls
 * it. */
ls_status ls__share_rendezvous(const ls__env *env, uint64_t deadline_ns, ls__detected *detected);
/* By what this job would share them, for messages; NULL: it cannot, or need not. */
const char *ls__share_way(const ls__detected *detected);
/* Rank 0, when all have come or will not: removes what sharing has left behind. */
void ls__share_end(const ls__env *env, const ls__detected *detected);

/* The same as ls__pmi_broadcast, by a file; in share_file.c. Only for a step of srun. */
bool ls__share_file_broadcast(const ls__env *env, int rank, char value[LS__PMI_VALUE],
                              uint64_t deadline_ns, char reason[LS__PMI_REASON]);
void ls__share_file_remove(const ls__env *env);

#endif

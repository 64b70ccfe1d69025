/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous of a job, and the addresses at which its hosts reach each other.
 *
 *     HOST:PORT, [v6]:PORT        --rendezvous or a variable; names are resolved once
 *     LOCKSTEP_IFNAME             eth,ib   starts with one of these     ^docker,lo   none of these
 *                                 =eth0    exactly                      (as NCCL's)
 */
#ifndef LS_JOB_NODES_RENDEZVOUS_H
#define LS_JOB_NODES_RENDEZVOUS_H

#include <lockstep/status.h>

#include "base/env.h"
#include "job/link/link.h"

#define LS__PLACE_ADDRESSES 8
#define LS__PLACE_HOST 256 /* as long as a host name may be */

typedef struct ls__rendezvous_place {
    char host[LS__PLACE_HOST]; /* as given */
    int port;
    char from[64]; /* its source: "--rendezvous", "MASTER_ADDR and MASTER_PORT" */
    int count;
    char address[LS__PLACE_ADDRESSES][LS__ADDRESS_MAX]; /* after ls__place_resolve */
} ls__rendezvous_place;

/* Splits "HOST:PORT"; `from` names the flag or variable in messages. */
ls_status ls__place_parse(const char *text, const char *from, ls__rendezvous_place *out);
/* Fills in the addresses, within timeout_ms and until stop(arg), which is asked now and then, says
 * to give up (NULL: never). */
ls_status ls__place_resolve(const ls__env *env, ls__rendezvous_place *place, int64_t timeout_ms,
                            bool (*stop)(void *arg), void *arg);
bool ls__address_is_loopback(const char *address);
/* Whether it was resolved, and to loopback addresses only. */
bool ls__place_is_loopback(const ls__rendezvous_place *place);

/* Links to a place that is written as a loopback address cannot leave the host and are plain; other
 * links are plain only on the user's request. The text decides, because a name may resolve to
 * different addresses on different hosts. */
ls__link_mode ls__place_mode(const ls__rendezvous_place *place, bool plain);

/* The interface that LOCKSTEP_IFNAME or its fallbacks select. *set is false, and *out unchanged, if
 * no variable is set. An error lists the interfaces of the host. */
ls_status ls__interface_wanted(const ls__env *env, bool *set, ls__env_interface *out);
/* The same for a pattern `wanted` of the variable `name` among `count` interfaces. */
ls_status ls__interface_choose(const char *name, const char *wanted, const ls__env_interface *all,
                               int count, ls__env_interface *out);

/* The addresses of a place that belong to this host. A name of this host that resolves to the
 * loopback only (127.0.1.1) stands for the host's other addresses too. Returns their number. */
int ls__place_own(const ls__env *env, const ls__rendezvous_place *place,
                  char (*out)[LS__ADDRESS_MAX], int room);

/* A port that is free at `address` of this host at the moment; 0: none was found. */
int ls__free_port_at(const ls__env *env, const char *address);

#endif

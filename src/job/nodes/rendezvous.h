/* Where the hosts of a job meet, and by which address each is reached.
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
    char from[64]; /* what gave it: "--rendezvous", "MASTER_ADDR and MASTER_PORT" */
    int count;
    char address[LS__PLACE_ADDRESSES][LS__ADDRESS_MAX]; /* what it resolves to */
} ls__rendezvous_place;

/* Splits "HOST:PORT"; `from` names the flag or variable in messages. */
ls_status ls__place_parse(const char *text, const char *from, ls__rendezvous_place *out);
/* Fills in the addresses. Blocks as long as the system's resolver does. */
ls_status ls__place_resolve(const ls__env *env, ls__rendezvous_place *place);
bool ls__address_is_loopback(const char *address);
/* Every address of it is one of the loopback. */
bool ls__place_is_loopback(const ls__rendezvous_place *place);

/* Links to a place named as the loopback cannot leave the host, and are plain; others only if the
 * user said so. By the text: what a name resolves to may differ from host to host. */
ls__link_mode ls__place_mode(const ls__rendezvous_place *place, bool plain);

/* The interface that LOCKSTEP_IFNAME or its fallbacks ask for; *set is false, and nothing chosen,
 * when none is set. An error lists the interfaces there are. */
ls_status ls__interface_wanted(const ls__env *env, bool *set, ls__env_interface *out);
/* The same for a pattern `wanted` of the variable `name` among `count` interfaces. */
ls_status ls__interface_choose(const char *name, const char *wanted, const ls__env_interface *all,
                               int count, ls__env_interface *out);

/* The addresses among a place's that are this host's own. A name of this host that is only known as
 * one of the loopback (127.0.1.1) stands for the host's other addresses too. Returns how many. */
int ls__place_own(const ls__env *env, const ls__rendezvous_place *place,
                  char (*out)[LS__ADDRESS_MAX], int room);

#endif

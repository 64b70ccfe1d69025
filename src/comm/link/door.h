/* A door: a listening port that lets nobody in without the job's secret.
 *
 * Strangers cost little: at most LS__DOOR_PENDING connections that have not proved themselves, with
 * LS__DOOR_BYTES each at most, for LS__DOOR_MS; where more come, those who have said nothing give
 * way first (after 10 ms), then who has greeted but proved nothing (after 25 ms), the oldest first.
 * TLS, which takes more memory, begins after the proof. The proof is driven by whoever calls
 * ls__door_next; nothing blocks.
 *
 * An honest side can be the one that gives way, or find that the kernel had no place left for it:
 * it sees LS_ERR_PEER and comes again.
 */
#ifndef LS_COMM_LINK_DOOR_H
#define LS_COMM_LINK_DOOR_H

#include "comm/link/link.h"

#define LS__DOOR_PENDING 64
#define LS__DOOR_BYTES 1024
#define LS__DOOR_MS 5000

typedef struct ls__door ls__door;

/* Listens on address:port (0: any). LS_ERR_SYSTEM names the port's owner where known. */
ls_status ls__door_open(const ls__link_spec *spec, const char *address, int port, ls__door **out);
int ls__door_port(const ls__door *door);
/* Readable (a poller's) when somebody knocks or goes on with the proof: then call ls__door_next
 * until it returns NULL, and at the latest at ls__door_deadline. */
int ls__door_fd(const ls__door *door);
uint64_t ls__door_deadline(const ls__door *door); /* LS__NEVER while nobody is pending */
/* The next link whose proof is complete, or NULL. */
ls__link *ls__door_next(ls__door *door);
void ls__door_close(ls__door *door); /* NULL is allowed */

#endif

/* A listening port that accepts nobody without the job's secret.
 *
 * Unauthenticated peers cost little: at most LS__LISTENER_PENDING connections that have not proved themselves, with
 * LS__LISTENER_BYTES each at most, for LS__LISTENER_MS; where more come, those who have said nothing give
 * way first (after 10 ms), then who has greeted but proved nothing (after 25 ms), the oldest first.
 * TLS, which takes more memory, begins after the proof. The proof is driven by whoever calls
 * ls__listener_next; nothing blocks.
 *
 * An honest side can be the one that gives way, or find that the kernel had no place left for it:
 * it sees LS_ERR_PEER and comes again.
 */
#ifndef LS_JOB_LINK_LISTENER_H
#define LS_JOB_LINK_LISTENER_H

#include "job/link/link.h"

#define LS__LISTENER_PENDING 64
#define LS__LISTENER_BYTES 1024
#define LS__LISTENER_MS 5000

typedef struct ls__listener ls__listener;

/* Listens on address:port (0: any). LS_ERR_SYSTEM names the port's owner where known. */
ls_status ls__listener_open(const ls__link_spec *spec, const char *address, int port,
                            ls__listener **out);
int ls__listener_port(const ls__listener *listener);
/* Readable (a poller's) when somebody knocks or goes on with the proof: then call ls__listener_next
 * until it returns NULL, and at the latest at ls__listener_deadline. */
int ls__listener_fd(const ls__listener *listener);
uint64_t
ls__listener_deadline(const ls__listener *listener); /* LS__NEVER while nobody is pending */
/* The next link whose proof is complete, or NULL. */
ls__link *ls__listener_next(ls__listener *listener);
void ls__listener_close(ls__listener *listener); /* NULL is allowed */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A listening port that accepts only peers that know the job's secret.
 *
 * Unauthenticated peers cost little: at most LS__LISTENER_PENDING connections that have not
 * proved the secret, with at most LS__LISTENER_BYTES each, for at most LS__LISTENER_MS. When
 * more arrive, silent connections are closed first (after 10 ms), then those that have sent a
 * hello but proved nothing (after 25 ms), the oldest first. TLS, which takes more memory, begins
 * after the proof. The handshakes advance in ls__listener_next; nothing blocks.
 *
 * An honest peer may lose its place too, or be refused by a full queue of the kernel: it sees
 * LS_ERR_PEER and connects again. */
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
/* A poller, readable when a peer connects or continues its proof: then, and at the latest at
 * ls__listener_deadline, call ls__listener_next until it returns NULL. */
int ls__listener_fd(const ls__listener *listener);
/* LS__NEVER while no connection is pending. */
uint64_t ls__listener_deadline(const ls__listener *listener);
/* The next link whose proof is complete, or NULL. */
ls__link *ls__listener_next(ls__listener *listener);
void ls__listener_close(ls__listener *listener); /* NULL is allowed */

#endif

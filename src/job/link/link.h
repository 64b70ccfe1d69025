/* SPDX-License-Identifier: Apache-2.0 */
/* A link: one authenticated stream between two processes of a job, over TCP.
 *
 * Both ends prove that they know the job's secret before any other byte is parsed (docs/design.md,
 * D12). A *plain* link then carries bytes as they are; a *TLS* link (1.3, the secret as pre-shared
 * key) encrypts them. The user of a link defines the format of its bytes (the store's frames, the
 * transport's messages). Nothing here blocks. Not thread-safe.
 *
 *     link = ls__link_connect(…) or ls__listener_next(listener)
 *     while (ls__link_handshake(link) == LS_IN_PROGRESS) wait for the descriptor
 *     ls__link_read / ls__link_send
 */
#ifndef LS_JOB_LINK_LINK_H
#define LS_JOB_LINK_LINK_H

#include <lockstep/status.h>

#include "base/env.h"

#define LS__LINK_SECRET 32 /* bytes */

typedef enum ls__link_mode {
    LS__LINK_PLAIN = 0, /* authenticated, not encrypted */
    LS__LINK_TLS = 1
} ls__link_mode;

/* The two ends must agree on mode, purpose and job. */
typedef struct ls__link_spec {
    const ls__env *env;
    const uint8_t *secret; /* [LS__LINK_SECRET], copied */
    ls__link_mode mode;
    const char *purpose; /* "store", "data": part of the proof; a literal */
    uint64_t job;        /* number of the job, or 0: part of the proof unless 0 */
} ls__link_spec;

typedef struct ls__link ls__link;

/* LS_ERR_UNSUPPORTED, with the remedy in the message, if this build lacks the mode. */
ls_status ls__link_available(ls__link_mode mode);
/* Begins to connect; `from`: own address, or NULL. */
ls_status ls__link_connect(const ls__link_spec *spec, const char *address, int port,
                           const char *from, ls__link **out);
/* Takes over an accepted descriptor, in all cases. */
ls_status ls__link_accept(const ls__link_spec *spec, int fd, ls__link **out);
/* Drives connecting and the proof. LS_IN_PROGRESS; LS_OK: both ends have proved themselves;
 * LS_ERR_AUTH, LS_ERR_PEER …: the link has failed; call ls__link_close. */
ls_status ls__link_handshake(ls__link *link);
int ls__link_fd(const ls__link *link); /* to be watched */
/* Whether a poll that is not edge-triggered should also wait for "can be written". */
bool ls__link_wants_write(const ls__link *link);

/* On an open link. Bytes read; 0: the peer has closed; -EAGAIN; -errno. From TLS also -EBADMSG (the
 * bytes were changed on their way), -EREMOTEIO (the peer says so of bytes from here), -EPROTO, and
 * -ECONNRESET: the stream was cut off, or the peer's process is gone. To be read until -EAGAIN:
 * what lies in the link, read from the system already, is reported by no poll. */
ssize_t ls__link_read(ls__link *link, void *out, size_t bytes);
/* The same into several rooms, one after the other. */
ssize_t ls__link_read_rooms(ls__link *link, const ls__env_room *rooms, int count);
/* Bytes taken, perhaps fewer; -EAGAIN; -errno. With TLS what was taken may still lie in the link:
 * ls__link_flush sends it (0: nothing is left; -EAGAIN; -errno). */
ssize_t ls__link_send(ls__link *link, const ls__env_span *spans, int count);
int ls__link_flush(ls__link *link);
const char *ls__link_peer(const ls__link *link);       /* "10.0.0.2:41233" */
const char *ls__link_protection(const ls__link *link); /* "plain", "TLS 1.3, TLS_AES_128_…" */
/* Does not block, so the peer may see a reset instead of an orderly end. NULL is allowed. */
void ls__link_close(ls__link *link);

#endif

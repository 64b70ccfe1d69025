/* SPDX-License-Identifier: Apache-2.0 */
/* Two ends of a link in one process, over loopback. */
#ifndef TEST_MEET_H
#define TEST_MEET_H

#include "job/link/listener.h"

extern const uint8_t right_secret[LS__LINK_SECRET], wrong_secret[LS__LINK_SECRET];

/* The real table, but recv and send_spans move one byte, and a third of the calls say -EAGAIN. */
const ls__env *narrow_env(void);

ls__link_spec spec_of(ls__link_mode mode, const uint8_t *secret, const char *purpose, uint64_t job);
ls__listener *listener_of(const ls__link_spec *spec);
/* Drives both sides until both are through, or the client has failed; *in is who was let in. */
ls_status meet(ls__listener *listener, ls__link *client, ls__link **in);
/* A listener, a client and who was let in, all of `spec`. */
void open_pair(const ls__link_spec *spec, ls__link **client, ls__link **in);
/* Whether this build has TLS. */
bool has_tls(void);

#endif

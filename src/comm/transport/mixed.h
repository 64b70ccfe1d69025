/* Two transports behind one table: shared memory for ranks of this host, TCP for the others. */
#ifndef LS_COMM_TRANSPORT_MIXED_H
#define LS_COMM_TRANSPORT_MIXED_H

#include "base/env.h"
#include "base/error.h"
#include "comm/transport/transport.h"

/* Owns both from then on and closes them with itself; on failure the caller keeps them. `remote`
 * [size]: whether the rank is reached by `net`. */
ls_status ls__mixed_transport_new(const ls__env *env, ls__transport *host, ls__transport *net,
                                  const bool *remote, int size, ls__transport **out);

#endif
